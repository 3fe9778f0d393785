package coord_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

var leaseRows = []row{
	{name: "006_a_draining_instance_gets_nothing_new", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		_, err := coord.Acquire(t.Context(), a, "k")
		wantErr(t, err, fsm.ErrDraining)
		equal(t, a.Calls("Acquire"), 0, "acquires sent")
	}},
	{name: "007_draining_is_seen_at_once_and_twice_is_once", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		for range 2 {
			if err := w.Drain(a.InstanceID()); err != nil {
				t.Fatal(err)
			}
			equal(t, a.Draining(), true, "draining")
		}
	}},
	{name: "011_first_caller_gets_an_unowned_lease", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		l, err := coord.Acquire(t.Context(), a, "k", coord.Try())
		if err != nil {
			t.Fatal(err)
		}
		equal(t, holder(w, "k"), "a:1:coordtest", "holder")
		equal(t, l.Release(t.Context()), nil, "release")
	}},
	{name: "012_others_are_refused_and_the_owner_stays", test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		l, _ := coord.Acquire(t.Context(), a, "k", coord.Try())
		for range 3 {
			_, err := coord.Acquire(t.Context(), b, "k", coord.Try())
			wantErr(t, err, fsm.ErrLeaseHeld)
			equal(t, l.Confirm(t.Context()), nil, "confirm by the owner")
			time.Sleep(5 * time.Second)
		}
		equal(t, l.Valid(), true, "valid")
		equal(t, l.Release(t.Context()), nil, "release")
	}},
	{name: "013_renewing_keeps_others_out", timing: coordtest.Timing{Renew: 5 * time.Second, TTL: 10 * time.Second}, test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		l, _ := coord.Acquire(t.Context(), a, "k", coord.Try())
		for range 50 { // 5 TTLs in steps of a tenth
			time.Sleep(time.Second)
			_, err := coord.Acquire(t.Context(), b, "k", coord.Try())
			wantErr(t, err, fsm.ErrLeaseHeld)
		}
		equal(t, l.Valid(), true, "valid")
		equal(t, l.Release(t.Context()), nil, "release")
	}},
	{name: "014_a_silent_owner_is_followed_after_a_TTL", test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		start := time.Now()
		dead, err := coord.Acquire(t.Context(), a, "k", coord.Try())
		if err != nil {
			t.Fatal(err)
		}
		a.Crash()
		defer dead.Release(context.Background())
		l, err := coord.Acquire(t.Context(), b, "k")
		if err != nil {
			t.Fatal(err)
		}
		at(t, start, 10*time.Second, "granted to b")
		equal(t, l.Release(t.Context()), nil, "release")
	}},
	{name: "015_release_frees_at_once_and_only_by_its_owner", test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		l, _ := coord.Acquire(t.Context(), a, "k", coord.Try())
		equal(t, l.Release(t.Context()), nil, "release")
		equal(t, l.Release(t.Context()), nil, "release again")
		m, err := coord.Acquire(t.Context(), b, "k", coord.Try())
		if err != nil {
			t.Fatal(err)
		}
		equal(t, l.Release(t.Context()), nil, "release by the former owner")
		equal(t, m.Valid(), true, "valid")
		equal(t, holder(w, "k"), "b:1:coordtest", "holder")
		equal(t, m.Release(t.Context()), nil, "release")
	}},
	{name: "016_a_thousand_acquirers_one_success", test: func(t *testing.T, w *coordtest.World) {
		nodes := []*coordtest.Instance{w.Join("a"), w.Join("b"), w.Join("c")}
		var won, held atomic.Int64
		var got atomic.Pointer[coord.Lease]
		var all sync.WaitGroup
		for n := range 1000 {
			all.Go(func() {
				l, err := coord.Acquire(t.Context(), nodes[n%3], "k", coord.Try())
				switch {
				case err == nil:
					won.Add(1)
					got.Store(l)
				case errors.Is(err, fsm.ErrLeaseHeld):
					held.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		equal(t, won.Load(), 1, "successes")
		equal(t, held.Load(), 999, "refusals")
		equal(t, got.Load().Release(t.Context()), nil, "release")
	}},
	{name: "017_a_cancelled_acquire_leaves_nothing", test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		l, _ := coord.Acquire(t.Context(), a, "k", coord.Try())
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := coord.Acquire(ctx, b, "k")
			failed <- err
		}()
		synctest.Wait()
		equal(t, w.View().WaiterCount("k"), 1, "waiters")
		cancel()
		wantErr(t, <-failed, context.Canceled)
		synctest.Wait()
		equal(t, w.View().WaiterCount("k"), 0, "waiters")
		equal(t, l.Release(t.Context()), nil, "release")

		// The answer to the acquire is lost: the grant is there, nobody knows.
		b.Fault(func(op fsm.Op) coordtest.Fault {
			if _, ok := op.(*fsm.Acquire); ok {
				return coordtest.LoseReply
			}
			return coordtest.None
		})
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := coord.Acquire(ctx, b, "k")
		wantErr(t, err, fsm.ErrUncertain)
		wantErr(t, err, context.DeadlineExceeded)
		synctest.Wait()
		equal(t, holder(w, "k"), "", "holder once the acquire was taken back")

		// Taking it back fails as well: the node gives it back.
		b.Fault(func(op fsm.Op) coordtest.Fault {
			switch op.(type) {
			case *fsm.Acquire:
				return coordtest.LoseReply
			case *fsm.CancelWait:
				return coordtest.Drop
			}
			return coordtest.None
		})
		_, err = coord.Acquire(t.Context(), b, "k", coord.WaitAtMost(time.Second))
		wantErr(t, err, fsm.ErrUncertain)
		time.Sleep(5 * time.Second)
		equal(t, holder(w, "k"), "", "holder once nobody claimed it")
	}},
	{name: "018_every_grant_has_a_larger_token", test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		last := uint64(0)
		for n := range 100 {
			c := []*coordtest.Instance{a, b}[n%2]
			l, err := coord.Acquire(t.Context(), c, "k")
			if err != nil {
				t.Fatal(err)
			}
			if l.Token() <= last {
				t.Fatalf("token %d after %d", l.Token(), last)
			}
			last = l.Token()
			equal(t, l.Release(t.Context()), nil, "release")
		}
	}},
	{name: "019_a_holder_cut_off_stops_before_the_next_may_start", test: func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		l, _ := coord.Acquire(t.Context(), a, "k", coord.Try())
		time.Sleep(3 * time.Second) // last keep-alive a second ago
		cut := time.Now()
		a.Cut()
		next := make(chan *coord.Lease)
		go func() {
			m, err := coord.Acquire(t.Context(), b, "k")
			if err != nil {
				t.Error(err)
			}
			next <- m
		}()
		<-l.Context().Done()
		at(t, cut, 7*time.Second, "context ended") // T - M - S after the last keep-alive
		wantErr(t, context.Cause(l.Context()), coord.ErrLost)
		equal(t, l.Valid(), false, "valid")
		m := <-next
		at(t, cut, 9*time.Second, "granted to b") // T after the last keep-alive
		a.Heal()
		time.Sleep(time.Second)
		wantErr(t, l.Confirm(t.Context()), coord.ErrLost)
		wantErr(t, l.Release(t.Context()), fsm.ErrStaleToken)
		equal(t, m.Valid(), true, "valid")
		equal(t, m.Release(t.Context()), nil, "release")
	}},
}
