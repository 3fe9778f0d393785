package coord_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// waits returns work that says it ran and then ignores its context until hang
// is closed.
func hanging(o *observer, who string, hang <-chan struct{}) coord.Func {
	return func(_ context.Context, l *coord.Lease) error {
		defer o.enter(who, l)()
		<-hang
		return nil
	}
}

// Ensures that a revoke ends the run at once, with its cause, and that the
// Runner queues again behind the others.
func TestRunner_Revoke(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		var o observer
		var tr trace
		ra := run(t, coord.NewRunner(a, "k", noted(&o, "a"), traced(&tr)))
		synctest.Wait()
		rb := run(t, coord.NewRunner(b, "k", noted(&o, "b")))
		synctest.Wait()
		start := time.Now()
		if err := w.Revoke("k"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		at(t, start, 0, "handed over")
		equalLines(t, tr.all(), "acquired", "started 1", "stopping: lease revoked", "lost: lease revoked", "returned: lease revoked", "released: <nil>")
		equal(t, o.of("k")[1].who, "b", "successor")
		equal(t, ra.r.Status().State, coord.StateWaiting, "state of a")
		equal(t, ra.stop(), nil, "Run")
		equal(t, rb.stop(), nil, "Run")
		o.check(t)
	})
}

// Ensures that a run that ignores a revoke is made to stop before the leader
// frees the key, however late the copy hears of the revoke.
func TestRunner_RevokeIgnored(t *testing.T) {
	for _, lag := range []time.Duration{0, time.Second, 3 * time.Second, 6 * time.Second, 7900 * time.Millisecond} {
		for _, phase := range []time.Duration{0, 500 * time.Millisecond, 1999 * time.Millisecond} {
			t.Run(fmt.Sprintf("lag %v phase %v", lag, phase), func(t *testing.T) {
				bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
					a, b := w.Join("a"), w.Join("b")
					var o observer
					hang := make(chan struct{})
					var exited atomic.Int64
					var exitedAt time.Time
					ra := run(t, coord.NewRunner(a, "k", hanging(&o, "a", hang), func(c *coord.RunnerConfig) {
						c.Stuck.Exit = func(int) {
							if exited.Add(1) == 1 {
								exitedAt = time.Now()
								o.kill("a")
								a.Crash()
							}
						}
					}))
					synctest.Wait()
					rb := run(t, coord.NewRunner(b, "k", noted(&o, "b")))
					time.Sleep(20*time.Second + phase)
					a.Lag(lag)
					start := time.Now()
					if err := w.Revoke("k"); err != nil {
						t.Fatal(err)
					}
					time.Sleep(30 * time.Second)
					synctest.Wait()
					equal(t, exited.Load(), 1, "exits")
					runs := o.of("k")
					equal(t, len(runs), 2, "runs")
					equal(t, runs[1].start.Sub(start), 10*time.Second, "b started")
					if d := exitedAt.Sub(start); d > 9500*time.Millisecond {
						t.Errorf("exited %v after the revoke: less than half a margin before the key is freed", d)
					}
					if d := exitedAt.Sub(start.Add(lag)); lag < 2*time.Second && d < 3*time.Second {
						t.Errorf("exited %v after it heard of the revoke: too soon", d)
					}
					close(hang)
					equal(t, ra.stop(), nil, "Run")
					equal(t, rb.stop(), nil, "Run")
					o.check(t)
				})
			})
		}
	}
}

// Ensures that report keeps the process and says so, and that the slot of the
// key stays busy in it until the stuck run has returned.
func TestRunner_Report(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var tr trace
		hang := make(chan struct{})
		ra := run(t, coord.NewRunner(a, "k", func(context.Context, *coord.Lease) error { <-hang; return nil }, traced(&tr, func(c *coord.RunnerConfig) {
			c.Stuck.WhenLost = coord.PolicyReport
			c.Stuck.Exit = func(int) { t.Error("exit") }
		})))
		synctest.Wait()
		if err := w.Revoke("k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		equal(t, ra.r.Status().State, coord.StateStuck, "state")
		equal(t, holder(w, "k"), "", "holder")
		if n := tr.count("stuck: lost=true"); n == 0 {
			t.Error("not told")
		}
		_, err := coord.Acquire(t.Context(), a, "k", coord.Try())
		wantErr(t, err, fsm.ErrLeaseHeld)
		got := make(chan *coord.Lease, 1)
		go func() {
			l, err := coord.Acquire(t.Context(), a, "k")
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		time.Sleep(time.Minute)
		equal(t, len(got), 0, "acquires beside the stuck run")
		close(hang)
		l := <-got
		equal(t, l.Valid(), true, "valid")
		equal(t, l.Release(t.Context()), nil, "release")
		equal(t, ra.stop(), nil, "Run")
	})
}

