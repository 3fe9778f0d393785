package fsm_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/miwnode/miwnode/fsm"
)

func (l *logbook) rows() (out []string) {
	for w := range l.group().Workloads("") {
		out = append(out, w.Key+" "+workloadLine(&w))
	}
	return out
}

// The behaviours of workloads, their statuses and jobs.
func groupChecklist(t *testing.T) {
	t.Run("049_a_plan_leaves_what_runs_untouched", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("x", "y", "z")
		l.member("a", "b")
		plan := l.planner("a")
		l.plan(plan, "x=i-a", "y=i-b")
		l.plan(plan, "x=i-a", "y=i-b", "z=i-b")
		equalLines(t, "events", l.events(), []string{
			"lease.granted g/z token=4 instance=i-b node=n-b",
			"workload.assigned g/z token=4 instance=i-b node=n-b by=planner",
			`group.planned g instance=i-a node=n-a by=planner number=1`,
		})
		l.unchangedButPlan(l.planOp(plan, "x=i-a", "y=i-b", "z=i-b"))
	})
	t.Run("053_a_moved_workload_runs_once_more_and_not_where_it_was", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("x")
		l.member("a", "b")
		plan := l.planner("a")
		l.plan(plan, "x=i-a")
		l.plan(plan, "x=i-b")
		l.done(&fsm.Release{Key: "g/x", SessionId: "a", Token: token(2)})
		equalLines(t, "rows", l.rows(), []string{"x active i-b token=3 last=i-a,moved"})
		l.refused(&fsm.Release{Key: "g/x", SessionId: "a", Token: token(2)}, fsm.ErrStaleToken)
	})
	t.Run("054_there_and_back_before_the_old_run_has_ended", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("x")
		l.member("a", "b")
		plan := l.planner("b")
		l.plan(plan, "x=i-a")
		l.plan(plan, "x=i-b")
		l.plan(plan, "x=i-a")
		equalLines(t, "rows", l.rows(), []string{"x transferring i-a token=2 by=planner to=i-a"})
		l.done(&fsm.Release{Key: "g/x", SessionId: "a", Token: token(2)})
		equalLines(t, "rows", l.rows(), []string{"x active i-a token=3 last=i-a,moved"})
	})
	t.Run("055_the_successor_starts_in_the_entry_of_the_release_and_no_earlier", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("x")
		l.member("a", "b")
		plan := l.planner("b")
		l.plan(plan, "x=i-a")
		l.plan(plan, "x=i-b")
		for range l.state.View().SessionLeases("b") {
			if row := l.row("x"); row != "transferring i-a token=2 by=planner to=i-b" {
				t.Errorf("got %q", row)
			}
		}
		// It knows what is to come.
		var coming []string
		for lease := range l.state.View().Successions("b") {
			coming = append(coming, lease.Key)
		}
		equalLines(t, "coming", coming, []string{"g/x"})
		l.done(&fsm.Release{Key: "g/x", SessionId: "a", Token: token(2)})
		if row := l.row("x"); row != "active i-b token=3 last=i-a,moved" {
			t.Errorf("got %q", row)
		}
	})
	t.Run("056_a_crashed_owner_unblocks_its_successor_at_once", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("x")
		l.member("a", "b")
		plan := l.planner("b")
		l.plan(plan, "x=i-a")
		l.plan(plan, "x=i-b")
		l.done(&fsm.CloseSession{SessionId: "a", Reason: fsm.CloseCrashed})
		equalLines(t, "rows", l.rows(), []string{"x active i-b token=3 last=i-a,crashed"})
	})
	t.Run("062_one_member_that_leaves_takes_no_other_along", func(t *testing.T) {
		// Two coordinators of one process: its instance stays, and the other group.
		l := newGroupLog(t)
		l.open("a")
		for _, g := range []string{"g", "h"} {
			l.done(&fsm.JoinGroup{Group: g, SessionId: "a", CatalogHash: l.catalog("x"), Embedded: true, Settings: &fsm.GroupSettings{}})
		}
		equalLines(t, "groups", mustInstance(t, l.state.View(), "i-a").Groups(), []string{"g", "h"})
		l.done(&fsm.LeaveGroup{Group: "g", SessionId: "a"})
		l.unchanged(&fsm.LeaveGroup{Group: "g", SessionId: "a"})
		equalLines(t, "groups", mustInstance(t, l.state.View(), "i-a").Groups(), []string{"h"})
		if h, _ := l.state.View().Group("h"); h.MemberCount() != 1 || h.Inputs != 1 {
			t.Errorf("got %+v", *h.GroupHead)
		}
	})
	t.Run("063_a_draining_instance_finishes_and_gets_nothing_new", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("x", "y", "z")
		l.member("a", "b")
		plan := l.planner("b")
		l.plan(plan, "x=i-a", "y=i-a")
		l.done(&fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkDrain})
		l.plan(plan, "x=i-b", "y=i-a", "z=i-a")
		equalLines(t, "rows", l.rows(), []string{"x transferring i-a token=2 by=planner to=i-b", "y active i-a token=3", "z inactive"})
		if l.group().CanRun("i-a", "z") || !l.group().CanRun("i-b", "z") {
			t.Error("CanRun says otherwise")
		}
	})
	t.Run("064_each_workload_has_one_owner", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("w1", "w2", "w3")
		l.member("a", "b", "c")
		plan := l.planner("a")
		// Three plans that contradict each other, in one entry.
		p := &fsm.Proposal{}
		for i := range 3 {
			ids := []string{"i-a", "i-b", "i-c"}
			p.Commands = append(p.Commands, fsm.NewCommand(l.planOp(plan, "w1="+ids[i], "w2="+ids[(i+1)%3], "w3="+ids[i])))
		}
		l.batch(p)
		equalLines(t, "rows", l.rows(), []string{
			"w1 transferring i-a token=2 by=planner to=i-c",
			"w2 transferring i-b token=3 by=planner to=i-a",
			"w3 transferring i-a token=4 by=planner to=i-c",
		})
	})
	t.Run("072_the_life_of_a_status", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("x")
		l.member("a", "b")
		plan := l.planner("b")
		status := func(want string) {
			t.Helper()
			if w, _ := l.group().Workload("x"); w.Status.String() != want {
				t.Errorf("got %v, want %s", w.Status, want)
			}
		}
		status("inactive")
		l.plan(plan, "x=i-a")
		status("active")
		l.done(&fsm.SetPause{Group: "g", Workload: "x", Paused: true})
		status("transferring")
		l.done(&fsm.RecordStuck{Key: "g/x", Token: token(2), SessionId: "a"})
		status("stuck")
		l.done(&fsm.Release{Key: "g/x", SessionId: "a", Token: token(2)})
		status("paused")
		l.done(&fsm.SetPause{Group: "g", Workload: "x"})
		status("inactive")
		l.plan(plan, "x=i-a")
		l.done(&fsm.Release{Key: "g/x", SessionId: "a", Token: token(3), Failure: "no disk"})
		status("failed")
		l.plan(plan, "x=i-b")
		status("active")
		l.done(&fsm.Revoke{Key: "g/x", Token: token(4)})
		status("transferring")
		l.done(&fsm.ExpireSession{SessionId: "b", Term: 1})
		status("failed") // until a run goes well
	})
	t.Run("073_what_nobody_wants_has_no_status", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("x")
		if _, ok := l.group().Workload("y"); ok {
			t.Error("an unknown key has a status")
		}
		l.put()
		if _, ok := l.group().Workload("x"); ok || l.group().WantedCount() != 0 {
			t.Error("a key that was withdrawn has a status")
		}
		if _, ok := l.state.View().Group("h"); ok {
			t.Error("an unknown group is there")
		}
	})
	t.Run("075_the_list_is_the_same_from_everywhere", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("c", "a")
		l.open("a")
		l.done(&fsm.JoinGroup{Group: "g", SessionId: "a", CatalogHash: l.catalog("b", "c"), Embedded: true})
		want := []string{"a inactive", "b inactive", "c inactive"}
		equalLines(t, "rows", l.rows(), want)
		l.state = reload(t, l.state)
		equalLines(t, "restored", l.rows(), want)
	})
	t.Run("077_a_job_has_a_total_that_everybody_sees", func(t *testing.T) {
		l := newGroupLog(t)
		l.open("a")
		l.done(&fsm.Acquire{Key: "tick", SessionId: "a"})
		for want := uint64(1); want <= 3; want++ {
			l.stamp += second
			if r := l.done(&fsm.RecordJob{Key: "tick", Token: token(1)}); r.Total != want {
				t.Errorf("total %d, want %d", r.Total, want)
			}
		}
		v := reload(t, l.state).View()
		job, ok := v.Job("tick")
		if !ok || job.Total != 3 || job.Owner.InstanceID != "i-a" || job.LastAt != l.stamp {
			t.Errorf("got %+v", job)
		}
		if _, ok := v.Job("tock"); ok {
			t.Error("an unknown job has a record")
		}
		l.done(&fsm.Release{Key: "tick", SessionId: "a", Token: token(1)})
		l.refused(&fsm.RecordJob{Key: "tick", Token: token(1)}, fsm.ErrStaleToken)
	})
}

