package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Names in the data folder.
const (
	lockFile     = "lock"
	identityFile = "node.json"
	promiseFile  = "promise.json"
	peersFile    = "peers.json"
	raftFile     = "raft.db"
)

// folderFormat is written into every file of ours; a larger one is of a newer version.
const folderFormat = 1

// errLocked: another open file holds the lock.
var errLocked = errors.New("locked")

// folder is a locked data folder.
type folder struct {
	dir   string
	seams *Seams // nil: none

	mu   sync.Mutex
	lock *os.File // nil once released
}

// openFolder makes dir if needed and locks it. The lock is the kernel's (flock):
// it ends with the process, however that ends.
func openFolder(dir string) (*folder, error) {
	fail := func(kind error, format string, args ...any) (*folder, error) {
		return nil, &folderError{dir: dir, kind: kind, text: fmt.Sprintf(format, args...)}
	}
	if err := makeFolder(dir); err != nil {
		return fail(err, "can't be made: %v", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fail(err, "can't be locked: %v", err)
	}
	if err := lockExclusive(f); err != nil {
		defer f.Close()
		if !errors.Is(err, errLocked) {
			return fail(err, "can't be locked: %v", err)
		}
		buf := make([]byte, 32)
		n, _ := f.ReadAt(buf, 0)
		if pid := strings.TrimSpace(string(buf[:n])); pid != "" {
			return fail(ErrFolderInUse, "in use by process %s; stop it, or give this node a folder of its own", pid)
		}
		return fail(ErrFolderInUse, "in use by another process; stop it, or give this node a folder of its own")
	}
	// The pid is for people who meet the lock; nothing depends on it.
	pid := fmt.Sprintf("%d\n", os.Getpid())
	if n, err := f.WriteAt([]byte(pid), 0); err == nil {
		_ = f.Truncate(int64(n))
	}
	return &folder{dir: dir, lock: f}, nil
}

// makeFolder makes dir and what it lies in, and has each written down in its
// parent: a folder that a power cut takes with it takes a vote along.
func makeFolder(dir string) error {
	var missing []string
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); err == nil || filepath.Dir(d) == d {
			break
		}
		missing = append(missing, d)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, d := range missing {
		if err := syncDir(filepath.Dir(d)); err != nil {
			return err
		}
	}
	return nil
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

// mark tells the lock file from those of copies.
func (f *folder) mark() (lockMark, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lock == nil {
		return lockMark{}, os.ErrClosed
	}
	return markOf(f.lock)
}

// folderLook is how often a node looks whether its folder is there.
const folderLook = 5 * time.Second

// watch returns an error once the folder is gone, is another one or can't be
// written to. Open files go on working without it, so nothing else would tell
// that what they take will not be there at the next start.
func (f *folder) watch(ctx context.Context) error {
	for {
		if err := pause(ctx, folderLook); err != nil {
			return nil
		}
		if err := f.check(); err != nil {
			return fmt.Errorf("%w: %w", ErrStorage, err)
		}
	}
}

// check tells what is wrong with the folder, nil if nothing is.
func (f *folder) check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lock == nil {
		return nil // released: no concern of this node's any more
	}
	there, err := os.Stat(f.path(lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s was removed, or moved away, under the running node", f.dir)
	}
	if err != nil {
		return fmt.Errorf("%s can't be looked at: %w", f.dir, err)
	}
	if mine, err := f.lock.Stat(); err == nil && !os.SameFile(there, mine) {
		return fmt.Errorf("%s was replaced by another under the running node", f.dir)
	}
	if err := writable(f.dir); err != nil {
		return fmt.Errorf("%s can't be written to: %w", f.dir, err)
	}
	return nil
}

// release unlocks the folder.
func (f *folder) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lock != nil {
		_ = f.lock.Close()
		f.lock = nil
	}
}

// read fills v from a file of the folder; found is false if there is none.
func (f *folder) read(name string, v any) (found bool, err error) {
	b, err := os.ReadFile(f.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, &folderError{dir: f.dir, kind: ErrFolderDamaged, text: fmt.Sprintf("%s can't be read: %v", name, err)}
	}
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &head); err != nil || head.Format < 1 {
		return false, &folderError{
			dir: f.dir, kind: ErrFolderDamaged,
			text: fmt.Sprintf("%s is damaged or cut short (%d bytes); restore the folder, or start with an empty one as a new node", name, len(b)),
		}
	}
	if head.Format > folderFormat {
		return false, &folderError{
			dir: f.dir, kind: ErrFolderNewer,
			text: fmt.Sprintf("%s has format %d, this version knows up to %d; run the newer version", name, head.Format, folderFormat),
		}
	}
	if err := json.Unmarshal(b, v); err != nil {
		return false, &folderError{dir: f.dir, kind: ErrFolderDamaged, text: fmt.Sprintf("%s is damaged: %v", name, err)}
	}
	return true, nil
}

// write replaces a file of the folder; once it returns nil the new content
// survives a loss of power, and at no moment is there half a file.
func (f *folder) write(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	of := stepsOfFile[name]
	err = f.seams.around(of.write, of.renamed, func() error {
		tmp := f.path(name + ".tmp")
		if err := writeSynced(tmp, append(b, '\n')); err != nil {
			return err
		}
		return os.Rename(tmp, f.path(name))
	})
	if err == nil {
		err = syncDir(f.dir)
	}
	if err == nil {
		err = f.seams.step(of.written)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func writeSynced(path string, b []byte) error {
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	if err == nil {
		err = w.Sync()
	}
	return errors.Join(err, w.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
