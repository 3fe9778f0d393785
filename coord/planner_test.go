package coord_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// plans counts the plans in the events from some entry on.
func plans(t *testing.T, w *coordtest.World, since uint64) (n int) {
	t.Helper()
	events, whole := w.View().Events(fsm.AfterRevision(since))
	if !whole {
		t.Fatal("events are missing")
	}
	for e := range events {
		if e.Type == fsm.EventGroupPlanned {
			n++
		}
	}
	return n
}

// planning sets how groups are planned.
func planning(p coord.Planning) func(*coord.CoordinatorConfig) {
	return func(c *coord.CoordinatorConfig) { c.Planning = p }
}

// pinOf pins a workload.
func pinOf(workload, instance string) *fsm.SetPin {
	return &fsm.SetPin{Group: "g", Workload: workload, InstanceId: instance, By: "op", Reason: "big disk"}
}

// planningOf is who plans for the group, and its status there.
func planningOf(mates ...*mate) (who string, s coord.PlannerStatus) {
	for _, a := range mates {
		if st := a.co.Status().Planner; st.Leading {
			who, s = a.name, st
		}
	}
	return who, s
}

// Ensures that a fleet of three has ten thousand workloads running within a few
// entries of the log.
func TestPlanner_TenThousand(t *testing.T) {
	if testing.Short() && scale > 1 {
		t.Skip("ten thousand workloads under the race detector take long; make sim runs it without")
	}
	bubble(t, coordtest.Timing{Latency: time.Millisecond}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(10_000)})
		start, entries := time.Now(), w.Entries()
		var mates []*mate
		for _, name := range []string{"a", "b", "c"} {
			mates = append(mates, m.join(name))
		}
		for m.watch.count() != "a 3334, b 3333, c 3333" {
			time.Sleep(50 * time.Millisecond)
			if time.Since(start) > 10*time.Second {
				t.Fatalf("running after %v: %s", time.Since(start), m.watch.count())
			}
		}
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("all run after %v", d)
		}
		if n := w.Entries() - entries; n > 100 {
			t.Errorf("it took %d entries", n)
		} else {
			t.Logf("all run after %v (%v of them settling), %d entries", time.Since(start), coord.DefaultSettle, n)
		}
		entries = w.Entries()
		time.Sleep(10 * time.Minute)
		equal(t, w.Entries()-entries, 0, "entries while nothing changes")
		for _, a := range mates {
			a.stop()
		}
		for _, a := range mates {
			<-a.done
		}
		equal(t, w.View().LeaseCount(), 0, "leases left")
		m.watch.check(t)
	})
}

// Ensures that a large fleet costs nothing while nothing changes.
func TestPlanner_IdleFleet(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(1000), MaxMoves: 1000})
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			m.join(name)
		}
		settle()
		clients := make([]*coordtest.Client, 195)
		for i := range clients {
			clients[i] = w.Client(fmt.Sprintf("client%03d", i))
			do(t, w, &fsm.JoinGroup{Group: "g", SessionId: clients[i].SessionID(), All: true})
		}
		time.Sleep(time.Minute)
		for _, c := range clients {
			if n := len(c.Leases()); n != 5 {
				t.Errorf("%s has %d workloads", c.InstanceID(), n)
			}
		}
		entries := w.Entries()
		time.Sleep(10 * time.Minute)
		equal(t, w.Entries()-entries, 0, "entries in ten minutes")
	})
}

// Ensures that the death of one of ten costs a session's TTL and touches nobody
// else's work.
func TestPlanner_CrashOfOneOfTen(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(100)})
		var mates []*mate
		for i := range 10 {
			mates = append(mates, m.join(fmt.Sprintf("i%d", i)))
		}
		time.Sleep(time.Minute)
		start := time.Now()
		m.crash(mates[0]) // the first: it plans, too
		await(func() bool { return !strings.Contains(m.watch.count(), "i0") && total(&m.watch) == 100 })
		if d := time.Since(start); d < 8*time.Second || d > 10*time.Second {
			t.Errorf("all run after %v, want T and no more", d)
		}
		equal(t, begun(&m.watch, start), 10, "runs begun since")
		m.watch.check(t)
	})
}

