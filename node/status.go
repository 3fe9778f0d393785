package node

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/miwnode/miwnode/fsm"
)

// Status is what a node knows about itself and its cluster.
type Status struct {
	NodeID       string
	InstanceID   string
	Boot         uint64
	ClusterID    string
	Generation   uint64
	Version      uint32
	Role         Role
	LeaderID     string
	Term         uint64
	CommitIndex  uint64
	AppliedIndex uint64
	Revision     uint64
	Ready        bool
	ReadyReason  string // why not
	Draining     bool
	Quorum       Quorum
}

// Quorum is how the node sees the voters.
type Quorum struct {
	Voters int
	Alive  int
	OK     bool
}

// Role is a node's part in raft.
type Role string

// The roles.
const (
	RoleLeader    Role = "leader"
	RoleFollower  Role = "follower"
	RoleCandidate Role = "candidate"
	RoleLearner   Role = "learner"
	RoleNone      Role = "none"
)

// Member is a node of the cluster as this node knows it.
type Member struct {
	NodeID      string
	Addr        string
	APIAddr     string
	Zone        string
	Labels      map[string]string
	Voter       bool
	Leader      bool
	Gossip      string // alive, suspect, dead, left
	Version     uint32
	LastContact time.Duration // since this node last heard of it; negative: unknown
}

// Status returns what the node knows now. It never blocks.
func (n *Node) Status() Status {
	view := n.View()
	cluster := view.Cluster()
	s := Status{
		NodeID: n.ident.id, InstanceID: n.ident.instanceID, Boot: n.ident.boot(), ClusterID: n.ident.clusterID(),
		Generation: cluster.Generation, Version: cluster.Version, Role: n.raft.role(), LeaderID: n.raft.leader(),
		Revision: view.Revision(), Draining: n.Draining(), Quorum: n.quorum(),
	}
	if run := n.raft.run.Load(); run != nil {
		s.Term, s.CommitIndex, s.AppliedIndex = run.raft.CurrentTerm(), run.raft.CommitIndex(), run.raft.AppliedIndex()
	}
	if err := n.ReadyErr(); err != nil {
		s.ReadyReason = err.Error()
	} else {
		s.Ready = true
	}
	return s
}

// role is the node's part in raft now.
func (h *raftHost) role() Role {
	run := h.run.Load()
	if run == nil {
		return RoleNone
	}
	switch run.raft.State() {
	case raft.Leader:
		return RoleLeader
	case raft.Candidate:
		return RoleCandidate
	case raft.Follower:
		for _, s := range h.servers() {
			if string(s.ID) != h.id {
				continue
			}
			if s.Suffrage == raft.Voter {
				return RoleFollower
			}
			return RoleLearner
		}
	}
	return RoleNone
}

// quorum counts the voters that seem alive. A leader goes by raft's answers.
// Who follows one knows that a majority answers it, the rest is what gossip
// says. Without a leader gossip counts only where raft's calls don't say
// otherwise: gossip takes seconds to notice a death.
func (n *Node) quorum() Quorum {
	voters := n.raft.voters()
	q := Quorum{Voters: len(voters)}
	gossiped := n.members.gossiped()
	leader := n.raft.leader()
	_, leads := n.raft.leading()
	for _, id := range voters {
		switch {
		case id == n.ident.id:
			q.Alive++
		case leads, leader == "":
			if n.answers(id) || !leads && gossiped[id].state == "alive" && !n.silent(id) && !n.lost(id) {
				q.Alive++
			}
		case gossiped[id].state == "alive", id == leader:
			q.Alive++
		}
	}
	most := q.Voters/2 + 1
	if leader != "" && !leads {
		q.Alive = min(max(q.Alive, most), q.Voters)
	}
	q.OK = q.Voters > 0 && q.Alive >= most && leader != ""
	return q
}

// answers tells whether the peer has answered raft of late, and since then not failed to.
func (n *Node) answers(id string) bool {
	run := n.raft.run.Load()
	if run == nil {
		return false
	}
	at, ok := run.peers.lastContact(id)
	return ok && time.Since(at) < n.cfg.Timing.RaftTimeout && !n.silent(id)
}

