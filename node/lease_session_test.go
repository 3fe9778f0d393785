package node

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/transport"
)

// A session that is renewed lives on, on every node, with clocks that disagree
// about the hour.
func TestSession_LivesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		var ids []string
		for _, n := range c.nodes {
			ids = append(ids, n.openSession())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		for i, n := range c.nodes {
			if got := n.openSession(); got != ids[i] {
				t.Errorf("node %d has session %s, want the first, %s", i, got, ids[i])
			}
			if left := n.lease.keeper.trusted(ids[i]); left < 2*time.Second || left > 4*time.Second {
				t.Errorf("node %d is trusted for %v, want 2s to 4s (T 6s - M 1s - S 1s, renewed every second)", i, left)
			}
		}
		if got := c.nodes[2].machine.View().Revision(); got > 12 {
			t.Errorf("the log has %d entries after an hour of renewals, want only those that opened sessions", got)
		}
	})
}

// A holder that is cut off is told at T-M-S after its last confirmed keep-alive,
// made to stop at T-M, and its lease passes on at T or later.
func TestSession_CutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		a, b := c.nodes[1], c.nodes[2]
		sa, sb := a.openSession(), b.openSession()
		defer a.lease.slots.claim("k", "h")()
		defer b.lease.slots.claim("k", "h")()
		first := a.must(&fsm.Acquire{Key: "k", SessionId: sa, Holder: "h"}).Token
		b.must(&fsm.Acquire{Key: "k", SessionId: sb, Holder: "h", Wait: true})
		time.Sleep(10*time.Second + 500*time.Millisecond) // renewals at whole seconds
		c.isolate(a)
		cut := time.Now()
		<-a.lease.keeper.ending(sa)
		if got := time.Since(cut); got < 3*time.Second || got > 4*time.Second {
			t.Errorf("told to stop %v after the cut, want 3s to 4s", got)
		}
		<-a.lease.keeper.ended(sa)
		over := time.Now()
		if got := over.Sub(cut); got < 4*time.Second || got > 5*time.Second {
			t.Errorf("made to stop %v after the cut, want 4s to 5s", got)
		}
		if _, ok := holds(time.Minute, func() bool { l, ok := b.machine.View().Lease("k"); return ok && l.SessionID == sb }); !ok {
			t.Fatal("the lease never passed on")
		}
		if l := mustLease(t, b, "k"); l.Token <= first {
			t.Errorf("token %d after %d, want a larger one", l.Token, first)
		}
		if gap := time.Since(over); gap < 900*time.Millisecond || gap > 1500*time.Millisecond {
			t.Errorf("granted elsewhere %v after the end of trust, want about M = 1s", gap)
		}
		c.heal(a)
		if again := a.openSession(); again == sa {
			t.Error("the old session came back")
		}
	})
}

// holds waits until ok or the limit and tells how long that took.
func holds(limit time.Duration, ok func() bool) (time.Duration, bool) {
	began := time.Now()
	for !ok() {
		if time.Since(began) > limit {
			return time.Since(began), false
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began), true
}

// An election costs no lease: keep-alives find the next leader at once.
func TestSession_ElectionCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		lead := 0
		for range 30 {
			time.Sleep(700 * time.Millisecond)
			c.depose(c.nodes[lead])
			time.Sleep(2 * time.Second) // E
			lead = 2 - lead
			c.elect(lead)
		}
		if isClosed(n.lease.keeper.ending(id)) || n.openSession() != id {
			t.Error("elections of 2s each lost a session of 6s")
		}
	})
}

// Lost requests and lost answers cost trust only by their number.
func TestSession_LostReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		var nth atomic.Int32
		lose := func(which int32) func(*fakeNode, transport.Method) error {
			return func(_ *fakeNode, m transport.Method) error {
				if m == methodKeepAlive && nth.Load()%3 == which {
					nth.Add(1)
					return errors.New("connection reset")
				}
				if m == methodKeepAlive && which == 1 {
					nth.Add(1)
				}
				return nil
			}
		}
		c.mu.Lock()
		c.before, c.after = lose(0), lose(1) // in turn: request lost, answer lost, neither
		c.mu.Unlock()
		for range 300 {
			time.Sleep(time.Second)
			if left := n.lease.keeper.trusted(id); left < time.Second {
				t.Fatalf("trusted for %v only, with two of three keep-alives lost", left)
			}
		}
	})
}