// total is how many runs there are now.
func total(o *observer) (n int) {
	for _, keys := range o.byOwner() {
		n += len(keys)
	}
	return n
}

// begun counts the runs that began at some time or later.
func begun(o *observer, since time.Time) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, runs := range o.runs {
		for _, r := range runs {
			if !r.start.Before(since) {
				n++
			}
		}
	}
	return n
}

// Ensures that balance is restored a few at a time, with a pause between, and
// that what must move does not wait for it.
func TestPlanner_MovesAreBounded(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(40), Rebalance: coord.RebalanceGraceful})
		m.work = finishing(3 * time.Second)
		a := m.join("a")
		settle()
		b := m.join("b")
		time.Sleep(2 * time.Second)
		equal(t, transferring(w), 4, "under way: a tenth")
		time.Sleep(3 * time.Second)
		equal(t, transferring(w), 4, "under way, after the first have moved")
		equal(t, m.watch.count(), "a 36, b 4", "runs")
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		equal(t, transferring(w), 36, "under way: all that leaves the draining one")
		settle()
		equal(t, m.watch.count(), "b 40", "runs")
		_ = b
		m.watch.check(t)
	})
}

func transferring(w *coordtest.World) (n int) {
	g, _ := w.View().Group("g")
	for x := range g.Workloads("") {
		if x.Status == fsm.StatusTransferring {
			n++
		}
	}
	return n
}

