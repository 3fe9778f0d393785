package jepsen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Loopback is a network on the loopback interface that needs no rights. Each
// node binds an address of its own within 127.0.0.0/8 and tells the others
// another one, where this process listens: whatever one node sends another
// passes through here, and is cut, delayed and lost in each direction by itself.
//
// A packet tells by its source who sent it. A stream does not: the kernel gives
// it the source 127.0.0.1, so its sender is found by the process that has the
// socket. One thing is unlike a real network: a stream that is opened across a
// cut looks open, and nothing passes.
type Loopback struct {
	nodes []string
	block [2]byte // 127.a.b.0/24 is ours
	port  uint16
	owner func(stream, to netip.AddrPort) (node string)

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	directions map[[2]string]*direction // from, to; not changed
	doors      []*door                  // one for each node

	mu      sync.Mutex
	streams map[*net.TCPConn]struct{} // guarded by mu; open
}

// door is where others come in to a node.
type door struct {
	node    string
	listen  *net.TCPListener
	packets *net.UDPConn
}

// NewLoopback opens the network for the cluster whose folder is dir.
func NewLoopback(nodes []string, dir string) (*Loopback, error) {
	if err := tracesAvailable(); err != nil {
		return nil, fmt.Errorf("loopback: %w", err)
	}
	return newLoopback(nodes, func(stream, to netip.AddrPort) string { return socketOwner(dir, stream, to) })
}

func newLoopback(nodes []string, owner func(stream, to netip.AddrPort) string) (*Loopback, error) {
	const most = 100
	if len(nodes) > most {
		return nil, fmt.Errorf("loopback: %d nodes are more than the %d that fit", len(nodes), most)
	}
	l := &Loopback{nodes: nodes, owner: owner, directions: map[[2]string]*direction{}, streams: map[*net.TCPConn]struct{}{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	for _, from := range nodes {
		for _, to := range nodes {
			l.directions[[2]string{from, to}] = newDirection()
		}
	}
	var err error
	for range 20 { // another process may have the addresses
		l.block, l.port = [2]byte{byte(1 + rand.IntN(254)), byte(rand.IntN(256))}, uint16(20000+rand.IntN(10000))
		if err = l.open(); err == nil {
			for _, d := range l.doors {
				l.wg.Go(func() { l.accept(d) })
				l.wg.Go(func() { l.receive(d) })
			}
			return l, nil
		}
		l.shut()
	}
	l.cancel()
	return nil, fmt.Errorf("loopback: %w", err)
}

// open opens every door, and tries whether the nodes can bind theirs.
func (l *Loopback) open() error {
	for _, n := range l.nodes {
		at := net.TCPAddrFromAddrPort(l.own(n))
		probe, err := net.ListenTCP("tcp", at)
		if err != nil {
			return err
		}
		probe.Close()
		d := &door{node: n}
		l.doors = append(l.doors, d)
		if d.listen, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(l.told(n))); err != nil {
			return err
		}
		if d.packets, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(l.told(n))); err != nil {
			return err
		}
	}
	return nil
}

func (l *Loopback) shut() {
	for _, d := range l.doors {
		if d.listen != nil {
			d.listen.Close()
		}
		if d.packets != nil {
			d.packets.Close()
		}
	}
	l.doors = nil
}

// Host numbers of the addresses that nodes bind, and of those that others are told.
const (
	ownHosts  = 1
	toldHosts = 101
)

func (l *Loopback) at(node string, first int) netip.AddrPort {
	for i, n := range l.nodes {
		if n == node {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, l.block[0], l.block[1], byte(first + i)}), l.port)
		}
	}
	return netip.AddrPort{}
}

func (l *Loopback) own(node string) netip.AddrPort  { return l.at(node, ownHosts) }
func (l *Loopback) told(node string) netip.AddrPort { return l.at(node, toldHosts) }

// Name implements Network.
func (l *Loopback) Name() string { return "loopback" }

