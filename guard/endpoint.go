//go:build linux

package guard

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// endpoint is the guard's end of the control socket. It never blocks: what the node does not read stays queued.
type endpoint struct {
	fd    int // -1 once it has ended
	in    []byte
	files []int // received, in the order of the messages they belong to
	out   []byte
}

// receive reads what is there. It returns io.EOF when the node's end is closed; what came before has been read by then.
func (e *endpoint) receive() error {
	var buf [32 << 10]byte
	oob := make([]byte, unix.CmsgSpace(8*4))
	for {
		n, oobn, flags, _, err := unix.Recvmsg(e.fd, buf[:], oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		switch err {
		case nil:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return nil
		default:
			return io.EOF // ECONNRESET: the node died with unread answers
		}
		if err := e.takeFiles(oob[:oobn], flags); err != nil {
			return err
		}
		if n == 0 {
			return io.EOF
		}
		e.in = append(e.in, buf[:n]...)
	}
}

func (e *endpoint) takeFiles(oob []byte, flags int) error {
	if len(oob) > 0 {
		list, err := unix.ParseSocketControlMessage(oob)
		if err != nil {
			return fmt.Errorf("receive descriptors: %w", err)
		}
		for _, c := range list {
			fds, err := unix.ParseUnixRights(&c)
			if err != nil {
				continue
			}
			e.files = append(e.files, fds...)
		}
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return fmt.Errorf("receive descriptors: none left: %w", unix.EMFILE)
	}
	return nil
}

// next returns the next whole message and its descriptors, which are the caller's then.
func (e *endpoint) next() (m message, files []int, ok bool, err error) {
	m, rest, ok, err := cutFrame(e.in)
	if !ok || err != nil {
		return m, nil, false, err
	}
	if e.in = rest; len(rest) == 0 {
		e.in = nil
	}
	n := m.files()
	if n > len(e.files) {
		return m, nil, false, fmt.Errorf("%w: %d descriptors are missing", errFrame, n-len(e.files))
	}
	files, e.files = e.files[:n:n], e.files[n:]
	return m, files, true, nil
}

// send queues a message.
func (e *endpoint) send(m message) {
	if e.fd < 0 {
		return
	}
	b, err := appendFrame(e.out, m)
	if err == nil {
		e.out = b
	}
}

// flush writes what the socket takes. Errors are left to receive: they mean that the node's end is closed.
func (e *endpoint) flush() {
	for e.fd >= 0 && len(e.out) > 0 {
		n, err := unix.SendmsgN(e.fd, e.out, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err == unix.EAGAIN {
			return
		}
		if err != nil {
			e.out = nil
			return
		}
		e.out = e.out[n:]
	}
	if len(e.out) == 0 {
		e.out = nil
	}
}

func (e *endpoint) close() {
	if e.fd >= 0 {
		unix.Close(e.fd)
		e.fd = -1
	}
	for _, f := range e.files {
		unix.Close(f)
	}
	e.files, e.out, e.in = nil, nil, nil
}
