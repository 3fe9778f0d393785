package node

import "github.com/miwnode/miwnode/fsm"

// Seams are the places where tests of whole clusters (package nodetest, the
// suites of package jepsen) reach into a node. A product never sets them: the
// zero value is the real thing, but for the guard process, which a node with
// seams has not.
type Seams struct {
	// Clock gives the node a clock of its own rate and offset; nil is the machine's.
	Clock *TestClock
	// Kill ends Run as kill -9 would end the process: nothing is left,
	// released or told to anybody.
	Kill <-chan struct{}
	// LogStore sees every write to the log before the disk does; an error it
	// returns is the disk's.
	LogStore func(entries int) error
	// Dispatch is called on raft's own goroutine when it hands entries over to be
	// written: while it does not return, raft does nothing else.
	Dispatch func()
	// Version, if set, is the newest state version that the node knows: it stands
	// for an older binary.
	Version uint32
	// SnapshotEntries, if set, is after how many entries a snapshot is taken, and
	// how many entries are kept beside it; it is looked at each second.
	SnapshotEntries uint64
	// Step is told of each step by which something becomes durable or is answered,
	// on the goroutine that takes it, which goes on when it returns. With an error
	// the step is not taken: before a write to the disk it is the disk's.
	Step func(Step) error
	// KernelBoot stands in for the kernel's boot ID; empty reads it.
	KernelBoot string
	// Defects are planted bugs that a suite must catch.
	Defects Defects
}

// Defects are planted bugs, each named after what it breaks.
type Defects struct {
	// NoMargin: a holder trusts its session for the whole TTL.
	NoMargin bool
	// VerifyLeaderProof: raft.VerifyLeader stands in for the term round.
	VerifyLeaderProof bool
	// AckBeforeCommit: a command is answered when it is queued.
	AckBeforeCommit bool
	// NoBarrier: a new leader serves before its copy has what was committed.
	NoBarrier bool
	// OldDeadlines: one that led before goes on with its deadlines of then.
	OldDeadlines bool
	// AckBeforeDisk: entries are committed that the leader's disk has not.
	AckBeforeDisk bool
	// FormerNudge: a nudge goes by what a peer acknowledged in an earlier term.
	FormerNudge bool
	// UncoveredAnswers: an answer to a keep-alive counts before the copy has what
	// it covers.
	UncoveredAnswers bool
	// AcquireTrusts: a grant extends the trust in its session.
	AcquireTrusts bool
	// CopyProof: the start of a copied folder proves the end of the original.
	CopyProof bool
	// DrainForgets: a node that leaves counts one run too few.
	DrainForgets bool
	// DoubleRun: work that another instance is granted begins here, too.
	DoubleRun bool

	FSM fsm.Defects
}

// noSeams are those of a node that nobody reaches into.
var noSeams Seams

// SetSeams sets the seams of a configuration.
func SetSeams(c *Config, s Seams) { c.seams = &s }