// Can implements Network.
func (l *Loopback) Can(v Verb) error {
	if v == VerbAddress {
		return errors.New("addresses on loopback are fixed")
	}
	return nil
}

// Cut implements Network.
func (l *Loopback) Cut(from, to string) error {
	l.directions[[2]string{from, to}].cut()
	return nil
}

// Mend implements Network.
func (l *Loopback) Mend(from, to string) error {
	l.directions[[2]string{from, to}].mend()
	return nil
}

// Shape implements Network.
func (l *Loopback) Shape(from, to string, delay, jitter time.Duration, loss float64) error {
	l.directions[[2]string{from, to}].shape(delay, jitter, loss)
	return nil
}

func (l *Loopback) address(node string) string { return l.told(node).String() }

func (l *Loopback) flags(node string) []string {
	return []string{"--bind", l.own(node).String(), "--advertise", l.told(node).String()}
}

func (l *Loopback) exec(string) []string { return nil }

// Close implements Network: every stream breaks.
func (l *Loopback) Close() {
	l.cancel()
	l.shut()
	l.mu.Lock()
	for c := range l.streams {
		reset(c)
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// receive carries the packets for one node.
func (l *Loopback) receive(d *door) {
	senders := map[netip.AddrPort]string{}
	for _, n := range l.nodes {
		senders[l.own(n)] = n
	}
	to := l.own(d.node)
	buf := make([]byte, 64<<10)
	for {
		n, from, err := d.packets.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		sender, ok := senders[netip.AddrPortFrom(from.Addr().Unmap(), from.Port())]
		if err != nil || !ok {
			continue // a node that is down answers with an error, strangers don't count
		}
		lag, lost := l.directions[[2]string{sender, d.node}].packet()
		if lost {
			continue
		}
		packet := append([]byte(nil), buf[:n]...)
		// It comes from where the receiver knows the sender.
		send := func() { _, _ = l.doorOf(sender).packets.WriteToUDPAddrPort(packet, to) }
		if lag == 0 {
			send()
			continue
		}
		time.AfterFunc(lag, send)
	}
}

func (l *Loopback) doorOf(node string) *door {
	for i, n := range l.nodes {
		if n == node {
			return l.doors[i]
		}
	}
	panic("no such node: " + node)
}

// accept takes the streams to one node.
func (l *Loopback) accept(d *door) {
	for {
		c, err := d.listen.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if l.keep(c) {
			l.wg.Go(func() {
				defer l.drop(c)
				l.connect(c, d.node)
			})
		}
	}
}

// keep notes an open stream; false once the network is closed.
func (l *Loopback) keep(c *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		c.Close()
		return false
	}
	l.streams[c] = struct{}{}
	return true
}

func (l *Loopback) drop(c *net.TCPConn) {
	c.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.streams, c)
}

// connectTimeout is how long a stream is tried to be opened across a cut: longer
// than nodes try.
const connectTimeout = 15 * time.Second

// connect carries a stream to a node until both of its directions have ended.
func (l *Loopback) connect(client *net.TCPConn, to string) {
	from := l.owner(netip.MustParseAddrPort(client.RemoteAddr().String()), l.told(to))
	there, back := l.directions[[2]string{from, to}], l.directions[[2]string{to, from}]
	if there == nil {
		return // its process has ended, or is no node's
	}
	ctx, cancel := context.WithTimeout(l.ctx, connectTimeout)
	defer cancel()
	if !there.wait(ctx) || !back.wait(ctx) {
		return
	}
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.own(to).String())
	if err != nil {
		reset(client) // as the node's machine would answer
		return
	}
	server := raw.(*net.TCPConn)
	if !l.keep(server) {
		return
	}
	defer l.drop(server)
	var both sync.WaitGroup
	both.Go(func() { carry(l.ctx, client, server, there, back) })
	both.Go(func() { carry(l.ctx, server, client, back, there) })
	both.Wait()
}
