package coord_test

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
)

// drainable tells of its drain.
type drainable struct {
	tr    *trace
	panic bool
	asked chan struct{}
}

func (d *drainable) RequestDrain() {
	d.tr.add("RequestDrain")
	close(d.asked)
	if d.panic {
		panic("RequestDrain")
	}
}

// job is work that ends a while after it was asked to.
type job struct {
	tr    *trace
	takes time.Duration
	now   *drainable
}

func (j *job) option(c *coord.RunnerConfig) {
	c.Drain.Drainable = func() coord.Drainable {
		j.now = &drainable{tr: j.tr, asked: make(chan struct{})}
		return j.now
	}
}

func (j *job) run(ctx context.Context, _ *coord.Lease) error {
	select {
	case <-j.now.asked:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-time.After(j.takes):
		j.tr.add("finished")
		return nil
	case <-ctx.Done():
		j.tr.add("cancelled: %v", context.Cause(ctx))
		return context.Cause(ctx)
	}
}

var drainRows = []row{
	{name: "028_stop_lets_the_run_finish_and_renews_meanwhile", test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		var tr, did trace // hooks run beside the work, in an order of their own
		j := &job{tr: &did, takes: 25 * time.Second}
		ra := run(t, coord.NewRunner(a, "k", j.run, traced(&tr, j.option)))
		synctest.Wait()
		start := time.Now()
		ra.cancel()
		time.Sleep(24 * time.Second) // more than two TTLs
		equal(t, ra.over(), false, "Run is over")
		equal(t, holder(w, "k"), "a:1:coordtest", "holder")
		equal(t, ra.r.Status().State, coord.StateDraining, "state")
		l, err := coord.Acquire(t.Context(), b, "k")
		if err != nil {
			t.Fatal(err)
		}
		at(t, start, 25*time.Second, "granted to b")
		equal(t, ra.stop(), nil, "Run")
		equal(t, a.Calls("Release"), 1, "releases")
		equalLines(t, tr.all(), "acquired", "started 1", "stopping: shut down", "returned: <nil>", "released: <nil>", "stopped: <nil>")
		equalLines(t, did.all(), "RequestDrain", "finished")
		equal(t, l.Release(t.Context()), nil, "release")
	}},
	{name: "029_a_run_that_ignores_the_drain_is_cancelled_at_the_timeout", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var tr trace
		ra := run(t, coord.NewRunner(a, "k", untilDone, traced(&tr)))
		synctest.Wait()
		start := time.Now()
		equal(t, ra.stop(), nil, "Run")
		at(t, start, 30*time.Second, "Run returned")
		equal(t, a.Calls("Release"), 1, "releases")
		equalLines(t, tr.all(), "acquired", "started 1", "stopping: shut down", "returned: shut down", "released: <nil>", "stopped: <nil>")
	}},
	{name: "030_RequestDrain_once_before_any_cancel", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var tr trace
		j := &job{tr: &tr, takes: time.Hour}
		ra := run(t, coord.NewRunner(a, "k", j.run, j.option))
		synctest.Wait()
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		a.Leave() // told three times over
		equal(t, ra.stop(), nil, "Run")
		equalLines(t, tr.all(), "RequestDrain", "cancelled: instance drained")
	}},
	{name: "031_on_a_draining_instance_nothing_is_acquired", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		var tr trace
		r := coord.NewRunner(a, "k", untilDone, traced(&tr))
		equal(t, r.Run(t.Context()), nil, "Run")
		equalLines(t, tr.all(), "stopped: <nil>")
		equal(t, a.Calls("Acquire"), 0, "acquires sent")
	}},
	{name: "032_drain_while_waiting_ends_the_runner_without_a_run", test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		l, _ := coord.Acquire(t.Context(), a, "k", coord.Try())
		var tr trace
		rb := run(t, coord.NewRunner(b, "k", untilDone, traced(&tr)))
		synctest.Wait()
		if err := w.Drain(b.InstanceID()); err != nil {
			t.Fatal(err)
		}
		equal(t, rb.over(), true, "Run is over")
		equal(t, rb.err, nil, "Run")
		equalLines(t, tr.all(), "stopped: <nil>")
		equal(t, w.View().WaiterCount("k"), 0, "waiters")
		equal(t, l.Release(t.Context()), nil, "release")
		equal(t, holder(w, "k"), "", "holder")
	}},
	{name: "033_an_outside_drain_is_noticed_at_once", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var tr, did trace
		j := &job{tr: &did}
		ra := run(t, coord.NewRunner(a, "k", j.run, traced(&tr, j.option)))
		synctest.Wait()
		start := time.Now()
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		equal(t, ra.over(), true, "Run is over")
		at(t, start, 0, "Run returned")
		equalLines(t, tr.all(), "acquired", "started 1", "stopping: instance drained", "returned: <nil>", "released: <nil>", "stopped: <nil>")
		equalLines(t, did.all(), "RequestDrain", "finished")
	}},
	{name: "034_loss_during_a_drain_cancels_and_ends_the_runner", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var tr, did trace
		j := &job{tr: &did, takes: time.Hour}
		ra := run(t, coord.NewRunner(a, "k", j.run, traced(&tr, j.option)))
		synctest.Wait()
		start := time.Now()
		ra.cancel()
		synctest.Wait()
		a.Cut()
		<-ra.done
		at(t, start, 9*time.Second, "Run returned") // told at 8 s; a second for a release that can't be
		equalLines(t, tr.all(), "acquired", "started 1", "stopping: shut down", "lost: lease lost",
			"returned: lease lost", "released: no_quorum: no leader was reached in time", "stopped: <nil>")
		equalLines(t, did.all(), "RequestDrain", "cancelled: lease lost")
	}},
	{name: "035_order_at_stop", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var tr, did trace
		a.Fault(func(op coordtest.Op) coordtest.Fault {
			if coordtest.Kind(op) == "Release" {
				did.add("release sent, %d run outstanding", len(a.Runs()))
			}
			return coordtest.None
		})
		ra := run(t, coord.NewRunner(a, "k", func(ctx context.Context, _ *coord.Lease) error {
			defer did.add("work is over")
			<-ctx.Done()
			return nil
		}, traced(&tr, func(c *coord.RunnerConfig) { c.Drain.Timeout = time.Second })))
		synctest.Wait()
		equal(t, ra.stop(), nil, "Run")
		equalLines(t, tr.all()[2:], "stopping: shut down", "returned: <nil>", "released: <nil>", "stopped: <nil>")
		equalLines(t, did.all(), "work is over", "release sent, 1 run outstanding")
		equal(t, len(a.Runs()), 0, "runs outstanding")
	}},
	{name: "036_the_release_is_not_cancelled_by_the_shutdown", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		ra := run(t, coord.NewRunner(a, "k", func(ctx context.Context, _ *coord.Lease) error { <-ctx.Done(); return nil },
			func(c *coord.RunnerConfig) { c.Drain.Timeout = 100 * time.Millisecond }))
		synctest.Wait()
		a.Leave()
		w.LoseQuorum() // the release must outlast this
		time.AfterFunc(3*time.Second, w.RestoreQuorum)
		start := time.Now()
		equal(t, ra.stop(), nil, "Run")
		at(t, start, 3*time.Second, "Run returned")
		equal(t, holder(w, "k"), "", "holder")
	}},
	{name: "045_a_panicking_RequestDrain_skips_nothing", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var tr, did trace
		ra := run(t, coord.NewRunner(a, "k", untilDone, traced(&tr, func(c *coord.RunnerConfig) {
			c.Drain.Drainable = func() coord.Drainable {
				return &drainable{tr: &did, panic: true, asked: make(chan struct{})}
			}
		})))
		synctest.Wait()
		start := time.Now()
		equal(t, ra.stop(), nil, "Run")
		at(t, start, 30*time.Second, "Run returned")
		equalLines(t, tr.all()[2:], "stopping: shut down", "returned: shut down", "released: <nil>", "stopped: <nil>")
		equalLines(t, did.all(), "RequestDrain")
	}},
	{name: "047_drain_time_is_monotonic", test: func(t *testing.T, _ *coordtest.World) {
		// Timers and differences of time.Now are monotonic; what could make them
		// otherwise is stripping the reading or going through wall-clock numbers.
		source := regexp.MustCompile(`^[a-z]+\.go$`)
		bad := regexp.MustCompile(`\.(Round|Truncate|UTC|Local|Unix\w*)\(|time\.(Unix|Date|Parse)`)
		files, err := os.ReadDir(".")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if source.MatchString(f.Name()) {
				src, err := os.ReadFile(f.Name())
				if err != nil {
					t.Fatal(err)
				}
				if m := bad.Find(bytes.ReplaceAll(src, []byte("math.Round"), nil)); m != nil {
					t.Errorf("%s uses %s", f.Name(), m)
				}
			}
		}
	}},
}
