package jepsen_test

import (
	"testing"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/jepsen"
	"github.com/miwnode/miwnode/node"
)

// TestDefect_Group switches on bugs in how the state shares groups out.
func TestDefect_Group(t *testing.T) {
	plainOnly(t)
	for _, d := range []struct {
		name    string
		defects fsm.Defects
		want    string
	}{
		{"a_move_does_not_wait_for_the_stop", fsm.Defects{MoveAtOnce: true}, jepsen.CheckOverlap},
		{"a_successor_is_not_looked_at_again", fsm.Defects{SuccessorUnseen: true}, jepsen.CheckPlan},
		{"what_becomes_free_is_not_seen", fsm.Defects{FreeUnseen: true}, jepsen.CheckTakeOver},
	} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			run := func(t *testing.T, cfg simConfig, faults []jepsen.Fault) (*jepsen.History, []jepsen.Step, []jepsen.Verdict) {
				cfg.group = drawGroup(cfg.seed)
				return simulateGroup(t, cfg, faults)
			}
			huntBy(t, run, simConfig{name: d.name, defect: d.name, defects: node.Defects{FSM: d.defects}, operator: true},
				only("cut", "crash", "pause", "restart"), 20, d.want)
		})
	}
}
