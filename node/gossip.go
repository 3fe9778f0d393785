package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/miwnode/miwnode/transport"
)

// Settings of memberlist: a dead node is noticed in three to four seconds, and
// a quarter of lost packets does not yet make false deaths common. What there is
// to tell goes out with the probes, too; a node that leaves does not wait for either.
const (
	gossipProbeInterval  = 500 * time.Millisecond
	gossipProbeTimeout   = 200 * time.Millisecond
	gossipInterval       = 500 * time.Millisecond
	gossipSuspicion      = 4
	gossipSuspicionMax   = 3
	gossipReclaim        = 30 * time.Second
	gossipLeaveTimeout   = 200 * time.Millisecond
	gossipLeavePause     = 10 * time.Millisecond
	gossipRejoinInterval = 15 * time.Second
)

// gossip spreads who is where and notices who went silent. It is a hint: no
// lease moves and no vote is given or taken because of it.
type gossip struct {
	list *memberlist.Memberlist
	self gossipMeta
	book *addressBook

	mu      sync.Mutex
	seen    map[string]gossipSeen
	changes broadcast
}

// gossipMeta is what a node says of itself, at most 512 bytes.
type gossipMeta struct {
	Boot    uint64 `json:"b"`
	Version uint32 `json:"v"` // newest state version it can apply
	Addr    string `json:"a"` // advertised
	Zone    string `json:"z,omitempty"`
	API     string `json:"p,omitempty"` // where its HTTP API listens
	Leaving bool   `json:"l,omitempty"` // goes on purpose
}

type gossipSeen struct {
	meta  gossipMeta
	state string // alive, dead, left
	at    *net.UDPAddr
}

var (
	_ memberlist.Delegate      = (*gossip)(nil)
	_ memberlist.EventDelegate = (*gossip)(nil)
)

// startGossip begins to gossip within the cluster; label keeps others out.
func startGossip(t *transport.Transport, id, label string, key []byte, meta gossipMeta, book *addressBook, l *slog.Logger) (*gossip, error) {
	g := &gossip{self: meta, book: book, seen: make(map[string]gossipSeen)}
	if n := len(g.NodeMeta(memberlist.MetaMaxSize)); n == 0 {
		return nil, fmt.Errorf("zone and addresses take more than the %d bytes that gossip carries", memberlist.MetaMaxSize)
	}
	cfg := memberlist.DefaultLANConfig()
	cfg.Name, cfg.Label = id, label
	cfg.Transport = t.Gossip()
	cfg.AdvertiseAddr, cfg.AdvertisePort = "", 0 // the transport knows
	cfg.SecretKey = key
	cfg.GossipVerifyIncoming, cfg.GossipVerifyOutgoing = true, true
	cfg.EnableCompression = false
	cfg.ProbeInterval, cfg.ProbeTimeout = gossipProbeInterval, gossipProbeTimeout
	cfg.GossipInterval = gossipInterval
	cfg.SuspicionMult, cfg.SuspicionMaxTimeoutMult = gossipSuspicion, gossipSuspicionMax
	cfg.DeadNodeReclaimTime = gossipReclaim
	cfg.TCPTimeout = 2 * time.Second
	cfg.Delegate, cfg.Events = g, g
	cfg.Logger = newGossipLogger(l)
	cfg.LogOutput = nil
	list, err := memberlist.Create(cfg)
	if err != nil {
		return nil, fmt.Errorf("start gossip: %w", err)
	}
	g.list = list
	return g, nil
}

// NodeMeta implements memberlist.Delegate.
func (g *gossip) NodeMeta(limit int) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	b, err := json.Marshal(g.self)
	if err != nil || len(b) > limit {
		return nil
	}
	return b
}

// NotifyMsg, GetBroadcasts, LocalState and MergeRemoteState implement
// memberlist.Delegate; nothing but membership travels here.
func (g *gossip) NotifyMsg([]byte)                {}
func (g *gossip) GetBroadcasts(_, _ int) [][]byte { return nil }
func (g *gossip) LocalState(bool) []byte          { return nil }
func (g *gossip) MergeRemoteState([]byte, bool)   {}

// NotifyJoin implements memberlist.EventDelegate.
func (g *gossip) NotifyJoin(n *memberlist.Node) { g.note(n, "alive") }

// NotifyUpdate implements memberlist.EventDelegate.
func (g *gossip) NotifyUpdate(n *memberlist.Node) { g.note(n, "alive") }

// NotifyLeave implements memberlist.EventDelegate. Memberlist does not say
// whether the node left or died; the node itself has, if it could.
func (g *gossip) NotifyLeave(n *memberlist.Node) { g.note(n, "dead") }

// note runs under memberlist's lock: it must not block.
func (g *gossip) note(n *memberlist.Node, state string) {
	var meta gossipMeta
	if json.Unmarshal(n.Meta, &meta) != nil || meta.Addr == "" {
		meta.Addr = n.Address()
	}
	if state == "dead" && meta.Leaving {
		state = "left"
	}
	at := &net.UDPAddr{IP: slices.Clone(n.Addr), Port: int(n.Port)} // memberlist's own may change at any time
	g.mu.Lock()
	g.seen[n.Name] = gossipSeen{meta: meta, state: state, at: at}
	g.mu.Unlock()
	if state == "alive" {
		g.book.learn(n.Name, meta.Addr, meta.Boot)
	}
	g.changes.send()
}

// members returns what gossip knows by node ID.
func (g *gossip) members() map[string]gossipSeen {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.seen)
}

// mingle keeps the node in touch with every known peer that it does not hear
// of: after a partition memberlist has forgotten those on the other side.
func (g *gossip) mingle(ctx context.Context, missing func(context.Context) []string) error {
	wait := 100 * time.Millisecond
	for {
		changed := g.changes.wait()
		addrs := missing(ctx)
		if len(addrs) == 0 {
			wait = 100 * time.Millisecond
			select {
			case <-changed:
				// A burst of changes is one.
				if pause(ctx, 100*time.Millisecond) != nil {
					return nil
				}
			case <-ctx.Done():
				return nil
			}
			continue
		}
		for _, a := range addrs {
			if ctx.Err() != nil {
				return nil
			}
			_, _ = g.list.Join([]string{a})
		}
		// Jittered, so that the two sides of a healed partition don't march in step.
		if pause(ctx, wait/2+rand.N(wait)) != nil {
			return nil
		}
		wait = min(2*wait, gossipRejoinInterval)
	}
}

// leave tells the others that this node goes on purpose.
func (g *gossip) leave() {
	g.mu.Lock()
	g.self.Leaving = true
	g.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	var pushes sync.WaitGroup
	self := g.list.LocalNode().Name
	for name, m := range g.members() {
		if name != self && m.state == "alive" {
			pushes.Go(func() { g.push(ctx, name, m.at) })
		}
	}
	_ = g.list.UpdateNode(gossipLeaveTimeout)
	_ = g.list.Leave(gossipLeaveTimeout)
	cancel()
	pushes.Wait()
}

// push has what there is to tell go to a member at once, until ctx ends: it
// travels with every ping.
func (g *gossip) push(ctx context.Context, name string, at *net.UDPAddr) {
	for {
		_, _ = g.list.Ping(name, at)
		if pause(ctx, gossipLeavePause) != nil {
			return
		}
	}
}

func (g *gossip) stop() { _ = g.list.Shutdown() }
