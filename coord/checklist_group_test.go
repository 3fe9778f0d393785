package coord_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

var groupRows = []row{
	{name: "048_each_change_is_followed_at_once", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2"), Assigner: coord.Primary{}})
		start := time.Now()
		a := m.join("a")
		await(func() bool { return m.starts("w2") == 1 })
		at(t, start, coord.DefaultSettle, "the first runs begin")
		m.join("b")
		settle()
		start = time.Now()
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		equal(t, statusOf(w, "g", "w1"), "transferring", "status, no tick later")
		at(t, start, 0, "asked to move")
	}},
	{name: "049_one_run_each_and_what_runs_is_left_alone", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(9)})
		m.join("a")
		settle()
		m.join("b")
		m.join("c")
		time.Sleep(time.Minute)
		equal(t, m.watch.count(), "a 3, b 3, c 3", "runs")
		moved := 0
		for _, x := range many(9) {
			moved += m.starts(x.Key) - 1
		}
		equal(t, moved, 6, "runs begun anew")
		m.watch.check(t)
	}},
	{name: "050_rebalance_cancels_at_once", test: func(t *testing.T, w *coordtest.World) {
		var cause atomic.Value
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2")})
		m.work = func(ctx context.Context, who string, _ coord.Workload, l *coord.Lease) error {
			<-ctx.Done()
			if who == "a" {
				cause.Store(context.Cause(ctx))
			}
			return nil
		}
		a := m.join("a")
		settle()
		start := time.Now()
		m.join("b")
		await(func() bool { return m.watch.count() == "a 1, b 1" })
		at(t, start, coord.DefaultSettle, "moved")
		wantErr(t, cause.Load().(error), coord.ErrMoved)
		equal(t, a.Draining(), false, "a drains")
	}},
	{name: "050_rebalance_gracefully_lets_finish", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2"), Rebalance: coord.RebalanceGraceful})
		m.work = finishing(20 * time.Second)
		a := m.join("a")
		settle()
		m.join("b")
		time.Sleep(19 * time.Second)
		equal(t, m.watch.count(), "a 2", "runs while it finishes")
		time.Sleep(2 * time.Second)
		equal(t, m.watch.count(), "a 1, b 1", "runs after it has")
		equal(t, a.Draining(), false, "a drains")
		m.watch.check(t)
	}},
	{name: "051_what_leaves_a_draining_instance_is_left_to_finish", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2"), Rebalance: coord.RebalanceImmediate})
		m.work = finishing(20 * time.Second)
		a := m.join("a")
		settle()
		m.join("b")
		time.Sleep(time.Minute)
		equal(t, m.watch.count(), "a 1, b 1", "runs")
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(19 * time.Second)
		equal(t, m.watch.count(), "a 1, b 1", "runs while it finishes")
		time.Sleep(2 * time.Second)
		equal(t, m.watch.count(), "b 2", "runs after it has")
		equal(t, len(a.Runs())+a.Claims(), 0, "runs and claims left with a")
		m.watch.check(t)
	}},
	{name: "052_a_stuck_run_blocks_nothing_else", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(8), MaxMoves: 8})
		released := make(chan struct{})
		m.work = func(ctx context.Context, who string, x coord.Workload, _ *coord.Lease) error {
			<-ctx.Done()
			if who == "a" {
				<-released
			}
			return nil
		}
		a := m.join("a")
		settle()
		m.join("b")
		time.Sleep(time.Minute)
		equal(t, m.watch.count(), "a 8", "runs, four of which don't return")
		if _, err := a.Session(t.Context()); err != nil {
			t.Error(err)
		}
		stuck := 0
		for x := range group(t, w, "g").Workloads("") {
			if x.Status == fsm.StatusStuck {
				stuck++
				if x.Lease.Stuck.Detail == "" {
					t.Error("no stack of a stuck run")
				}
			}
		}
		equal(t, stuck, 4, "stuck everywhere")
		close(released)
		synctest.Wait()
		equal(t, m.watch.count(), "a 4, b 4", "runs")
		m.watch.check(t)
	}},
	{name: "053_a_moved_workload_is_not_restarted_where_it_was", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2")})
		m.join("a")
		settle()
		m.join("b")
		time.Sleep(time.Hour)
		var who []string
		for _, k := range []string{"g/w1", "g/w2"} {
			for _, r := range m.watch.of(k) {
				who = append(who, r.who)
			}
		}
		slices.Sort(who)
		equalLines(t, who, "a", "a", "b")
	}},
	{name: "054_there_and_back_before_the_run_ended_runs_once_more", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1"), Rebalance: coord.RebalanceGraceful})
		m.work = finishing(10 * time.Second)
		a := m.join("a")
		settle()
		b := m.join("b")
		settle()
		token := m.watch.of("g/w1")[0].token
		do(t, w, &fsm.MoveWorkload{Group: "g", Workload: "w1", ToInstance: b.InstanceID(), By: "op"})
		time.Sleep(time.Second)
		equal(t, statusOf(w, "g", "w1"), "transferring", "status")
		do(t, w, &fsm.MoveWorkload{Group: "g", Workload: "w1", ToInstance: a.InstanceID(), By: "op"})
		time.Sleep(time.Minute)
		runs := m.watch.of("g/w1")
		equal(t, len(runs), 2, "runs")
		equal(t, runs[1].who, "a", "where")
		equal(t, runs[1].token > token, true, "the second has a larger token")
		equal(t, runs[1].end.IsZero(), true, "it runs")
		equal(t, b.Calls("Release"), 0, "releases by b")
		m.watch.check(t)
	}},
	{name: "055_nobody_starts_what_still_runs_elsewhere", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1"), Assigner: coord.Primary{}})
		m.work = finishing(7 * time.Second)
		a := m.join("a")
		settle()
		b := m.join("b")
		settle()
		start := time.Now()
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second)
		equal(t, m.watch.running(), "a: w1", "who runs it")
		l, _ := w.View().Lease("g/w1")
		equal(t, l.Note.To, b.InstanceID(), "successor")
		await(func() bool { return m.starts("w1") == 2 })
		at(t, start, 7*time.Second, "followed")
		m.watch.check(t)
	}},
	{name: "056_an_owner_that_dies_while_it_hands_over_blocks_nothing", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1"), Assigner: coord.Primary{}})
		m.work = finishing(time.Hour)
		a := m.join("a")
		settle()
		m.join("b")
		settle()
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		start := time.Now()
		m.crash(a)
		await(func() bool { return m.starts("w1") == 2 })
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("followed after %v", d)
		}
		m.watch.check(t)
	}},
	{name: "057_a_copy_that_lags_never_causes_a_second_run", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(10), MaxMoves: 10})
		a, b := m.join("a"), m.join("b")
		settle()
		b.Lag(3 * time.Second)
		for range 5 {
			for _, do := range []func(string) error{w.Drain, w.Undrain} {
				if err := do(a.InstanceID()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(1500 * time.Millisecond)
			}
		}
		b.Lag(0)
		time.Sleep(time.Minute)
		equal(t, m.watch.count(), "a 5, b 5", "runs")
		m.watch.check(t)
	}},
	{name: "058_a_host_that_stops_is_marked_draining_before_anything_stops", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(6)})
		var marked atomic.Int64
		m.work = func(ctx context.Context, who string, _ coord.Workload, l *coord.Lease) error {
			<-l.Draining()
			time.Sleep(time.Second)
			if s, ok := w.View().Instance("a:1:coordtest"); ok && s.Draining() && who == "a" {
				marked.Add(1)
			}
			return nil
		}
		a := m.join("a")
		m.join("b")
		settle()
		a.Leave()
		<-a.done
		equal(t, marked.Load(), 3, "runs that ended on an instance marked draining")
		synctest.Wait()
		equal(t, m.watch.count(), "b 6", "runs")
	}},
	{name: "062_two_coordinators_share_a_node", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "balanced", Workloads: many(4), Assigner: coord.Balanced{}})
		primary := coord.Group{Name: "primary", Workloads: works("p1", "p2"), Assigner: coord.Primary{}}
		a, b := m.join("a"), m.join("b")
		a2 := m.coordinate(a.Instance, "a", primary)
		b2 := m.coordinate(b.Instance, "b", primary)
		settle()
		equal(t, m.watch.running(), "a: p1 p2 w00000 w00001 | b: w00002 w00003", "runs")
		again, err := coord.NewCoordinator(a.Instance, primary, func(context.Context, coord.Workload, *coord.Lease) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, again.Run(t.Context()), fsm.ErrWrongState)

		equal(t, a.leave(), nil, "Run")
		settle()
		equal(t, m.watch.running(), "a: p1 p2 | b: w00000 w00001 w00002 w00003", "runs without a's first coordinator")
		if _, there := w.View().Instance(a.InstanceID()); !there {
			t.Error("a is gone")
		}
		equal(t, a2.leave(), nil, "Run")
		settle()
		equal(t, m.watch.running(), "b: p1 p2 w00000 w00001 w00002 w00003", "runs without a")
		equal(t, b2.leave(), nil, "Run")
		m.watch.check(t)
	}},
	{name: "063_a_draining_instance_is_taken_over_with_no_second_owner", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(30), Rebalance: coord.RebalanceGraceful})
		m.work = func(ctx context.Context, who string, x coord.Workload, l *coord.Lease) error {
			return finishing(time.Duration(len(m.watch.of(l.Key()))*137%3000)*time.Millisecond)(ctx, who, x, l)
		}
		a := m.join("a")
		m.join("b")
		m.join("c")
		settle()
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		for range 300 { // 15 s in steps of 50 ms
			time.Sleep(50 * time.Millisecond)
		}
		equal(t, m.watch.count(), "b 15, c 15", "runs")
		m.watch.check(t)
	}},
	{name: "064_each_workload_converges_to_one_owner", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(7)})
		m.join("a")
		m.join("b")
		settle()
		equal(t, m.watch.count(), "a 4, b 3", "runs")
		for _, x := range many(7) {
			equal(t, m.starts(x.Key), 1, "runs of "+x.Key)
		}
	}},
	{name: "065_slow_work_stays_until_it_ends_and_no_other_moves", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2"), Rebalance: coord.RebalanceGraceful})
		m.work = finishing(3 * time.Second)
		m.join("a")
		settle()
		m.join("b")
		time.Sleep(1500 * time.Millisecond)
		equal(t, m.watch.count(), "a 2", "runs after 1.5 s")
		time.Sleep(5 * time.Second)
		equal(t, m.watch.count(), "a 1, b 1", "runs later")
		equal(t, m.starts("w1")+m.starts("w2"), 3, "runs in all")
	}},
	{name: "071_a_function_assigns", test: func(t *testing.T, w *coordtest.World) {
		last := coord.AssignerFunc(func(p coord.Problem) coord.Assignment {
			a := make(coord.Assignment, len(p.Workloads))
			order := p.JoinOrder()
			for x := range a {
				a[x] = order[len(order)-1]
			}
			return a
		})
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(3), Assigner: last, MaxMoves: 3})
		m.join("a")
		settle()
		equal(t, m.watch.count(), "a 3", "runs")
		m.join("b")
		settle()
		equal(t, m.watch.count(), "b 3", "runs: the last to join has all")
		equal(t, group(t, w, "g").Settings.Assigner, "custom", "assigner")
	}},
	{name: "072_active_transferring_inactive", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1")})
		m.work = finishing(5 * time.Second)
		a := m.join("a")
		settle()
		time.Sleep(time.Hour)
		equal(t, statusOf(w, "g", "w1"), "active", "status after an hour")
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		do(t, w, &fsm.SetPause{Group: "g", Workload: "w1", Paused: true, By: "op"})
		time.Sleep(time.Second)
		equal(t, statusOf(w, "g", "w1"), "transferring", "status while it finishes")
		time.Sleep(5 * time.Second)
		equal(t, statusOf(w, "g", "w1"), "paused", "status")
		do(t, w, &fsm.SetPause{Group: "g", Workload: "w1", By: "op"})
		settle()
		equal(t, statusOf(w, "g", "w1"), "inactive", "status: there is nobody for it")
	}},
	{name: "073_unknown_keys_are_absent_and_the_dead_own_nothing", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1")})
		do(t, w, &fsm.PutGroup{Group: "g", Settings: &fsm.GroupSettings{}, CatalogHash: putCatalog(t, w, "w1"), By: "op"})
		a := m.join("a")
		settle()
		equal(t, statusOf(w, "g", "other"), "absent", "status of an unknown key")
		m.crash(a)
		time.Sleep(11 * time.Second)
		equal(t, statusOf(w, "g", "w1"), "inactive", "status after its owner died")
		equal(t, holder(w, "g/w1"), "", "owner")
	}},
	{name: "074_since_when_survives_changes_and_begins_anew_with_a_grant", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1"), Assigner: coord.Primary{}, Rebalance: coord.RebalanceGraceful})
		m.work = finishing(5 * time.Second)
		a := m.join("a")
		settle()
		m.join("b")
		settle()
		before, _ := w.View().Lease("g/w1")
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		l, _ := w.View().Lease("g/w1")
		equal(t, l.AcquiredAt, before.AcquiredAt, "since when, while it moves")
		settle()
		l, _ = w.View().Lease("g/w1")
		equal(t, l.AcquiredAt > before.AcquiredAt, true, "a new beginning under the next owner")
	}},
	{name: "075_every_instance_lists_all_workloads_alike", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(5)})
		a, b := m.join("a"), m.join("b")
		settle()
		list := func(v *fsm.View) (lines []string) {
			g, _ := v.Group("g")
			for x := range g.Workloads("") {
				lines = append(lines, fmt.Sprint(x.Key, " ", x.Status, " ", x.Lease.Who.InstanceID))
			}
			return lines
		}
		equal(t, len(list(a.View())), 5, "workloads")
		equalLines(t, list(a.View()), list(b.View())...)
	}},
	{name: "076_who_never_owned_changes_no_status", test: func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1"), Assigner: coord.Primary{}})
		m.join("a")
		settle()
		before, _ := w.View().Lease("g/w1")
		b := m.join("b")
		settle()
		equal(t, b.leave(), nil, "Run")
		l, _ := w.View().Lease("g/w1")
		equal(t, fmt.Sprint(l.Token, l.State, l.Who.InstanceID, l.ChangedRevision), fmt.Sprint(before.Token, before.State, before.Who.InstanceID, before.ChangedRevision), "the lease")
		equal(t, statusOf(w, "g", "w1"), "active", "status")
	}},
	{name: "077_job_records", test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		for n := range 3 {
			total, err := coord.Record(t.Context(), []coord.Cluster{a, b}[n%2], coord.Execution{Key: "tick"})
			if err != nil {
				t.Fatal(err)
			}
			equal(t, total, uint64(n+1), "total")
		}
		for _, v := range []*fsm.View{a.View(), b.View()} {
			j, ok := v.Job("tick")
			if !ok {
				t.Fatal("no record")
			}
			equal(t, j.Total, 3, "total")
			equal(t, j.Owner.InstanceID, a.InstanceID(), "owner")
		}
		if _, ok := a.View().Job("never"); ok {
			t.Error("a record of what was never run")
		}
		l, err := coord.Acquire(t.Context(), a, "k")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := coord.Record(t.Context(), a, coord.Execution{Lease: l, Outcome: "sent", Detail: "12 mails"}); err != nil {
			t.Fatal(err)
		}
		equal(t, l.Release(t.Context()), nil, "release")
		_, err = coord.Record(t.Context(), a, coord.Execution{Lease: l})
		wantErr(t, err, fsm.ErrStaleToken)
		j, _ := b.View().Job("k")
		equal(t, j.Total, 1, "total of what ran under a lease")
	}},
	{name: "078_a_drainable_for_each_run", test: func(t *testing.T, w *coordtest.World) {
		var tr trace
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1"), Assigner: coord.Primary{}, Rebalance: coord.RebalanceGraceful},
			func(c *coord.CoordinatorConfig) {
				c.Drainable = func(coord.Workload) coord.Drainable {
					tr.add("new")
					return &drainable{tr: &tr, asked: make(chan struct{})}
				}
			})
		m.work = finishing(0)
		a := m.join("a")
		b := m.join("b")
		settle()
		for _, to := range []*mate{b, a} {
			do(t, w, &fsm.MoveWorkload{Group: "g", Workload: "w1", ToInstance: to.InstanceID(), By: "op"})
			settle()
		}
		equal(t, m.watch.running(), "a: w1", "it came back and runs")
		equal(t, tr.count("new"), 3, "drainables made")
		equal(t, tr.count("RequestDrain"), 2, "drains asked")
	}},
}
