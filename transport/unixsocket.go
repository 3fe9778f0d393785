package transport

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// maxSocketPath is what surely fits into the kernel's address of a unix socket.
const maxSocketPath = 100

// DialUnix connects to the unix socket at path, however long that is.
func DialUnix(ctx context.Context, path string) (conn net.Conn, err error) {
	err = shortPath(path, func(short string) (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "unix", short)
		return err
	})
	return conn, err
}

// ListenUnix makes a unix socket at path, however long that is. Closing the listener may leave the socket behind.
func ListenUnix(path string) (l *net.UnixListener, err error) {
	err = shortPath(path, func(short string) (err error) {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	return l, err
}

// shortPath calls use with a path to the socket that is short enough for the kernel: a long one is reached through the
// folder's descriptor.
func shortPath(path string, use func(short string) error) error {
	if len(path) <= maxSocketPath {
		return use(path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	short := filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())))
	if _, err := os.Stat(short); err != nil {
		return fmt.Errorf("the path has %d bytes, more than a unix socket's may (%d): use a shorter data folder", len(path), maxSocketPath)
	}
	return use(filepath.Join(short, filepath.Base(path)))
}
