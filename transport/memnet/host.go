package memnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/miwnode/miwnode/transport"
)

// Host is one life of a host: what a process sees of the network. It implements transport.Network.
type Host struct {
	n      *Net
	place  *place
	downCh chan struct{} // closed by Crash

	// Guarded by n.mu.
	down      bool
	ends      map[*end]struct{} // open
	listeners map[netip.AddrPort]*listener
	sockets   map[netip.AddrPort]*socket
	held      []heldPacket // what a paused host wants to send
}

var _ transport.Network = (*Host)(nil)

func newHost(n *Net, p *place) *Host {
	return &Host{
		n:         n,
		place:     p,
		downCh:    make(chan struct{}),
		ends:      map[*end]struct{}{},
		listeners: map[netip.AddrPort]*listener{},
		sockets:   map[netip.AddrPort]*socket{},
	}
}

// Name returns the host's name.
func (h *Host) Name() string { return h.place.name }

// IP returns the host's address at the moment.
func (h *Host) IP() string {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	return h.place.ip.String()
}

// LocalAddrs returns the host's addresses: what an unspecified bind address stands for.
func (h *Host) LocalAddrs() ([]netip.Addr, error) {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	return []netip.Addr{h.place.ip}, nil
}

// crash ends this life. Called with n.mu held.
func (h *Host) crash() {
	if h.down {
		return
	}
	now := h.n.now()
	h.down = true
	close(h.downCh)
	for e := range h.ends {
		e.crash(now)
	}
	for _, l := range h.listeners {
		l.shut(now)
	}
	for _, s := range h.sockets {
		s.shut()
	}
	h.held = nil
}

// resume sends what was held back. Called with n.mu held.
func (h *Host) resume() {
	now := h.n.now()
	held := h.held
	h.held = nil
	for _, p := range held {
		h.n.deliver(now, h.place, p.to, p.packet)
	}
	for _, l := range h.listeners {
		l.waiter.poke()
	}
	for _, s := range h.sockets {
		s.waiter.poke()
	}
}

func (h *Host) nextPort(used func(uint16) bool) uint16 {
	for {
		h.place.lastPort++
		if h.place.lastPort < 30000 {
			h.place.lastPort = 30000
		}
		if !used(h.place.lastPort) {
			return h.place.lastPort
		}
	}
}

// Listen implements transport.Network. The host part is the host's own address, an unspecified one, or a loopback address, which
// only the host itself reaches.
func (h *Host) Listen(addr string) (net.Listener, net.PacketConn, error) {
	fail := func(err error) (net.Listener, net.PacketConn, error) {
		return nil, nil, &net.OpError{Op: "listen", Net: "tcp", Addr: textAddr(addr), Err: err}
	}
	name, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return fail(err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return fail(fmt.Errorf("port %q is not a number up to 65535", portText))
	}
	n := h.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.down {
		return fail(errDown)
	}
	ip := h.place.ip
	switch a, err := netip.ParseAddr(name); {
	case name == "":
	case name == "localhost":
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case err != nil:
		return fail(err)
	case a.IsLoopback():
		ip = a
	case !a.IsUnspecified() && a != ip:
		return fail(os.NewSyscallError("bind", syscall.EADDRNOTAVAIL))
	}
	used := func(p uint16) bool {
		at := netip.AddrPortFrom(ip, p)
		return h.listeners[at] != nil || h.sockets[at] != nil
	}
	p := uint16(port)
	if p == 0 {
		p = h.nextPort(used)
	} else if used(p) {
		return fail(os.NewSyscallError("bind", syscall.EADDRINUSE))
	}
	at := netip.AddrPortFrom(ip, p)
	l := &listener{host: h, at: at}
	s := &socket{host: h, at: at, readBy: never}
	h.listeners[at] = l
	h.sockets[at] = s
	return l, s, nil
}

// Lookup implements transport.Network with the names of SetName and of the hosts.
func (h *Host) Lookup(_ context.Context, name string) ([]string, error) {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if h.down {
		return nil, errDown
	}
	fail := func(why string) ([]string, error) {
		return nil, &net.DNSError{Err: why, Name: name, IsNotFound: true}
	}
	if strings.HasPrefix(name, "srv:") {
		targets, ok := h.n.names[name]
		if !ok {
			return fail("no such host")
		}
		var out []string
		for _, t := range targets {
			host, port, err := net.SplitHostPort(t)
			if err != nil {
				return fail(err.Error())
			}
			for _, ip := range h.n.resolve(host) {
				out = append(out, net.JoinHostPort(ip, port))
			}
		}
		return out, nil
	}
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		host, port = name, transport.DefaultPort
	}
	ips := h.n.resolve(host)
	if len(ips) == 0 {
		return fail("no such host")
	}
	out := make([]string, len(ips))
	for i, ip := range ips {
		out[i] = net.JoinHostPort(ip, port)
	}
	return out, nil
}

