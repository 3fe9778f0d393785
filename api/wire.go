package api

import "time"

// The bodies of requests and answers, as they travel. Names are fixed; fields
// may be added. Times are UTC; a zero time is left out. Age says how long ago
// what was acknowledged is surely in the copy that was read; it is absent where
// that is not known.

// Status answers GET /v1/status.
type Status struct {
	Revision     uint64    `json:"revision"`
	Age          *Duration `json:"age,omitempty"`
	NodeID       string    `json:"node_id"`
	InstanceID   string    `json:"instance_id"`
	Boot         uint64    `json:"boot"`
	ClusterID    string    `json:"cluster_id"`
	Generation   uint64    `json:"generation"`
	Version      uint32    `json:"version"`
	Role         string    `json:"role"`
	LeaderID     string    `json:"leader_id"`
	Term         uint64    `json:"term"`
	CommitIndex  uint64    `json:"commit_index"`
	AppliedIndex uint64    `json:"applied_index"`
	Ready        bool      `json:"ready"`
	ReadyReason  string    `json:"ready_reason,omitempty"`
	Draining     bool      `json:"draining"`
	Quorum       Quorum    `json:"quorum"`
}

// Quorum is how the node sees the voters.
type Quorum struct {
	Voters int  `json:"voters"`
	Alive  int  `json:"alive"`
	OK     bool `json:"ok"`
}

// Members answers GET /v1/members, in the order of node IDs.
type Members struct {
	Revision uint64    `json:"revision"`
	Age      *Duration `json:"age,omitempty"`
	Members  []Member  `json:"members"`
	Next     string    `json:"next,omitempty"`
}

// Member is one node of the cluster as the asked node knows it.
type Member struct {
	NodeID  string            `json:"node_id"`
	Addr    string            `json:"addr"`
	APIAddr string            `json:"api_addr,omitempty"`
	Zone    string            `json:"zone"`
	Labels  map[string]string `json:"labels"`
	Voter   bool              `json:"voter"`
	Leader  bool              `json:"leader"`
	Gossip  string            `json:"gossip"`
	Version uint32            `json:"version"`
	// LastContact is the time since the asked node heard of it; absent: never.
	LastContact *Duration `json:"last_contact,omitempty"`
}

// Instances answers GET /v1/instances, in the order of joining.
type Instances struct {
	Revision  uint64     `json:"revision"`
	Age       *Duration  `json:"age,omitempty"`
	Instances []Instance `json:"instances"`
	Next      string     `json:"next,omitempty"`
}

// Instance is what work may be assigned to.
type Instance struct {
	InstanceID     string            `json:"instance_id"`
	NodeID         string            `json:"node_id"`
	Name           string            `json:"name,omitempty"`
	JoinedAt       time.Time         `json:"joined_at"`
	JoinedRevision uint64            `json:"joined_revision"`
	Draining       bool              `json:"draining"`
	Cordoned       bool              `json:"cordoned"`
	Drain          *Mark             `json:"drain,omitempty"`
	Cordon         *Mark             `json:"cordon,omitempty"`
	Zone           string            `json:"zone"`
	Labels         map[string]string `json:"labels"`
	Leases         int               `json:"leases"`
}

// Mark says who drained or cordoned an instance, why and for how long.
type Mark struct {
	Reason    string    `json:"reason,omitempty"`
	By        string    `json:"by,omitempty"`
	At        time.Time `json:"at"`
	ExpiresIn Duration  `json:"expires_in,omitempty"` // from At, at the earliest
}

// MarkRequest is the body of drain, undrain, cordon and uncordon; all of it is optional.
type MarkRequest struct {
	Reason    string   `json:"reason,omitempty"`
	By        string   `json:"by,omitempty"`
	ExpiresIn Duration `json:"expires_in,omitempty"`
}

// Accepted answers what is under way.
type Accepted struct {
	Revision uint64 `json:"revision"`
}

