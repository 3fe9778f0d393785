package node

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

// ApplyRaw puts bytes into the log as the leader, as a node of another version might.
func (n *Node) ApplyRaw(ctx context.Context, data []byte) error {
	_, err := n.raft.apply(ctx, data)
	return err
}

// RestartRaft has raft restarted in the process, and waits for it.
func (n *Node) RestartRaft(why string) error { return n.raft.restart(why) }

// Wedge has the leader's loop restart raft.
func (n *Node) Wedge(why string) { n.raft.wedge(why) }

// ReadArtifactAs has the node answer a call for a chunk by whoever peer is.
func (n *Node) ReadArtifactAs(ctx context.Context, peer transport.Identity, q *nodepb.ReadArtifactRequest) (*nodepb.ReadArtifactReply, error) {
	body, err := proto.Marshal(q)
	if err != nil {
		return nil, err
	}
	answer, err := n.dispatch(ctx, peer, methodReadArtifact, body)
	if err != nil {
		return nil, fromWire(err)
	}
	reply := &nodepb.ReadArtifactReply{}
	return reply, proto.Unmarshal(answer, reply)
}
