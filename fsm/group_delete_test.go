package fsm_test

import (
	"testing"

	"github.com/miwnode/miwnode/fsm"
)

// newDeleteLog is a log of a cluster in which groups can be deleted.
func newDeleteLog(t *testing.T) *logbook {
	l := newGroupLog(t)
	l.done(&fsm.SetVersion{Version: 3})
	return l
}

// A group goes with its catalog and marks once nobody is in it or has a workload
// of it; one of the same name begins anew.
func TestGroup_Delete(t *testing.T) {
	l := newDeleteLog(t)
	l.put("w", "x")
	hash := l.group().CatalogHash
	l.member("a")
	planner := l.planner("a")
	l.plan(planner, "w=i-a")
	l.done(&fsm.SetPause{Group: "g", Workload: "x", Paused: true})
	del := &fsm.DeleteGroup{Group: "g", By: "ann"}
	l.refused(del, fsm.ErrWrongState)
	l.done(&fsm.LeaveGroup{Group: "g", SessionId: "a"})
	l.refused(del, fsm.ErrWrongState) // a has not stopped w yet
	lease, _ := l.state.View().Lease("g/w")
	l.done(&fsm.Release{Key: "g/w", SessionId: "a", Token: lease.Token})
	l.done(del)
	equalLines(t, "events", l.events(), []string{`group.updated g by=ann reason="deleted"`})
	if _, there := l.state.View().Group("g"); there {
		t.Error("the group is still there")
	}
	l.refused(del, fsm.ErrNotFound)
	l.refused(l.planAfter(planner), fsm.ErrNotFound)
	reload(t, l.state)

	l.done(&fsm.PutGroup{Group: "g", CatalogHash: hash}) // nobody refers to it, but it is kept for a while
	if w, ok := l.group().Workload("x"); !ok || w.Pause != nil || l.group().Inputs != 1 {
		t.Errorf("x is %+v, inputs %d: want no pause and 1", w, l.group().Inputs)
	}
}

// planAfter is what a planner proposes that has not heard of the end of its group.
func (l *logbook) planAfter(token uint64) *fsm.PlanGroup {
	return &fsm.PlanGroup{Group: "g", Inputs: 3, PlannerToken: token}
}

// The group of the workers stays, and clusters of before don't know the command.
func TestGroup_DeleteRefused(t *testing.T) {
	l := newGroupLog(t)
	l.put("w")
	l.refused(&fsm.DeleteGroup{Group: "g"}, fsm.ErrWrongState)
	l.done(&fsm.SetVersion{Version: 3})
	l.refused(&fsm.DeleteGroup{Group: "workers"}, fsm.ErrInvalidArgument)
	l.refused(&fsm.DeleteGroup{}, fsm.ErrInvalidArgument)
	l.done(&fsm.DeleteGroup{Group: "g"})
}
