package miwtest

import (
	"fmt"
	"time"
)

// Kind is the rule that was broken.
type Kind string

// Kinds of violations.
const (
	// Overlap: two runs of one key, or two works on one observed thing, at one
	// time.
	Overlap Kind = "overlap"
	// TokenOrder: a run or a work under a smaller token than one before it.
	TokenOrder Kind = "token order"
	// Stale: work began under a lease that was lost. It should have asked
	// Lease.Valid or Lease.Confirm.
	Stale Kind = "stale work"
	// Overdue: work went on when its lease could pass on. It should have watched
	// its context.
	Overdue Kind = "overdue work"
	// Stuck: a run did not return when it was told to, or a lease was not
	// released: whatever it does ignores its context.
	Stuck Kind = "stuck run"
)

// Violation is one breach of a rule by the work under test.
type Violation struct {
	Kind Kind
	Key  string        // of the lease, or the name of the Observer
	Node int           // that did it
	At   time.Duration // since the cluster was made
	Text string        // what happened and what to do
}

// String is the text with its kind and time.
func (v Violation) String() string {
	return fmt.Sprintf("%s at %v: %s", v.Kind, round(v.At), v.Text)
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
