package jepsen

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// diskSize is that of a node's own file system, where it has one.
const diskSize = 128 << 20

// Disks are what the nodes of a cluster keep their data on. With the rights to
// mount, each is a small file system of its own, in memory, which is filled to
// the last byte. Without, a node whose disk is full is forbidden to write to
// files: every write fails, if with another error than a full disk gives.
type Disks struct {
	dir     string
	mounted []string

	mu   sync.Mutex
	full map[string]bool // guarded by mu; nodes that are forbidden to write
}

// NewDisks makes the data folders of the nodes in a cluster's folder.
func NewDisks(dir string, nodes []string) (*Disks, error) {
	d := &Disks{dir: dir, full: map[string]bool{}}
	for _, n := range nodes {
		path := filepath.Join(dir, n)
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("data folder: %w", err)
		}
		if err := unix.Mount("tmpfs", path, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", diskSize)); err == nil {
			d.mounted = append(d.mounted, path)
		} else if len(d.mounted) > 0 {
			d.Close()
			return nil, fmt.Errorf("mount %s: %w", path, err)
		}
	}
	return d, nil
}

// Kind says what they are.
func (d *Disks) Kind() string {
	if len(d.mounted) > 0 {
		return fmt.Sprintf("tmpfs of %d MiB for each node", diskSize>>20)
	}
	return "the folder for temporary files; a full one is a limit of 0 on the sizes of files"
}

func ballast(path string) string { return filepath.Join(path, "ballast") }

// Fill leaves no room on a node's disk.
func (d *Disks) Fill(node string) error {
	if len(d.mounted) == 0 {
		d.mu.Lock()
		d.full[node] = true
		d.mu.Unlock()
		return d.forbid(node)
	}
	f, err := os.Create(ballast(filepath.Join(d.dir, node)))
	if err != nil {
		return fmt.Errorf("fill the disk of %s: %w", node, err)
	}
	defer f.Close()
	chunk := make([]byte, 1<<20)
	for len(chunk) > 0 {
		_, err := f.Write(chunk)
		switch {
		case errors.Is(err, unix.ENOSPC):
			chunk = chunk[:len(chunk)/2] // to the last byte
		case err != nil:
			return fmt.Errorf("fill the disk of %s: %w", node, err)
		}
	}
	return nil
}

// Free makes room again.
func (d *Disks) Free(node string) error {
	if len(d.mounted) == 0 {
		d.mu.Lock()
		delete(d.full, node)
		d.mu.Unlock()
		return d.limit(node, unix.RLIM_INFINITY)
	}
	if err := os.Remove(ballast(filepath.Join(d.dir, node))); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("free the disk of %s: %w", node, err)
	}
	return nil
}

// forbid renews the limits of a node whose disk is full: it may have been started since.
func (d *Disks) forbid(node string) error {
	d.mu.Lock()
	full := d.full[node]
	d.mu.Unlock()
	if !full {
		return nil
	}
	return d.limit(node, 0)
}

func (d *Disks) limit(node string, size uint64) error {
	var errs []error
	for pid, of := range marked(d.dir) {
		if of != node {
			continue
		}
		var old unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &old); err != nil {
			continue // it has just ended
		}
		if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: min(size, old.Max), Max: old.Max}, nil); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("limit the files of %s: %w", node, err))
		}
	}
	return errors.Join(errs...)
}

// Close unmounts them; nothing may run on them any more.
func (d *Disks) Close() {
	for _, path := range d.mounted {
		unmount(path)
	}
	d.mounted = nil
}

// unmount unmounts what may be mounted at a path; what stays can't be removed,
// which is told.
func unmount(path string) { _ = unix.Unmount(path, unix.MNT_DETACH) }