// Ensures that a successor gets ready while the owner goes on, and that the gap
// is none of it.
func TestPlanner_Prepare(t *testing.T) {
	var tr trace
	prepare := func(takes time.Duration, fails *atomic.Bool) func(*coord.CoordinatorConfig) {
		return func(c *coord.CoordinatorConfig) {
			c.Prepare = func(ctx context.Context, x coord.Workload) error {
				tr.add("prepare %s", x.Key)
				select {
				case <-time.After(takes):
				case <-ctx.Done():
					tr.add("given up %s", x.Key)
					return ctx.Err()
				}
				if fails != nil && fails.Load() {
					return errBroken
				}
				return nil
			}
		}
	}
	t.Run("well", func(t *testing.T) {
		bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
			m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1"), Assigner: coord.Primary{}}, prepare(2*time.Second, nil))
			a := m.join("a")
			b := m.join("b")
			settle()
			do(t, w, &fsm.MoveWorkload{Group: "g", Workload: "w1", ToInstance: b.InstanceID(), By: "op"})
			time.Sleep(1900 * time.Millisecond)
			equal(t, m.watch.running(), "a: w1", "who runs it while it is prepared")
			x, _ := group(t, w, "g").Workload("w1")
			equal(t, x.Preparing(), true, "preparing")
			equal(t, b.co.Status().Runs[0].State, coord.StatePreparing, "state at b")
			settle()
			runs := m.watch.of("g/w1")
			equal(t, runs[1].who, "b", "who runs it then")
			equal(t, runs[1].start.Sub(runs[0].end), 0, "gap")
			_ = a
			m.watch.check(t)
		})
	})
	t.Run("failing", func(t *testing.T) {
		bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
			var fails atomic.Bool
			m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(4), MaxMoves: 4}, prepare(0, &fails))
			m.join("a")
			settle()
			fails.Store(true)
			m.join("b")
			time.Sleep(30 * time.Second)
			equal(t, m.watch.count(), "a 4", "runs while nothing can be prepared")
			equal(t, total(&m.watch), 4, "runs")
			fails.Store(false)
			time.Sleep(5 * time.Minute)
			equal(t, m.watch.count(), "a 2, b 2", "runs once it can")
			m.watch.check(t)
		})
	})
	t.Run("taken back", func(t *testing.T) {
		bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
			m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1"), Assigner: coord.Primary{}}, prepare(time.Minute, nil))
			a := m.join("a")
			b := m.join("b")
			time.Sleep(2 * time.Minute)
			do(t, w, &fsm.MoveWorkload{Group: "g", Workload: "w1", ToInstance: b.InstanceID(), By: "op"})
			time.Sleep(time.Second)
			do(t, w, &fsm.MoveWorkload{Group: "g", Workload: "w1", ToInstance: a.InstanceID(), By: "op"})
			synctest.Wait()
			equal(t, tr.count("given up w1"), 1, "preparations given up")
			settle()
			equal(t, len(b.co.Status().Runs), 0, "posts left at b")
			equal(t, len(m.watch.of("g/w1")), 1, "runs")
			equal(t, statusOf(w, "g", "w1"), "active", "status")
		})
	})
	t.Run("forgotten", func(t *testing.T) {
		bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
			var tr trace
			m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1"), Assigner: coord.Primary{}}, prepare(0, nil))
			forget := func(name string) func(*coord.CoordinatorConfig) {
				return func(c *coord.CoordinatorConfig) {
					c.Forget = func(x coord.Workload) {
						tr.add("%s forgets %s, which it runs: %t", name, x.Key, strings.Contains(m.watch.running(), name+":"))
						panic("boom") // concerns nobody
					}
				}
			}
			a := m.joinWith("a", m.group, forget("a"))
			settle()
			b := m.joinWith("b", m.group, forget("b"))
			settle()
			equalLines(t, tr.all())
			_ = a.leave()
			settle()
			equalLines(t, tr.all(), "a forgets w1, which it runs: false")
			_ = b.leave()
			equalLines(t, tr.all(), "a forgets w1, which it runs: false", "b forgets w1, which it runs: false")
		})
	})
	t.Run("too slow", func(t *testing.T) {
		bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
			m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2"), MaxMoves: 2})
			m.joinWith("a", m.group)
			settle()
			m.joinWith("b", m.group, prepare(time.Hour, nil), func(c *coord.CoordinatorConfig) { c.PrepareTimeout = 10 * time.Second })
			time.Sleep(15 * time.Second)
			equal(t, m.watch.count(), "a 2", "runs")
			x, _ := group(t, w, "g").Workload("w1")
			if x.Failure == nil {
				x, _ = group(t, w, "g").Workload("w2")
			}
			equal(t, x.Failure.Error, "not ready within 10s", "failure")
		})
	})
}

// Ensures that a workload that fails is tried elsewhere at once, then less and
// less often, and that nobody else notices.
func TestPlanner_FailingWorkload(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(4)}, planning(coord.Planning{Backoff: coord.Backoff{Jitter: -1}}))
		var broken atomic.Bool
		broken.Store(true)
		m.work = func(ctx context.Context, _ string, x coord.Workload, _ *coord.Lease) error {
			if x.Key == "w00000" && broken.Load() {
				panic("boom")
			}
			<-ctx.Done()
			return nil
		}
		m.join("a")
		m.join("b")
		settle()
		runs := m.watch.of("g/w00000")
		equal(t, len(runs), 4, "tries in five seconds")
		equal(t, runs[1].who != runs[0].who, true, "the second try is elsewhere")
		equal(t, runs[1].start.Sub(runs[0].end) < 50*time.Millisecond, true, "and at once")
		if wait := runs[3].start.Sub(runs[2].end); wait < 2*time.Second || wait > 2100*time.Millisecond {
			t.Errorf("it waited %v before the fourth", wait)
		}
		equal(t, statusOf(w, "g", "w00000"), "failed", "status")
		x, _ := group(t, w, "g").Workload("w00000")
		equal(t, x.Failure.Error, "panic: boom", "failure")
		broken.Store(false)
		time.Sleep(time.Minute)
		equal(t, statusOf(w, "g", "w00000"), "active", "status once it runs")
		time.Sleep(2 * time.Minute)
		x, _ = group(t, w, "g").Workload("w00000")
		equal(t, x.Failure == nil, true, "the failure is forgotten")
		for _, y := range many(4)[1:] {
			equal(t, m.starts(y.Key), 1, "runs of "+y.Key)
		}
		m.watch.check(t)
	})
}

