package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// benchTiming: T 6 s, renewal 1 s, margin 1 s, stop budget 1 s; an election takes
// two seconds at most.
var benchTiming = node.Timing{
	SessionTTL: 6 * time.Second, RenewInterval: time.Second, Margin: time.Second, StopBudget: time.Second,
	RaftTimeout: 300 * time.Millisecond,
}

// observer is the one that all runs of a key report to.
type observer struct {
	t  *testing.T
	mu sync.Mutex
	// running is the node that runs now, -1 for none.
	running int
	token   uint64 // of the newest run
	runs    []spell
	losses  map[int]int // by node: how often it was told to stop
}

// spell is one run.
type spell struct {
	node        int
	token       uint64
	start, stop time.Time
}

func newObserver(t *testing.T) *observer {
	return &observer{t: t, running: -1, losses: map[int]int{}}
}

func (o *observer) start(node int, token uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running >= 0 {
		o.t.Errorf("node %d starts while node %d runs", node, o.running)
	}
	if token <= o.token {
		o.t.Errorf("node %d starts with token %d after %d", node, token, o.token)
	}
	o.running, o.token = node, token
	o.runs = append(o.runs, spell{node: node, token: token, start: time.Now()})
}

func (o *observer) stop(node int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running = -1
	o.losses[node]++
	o.runs[len(o.runs)-1].stop = time.Now()
}

func (o *observer) now() (running int, runs []spell) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.running, append([]spell{}, o.runs...)
}

// work is what a runner does: it holds the key on node i again and again, runs
// while it is trusted, stops when it is told to after as long as stopTime, and
// gives the key up in order.
func work(ctx context.Context, c *nodetest.Cluster, i int, key string, o *observer, stopTime time.Duration) {
	n := c.Node(i)
	holder := fmt.Sprintf("worker-%d", i)
	for ctx.Err() == nil {
		session, err := n.Session(ctx)
		if err != nil {
			return
		}
		runOnce(ctx, n, i, key, session, holder, o, stopTime)
	}
}

func runOnce(ctx context.Context, n *node.Node, i int, key, session, holder string, o *observer, stopTime time.Duration) {
	defer n.Claim(key, holder)()
	wake, stop := n.Watch(fsm.LeaseTopic(key))
	defer stop()
	r, err := n.Submit(ctx, &fsm.Acquire{Key: key, SessionId: session, Holder: holder, Wait: true})
	if err != nil || fsm.ResultErr(r) != nil {
		return
	}
	mine := func() (uint64, bool) {
		l, ok := n.View().Lease(key)
		if !ok || l.SessionID != session || l.Holder != holder || l.State != fsm.Held {
			return 0, false
		}
		return l.Token, true
	}
	token, ok := mine()
	for !ok {
		select {
		case <-wake:
		case <-n.SessionEnding(session):
			return
		case <-ctx.Done():
			return
		}
		token, ok = mine()
	}
	run, err := n.Begin(ctx, key, token)
	if err != nil {
		return
	}
	defer n.Returned(run)
	if n.Trusted(session) <= 0 {
		return
	}
	o.start(i, token)
	for held := true; held; {
		select {
		case <-wake:
			_, held = mine()
		case <-n.SessionEnding(session):
			held = false
		case <-ctx.Done():
			held = false
		}
	}
	n.Stopping(run)
	select {
	case <-time.After(stopTime):
	case <-n.SessionEnded(session):
	case <-ctx.Done(): // the test is over
	}
	o.stop(i)
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = n.Submit(rctx, &fsm.Release{Key: key, Token: token, SessionId: session})
}