// An answer that overtakes the log does not prolong a lease that the log has
// revoked: it counts only once the local copy has applied what it covers. A copy
// that lags costs nothing while nothing changed.
func TestSession_RevokeOvertaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		defer n.lease.slots.claim("k", "h")()
		token := n.must(&fsm.Acquire{Key: "k", SessionId: id, Holder: "h"}).Token
		if _, err := n.lease.slots.begin(t.Context(), "k", token); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		n.setLag(true)
		time.Sleep(time.Minute) // nothing of this session changes
		if left := n.lease.keeper.trusted(id); left < 2*time.Second {
			t.Fatalf("trusted for %v, want the full trust: a lagging copy costs nothing while nothing changed", left)
		}
		revoked := time.Now()
		c.nodes[0].must(&fsm.Revoke{Key: "k", Token: token})
		took, ok := holds(time.Minute, func() bool { return isClosed(n.lease.keeper.ending(id)) })
		if !ok || took > 4010*time.Millisecond {
			t.Errorf("told to stop %v after the revoke, want within T-M-S = 4s", took)
		}
		if took, ok := holds(time.Minute, func() bool { return isClosed(n.lease.keeper.ended(id)) }); !ok || time.Since(revoked) > 5010*time.Millisecond {
			t.Errorf("made to stop %v later, %v after the revoke; want within T-M = 5s", took, time.Since(revoked))
		}
		if l, ok := c.nodes[0].machine.View().Lease("k"); !ok || l.State != fsm.Revoked {
			t.Errorf("the lease was freed before its holder had to be out: %+v", l)
		}
		took, ok = holds(time.Minute, func() bool { _, held := c.nodes[0].machine.View().Lease("k"); return !held })
		if total := time.Since(revoked); !ok || total < 6*time.Second || total > 6500*time.Millisecond {
			t.Errorf("freed %v after the revoke, want T = 6s", total)
		}
		_ = took
	})
}

// A copy that catches up counts the answers that waited for it.
func TestSession_LaggingCopyCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		defer n.lease.slots.claim("k", "")()
		token := n.must(&fsm.Acquire{Key: "k", SessionId: id}).Token
		for range 20 {
			n.setLag(true)
			c.nodes[0].must(&fsm.Release{Key: "k", Token: token, SessionId: id})
			token = c.nodes[0].must(&fsm.Acquire{Key: "k", SessionId: id}).Token
			time.Sleep(2 * time.Second)
			n.setLag(false)
			time.Sleep(500 * time.Millisecond)
		}
		if isClosed(n.lease.keeper.ending(id)) {
			t.Error("lost though the copy never lagged for longer than 2s")
		}
	})
}

// With clocks whose rates differ by 5 % the holder is out before the lease
// passes on, whichever of them is fast.
func TestSession_ClockRates(t *testing.T) {
	for name, rates := range map[string][3]float64{
		"holder slow, leader fast": {1.025, 0.975, 1},
		"holder fast, leader slow": {0.975, 1.025, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newFakeCluster(t, 3, func(i int, cfg *leaseConfig) {
					cfg.clock = NewTestClock(rates[i], time.Duration(i)*time.Hour)
				})
				a, b := c.nodes[1], c.nodes[2]
				sa, sb := a.openSession(), b.openSession()
				for round := range 20 {
					key := fmt.Sprint("k", round)
					dropA, dropB := a.lease.slots.claim(key, ""), b.lease.slots.claim(key, "")
					a.must(&fsm.Acquire{Key: key, SessionId: sa})
					b.must(&fsm.Acquire{Key: key, SessionId: sb, Wait: true})
					time.Sleep(time.Duration(round) * 97 * time.Millisecond)
					c.isolate(a)
					over := a.lease.keeper.ended(sa)
					_, ok := holds(time.Minute, func() bool {
						l, ok := b.machine.View().Lease(key)
						return ok && l.SessionID == sb
					})
					if !ok {
						t.Fatal("never passed on")
					}
					if !isClosed(over) {
						t.Fatalf("round %d: granted elsewhere while the holder trusted its lease", round)
					}
					c.heal(a)
					sa = a.openSession()
					dropA()
					dropB()
				}
			})
		})
	}
}

// After a suspend nothing is trusted until the next confirmed keep-alive; a
// suspend past the TTL ends the session before anybody is told yes.
func TestSession_Suspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		k := n.lease.keeper
		id := n.openSession()
		time.Sleep(1500 * time.Millisecond)
		c.isolate(n)
		n.clock.Suspend(500 * time.Millisecond)
		if left := k.trusted(id); left != 0 {
			t.Errorf("trusted for %v right after a suspend, want 0", left)
		}
		if isClosed(k.ending(id)) {
			t.Error("a short suspend ended the session")
		}
		if err := k.confirm(timeoutIn(t, time.Second), id); err == nil {
			t.Error("confirmed while cut off")
		}
		c.heal(n)
		if err := k.confirm(timeoutIn(t, 2*time.Second), id); err != nil {
			t.Errorf("confirm: %v", err)
		}
		if left := k.trusted(id); left < 3*time.Second {
			t.Errorf("trusted for %v after the confirmation, want almost 4s", left)
		}
		n.clock.Suspend(30 * time.Second)
		if left := k.trusted(id); left != 0 {
			t.Errorf("trusted for %v after a suspend of 30s", left)
		}
		if !isClosed(k.ending(id)) || !isClosed(k.ended(id)) {
			t.Error("the session outlived a suspend of 30s")
		}
		if err := k.confirm(timeoutIn(t, time.Second), id); !errors.Is(err, fsm.ErrSessionExpired) {
			t.Errorf("confirm after 30s of suspend: %v, want ErrSessionExpired", err)
		}
	})
}

