package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// reconcileInterval is how often the leader looks at learners that it waits for.
const reconcileInterval = 50 * time.Millisecond

// memberState is what the leader knows of one server of the configuration.
type memberState struct {
	id       string
	zone     string
	alive    bool // answers raft
	caughtUp bool
}

// memberChange is one step towards the wanted configuration.
type memberChange struct {
	id     string
	change fsmpb.MemberChange
	reason string
}

// changeWords name the changes in the log.
var changeWords = map[fsmpb.MemberChange]string{
	fsm.MemberAdded: "added", fsm.MemberPromoted: "promoted", fsm.MemberDemoted: "demoted", fsm.MemberRemoved: "removed",
}

func (c memberChange) op() fsm.Op {
	return &fsm.RecordMember{NodeId: c.id, Change: c.change, Reason: c.reason}
}

// plan says what to change so that the configuration has up to voters voters:
// learners that answer and have caught up are promoted, those of a zone with
// fewer voters first.
func plan(members []memberState, config []raft.Server, voters int) []memberChange {
	zones := make(map[string]int)
	known := make(map[string]memberState, len(members))
	for _, m := range members {
		known[m.id] = m
	}
	have := 0
	var ready []memberState
	for _, s := range config {
		m := known[string(s.ID)]
		switch {
		case s.Suffrage == raft.Voter:
			have++
			zones[m.zone]++
		case m.alive && m.caughtUp:
			ready = append(ready, m)
		}
	}
	var changes []memberChange
	for have < voters && len(ready) > 0 {
		next := slices.MinFunc(ready, func(a, b memberState) int {
			if d := zones[a.zone] - zones[b.zone]; d != 0 {
				return d
			}
			return strings.Compare(a.id, b.id)
		})
		ready = slices.DeleteFunc(ready, func(m memberState) bool { return m.id == next.id })
		changes = append(changes, memberChange{next.id, fsm.MemberPromoted, "caught up"})
		zones[next.zone]++
		have++
	}
	return changes
}

