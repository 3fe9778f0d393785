package node

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/transport"
)

// Node is one running member of a cluster. All methods are safe for concurrent
// use, before, during and after Run.
type Node struct {
	cfg     Config // with defaults
	log     *slog.Logger
	clock   clock
	ident   *identity
	machine *fsm.Machine
	trans   atomic.Pointer[transport.Transport] // nil until bound
	raft    *raftHost
	book    *addressBook
	lease   leaseSide

	ran       atomic.Bool
	ready     chan struct{}
	readyOnce sync.Once
	closing   chan struct{} // closed when the node begins to leave
}

// New checks cfg, takes the data folder and reads who this node is. The folder
// stays locked until Run has returned (and every run of its work with it).
func New(cfg Config) (*Node, error) {
	return nil, nil
}

// Run starts the node and blocks until ctx ends, then leaves gracefully: it
// drains, waits for outstanding runs, hands leadership over, closes its
// session, leaves gossip and stops. It returns nil after that, or why the node
// could not go on.
func (n *Node) Run(ctx context.Context) error { return nil }

// Ready is closed once the node knows a leader and its copy has caught up.
func (n *Node) Ready() <-chan struct{} { return n.ready }
