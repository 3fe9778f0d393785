package api

import "time"

// Groups answers GET /v1/groups, in the order of names. Each group is whole; a
// page ends with the group that makes its workloads more than 10000.
type Groups struct {
	Revision uint64    `json:"revision"`
	Age      *Duration `json:"age,omitempty"`
	Groups   []Group   `json:"groups"`
	Next     string    `json:"next,omitempty"`
}

// Group answers GET /v1/groups/{name}, where it has a revision, and its
// workloads go on after Next. Owners, members and the planner are instances.
type Group struct {
	Revision      uint64          `json:"revision,omitempty"`
	Age           *Duration       `json:"age,omitempty"`
	Name          string          `json:"name"`
	Assigner      string          `json:"assigner"`
	Rebalance     string          `json:"rebalance"`
	MaxMoves      int             `json:"max_moves"` // 0: a tenth of the group
	By            string          `json:"by,omitempty"`
	UpdatedAt     time.Time       `json:"updated_at,omitzero"`
	Inputs        uint64          `json:"inputs"`
	PlannedInputs uint64          `json:"planned_inputs"` // less than inputs: a plan is due
	PlannedAt     time.Time       `json:"planned_at,omitzero"`
	Planner       string          `json:"planner,omitempty"` // absent: nobody plans
	Counts        map[string]int  `json:"counts"`            // of all its workloads, by status
	Members       []GroupMember   `json:"members"`
	Workloads     []GroupWorkload `json:"workloads"`
	Pins          []Pin           `json:"pins"`
	Next          string          `json:"next,omitempty"`
}

// GroupMember is an instance that takes workloads of a group.
type GroupMember struct {
	InstanceID string    `json:"instance_id"`
	NodeID     string    `json:"node_id"`
	Name       string    `json:"name,omitempty"`
	Zone       string    `json:"zone"`
	Declares   string    `json:"declares"` // all, catalog, keys, or of the workers runtimes
	Runtimes   []string  `json:"runtimes,omitempty"`
	Capacity   float64   `json:"capacity,omitempty"`
	Embedded   bool      `json:"embedded"` // it can plan
	Draining   bool      `json:"draining"`
	Cordoned   bool      `json:"cordoned"`
	JoinedAt   time.Time `json:"joined_at"`
	Workloads  int       `json:"workloads"` // that it has
}

// GroupWorkload is a workload that a group wants. Its lease has the key
// GROUP/KEY.
type GroupWorkload struct {
	Key         string            `json:"key"`
	DisplayName string            `json:"display_name,omitempty"`
	Weight      float64           `json:"weight"`
	Labels      map[string]string `json:"labels,omitempty"`
	Status      string            `json:"status"`
	Owner       string            `json:"owner,omitempty"` // absent: nobody has it
	NodeID      string            `json:"node_id,omitempty"`
	Name        string            `json:"name,omitempty"`
	Token       uint64            `json:"token,omitempty"`
	Since       time.Time         `json:"since,omitzero"`
	Successor   string            `json:"successor,omitempty"`
	Preparing   bool              `json:"preparing,omitempty"` // the successor, while the owner goes on
	By          string            `json:"by,omitempty"`        // who makes the owner stop
	Reason      string            `json:"reason,omitempty"`
	Pin         *Pin              `json:"pin,omitempty"`
	Pause       *Mark             `json:"pause,omitempty"`
	Failure     *Failure          `json:"failure,omitempty"`
	Stuck       *Stuck            `json:"stuck,omitempty"`
	LastOwner   *LastOwner        `json:"last_owner,omitempty"`
}

// Pin ties a workload to an instance.
type Pin struct {
	Workload   string    `json:"workload"`
	InstanceID string    `json:"instance_id"`
	NodeID     string    `json:"node_id"`
	Reason     string    `json:"reason,omitempty"`
	By         string    `json:"by,omitempty"`
	At         time.Time `json:"at"`
	ExpiresIn  Duration  `json:"expires_in,omitempty"` // from At, at the earliest
}

// Failure is the last of the failed runs of a workload, and how many there were
// in a row.
type Failure struct {
	InstanceID string    `json:"instance_id"`
	Count      int       `json:"count"`
	Error      string    `json:"error"`
	At         time.Time `json:"at"`
}

// Stuck says since when a run that was told to stop does not return, and where
// it hangs.
type Stuck struct {
	At     time.Time `json:"at"`
	Detail string    `json:"detail,omitempty"`
}

// LastOwner is who had a workload before.
type LastOwner struct {
	InstanceID string    `json:"instance_id"`
	NodeID     string    `json:"node_id"`
	Name       string    `json:"name,omitempty"`
	EndedAt    time.Time `json:"ended_at"`
	EndReason  string    `json:"end_reason"`
}

// PutGroupRequest is the body of PUT /v1/groups/{name}.
type PutGroupRequest struct {
	Assigner  string            `json:"assigner,omitempty"`
	Rebalance string            `json:"rebalance,omitempty"`
	MaxMoves  uint32            `json:"max_moves,omitempty"`
	Workloads []WorkloadRequest `json:"workloads"`
	By        string            `json:"by,omitempty"`
}