// Ensures that a transfer names a successor, which gets the key when the run
// has returned: at once, or when it has finished.
func TestRunner_Transfer(t *testing.T) {
	for _, graceful := range []bool{false, true} {
		t.Run(fmt.Sprintf("graceful %v", graceful), func(t *testing.T) {
			bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
				a, b, c := w.Join("a"), w.Join("b"), w.Join("c")
				var o observer
				leases := make(chan *coord.Lease, 1)
				var cause error
				ra := run(t, coord.NewRunner(a, "k", func(ctx context.Context, l *coord.Lease) error {
					defer o.enter("a", l)()
					leases <- l
					select {
					case <-l.Draining():
						select {
						case <-ctx.Done():
						case <-time.After(3 * time.Second):
						}
					case <-ctx.Done():
					}
					cause = context.Cause(ctx)
					return nil
				}, func(c *coord.RunnerConfig) {
					if graceful {
						c.Rebalance = coord.RebalanceGraceful
					}
				}))
				l := <-leases
				wantErr(t, l.Transfer(t.Context(), c.InstanceID()), fsm.ErrWrongState)
				rb := run(t, coord.NewRunner(b, "k", noted(&o, "b")))
				synctest.Wait()
				rc := run(t, coord.NewRunner(c, "k", noted(&o, "c")))
				synctest.Wait()
				start := time.Now()
				wantErr(t, l.Release(t.Context()), fsm.ErrWrongState)
				equal(t, l.Transfer(t.Context(), c.InstanceID()), nil, "transfer")
				time.Sleep(5 * time.Second)
				synctest.Wait()
				runs := o.of("k")
				equal(t, len(runs), 2, "runs")
				equal(t, runs[1].who, "c", "successor")
				if graceful {
					equal(t, runs[1].start.Sub(start), 3*time.Second, "c started")
					equal(t, cause, nil, "cause")
				} else {
					equal(t, runs[1].start.Sub(start), 0, "c started")
					wantErr(t, cause, coord.ErrMoved)
				}
				equal(t, l.Valid(), false, "valid")
				for _, r := range []*background{ra, rb, rc} {
					equal(t, r.stop(), nil, "Run")
				}
				o.check(t)
			})
		})
	}
}

// Ensures that Prepare is called by the one that is next in line, once for each
// grant, and that a grant finds it done.
func TestRunner_Prepare(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		var o observer
		var tr trace
		start := func(c *coordtest.Instance, name string) *background {
			r := run(t, coord.NewRunner(c, "k", noted(&o, name), func(c *coord.RunnerConfig) {
				c.Prepare = func(context.Context) error {
					tr.add("%s prepares", name)
					time.Sleep(5 * time.Second)
					tr.add("%s is ready", name)
					return nil
				}
			}))
			time.Sleep(time.Second)
			return r
		}
		ra, rb, rc := start(w.Join("a"), "a"), start(w.Join("b"), "b"), start(w.Join("c"), "c")
		time.Sleep(7 * time.Second)
		equalLines(t, tr.all(), "a prepares", "b prepares", "a is ready", "b is ready")
		go ra.stop()
		time.Sleep(30 * time.Second) // a ignores the drain
		synctest.Wait()
		equal(t, len(o.of("k")), 2, "runs")
		equal(t, o.of("k")[1].start.Sub(o.of("k")[0].end), 0, "gap: b was ready")
		time.Sleep(10 * time.Second)
		equalLines(t, tr.all()[4:], "c prepares", "c is ready")
		equal(t, rb.stop(), nil, "Run")
		equal(t, rc.stop(), nil, "Run")
		<-ra.done
		o.check(t)
	})
}

