//go:build unix

package node

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockExclusive takes the kernel's lock of f, or fails at once with errLocked.
func lockExclusive(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return errLocked
		default:
			return err
		}
	}
}

// writable asks the kernel without writing anything.
func writable(dir string) error { return unix.Access(dir, unix.W_OK|unix.X_OK) }

// markOf names the file that is open as f.
func markOf(f *os.File) (lockMark, error) {
	st, err := f.Stat()
	if err != nil {
		return lockMark{}, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return lockMark{}, errors.ErrUnsupported
	}
	return lockMark{Device: uint64(sys.Dev), Inode: sys.Ino, Born: born(f)}, nil
}
