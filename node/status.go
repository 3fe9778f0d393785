package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	LastContact time.Duration // since this node heard of it; negative: unknown
}

// Status returns a snapshot.
func (n *Node) Status() Status { return Status{} }

// Members returns the members in the order of their node IDs.
func (n *Node) Members() []Member { return nil }

// Metrics gathers the node's metrics, named miw_*.
func (n *Node) Metrics() prometheus.Gatherer { return nil }

// Healthy is nil while the process serves.
func (n *Node) Healthy() error { return nil }

// ReadyErr is nil when the node knows a leader and its copy is caught up, else
// it says what is missing. It never depends on leadership or ownership.
func (n *Node) ReadyErr() error { return nil }

// Addr is the bound host:port, "" until Run has bound it.
func (n *Node) Addr() string { return "" }

// ID is the node ID, InstanceID that of this start, Boot its number.
func (n *Node) ID() string         { return "" }
func (n *Node) InstanceID() string { return "" }
func (n *Node) Boot() uint64       { return 0 }

// ClusterID is empty until the node belongs to a cluster.
func (n *Node) ClusterID() string { return "" }
