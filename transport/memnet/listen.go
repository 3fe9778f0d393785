package memnet

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"
)

const backlogSize = 128

// listener accepts connections of one address. Guarded by Net.mu.
type listener struct {
	host    *Host
	at      netip.AddrPort
	backlog []incoming // by time
	closed  bool
	waiter  waiter
}

type incoming struct {
	e   *end
	due instant
}

var _ net.Listener = (*listener)(nil)

// offer puts a connection into the backlog. Called with Net.mu held.
func (l *listener) offer(now instant, e *end, due instant) {
	i, _ := slices.BinarySearchFunc(l.backlog, due, func(c incoming, at instant) int {
		if c.due <= at {
			return -1
		}
		return 1
	})
	l.backlog = slices.Insert(l.backlog, i, incoming{e, due})
	l.waiter.arm(l.host.n, now, due)
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	n := l.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		if l.closed {
			return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
		}
		now := n.now()
		until := never
		if len(l.backlog) > 0 && !l.host.place.paused {
			if until = l.backlog[0].due; until <= now {
				e := l.backlog[0].e
				l.backlog = slices.Delete(l.backlog, 0, 1)
				return e, nil
			}
		}
		l.waiter.wait(n, now, until)
	}
}

// shut closes the listener and resets what was not accepted. Called with Net.mu held.
func (l *listener) shut(now instant) {
	if l.closed {
		return
	}
	l.closed = true
	delete(l.host.listeners, l.at)
	for _, c := range l.backlog {
		c.e.crash(now)
	}
	l.backlog = nil
	l.waiter.poke()
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.host.n.mu.Lock()
	defer l.host.n.mu.Unlock()
	if l.closed {
		return &net.OpError{Op: "close", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
	}
	l.shut(l.host.n.now())
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

// packet is one datagram under way.
type packet struct {
	data []byte
	from netip.AddrPort
	due  instant
}

type heldPacket struct {
	packet
	to netip.AddrPort
}

// socket is a packet socket. Guarded by Net.mu.
type socket struct {
	host   *Host
	at     netip.AddrPort
	queue  []packet // by time of arrival
	closed bool
	readBy instant
	waiter waiter
}

var _ net.PacketConn = (*socket)(nil)

const maxPacket = 65507

// WriteTo implements net.PacketConn.
func (s *socket) WriteTo(b []byte, addr net.Addr) (int, error) {
	fail := func(err error) (int, error) {
		return 0, &net.OpError{Op: "write", Net: "udp", Source: s.LocalAddr(), Addr: addr, Err: err}
	}
	var to netip.AddrPort
	switch a := addr.(type) {
	case *net.UDPAddr:
		to = a.AddrPort()
		to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	default:
		var err error
		if to, err = netip.ParseAddrPort(addr.String()); err != nil {
			return fail(err)
		}
	}
	n := s.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case s.closed:
		return fail(net.ErrClosed)
	case len(b) > maxPacket:
		return fail(os.NewSyscallError("sendto", syscall.EMSGSIZE))
	}
	p := packet{data: slices.Clone(b), from: s.at}
	if s.host.place.paused {
		if len(s.host.held) < n.opts.PacketQueue {
			s.host.held = append(s.host.held, heldPacket{p, to})
		}
		return len(b), nil
	}
	n.deliver(n.now(), s.host.place, to, p)
	return len(b), nil
}

// deliver sends a packet on its way, or drops it. Called with n.mu held.
func (n *Net) deliver(now instant, from *place, at netip.AddrPort, p packet) {
	to := n.byIP[at.Addr()]
	if at.Addr().IsLoopback() {
		to = from
	}
	if to == nil {
		n.stats.add(Stats{Packets: 1, PacketBytes: uint64(len(p.data)), PacketsDropped: 1})
		return
	}
	l := n.link(from, to)
	n.count(l, Stats{Packets: 1, PacketBytes: uint64(len(p.data))})
	var s *socket
	if to.life != nil {
		s = to.life.sockets[at]
	}
	if s == nil || !l.open() || n.lost(l) || len(s.queue) >= n.opts.PacketQueue {
		n.count(l, Stats{PacketsDropped: 1})
		return
	}
	p.due = now + n.travel(l)
	i := len(s.queue)
	for i > 0 && s.queue[i-1].due > p.due {
		i--
	}
	s.queue = slices.Insert(s.queue, i, p)
	if i == 0 {
		s.waiter.arm(n, now, p.due)
	}
}

// ReadFrom implements net.PacketConn.
func (s *socket) ReadFrom(b []byte) (int, net.Addr, error) {
	fail := func(err error) (int, net.Addr, error) {
		return 0, nil, &net.OpError{Op: "read", Net: "udp", Source: s.LocalAddr(), Err: err}
	}
	n := s.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		now := n.now()
		switch {
		case s.closed:
			return fail(net.ErrClosed)
		case s.readBy <= now:
			return fail(os.ErrDeadlineExceeded)
		}
		until := s.readBy
		if len(s.queue) > 0 && !s.host.place.paused {
			if p := s.queue[0]; p.due <= now {
				s.queue = slices.Delete(s.queue, 0, 1)
				return copy(b, p.data), net.UDPAddrFromAddrPort(p.from), nil
			}
			until = min(until, s.queue[0].due)
		}
		s.waiter.wait(n, now, until)
	}
}

// shut closes the socket. Called with Net.mu held.
func (s *socket) shut() {
	if s.closed {
		return
	}
	s.closed = true
	delete(s.host.sockets, s.at)
	s.queue = nil
	s.waiter.poke()
}

// Close implements net.PacketConn.
func (s *socket) Close() error {
	s.host.n.mu.Lock()
	defer s.host.n.mu.Unlock()
	if s.closed {
		return &net.OpError{Op: "close", Net: "udp", Source: s.LocalAddr(), Err: net.ErrClosed}
	}
	s.shut()
	return nil
}

// LocalAddr implements net.PacketConn.
func (s *socket) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(s.at) }

// SetDeadline implements net.PacketConn.
func (s *socket) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

// SetReadDeadline implements net.PacketConn.
func (s *socket) SetReadDeadline(t time.Time) error {
	s.host.n.mu.Lock()
	defer s.host.n.mu.Unlock()
	s.readBy = s.host.n.instantOf(t)
	s.waiter.poke()
	return nil
}

// SetWriteDeadline implements net.PacketConn. Sending never waits.
func (s *socket) SetWriteDeadline(time.Time) error { return nil }