// WorkloadRequest is a workload to be declared.
type WorkloadRequest struct {
	Key         string            `json:"key"`
	DisplayName string            `json:"display_name,omitempty"`
	Weight      *float64          `json:"weight,omitempty"` // absent: 1
	Labels      map[string]string `json:"labels,omitempty"`
}

// GroupPut answers PUT /v1/groups/{name}.
type GroupPut struct {
	Revision    uint64 `json:"revision"`
	Workloads   int    `json:"workloads"`
	CatalogHash string `json:"catalog_hash,omitempty"`
}

// DeleteGroupRequest is the body of DELETE /v1/groups/{name}; it may be missing.
type DeleteGroupRequest struct {
	By string `json:"by,omitempty"`
}

// JoinRequest is the body of POST /v1/groups/{name}/join.
type JoinRequest struct {
	SessionID string `json:"session_id"`
	// Workloads are the keys that it can run; absent: all that the group wants.
	Workloads []string `json:"workloads,omitempty"`
	// Capacity is the sum of weights that it takes; 0 means no bound.
	Capacity float64 `json:"capacity,omitempty"`
}

// Joined answers a join. Grants come with the session's keep-alives.
type Joined struct {
	Revision   uint64 `json:"revision"`
	InstanceID string `json:"instance_id"`
}

// LeaveRequest is the body of POST /v1/groups/{name}/leave.
type LeaveRequest struct {
	SessionID string `json:"session_id"`
}

// SteerRequest is the body of move, pin, unpin, pause and resume. To belongs to
// the first two, expires_in to pin and pause.
type SteerRequest struct {
	Workload  string   `json:"workload"`
	To        string   `json:"to,omitempty"`
	Reason    string   `json:"reason,omitempty"`
	By        string   `json:"by,omitempty"`
	ExpiresIn Duration `json:"expires_in,omitempty"`
}

// RecordJobRequest is the body of POST /v1/jobs/record.
type RecordJobRequest struct {
	Key string `json:"key"`
	// LeaseKey is the lease that the token is of; absent: that of the same key.
	LeaseKey string `json:"lease_key,omitempty"`
	// Token fences the record; 0 records without a lease.
	Token uint64 `json:"token,omitempty"`
	// Outcome is done unless said; started opens a run.
	Outcome string `json:"outcome,omitempty"`
	Detail  string `json:"detail,omitempty"`
}

// JobRecorded answers a record.
type JobRecorded struct {
	Revision uint64 `json:"revision"`
	Total    uint64 `json:"total"`
}

// Jobs answers GET /v1/jobs, in the order of keys.
type Jobs struct {
	Revision uint64    `json:"revision"`
	Age      *Duration `json:"age,omitempty"`
	Jobs     []Job     `json:"jobs"`
	Next     string    `json:"next,omitempty"`
}

// Job is the record of the executions of one key.
type Job struct {
	Key    string    `json:"key"`
	Total  uint64    `json:"total"`
	Owner  string    `json:"owner"` // instance of the last record, or the name of its session
	NodeID string    `json:"node_id,omitempty"`
	LastAt time.Time `json:"last_at,omitzero"`
	Recent []JobRun  `json:"recent"` // oldest first
}

// JobRun is one execution; without ended_at it goes on.
type JobRun struct {
	At         time.Time `json:"at"`
	EndedAt    time.Time `json:"ended_at,omitzero"`
	Token      uint64    `json:"token,omitempty"`
	LeaseKey   string    `json:"lease_key,omitempty"`
	InstanceID string    `json:"instance_id,omitempty"`
	NodeID     string    `json:"node_id,omitempty"`
	Name       string    `json:"name,omitempty"`
	Outcome    string    `json:"outcome"`
	Detail     string    `json:"detail,omitempty"`
}

// Why answers GET /v1/groups/{name}/why.
type Why struct {
	Revision  uint64    `json:"revision"`
	Age       *Duration `json:"age,omitempty"`
	Group     string    `json:"group"`
	Workload  string    `json:"workload"`
	Status    string    `json:"status"`
	Owner     string    `json:"owner,omitempty"`
	Successor string    `json:"successor,omitempty"`
	// Because is sentences, the one that decides first.
	Because []string `json:"because"`
	// Instances are the members, in join order.
	Instances []Judgement `json:"instances"`
}

// Judgement says whether an instance could have a workload, and why.
type Judgement struct {
	InstanceID string `json:"instance_id"`
	Can        bool   `json:"can"`
	Because    string `json:"because"`
}

// PlanRequest is the body of POST /v1/groups/{name}/plan: what if these
// instances were gone, and so many joined?
type PlanRequest struct {
	Without Names `json:"without,omitempty"`
	Add     int   `json:"add,omitempty"`
}

// Plan answers POST /v1/groups/{name}/plan.
type Plan struct {
	Revision uint64    `json:"revision"`
	Age      *Duration `json:"age,omitempty"`
	// Inputs is the state of the group that it was made from.
	Inputs uint64        `json:"inputs"`
	Moves  []PlannedMove `json:"moves"`
}

// PlannedMove is what would move. From and to are instances, empty for nobody;
// those that would join are new-1, new-2 and so on.
type PlannedMove struct {
	Workload string `json:"workload"`
	From     string `json:"from"`
	To       string `json:"to"`
	Because  string `json:"because"`
	Later    bool   `json:"later,omitempty"` // beyond what may move at a time
}
