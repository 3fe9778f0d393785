package miwtest

import (
	"fmt"
	"time"

	"github.com/miwnode/miwnode/coord"
)

// Observer sees the works on one thing that must not be worked on twice at a
// time: what a lease protects. It may be used by any goroutine of the bubble.
type Observer struct {
	c    *Cluster
	name string
}

// Observe returns the Observer of that name; work under leases of several keys
// may share one. The key of the lease is mostly the right name.
func (c *Cluster) Observe(name string) *Observer { return &Observer{c, name} }

// Begin tells that work under the lease begins, and done that it has ended: a
// write, a batch, a whole run. It is a [Violation] if the lease is no longer
// valid by then, if another instance is at work, or if the work goes on when the
// lease can pass on. Works under one lease may overlap.
//
//	defer obs.Begin(lease)()
func (o *Observer) Begin(l *coord.Lease) (done func()) {
	o.c.t.Helper()
	n, session := o.c.holder(l.Token())
	if n == nil {
		o.c.t.Errorf("observer of %q: the lease of %q with token %d is of none of the nodes of this cluster", o.name, l.Key(), l.Token())
		return func() {}
	}
	if n.isDead() {
		return func() {} // nobody can see what the work of a dead process does
	}
	paused, woke := n.standsStill()
	e := &entry{Span: Span{Key: o.name, Node: n.index, Token: l.Token(), Start: o.c.Elapsed()}, proc: n, lease: l.Key(), session: session}
	if !paused && !l.Valid() {
		why := "its lease is lost"
		if woke > 0 {
			why = fmt.Sprintf("its lease was lost while the process stood still (until %v ago)", round(woke))
		}
		o.c.report(e.violates(Stale, e.Start, "a work on %q of node %d (token %d) begins although %s: ask Lease.Valid before each, Lease.Confirm where it must be sure, and hand Lease.Token to what is written to",
			o.name, n.index, l.Token(), why)...)
		return func() {}
	}
	o.c.report(o.c.works.begin(e, paused)...)
	return func() { o.c.works.end(e, o.c.Elapsed()) }
}

// Spans returns the works that were seen, in the order of their starts.
func (o *Observer) Spans() []Span { return o.c.works.list(o.name) }

// Count is how many works have begun. It is what a test mostly wants to grow.
func (o *Observer) Count() int { return o.c.works.number(o.name) }

// WaitCount waits, for five minutes at most, until n works have begun.
func (o *Observer) WaitCount(n int) {
	o.c.t.Helper()
	o.c.Until(5*time.Minute, fmt.Sprintf("%d works on %q", n, o.name), func() bool { return o.Count() >= n })
}
