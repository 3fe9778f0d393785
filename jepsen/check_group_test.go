package jepsen_test

import (
	"slices"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

// gave is what a group did to key k: an entry that ends what was, for a reason,
// and one that gives it to an instance; it is named as moved or assigned.
func gave(rev uint64, what string, token uint64, to string, at time.Duration) []jepsen.Event {
	return []jepsen.Event{
		{Revision: rev, Position: 1, Type: "lease.granted", Key: "k", Token: token, Instance: to, Reader: "n1", At: at},
		{Revision: rev, Position: 2, Type: "workload." + what, Key: "k", Token: token, Instance: to, Reader: "n1", At: at},
	}
}

func took(rev uint64, token uint64, reason string, at time.Duration) []jepsen.Event {
	return []jepsen.Event{{Revision: rev, Position: 1, Type: "lease.ended", Key: "k", Token: token, Reason: reason, Reader: "n1", At: at}}
}

// loads is a load of k by a process.
func loads(proc string, from, until time.Duration) jepsen.Loading {
	return jepsen.Loading{Proc: proc, Key: "k", Start: from, Stop: until, OK: true}
}

func marked(rev uint64, mark, instance string) []jepsen.Event {
	return []jepsen.Event{{Revision: rev, Position: 1, Type: "instance." + mark, Instance: instance, Reader: "n1"}}
}

func atRest(assigner string, wanted int, nobody []string, shares ...jepsen.Share) []jepsen.Rest {
	return []jepsen.Rest{{Node: "n1", At: 20 * s, Revision: 9, Group: "g", Assigner: assigner, Wanted: wanted, Nobody: nobody, Shares: shares}}
}

// groupHistories are judged by hand, by the two checks of groups.
var groupHistories = []struct {
	name string
	h    jepsen.History
	bad  []string
}{
	{name: "handed over", h: jepsen.History{
		Meta:   meta(30 * s),
		Runs:   []jepsen.Run{run("a", 10, 1*s, 5*s), run("b", 11, 5*s+s/2, 30*s)},
		Events: slices.Concat(gave(1, "assigned", 10, "a", s), took(2, 10, "moved", 5*s), gave(3, "moved", 11, "b", 5*s)),
	}},
	{name: "handed over too late", h: jepsen.History{
		Meta:   meta(30 * s),
		Runs:   []jepsen.Run{run("a", 10, 1*s, 5*s), run("b", 11, 6*s+s/2, 30*s)},
		Events: slices.Concat(gave(1, "assigned", 10, "a", s), took(2, 10, "moved", 5*s), gave(3, "moved", 11, "b", 5*s)),
	}, bad: []string{jepsen.CheckHandOver}},
	{name: "late, for its successor had to load it first", h: jepsen.History{
		Meta:   meta(30 * s),
		Runs:   []jepsen.Run{run("a", 10, 1*s, 5*s), run("b", 11, 7*s+s/2, 30*s)},
		Events: slices.Concat(gave(1, "assigned", 10, "a", s), took(2, 10, "moved", 5*s), gave(3, "moved", 11, "b", 5*s)),
		Loads:  []jepsen.Loading{loads("b", 5*s, 5*s+s/2), loads("b", 6*s, 7*s)},
	}},
	{name: "late, and its successor had loaded it before", h: jepsen.History{
		Meta:   meta(30 * s),
		Runs:   []jepsen.Run{run("a", 10, 1*s, 5*s), run("b", 11, 7*s+s/2, 30*s)},
		Events: slices.Concat(gave(1, "assigned", 10, "a", s), took(2, 10, "moved", 5*s), gave(3, "moved", 11, "b", 5*s)),
		Loads:  []jepsen.Loading{loads("b", 3*s, 4*s), loads("a", 5*s, 7*s)},
	}, bad: []string{jepsen.CheckHandOver}},
	{name: "late, and long after its successor has loaded it", h: jepsen.History{
		Meta:   meta(30 * s),
		Runs:   []jepsen.Run{run("a", 10, 1*s, 5*s), run("b", 11, 7*s+s/2, 30*s)},
		Events: slices.Concat(gave(1, "assigned", 10, "a", s), took(2, 10, "moved", 5*s), gave(3, "moved", 11, "b", 5*s)),
		Loads:  []jepsen.Loading{loads("b", 5*s, 5*s+s/2)},
	}, bad: []string{jepsen.CheckHandOver}},
	{name: "late, but something was cut", h: jepsen.History{
		Meta:    meta(30 * s),
		Runs:    []jepsen.Run{run("a", 10, 1*s, 5*s), run("b", 11, 6*s+s/2, 30*s)},
		Events:  slices.Concat(gave(1, "assigned", 10, "a", s), took(2, 10, "moved", 5*s), gave(3, "moved", 11, "b", 5*s)),
		Windows: []jepsen.Window{{Fault: "cut", Nodes: []string{"n1"}, From: 6 * s, To: 7 * s}},
	}},
	{name: "late, and somebody was drained", h: jepsen.History{
		Meta:    meta(30 * s),
		Runs:    []jepsen.Run{run("a", 10, 1*s, 5*s), run("b", 11, 6*s+s/2, 30*s)},
		Events:  slices.Concat(gave(1, "assigned", 10, "a", s), took(2, 10, "moved", 5*s), gave(3, "moved", 11, "b", 5*s)),
		Windows: []jepsen.Window{{Fault: "drain", Nodes: []string{"n1"}, From: 4 * s, To: 9 * s}},
	}, bad: []string{jepsen.CheckHandOver}},
	{name: "late, for the old owner never gave it up", h: jepsen.History{
		Meta:   meta(30 * s),
		Runs:   []jepsen.Run{run("a", 10, 1*s, 5*s), run("b", 11, 8*s, 30*s)},
		Events: slices.Concat(gave(1, "assigned", 10, "a", s), took(2, 10, "expired", 8*s), gave(3, "moved", 11, "b", 8*s)),
	}},
	{name: "late, for another had it in between and never ran it", h: jepsen.History{
		Meta:   meta(30 * s),
		Runs:   []jepsen.Run{run("a", 10, 1*s, 5*s), run("c", 12, 8*s, 30*s)},
		Events: slices.Concat(gave(1, "assigned", 10, "a", s), took(2, 10, "moved", 5*s), gave(3, "moved", 11, "b", 5*s), took(4, 11, "moved", 8*s), gave(5, "moved", 12, "c", 8*s)),
	}},
	{name: "given to one that drained before, and no longer does", h: jepsen.History{
		Events: slices.Concat(marked(1, "draining", "a"), marked(2, "undrained", "a"), gave(3, "assigned", 10, "a", s)),
	}},
	{name: "given to one that drains", h: jepsen.History{
		Events: slices.Concat(marked(1, "draining", "a"), gave(2, "moved", 10, "a", s)),
	}, bad: []string{jepsen.CheckPlan}},
	{name: "given to one that is cordoned", h: jepsen.History{
		Events: slices.Concat(marked(1, "cordoned", "a"), marked(2, "undrained", "a"), gave(3, "assigned", 10, "a", s)),
	}, bad: []string{jepsen.CheckPlan}},
	{name: "even at rest", h: jepsen.History{Rests: atRest("sticky", 7, nil, jepsen.Share{Instance: "a", Has: 4}, jepsen.Share{Instance: "b", Has: 3})}},
	{name: "uneven at rest", h: jepsen.History{Rests: atRest("sticky", 8, nil, jepsen.Share{Instance: "a", Has: 5}, jepsen.Share{Instance: "b", Has: 3})}, bad: []string{jepsen.CheckPlan}},
	{name: "uneven, as primary is", h: jepsen.History{Rests: atRest("primary", 8, nil, jepsen.Share{Instance: "a", Has: 8}, jepsen.Share{Instance: "b"})}},
	{name: "uneven, for one is cordoned", h: jepsen.History{Rests: atRest("sticky", 8, nil, jepsen.Share{Instance: "a", Has: 6, Cordoned: true}, jepsen.Share{Instance: "b", Has: 1}, jepsen.Share{Instance: "c", Has: 1})}},
	{name: "something is left on one that drains", h: jepsen.History{Rests: atRest("sticky", 5, nil, jepsen.Share{Instance: "a", Has: 1, Draining: true}, jepsen.Share{Instance: "b", Has: 4})}, bad: []string{jepsen.CheckPlan}},
	{name: "nobody has it", h: jepsen.History{Rests: atRest("sticky", 5, []string{"w1"}, jepsen.Share{Instance: "a", Has: 2}, jepsen.Share{Instance: "b", Has: 2})}, bad: []string{jepsen.CheckPlan}},
	{name: "nobody has it, and nobody may", h: jepsen.History{Rests: atRest("sticky", 1, []string{"w1"}, jepsen.Share{Instance: "a", Draining: true}, jepsen.Share{Instance: "b", Cordoned: true})}},
}

// TestCheck_Groups ensures that the checks of groups find what they are there
// for, and nothing else.
func TestCheck_Groups(t *testing.T) {
	for _, tc := range groupHistories {
		t.Run(tc.name, func(t *testing.T) {
			var bad []string
			for _, name := range jepsen.FailedChecks(jepsen.Check(&tc.h)) {
				if name == jepsen.CheckHandOver || name == jepsen.CheckPlan {
					bad = append(bad, name)
				}
			}
			if !slices.Equal(bad, tc.bad) {
				t.Errorf("failed checks: got %v, want %v", bad, tc.bad)
			}
		})
	}
}
