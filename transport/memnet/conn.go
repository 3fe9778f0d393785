package memnet

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// end is one side of a connection. Guarded by Net.mu.
type end struct {
	n             *Net
	host          *Host
	peer          *end
	local, remote *net.TCPAddr
	in            flow // towards this end
	closed        bool // by Close, or by the death of its host
	ended         bool // own half closed: CloseWrite
	err           error
	readBy        instant // deadlines
	writeBy       instant
	reader        waiter
	writer        waiter
}

var _ net.Conn = (*end)(nil)

// connect makes the two ends of a connection. Called with n.mu held.
func (n *Net) connect(from, to *Host, local, remote *net.TCPAddr) (dialled, accepted *end) {
	fwd, rev := n.link(from.place, to.place), n.link(to.place, from.place)
	a := &end{n: n, host: from, local: local, remote: remote, readBy: never, writeBy: never}
	b := &end{n: n, host: to, local: remote, remote: local, readBy: never, writeBy: never}
	a.peer, b.peer = b, a
	a.in = flow{n: n, to: a, fwd: rev, rev: fwd, resetDue: never}
	b.in = flow{n: n, to: b, fwd: fwd, rev: rev, resetDue: never}
	from.ends[a] = struct{}{}
	to.ends[b] = struct{}{}
	n.count(fwd, Stats{Conns: 1})
	return a, b
}

// diesAt returns when the connection ends for want of progress, as seen from this end.
func (e *end) diesAt() instant {
	at := never
	out := &e.peer.in
	if out.stuckSince != 0 {
		at = out.stuckSince + instant(e.n.opts.UserTimeout)
	}
	for _, l := range [2]*link{out.fwd, out.rev} {
		if !l.open() {
			at = min(at, l.cutSince+instant(e.n.opts.KeepAlive))
		}
	}
	return at
}

// settle lets the end die if its time has come.
func (e *end) settle(now instant) {
	if e.err != nil || e.closed {
		return
	}
	if e.diesAt() <= now {
		e.err = os.NewSyscallError("read", syscall.ETIMEDOUT)
		e.peer.in.dropUnsent()
		e.peer.in.push(now, segReset, nil)
	}
}

func (e *end) wakeReader(now, due instant) { e.reader.arm(e.n, now, due) }

func (e *end) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: e.local, Addr: e.remote, Err: err}
}

// Read implements net.Conn.
func (e *end) Read(p []byte) (int, error) {
	n := e.n
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		now := n.now()
		e.settle(now)
		switch {
		case e.closed:
			return 0, e.opError("read", e.closeError())
		case e.readBy <= now:
			return 0, e.opError("read", os.ErrDeadlineExceeded)
		case len(p) == 0:
			return 0, nil
		}
		wake := min(e.readBy, e.diesAt())
		if !e.host.place.paused {
			full := e.in.size() >= n.opts.Window
			if k := e.in.take(now, p); k > 0 {
				if full {
					e.peer.writer.poke()
				}
				return k, nil
			}
			if due := e.in.headDue(); due <= now {
				if e.in.segs[e.in.first].kind == segEnd {
					return 0, io.EOF
				}
				e.err = os.NewSyscallError("read", syscall.ECONNRESET)
			} else {
				wake = min(wake, due)
			}
			if e.err != nil {
				return 0, e.opError("read", e.err)
			}
		}
		e.reader.wait(n, now, wake)
	}
}

// closeError tells a use after Close from one after the death of the host.
func (e *end) closeError() error {
	if e.host.down {
		return errDown
	}
	return net.ErrClosed
}

// Write implements net.Conn.
func (e *end) Write(p []byte) (int, error) {
	n := e.n
	n.mu.Lock()
	defer n.mu.Unlock()
	written := 0
	for {
		now := n.now()
		e.settle(now)
		switch {
		case e.closed:
			return written, e.opError("write", e.closeError())
		case e.writeBy <= now:
			return written, e.opError("write", os.ErrDeadlineExceeded)
		case e.ended:
			return written, e.opError("write", syscall.EPIPE)
		case e.err == nil && e.in.resetDue <= now:
			e.err = os.NewSyscallError("write", syscall.ECONNRESET)
		}
		if e.err != nil {
			return written, e.opError("write", e.err)
		}
		if len(p) == 0 {
			return written, nil
		}
		out := &e.peer.in
		if e.peer.closed { // nobody will read it: the answer is a reset, a round trip later
			if e.in.resetDue == never {
				e.in.push(now+n.travel(out.fwd), segReset, nil)
			}
			return written + len(p), nil
		}
		if space := n.opts.Window - out.size(); space > 0 {
			k := min(space, len(p), 64<<10)
			out.push(now, segData, p[:k])
			p, written = p[k:], written+k
			continue
		}
		e.writer.wait(n, now, min(e.writeBy, e.diesAt(), e.in.resetDue))
	}
}

// CloseWrite ends the stream to the peer; reading goes on.
func (e *end) CloseWrite() error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if e.closed {
		return e.opError("close", net.ErrClosed)
	}
	e.finish(e.n.now())
	return nil
}

// finish sends the end of the stream. Called with Net.mu held.
func (e *end) finish(now instant) {
	if e.ended {
		return
	}
	e.ended = true
	if e.err == nil && !e.peer.closed {
		e.peer.in.push(now, segEnd, nil)
	}
	e.writer.poke()
}

// Close implements net.Conn. What was written is still delivered; what the peer sent and was not read makes a reset.
func (e *end) Close() error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if e.closed {
		return e.opError("close", e.closeError())
	}
	now := e.n.now()
	e.settle(now)
	e.finish(now)
	unread := e.in.size() > 0
	e.shut()
	if unread && e.err == nil && !e.peer.closed {
		e.peer.in.push(now, segReset, nil)
	}
	return nil
}

// shut marks the end closed and wakes all that wait on it. Called with Net.mu held.
func (e *end) shut() {
	e.closed = true
	delete(e.host.ends, e)
	e.in.drop()
	e.reader.poke()
	e.writer.poke()
	if e.peer.closed {
		e.peer.in.drop()
	}
}

// crash ends the connection with its host. Called with Net.mu held.
func (e *end) crash(now instant) {
	if e.closed {
		return
	}
	e.shut()
	if !e.peer.closed {
		e.peer.in.dropUnsent()
		e.peer.in.push(now, segReset, nil)
	}
}

// LocalAddr implements net.Conn.
func (e *end) LocalAddr() net.Addr { return e.local }

// RemoteAddr implements net.Conn.
func (e *end) RemoteAddr() net.Addr { return e.remote }

// SetDeadline implements net.Conn.
func (e *end) SetDeadline(t time.Time) error { return e.setDeadlines(t, true, true) }

// SetReadDeadline implements net.Conn.
func (e *end) SetReadDeadline(t time.Time) error { return e.setDeadlines(t, true, false) }

// SetWriteDeadline implements net.Conn.
func (e *end) SetWriteDeadline(t time.Time) error { return e.setDeadlines(t, false, true) }

func (e *end) setDeadlines(t time.Time, read, write bool) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if e.closed {
		return e.opError("set", e.closeError())
	}
	at := e.n.instantOf(t)
	if read {
		e.readBy = at
		e.reader.poke()
	}
	if write {
		e.writeBy = at
		e.writer.poke()
	}
	return nil
}

// errDown is the error of everything on a host after its crash.
var errDown = errors.New("host is down")
