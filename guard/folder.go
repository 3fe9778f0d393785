//go:build linux

package guard

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	lockName = "guard.lock"
	runsName = "runs"

	lockHeader = "miwnode guard " // then the folder's own ID and a newline; never rewritten
	lockIDLen  = 32
)

// holder is who holds the lock: written behind the header by each guard in turn.
type holder struct {
	PID        int    `json:"pid"`
	Start      uint64 `json:"start"`
	Namespace  uint64 `json:"namespace"` // of pids
	Owner      int    `json:"owner"`     // the node's process
	OwnerStart uint64 `json:"owner_start"`
}

// folder is an open guard.lock. Whoever has locked it may write it and the runs file.
type folder struct {
	dir  string
	f    *os.File
	mark string // names the runs of this very folder: a copy of it has another
}

// openFolder opens guard.lock. Without create, a missing file gives an error that matches os.ErrNotExist.
func openFolder(dir string, create bool) (*folder, error) {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open guard lock: %w", err)
	}
	return &folder{dir: dir, f: f}, nil
}

func (d *folder) close() { d.f.Close() }

// tryLock locks without waiting and then knows the mark. It returns ErrFolderInUse where another has the lock.
func (d *folder) tryLock() error {
	for {
		err := unix.Flock(int(d.f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch err {
		case nil:
			return d.identify()
		case unix.EINTR:
		case unix.EWOULDBLOCK:
			return ErrFolderInUse
		default:
			return fmt.Errorf("lock %s: %w", d.f.Name(), err)
		}
	}
}

// identify reads the folder's ID, or gives it one, and derives the mark. The mark takes in device and inode, so that a
// folder and its copy never claim each other's commands.
func (d *folder) identify() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(d.f.Fd()), &st); err != nil {
		return fmt.Errorf("stat guard lock: %w", err)
	}
	head := make([]byte, len(lockHeader)+lockIDLen+1)
	n, err := d.f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read guard lock: %w", err)
	}
	if n < len(head) || !bytes.HasPrefix(head, []byte(lockHeader)) || head[len(head)-1] != '\n' {
		id := make([]byte, lockIDLen/2)
		rand.Read(id)
		head = []byte(lockHeader + hex.EncodeToString(id) + "\n")
		if err := d.f.Truncate(0); err != nil {
			return fmt.Errorf("write guard lock: %w", err)
		}
		if _, err := d.f.WriteAt(head, 0); err != nil {
			return fmt.Errorf("write guard lock: %w", err)
		}
		if err := d.f.Sync(); err != nil {
			return fmt.Errorf("write guard lock: %w", err)
		}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", head, st.Dev, st.Ino))
	d.mark = hex.EncodeToString(sum[:8])
	return nil
}

// hold writes who has the lock now.
func (d *folder) hold(h holder) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	at := int64(len(lockHeader) + lockIDLen + 1)
	if err := d.f.Truncate(at); err != nil {
		return fmt.Errorf("write guard lock: %w", err)
	}
	if _, err := d.f.WriteAt(append(b, '\n'), at); err != nil {
		return fmt.Errorf("write guard lock: %w", err)
	}
	return nil
}

// holder reads who has, or last had, the lock. It may be read by anybody at any time, so it may be half written: then it
// is zero.
func (d *folder) holder() (h holder) {
	b, err := os.ReadFile(d.f.Name())
	if err != nil {
		return h
	}
	if _, rest, ok := strings.Cut(string(b), "\n"); ok && json.Unmarshal([]byte(rest), &h) != nil {
		return holder{}
	}
	return h
}

// alive tells whether the holder, or its owner, is a running process that this one can see.
func alive(pid int, start uint64) bool {
	if pid == 0 {
		return false
	}
	p, err := readProc(pid)
	return err == nil && p.start == start && !p.ended()
}