// Ensures that a workload that fails on all instances but one comes to that one,
// and that one that fails everywhere is tried everywhere again.
func TestPlanner_FailingInstances(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2", "w3", "w4")}, planning(coord.Planning{Backoff: coord.Backoff{Jitter: -1}}))
		var all atomic.Bool
		all.Store(true)
		m.work = func(ctx context.Context, who string, x coord.Workload, _ *coord.Lease) error {
			if x.Key == "w1" && (who != "d" || all.Load()) {
				return errBroken
			}
			<-ctx.Done()
			return nil
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			m.join(name)
		}
		time.Sleep(time.Minute)
		where := make(map[string]bool)
		runs := m.watch.of("g/w1")
		for _, r := range runs[:4] {
			where[r.who] = true
		}
		equal(t, len(where), 4, "instances of the first four tries")
		all.Store(false)
		time.Sleep(10 * time.Minute)
		equal(t, statusOf(w, "g", "w1"), "active", "status")
		tries := m.watch.of("g/w1")[len(runs):]
		equal(t, tries[len(tries)-1].who, "d", "where it runs")
		if len(tries) > 4 {
			t.Errorf("%d tries until it comes to the last instance", len(tries))
		}
	})
}

// Ensures that loads are even again after a failure has moved a workload, though
// nothing else has changed.
func TestPlanner_EvenAfterFailure(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2", "w3", "w4")}, planning(coord.Planning{Backoff: coord.Backoff{Jitter: -1}}))
		broken := make(chan struct{})
		m.work = func(ctx context.Context, who string, x coord.Workload, _ *coord.Lease) error {
			if x.Key == "w1" && who == "a" {
				<-broken
				return errBroken
			}
			<-ctx.Done()
			return nil
		}
		m.join("a")
		m.join("b")
		settle()
		equal(t, m.watch.running(), "a: w1 w3 | b: w2 w4", "runs")
		close(broken)
		settle()
		equal(t, m.watch.running(), "a: w3 w4 | b: w1 w2", "runs after w1 has failed on a")
		m.watch.check(t)
	})
}

// Ensures that pins and pauses do as they say, and end when they run out.
func TestPlanner_PinsAndPauses(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2", "w3", "w4")})
		a, b := m.join("a"), m.join("b")
		settle()
		equal(t, m.watch.running(), "a: w1 w3 | b: w2 w4", "runs")
		do(t, w, pinOf("w1", b.InstanceID()))
		settle()
		equal(t, m.watch.running(), "a: w3 w4 | b: w1 w2", "runs with a pin")
		do(t, w, &fsm.SetPause{Group: "g", Workload: "w1", Paused: true, By: "op", ExpiresInMs: 60_000})
		settle()
		equal(t, statusOf(w, "g", "w1"), "paused", "status")
		equal(t, slices.Contains(m.watch.byOwner()["b"], "w1"), false, "it runs")
		time.Sleep(time.Minute)
		equal(t, statusOf(w, "g", "w1"), "active", "status when the pause has run out")
		equal(t, slices.Contains(m.watch.byOwner()["b"], "w1"), true, "it runs where it is pinned to")
		m.crash(b)
		time.Sleep(15 * time.Second)
		equal(t, m.watch.running(), "a: w1 w2 w3 w4", "runs without b: better elsewhere than nowhere")
		_ = a
		m.watch.check(t)
	})
}

