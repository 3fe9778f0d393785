package coord_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

var stopRows = []row{
	{name: "059_shutdown_waits_for_all_at_once_and_is_bounded", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		took := make([]time.Duration, 10)
		var start time.Time
		for n := range took {
			r := coord.NewRunner(a, fmt.Sprintf("k%d", n), func(ctx context.Context, _ *coord.Lease) error {
				<-ctx.Done()
				switch n {
				case 0:
					return errWork
				case 1:
					panic("while stopping")
				}
				time.Sleep(time.Duration(n) * 400 * time.Millisecond) // within the kill timeout
				return nil
			})
			all.Go(func() {
				equal(t, r.Run(ctx), nil, "Run")
				took[n] = time.Since(start)
			})
		}
		synctest.Wait()
		start = time.Now()
		cancel()
		all.Wait()
		for n, d := range took {
			want := 30 * time.Second
			if n > 1 {
				want += time.Duration(n) * 400 * time.Millisecond
			}
			equal(t, d, want, fmt.Sprintf("runner %d took", n))
		}
		equal(t, w.View().LeaseCount(), 0, "leases left")

		// Under hold a stuck run is waited for, and that is said.
		release := make(chan struct{})
		var tr trace
		ra := run(t, coord.NewRunner(a, "stuck", func(context.Context, *coord.Lease) error { <-release; return nil }, traced(&tr)))
		synctest.Wait()
		ra.cancel()
		time.Sleep(10 * time.Minute)
		equal(t, ra.over(), false, "Run is over")
		equal(t, ra.r.Status().State, coord.StateStuck, "state")
		equal(t, holder(w, "stuck"), "a:1:coordtest", "holder")
		if n := tr.count("stuck: lost=false"); n != 10 {
			t.Errorf("told %d times in ten minutes", n)
		}
		close(release)
		equal(t, ra.stop(), nil, "Run")
		equal(t, w.View().LeaseCount(), 0, "leases left")
	}},
	{name: "060_a_run_is_outstanding_until_its_lease_is_released", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var did trace
		a.Fault(func(op coordtest.Op) coordtest.Fault {
			if coordtest.Kind(op) == "Release" {
				did.add("%d outstanding", len(a.Runs()))
			}
			return coordtest.None
		})
		good := run(t, coord.NewRunner(a, "good", untilDone))
		bad := run(t, coord.NewRunner(a, "bad", func(ctx context.Context, _ *coord.Lease) error { <-ctx.Done(); panic("while stopping") }))
		synctest.Wait()
		a.Leave()
		equal(t, good.stop(), nil, "Run")
		equal(t, bad.stop(), nil, "Run")
		equal(t, len(did.all()), 2, "releases")
		equal(t, did.count("0 outstanding"), 0, "releases after the node was told that all had returned")
		equal(t, len(a.Runs())+a.Claims(), 0, "runs and claims left")
	}},
	{name: "061_the_session_is_renewed_while_runs_drain", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		release := make(chan struct{})
		ra := run(t, coord.NewRunner(a, "k", func(context.Context, *coord.Lease) error { <-release; return nil }))
		synctest.Wait()
		a.Leave()
		time.Sleep(time.Hour)
		equal(t, holder(w, "k"), "a:1:coordtest", "holder after an hour of leaving")
		close(release)
		equal(t, ra.stop(), nil, "Run")
	}},
	{name: "078_a_drainable_is_made_for_each_run", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var did trace
		j := &job{tr: &did}
		ra := run(t, coord.NewRunner(a, "k", j.run, j.option, func(c *coord.RunnerConfig) { c.Drain.Resume = true }))
		for range 3 {
			synctest.Wait()
			equal(t, ra.r.Status().State, coord.StateRunning, "state")
			if err := w.Drain(a.InstanceID()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			equal(t, ra.r.Status().State, coord.StateSuspended, "state")
			equal(t, holder(w, "k"), "", "holder")
			if err := w.Undrain(a.InstanceID()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		equal(t, did.count("RequestDrain"), 3, "drains")
		equal(t, did.count("finished"), 3, "ends")
		equal(t, ra.r.Status().Runs, 4, "runs")
		equal(t, ra.stop(), nil, "Run")
	}},
	{name: "079_several_runners_coexist_and_missing_parts_fail_early", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var o observer
		// Two of one key in one process exclude each other as strangers do.
		one := run(t, coord.NewRunner(a, "k", noted(&o, "one")))
		two := run(t, coord.NewRunner(a, "k", noted(&o, "two")))
		other := run(t, coord.NewRunner(a, "other", noted(&o, "a")))
		synctest.Wait()
		equal(t, len(o.of("k")), 1, "runs of k")
		equal(t, len(o.of("other")), 1, "runs of other")
		first, second := one, two
		if o.of("k")[0].who == "two" {
			first, second = two, one
		}
		equal(t, first.stop(), nil, "Run")
		synctest.Wait()
		equal(t, len(o.of("k")), 2, "runs of k")
		equal(t, second.stop(), nil, "Run")
		equal(t, other.stop(), nil, "Run")
		o.check(t)

		r := coord.NewRunner(nil, "", nil)
		err := r.Run(t.Context())
		wantErr(t, err, fsm.ErrInvalidArgument)
		for _, part := range []string{"key is empty", "the cluster is nil", "the function is nil"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in %v", part, err)
			}
		}
		running := coord.NewRunner(a, "k", untilDone)
		rb := run(t, running)
		synctest.Wait()
		wantErr(t, running.Run(t.Context()), coord.ErrRunning)
		equal(t, rb.stop(), nil, "Run")
	}},
	{name: "080_a_runner_needs_nothing_beside_its_node", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var o observer
		ra := run(t, coord.NewRunner(a, "k", noted(&o, "a")))
		time.Sleep(time.Hour)
		equal(t, len(o.of("k")), 1, "runs in an hour: the node renews")
		equal(t, ra.stop(), nil, "Run")
	}},
	{name: "082_any_cluster_will_do", test: func(t *testing.T, w *coordtest.World) {
		// The package is used here without a node; that it imports none is held
		// by the test of the import directions.
		var c coord.Cluster = struct{ *coordtest.Instance }{w.Join("a")}
		l, err := coord.Acquire(t.Context(), c, "k")
		if err != nil {
			t.Fatal(err)
		}
		equal(t, l.Release(t.Context()), nil, "release")
	}},
}
