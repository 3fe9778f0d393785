package fsm

// Pin ties a workload to an instance. A pin to an instance that is gone stays,
// and binds again only who puts it to use: the planner may take the same node
// for it. It never changes.
type Pin struct {
	Mark
	InstanceID string
	NodeID     string // of that instance
}

// workloadState is what is kept of a workload besides its lease. It never changes.
type workloadState struct {
	key     string
	pin     *Pin
	pause   *Mark
	failure *Failure
	last    *LastOwner
}

// MarkKind tells the marks of a workload apart.
type MarkKind uint8

// Kinds.
const (
	PinMark   MarkKind = 1
	PauseMark MarkKind = 2
)

// WorkloadMark names a pin or pause that runs out. The leader clears it by
// SetPin or SetPause with its revision and the term.
type WorkloadMark struct {
	Group    string
	Workload string
	Kind     MarkKind
	*Mark
}
