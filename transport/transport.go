package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Transport is one node's end of all streams and packets.
type Transport struct {
	cfg       Config
	log       *slog.Logger
	advertise string
	checks    [][]byte // of the gossip key
	listener  net.Listener
	packets   net.PacketConn

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup // every goroutine of ours but the handlers

	greetings greetings
	peers     acquaintances
	lines     lineLimiter
	streams   streamTable
	gossip    atomic.Pointer[gossipLayer] // the latest
	rpc       rpc
}

// streamTable holds every open stream and who takes the new ones.
type streamTable struct {
	mu     sync.Mutex
	closed bool
	open   map[*stream]struct{}
	layers map[Kind]*layer // the latest raft and gossip layers
}

// Listen binds cfg.Bind and starts to greet.
func Listen(cfg Config) (*Transport, error) {
	t, err := newTransport(cfg)
	if err != nil {
		return nil, err
	}
	t.listener, t.packets, err = t.cfg.Network.Listen(t.cfg.Bind)
	if err != nil {
		return nil, err
	}
	if err := t.settleAddress(); err != nil {
		return nil, errors.Join(err, t.listener.Close(), t.packets.Close())
	}
	t.tasks.Go(t.accept)
	t.tasks.Go(t.readPackets)
	return t, nil
}

// NewClient returns a Transport that binds nothing and can only Call: for a process that speaks for a node, like its guard.
func NewClient(cfg Config) (*Transport, error) {
	t, err := newTransport(cfg)
	if err != nil {
		return nil, err
	}
	t.advertise = t.cfg.Identity().Addr
	return t, nil
}

func newTransport(cfg Config) (*Transport, error) {
	if err := errors.Join(cfg.Validate(), cfg.validateIdentity()); err != nil {
		return nil, fmt.Errorf("transport configuration: %w", err)
	}
	t := &Transport{cfg: cfg.withDefaults()}
	t.log = t.cfg.Logger
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	if len(cfg.GossipKey) > 0 {
		t.checks = [][]byte{gossipCheck(cfg.GossipKey)}
	}
	t.streams.open = map[*stream]struct{}{}
	t.streams.layers = map[Kind]*layer{}
	t.rpc.peers = map[peerKey]*poolPeer{}
	return t, nil
}

// settleAddress works out the advertised address and checks it against the certificate.
func (t *Transport) settleAddress() error {
	_, port, err := net.SplitHostPort(t.listener.Addr().String())
	if err != nil {
		return fmt.Errorf("bound address: %w", err)
	}
	if t.cfg.Advertise != "" {
		host, p, err := splitHostPort(t.cfg.Advertise, port)
		if err != nil {
			return fault("Advertise", "%w", err)
		}
		if p == "0" {
			p = port
		}
		t.advertise = net.JoinHostPort(host, p)
	} else {
		host, _, err := net.SplitHostPort(t.listener.Addr().String())
		if err != nil {
			return fmt.Errorf("bound address: %w", err)
		}
		if isUnspecified(host) {
			if host, err = t.ownHost(); err != nil {
				return err
			}
		}
		t.advertise = net.JoinHostPort(host, port)
	}
	if t.cfg.TLS != nil {
		if err := t.cfg.TLS.CheckName(t.cfg.Identity().NodeID, t.advertise); err != nil {
			return fault("TLS", "the certificate of this node does not fit: %w", err)
		}
	}
	return nil
}

// ownHost finds what an unspecified bind address stands for.
func (t *Transport) ownHost() (string, error) {
	if n, ok := t.cfg.Network.(localAddresser); ok {
		addrs, err := n.LocalAddrs()
		if err == nil && len(addrs) > 0 {
			return addrs[0].String(), nil
		}
	}
	return "", fault("Advertise", "this machine has no address that stands for %s: set the one under which other nodes reach this one", t.cfg.Bind)
}

// Addr returns the bound host:port; "" for a client.
func (t *Transport) Addr() string {
	if t.listener == nil {
		return ""
	}
	return t.listener.Addr().String()
}

// AdvertiseAddr returns the host:port under which others reach this node.
func (t *Transport) AdvertiseAddr() string { return t.advertise }

// self is what we say of ourselves at the moment.
func (t *Transport) self() greeter {
	id := t.cfg.Identity()
	if id.Addr == "" {
		id.Addr = t.advertise
	}
	return greeter{id: id, checks: t.checks}
}

// handlerGrace is how long Close waits for handlers that don't heed their context.
const handlerGrace = 5 * time.Second

// Close stops listening, closes every stream, dialled or accepted, ends the contexts of handlers and waits for all goroutines. It must not be
// called from a handler. An error says that a handler did not return.
func (t *Transport) Close() error {
	t.cancel(ErrClosed)
	if t.listener != nil {
		// Both fail only if they are closed already.
		_ = t.listener.Close()
		_ = t.packets.Close()
	}
	t.greetings.closeAll()
	t.streams.mu.Lock()
	t.streams.closed = true
	open := t.streams.open
	t.streams.open = map[*stream]struct{}{}
	layers := t.streams.layers
	t.streams.layers = map[Kind]*layer{}
	t.streams.mu.Unlock()
	for _, l := range layers {
		l.shut()
	}
	for s := range open {
		_ = s.Conn.Close()
	}
	t.tasks.Wait()

	done := make(chan struct{})
	go func() {
		t.rpc.handlers.Wait()
		close(done)
	}()
	grace := time.NewTimer(handlerGrace)
	defer grace.Stop()
	select {
	case <-done:
		return nil
	case <-grace.C:
		return fmt.Errorf("close transport: a handler has not returned for %v after its context ended", handlerGrace)
	}
}

// spawn runs f on a goroutine that Close waits for, unless the Transport is closed.
func (t *Transport) spawn(f func()) bool {
	t.streams.mu.Lock()
	defer t.streams.mu.Unlock()
	if t.streams.closed {
		return false
	}
	t.tasks.Go(f)
	return true
}

// stream is a connection that has been greeted. Closing the Transport closes it.
type stream struct {
	net.Conn
	t       *Transport
	kind    Kind
	dialled bool
	peer    Identity
	self    Identity // as we greeted
	layer   *layer   // owner, for raft and gossip
}

// track takes a stream into the table, unless the Transport is closed.
func (t *Transport) track(s *stream) bool {
	t.streams.mu.Lock()
	defer t.streams.mu.Unlock()
	if t.streams.closed || (s.layer != nil && s.layer.isShut()) {
		return false
	}
	t.streams.open[s] = struct{}{}
	return true
}

// Close closes the stream.
func (s *stream) Close() error {
	s.t.streams.mu.Lock()
	delete(s.t.streams.open, s)
	s.t.streams.mu.Unlock()
	return s.Conn.Close()
}

// closeStreams closes the open streams that match.
func (t *Transport) closeStreams(match func(*stream) bool) {
	var found []*stream
	t.streams.mu.Lock()
	for s := range t.streams.open {
		if match(s) {
			found = append(found, s)
		}
	}
	t.streams.mu.Unlock()
	for _, s := range found {
		_ = s.Close()
	}
}
