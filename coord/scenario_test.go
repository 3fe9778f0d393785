package coord_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// bench is the timing of the scenarios: work is told to stop 4 s after the last
// confirmed keep-alive was sent and made to at 5 s; the key passes on at 6 s,
// or 7 s with a lock delay of one second.
var bench = coordtest.Timing{
	TTL: 6 * time.Second, Renew: time.Second, Margin: time.Second, StopBudget: time.Second,
	DrainTimeout: 10 * time.Second, KillTimeout: 5 * time.Second,
}

func lockDelay(c *coord.RunnerConfig) { c.LockDelay = time.Second }

func TestScenario(t *testing.T) {
	for _, r := range append([]row{
		{name: "B-01_a_late_renewal_comes_too_late", timing: bench, test: lateRenewal},
		{name: "B-03_a_run_that_ignores_its_context_ends_with_the_process", timing: bench, test: ignoredContext},
		{name: "B-05_release_follows_the_return", timing: bench, test: releaseAfterReturn},
		{name: "B-07_belief_comes_only_from_confirmed_answers", timing: bench, test: failingRenewals},
		{name: "B-17_a_retried_release_frees_no_newer_grant", timing: bench, test: retriedRelease},
		{name: "B-19_a_waiter_hears_that_its_session_is_gone", timing: bench, test: waiterLosesSession},
		{name: "B-21_a_deadline_holds_without_a_quorum", timing: bench, test: deadlineWithoutQuorum},
		{name: "B-25_an_end_is_reported_and_closing_is_bounded_without_peers", timing: bench, test: peersGone},
		{name: "B-27_a_slow_start_keeps_the_lease", timing: bench, test: slowStart},
		{name: "B-29_nothing_is_left_of_ten_thousand", timing: bench, test: nothingLeft},
		{name: "B-93_after_a_sleep_nothing_is_believed", timing: bench, test: afterSleep},
	}, groupScenarios...) {
		t.Run(r.name, func(t *testing.T) { bubble(t, r.timing, r.test) })
	}
}

func lateRenewal(t *testing.T, w *coordtest.World) {
	a, b := w.Join("a"), w.Join("b")
	var o observer
	var tr trace
	ra := run(t, coord.NewRunner(a, "w", noted(&o, "a"), traced(&tr, lockDelay)))
	synctest.Wait()
	rb := run(t, coord.NewRunner(b, "w", noted(&o, "b"), lockDelay))
	time.Sleep(3 * time.Second)
	synctest.Wait()
	last := time.Now() // a keep-alive was sent and confirmed just now
	var drop atomic.Bool
	drop.Store(true)
	fate := func() coordtest.Fault {
		if drop.Load() {
			return coordtest.Drop
		}
		return coordtest.None
	}
	a.FaultKeepAlives(fate)
	a.Fault(func(coordtest.Op) coordtest.Fault { return fate() }) // nor does its release arrive
	for len(o.of("w")) < 2 {
		time.Sleep(10 * time.Millisecond)
	}
	drop.Store(false)
	runs := o.of("w")
	equal(t, runs[0].end.Sub(last), 4*time.Second, "a stopped after its last confirmed keep-alive")
	equal(t, runs[1].start.Sub(last), 7*time.Second, "b started after it")
	token := runs[0].token
	res, err := a.Submit(t.Context(), &fsm.Release{Key: "w", Token: token, SessionId: "00000000000000000000000000000001"})
	if err != nil {
		t.Fatal(err)
	}
	if err := fsm.ResultErr(res); !errors.Is(err, fsm.ErrStaleToken) && !errors.Is(err, fsm.ErrSessionExpired) {
		t.Errorf("a's late word: %v", err)
	}
	equal(t, holder(w, "w"), "b:1:coordtest", "holder")
	time.Sleep(time.Minute)
	equal(t, tr.count("lost: lease lost"), 1, "losses told")
	equal(t, ra.stop(), nil, "Run")
	equal(t, rb.stop(), nil, "Run")
	o.check(t)
}

