package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/miwnode/miwnode/node/nodepb"
)

// membership gets the node into a cluster, and back when it has lost touch.
// Before a node belongs to a cluster it speaks to others by RPC only.
type membership struct {
	n        *Node
	promises *promises
	rare     *rarely

	mu      sync.Mutex
	seen    map[string]*seenPeer // by node ID: who spoke to us
	lastErr error                // why the last round found nothing
	gossip  *gossip              // nil until the node belongs

	asked   time.Time     // since when an attempt of ours waits; of belong's goroutine
	wake    chan struct{} // one slot: somebody new was seen
	asking  sync.WaitGroup
	changes broadcast
}

type seenPeer struct {
	peer *nodepb.Peer
	at   time.Time
}

func newMembership(n *Node, p *promises) *membership {
	return &membership{n: n, promises: p, rare: newRarely(sayInterval), seen: make(map[string]*seenPeer), wake: make(chan struct{}, 1)}
}

// run gets the node into a cluster, starts gossip there and keeps in touch.
func (m *membership) run(ctx context.Context) error {
	defer m.asking.Wait()
	if err := m.belong(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	n := m.n
	g, err := startGossip(n.trans.Load(), n.ident.id, n.ident.clusterID(), n.cfg.GossipKey, gossipMeta{
		Boot: n.ident.boot(), Version: n.version(), Addr: n.advertised(), Zone: n.cfg.Zone, API: n.cfg.APIAddr,
	}, n.book, n.log)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.gossip = g
	m.mu.Unlock()
	m.changes.send()
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.mingle(ctx, m.missing) })
	wg.Go(func() { m.pass(ctx, g) })
	err = m.stay(ctx)
	wg.Wait()
	return err
}

// pass hands on gossip's changes, a burst of them at once.
func (m *membership) pass(ctx context.Context, g *gossip) {
	for {
		changed := g.changes.wait()
		m.changes.send()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// missing lists the addresses of members that gossip does not hear of.
func (m *membership) missing(ctx context.Context) []string {
	gossiped := m.gossiped()
	var names []string
	alone := true
	for _, s := range m.n.raft.servers() {
		id := string(s.ID)
		if id == m.n.ident.id || gossiped[id].state == "alive" {
			alone = alone && id == m.n.ident.id
			continue
		}
		if addr, err := m.n.book.resolve(id); err == nil {
			names = append(names, addr)
		}
	}
	if alone {
		names = append(names, m.n.cfg.Join...)
	}
	var addrs []string
	for _, name := range names {
		found, err := m.n.cfg.Network.Lookup(ctx, name)
		if err == nil {
			addrs = append(addrs, found...)
		}
	}
	slices.Sort(addrs)
	mine := m.n.advertised()
	return slices.DeleteFunc(slices.Compact(addrs), func(a string) bool { return a == mine || a == m.n.Addr() })
}

// leaveGossip tells the others that this node goes on purpose.
func (m *membership) leaveGossip() {
	m.mu.Lock()
	g := m.gossip
	m.mu.Unlock()
	if g != nil {
		g.leave()
	}
}

func (m *membership) stopGossip() error {
	m.mu.Lock()
	g := m.gossip
	m.mu.Unlock()
	if g != nil {
		g.stop()
	}
	return nil
}

// changed is closed at the next change of who is a member or what is known of one.
func (m *membership) changed() <-chan struct{} { return m.changes.wait() }

// version is the newest state version a member has said it can apply, 0 unknown.
func (m *membership) version(id string) uint32 {
	if s, ok := m.gossiped()[id]; ok {
		return s.meta.Version
	}
	return 0
}

// gossiped is what gossip knows, empty before it runs.
func (m *membership) gossiped() map[string]gossipSeen {
	m.mu.Lock()
	g := m.gossip
	m.mu.Unlock()
	if g == nil {
		return nil
	}
	return g.members()
}
