package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// A session that is renewed lives on, on every node, with clocks that disagree
// about the hour.
func TestSession_LivesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
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
	bubble(t, func(t *testing.T) {
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
		for {
			if l, ok := b.machine.View().Lease("k"); ok && l.SessionID == sb {
				if l.Token <= first {
					t.Errorf("token %d after %d, want a larger one", l.Token, first)
				}
				break
			}
			time.Sleep(time.Millisecond)
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