func ignoredContext(t *testing.T, w *coordtest.World) {
	a, b := w.Join("a"), w.Join("b")
	var o observer
	var exited atomic.Int64
	var exitedAt time.Time
	hang := make(chan struct{})
	var stuck atomic.Pointer[coord.StuckRun]
	ra := run(t, coord.NewRunner(wasHeldUp{a}, "w", func(_ context.Context, l *coord.Lease) error {
		defer o.enter("a", l)()
		ignoresItsContext(hang)
		return nil
	}, lockDelay, func(c *coord.RunnerConfig) {
		c.Hooks.Stuck = func(s coord.StuckRun) { stuck.CompareAndSwap(nil, &s) }
		c.Stuck.Exit = func(code int) {
			exited.Store(int64(code))
			exitedAt = time.Now()
			o.kill("a") // the process is gone, and with it the work
			runs := a.Runs()
			if len(runs) != 1 || !runs[0].Stuck || !strings.Contains(runs[0].Stack, "ignoresItsContext") {
				t.Errorf("the node was told of %+v", runs)
			}
			a.Crash()
		}
	}))
	synctest.Wait()
	rb := run(t, coord.NewRunner(b, "w", noted(&o, "b"), lockDelay))
	synctest.Wait()
	cut := time.Now() // right after the session was opened
	a.Cut()
	time.Sleep(20 * time.Second)
	synctest.Wait()
	equal(t, exited.Load(), 75, "exit code")
	equal(t, exitedAt.Sub(cut), 5*time.Second, "the process ended")
	runs := o.of("w")
	equal(t, len(runs), 2, "runs")
	equal(t, runs[1].start.Sub(cut), 7*time.Second, "b started")
	if s := stuck.Load(); s == nil || !s.Lost || !strings.Contains(s.Stack, "ignoresItsContext") || s.Age != time.Second || s.HeldUp != 12*time.Second {
		t.Errorf("told of %+v", s)
	}
	close(hang)
	equal(t, ra.stop(), nil, "Run")
	equal(t, rb.stop(), nil, "Run")
	o.check(t)
}

// wasHeldUp stands in for a node whose process was stopped.
type wasHeldUp struct{ *coordtest.Instance }

func (wasHeldUp) HeldUp() time.Duration { return 12 * time.Second }

// ignoresItsContext stands in for work that hangs.
//
//go:noinline
func ignoresItsContext(until <-chan struct{}) { <-until }

func releaseAfterReturn(t *testing.T, w *coordtest.World) {
	a, b := w.Join("a"), w.Join("b")
	var o observer
	ra := run(t, coord.NewRunner(a, "w", func(_ context.Context, l *coord.Lease) error {
		defer o.enter("a", l)()
		<-l.Draining()
		time.Sleep(2 * time.Second)
		return nil
	}))
	synctest.Wait()
	rb := run(t, coord.NewRunner(b, "w", noted(&o, "b")))
	synctest.Wait()
	term := time.Now()
	a.Leave()
	time.Sleep(3 * time.Second)
	runs := o.of("w")
	equal(t, runs[0].end.Sub(term), 2*time.Second, "a stopped")
	equal(t, runs[1].start.Sub(runs[0].end), 0, "gap")
	equal(t, ra.stop(), nil, "Run")
	equal(t, rb.stop(), nil, "Run")
	o.check(t)

	// Longer than the drain and the kill timeout: the process ends first, and
	// only then does the lease lapse.
	var exitedAt time.Time
	hang := make(chan struct{})
	c := w.Join("c")
	rc := run(t, coord.NewRunner(c, "x", func(_ context.Context, l *coord.Lease) error {
		defer o.enter("c", l)()
		<-hang
		return nil
	}, func(cfg *coord.RunnerConfig) {
		cfg.Stuck.WhileHeld = coord.PolicyExit
		cfg.Stuck.Exit = func(int) {
			exitedAt = time.Now()
			o.kill("c")
			c.Crash()
		}
	}))
	synctest.Wait()
	rd := run(t, coord.NewRunner(b, "x", noted(&o, "b")))
	synctest.Wait()
	term = time.Now()
	c.Leave()
	time.Sleep(time.Minute)
	synctest.Wait()
	equal(t, exitedAt.Sub(term), 15*time.Second, "the process ended")
	runs = o.of("x")
	if d := runs[1].start.Sub(exitedAt); d < 5*time.Second || d > 6*time.Second {
		t.Errorf("b started %v after the process had ended", d)
	}
	close(hang)
	equal(t, rc.stop(), nil, "Run")
	equal(t, rd.stop(), nil, "Run")
	o.check(t)
}