// unchangedButPlan applies a plan that changes nothing but that it was made.
func (l *logbook) unchangedButPlan(op *fsm.PlanGroup) {
	l.t.Helper()
	before := l.rows()
	if r := l.done(op); r.Total != 0 || len(l.last.Events) != 0 {
		l.t.Errorf("%d changes, events %v", r.Total, l.events())
	}
	equalLines(l.t, "rows", l.rows(), before)
}

func groupScenarios(t *testing.T) {
	t.Run("B-35_a_move_to_one_that_goes_away_goes_elsewhere", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("x")
		l.member("a", "b", "c")
		plan := l.planner("c")
		l.plan(plan, "x=i-a")
		l.plan(plan, "x=i-b")
		// The target leaves half-way; then the owner releases.
		l.done(&fsm.MarkInstance{InstanceId: "i-b", Mark: fsm.MarkDrain})
		l.plan(plan, "x=i-c")
		l.done(&fsm.CloseSession{SessionId: "b", Reason: fsm.CloseCrashed})
		l.done(&fsm.Release{Key: "g/x", SessionId: "a", Token: token(2)})
		equalLines(t, "rows", l.rows(), []string{"x active i-c token=3 last=i-a,moved"})
	})
	t.Run("B-35_nothing_goes_to_one_that_drains", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("x")
		l.member("a", "b")
		plan := l.planner("a")
		l.plan(plan, "x=i-a")
		l.plan(plan, "x=i-b")
		for _, id := range []string{"i-a", "i-b"} {
			l.done(&fsm.MarkInstance{InstanceId: id, Mark: fsm.MarkDrain})
		}
		l.done(&fsm.Release{Key: "g/x", SessionId: "a", Token: token(2)})
		equalLines(t, "rows", l.rows(), []string{"x inactive last=i-a,moved"})
	})
	t.Run("B-69_death_and_freedom_are_one_entry", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("x", "y")
		l.member("a", "b")
		plan := l.planner("b")
		l.plan(plan, "x=i-a", "y=i-a")
		inputs := l.group().Inputs
		l.done(&fsm.ExpireSession{SessionId: "a", Term: 1})
		equalLines(t, "rows", l.rows(), []string{"x inactive last=i-a,expired", "y inactive last=i-a,expired"})
		if l.group().Inputs != inputs+1 {
			t.Errorf("inputs %d, want %d", l.group().Inputs, inputs+1)
		}
	})
	t.Run("B-71_a_run_whose_owner_is_gone_is_closed", func(t *testing.T) {
		for _, end := range []string{"expired", "crashed", "closed", "restarted", "revoked", "released", "moved"} {
			t.Run(end, func(t *testing.T) {
				l := newGroupLog(t)
				l.open("a")
				l.open("b")
				l.done(&fsm.Acquire{Key: "k", SessionId: "a", LockDelayMs: 1000})
				l.done(&fsm.Acquire{Key: "k", SessionId: "b", Wait: true})
				l.done(&fsm.RecordJob{Key: "j", LeaseKey: "k", Token: token(1), Outcome: "started"})
				release := &fsm.Release{Key: "k", SessionId: "a", Token: token(1)}
				switch end {
				case "expired":
					l.done(&fsm.ExpireSession{SessionId: "a", Term: 1})
				case "crashed":
					l.done(&fsm.CloseSession{SessionId: "a", Reason: fsm.CloseCrashed})
				case "closed":
					l.done(&fsm.CloseSession{SessionId: "a", Reason: fsm.CloseClosed})
				case "restarted":
					next := openNode("a")
					next.SessionId, next.Boot, next.RestartProved = "a2", 2, true
					l.done(next)
				case "revoked":
					l.done(&fsm.Revoke{Key: "k", Token: token(1)})
					l.done(&fsm.FreeRevoked{Key: "k", Token: token(1), Term: 1})
				case "released":
					l.done(release)
				case "moved":
					l.done(&fsm.Transfer{Key: "k", Token: token(1), ToInstance: "i-b"})
					l.done(release)
				}
				if !slices.Contains(l.events(), `job.recorded j token=1 instance=i-a node=n-a reason="lost" number=1`) {
					t.Errorf("not lost: %q", l.events())
				}
				l.refused(&fsm.RecordJob{Key: "j", LeaseKey: "k", Token: token(1), Outcome: "ok"}, fsm.ErrStaleToken)
				// The next tick runs.
				if end != "expired" && end != "revoked" { // a lock delay keeps the key
					if r := l.done(&fsm.RecordJob{Key: "j", LeaseKey: "k", Token: token(2), Outcome: "started"}); r.Total != 2 {
						t.Errorf("total %d", r.Total)
					}
				}
			})
		}
	})
	t.Run("B-95_a_release_wakes_one_of_500", func(t *testing.T) {
		l := newGroupLog(t)
		l.put("x")
		for i := range 20 {
			l.member(fmt.Sprint("s", i))
		}
		plan := l.planner("s0")
		l.plan(plan, "x=i-s1")
		l.plan(plan, "x=i-s2")
		l.done(&fsm.Release{Key: "g/x", SessionId: "s1", Token: token(2)})
		equalLines(t, "events", l.events(), []string{
			"lease.ended g/x token=2 instance=i-s1 node=n-s1 moved to=i-s2 by=planner",
			"lease.granted g/x token=3 instance=i-s2 node=n-s2",
			"workload.moved g/x token=3 instance=i-s2 node=n-s2 by=planner",
		})
	})
}
