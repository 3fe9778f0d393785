package coord_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// Ensures that a lease is granted, refused to a second and freed by a release.
func TestLease_AcquireRelease(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		l, err := coord.Acquire(t.Context(), a, "k")
		if err != nil {
			t.Fatal(err)
		}
		equal(t, l.Valid(), true, "valid")
		equal(t, l.Key(), "k", "key")
		if err := l.Confirm(t.Context()); err != nil {
			t.Errorf("confirm: %v", err)
		}
		_, err = coord.Acquire(t.Context(), b, "k", coord.Try())
		wantErr(t, err, fsm.ErrLeaseHeld)
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
		wantErr(t, context.Cause(l.Context()), coord.ErrReleased)
		equal(t, l.Valid(), false, "valid after release")
		m, err := coord.Acquire(t.Context(), b, "k", coord.Try())
		if err != nil {
			t.Fatal(err)
		}
		if m.Token() <= l.Token() {
			t.Errorf("token %d after %d", m.Token(), l.Token())
		}
		if err := m.Release(t.Context()); err != nil {
			t.Error(err)
		}
		equal(t, len(a.Runs())+len(b.Runs())+a.Claims()+b.Claims(), 0, "runs and claims left")
	})
}

// Ensures that a bounded wait ends in time, leaves the queue and says so.
func TestLease_WaitAtMost(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		l, err := coord.Acquire(t.Context(), a, "k")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release(context.Background())
		start := time.Now()
		_, err = coord.Acquire(t.Context(), b, "k", coord.WaitAtMost(3*time.Second))
		wantErr(t, err, fsm.ErrWaitTimeout)
		at(t, start, 3*time.Second, "the wait ended")
		synctest.Wait()
		equal(t, w.View().WaiterCount("k"), 0, "waiters left")
	})
}

// Ensures that leases of Acquire end as runs do, and are reported when they are
// not released.
func TestLease_DrainAndStuck(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		type ctxKey struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), ctxKey{}, "v"))
		l, err := coord.Acquire(ctx, a, "k", coord.WithDrainTimeout(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		cancel() // of no meaning once it is acquired
		synctest.Wait()
		equal(t, l.Context().Err(), nil, "context")
		equal(t, l.Context().Value(ctxKey{}), any("v"), "value")
		start := time.Now()
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		<-l.Draining()
		at(t, start, 0, "asked to finish")
		<-l.Context().Done()
		at(t, start, 3*time.Second, "context ended")
		wantErr(t, context.Cause(l.Context()), coord.ErrDrained)
		equal(t, l.Valid(), true, "still this process's")
		time.Sleep(5*time.Second + 1)
		runs := a.Runs()
		if len(runs) != 1 || !runs[0].Stuck || !strings.Contains(runs[0].Stack, "TestLease_DrainAndStuck") {
			t.Errorf("the node was told of %+v", runs)
		}
		equal(t, holder(w, "k"), "a:1:coordtest", "holder")
		equal(t, l.Release(ctx), nil, "release under a context that has ended")
		equal(t, holder(w, "k"), "", "holder")
	})
}

// Ensures the causes of a lease of Acquire, each with what Confirm says.
func TestLease_Causes(t *testing.T) {
	for _, c := range []struct {
		name    string
		end     func(w *coordtest.World, a, b *coordtest.Instance, l *coord.Lease)
		cause   error
		confirm error
		release error
		valid   bool
	}{
		{"revoked", func(w *coordtest.World, a, b *coordtest.Instance, l *coord.Lease) { _ = w.Revoke("k") }, coord.ErrRevoked, coord.ErrRevoked, nil, false},
		{"moved", func(w *coordtest.World, a, b *coordtest.Instance, l *coord.Lease) {
			_ = l.Transfer(context.Background(), b.InstanceID())
		}, coord.ErrMoved, nil, nil, true},
		{"shut down", func(w *coordtest.World, a, b *coordtest.Instance, l *coord.Lease) { a.Leave() }, coord.ErrShutDown, nil, nil, true},
		{"freed", func(w *coordtest.World, a, b *coordtest.Instance, l *coord.Lease) {
			r, _ := w.View().Lease("k")
			_, _ = w.Propose(&fsm.Release{Key: "k", Token: l.Token(), SessionId: r.SessionID})
		}, coord.ErrLost, coord.ErrLost, fsm.ErrStaleToken, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
				a, b := w.Join("a"), w.Join("b")
				l, err := coord.Acquire(t.Context(), a, "k")
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				waiter := make(chan struct{})
				go func() {
					defer close(waiter)
					if m, err := coord.Acquire(ctx, b, "k"); err == nil {
						_ = m.Release(context.Background())
					}
				}()
				synctest.Wait()
				c.end(w, a, b, l)
				<-l.Context().Done()
				if !errors.Is(context.Cause(l.Context()), c.cause) {
					t.Errorf("cause %v, want %v", context.Cause(l.Context()), c.cause)
				}
				equal(t, l.Valid(), c.valid, "valid")
				if err := l.Confirm(t.Context()); !errors.Is(err, c.confirm) {
					t.Errorf("confirm: %v, want %v", err, c.confirm)
				}
				if err := l.Release(t.Context()); !errors.Is(err, c.release) {
					t.Errorf("release: %v, want %v", err, c.release)
				}
				cancel()
				<-waiter
			})
		})
	}
}

