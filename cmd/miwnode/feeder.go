package main

import (
	"context"
	"path/filepath"
	"time"

	"github.com/miwnode/miwnode/guard"
	"github.com/miwnode/miwnode/node"
)

// feeder tells the guard until when the commands of a node may run, and what to
// close if the node's process dies.
type feeder struct {
	n   *node.Node
	g   *guard.Guard
	cfg startConfig
}

func newFeeder(n *node.Node, g *guard.Guard, cfg startConfig) *feeder {
	cfg.node.Timing = cfg.node.Timing.WithDefaults()
	return &feeder{n, g, cfg}
}

// run feeds the guard for each of the node's sessions until ctx ends.
func (f *feeder) run(ctx context.Context) {
	for ctx.Err() == nil {
		id, err := f.n.Session(ctx)
		if err != nil {
			return
		}
		f.feed(ctx, id)
	}
}

// feed goes on until the session is told to end. What was fed last holds then:
// the guard stops the commands at its instants, whatever becomes of the node.
func (f *feeder) feed(ctx context.Context, id string) {
	tick := time.NewTicker(f.cfg.node.Timing.RenewInterval / 4)
	defer tick.Stop()
	ending, ended := f.n.SessionEnding(id), f.n.SessionEnded(id)
	fed := time.Duration(0)
	for {
		// The clock is read first: a pause between the two makes the instant too
		// early, never too late. Less than a few milliseconds is no news.
		now := guard.BootTime()
		left := f.n.Trusted(id)
		if stop := now + left; left > 0 && stop > fed+10*time.Millisecond {
			fed = stop
			_ = f.g.Feed(guard.Feed{StopAt: stop, KillAt: stop + f.cfg.node.Timing.StopBudget, Session: f.session(id)})
		}
		select {
		case <-tick.C:
		case <-ending:
			ending = nil
			tick.Stop()
		case <-ended:
			return
		case <-ctx.Done():
			return
		}
	}
}

// session is how the guard closes the node's session: through any peer, in the
// node's name. A node without peers has nobody whom its death could help.
func (f *feeder) session(id string) *guard.Session {
	rpc := &guard.RPC{ClusterID: f.n.ClusterID(), NodeID: f.n.ID(), Boot: f.n.Boot(), Nonce: f.n.Nonce(), Addr: f.n.Addr(), GossipKey: f.cfg.node.GossipKey}
	for _, m := range f.n.Members() {
		switch {
		case m.NodeID == f.n.ID():
			rpc.Addr = m.Addr
		case m.Addr != "":
			rpc.Peers = append(rpc.Peers, guard.Peer{NodeID: m.NodeID, Addr: m.Addr})
		}
	}
	if len(rpc.Peers) == 0 {
		return nil
	}
	if t := f.cfg.node.TLS; t != nil {
		rpc.CAFile, rpc.CertFile, rpc.KeyFile = t.Files()
		for _, file := range []*string{&rpc.CAFile, &rpc.CertFile, &rpc.KeyFile} {
			if abs, err := filepath.Abs(*file); err == nil {
				*file = abs // the guard stands in another folder
			}
		}
	}
	return &guard.Session{ID: id, TTL: f.cfg.node.Timing.SessionTTL, RPC: rpc}
}
