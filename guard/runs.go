//go:build linux

package guard

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const runsVersion = 1

// foreignLife is how long a record of another pid namespace, whose processes can't be seen, is kept: until every session
// of its time has run out. No TTL is longer than a minute.
const foreignLife = 10 * time.Minute

// runsHeader is the first line of the runs file.
type runsHeader struct {
	Version int    `json:"version"`
	Mark    string `json:"mark"`
	Boot    string `json:"kernel_boot"` // records of another run of the kernel are void
}

// record is a line of the runs file: a command, written before it may run, or the end of one.
type record struct {
	Run       uint64        `json:"run,omitempty"`
	Namespace uint64        `json:"namespace,omitempty"`
	PGID      int           `json:"pgid,omitempty"` // also the PID of the command
	Start     uint64        `json:"start,omitempty"`
	SID       int           `json:"sid,omitempty"` // the guard's: a group that got the same number lies in another session
	Key       string        `json:"key,omitempty"`
	Token     uint64        `json:"token,omitempty"`
	Unseen    time.Duration `json:"unseen,omitempty"` // boot time when it was first found to be out of sight
	End       uint64        `json:"end,omitempty"`    // this run is over, all of it
}

// errRunsDamaged is returned for a runs file whose lines, other than an unfinished last one, can't be read.
var errRunsDamaged = errors.New("runs file is damaged")

// readRuns returns the runs that the file lists and does not say to have ended. A missing or empty file lists none, and so
// does one of another folder or another run of the kernel.
func readRuns(dir, mark, boot string) ([]record, error) {
	b, err := os.ReadFile(filepath.Join(dir, runsName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read runs file: %w", err)
	}
	return parseRuns(b, mark, boot)
}

func parseRuns(b []byte, mark, boot string) ([]record, error) {
	// The last line may be torn by a crash. Its command never ran, since it waited for the line to be on disk.
	b = b[:bytes.LastIndexByte(b, '\n')+1]
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() {
		return nil, nil
	}
	var head runsHeader
	if err := json.Unmarshal(lines.Bytes(), &head); err != nil {
		return nil, fmt.Errorf("%w: first line: %w", errRunsDamaged, err)
	}
	if head.Version != runsVersion {
		return nil, fmt.Errorf("%w: version %d is not known", errRunsDamaged, head.Version)
	}
	if head.Mark != mark || head.Boot != boot {
		return nil, nil
	}
	var live []record
	for n := 2; lines.Scan(); n++ {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", errRunsDamaged, n, err)
		}
		if r.End == 0 {
			live = append(live, r)
			continue
		}
		for i := range live {
			if live[i].Run == r.End {
				live = append(live[:i], live[i+1:]...)
				break
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", errRunsDamaged, err)
	}
	return live, nil
}

func encodeRuns(head runsHeader, records []record) []byte {
	b, err := json.Marshal(head)
	if err != nil {
		panic("guard: " + err.Error()) // plain values
	}
	return appendRecords(append(b, '\n'), records)
}

func appendRecords(b []byte, records []record) []byte {
	for _, r := range records {
		line, err := json.Marshal(r)
		if err != nil {
			panic("guard: " + err.Error())
		}
		b = append(append(b, line...), '\n')
	}
	return b
}

// replaceRuns puts a new runs file in the place of the old one and returns it open for writing at the end. A guard of
// earlier days that still has the old one open can't harm the new one.
func replaceRuns(dir string, content []byte) (*os.File, error) {
	tmp := filepath.Join(dir, runsName+".new")
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write runs file: %w", err)
	}
	err = func() error {
		if _, err := f.Write(content); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if err := os.Rename(tmp, filepath.Join(dir, runsName)); err != nil {
			return err
		}
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer d.Close()
		return d.Sync()
	}()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write runs file: %w", err)
	}
	return f, nil
}

// closeInherited closes what was inherited by mistake. Everything that Go has opened since the start is close-on-exec;
// what came through an exec is not.
func closeInherited(from int) {
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range dir {
		var fd int
		if _, err := fmt.Sscanf(e.Name(), "%d", &fd); err != nil || fd < from {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
}