// Ensures that an instance that comes back gets its own back, where there is a
// grace for that, and that nothing else moves.
func TestPlanner_RestartGrace(t *testing.T) {
	for _, c := range []struct {
		name   string
		proved bool
		grace  time.Duration
		after  time.Duration
	}{
		{"its start proves the death", true, 0, 0},
		{"within the grace", false, 30 * time.Second, 15 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
				m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(9)}, planning(coord.Planning{RestartGrace: c.grace}))
				m.join("a")
				b := m.join("b")
				m.join("c")
				settle()
				equal(t, m.watch.count(), "a 3, b 3, c 3", "runs")
				had := m.watch.byOwner()["b"]
				m.crash(b)
				time.Sleep(c.after)
				start := time.Now()
				m.coordinate(w.Restart(b.Instance, c.proved), "b", m.group)
				time.Sleep(20 * time.Second)
				equalLines(t, m.watch.byOwner()["b"], had...)
				equal(t, begun(&m.watch, start), 3, "runs begun anew")
				m.watch.check(t)
			})
		})
	}
}

// Ensures that an assigner that panics or lies moves nothing, and is told of.
func TestPlanner_FaultyAssigner(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		var mode atomic.Value
		mode.Store("")
		faulty := coord.AssignerFunc(func(p coord.Problem) coord.Assignment {
			switch mode.Load() {
			case "panics":
				panic("boom")
			case "lies":
				return make(coord.Assignment, len(p.Workloads)-1)
			}
			return coord.Sticky{}.Assign(p)
		})
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(4), Assigner: faulty, MaxMoves: 4})
		a := m.join("a")
		settle()
		mode.Store("panics")
		b := m.join("b")
		settle()
		equal(t, m.watch.count(), "a 4", "runs: the last good plan")
		_, s := planningOf(a, b)
		equal(t, s.Error, "assigner coord.AssignerFunc panicked: boom", "error")
		e, err := b.co.Why("w00000")
		if err != nil {
			t.Fatal(err)
		}
		equal(t, e.Because[len(e.Because)-1], "the planner gives no new plan, so the last good one stays: assigner coord.AssignerFunc panicked: boom", "why")
		job, _ := w.View().Job(fsm.PlannerKey("g"))
		equal(t, job.Total, 1, "records of the fault, which are events, too")
		mode.Store("lies")
		time.Sleep(time.Minute)
		_, s = planningOf(a, b)
		equal(t, s.Error, "assigner coord.AssignerFunc answered for 3 workloads of 4", "error")
		equal(t, m.watch.count(), "a 4", "runs")
		mode.Store("")
		time.Sleep(time.Minute)
		equal(t, m.watch.count(), "a 2, b 2", "runs once it is mended")
		_, s = planningOf(a, b)
		equal(t, s.Error, "", "error")
	})
}

// Ensures that what an operator moved stays, until something changes.
func TestPlanner_LeavesAnOperatorsMoves(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2", "w3", "w4")})
		m.join("a")
		b := m.join("b")
		settle()
		do(t, w, &fsm.MoveWorkload{Group: "g", Workload: "w1", ToInstance: b.InstanceID(), By: "op"})
		time.Sleep(time.Hour)
		equal(t, m.watch.running(), "a: w3 | b: w1 w2 w4", "runs")
	})
}

// Ensures that instances with different catalogs get what they declared.
func TestPlanner_RollingDeploy(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("old", "w1", "w2")})
		next := settings(m.group, func(g *coord.Group) { g.Workloads = works("new", "w1", "w2") })
		a := m.join("a")
		settle()
		m.joinWith("b", next)
		time.Sleep(time.Minute)
		equal(t, m.watch.running(), "a: old w1 | b: new w2", "runs of both versions")
		equal(t, a.leave(), nil, "Run")
		m.joinWith("c", next)
		time.Sleep(time.Minute)
		equal(t, total(&m.watch), 3, "runs: nobody wants the old one")
		equal(t, statusOf(w, "g", "old"), "absent", "status")
		m.watch.check(t)
	})
}
