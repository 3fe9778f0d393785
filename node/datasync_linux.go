package node

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncData makes what was written to f durable, and of its attributes only what
// is needed to read it.
func syncData(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
