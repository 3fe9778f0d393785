package fsm

// Failure says that runs of a workload have failed, or the preparation of a
// successor, without one that ran well since. It never changes.
type Failure struct {
	InstanceID string // of the last one
	Count      int    // in a row
	Error      string // of the last one
	Revision   uint64
	At         int64 // stamp, Unix nanoseconds
}

// LastOwner is who had a workload before the present grant, or before it became
// free. It never changes.
type LastOwner struct {
	*Identity
	Client   bool // NodeID is only the node that the client came in through
	Revision uint64
	At       int64 // stamp, Unix nanoseconds
	Reason   EndReason
}

// Stuck says that the run under a lease was told to stop and doesn't return. It
// never changes.
type Stuck struct {
	Revision uint64
	At       int64  // stamp, Unix nanoseconds
	Detail   string // its stack
}