func failingRenewals(t *testing.T, w *coordtest.World) {
	instances := []*coordtest.Instance{w.Join("a"), w.Join("b")}
	var o observer
	var all []*background
	for n, c := range instances {
		all = append(all, run(t, coord.NewRunner(c, "w", noted(&o, string('a'+rune(n))))))
	}
	synctest.Wait()
	rng := rand.New(rand.NewPCG(7, 7))
	for round := range 1000 / scale {
		var fates []coordtest.Fault
		switch round % 4 {
		case 0: // leadership lost before the commit
			fates = []coordtest.Fault{coordtest.Refuse}
		case 1: // after it
			fates = []coordtest.Fault{coordtest.DoubtDone}
		case 2: // no answer
			fates = []coordtest.Fault{coordtest.Drop, coordtest.LoseReply}
		case 3: // a malformed one, of whatever happened
			fates = []coordtest.Fault{coordtest.Doubt, coordtest.DoubtDone}
		}
		owner := instances[0]
		if holder(w, "w") == instances[1].InstanceID() {
			owner = instances[1]
		}
		var n atomic.Uint32
		pick := func() coordtest.Fault { return fates[int(n.Add(1))%len(fates)] }
		owner.FaultKeepAlives(pick)
		if round%2 == 0 { // its commands fail likewise
			owner.Fault(func(coordtest.Op) coordtest.Fault { return pick() })
		}
		time.Sleep(time.Duration(1+rng.IntN(9000)) * time.Millisecond)
		owner.FaultKeepAlives(nil)
		owner.Fault(nil)
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
	}
	time.Sleep(20 * time.Second)
	running := 0
	runs := o.of("w")
	for _, r := range runs {
		if r.end.IsZero() {
			running++
		}
	}
	equal(t, running, 1, "owners at the end")
	if len(runs) < 100/scale {
		t.Errorf("the key changed hands %d times only: the faults did not bite", len(runs))
	}
	for _, b := range all {
		equal(t, b.stop(), nil, "Run")
	}
	o.check(t)
}

func retriedRelease(t *testing.T, w *coordtest.World) {
	a := w.Join("a")
	l, err := coord.Acquire(t.Context(), a, "w", coord.Try())
	if err != nil {
		t.Fatal(err)
	}
	a.Fault(func(op coordtest.Op) coordtest.Fault {
		if coordtest.Kind(op) == "Release" {
			return coordtest.LoseReply
		}
		return coordtest.None
	})
	wantErr(t, l.Release(t.Context()), fsm.ErrUncertain)
	a.Fault(nil)
	m, err := coord.Acquire(t.Context(), a, "w", coord.Try())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, l.Release(t.Context()), nil, "retry: released already")
	equal(t, m.Valid(), true, "the newer grant is valid")
	equal(t, m.Confirm(t.Context()), nil, "confirm")
	time.Sleep(10 * time.Second)
	equal(t, m.Valid(), true, "the newer grant is valid")
	equal(t, m.Release(t.Context()), nil, "release")
	wantErr(t, m.Confirm(t.Context()), coord.ErrReleased)
}

func waiterLosesSession(t *testing.T, w *coordtest.World) {
	a, c := w.Join("a"), w.Join("c")
	l, _ := coord.Acquire(t.Context(), a, "w", coord.Try())
	failed := make(chan error, 1)
	go func() {
		_, err := coord.Acquire(t.Context(), c, "w")
		failed <- err
	}()
	synctest.Wait()
	equal(t, w.View().WaiterCount("w"), 1, "waiters")
	s, _ := w.View().Instance(c.InstanceID())
	start := time.Now()
	if _, err := w.Propose(&fsm.CloseSession{SessionId: s.ID, Reason: fsm.CloseCrashed}); err != nil {
		t.Fatal(err)
	}
	equal(t, w.View().WaiterCount("w"), 0, "waiters in the entry that ended the session")
	err := <-failed
	wantErr(t, err, coord.ErrSessionLost)
	wantErr(t, err, fsm.ErrSessionExpired)
	if d := time.Since(start); d > bench.TTL {
		t.Errorf("heard after %v", d)
	}
	equal(t, l.Release(t.Context()), nil, "release")
}

func deadlineWithoutQuorum(t *testing.T, w *coordtest.World) {
	a := w.Join("a")
	w.LoseQuorum()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	start := time.Now()
	_, err := coord.Acquire(ctx, a, "w")
	at(t, start, 2*time.Second, "the acquire ended")
	wantErr(t, err, fsm.ErrNoQuorum)
	wantErr(t, err, context.DeadlineExceeded)
	start = time.Now()
	_, err = coord.Acquire(t.Context(), a, "w", coord.WaitAtMost(time.Second))
	at(t, start, time.Second, "the acquire ended")
	wantErr(t, err, fsm.ErrNoQuorum)
	w.RestoreQuorum()
	time.Sleep(3 * time.Second)
	equal(t, w.View().LeaseCount()+w.View().WaiterCount("w"), 0, "leases and waiters left")
}

