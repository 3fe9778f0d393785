package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/hashicorp/memberlist"
)

// packetQueue holds packets that memberlist has not taken yet.
const packetQueue = 256

// gossipLayer is a memberlist transport: packets over the packet socket, streams through the greeting.
type gossipLayer struct {
	layer   *layer
	packets chan *memberlist.Packet
}

var _ memberlist.NodeAwareTransport = (*gossipLayer)(nil)

// Gossip returns the transport for memberlist. It may be shut down and another made; a new one closes its predecessor. Packets that come while
// there is none are dropped.
func (t *Transport) Gossip() memberlist.NodeAwareTransport {
	g := &gossipLayer{layer: t.newLayer(KindGossip), packets: make(chan *memberlist.Packet, packetQueue)}
	t.gossip.Store(g)
	return g
}

// readPackets hands packets to the latest gossip layer until Close.
func (t *Transport) readPackets() {
	buf := make([]byte, 64<<10)
	var delay time.Duration
	for {
		n, from, err := t.packets.ReadFrom(buf)
		if err != nil {
			if t.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			delay = min(max(2*delay, time.Millisecond), time.Second)
			if suppressed, ok := t.lines.allow("packets"); ok {
				t.log.Error("cannot read packets", "error", err, "retry_in", delay, "suppressed", suppressed)
			}
			if !t.sleep(delay) {
				return
			}
			continue
		}
		delay = 0
		g := t.gossip.Load()
		if g == nil || n == 0 {
			continue
		}
		p := &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: time.Now()}
		select {
		case g.packets <- p:
		case <-g.layer.done:
		}
	}
}

// FinalAdvertiseAddr implements memberlist.Transport. An address that memberlist was configured with goes first; a port alone (its default is one) does not
// count.
func (g *gossipLayer) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	t := g.layer.t
	host, p, err := net.SplitHostPort(t.advertise)
	if err != nil {
		return nil, 0, fmt.Errorf("advertised address: %w", err)
	}
	if ip != "" {
		host = ip
	}
	if ip == "" || port <= 0 {
		if port, err = strconv.Atoi(p); err != nil {
			return nil, 0, fmt.Errorf("advertised port: %w", err)
		}
	}
	at, err := g.resolve(net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, 0, fmt.Errorf("advertised address: %w", err)
	}
	return at.Addr().AsSlice(), port, nil
}

// resolve finds the ip:port of an address that is mostly one already.
func (g *gossipLayer) resolve(addr string) (netip.AddrPort, error) {
	if at, err := netip.ParseAddrPort(addr); err == nil {
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), nil
	}
	ctx, cancel := context.WithTimeout(g.layer.t.ctx, greetTimeout)
	defer cancel()
	addrs, err := g.layer.t.cfg.Network.Lookup(ctx, addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if len(addrs) == 0 {
		return netip.AddrPort{}, fmt.Errorf("%s has no address", addr)
	}
	return netip.ParseAddrPort(addrs[0])
}

// WriteTo implements memberlist.Transport.
func (g *gossipLayer) WriteTo(b []byte, addr string) (time.Time, error) {
	if g.layer.isShut() {
		return time.Time{}, ErrClosed
	}
	at, err := g.resolve(addr)
	if err != nil {
		return time.Time{}, err
	}
	switch p := g.layer.t.packets.(type) {
	case *net.UDPConn:
		_, err = p.WriteToUDPAddrPort(b, at)
	default:
		_, err = p.WriteTo(b, net.UDPAddrFromAddrPort(at))
	}
	return time.Now(), err
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (g *gossipLayer) WriteToAddress(b []byte, addr memberlist.Address) (time.Time, error) {
	return g.WriteTo(b, addr.Addr)
}

// PacketCh implements memberlist.Transport.
func (g *gossipLayer) PacketCh() <-chan *memberlist.Packet { return g.packets }

// StreamCh implements memberlist.Transport.
func (g *gossipLayer) StreamCh() <-chan net.Conn { return g.layer.accepted }

// DialTimeout implements memberlist.Transport.
func (g *gossipLayer) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return g.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport. A named address must be answered by the node of that name.
func (g *gossipLayer) DialAddressTimeout(addr memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if g.layer.isShut() {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithTimeout(g.layer.t.ctx, cmp.Or(timeout, greetTimeout))
	defer cancel()
	return g.layer.dial(ctx, addr.Addr, addr.Name)
}

// Shutdown implements memberlist.Transport.
func (g *gossipLayer) Shutdown() error {
	g.layer.close()
	return nil
}
