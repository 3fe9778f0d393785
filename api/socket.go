package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/miwnode/miwnode/transport"
)

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
	l, err := transport.ListenUnix(fresh)
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
	conn, err = transport.DialUnix(ctx, path)
	switch {
	case errors.Is(err, syscall.ENOENT):
		err = fmt.Errorf("there is no socket: %w", err)
	case errors.Is(err, syscall.ECONNREFUSED):
		err = fmt.Errorf("nobody listens: %w", err)
	}
	return conn, err
}
