package node_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// TestChecklist_Leases shows the rows of the parity checklist that are the
// node's: who gets a lease, who keeps it, who loses it.
func TestChecklist_Leases(t *testing.T) {
	cfg := nodetest.Config{Seed: 11, Timing: benchTiming}
	submit := func(t *testing.T, n *node.Node, op fsm.Op) *fsm.Result {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		r, err := n.Submit(ctx, op)
		if err != nil {
			t.Fatalf("%T: %v", op, err)
		}
		return r
	}
	session := func(t *testing.T, c *nodetest.Cluster, i int) string {
		t.Helper()
		id, err := c.Node(i).Session(c.Context(20 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}

	bubble(t, "011_first_caller_gets_it", cfg, func(t *testing.T, c *nodetest.Cluster) {
		if acquire(t, c, 1, "k") == 0 {
			t.Error("no token")
		}
	})

	bubble(t, "012_others_are_refused_and_a_repeat_is_the_same_grant", cfg, func(t *testing.T, c *nodetest.Cluster) {
		token := acquire(t, c, 1, "k")
		if again := acquire(t, c, 1, "k"); again != token {
			t.Errorf("the owner's repeat got token %d, want %d", again, token)
		}
		r := submit(t, c.Node(2), &fsm.Acquire{Key: "k", SessionId: session(t, c, 2)})
		if fsm.Code(r.Code) != fsm.CodeLeaseHeld || r.GetHeldBy().GetNodeId() != c.Node(1).ID() {
			t.Errorf("another caller: %v, want lease_held by node 1", r)
		}
	})

	bubble(t, "013_renewed_through_five_TTLs", cfg, func(t *testing.T, c *nodetest.Cluster) {
		acquire(t, c, 1, "k")
		id := session(t, c, 2)
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
			if r := submit(t, c.Node(2), &fsm.Acquire{Key: "k", SessionId: id}); fsm.Code(r.Code) != fsm.CodeLeaseHeld {
				t.Fatalf("another caller got %v", r)
			}
		}
	})

	bubble(t, "014_silent_owner_loses_it", cfg, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		a := (c.WaitLeader() + 1) % 3
		b := (a + 1) % 3
		token := acquire(t, c, a, "k")
		id := session(t, c, b)
		c.Crash(a)
		crashed := time.Now()
		defer c.Node(b).Claim("k", "")()
		for {
			r := submit(t, c.Node(b), &fsm.Acquire{Key: "k", SessionId: id})
			if r.Code == 0 {
				if r.Token <= token {
					t.Errorf("token %d after %d", r.Token, token)
				}
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if took := time.Since(crashed); took < 5*time.Second || took > 9*time.Second {
			t.Errorf("taken over after %v, want T = 6s, and 2s for an election at most", took)
		}
	})

	bubble(t, "015_release_frees_at_once_and_only_the_owners", cfg, func(t *testing.T, c *nodetest.Cluster) {
		token := acquire(t, c, 1, "k")
		l, _ := c.Node(1).View().Lease("k")
		for name, op := range map[string]*fsm.Release{
			"another session": {Key: "k", Token: token, SessionId: session(t, c, 2)},
			"another token":   {Key: "k", Token: token + 1, SessionId: l.SessionID},
		} {
			if r := submit(t, c.Node(2), op); fsm.Code(r.Code) != fsm.CodeStaleToken {
				t.Errorf("%s: %v, want stale_token", name, r)
			}
		}
		if holderOf(c, 2, "k") != 1 {
			t.Error("a stranger's release freed the key")
		}
		submit(t, c.Node(1), &fsm.Release{Key: "k", Token: token, SessionId: l.SessionID})
		if acquire(t, c, 2, "k") <= token {
			t.Error("the token did not grow")
		}
	})

	bubble(t, "016_thousand_acquirers_one_success", cfg, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		var won atomic.Int32
		var wg sync.WaitGroup
		for i := range 3 {
			id := session(t, c, i)
			for j := range 334 {
				holder := fmt.Sprint(j)
				wg.Go(func() {
					defer c.Node(i).Claim("k", holder)()
					if r := submit(t, c.Node(i), &fsm.Acquire{Key: "k", SessionId: id, Holder: holder}); r.Code == 0 {
						won.Add(1)
					} else if fsm.Code(r.Code) != fsm.CodeLeaseHeld {
						t.Errorf("refused with %v", r)
					}
				})
			}
		}
		wg.Wait()
		if n := won.Load(); n != 1 {
			t.Errorf("%d of 1002 got the lease, want 1", n)
		}
	})

	bubble(t, "017_cancelled_acquire_leaves_nothing", cfg, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		id := session(t, c, 1)
		rng := rand.New(rand.NewPCG(17, 17))
		for j := range 100 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.Int64N(int64(3*time.Millisecond))))
			drop := c.Node(1).Claim(fmt.Sprint(j), "h")
			_, _ = c.Node(1).Submit(ctx, &fsm.Acquire{Key: fmt.Sprint(j), SessionId: id, Holder: "h"})
			cancel()
			drop()
		}
		time.Sleep(1500 * time.Millisecond)
		c.Converge()
		if n := c.Node(0).View().LeaseCount(); n != 0 {
			t.Errorf("%d leases without a holder are left", n)
		}
	})

	bubble(t, "018_tokens_grow_over_all_grants", cfg, func(t *testing.T, c *nodetest.Cluster) {
		var last uint64
		for j := range 30 {
			i := j % 3
			token := acquire(t, c, i, "k")
			if token <= last {
				t.Fatalf("token %d after %d", token, last)
			}
			last = token
			l, _ := c.Node(i).View().Lease("k")
			submit(t, c.Node(i), &fsm.Release{Key: "k", Token: token, SessionId: l.SessionID})
			if j == 15 {
				for i := range 3 {
					c.Restart(i)
				}
				c.WaitReady()
			}
		}
	})

	bubble(t, "019_work_stops_before_the_lease_can_pass_on", cfg, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		o := newObserver(t)
		workers(t, c, "w", o, time.Hour, 0, 1, 2) // work that stops only when it is made to
		for round := range 6 {
			running := -1
			c.Until(30*time.Second, "a run", func() bool { running, _ = o.now(); return running >= 0 })
			if round%2 == 0 {
				c.Isolate(running)
			} else {
				for i := range 3 {
					if i != running {
						c.Net.CutOneWay(c.Host(running), c.Host(i))
					}
				}
			}
			c.Until(30*time.Second, "a run elsewhere", func() bool { now, _ := o.now(); return now >= 0 && now != running })
			c.Rejoin(running)
			c.Net.HealAll()
			c.WaitReady()
		}
	})

	bubble(t, "026_renewed_while_running_without_a_log_entry", cfg, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		for j := range 100 {
			acquire(t, c, 1, fmt.Sprint(j))
		}
		time.Sleep(10 * time.Second)
		c.Converge()
		before := c.Node(0).View().Revision()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if after := c.Node(0).View().Revision(); after != before {
			t.Errorf("two minutes of renewals added %d entries to the log", after-before)
		}
		if n := c.Node(0).View().LeaseCount(); n != 100 {
			t.Errorf("%d leases are held, want 100", n)
		}
	})

	bubble(t, "042_transient_errors_are_retried_until_the_deadline", cfg, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		a := (c.WaitLeader() + 1) % 3
		o := newObserver(t)
		workers(t, c, "w", o, 0, a)
		c.Until(10*time.Second, "a run", runsOn(o, a))
		for range 20 { // outages shorter than T - M - S - R
			c.Isolate(a)
			time.Sleep(2 * time.Second)
			c.Rejoin(a)
			time.Sleep(2 * time.Second)
		}
		if _, runs := o.now(); len(runs) != 1 || runs[0].node != a {
			t.Errorf("%d runs, want the first to have gone on", len(runs))
		}
	})
}
