package transport

import (
	"context"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/raft"
)

// Method numbers a remote procedure. The numbers belong to the user of the Transport.
type Method uint8

// Handler serves calls. It runs on a goroutine of its own; ctx ends when the caller's deadline passes or the caller gives up,
// when the connection is lost and when the Transport closes. It may keep body.
type Handler func(ctx context.Context, peer Identity, m Method, body []byte) ([]byte, error)

// Transport is one node's end of all streams and packets.
type Transport struct{}

// Listen binds and starts to greet.
func Listen(cfg Config) (*Transport, error) { return nil, ErrClosed }

// NewClient returns a Transport that binds nothing and can only Call: for a process that speaks for a node, like its guard.
func NewClient(cfg Config) (*Transport, error) { return nil, ErrClosed }

// Addr returns the bound host:port; "" for a client.
func (t *Transport) Addr() string { return "" }

// AdvertiseAddr returns the host:port under which others reach this node.
func (t *Transport) AdvertiseAddr() string { return "" }

// Close stops listening and closes every stream, dialled or accepted.
func (t *Transport) Close() error { return nil }

// Raft returns the stream layer for raft.NetworkTransport. Server addresses are node IDs: Dial resolves one to an address and
// takes no other node than that for an answer. A stream layer may be closed and another made (a restart of raft in the process).
func (t *Transport) Raft(resolve func(nodeID string) (addr string, err error)) raft.StreamLayer {
	return nil
}

// Gossip returns the transport for memberlist. It may be shut down and another made.
func (t *Transport) Gossip() memberlist.NodeAwareTransport { return nil }

// Serve sets the handler of calls. Calls that arrive before it are refused with CodeNotServing.
func (t *Transport) Serve(h Handler) {}

// Call sends one request to the node at addr and waits for its answer. If wantNodeID is not "", no other node is
// taken for an answer. It also returns who answered. Errors: *RPCError is the answer of the handler; errors that match ErrNotSent
// certainly did not reach one; after any other error it may have run.
func (t *Transport) Call(ctx context.Context, addr, wantNodeID string, m Method, body []byte) ([]byte, Identity, error) {
	return nil, Identity{}, ErrClosed
}