// resolve returns the addresses of a name. Called with n.mu held.
func (n *Net) resolve(host string) []string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []string{ip.String()}
	}
	if host == "localhost" {
		return []string{"127.0.0.1"}
	}
	if ips, ok := n.names[host]; ok {
		return ips
	}
	if p := n.hosts[host]; p != nil {
		return []string{p.ip.String()}
	}
	return nil
}

const (
	synInterval   = time.Second // between tries to connect over a cut
	noHostTimeout = 3 * time.Second
	dialTimeout   = 2 * time.Minute
)

// DialContext implements transport.Network.
func (h *Host) DialContext(ctx context.Context, addr string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			err = dialDeadline{}
		case errors.Is(err, context.Canceled):
			err = fmt.Errorf("operation was canceled: %w", err)
		}
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: textAddr(addr), Err: err}
	}
	ips, err := h.Lookup(ctx, addr)
	if err != nil {
		return fail(err)
	}
	to, err := netip.ParseAddrPort(ips[0])
	if err != nil {
		return fail(err)
	}
	n := h.n
	begin := n.now()
	n.mu.Lock()
	n.count(n.link(h.place, h.place), Stats{Dials: 1})
	n.mu.Unlock()
	for {
		if err := ctx.Err(); err != nil {
			return fail(err)
		}
		e, again, err := h.try(ctx, to)
		if err != nil {
			return fail(err)
		}
		if e != nil {
			return e, nil
		}
		now := n.now()
		if now-begin >= instant(dialTimeout) {
			return fail(os.NewSyscallError("connect", syscall.ETIMEDOUT))
		}
		if again == 0 { // the next try of the retransmission timer
			again = instant(synInterval) - (now-begin)%instant(synInterval)
		}
		if err := h.sleep(ctx, again); err != nil {
			return fail(err)
		}
	}
}

// try sends one connection request. It returns no end and no error if the request or its answer gets lost.
func (h *Host) try(ctx context.Context, to netip.AddrPort) (e *end, again instant, err error) {
	n := h.n
	n.mu.Lock()
	if h.down {
		n.mu.Unlock()
		return nil, 0, errDown
	}
	p := n.byIP[to.Addr()]
	if to.Addr().IsLoopback() {
		p = h.place
	}
	if p == nil {
		n.mu.Unlock()
		if err := h.sleep(ctx, instant(noHostTimeout)); err != nil {
			return nil, 0, err
		}
		return nil, 0, os.NewSyscallError("connect", syscall.EHOSTUNREACH)
	}
	fwd, rev := n.link(h.place, p), n.link(p, h.place)
	if h.place.paused || !fwd.open() || !rev.open() || n.lost(fwd) || n.lost(rev) {
		n.mu.Unlock()
		return nil, 0, nil
	}
	out, back := n.travel(fwd), n.travel(rev)
	n.mu.Unlock()
	if err := h.sleep(ctx, out); err != nil {
		return nil, 0, err
	}

	n.mu.Lock()
	if h.down {
		n.mu.Unlock()
		return nil, 0, errDown
	}
	if !rev.open() {
		n.mu.Unlock()
		return nil, 0, nil
	}
	var l *listener
	if p.life != nil {
		l = p.life.listeners[to]
	}
	switch {
	case l == nil:
		err = os.NewSyscallError("connect", syscall.ECONNREFUSED)
	case len(l.backlog) >= backlogSize:
		n.mu.Unlock()
		return nil, 0, nil
	default:
		ip := h.place.ip
		if to.Addr().IsLoopback() {
			ip = to.Addr()
		}
		port := h.nextPort(func(q uint16) bool { return h.listeners[netip.AddrPortFrom(ip, q)] != nil })
		local := net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, port))
		var peer *end
		e, peer = n.connect(h, p.life, local, net.TCPAddrFromAddrPort(to))
		now := n.now()
		l.offer(now, peer, now+back+out)
	}
	n.mu.Unlock()
	if serr := h.sleep(ctx, back); serr != nil {
		if e != nil {
			_ = e.Close() // given up while it was being made
		}
		return nil, 0, serr
	}
	return e, 0, err
}

// sleep waits for d, the end of ctx or the end of the host.
func (h *Host) sleep(ctx context.Context, d instant) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(time.Duration(d))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-h.downCh:
		return errDown
	}
}

// textAddr is an address for errors.
type textAddr string

func (a textAddr) Network() string { return "tcp" }
func (a textAddr) String() string  { return string(a) }

// dialDeadline is the error of a dial whose context passed its deadline.
type dialDeadline struct{}

func (dialDeadline) Error() string        { return "i/o timeout" }
func (dialDeadline) Timeout() bool        { return true }
func (dialDeadline) Temporary() bool      { return true }
func (dialDeadline) Is(target error) bool { return target == context.DeadlineExceeded }
