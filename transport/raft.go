package transport

import (
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/raft"
)

// raftLayer is a raft.StreamLayer whose addresses are node IDs.
type raftLayer struct {
	layer   *layer
	resolve func(nodeID string) (addr string, err error)
}

var _ raft.StreamLayer = (*raftLayer)(nil)

// Raft returns the stream layer for raft.NetworkTransport. Server addresses are node IDs: Dial resolves one to an address and takes no other node
// than that for an answer, and Addr is this node's own ID. Closing a layer closes the streams it accepted or dialled, not the Transport; another
// may be made afterwards (a restart of raft in the process), and a new one closes its predecessor.
func (t *Transport) Raft(resolve func(nodeID string) (addr string, err error)) raft.StreamLayer {
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
	addr, err := r.resolve(string(id))
	if err != nil {
		return nil, fmt.Errorf("find node %s: %w", id, err)
	}
	return r.layer.dial(addr, string(id), timeout)
}

// nodeAddr is a node ID as a net.Addr.
type nodeAddr string

func (nodeAddr) Network() string  { return "node" }
func (a nodeAddr) String() string { return string(a) }
