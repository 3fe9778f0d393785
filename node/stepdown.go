package node

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
)

// stepDownLimit bounds a hand-over of raft leadership, whatever the caller allows.
const stepDownLimit = 2 * time.Second

// StepDown has the raft leader hand leadership to the node to, or to the best
// voter if to is "". It asks the leader if that is another node.
// fsm.ErrNoQuorum: no leader, or no other voter answers. fsm.ErrNotFound: no
// such member. fsm.ErrWrongState: it can't lead, or leads already. fsm.ErrUncertain: the hand-over
// did not end in time. It returns within two seconds in any case.
func (n *Node) StepDown(ctx context.Context, to string) error {
	ctx, cancel := context.WithTimeout(ctx, stepDownLimit)
	defer cancel()
	if _, ok := n.raft.leading(); ok {
		return n.raft.transfer(ctx, to)
	}
	leader := n.raft.leader()
	if leader == "" || leader == n.ident.id {
		return fsm.Errorf(fsm.CodeNoQuorum, "%s", n.whyNoLeader())
	}
	err := n.call(ctx, leader, methodStepDown, &nodepb.StepDownRequest{To: to}, &nodepb.StepDownReply{})
	if err != nil && fsm.CodeOf(err) == fsm.CodeInternal {
		return fsm.Errorf(fsm.CodeUncertain, "leader %s did not answer: %v", leader, err)
	}
	return err
}

func (n *Node) handleStepDown(ctx context.Context, q *nodepb.StepDownRequest) (*nodepb.StepDownReply, error) {
	if _, ok := n.raft.leading(); !ok {
		return nil, errNotLeader() // never forwarded twice
	}
	ctx, cancel := context.WithTimeout(ctx, stepDownLimit)
	defer cancel()
	return &nodepb.StepDownReply{}, n.raft.transfer(ctx, q.To)
}

// transfer hands leadership over. A hand-over that times out can leave raft
// refusing every command for ever (hashicorp/raft#696), so raft is restarted then.
func (h *raftHost) transfer(ctx context.Context, to string) error {
	run := h.run.Load()
	if run == nil {
		return fsm.Errorf(fsm.CodeNoQuorum, "raft is not running")
	}
	if to == h.id {
		return fsm.Errorf(fsm.CodeWrongState, "node %s leads already", to)
	}
	to, err := h.successor(run, to)
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, 2*h.timeout+h.timeout/2)
	defer cancel()
	defer run.peers.hurry(raft.ServerID(to))()
	err = run.wait(limit, run.raft.LeadershipTransferToServer(raft.ServerID(to), raft.ServerAddress(to)))
	_, leads := h.leading()
	switch {
	case err == nil, !leads:
		h.log.Info("leadership handed over", "to", to)
		return nil
	case errors.Is(err, raft.ErrNotLeader):
		return errNotLeader()
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fsm.Errorf(fsm.CodeWrongState, "a hand-over of leadership is under way")
	}
	h.wedge("leadership transfer timed out")
	return fsm.Errorf(fsm.CodeUncertain, "leadership was not handed to %s: %v", to, err)
}

// successor checks to, or picks the voter that answers and has the most of the log.
func (h *raftHost) successor(run *raftRun, to string) (string, error) {
	best, bestIndex, voters := "", uint64(0), 0
	for _, s := range h.servers() {
		id := string(s.ID)
		if id == to && s.Suffrage != raft.Voter {
			return "", fsm.Errorf(fsm.CodeWrongState, "node %s is a learner: it can't lead", to)
		}
		if id == h.id || s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if id == to {
			return to, nil
		}
		at, ok := run.peers.lastContact(id)
		index, _ := run.peers.acked(id)
		if ok && time.Since(at) < h.timeout && (best == "" || index > bestIndex) {
			best, bestIndex = id, index
		}
	}
	switch {
	case to != "":
		return "", fsm.Errorf(fsm.CodeNotFound, "no member %s", to)
	case voters == 0:
		return "", fsm.Errorf(fsm.CodeWrongState, "there is no other voter")
	case best == "":
		return "", fsm.Errorf(fsm.CodeNoQuorum, "no other voter answers")
	}
	return best, nil
}

// wedge asks for a restart of raft. It never blocks.
func (h *raftHost) wedge(why string) {
	select {
	case h.wedged <- why:
	default:
	}
}
