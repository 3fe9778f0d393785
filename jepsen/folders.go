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
	"time"
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

// sweepFolders removes what runs left that were killed: their processes, mounts,
// namespaces and folders.
func sweepFolders(parent string) {
	folders, _ := filepath.Glob(filepath.Join(parent, "miwt-*"))
	for _, dir := range folders {
		st, err := os.Stat(filepath.Join(dir, lockFile))
		if err != nil || time.Since(st.ModTime()) < 10*time.Second {
			continue // another's, or too young to be left
		}
		release, err := lockFolder(dir)
		if err != nil {
			continue // somebody works there
		}
		for pid := range marked(dir) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		nodes, _ := filepath.Glob(filepath.Join(dir, "n*"))
		for _, n := range nodes {
			unmount(n)
		}
		os.RemoveAll(dir)
		release()
	}
	sweepNamespaces()
}

var namespaceName = regexp.MustCompile(`^miw(\d+)-\S+`)

// sweepNamespaces deletes those whose maker is no more.
func sweepNamespaces() {
	if os.Geteuid() != 0 {
		return
	}
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		return
	}
	for line := range strings.Lines(string(out)) {
		m := namespaceName.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if pid, _ := strconv.Atoi(m[1]); syscall.Kill(pid, 0) == syscall.ESRCH {
			_ = command("ip", "netns", "del", strings.Fields(m[0])[0])
		}
	}
}
