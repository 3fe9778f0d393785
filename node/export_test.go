package node

import "context"

// ApplyRaw puts bytes into the log as the leader, as a node of another version might.
func (n *Node) ApplyRaw(ctx context.Context, data []byte) error {
	_, err := n.raft.apply(ctx, data)
	return err
}

// RestartRaft has raft restarted in the process, and waits for it.
func (n *Node) RestartRaft(why string) error { return n.raft.restart(why) }

// Wedge has the leader's loop restart raft.
func (n *Node) Wedge(why string) { n.raft.wedge(why) }