// Ensures that a Prepare that fails while waiting is made again under the
// grant, that failing there counts as a failed run, and that it is contained.
func TestRunner_PrepareFails(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		l, _ := coord.Acquire(t.Context(), b, "k", coord.Try())
		tries := 0
		var o observer
		var tr trace
		ra := run(t, coord.NewRunner(a, "k", noted(&o, "a"), traced(&tr, func(c *coord.RunnerConfig) {
			c.Prepare = func(context.Context) error {
				switch tries++; tries {
				case 1:
					return errWork
				case 2:
					panic("boom")
				}
				return nil
			}
		})))
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, tries, 1, "tries while waiting")
		equal(t, l.Release(t.Context()), nil, "release")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		equal(t, tries, 3, "tries")
		equalLines(t, tr.all(), "acquired", "released: <nil>", "failed 1: prepare: panic: boom", "acquired", "started 1")
		equal(t, ra.stop(), nil, "Run")
	})
}

// Ensures that work begins only on trust: where little is left, after a proof.
func TestRunner_NoWorkWithoutTrust(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		l, _ := coord.Acquire(t.Context(), b, "k", coord.Try())
		var o observer
		ra := run(t, coord.NewRunner(a, "k", noted(&o, "a")))
		synctest.Wait()
		confirmed := time.Now()
		a.FaultKeepAlives(func() coordtest.Fault { return coordtest.Refuse })
		a.Fault(func(op coordtest.Op) coordtest.Fault { // opening a session is a proof, too
			if _, ok := op.(*fsm.OpenSession); ok {
				return coordtest.Drop
			}
			return coordtest.None
		})
		time.Sleep(4 * time.Second) // 4 s of 8 s are left: less than 4.5 s
		equal(t, l.Release(t.Context()), nil, "release")
		synctest.Wait()
		equal(t, holder(w, "k"), "a:1:coordtest", "holder")
		equal(t, len(o.of("k")), 0, "runs on old trust")
		equal(t, ra.r.Status().State, coord.StateStarting, "state")
		time.Sleep(20 * time.Second) // the session is lost before any proof
		equal(t, len(o.of("k")), 0, "runs")
		equal(t, holder(w, "k"), "", "holder")
		a.FaultKeepAlives(nil)
		a.Fault(nil)
		time.Sleep(20 * time.Second)
		equal(t, len(o.of("k")), 1, "runs with a new session")
		if o.of("k")[0].start.Before(confirmed.Add(20 * time.Second)) {
			t.Error("begun too early")
		}
		equal(t, ra.stop(), nil, "Run")
	})
}

// Ensures that ten failing instances and one that works end with the one.
func TestRunner_FailuresYield(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		var all []*background
		var o observer
		for n := range 6 {
			c := w.Join(fmt.Sprint("i", n))
			work := noted(&o, fmt.Sprint("i", n))
			if n < 5 {
				who := fmt.Sprint("i", n)
				work = func(_ context.Context, l *coord.Lease) error {
					defer o.enter(who, l)()
					return errWork
				}
			}
			all = append(all, run(t, coord.NewRunner(c, "k", work)))
		}
		time.Sleep(time.Second)
		equal(t, holder(w, "k"), "i5:1:coordtest", "holder")
		for _, r := range all {
			equal(t, r.stop(), nil, "Run")
		}
		o.check(t)
	})
}

// Ensures that a stop before the function was entered calls the run off.
func TestRunner_StopWhileStarting(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var ran atomic.Bool
		ra := run(t, coord.NewRunner(a, "k", func(context.Context, *coord.Lease) error { ran.Store(true); return nil }, func(c *coord.RunnerConfig) {
			c.Prepare = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		}))
		time.Sleep(time.Minute)
		equal(t, ra.r.Status().State, coord.StateStarting, "state")
		start := time.Now()
		equal(t, ra.stop(), nil, "Run")
		at(t, start, 0, "Run returned")
		equal(t, ran.Load(), false, "ran")
		equal(t, w.View().LeaseCount()+len(a.Runs())+a.Claims(), 0, "left")
	})
}
