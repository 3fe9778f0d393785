package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// maxSocketPath is what fits into the kernel's address of a unix socket.
const maxSocketPath = 100

// socketPath calls use with a path to the socket that is short enough for the
// kernel: a long one is reached through the folder's descriptor.
func socketPath(path string, use func(short string) error) error {
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

// listenUnix binds a socket for the owner alone. It is made beside its place
// and moved there once its mode is set, so that it is never open to others, and
// it takes the place of one that a dead process left.
func listenUnix(path string) (net.Listener, error) {
	fail := func(err error) (net.Listener, error) {
		return nil, fmt.Errorf("serve the API on %s: %w", path, err)
	}
	if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket == 0 {
		return fail(errors.New("something that is no socket is in its place: move it away"))
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fail(err)
	}
	var l *net.UnixListener
	err := socketPath(fresh, func(short string) (err error) {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err != nil {
		return fail(err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, path)); err != nil {
		_ = l.Close()
		_ = os.Remove(fresh)
		return fail(err)
	}
	return l, nil
}

// dialUnix connects to the socket at path.
func dialUnix(ctx context.Context, path string) (conn net.Conn, err error) {
	err = socketPath(path, func(short string) (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "unix", short)
		return err
	})
	switch {
	case errors.Is(err, syscall.ENOENT):
		err = fmt.Errorf("there is no socket: %w", err)
	case errors.Is(err, syscall.ECONNREFUSED):
		err = fmt.Errorf("nobody listens: %w", err)
	}
	return conn, err
}
