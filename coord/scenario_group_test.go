package coord_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

var groupScenarios = []row{
	{name: "B-15_a_new_owner_starts_after_the_old_one_has_stopped", timing: bench, test: scaleOut},
	{name: "B-35_two_that_stop_together_don't_block_each_other", timing: bench, test: twoLeave},
	{name: "B-43_the_planner_outlives_bursts_of_changes", timing: bench, test: burstsOfChanges},
	{name: "B-69_nothing_stays_without_an_owner", timing: bench, test: noOrphans},
	{name: "B-71_a_run_whose_owner_died_is_closed_as_lost", timing: bench, test: lostRun},
	{name: "B-95_a_release_wakes_one", timing: bench, test: oneWakes},
	{name: "B-97_plans_are_as_rare_as_the_cool-down", timing: bench, test: loadReports},
}

func scaleOut(t *testing.T, w *coordtest.World) {
	m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(20)})
	m.work = func(ctx context.Context, _ string, _ coord.Workload, l *coord.Lease) error {
		<-ctx.Done()
		time.Sleep(time.Duration(l.Token()*97%900) * time.Millisecond) // it takes its time to stop
		return nil
	}
	m.join("a")
	m.join("b")
	settle()
	m.join("c")
	time.Sleep(time.Minute)
	equal(t, m.watch.count(), "a 7, b 7, c 6", "runs")
	for _, x := range many(20) {
		runs := m.watch.of("g/" + x.Key)
		for n := range runs[1:] {
			if gap := runs[n+1].start.Sub(runs[n].end); gap < 0 || gap > 50*time.Millisecond {
				t.Errorf("%s: next run %v after the stop of the one before", x.Key, gap)
			}
		}
	}
	m.watch.check(t)
}

func twoLeave(t *testing.T, w *coordtest.World) {
	m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(100), Rebalance: coord.RebalanceGraceful})
	m.work = finishing(2 * time.Second)
	a, b := m.join("a"), m.join("b")
	m.join("c")
	d := m.join("d")
	settle()
	equal(t, m.watch.count(), "a 25, b 25, c 25, d 25", "runs")
	start := time.Now()
	a.Leave()
	time.Sleep(100 * time.Millisecond)
	b.Leave()
	time.Sleep(time.Second)
	m.crash(d) // the target of half of the moves, half-way
	<-a.done
	<-b.done
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("a and b have left after %v", d)
	}
	time.Sleep(10 * time.Second)
	equal(t, m.watch.count(), "c 100", "runs")
	for _, x := range many(100) {
		for _, r := range m.watch.of("g/" + x.Key) {
			if (r.who == "a" || r.who == "b") && !r.start.Before(start) {
				t.Errorf("%s was begun on %s, which was leaving", x.Key, r.who)
			}
		}
	}
	equal(t, len(a.Runs())+len(b.Runs())+a.Claims()+b.Claims(), 0, "runs and claims left")
	m.watch.check(t)
}

// burstsOfChanges has members come and go faster than those who are told of it
// can take it in: the loop that plans goes on, and there is one of them.
func burstsOfChanges(t *testing.T, w *coordtest.World) {
	slow := func(c *coord.CoordinatorConfig) {
		c.Hooks = func(coord.Workload) coord.Hooks {
			return coord.Hooks{
				Acquired: func(*coord.Lease) { time.Sleep(5 * time.Second) },
				Started:  func(*coord.Lease, int) { time.Sleep(5 * time.Second) },
				Returned: func(*coord.Lease, error, time.Duration) { time.Sleep(5 * time.Second) },
			}
		}
	}
	m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(6)}, slow)
	m.work = func(ctx context.Context, _ string, _ coord.Workload, l *coord.Lease) error {
		select {
		case <-ctx.Done():
		case <-l.Draining():
		}
		return nil
	}
	a, b := m.join("a"), m.join("b")
	settle()
	wake, stop := a.Watch(fsm.AllTopic) // one that watches everything, and sleeps
	ctx, cancel := context.WithCancel(t.Context())
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		defer stop()
		for ctx.Err() == nil {
			select {
			case <-wake:
				time.Sleep(5 * time.Second)
			case <-ctx.Done():
			}
		}
	}()
	leading := func() (n int) {
		for _, x := range []*mate{a, b} {
			if x.co.Status().Planner.Leading {
				n++
			}
		}
		return n
	}
	var keys []string
	for _, x := range many(6) {
		keys = append(keys, x.Key)
	}
	hash := putCatalog(t, w, keys...)
	before := a.co.Status().Planner.Plans + b.co.Status().Planner.Plans
	for n := range 500 / scale {
		session := fmt.Sprintf("%032x", n+1000)
		do(t, w, &fsm.OpenSession{SessionId: session, TtlMs: 60_000, Name: "passer-by", InstanceId: fmt.Sprint("passer-by-", n)})
		do(t, w, &fsm.JoinGroup{Group: "g", SessionId: session, CatalogHash: hash})
		time.Sleep(50 * time.Millisecond)
		do(t, w, &fsm.CloseSession{SessionId: session, Reason: fsm.CloseClosed})
		time.Sleep(time.Duration(n%7) * 30 * time.Millisecond)
		synctest.Wait()
		if leading() != 1 {
			t.Fatalf("after %d changes %d plan", 2*(n+1), leading())
		}
	}
	time.Sleep(time.Minute)
	equal(t, leading(), 1, "planners")
	if plans := a.co.Status().Planner.Plans + b.co.Status().Planner.Plans; plans <= before {
		t.Error("nothing was planned: the test shows little")
	}
	equal(t, m.watch.count(), "a 3, b 3", "runs")
	// And it still acts.
	c := m.join("c")
	time.Sleep(time.Minute)
	equal(t, m.watch.count(), "a 2, b 2, c 2", "runs with a third")
	m.crash(c)
	time.Sleep(time.Minute)
	equal(t, m.watch.count(), "a 3, b 3", "runs without it")
	cancel()
	<-watching
	m.watch.check(t)
}