// workers runs work on the nodes until the test ends.
func workers(t *testing.T, c *nodetest.Cluster, key string, o *observer, stopTime time.Duration, nodes ...int) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, i := range nodes {
		wg.Go(func() { work(ctx, c, i, key, o, stopTime) })
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func runsOn(o *observer, node int) func() bool {
	return func() bool { running, _ := o.now(); return running == node }
}

// TestScenario_Leases holds faults of leases that users of such systems have
// reported.
func TestScenario_Leases(t *testing.T) {
	cfg := func(seed uint64) nodetest.Config { return nodetest.Config{Seed: seed, Timing: benchTiming} }

	bubble(t, "B-01_loser_is_told_and_successor_waits", cfg(1), func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		leader := c.WaitLeader()
		a, b := (leader+1)%3, (leader+2)%3
		o := newObserver(t)
		workers(t, c, "w", o, 10*time.Second, a)
		c.Until(10*time.Second, "a runs", runsOn(o, a))
		workers(t, c, "w", o, 10*time.Second, b)
		time.Sleep(3 * time.Second)
		old, _ := c.Node(a).View().Lease("w")
		cut := time.Now()
		c.Isolate(a)
		c.Until(30*time.Second, "b runs", runsOn(o, b))
		if c.Node(a).Trusted(old.SessionID) > 0 {
			t.Error("a still trusts its session")
		}
		c.Rejoin(a)
		_, runs := o.now()
		// The last keep-alive was confirmed up to a second before the cut.
		if stopped := runs[0].stop.Sub(cut); stopped < 4*time.Second || stopped > 5050*time.Millisecond {
			t.Errorf("a's work ended %v after the cut, want 4s to 5s (T - M after its last confirmed keep-alive)", stopped)
		}
		if gap := runs[1].start.Sub(runs[0].stop); gap < 900*time.Millisecond {
			t.Errorf("b started %v after a's end, want the margin of 1s", gap)
		}
		if took := runs[1].start.Sub(cut); took > 6500*time.Millisecond {
			t.Errorf("b started %v after the cut, want T and a commit", took)
		}
		// A's late release does not hit b's grant.
		r, err := c.Node(a).Submit(c.Context(10*time.Second), &fsm.Release{Key: "w", Token: old.Token, SessionId: old.SessionID})
		if code := fsm.Code(r.GetCode()); err != nil || code != fsm.CodeStaleToken && code != fsm.CodeSessionExpired {
			t.Errorf("late release: %v, %v; want stale_token or session_expired", code, err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if running, _ := o.now(); running != b {
			t.Errorf("node %d runs, want b", running)
		}
		if n := o.losses[a]; n != 1 {
			t.Errorf("a was told of its loss %d times, want once", n)
		}
	})

	bubble(t, "B-09_flapping_link", cfg(9), func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		o := newObserver(t)
		workers(t, c, "w", o, 300*time.Millisecond, 0, 1, 2)
		c.Until(10*time.Second, "somebody runs", func() bool { running, _ := o.now(); return running >= 0 })
		rng := rand.New(rand.NewPCG(9, 9))
		for range 50 {
			a, _ := o.now() // the owner's link, if there is one
			if a < 0 {
				a = rng.IntN(3)
			}
			c.Isolate(a)
			time.Sleep(100*time.Millisecond + time.Duration(rng.Int64N(int64(7900*time.Millisecond))))
			c.Rejoin(a)
			time.Sleep(time.Duration(rng.Int64N(int64(2 * time.Second))))
		}
		c.Until(9*time.Second, "one owner again", func() bool { running, _ := o.now(); return running >= 0 })
		c.WaitReady()
		time.Sleep(10 * time.Second)
		c.Converge()
		view := c.Node(0).View()
		live := map[string]bool{}
		for s := range view.Sessions() {
			live[s.ID] = true
		}
		if len(live) != 3 {
			t.Errorf("%d sessions, want one per node", len(live))
		}
		for l := range view.Leases("", "") {
			if !live[l.SessionID] {
				t.Errorf("lease %s is of a dead session", l.Key)
			}
		}
		if n := view.WaiterCount("w"); n != 2 {
			t.Errorf("%d wait for the key, want the other two", n)
		}
		if _, runs := o.now(); len(runs) < 5 {
			t.Errorf("%d runs in 50 outages: the test shows little", len(runs))
		}
	})

	bubble(t, "B-19_waiter_whose_session_expires", cfg(19), func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		leader := c.WaitLeader()
		a, w := (leader+1)%3, (leader+2)%3
		acquire(t, c, a, "k")
		session, err := c.Node(w).Session(c.Context(5 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Node(w).Claim("k", "waiter")()
		r, err := c.Node(w).Submit(c.Context(5*time.Second), &fsm.Acquire{Key: "k", SessionId: session, Holder: "waiter", Wait: true})
		if err != nil || !r.GetQueued() {
			t.Fatalf("queue: %v, %v", r, err)
		}
		c.Isolate(w)
		cut := time.Now()
		select {
		case <-c.Node(w).SessionEnded(session):
		case <-time.After(time.Minute):
		}
		if took := time.Since(cut); took > 6*time.Second {
			t.Errorf("the waiter heard of its end after %v, want T = 6s at most", took)
		}
		c.Until(10*time.Second, "the session to expire", func() bool {
			_, live := c.Node(leader).View().Session(session)
			// Session and place go in one entry: no view has one without the other.
			if v := c.Node(leader).View(); !live && v.WaiterCount("k") != 0 {
				t.Fatal("the queue outlived the session")
			}
			return !live
		})
		if took := time.Since(cut); took > 6500*time.Millisecond {
			t.Errorf("expired %v after the cut, want T and a commit", took)
		}
	})

	bubble(t, "B-23_restart_frees_at_once", cfg(23), func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		leader := c.WaitLeader()
		a := (leader + 1) % 3
		token := acquire(t, c, a, "k")
		old, _ := c.Node(a).View().Lease("k")
		c.Crash(a)
		time.Sleep(500 * time.Millisecond)
		c.Start(a)
		restarted := time.Now()
		c.Until(10*time.Second, "the lease to be free", func() bool {
			_, held := c.Node(leader).View().Lease("k")
			return !held
		})
		if took := time.Since(restarted); took > time.Second {
			t.Errorf("free %v after the restart, want at once", took)
		}
		var reason fsm.EndReason
		for _, e := range c.Node(leader).View().History(fsm.HistoryQuery{Key: "k"}) {
			if e.Token == token {
				reason = e.EndReason
			}
		}
		if reason != fsm.EndRestarted {
			t.Errorf("the grant ended as %v, want restarted", reason)
		}
		// A wiped folder proves nothing: the session runs out its TTL.
		c.WaitReady()
		acquire(t, c, a, "k2")
		old, _ = c.Node(a).View().Lease("k2")
		time.Sleep(1500 * time.Millisecond)
		c.Crash(a)
		crashed := time.Now()
		c.Wipe(a)
		c.Start(a)
		c.Until(30*time.Second, "the session to lapse", func() bool {
			_, live := c.Node(leader).View().Session(old.SessionID)
			return !live
		})
		if took := time.Since(crashed); took < 4*time.Second || took > 7*time.Second {
			t.Errorf("lapsed after %v, want T = 6s after its last keep-alive", took)
		}
	})

	bubble(t, "B-25_end_and_close_without_servers", cfg(25), func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		session, err := c.Node(0).Session(c.Context(5 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		c.Crash(1)
		c.Crash(2)
		gone := time.Now()
		<-c.Node(0).SessionEnded(session)
		if took := time.Since(gone); took < 4*time.Second || took > 5050*time.Millisecond {
			t.Errorf("the session ended after %v, want T - M = 5s after its last confirmed keep-alive", took)
		}
		if _, err := c.Node(0).Session(c.Context(time.Second)); !errors.Is(err, fsm.ErrNoQuorum) {
			t.Errorf("another session: %v, want ErrNoQuorum", err)
		}
		left := time.Now()
		if err := c.Stop(0); err != nil {
			t.Errorf("stop: %v", err)
		}
		if took := time.Since(left); took > 3500*time.Millisecond {
			t.Errorf("the node took %v to leave without servers, want about 3s", took)
		}
	})

	bubble(t, "B-93_clocks_that_jump", cfg(93), func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		leader := c.WaitLeader()
		a := (leader + 1) % 3
		acquire(t, c, a, "k")
		l, _ := c.Node(a).View().Lease("k")
		session := l.SessionID
		c.Clock(a).StepWall(time.Hour)
		c.Clock(leader).StepWall(-time.Hour)
		time.Sleep(30 * time.Second)
		if left := c.Node(a).Trusted(session); left < 2*time.Second {
			t.Errorf("trusted for %v after steps of wall clocks, want as before", left)
		}
		if holderOf(c, leader, "k") != a {
			t.Error("a step of a wall clock moved a lease")
		}
		c.Clock(a).Suspend(30 * time.Second)
		if left := c.Node(a).Trusted(session); left > 0 {
			t.Errorf("trusted for %v after a suspend of 30s", left)
		}
		if err := c.Node(a).Confirm(c.Context(5*time.Second), session); err == nil {
			t.Error("confirmed after a suspend of 30s")
		}
		c.Until(5*time.Second, "the sleep in the ledger", func() bool { return len(sleeps(c, leader)) == 1 })
		if got, want := sleeps(c, leader)[0], (slept{"k", l.Token, c.Node(a).InstanceID(), "slept 30 s"}); got != want {
			t.Errorf("the ledger has %+v, want %+v", got, want)
		}
		// A leader that sleeps loses nobody's lease.
		other := (leader + 2) % 3
		acquire(t, c, other, "k2")
		c.Clock(c.WaitLeader()).Suspend(30 * time.Second)
		time.Sleep(10 * time.Second)
		if holderOf(c, other, "k2") != other {
			t.Error("a leader that slept expired a session that was renewed")
		}
		if got := sleeps(c, other); len(got) != 1 {
			t.Errorf("a sleep of a node that held nothing is in the ledger: %+v", got)
		}
	})
}

// slept is a sleep as the ledger has it.
type slept struct {
	key      string
	token    uint64
	instance string
	reason   string
}

func sleeps(c *nodetest.Cluster, i int) (all []slept) {
	for _, e := range c.Node(i).View().History(fsm.HistoryQuery{}) {
		if e.EndReason == fsm.EndSlept {
			all = append(all, slept{e.Key, e.Token, e.Who.InstanceID, e.Note.Reason})
		}
	}
	return all
}
