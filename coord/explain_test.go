package coord_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// why is an explanation, a line for each thing it says.
func why(t *testing.T, w *coordtest.World, workload string) (lines []string) {
	t.Helper()
	e, err := coord.Why(w.View(), "g", workload, nil)
	if err != nil {
		t.Fatal(err)
	}
	lines = append(lines, fmt.Sprintf("%s %s>%s", e.Status, e.Owner, e.Successor))
	lines = append(lines, e.Because...)
	for _, j := range e.Instances {
		lines = append(lines, fmt.Sprintf("%s %v: %s", j.InstanceID, j.Can, j.Because))
	}
	number := regexp.MustCompile(`(revision|token) \d+`)
	for i, l := range lines {
		lines[i] = number.ReplaceAllString(strings.ReplaceAll(l, ":1:coordtest", ""), "$1 N")
	}
	return lines
}

// Ensures that a placement is explained in every state of its workload; in a bubble.
func TestWhy(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2", "w3", "w4"), Rebalance: coord.RebalanceGraceful})
		m.work = finishing(20 * time.Second)
		a, b := m.join("a"), m.join("b")
		settle()
		equalLines(t, why(t, w, "w1"),
			"active a>",
			"a has it since revision N, with token N",
			"the assigner sticky leaves it with a, which has 2 workloads",
			"a true: it is the owner; it has 2 workloads",
			"b true: it has 2 workloads")

		do(t, w, pinOf("w1", b.InstanceID()))
		time.Sleep(2 * time.Second)
		equalLines(t, why(t, w, "w1"),
			"transferring a>b",
			"it moves from a to b (by planner: it is pinned to b): a was asked to stop at revision N and has not given it up yet",
			"it is pinned to b by op: big disk",
			"the assigner sticky leaves it with b, which has 2 workloads",
			"a true: it is the owner; it has 2 workloads",
			"b true: it is the named successor; it has 2 workloads")
		time.Sleep(time.Minute)

		if err := w.Cordon(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		do(t, w, &fsm.SetPause{Group: "g", Workload: "w1", Paused: true, By: "op", Reason: "migration"})
		time.Sleep(time.Minute)
		equalLines(t, why(t, w, "w1"),
			"paused >",
			"it is paused by op: migration",
			"it is pinned to b by op: big disk",
			"before, b had it, until revision N (paused)",
			"a false: it is cordoned by test",
			"b false: the workload is paused")

		_, err := coord.Why(w.View(), "g", "nothing", nil)
		wantErr(t, err, fsm.ErrNotFound)
		_, err = coord.Why(w.View(), "nothing", "w1", nil)
		wantErr(t, err, fsm.ErrNotFound)
		if e, err := a.co.Why("w2"); err != nil || len(e.Because) == 0 {
			t.Errorf("got %v, %v", e, err)
		}
	})
}

// What somebody who moved a workload said of it is told when it has moved.
func TestWhy_Moved(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2")})
		_, b := m.join("a"), m.join("b")
		settle()
		do(t, w, &fsm.MoveWorkload{Group: "g", Workload: "w1", ToInstance: b.InstanceID(), By: "op", Reason: "slow disk"})
		time.Sleep(time.Second)
		if lines := why(t, w, "w1"); !slices.Contains(lines, "before, a had it, until revision N (moved by op: slow disk)") {
			t.Errorf("got %q", lines)
		}
	})
}

func TestWhy_NobodyHasIt(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		do(t, w, &fsm.PutGroup{Group: "g", Settings: &fsm.GroupSettings{}, CatalogHash: putCatalog(t, w, "w1", "w2"), By: "op"})
		equalLines(t, why(t, w, "w1"), "inactive >", "nobody has it: the group has no members")
		x := w.Client("x")
		do(t, w, &fsm.JoinGroup{Group: "g", SessionId: x.SessionID(), Keys: []string{"w2"}})
		equalLines(t, why(t, w, "w1"), "inactive >", "nobody has it: no member can be given it now",
			"x:client false: it did not declare it")
		equalLines(t, why(t, w, "w2"), "inactive >", "nobody has it: no instance can plan for the group",
			"the assigner sticky would give it to x:client: nobody has it, and x:client has none", "x:client true: it has none")
	})
}

// Ensures that what would move is told, and nothing moves.
func TestWhatIf(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2", "w3", "w4", "w5", "w6")})
		a, b := m.join("a"), m.join("b")
		settle()
		entries := w.Entries()
		show := func(c coord.Change) (lines []string) {
			moves, err := coord.WhatIf(w.View(), "g", c, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range moves {
				later := ""
				if x.Later {
					later = " (later)"
				}
				lines = append(lines, strings.ReplaceAll(fmt.Sprintf("%s %s>%s %s%s", x.Workload, x.From, x.To, x.Because, later), ":1:coordtest", ""))
			}
			return lines
		}
		equalLines(t, show(coord.Change{}))
		equalLines(t, show(coord.Change{Add: 1}),
			"w5 a>new-1 a has 3 workloads, new-1 has none",
			"w6 b>new-1 b has 3 workloads, new-1 has 1 workload (later)")
		equalLines(t, show(coord.Change{Without: []string{b.InstanceID()}}),
			"w2 b>a b is gone, and a has 3 workloads",
			"w4 b>a b is gone, and a has 4 workloads",
			"w6 b>a b is gone, and a has 5 workloads")
		equalLines(t, show(coord.Change{Without: []string{a.InstanceID()}, Add: 1})[:1],
			"w1 a>new-1 a is gone, and new-1 has none")
		_, err := coord.WhatIf(w.View(), "g", coord.Change{Without: []string{"nobody"}}, nil)
		wantErr(t, err, fsm.ErrInvalidArgument)
		_, err = a.co.WhatIf(coord.Change{Add: -1})
		wantErr(t, err, fsm.ErrInvalidArgument)
		equal(t, w.Entries()-entries, 0, "entries")
	})
}
