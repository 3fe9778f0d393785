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
	// LogStore sees every write to the log before the disk does, StableStore
	// every write of term and vote; an error they return is the disk's.
	LogStore    func(entries int) error
	StableStore func(key string) error
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
	// DoubleRun: work that another instance is granted begins here, too.
	DoubleRun bool

	FSM fsm.Defects
}

// noSeams are those of a node that nobody reaches into.
var noSeams Seams

// SetSeams sets the seams of a configuration.
func SetSeams(c *Config, s Seams) { c.seams = &s }
