package jepsen_test

import (
	"testing"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/jepsen"
	"github.com/miwnode/miwnode/node"
)

// TestDefect_Snapshot switches on bugs in what a snapshot keeps.
func TestDefect_Snapshot(t *testing.T) {
	plainOnly(t)
	solo := []string{"solo1", "solo2", "solo3"}
	for _, d := range []struct {
		name    string
		defects node.Defects
		faults  []string
		most    int
		want    []string
	}{
		{"tokens_start_anew_with_a_snapshot", node.Defects{FSM: fsm.Defects{TokenResetOnRestore: true}}, []string{"crash", "restart", "isolate-leader"}, 20, []string{jepsen.CheckTokens, jepsen.CheckHash, jepsen.CheckRegister}},
		{"answers_are_forgotten_with_a_snapshot", node.Defects{FSM: fsm.Defects{ResultsForgotten: true}}, []string{"crash", "restart", "isolate-leader"}, 20, []string{jepsen.CheckHash}},
	} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			hunt(t, simConfig{name: d.name, defect: d.name, defects: d.defects, singletons: solo, handles: []string{"raw1", "raw2"}, snapshots: true, late: true},
				only(d.faults...), d.most, d.want...)
		})
	}
}
