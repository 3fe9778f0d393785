package coord_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
)

var errWork = errors.New("the work failed")

// traced sets the hooks of tr.
func traced(tr *trace, more ...func(*coord.RunnerConfig)) func(*coord.RunnerConfig) {
	return func(c *coord.RunnerConfig) {
		c.Hooks = tr.hooks()
		for _, m := range more {
			m(c)
		}
	}
}

var runnerRows = []row{
	{name: "024_refused_the_lease_it_never_runs", test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		l, _ := coord.Acquire(t.Context(), a, "k", coord.Try())
		var o observer
		rb := run(t, coord.NewRunner(b, "k", noted(&o, "b")))
		time.Sleep(time.Hour)
		equal(t, len(o.of("k")), 0, "runs")
		equal(t, rb.r.Status().State, coord.StateWaiting, "state")
		equal(t, b.Calls("Acquire"), 1, "acquires sent: it queues and does not poll")
		equal(t, rb.stop(), nil, "Run")
		equal(t, l.Release(t.Context()), nil, "release")
		synctest.Wait()
		equal(t, holder(w, "k"), "", "holder")
	}},
	{name: "025_runs_only_after_a_grant", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		w.LoseQuorum()
		var tr trace
		ra := run(t, coord.NewRunner(a, "k", untilDone, traced(&tr)))
		time.Sleep(3 * time.Second)
		equal(t, len(tr.all()), 0, "things told without a quorum")
		w.RestoreQuorum()
		synctest.Wait()
		equalLines(t, tr.all(), "acquired", "started 1")
		equal(t, ra.stop(), nil, "Run")
	}},
	{name: "026_the_lease_is_renewed_while_it_runs", test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		var o observer
		ra := run(t, coord.NewRunner(a, "k", noted(&o, "a")))
		rb := run(t, coord.NewRunner(b, "k", noted(&o, "b")))
		time.Sleep(time.Hour)
		equal(t, len(o.of("k")), 1, "runs in an hour of 360 TTLs")
		equal(t, ra.stop(), nil, "Run")
		equal(t, rb.stop(), nil, "Run")
		o.check(t)
	}},
	{name: "027_loss_cancels_the_run_and_the_runner_wins_again", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var o observer
		var tr trace
		ra := run(t, coord.NewRunner(a, "k", noted(&o, "a"), traced(&tr)))
		synctest.Wait()
		a.Cut()
		time.Sleep(20 * time.Second)
		equalLines(t, tr.all(), "acquired", "started 1", "stopping: lease lost", "lost: lease lost", "returned: lease lost",
			"released: no_quorum: no leader was reached in time")
		a.Heal()
		time.Sleep(10 * time.Second)
		equal(t, tr.count("started 2"), 1, "second run")
		runs := o.of("k")
		if runs[1].token <= runs[0].token {
			t.Errorf("tokens %d then %d", runs[0].token, runs[1].token)
		}
		equal(t, ra.stop(), nil, "Run")
		o.check(t)
	}},
	{name: "037_a_nil_return_keeps_the_lease_and_runs_again", test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		var starts []time.Time
		var tokens []uint64
		ra := run(t, coord.NewRunner(a, "k", func(ctx context.Context, l *coord.Lease) error {
			starts, tokens = append(starts, time.Now()), append(tokens, l.Token())
			time.Sleep(time.Second)
			return nil
		}))
		synctest.Wait()
		var o observer
		rb := run(t, coord.NewRunner(b, "k", noted(&o, "b")))
		time.Sleep(10*time.Second + time.Millisecond)
		equal(t, rb.stop(), nil, "Run of b")
		equal(t, ra.stop(), nil, "Run of a")
		equal(t, len(starts), 4, "runs") // each takes 1 s, then rests 2 s
		for n := range starts[1:] {
			equal(t, starts[n+1].Sub(starts[n]), 3*time.Second, "time between runs")
			equal(t, tokens[n+1], tokens[0], "token of a run under the same grant")
		}
		equal(t, len(o.of("k")), 0, "runs elsewhere")
		equal(t, a.Calls("Acquire"), 1, "acquires sent")
	}},
	{name: "038_restart_policies", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		steady := func(c *coord.RunnerConfig) {
			c.Backoff = coord.Backoff{Initial: time.Second, Jitter: -1, Max: 4 * time.Second}
		}
		fails := func(n *int, of int) coord.Func {
			return func(context.Context, *coord.Lease) error {
				if *n++; *n > of {
					return nil
				}
				return errWork
			}
		}

		n, start := 0, time.Now()
		rn := coord.NewRunner(a, "on_failure", fails(&n, 4), steady, func(c *coord.RunnerConfig) { c.Restart = coord.RestartOnFailure })
		equal(t, rn.Run(t.Context()), nil, "Run of on_failure")
		equal(t, n, 5, "runs of on_failure")
		at(t, start, (1+2+4+4)*time.Second, "on_failure ended")

		n, start = 0, time.Now()
		rn = coord.NewRunner(a, "never", fails(&n, 1), steady, func(c *coord.RunnerConfig) { c.Restart = coord.RestartNever })
		err := rn.Run(t.Context())
		wantErr(t, err, errWork)
		equal(t, err.Error(), `run of "never" failed: the work failed`, "error")
		at(t, start, 0, "never ended")
		equal(t, rn.Run(t.Context()), nil, "second Run of never")
		equal(t, n, 2, "runs of never")

		n, start = 0, time.Now()
		rn = coord.NewRunner(a, "capped", fails(&n, 100), steady, func(c *coord.RunnerConfig) { c.MaxFailures = 3 })
		err = rn.Run(t.Context())
		wantErr(t, err, errWork)
		equal(t, err.Error(), `run of "capped" failed 3 times in a row, the last time with: the work failed`, "error")
		at(t, start, 3*time.Second, "capped ended")
		equal(t, w.View().LeaseCount(), 0, "leases left")
	}},
	{name: "039_an_error_hands_over_at_once_and_yields", test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		var o observer
		broken := make(chan struct{})
		ra := run(t, coord.NewRunner(a, "k", func(_ context.Context, l *coord.Lease) error {
			defer o.enter("a", l)()
			<-broken
			return errWork
		}))
		synctest.Wait()
		rb := run(t, coord.NewRunner(b, "k", noted(&o, "b")))
		synctest.Wait()
		start := time.Now()
		close(broken)
		synctest.Wait()
		at(t, start, 0, "b runs")
		equal(t, len(o.of("k")), 2, "runs")
		equal(t, o.of("k")[1].who, "b", "successor")
		equal(t, ra.r.Status().State, coord.StateBackingOff, "state of a")
		time.Sleep(2 * time.Second)
		equal(t, ra.r.Status().State, coord.StateWaiting, "state of a after its back-off")
		equal(t, rb.stop(), nil, "Run")
		equal(t, ra.stop(), nil, "Run")
		o.check(t)
	}},
	{name: "040_a_panic_is_an_error", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		never := func(c *coord.RunnerConfig) { c.Restart = coord.RestartNever }
		err := coord.NewRunner(a, "k", func(context.Context, *coord.Lease) error { panic("boom") }, never).Run(t.Context())
		p, ok := errors.AsType[*coord.PanicError](err)
		if !ok || p.Value != "boom" || len(p.Stack) == 0 {
			t.Errorf("got %#v", err)
		}
		err = coord.NewRunner(a, "k", func(context.Context, *coord.Lease) error { panic(errWork) }, never).Run(t.Context())
		wantErr(t, err, errWork)
		err = coord.NewRunner(a, "k", func(context.Context, *coord.Lease) error { runtime.Goexit(); return nil }, never).Run(t.Context())
		wantErr(t, err, coord.ErrGoexit)
		equal(t, w.View().LeaseCount(), 0, "leases left")
		equal(t, len(a.Runs())+a.Claims(), 0, "runs and claims left")
	}},
	{name: "041_a_failing_workload_touches_no_other", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var o observer
		good := run(t, coord.NewRunner(a, "good", noted(&o, "a")))
		bad := run(t, coord.NewRunner(a, "bad", func(context.Context, *coord.Lease) error { panic("boom") }))
		time.Sleep(time.Hour)
		equal(t, len(o.of("good")), 1, "runs of the good one")
		equal(t, o.of("good")[0].end.IsZero(), true, "still running")
		if n := bad.r.Status().Runs; n < 60 {
			t.Errorf("the bad one was tried %d times in an hour", n)
		}
		equal(t, bad.stop(), nil, "Run")
		equal(t, good.stop(), nil, "Run")
	}},
	{name: "042_a_store_error_never_stops_a_run_that_is_trusted", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var o observer
		ra := run(t, coord.NewRunner(a, "k", noted(&o, "a")))
		synctest.Wait()
		for range 20 { // outages just short of the trust window, the keep-alive right after each
			w.LoseQuorum()
			time.Sleep(5 * time.Second)
			w.RestoreQuorum()
			time.Sleep(3 * time.Second)
		}
		equal(t, len(o.of("k")), 1, "runs")
		equal(t, o.of("k")[0].end.IsZero(), true, "still running")
		lost := time.Now()
		w.LoseQuorum()
		for o.of("k")[0].end.IsZero() {
			time.Sleep(100 * time.Millisecond)
		}
		if d := time.Since(lost); d < 6*time.Second || d > 8*time.Second+100*time.Millisecond {
			t.Errorf("stopped %v after the quorum was lost, want T-M-S less at most a renew interval", d)
		}
		w.RestoreQuorum()
		time.Sleep(15 * time.Second)
		equal(t, len(o.of("k")), 2, "runs once there is a quorum again")
		equal(t, ra.stop(), nil, "Run")
		o.check(t)
	}},
	{name: "043_a_failing_hook_stops_nothing", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var runs atomic.Int64
		ra := run(t, coord.NewRunner(a, "k", func(ctx context.Context, _ *coord.Lease) error {
			runs.Add(1)
			<-ctx.Done()
			return nil
		}, func(c *coord.RunnerConfig) {
			c.Hooks.Acquired = func(*coord.Lease) { panic("a hook") }
			c.Hooks.Started = func(*coord.Lease, int) { time.Sleep(time.Minute) }
			c.Hooks.Returned = func(*coord.Lease, error, time.Duration) { panic("another") }
		}))
		time.Sleep(time.Second)
		equal(t, runs.Load(), 1, "runs")
		a.Cut() // a hook that hangs must not keep the run from being stopped
		time.Sleep(8 * time.Second)
		if len(a.Runs()) != 0 && !a.Runs()[0].Stopping {
			t.Error("the run was not told to stop")
		}
		a.Heal()
		equal(t, ra.stop(), nil, "Run")
		equal(t, w.View().LeaseCount(), 0, "leases left")
	}},
	{name: "044_what_hinders_the_queueing_is_tried_again", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		tries := 0
		a.Fault(func(coordtest.Op) coordtest.Fault {
			tries++
			if tries <= 5 {
				return []coordtest.Fault{coordtest.Refuse, coordtest.Doubt, coordtest.DoubtDone}[tries%3]
			}
			return coordtest.None
		})
		var o observer
		ra := run(t, coord.NewRunner(a, "k", noted(&o, "a")))
		time.Sleep(10 * time.Second)
		equal(t, len(o.of("k")), 1, "runs")
		equal(t, ra.stop(), nil, "Run")
		o.check(t)
		time.Sleep(2 * time.Second)
		equal(t, w.View().LeaseCount(), 0, "leases left")
	}},
	{name: "046_failing_while_the_lease_is_lost_still_releases", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		ra := run(t, coord.NewRunner(a, "k", func(ctx context.Context, _ *coord.Lease) error {
			<-ctx.Done()
			panic("while stopping")
		}))
		synctest.Wait()
		if err := w.Revoke("k"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		equal(t, a.Calls("Release"), 1, "releases")
		equal(t, ra.stop(), nil, "Run")
	}},
}
