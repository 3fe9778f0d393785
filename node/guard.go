package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miwnode/miwnode/guard"
	"github.com/miwnode/miwnode/transport"
)

// ErrNoGuard is in the error of Spawn where the node has no guard process,
// beside the reason.
var ErrNoGuard = errors.New("commands are refused without a guard")

var (
	errSeams   = errors.New("a test reaches into the node")
	errNetwork = errors.New("a guard can't reach peers through Config.Network")
)

// guardCloseLimit bounds the end of the guard, beyond what its commands have
// for theirs. None is left by then, unless one does not die.
const guardCloseLimit = 2 * time.Second

// warding is the node's part in its guard process: it starts it, tells it at
// every confirmed keep-alive until when commands may run and what to close
// should this process die, and ends it.
type warding struct {
	n     *Node
	stood chan struct{} // closed when guard and why are known
	guard *guard.Guard  // nil: there is none
	why   error         // why there is none

	mu  sync.Mutex
	fed chan struct{} // closed at the next feed
}

func newWarding(n *Node) *warding {
	return &warding{n: n, stood: make(chan struct{}), fed: make(chan struct{})}
}

// unguarded tells why a node of this configuration has no guard, nil if it has.
func (c Config) unguarded() error {
	switch {
	case c.seams != &noSeams:
		return errSeams
	case c.Network != transport.OS():
		return errNetwork
	}
	return guard.Available()
}

// start starts the guard. It comes before everything else of the node: the
// session may only be opened when it is known what an earlier start has left.
func (w *warding) start(context.Context) (err error) {
	defer close(w.stood)
	cfg, log := w.n.cfg, w.n.log
	switch w.why = cfg.unguarded(); {
	case w.why == nil:
		w.guard, w.why = guard.Start(guard.Config{Dir: cfg.DataDir, StopBudget: cfg.Timing.StopBudget, Logger: log})
		return w.why
	case errors.Is(w.why, errSeams):
	case errors.Is(w.why, guard.ErrNoMain), errors.Is(w.why, guard.ErrUnsupported), errors.Is(w.why, errNetwork):
		log.Warn("no guard process: if this process crashes, what it holds is free only after the session's TTL or the restart, and commands are refused",
			"why", w.why, "ttl", cfg.Timing.SessionTTL)
	}
	return nil
}

// stop ends the guard. The session has been seen to before.
func (w *warding) stop() error {
	if w.guard == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), guardCloseLimit+w.n.cfg.Timing.StopBudget)
	defer cancel()
	return w.guard.Close(ctx)
}

// run feeds the guard until ctx ends. What was fed last holds from then on: the
// guard stops the commands at its instants, whatever becomes of the node.
func (w *warding) run(ctx context.Context) error {
	if w.guard == nil {
		<-ctx.Done()
		return nil
	}
	var last ward
	for {
		joined := w.n.members.changed()
		next, moved := w.n.lease.keeper.ward()
		if next.session != "" {
			if next.rpc = w.rpc(); !next.same(last) {
				w.feed(next)
				last = next
			}
		}
		select {
		case <-moved:
		case <-joined:
		case <-ctx.Done():
			return nil
		}
	}
}

// ward is what the guard is told.
type ward struct {
	session string
	stopAt  time.Duration // on the node's clock
	rpc     *guard.RPC
}

func (a ward) same(b ward) bool {
	return a.session == b.session && a.stopAt == b.stopAt && a.rpc.ClusterID == b.rpc.ClusterID &&
		a.rpc.Addr == b.rpc.Addr && slices.Equal(a.rpc.Peers, b.rpc.Peers)
}

// ward is the session that new work runs under and when that is told to stop,
// as things stand; no session where none is trusted. changed is closed when it
// may be different.
func (k *sessionKeeper) ward() (w ward, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.current; s != nil && s.trust.left(k.clock.boot()) > 0 {
		w = ward{session: s.id, stopAt: k.rule.warn(s.trust.sent)}
	}
	return w, k.moved
}

// feed hands a ward to the guard, whose instants are those of the kernel's clock.
func (w *warding) feed(next ward) {
	cfg := w.n.cfg.Timing
	// The guard's clock is read first: a pause between the two makes the instant
	// too early, never too late.
	now := guard.BootTime()
	left := next.stopAt - w.n.clock.boot()
	if left <= 0 {
		return
	}
	f := guard.Feed{StopAt: now + left, KillAt: now + left + cfg.StopBudget}
	// A node without peers has nobody whom its death could help.
	if len(next.rpc.Peers) > 0 {
		f.Session = &guard.Session{ID: next.session, TTL: cfg.SessionTTL, RPC: next.rpc}
	}
	if err := w.guard.Feed(f); err != nil {
		w.n.log.Warn("guard not told of the session", "err", err)
		return
	}
	w.mu.Lock()
	close(w.fed)
	w.fed = make(chan struct{})
	w.mu.Unlock()
}

// rpc is how the guard closes the session: through any peer, in the node's name.
func (w *warding) rpc() *guard.RPC {
	n := w.n
	r := &guard.RPC{
		ClusterID: n.ClusterID(), NodeID: n.ID(), Boot: n.Boot(), Nonce: n.Nonce(), Addr: n.advertised(), GossipKey: n.cfg.GossipKey,
	}
	for _, m := range n.Members() {
		if m.NodeID != n.ID() && m.Addr != "" {
			r.Peers = append(r.Peers, guard.Peer{NodeID: m.NodeID, Addr: m.Addr})
		}
	}
	slices.SortFunc(r.Peers, func(a, b guard.Peer) int { return strings.Compare(a.NodeID, b.NodeID) })
	if t := n.cfg.TLS; t != nil {
		r.CAFile, r.CertFile, r.KeyFile = t.Files()
		for _, file := range []*string{&r.CAFile, &r.CertFile, &r.KeyFile} {
			if abs, err := filepath.Abs(*file); err == nil && *file != "" {
				*file = abs // the guard stands in another folder
			}
		}
	}
	return r
}

// nextFeed is closed once the guard has been fed anew.
func (w *warding) nextFeed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fed
}

// Spawn runs a command under the node's guard process, which ends it, with
// everything that it started, before the node's session can pass on and when
// this process dies. Who spawns it stops it (guard.Process.Stop) when the lease
// it runs under ends before the session, and waits for its end before that lease
// is released: both is natural in the function of a coord.Runner.
//
// Spawn waits for Run to have started the guard and for a session that allows a
// command to run, until ctx ends. ErrNoGuard is in its error where the node has
// none: guard.Main was not called first thing in main, or the system has no guards.
func (n *Node) Spawn(ctx context.Context, s guard.Spec) (*guard.Process, error) {
	w := n.guard
	select {
	case <-w.stood:
	default:
		select {
		case <-w.stood:
		case <-n.life.closing:
			return nil, errStopped
		case <-ctx.Done():
			return nil, gaveUp(ctx, "the node has not been started")
		}
	}
	if w.guard == nil {
		return nil, fmt.Errorf("%w: %w", ErrNoGuard, w.why)
	}
	for {
		fed := w.nextFeed()
		p, err := w.guard.Spawn(ctx, s)
		if !errors.Is(err, guard.ErrNotFed) {
			return p, err
		}
		select {
		case <-fed:
		case <-n.life.closing:
			return nil, err
		case <-ctx.Done():
			return nil, gaveUp(ctx, "no session allows a command to run")
		}
	}
}
