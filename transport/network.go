package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// DefaultPort is the port of a name that gives none.
const DefaultPort = "7400"

// Network is what a Transport needs of the world: a stream listener and a packet socket on one port number, dialling, and names.
// OS is the real one; package memnet has one in memory.
type Network interface {
	// Listen binds a stream listener and a packet socket on one port number. Port 0 chooses one that is free for both.
	Listen(addr string) (net.Listener, net.PacketConn, error)
	// DialContext opens a stream to host:port.
	DialContext(ctx context.Context, addr string) (net.Conn, error)
	// Lookup turns a host:port, a name (its port is then DefaultPort) or "srv:NAME" into addresses of the form ip:port.
	Lookup(ctx context.Context, name string) ([]string, error)
}

// localAddresser is implemented by networks that know the addresses an unspecified bind stands for.
type localAddresser interface {
	LocalAddrs() ([]netip.Addr, error)
}

// OS returns the network of the operating system.
func OS() Network { return osNetwork{} }

type osNetwork struct{}

const (
	// portTries bounds the search for a number that is free for both TCP and UDP.
	portTries = 16
	// packetBuffer takes the bursts of gossip that come while the process does not run.
	packetBuffer = 2 << 20
	// userTimeout ends a connection whose data is not acknowledged; the kernel's own limit is a quarter of an hour.
	userTimeout = 10 * time.Second
)

// keepAlive finds the death of a host behind an idle connection in 25 s.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

func (osNetwork) Listen(addr string) (net.Listener, net.PacketConn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, nil, fmt.Errorf("bind %q: %w", addr, err)
	}
	ctx := context.Background() // binding a number does not block; a host name is resolved in the system's own time limit
	lc := net.ListenConfig{KeepAliveConfig: keepAlive, Control: control}
	lc.SetMultipathTCP(false) // raft and gossip want plain TCP with the limits set above
	for try := 1; ; try++ {
		l, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			return nil, nil, bindError(addr, "tcp", err)
		}
		bound := l.Addr().(*net.TCPAddr) // a "tcp" listener has no other
		udp := net.JoinHostPort(host, strconv.Itoa(bound.Port))
		p, err := lc.ListenPacket(ctx, "udp", udp)
		if err == nil {
			// A smaller buffer than wanted is no fault: gossip lives with loss.
			_ = p.(*net.UDPConn).SetReadBuffer(packetBuffer)
			return l, p, nil
		}
		_ = l.Close()
		if port != "0" || try == portTries || !errors.Is(err, syscall.EADDRINUSE) {
			return nil, nil, bindError(udp, "udp", err)
		}
	}
}

// bindError says what to do about a failed bind.
func bindError(addr, proto string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("bind %s (%s): the port is in use by another process, perhaps another miwnode: stop it or choose another bind address: %w",
			addr, proto, syscall.EADDRINUSE)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("bind %s (%s): no interface of this machine has this address: bind one of its own, or 0.0.0.0 and advertise the outer one: %w",
			addr, proto, syscall.EADDRNOTAVAIL)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("bind %s (%s): not allowed: choose a port from 1024 up: %w", addr, proto, syscall.EACCES)
	}
	return fmt.Errorf("bind %s (%s): %w", addr, proto, err)
}

func (osNetwork) DialContext(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: keepAlive, Control: control}
	d.SetMultipathTCP(false)
	return d.DialContext(ctx, "tcp", addr)
}

func (osNetwork) Lookup(ctx context.Context, name string) ([]string, error) {
	if srv, ok := strings.CutPrefix(name, "srv:"); ok {
		_, targets, err := net.DefaultResolver.LookupSRV(ctx, "", "", srv)
		if err != nil {
			return nil, fmt.Errorf("look up %s: %w", name, err)
		}
		var addrs []string
		var errs []error
		for _, t := range targets {
			more, err := lookupHost(ctx, strings.TrimSuffix(t.Target, "."), strconv.Itoa(int(t.Port)))
			errs = append(errs, err)
			addrs = append(addrs, more...)
		}
		if len(addrs) == 0 {
			return nil, fmt.Errorf("look up %s: none of its %d targets has an address: %w", name, len(targets), errors.Join(errs...))
		}
		return addrs, nil
	}
	host, port, err := splitHostPort(name, DefaultPort)
	if err != nil {
		return nil, fmt.Errorf("look up %q: %w", name, err)
	}
	addrs, err := lookupHost(ctx, host, port)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", name, err)
	}
	return addrs, nil
}

func lookupHost(ctx context.Context, host, port string) ([]string, error) {
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	addrs := make([]string, len(ips))
	for i, ip := range ips {
		addrs[i] = net.JoinHostPort(ip.Unmap().String(), port)
	}
	return addrs, nil
}

// LocalAddrs returns the addresses of the interfaces that are up, private ones first, loopback left out.
func (osNetwork) LocalAddrs() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this machine: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if ip = ip.Unmap(); ok && ip.IsGlobalUnicast() {
			out = append(out, ip)
		}
	}
	slices.SortStableFunc(out, func(a, b netip.Addr) int { return addrRank(a) - addrRank(b) })
	return out, nil
}

// addrRank orders addresses by how likely they are the one others reach.
func addrRank(a netip.Addr) int {
	rank := 0
	if !a.IsPrivate() {
		rank += 2
	}
	if !a.Is4() {
		rank++
	}
	return rank
}

// splitHostPort splits host:port, or takes a host alone with the given port.
func splitHostPort(s, port string) (string, string, error) {
	if s == "" {
		return "", "", errors.New("empty address")
	}
	if ip, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return ip.String(), port, nil
	}
	if !strings.Contains(s, ":") {
		return s, port, nil
	}
	host, p, err := net.SplitHostPort(s)
	if err != nil {
		return "", "", err
	}
	if host == "" {
		return "", "", fmt.Errorf("address %q has no host", s)
	}
	if _, err := strconv.ParseUint(p, 10, 16); err != nil {
		return "", "", fmt.Errorf("port %q is not a number up to 65535", p)
	}
	return host, p, nil
}

// isLoopback tells whether only this machine reaches host.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// isUnspecified tells whether host stands for all addresses of the machine.
func isUnspecified(host string) bool {
	if host == "" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}
