package coord_test

import (
	"context"
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