// noOrphans kills the planner at every moment of taking over from another that
// died: whatever was planned or not, nothing stays without an owner.
func noOrphans(t *testing.T, w *coordtest.World) {
	m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(12)})
	var mates []*mate
	for i := range 6 {
		mates = append(mates, m.join(fmt.Sprintf("i%d", i)))
	}
	settle()
	for n := range 4 {
		m.crash(mates[n])
		time.Sleep(5999*time.Millisecond + time.Duration(n)*time.Millisecond/2)
	}
	time.Sleep(7 * time.Second)
	equal(t, m.watch.count(), "i4 6, i5 6", "runs")
	// Nor does one that a partition, a late answer or a lost release left behind.
	mates[4].Cut()
	time.Sleep(6 * time.Second)
	synctest.Wait()
	equal(t, m.watch.count(), "i5 12", "runs of the one that is left")
	mates[4].Heal()
	time.Sleep(time.Minute)
	equal(t, m.watch.count(), "i4 6, i5 6", "runs")
	m.watch.check(t)
}

func lostRun(t *testing.T, w *coordtest.World) {
	m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("tick")})
	var all []*coordtest.Instance
	m.work = func(ctx context.Context, who string, _ coord.Workload, l *coord.Lease) error {
		for _, i := range all {
			if i.InstanceID() != who+":1:coordtest" {
				continue
			}
			if _, err := coord.Record(ctx, i, coord.Execution{Lease: l, Outcome: coord.OutcomeStarted}); err != nil {
				t.Error(err)
			}
		}
		<-ctx.Done()
		return nil
	}
	a, b := w.Join("a"), w.Join("b")
	all = append(all, a, b)
	ma := m.coordinate(a, "a", m.group)
	m.coordinate(b, "b", m.group)
	settle()
	equal(t, m.watch.running(), "a: tick", "who runs it")
	m.crash(ma)
	time.Sleep(10 * time.Second)
	equal(t, m.watch.running(), "b: tick", "who runs it then")
	j, ok := b.View().Job("g/tick")
	if !ok {
		t.Fatal("no record")
	}
	var lines []string
	for r := range j.Recent() {
		lines = append(lines, fmt.Sprint(r.Who.InstanceID, " ", r.Outcome, " ", r.EndedAt != 0))
	}
	equalLines(t, lines, "a:1:coordtest lost true", "b:1:coordtest started false")
	equal(t, j.Total, 2, "total")
}

func oneWakes(t *testing.T, w *coordtest.World) {
	a := w.Join("a")
	group := coord.Group{Name: "g", Workloads: works("w1"), Assigner: coord.Primary{}}
	m := newTeam(t, w, group)
	m.coordinate(a, "a", group)
	mates := make([]*mate, 50)
	for i := range mates {
		mates[i] = m.join(fmt.Sprintf("i%02d", i))
	}
	settle()
	entries := w.Entries()
	x, _ := w.View().Lease("g/w1")
	do(t, w, &fsm.MoveWorkload{Group: "g", Workload: "w1", ToInstance: mates[7].InstanceID(), By: "op"})
	settle()
	equal(t, m.watch.running(), "i07: w1", "who runs it")
	equal(t, w.Entries()-entries, 2, "entries: the move, the release")
	l, _ := w.View().Lease("g/w1")
	equal(t, l.Token > x.Token, true, "token grows")
}

func loadReports(t *testing.T, w *coordtest.World) {
	m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(40), Assigner: coord.Sticky{DeadBand: 0.2}})
	put := func(n int) {
		var specs []fsm.Spec
		for i, x := range many(40) {
			specs = append(specs, fsm.Spec{Key: x.Key, Weight: 10 + float64((i*7+n*3)%5)/10}) // a few hundredths up and down
		}
		hash, parts, err := fsm.NewCatalog(specs)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parts {
			do(t, w, p)
		}
		do(t, w, &fsm.PutGroup{Group: "g", Settings: &fsm.GroupSettings{}, CatalogHash: hash, By: "meter"})
	}
	put(0)
	m.join("a")
	m.join("b")
	settle()
	start, since := time.Now(), w.View().Revision()
	for n := range 10_000 / scale { // for ten seconds
		put(n)
		time.Sleep(scale * time.Millisecond)
	}
	equal(t, begun(&m.watch, start), 0, "runs begun: nothing moves inside the dead band")
	if n := plans(t, w, since); n > 11 {
		t.Errorf("%d plans in ten seconds", n)
	}
}
