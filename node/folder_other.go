//go:build !unix

package node

import (
	"errors"
	"os"
)

// lockExclusive fails: without the kernel's lock two nodes could share a folder.
func lockExclusive(*os.File) error { return errors.ErrUnsupported }

func writable(string) error { return nil }

func markOf(*os.File) (lockMark, error) { return lockMark{}, errors.ErrUnsupported }