// silent tells whether raft's calls to the peer go unanswered. The limit is below
// what a leader takes to notice that it has lost its majority.
func (n *Node) silent(id string) bool {
	run := n.raft.run.Load()
	return run != nil && run.peers.silent(id, n.cfg.Timing.RaftTimeout/4)
}

// lost tells whether the peer led when this node last knew a leader, and has
// gone silent since.
func (n *Node) lost(id string) bool {
	run := n.raft.run.Load()
	if run == nil || n.raft.former.Load() != raft.ServerID(id) {
		return false
	}
	return time.Since(run.raft.LastContact()) > n.cfg.Timing.RaftTimeout
}

// whyNoLeader says what a leader takes that is not there.
func (n *Node) whyNoLeader() string {
	if why := n.shutOut(); why != "" {
		return "no leader is known: " + why
	}
	if n.ident.clusterID() == "" {
		return n.members.whyNoCluster()
	}
	q := n.quorum()
	most := q.Voters/2 + 1
	switch {
	case q.Voters == 0:
		return "no leader is known: no member has told this node of the cluster yet"
	case q.Alive >= most:
		return fmt.Sprintf("no leader is known: %d of %d voters seem alive, an election is under way", q.Alive, q.Voters)
	}
	return fmt.Sprintf("no leader is known: %d of %d voters answer, it takes %d", q.Alive, q.Voters, most)
}

// unled gives an error of a call that changed nothing for want of a leader the
// reason why there is none. Before there is a cluster it matches
// fsm.ErrNotReady too: no quorum was lost.
func (n *Node) unled(err error) error {
	if err == nil || fsm.CodeOf(err) != fsm.CodeNoQuorum || n.raft.leader() != "" {
		return err
	}
	code := fsm.CodeNoQuorum
	if n.ident.clusterID() == "" {
		code = fsm.CodeNotReady
	}
	return &endedError{error: fsm.Errorf(code, "%s", n.whyNoLeader()), cause: err}
}

// Members returns the members in the order of their node IDs: the servers of
// raft's configuration and whoever else gossips.
func (n *Node) Members() []Member {
	gossiped := n.members.gossiped()
	leader := n.raft.leader()
	all := make(map[string]*Member)
	get := func(id string) *Member {
		if all[id] == nil {
			all[id] = &Member{NodeID: id, LastContact: -1}
		}
		return all[id]
	}
	for _, s := range n.raft.servers() {
		m := get(string(s.ID))
		m.Voter = s.Suffrage == raft.Voter
	}
	for id, g := range gossiped {
		m := get(id)
		m.Addr, m.APIAddr, m.Zone, m.Version, m.Gossip = g.meta.Addr, g.meta.API, g.meta.Zone, g.meta.Version, g.state
	}
	view, run := n.View(), n.raft.run.Load()
	_, leads := n.raft.leading()
	for id, m := range all {
		m.Leader = id == leader
		if addr, err := n.book.resolve(id); err == nil {
			m.Addr = addr
		}
		if s, ok := view.NodeSession(id); ok && len(s.Labels) > 0 {
			m.Labels = make(map[string]string, len(s.Labels))
			for _, l := range s.Labels {
				m.Labels[l.Key] = l.Value
			}
		}
		switch {
		case id == n.ident.id:
			m.LastContact, m.Addr, m.Labels = 0, n.advertised(), n.cfg.Labels
		case run == nil:
		case id == leader:
			if at := run.raft.LastContact(); !at.IsZero() {
				m.LastContact = time.Since(at)
			}
		default:
			if at, ok := run.peers.lastContact(id); ok {
				m.LastContact = time.Since(at)
			}
			// Gossip takes seconds to notice what raft notices at once.
			lost := leads && !n.answers(id) || leader == "" && n.silent(id)
			if lost && m.Gossip == "alive" {
				m.Gossip = "suspect"
			}
		}
	}
	var list []Member
	for _, id := range slices.Sorted(maps.Keys(all)) {
		list = append(list, *all[id])
	}
	return list
}
