package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// A grant that nobody here claims, because its acquire was cancelled or its
// answer lost, is given back after a second.
func TestSlots_UnclaimedGrantGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n, b := c.nodes[1], c.nodes[2]
		id, idB := n.openSession(), b.openSession()
		n.must(&fsm.Acquire{Key: "k", SessionId: id, Holder: "h"})
		granted := time.Now()
		if _, ok := holds(time.Minute, func() bool { _, held := n.machine.View().Lease("k"); return !held }); !ok {
			t.Fatal("never given back")
		}
		if d := time.Since(granted); d < time.Second || d > 1100*time.Millisecond {
			t.Errorf("given back after %v, want 1s", d)
		}
		// The same for a place in the queue that is served long after its
		// holder has gone.
		drop := n.lease.slots.claim("w", "h")
		dropB := b.lease.slots.claim("w", "x")
		token := b.must(&fsm.Acquire{Key: "w", SessionId: idB, Holder: "x"}).Token
		n.must(&fsm.Acquire{Key: "w", SessionId: id, Holder: "h", Wait: true})
		drop()
		time.Sleep(5 * time.Second)
		b.must(&fsm.Release{Key: "w", Token: token, SessionId: idB})
		dropB()
		if l := mustLease(t, n, "w"); l.SessionID != id {
			t.Fatalf("lease %+v, want it granted to the place in the queue", l)
		}
		if took, ok := holds(time.Minute, func() bool { _, held := n.machine.View().Lease("w"); return !held }); !ok || took > 1100*time.Millisecond {
			t.Errorf("given back after %v, want 1s", took)
		}
	})
}

// A claim, or a run of the same grant, keeps it; what is claimed within the
// second stays.
func TestSlots_ClaimsKeepGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		dropA := n.lease.slots.claim("a", "h")
		n.must(&fsm.Acquire{Key: "a", SessionId: id, Holder: "h"})
		n.must(&fsm.Acquire{Key: "late", SessionId: id, Holder: "h"})
		time.Sleep(900 * time.Millisecond)
		defer n.lease.slots.claim("late", "h")()
		time.Sleep(time.Minute)
		mustLease(t, n, "a")
		mustLease(t, n, "late")
		run, err := n.lease.slots.begin(t.Context(), "a", mustLease(t, n, "a").Token)
		if err != nil {
			t.Fatal(err)
		}
		dropA()
		time.Sleep(time.Minute)
		mustLease(t, n, "a") // the run keeps it
		n.lease.slots.returned(run)
		time.Sleep(1500 * time.Millisecond)
		if l, ok := n.machine.View().Lease("a"); ok {
			t.Errorf("%+v outlived its run and its claim", l)
		}
	})
}

// The claim of another holder of the key does not keep a grant.
func TestSlots_ClaimNamesTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		defer n.lease.slots.claim("k", "other")()
		n.must(&fsm.Acquire{Key: "k", SessionId: id, Holder: "gone"})
		n.must(&fsm.Acquire{Key: "k", SessionId: id, Holder: "other", Wait: true})
		if took, ok := holds(time.Minute, func() bool { return mustLease(t, n, "k").Holder == "other" }); !ok || took > 1100*time.Millisecond {
			t.Errorf("passed on to the holder that waits after %v, want 1s", took)
		}
	})
}

// A key has one slot in the process: who comes second waits for the return of
// the first, across sessions.
func TestSlots_OneRunPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1)
		n := c.nodes[0]
		n.openSession()
		s := n.lease.slots
		first, err := s.begin(t.Context(), "k", 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.begin(t.Context(), "other", 2); err != nil {
			t.Errorf("another key: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.begin(ctx, "k", 3); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second run of the key: %v, want it to wait", err)
		}
		began := make(chan uint64, 1)
		go func() {
			run, err := s.begin(t.Context(), "k", 4)
			if err != nil {
				t.Error(err)
			}
			began <- run
		}()
		synctest.Wait()
		time.Sleep(time.Second)
		s.stopping(first)
		time.Sleep(5 * time.Second)
		s.stuck(first, "main.work\n\tmain.go:7")
		time.Sleep(time.Second)
		want := Run{ID: first, Key: "k", Token: 1, Age: 8 * time.Second, StoppingFor: 6 * time.Second, StuckFor: time.Second, Stack: "main.work\n\tmain.go:7"}
		if got := s.runs()[0]; got != want {
			t.Errorf("run %+v\nwant %+v", got, want)
		}
		if isClosed(s.idle()) {
			t.Error("idle while runs are outstanding")
		}
		s.returned(first)
		s.returned(first) // twice does no harm
		second := <-began
		if second == first {
			t.Error("runs share an ID")
		}
		s.returned(second)
		s.returned(2)
		if !isClosed(s.idle()) || len(s.runs()) != 0 {
			t.Errorf("not idle: %+v", s.runs())
		}
	})
}

// Ten thousand claims and runs leave nothing behind.
func TestSlots_NothingLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1)
		n := c.nodes[0]
		id := n.openSession()
		s := n.lease.slots
		for range 1000 {
			drop := s.claim("k", "h")
			token := n.must(&fsm.Acquire{Key: "k", SessionId: id, Holder: "h"}).Token
			run, err := s.begin(t.Context(), "k", token)
			if err != nil {
				t.Fatal(err)
			}
			s.returned(run)
			n.must(&fsm.Release{Key: "k", Token: token, SessionId: id})
			drop()
			drop()
		}
		synctest.Wait()
		if len(s.claims) != 0 || len(s.taken) != 0 || len(s.runsOf) != 0 || len(s.strays) != 0 {
			t.Errorf("left: %d claims, %d slots, %d runs, %d strays", len(s.claims), len(s.taken), len(s.runsOf), len(s.strays))
		}
	})
}