// counted counts the looks at the copy.
type counted struct {
	*coordtest.Instance
	views atomic.Int64
}

func (c *counted) View() *fsm.View { c.views.Add(1); return c.Instance.View() }

// Ensures that ten thousand leases in one process cost nothing while nothing
// happens to them, whatever happens elsewhere.
func TestLease_ManyAreQuiet(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		c := &counted{Instance: w.Join("a")}
		b := w.Join("b")
		leases := make([]*coord.Lease, 10_000/scale)
		for n := range leases {
			var err error
			if leases[n], err = coord.Acquire(t.Context(), c, fmt.Sprint("k", n)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		before := c.views.Load()
		for n := range 300 { // ten minutes, a hundred revisions each
			l, err := coord.Acquire(t.Context(), b, fmt.Sprint("other", n))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			_ = l.Release(t.Context())
		}
		synctest.Wait()
		if n := c.views.Load() - before; n > 1000 {
			t.Errorf("%d looks at the copy in 300 renewals and 600 revisions", n)
		}
		for _, l := range leases {
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Ensures that Valid costs nothing worth counting.
func TestLease_ValidDoesNotAllocate(t *testing.T) {
	w := coordtest.New(coordtest.Timing{})
	defer w.Close()
	l, err := coord.Acquire(t.Context(), w.Join("a"), "k")
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() { l.Valid() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	equal(t, l.Release(t.Context()), nil, "release")
}

// Ensures that a lock delay bars the key after a loss and not after a release,
// and that a lease of Acquire ends the process only if that was asked for.
func TestLease_LockDelayAndExit(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		var exits atomic.Int64
		var log strings.Builder
		options := []coord.AcquireOption{
			coord.WithLockDelay(2 * time.Second), coord.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
			coord.WithStuck(coord.StuckConfig{WhenLost: coord.PolicyExit, Exit: func(code int) { exits.Store(int64(code)) }}),
		}
		l, err := coord.Acquire(t.Context(), a, "k", options...)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, l.Release(t.Context()), nil, "release")
		if l, err = coord.Acquire(t.Context(), a, "k", append(options, coord.Try())...); err != nil {
			t.Fatal(err)
		}
		cut := time.Now()
		a.Cut()
		m, err := coord.Acquire(t.Context(), b, "k")
		if err != nil {
			t.Fatal(err)
		}
		at(t, cut, 12*time.Second, "granted to b") // T and the lock delay
		synctest.Wait()
		equal(t, exits.Load(), 75, "exit code")
		if !strings.Contains(log.String(), "lease has not been released in time") {
			t.Errorf("log: %s", log.String())
		}
		equal(t, m.Release(t.Context()), nil, "release")
		a.Heal()
		wantErr(t, l.Release(t.Context()), fsm.ErrStaleToken)

		_, err = coord.Acquire(t.Context(), a, "k", coord.WithLockDelay(-1), coord.WithStuck(coord.StuckConfig{WhenLost: coord.PolicyHold}))
		wantErr(t, err, fsm.ErrInvalidArgument)
	})
}

// simulated is an instance whose process is simulated, too.
type simulated struct {
	*coordtest.Instance
	exits *atomic.Int64
}

func (s simulated) Exit(code int) { s.exits.Store(int64(code)) }

// Ensures that a Cluster that stands for a process ends it itself.
func TestRunner_ExitOfTheCluster(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		var exits atomic.Int64
		free := make(chan struct{})
		r := run(t, coord.NewRunner(simulated{a, &exits}, "k", func(context.Context, *coord.Lease) error {
			<-free
			return nil
		}))
		time.Sleep(time.Second)
		a.Cut()
		time.Sleep(time.Minute)
		equal(t, exits.Load(), 75, "exit code")
		close(free)
		equal(t, r.stop(), nil, "Run")
	})
}
