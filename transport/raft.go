package transport

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// raftLayer is a raft.StreamLayer whose addresses are node IDs.
type raftLayer struct {
	layer   *layer
	resolve Resolver
}

// Resolver tells where a node is; moved is closed once it is elsewhere, nil says
// that nobody would tell.
type Resolver func(nodeID string) (addr string, moved <-chan struct{}, err error)

var _ raft.StreamLayer = (*raftLayer)(nil)

// Raft returns the stream layer for raft.NetworkTransport. Server addresses are node IDs: Dial resolves one to an address and takes no other node
// than that for an answer, and Addr is this node's own ID. A node that moves while it is dialled is dialled where it is. Closing a layer closes the streams it accepted or dialled, not the Transport; another
// may be made afterwards (a restart of raft in the process), and a new one closes its predecessor.
func (t *Transport) Raft(resolve Resolver) raft.StreamLayer {
	return &raftLayer{layer: t.newLayer(KindRaft), resolve: resolve}
}

// Accept implements net.Listener.
func (r *raftLayer) Accept() (net.Conn, error) {
	select {
	case c := <-r.layer.accepted:
		return c, nil
	case <-r.layer.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (r *raftLayer) Close() error {
	r.layer.close()
	return nil
}

// Addr implements net.Listener: the node ID.
func (r *raftLayer) Addr() net.Addr { return nodeAddr(r.layer.t.cfg.Identity().NodeID) }

// Dial implements raft.StreamLayer.
func (r *raftLayer) Dial(id raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	if r.layer.isShut() {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithTimeout(r.layer.t.ctx, cmp.Or(timeout, greetTimeout))
	defer cancel()
	for {
		addr, moved, err := r.resolve(string(id))
		if err != nil {
			return nil, fmt.Errorf("find node %s: %w", id, err)
		}
		conn, err := r.dialUnless(ctx, moved, addr, string(id))
		if err != nil && isClosed(moved) && ctx.Err() == nil {
			continue
		}
		return conn, err
	}
}

// dialUnless dials and gives up when the node has moved: where it was nobody may
// be who would refuse.
func (r *raftLayer) dialUnless(ctx context.Context, moved <-chan struct{}, addr, id string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-moved:
			cancel()
		case <-ctx.Done():
		}
	})
	defer watch.Wait()
	defer cancel()
	return r.layer.dial(ctx, addr, id)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// nodeAddr is a node ID as a net.Addr.
type nodeAddr string

func (nodeAddr) Network() string  { return "node" }
func (a nodeAddr) String() string { return string(a) }