// reconcile is the leader's duty that keeps the configuration at its plan.
func (n *Node) reconcile(ctx context.Context, _ uint64) error {
	for {
		changed := n.members.changed()
		servers := n.raft.servers()
		for _, c := range plan(n.memberStates(servers), servers, n.cfg.Voters) {
			if err := n.raft.promote(ctx, c.id); err != nil {
				n.members.say("promote/"+c.id, "not promoted yet", "member", c.id, "err", err)
				break
			}
			n.log.Info("member promoted to voter", "member", c.id)
			if err := n.record(ctx, c.op()); err != nil {
				n.log.Debug("promotion not recorded", "member", c.id, "err", err)
			}
		}
		var look <-chan time.Time
		if slices.ContainsFunc(n.raft.servers(), func(s raft.Server) bool { return s.Suffrage != raft.Voter }) && len(n.raft.voters()) < n.cfg.Voters {
			look = time.After(reconcileInterval)
		}
		select {
		case <-look:
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// memberStates looks at each server of the configuration.
func (n *Node) memberStates(servers []raft.Server) []memberState {
	run := n.raft.run.Load()
	if run == nil {
		return nil
	}
	gossiped := n.members.gossiped()
	commit := run.raft.CommitIndex()
	var list []memberState
	for _, s := range servers {
		m := memberState{id: string(s.ID), zone: gossiped[string(s.ID)].meta.Zone}
		if m.id == n.ident.id {
			m.zone, m.alive, m.caughtUp = n.cfg.Zone, true, true
		} else if at, ok := run.peers.lastContact(m.id); ok {
			m.alive = time.Since(at) < n.cfg.Timing.RaftTimeout
			index, acked := run.peers.acked(m.id)
			m.caughtUp = acked && index >= commit
		}
		list = append(list, m)
	}
	return list
}

// promote gives a learner its vote.
func (h *raftHost) promote(ctx context.Context, id string) error {
	run := h.run.Load()
	if run == nil {
		return fsm.Errorf(fsm.CodeNoQuorum, "raft is not running")
	}
	return h.configured(ctx, run, run.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(id), 0, h.timeout))
}

// addLearner makes id a learner unless it is a member already. A member whose
// log is gone loses its vote first: it has forgotten whom it voted for.
func (h *raftHost) addLearner(ctx context.Context, id string, fresh bool, record func(memberChange) error) error {
	run := h.run.Load()
	if run == nil {
		return fsm.Errorf(fsm.CodeNoQuorum, "raft is not running")
	}
	for _, s := range h.servers() {
		if string(s.ID) != id {
			continue
		}
		if s.Suffrage != raft.Voter || !fresh {
			return nil
		}
		if err := h.configured(ctx, run, run.raft.DemoteVoter(s.ID, 0, h.timeout)); err != nil {
			return err
		}
		return record(memberChange{id, fsm.MemberDemoted, "came back without its log"})
	}
	if err := h.configured(ctx, run, run.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(id), 0, h.timeout)); err != nil {
		return err
	}
	return record(memberChange{id, fsm.MemberAdded, "joined"})
}

// replace removes a member that does not answer any more and at whose address
// another, new one has come up: a wiped folder, most likely. A member that is
// still alive elsewhere answers, or else asks to be taken in again.
func (h *raftHost) replace(ctx context.Context, old, by string, record func(memberChange) error) error {
	run := h.run.Load()
	if run == nil || old == h.id || !slices.ContainsFunc(h.servers(), func(s raft.Server) bool { return string(s.ID) == old }) {
		return nil
	}
	if at, ok := run.peers.lastContact(old); ok && time.Since(at) < 2*h.timeout {
		return fsm.Errorf(fsm.CodeNotReady, "node %s was last heard of at the same address, a moment ago", old)
	}
	if err := h.configured(ctx, run, run.raft.RemoveServer(raft.ServerID(old), 0, h.timeout)); err != nil {
		return err
	}
	return record(memberChange{old, fsm.MemberRemoved, "silent, and node " + by + " has come up at its address"})
}

// configured waits for a change of the configuration.
func (h *raftHost) configured(ctx context.Context, run *raftRun, f raft.Future) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	err := run.wait(ctx, f)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fsm.Errorf(fsm.CodeNoQuorum, "change of members: %v", err)
	}
	return fsm.Errorf(fsm.CodeUncertain, "change of members: %v", err)
}

// hasState tells whether raft holds anything that a wipe would lose.
func (h *raftHost) hasState() bool {
	if half, err := h.halfFounded(); half || err != nil {
		return err != nil
	}
	ok, err := raft.HasExistingState(h.store, h.store, h.snaps)
	return ok || err != nil
}

// The term of the entry that founds a cluster, which raft saves before that entry.
// Nobody ever leads in it.
const foundingTerm = 1

var termKey = []byte("CurrentTerm")

// halfFounded tells whether a founding was cut off between the two: the log is as
// empty as before, but raft would take no configuration any more.
func (h *raftHost) halfFounded() (bool, error) {
	term, err := h.store.GetUint64(termKey)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return false, nil
	}
	if err != nil || term != foundingTerm {
		return false, err
	}
	last, err := h.store.LastIndex()
	if err != nil || last > 0 {
		return false, err
	}
	snaps, err := h.snaps.List()
	return len(snaps) == 0, err
}

// unfound takes back what such a founding has left.
func (h *raftHost) unfound() error {
	half, err := h.halfFounded()
	if err != nil || !half {
		return err
	}
	return h.store.save(termKey, func() error { return h.store.bolt.SetUint64(termKey, 0) })
}

// campaign starts an election now rather than after a heartbeat timeout: for a
// cluster just founded, and for a node that is all of its cluster.
func (h *raftHost) campaign() {
	if run := h.run.Load(); run != nil {
		_ = run.peers.TimeoutNow(raft.ServerID(h.id), raft.ServerAddress(h.id), &raft.TimeoutNowRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(h.id), Addr: []byte(h.id)},
		}, &raft.TimeoutNowResponse{})
	}
}
