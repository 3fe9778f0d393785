package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Method numbers a remote procedure. The numbers belong to the user of the Transport.
type Method uint8

// Handler serves calls, each on a goroutine of its own. ctx ends when the caller's deadline passes or the caller gives up, when the connection is lost
// and when the Transport closes. The handler may keep body. A panic is logged and answered as an error.
type Handler func(ctx context.Context, peer Identity, m Method, body []byte) ([]byte, error)

// Serve sets the handler of calls. Calls that arrive before it are refused with CodeNotServing.
func (t *Transport) Serve(h Handler) { t.rpc.handler.Store(&h) }

// rpc is the part of a Transport that calls and serves calls.
type rpc struct {
	handler  atomic.Pointer[Handler]
	handlers sync.WaitGroup // running

	mu    sync.RWMutex
	peers map[peerKey]*poolPeer // guarded by mu
}

type peerKey struct{ addr, want string }

// poolPeer is one peer: its connection, or the attempt to make one.
type poolPeer struct {
	conn    atomic.Pointer[clientConn]
	mu      sync.Mutex
	attempt *attempt // guarded by mu; nil = nobody dials
}

// attempt is a dial that all calls to a peer share.
type attempt struct {
	done chan struct{}
	conn *clientConn // valid after done, like err
	err  error
}

// staleTries bounds how often a call looks for a living connection.
const staleTries = 3

// Call sends one request to the node at addr (host:port) and waits for its answer. If wantNodeID is not "", no other node is taken for an answer. It also
// returns who answered. Connections are shared, made when needed, and given up after a minute without calls.
//
// Errors: *RPCError is the answer of the handler; an error that matches ErrNotSent certainly did not reach one (*RefusedError is such); after any other
// error (ErrConnLost, the end of ctx) the handler may have run.
func (t *Transport) Call(ctx context.Context, addr, wantNodeID string, m Method, body []byte) ([]byte, Identity, error) {
	if len(body) > MaxBody {
		return nil, Identity{}, notSent(fmt.Errorf("call %s: %w: the body has %d bytes, at most %d fit", addr, ErrTooLarge, len(body), MaxBody))
	}
	for try := 1; ; try++ {
		c, err := t.connTo(ctx, peerKey{addr, wantNodeID})
		if err != nil {
			return nil, Identity{}, notSent(fmt.Errorf("call %s: %w", addr, err))
		}
		answer, err := c.call(ctx, m, body)
		if !c.settled() { // the next greeting may tell which cluster the other end belongs to
			c.retire()
		}
		if err == nil {
			return answer, c.s.peer, nil
		}
		if failure, ok := errors.AsType[*RPCError](err); ok {
			return nil, c.s.peer, failure
		}
		if _, ok := errors.AsType[*staleError](err); ok && try < staleTries && t.ctx.Err() == nil {
			continue
		}
		return nil, c.s.peer, fmt.Errorf("call %s: %w", addr, err)
	}
}

// connTo returns a living connection, dialling if need be.
func (t *Transport) connTo(ctx context.Context, k peerKey) (*clientConn, error) {
	if t.ctx.Err() != nil {
		return nil, ErrClosed
	}
	self := t.cfg.Identity()
	p := t.poolPeer(k)
	if c := p.conn.Load(); c != nil && c.usable(self) {
		return c, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, contextError(ctx)
	}
	p.mu.Lock()
	stale := p.conn.Load()
	if stale != nil {
		if stale.usable(self) {
			p.mu.Unlock()
			return stale, nil
		}
		p.conn.Store(nil)
	}
	a := p.attempt
	if a == nil {
		a = &attempt{done: make(chan struct{})}
		if !t.spawn(func() { t.try(k, p, a) }) {
			p.mu.Unlock()
			return nil, ErrClosed
		}
		p.attempt = a
	}
	p.mu.Unlock()
	if stale != nil {
		stale.retire() // not under the lock: its end takes that too
	}
	select {
	case <-a.done:
		return a.conn, a.err
	case <-ctx.Done():
		return nil, contextError(ctx)
	}
}

func (t *Transport) poolPeer(k peerKey) *poolPeer {
	t.rpc.mu.RLock()
	p := t.rpc.peers[k]
	t.rpc.mu.RUnlock()
	if p != nil {
		return p
	}
	t.rpc.mu.Lock()
	defer t.rpc.mu.Unlock()
	if p = t.rpc.peers[k]; p == nil {
		p = &poolPeer{}
		t.rpc.peers[k] = p
	}
	return p
}

// try makes one connection for all who wait for it. It is not bound to any caller's context.
func (t *Transport) try(k peerKey, p *poolPeer, a *attempt) {
	s, err := t.dial(t.ctx, KindRPC, k.addr, k.want, nil)
	p.mu.Lock()
	if err == nil {
		a.conn = newClientConn(t, s, func() { t.forget(k, p) })
		p.conn.Store(a.conn)
	}
	a.err = err
	p.attempt = nil
	close(a.done)
	p.mu.Unlock()
	if err != nil {
		t.forget(k, p)
	}
}

// forget drops a peer without a living connection, so that addresses of old are not kept.
func (t *Transport) forget(k peerKey, p *poolPeer) {
	t.rpc.mu.Lock()
	defer t.rpc.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.conn.Load(); (c == nil || c.gone.Load()) && p.attempt == nil && t.rpc.peers[k] == p {
		delete(t.rpc.peers, k)
	}
}