// OpenSessionRequest is the body of POST /v1/sessions.
type OpenSessionRequest struct {
	TTL      Duration          `json:"ttl"`
	Name     string            `json:"name,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Instance bool              `json:"instance,omitempty"`
}

// Session answers POST /v1/sessions. The ID is a secret.
type Session struct {
	Revision  uint64   `json:"revision"`
	SessionID string   `json:"session_id"`
	TTL       Duration `json:"ttl"`
	// TrustedFor counts from the moment the request was sent.
	TrustedFor Duration `json:"trusted_for"`
	InstanceID string   `json:"instance_id,omitempty"`
}

// KeptAlive answers a keep-alive.
type KeptAlive struct {
	Revision   uint64      `json:"revision"`
	TTL        Duration    `json:"ttl"`
	TrustedFor Duration    `json:"trusted_for"`
	Leases     []KeptLease `json:"leases"`
}

// KeptLease is a lease of the session; it is confirmed only as "held".
type KeptLease struct {
	Key   string `json:"key"`
	Token uint64 `json:"token"`
	State string `json:"state"`
	// Group and Workload say what a group granted.
	Group    string `json:"group,omitempty"`
	Workload string `json:"workload,omitempty"`
}

// Leases answers GET /v1/leases, in the order of keys.
type Leases struct {
	Revision uint64    `json:"revision"`
	Age      *Duration `json:"age,omitempty"`
	Leases   []Lease   `json:"leases"`
	Next     string    `json:"next,omitempty"`
}

// Lease is a key that is held, or free but barred.
type Lease struct {
	Key              string    `json:"key"`
	Token            uint64    `json:"token"`
	Holder           *Holder   `json:"holder,omitempty"` // absent: barred
	TTL              Duration  `json:"ttl,omitempty"`
	AcquiredAt       time.Time `json:"acquired_at,omitzero"`
	AcquiredRevision uint64    `json:"acquired_revision"`
	State            string    `json:"state"`
	Group            string    `json:"group,omitempty"` // that granted it
	Stuck            *Stuck    `json:"stuck,omitempty"`
	Successor        string    `json:"successor,omitempty"`
	By               string    `json:"by,omitempty"`
	Reason           string    `json:"reason,omitempty"`
	Waiters          int       `json:"waiters"`
}

// Holder is who has a lease: a session by its name and instance, never its ID.
type Holder struct {
	Name       string `json:"name"`
	InstanceID string `json:"instance_id,omitempty"`
	NodeID     string `json:"node_id"`
	// Who in the session asked, where it said so.
	Who string `json:"who,omitempty"`
}

// AcquireRequest is the body of POST /v1/leases/acquire.
type AcquireRequest struct {
	Key       string   `json:"key"`
	SessionID string   `json:"session_id"`
	Holder    string   `json:"holder,omitempty"`
	Wait      Duration `json:"wait,omitempty"`
	LockDelay Duration `json:"lock_delay,omitempty"`
}

// Acquired answers an acquire.
type Acquired struct {
	Revision uint64 `json:"revision"`
	Key      string `json:"key"`
	Token    uint64 `json:"token"`
}

// ReleaseRequest is the body of POST /v1/leases/release. One that was answered
// with uncertain may be applied later still: repeat it until it is answered with
// 200 or stale_token, or ask for the key under another holder. The same holder
// would be given the same grant again, and lose it to that release.
type ReleaseRequest struct {
	Key       string `json:"key"`
	Token     uint64 `json:"token"`
	SessionID string `json:"session_id"`
	// Failure says that the run failed, and why.
	Failure string `json:"failure,omitempty"`
}

// TransferRequest is the body of POST /v1/leases/transfer.
type TransferRequest struct {
	Key    string `json:"key"`
	Token  uint64 `json:"token"`
	To     string `json:"to"`
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
}

// RevokeRequest is the body of POST /v1/leases/revoke.
type RevokeRequest struct {
	Key    string `json:"key"`
	Token  uint64 `json:"token"`
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
}

// StepDownRequest is the body of POST /v1/raft/step-down.
type StepDownRequest struct {
	To string `json:"to,omitempty"`
}

// History answers GET /v1/history, oldest first.
type History struct {
	Revision uint64         `json:"revision"`
	Age      *Duration      `json:"age,omitempty"`
	Entries  []HistoryEntry `json:"entries"`
	Next     string         `json:"next,omitempty"`
}

// HistoryEntry is one grant; without ended_at it is the present one.
type HistoryEntry struct {
	Key             string    `json:"key"`
	Token           uint64    `json:"token"`
	InstanceID      string    `json:"instance_id,omitempty"`
	NodeID          string    `json:"node_id"`
	Name            string    `json:"name,omitempty"`
	GrantedAt       time.Time `json:"granted_at"`
	GrantedRevision uint64    `json:"granted_revision"`
	EndedAt         time.Time `json:"ended_at,omitzero"`
	EndedRevision   uint64    `json:"ended_revision,omitempty"`
	EndReason       string    `json:"end_reason,omitempty"`
	By              string    `json:"by,omitempty"`
	Reason          string    `json:"reason,omitempty"`
	// Gap is the time the key had no owner before this grant, by the leader's
	// clock; 0s when it passed on in one entry of the log or no owner is known.
	// It is about the lease alone: work under it may have stopped before its end.
	Gap Duration `json:"gap"`
	// FormerToken is of the key's grant before; absent: none, or not known any more.
	FormerToken uint64 `json:"former_token,omitempty"`
}

// Event is the data of one server-sent event.
type Event struct {
	Revision   uint64    `json:"revision"`
	Position   uint32    `json:"position"`
	Type       string    `json:"type"`
	At         time.Time `json:"at,omitzero"`
	Key        string    `json:"key,omitempty"`
	Token      uint64    `json:"token,omitempty"`
	InstanceID string    `json:"instance_id,omitempty"`
	NodeID     string    `json:"node_id,omitempty"`
	Name       string    `json:"name,omitempty"`
	To         string    `json:"to,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	By         string    `json:"by,omitempty"`
	Detail     string    `json:"detail,omitempty"`
	Term       uint64    `json:"term,omitempty"`
	Version    uint64    `json:"version,omitempty"`
	// Total is that of a job.recorded, and how many assignments of a
	// group.planned changed something.
	Total uint64 `json:"total,omitempty"`
	// Worker is what the event tells of its worker, whose ID is in the key, too.
	WorkerID string `json:"worker_id,omitempty"`
	Runtime  string `json:"runtime,omitempty"`
	State    string `json:"state,omitempty"`
	// StartRequested says that it starts once it is loaded.
	StartRequested bool         `json:"start_requested,omitempty"`
	Error          *WorkerError `json:"error,omitempty"`
	// Certain is how long the runs of a lease.overlap surely overlapped.
	Certain Duration `json:"certain,omitempty"`
}

// Health answers GET /healthz and GET /readyz.
type Health struct {
	Revision uint64 `json:"revision"`
	OK       bool   `json:"ok"`
}