// A step of the wall clock sends a keep-alive and does nothing else, on the
// holder and on the leader.
func TestSession_WallJump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		time.Sleep(1300 * time.Millisecond)
		before := n.lease.keeper.trusted(id)
		n.clock.StepWall(time.Hour)
		c.nodes[0].clock.StepWall(-time.Hour)
		if left := n.lease.keeper.trusted(id); left != before {
			t.Errorf("trusted for %v, %v before the step", left, before)
		}
		time.Sleep(sleepTick)
		if left := n.lease.keeper.trusted(id); left < before {
			t.Errorf("trusted for %v after the step, %v before it: want a keep-alive at once", left, before)
		}
		time.Sleep(time.Minute)
		if n.openSession() != id {
			t.Error("a step of the wall clock lost the session")
		}
	})
}

// Confirm wants a keep-alive that was sent after the call: one under way does not
// do, and all who wait share the next.
func TestSession_Confirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		var sent atomic.Int32
		c.mu.Lock()
		c.delay = 50 * time.Millisecond
		c.before = func(_ *fakeNode, m transport.Method) error {
			if m == methodKeepAlive {
				sent.Add(1)
			}
			return nil
		}
		c.mu.Unlock()
		time.Sleep(1500 * time.Millisecond)
		sent.Store(0)
		began := time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if err := n.lease.keeper.confirm(t.Context(), id); err != nil {
					t.Error(err)
				}
				if d := time.Since(began); d < 100*time.Millisecond || d > 450*time.Millisecond {
					t.Errorf("confirmed after %v, want one round trip, two at most", d)
				}
			})
		}
		wg.Wait()
		if got := sent.Load(); got > 2 {
			t.Errorf("%d keep-alives of n1's session for 100 confirmations at once, want 1 or 2", got)
		}
	})
}

// Work that still stops when trust has ended keeps its session alive, so that
// nothing starts elsewhere; when it has returned the session is closed at once
// and another opened.
func TestSession_RunsOutlastTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n, b := c.nodes[1], c.nodes[2]
		id := n.openSession()
		defer n.lease.slots.claim("k", "h")()
		token := n.must(&fsm.Acquire{Key: "k", SessionId: id, Holder: "h"}).Token
		run, err := n.lease.slots.begin(t.Context(), "k", token)
		if err != nil {
			t.Fatal(err)
		}
		c.setCut(true, n, c.nodes[0]) // n's requests are lost for just too long
		<-n.lease.keeper.ending(id)
		c.setCut(false, n, c.nodes[0])
		time.Sleep(time.Minute) // the run does not return
		if l, ok := b.machine.View().Lease("k"); !ok || l.Token != token {
			t.Fatalf("lease %+v: it must stay with the run", l)
		}
		if !isClosed(n.lease.keeper.ended(id)) {
			t.Error("the end of trust moved with keep-alives that came later")
		}
		if _, err := n.lease.keeper.session(timeoutIn(t, time.Second)); !errors.Is(err, fsm.ErrNoQuorum) {
			t.Errorf("a session for new work: %v, want none while the old one lives", err)
		}
		n.lease.slots.returned(run)
		again := n.openSession()
		if again == id {
			t.Error("the session that had ended came back")
		}
		if _, ok := b.machine.View().Session(id); ok {
			t.Error("the old session is still there")
		}
	})
}

// A session that others end (expired by the leader, closed by a restart) is over
// at once when the copy says so, and another is opened.
func TestSession_GoneFromTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		c.nodes[0].must(&fsm.CloseSession{SessionId: id, Reason: fsm.CloseCrashed})
		synctest.Wait()
		if !isClosed(n.lease.keeper.ending(id)) || !isClosed(n.lease.keeper.ended(id)) {
			t.Error("a session that is gone goes on")
		}
		if left := n.lease.keeper.trusted(id); left != 0 {
			t.Errorf("trusted for %v", left)
		}
		if n.openSession() == id {
			t.Error("the ID of a dead session was used again")
		}
	})
}

// The planted defect: no margin, and counting from the answer.
func TestSession_NoMarginDefect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3, func(_ int, cfg *leaseConfig) { cfg.defects.NoMargin = true })
		n := c.nodes[1]
		id := n.openSession()
		time.Sleep(1100 * time.Millisecond)
		if left := n.lease.keeper.trusted(id); left < 5500*time.Millisecond {
			t.Errorf("trusted for %v, want the whole TTL with the defect", left)
		}
	})
}
