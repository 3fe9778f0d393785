package jepsen

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// lockFile is held by whoever works in a folder, so that a later run can tell that
// nobody does any more.
const lockFile = "lock"

func lockFolder(dir string) (release func(), err error) {
	f, err := os.Create(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// newFolder makes the folder of a run and locks it. It gets its name only then, so
// that one whose lock is free is a dead run's.
func newFolder() (dir string, release func(), err error) {
	// Sockets lie in it, whose paths must be short.
	fresh, err := os.MkdirTemp("", "miwn-")
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(fresh)
		}
	}()
	parent, err := filepath.EvalSymlinks(filepath.Dir(fresh))
	if err != nil {
		return "", nil, err
	}
	dir = filepath.Join(parent, runFolder+strings.TrimPrefix(filepath.Base(fresh), "miwn-"))
	const longest = 80
	if len(dir) > longest {
		return "", nil, fmt.Errorf("%s is too long a path for sockets: set TMPDIR to a folder with a short one", dir)
	}
	if release, err = lockFolder(fresh); err != nil {
		return "", nil, err
	}
	if err := os.Rename(fresh, dir); err != nil {
		release()
		return "", nil, err
	}
	return dir, release, nil
}

// runFolder is what the names of runs' folders begin with.
const runFolder = "miwt-"

// sweep removes what runs left that were killed: their processes, mounts, namespaces
// and folders; and says what that was.
func sweep(parent string) (said []string) {
	var parts []string
	folders, _ := filepath.Glob(filepath.Join(parent, runFolder+"*"))
	for _, dir := range folders {
		f, err := os.Open(filepath.Join(dir, lockFile))
		if err != nil {
			continue // another's
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil { // nobody works there
			parts = append(parts, fmt.Sprintf("%s with %d processes", dir, killMarked(dir)))
			nodes, _ := filepath.Glob(filepath.Join(dir, "n*"))
			for _, n := range nodes {
				unmount(n)
			}
			if err := os.RemoveAll(dir); err != nil {
				said = append(said, fmt.Sprintf("%s is left of a torture that was killed, and can't be removed: %v", dir, err))
			}
		}
		f.Close()
	}
	if spaces := deadNamespaces(); len(spaces) > 0 {
		for _, s := range spaces {
			_ = command("ip", "netns", "del", s) // the next sweep tries again
		}
		parts = append(parts, "the network namespaces "+strings.Join(spaces, ", "))
	}
	if len(parts) > 0 {
		said = append(said, "removed what was left of a torture that was killed: "+strings.Join(parts, "; "))
	}
	return said
}

var namespaceName = regexp.MustCompile(`^miw(\d+)-\S+`)

// deadNamespaces are those whose maker is no more.
func deadNamespaces() (dead []string) {
	if os.Geteuid() != 0 {
		return nil
	}
	out, _ := exec.Command("ip", "netns", "list").Output() // without ip there are none
	for line := range strings.Lines(string(out)) {
		if m := namespaceName.FindStringSubmatch(line); m != nil {
			if pid, _ := strconv.Atoi(m[1]); syscall.Kill(pid, 0) == syscall.ESRCH {
				dead = append(dead, m[0])
			}
		}
	}
	return dead
}
