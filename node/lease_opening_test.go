package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/transport"
)

// Opening counts from its first sending, retries included; where that was too
// long ago, nobody gets the session before a keep-alive is confirmed.
func TestSession_OpenCountsFromFirstSending(t *testing.T) {
	for name, wait := range map[string]time.Duration{"soon": 2 * time.Second, "late": 5500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &fakeCluster{t: t, cut: map[[2]string]bool{}}
				for i := range 3 {
					c.addNode(i, 1)
				}
				c.commit(fsm.NewCommand(&fsm.InitCluster{ClusterId: "test", Version: fsm.Version}))
				n := c.nodes[1]
				t.Cleanup(func() {
					for _, n := range c.nodes {
						n.halt()
					}
				})
				began := n.clock.Now()
				var keepAlives atomic.Int32
				c.before = func(_ *fakeNode, m transport.Method) error {
					if m == methodKeepAlive {
						if keepAlives.Add(1); name == "soon" {
							return errors.New("lost")
						}
					}
					return nil
				}
				n.start()
				c.nodes[0].start()
				time.Sleep(wait)
				c.elect(0)
				id := n.openSession()
				left := n.lease.keeper.trusted(id)
				until := n.clock.Now() + left - began
				switch {
				case name == "soon" && until != 4*time.Second:
					t.Errorf("trusted until %v after the first sending, want T-M-S = 4s", until)
				case name == "late" && (keepAlives.Load() == 0 || left < 3*time.Second):
					t.Errorf("trusted for %v after %d keep-alives, want a confirmed one first", left, keepAlives.Load())
				}
			})
		})
	}
}

// Leaving closes the session by a log entry, and says what it could not do.
func TestSession_Close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n, m := c.nodes[1], c.nodes[2]
		id := n.openSession()
		if err := n.lease.closeSession(timeoutIn(t, time.Second)); err != nil {
			t.Errorf("close: %v", err)
		}
		if _, ok := c.nodes[0].machine.View().Session(id); ok {
			t.Error("the session is still there")
		}
		if !isClosed(n.lease.keeper.ended(id)) {
			t.Error("work under a closed session is not told")
		}
		if _, err := n.lease.keeper.session(t.Context()); !errors.Is(err, fsm.ErrClosing) {
			t.Errorf("session after close: %v, want ErrClosing", err)
		}
		m.openSession()
		c.isolate(m)
		began := time.Now()
		if err := m.lease.closeSession(timeoutIn(t, 3*time.Second)); !errors.Is(err, fsm.ErrNoQuorum) {
			t.Errorf("close while cut off: %v, want ErrNoQuorum", err)
		}
		if d := time.Since(began); d != 3*time.Second {
			t.Errorf("took %v, want the 3s it was given", d)
		}
	})
}

// The next boot of a node closes its former session in the entry that opens the
// new one, if it is proved that nothing of it is left; else the TTL decides.
func TestSession_RestartProof(t *testing.T) {
	for _, proved := range []bool{true, false} {
		t.Run(fmt.Sprint(proved), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newFakeCluster(t, 3)
				n := c.nodes[1]
				id := n.openSession()
				time.Sleep(2 * time.Second)
				n.halt()
				c.mu.Lock()
				c.nodes = slices.Delete(c.nodes, 1, 2)
				c.mu.Unlock()
				again := c.addNode(1, 2, func(_ int, cfg *leaseConfig) {
					cfg.restartProved = func(context.Context) bool { return proved }
				})
				c.mu.Lock()
				again.behind = append([]*raft.Log{}, c.log...)
				again.now, again.knows = 1, "n0"
				c.mu.Unlock()
				again.applyBehind()
				restarted := time.Now()
				again.start()
				again.openSession()
				took, ok := holds(time.Minute, func() bool { _, live := c.nodes[0].machine.View().Session(id); return !live })
				switch {
				case !ok:
					t.Error("the former session was never ended")
				case proved && time.Since(restarted) > 0:
					t.Errorf("ended %v after the restart, want at once", took)
				case !proved && (took < 4*time.Second || took > 7*time.Second):
					t.Errorf("ended %v after the restart, want by its TTL of 6s", took)
				}
			})
		})
	}
}