func peersGone(t *testing.T, w *coordtest.World) {
	a := w.Join("a")
	l, err := coord.Acquire(t.Context(), a, "w")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	w.LoseQuorum() // for good
	<-l.Context().Done()
	at(t, start, 4*time.Second, "the end was reported")
	wantErr(t, context.Cause(l.Context()), coord.ErrLost)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	start = time.Now()
	err = l.Release(ctx)
	wantErr(t, err, fsm.ErrNoQuorum)
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("the release took %v", d)
	}
	equal(t, err.Error(), `release lease "w": no_quorum: no leader was reached in time`, "what it could not do")
}

func slowStart(t *testing.T, w *coordtest.World) {
	a, b := w.Join("a"), w.Join("b")
	var o observer
	ra := run(t, coord.NewRunner(a, "w", func(ctx context.Context, l *coord.Lease) error {
		defer o.enter("a", l)()
		time.Sleep(18 * time.Second)
		<-ctx.Done()
		return nil
	}, func(c *coord.RunnerConfig) {
		c.Prepare = func(context.Context) error { time.Sleep(18 * time.Second); return nil }
	}))
	synctest.Wait()
	rb := run(t, coord.NewRunner(b, "w", noted(&o, "b")))
	time.Sleep(17 * time.Second)
	equal(t, ra.r.Status().State, coord.StateStarting, "state")
	equal(t, holder(w, "w"), "a:1:coordtest", "holder")
	time.Sleep(40 * time.Second)
	equal(t, ra.r.Status().State, coord.StateRunning, "state")
	equal(t, len(o.of("w")), 1, "runs")
	equal(t, ra.stop(), nil, "Run")
	equal(t, rb.stop(), nil, "Run")
	o.check(t)
}

func nothingLeft(t *testing.T, w *coordtest.World) {
	a, b := w.Join("a"), w.Join("b")
	held, _ := coord.Acquire(t.Context(), b, "held", coord.Try())
	synctest.Wait()
	base := runtime.NumGoroutine()
	for n := range 10_000 / scale {
		l, err := coord.Acquire(t.Context(), a, fmt.Sprint("k", n%100))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 10_000 / scale {
		_, err := coord.Acquire(t.Context(), a, "held", coord.Try())
		if !errors.Is(err, fsm.ErrLeaseHeld) {
			t.Fatal(err)
		}
	}
	for range 100 {
		_, err := coord.Acquire(t.Context(), a, "held", coord.WaitAtMost(time.Millisecond))
		wantErr(t, err, fsm.ErrWaitTimeout)
	}
	synctest.Wait()
	if n := runtime.NumGoroutine(); n > base+5 {
		t.Errorf("%d goroutines, %d before", n, base)
	}
	equal(t, a.Claims()+len(a.Runs()), 0, "claims and runs left")
	sessions := 0
	for range w.View().Sessions() {
		sessions++
	}
	equal(t, sessions, 2, "sessions of two nodes")
	equal(t, w.View().LeaseCount(), 1, "leases")
	equal(t, held.Release(t.Context()), nil, "release")
}

func afterSleep(t *testing.T, w *coordtest.World) {
	a := w.Join("a")
	l, err := coord.Acquire(t.Context(), a, "w")
	if err != nil {
		t.Fatal(err)
	}
	a.Doubt()
	equal(t, l.Valid(), false, "valid after a sleep")
	equal(t, l.Confirm(t.Context()), nil, "confirm")
	equal(t, l.Valid(), true, "valid once confirmed")
	equal(t, l.Release(t.Context()), nil, "release")

	// A run does not begin on trust from before the sleep.
	var began time.Time
	a.Doubt()
	a.FaultKeepAlives(func() coordtest.Fault { return coordtest.Refuse })
	start := time.Now()
	ra := run(t, coord.NewRunner(a, "w", func(ctx context.Context, _ *coord.Lease) error {
		began = time.Now()
		<-ctx.Done()
		return nil
	}))
	time.Sleep(1500 * time.Millisecond)
	synctest.Wait()
	equal(t, began.IsZero(), true, "not begun")
	a.FaultKeepAlives(nil)
	time.Sleep(2 * time.Second)
	synctest.Wait()
	if d := began.Sub(start); d < 1500*time.Millisecond || d > 2*time.Second+500*time.Millisecond {
		t.Errorf("begun after %v", d)
	}
	equal(t, ra.stop(), nil, "Run")
}
