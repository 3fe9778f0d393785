//go:build !linux

package node

import "os"

func syncData(f *os.File) error { return f.Sync() }
