package jepsen_test

import (
	"slices"
	"testing"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/jepsen"
)

// pinned is one event about key k and instance a, who has it with token 10.
func pinned(rev uint64, what, by string) []jepsen.Event {
	return []jepsen.Event{{Revision: rev, Position: 1, Type: what, Key: "k", Token: 10, Instance: "a", By: by, Reader: "n1", At: s}}
}

// TestCheckPins judges by hand what a planner does with what is pinned.
func TestCheckPins(t *testing.T) {
	has := gave(1, "assigned", 10, "a", s)
	for _, c := range []struct {
		name   string
		events []jepsen.Event
		bad    bool
	}{
		{name: "a plan takes it from whom it is pinned to", bad: true, events: slices.Concat(has, pinned(2, "workload.pinned", "operator"), pinned(3, "lease.transferring", fsm.ByPlanner))},
		{name: "or has another get ready", bad: true, events: slices.Concat(has, pinned(2, "workload.pinned", "operator"), pinned(3, "workload.preparing", fsm.ByPlanner))},
		{name: "again, after it was kept", bad: true, events: slices.Concat(
			has, pinned(2, "workload.preparing", fsm.ByPlanner), pinned(3, "workload.pinned", "operator"), pinned(4, "workload.kept", ""), pinned(5, "workload.preparing", fsm.ByPlanner))},
		{name: "nobody pinned it", events: slices.Concat(has, pinned(3, "lease.transferring", fsm.ByPlanner))},
		{name: "it was unpinned", events: slices.Concat(has, pinned(2, "workload.pinned", "operator"), pinned(3, "workload.unpinned", "operator"), pinned(4, "lease.transferring", fsm.ByPlanner))},
		{name: "it was under way when it was pinned", events: slices.Concat(has, pinned(2, "workload.preparing", fsm.ByPlanner), pinned(3, "workload.pinned", "operator"), pinned(4, "lease.transferring", fsm.ByPlanner))},
		{name: "an operator takes it", events: slices.Concat(has, pinned(2, "workload.pinned", "operator"), pinned(3, "lease.transferring", "operator"))},
		{name: "whom it is pinned to drains", events: slices.Concat(has, pinned(2, "workload.pinned", "operator"), marked(3, "draining", "a"), pinned(4, "lease.transferring", fsm.ByPlanner))},
		{name: "and left the group", events: slices.Concat(has, pinned(2, "workload.pinned", "operator"), pinned(3, "group.updated", ""), pinned(4, "lease.transferring", fsm.ByPlanner))},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := jepsen.History{Meta: meta(30 * s), Events: c.events}
			failed := slices.Contains(jepsen.FailedChecks(jepsen.Check(&h)), jepsen.CheckPlan)
			if failed != c.bad {
				t.Errorf("%s failed: %v, want %v", jepsen.CheckPlan, failed, c.bad)
			}
		})
	}
}
