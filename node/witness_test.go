package node

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

// seenBy counts what the witnesses of a fake cluster find.
type seenBy struct {
	overlaps atomic.Int64
	mu       sync.Mutex
	gaps     []time.Duration
}

// option gives the nodes clocks of different rates and offsets, and counts.
func (s *seenBy) option(defects func(i int) Defects) fakeOption {
	return func(i int, cfg *leaseConfig) {
		cfg.clock = NewTestClock([]float64{1, 0.975, 1.025}[i%3], time.Duration(i*i)*17*time.Hour)
		cfg.observe = observer{
			overlapped: func() { s.overlaps.Add(1) },
			gap: func(d time.Duration) {
				s.mu.Lock()
				s.gaps = append(s.gaps, d)
				s.mu.Unlock()
			},
		}
		if defects != nil {
			cfg.defects = defects(i)
		}
	}
}

// take queues for the key and waits for it; work begins, and ends with stop,
// which releases the key a moment later.
func (n *fakeNode) take(key string) (stop func(rest time.Duration), token uint64) {
	n.c.t.Helper()
	id := n.openSession()
	holder := fmt.Sprintf("%s of %s", key, n.id)
	drop := n.lease.slots.claim(key, holder)
	n.must(&fsm.Acquire{Key: key, SessionId: id, Holder: holder, Wait: true})
	for {
		l, ok := n.machine.View().Lease(key)
		if ok && l.SessionID == id && l.Holder == holder {
			token = l.Token
			break
		}
		time.Sleep(time.Millisecond)
	}
	run := n.work(key, token)
	return func(rest time.Duration) {
		n.lease.slots.finished(run)
		time.Sleep(rest)
		n.must(&fsm.Release{Key: key, Token: token, SessionId: id})
		n.lease.slots.returned(run)
		drop()
	}, token
}

func (n *fakeNode) work(key string, token uint64) (run uint64) {
	n.c.t.Helper()
	run, err := n.lease.slots.begin(n.c.t.Context(), key, token)
	if err != nil {
		n.c.t.Fatal(err)
	}
	n.lease.slots.started(run)
	return run
}

func overlapsIn(v *fsm.View) (n int) {
	events, _ := v.Events(fsm.EventID{})
	for e := range events {
		if e.Type == fsm.EventLeaseOverlap {
			n++
		}
	}
	return n
}

// Keys that go round three nodes whose clocks differ by hours and 5 %: no
// overlap, and every gap is what it was.
func TestWitness_HandOvers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seenBy
		c := newFakeCluster(t, 3, seen.option(nil))
		c.mu.Lock()
		c.delay = 2 * time.Millisecond
		c.mu.Unlock()
		const keys, rounds, rest = 10, 20, 30 * time.Millisecond
		for _, n := range c.nodes {
			n.openSession()
		}
		var all sync.WaitGroup
		for _, n := range c.nodes {
			for k := range keys {
				all.Go(func() {
					for range rounds {
						stop, _ := n.take(fmt.Sprint("k", k))
						time.Sleep(300 * time.Millisecond)
						stop(rest)
					}
				})
			}
		}
		all.Wait()
		time.Sleep(10 * time.Second)
		if n := seen.overlaps.Load(); n != 0 {
			t.Errorf("%d overlaps where there is none", n)
		}
		seen.mu.Lock()
		defer seen.mu.Unlock()
		if got, want := len(seen.gaps), keys*(3*rounds-1); got != want {
			t.Errorf("%d gaps, want %d", got, want)
		}
		for _, d := range seen.gaps {
			// The rest, the release and at most a look of the one that waits.
			if d < rest-5*time.Millisecond || d > rest+20*time.Millisecond {
				t.Errorf("a gap of %v, truly 30ms to 40ms", d)
			}
		}
		w := c.nodes[0].lease.witness
		doubt, ok := w.uncertainty()
		if !ok || doubt > 10*time.Millisecond {
			t.Errorf("uncertain by %v (%t), want at most 10ms", doubt, ok)
		}
		// Nothing runs any more: nothing is reported, and nothing is kept.
		time.Sleep(2 * time.Minute)
		stop, _ := c.nodes[1].take("last")
		time.Sleep(time.Minute)
		stop(0)
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.keys) > 1 || w.total > 1 || len(w.aged) > 0 {
			t.Errorf("kept: %d keys, %d runs, %d that are over", len(w.keys), w.total, len(w.aged))
		}
	})
}

// Time for which nobody wanted the key is no gap.
func TestWitness_NobodyWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seenBy
		c := newFakeCluster(t, 3, seen.option(nil))
		for _, n := range c.nodes {
			stop, _ := n.take("k")
			time.Sleep(time.Second)
			stop(0)
			time.Sleep(5 * time.Second)
		}
		if len(seen.gaps) != 0 || seen.overlaps.Load() != 0 {
			t.Errorf("gaps %v, %d overlaps, want none", seen.gaps, seen.overlaps.Load())
		}
	})
}

// A planted bug that starts work twice is found, once, within three renewals,
// and recorded; under a new leader, too.
func TestWitness_DoubleRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seenBy
		c := newFakeCluster(t, 3, seen.option(func(i int) Defects { return Defects{DoubleRun: i == 2} }))
		c.nodes[1].openSession()
		stop, token := c.nodes[1].take("k")
		if took, ok := holds(10*time.Second, func() bool { return seen.overlaps.Load() > 0 }); !ok || took > 3*testTiming.RenewInterval {
			t.Errorf("found after %v (%t), want within %v", took, ok, 3*testTiming.RenewInterval)
		}
		time.Sleep(10 * time.Second)
		for _, n := range c.nodes {
			if got := overlapsIn(n.machine.View()); got != 1 {
				t.Errorf("%s has %d overlaps in its copy, want 1", n.id, got)
			}
		}
		events, _ := c.nodes[0].machine.View().Events(fsm.EventID{})
		for e := range events {
			if e.Type == fsm.EventLeaseOverlap && (e.Key != "k" || e.Token != token) {
				t.Errorf("recorded %+v, want key k and token %d", e, token)
			}
		}
		// The next leader knows nothing and is told.
		c.elect(1)
		if _, ok := holds(10*time.Second, func() bool { return seen.overlaps.Load() == 2 }); !ok {
			t.Errorf("%d overlaps after a new leader, want 2", seen.overlaps.Load())
		}
		stop(0)
		time.Sleep(time.Minute)
		if n := seen.overlaps.Load(); n != 2 {
			t.Errorf("%d overlaps in the end, want 2", n)
		}
	})
}

// Work that goes on after its lease was lost overlaps with what its successor
// does; that is found when its node is heard again.
func TestWitness_WorkOutlivesItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seenBy
		c := newFakeCluster(t, 3, seen.option(nil))
		a, b := c.nodes[1], c.nodes[2]
		_, token := a.take("k")
		time.Sleep(3 * time.Second)
		c.isolate(a)
		begun := make(chan struct{})
		go func() {
			_, next := b.take("k")
			if next <= token {
				t.Errorf("token %d after %d", next, token)
			}
			close(begun)
		}()
		<-begun
		time.Sleep(5 * time.Second)
		if n := seen.overlaps.Load(); n != 0 {
			t.Errorf("%d overlaps before anybody can know", n)
		}
		c.heal(a)
		if took, ok := holds(10*time.Second, func() bool { return seen.overlaps.Load() > 0 }); !ok {
			t.Errorf("not found within %v of being heard again", took)
		}
		time.Sleep(10 * time.Second)
		if n := seen.overlaps.Load(); n != 1 {
			t.Errorf("%d overlaps, want 1", n)
		}
	})
}

// A process that was held up does not know when its work ended, and a clock
// that jumped says nothing about what was before: neither makes an overlap.
func TestWitness_HeldUp(t *testing.T) {
	for name, harm := range map[string]func(c *fakeCluster, n *fakeNode){
		"stopped": func(c *fakeCluster, n *fakeNode) {
			n.clock.Freeze()
			c.isolate(n)
			time.Sleep(20 * time.Second)
			n.clock.Thaw()
			c.heal(n)
		},
		"cut off, and the clock jumps": func(c *fakeCluster, n *fakeNode) {
			c.isolate(n)
			time.Sleep(20 * time.Second)
			n.clock.Suspend(time.Hour)
			c.heal(n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var seen seenBy
				c := newFakeCluster(t, 3, seen.option(nil))
				a, b := c.nodes[1], c.nodes[2]
				_, token := a.take("k")
				run := a.lease.slots.runs()[0].ID
				time.Sleep(3 * time.Second)
				go b.take("k")
				harm(c, a)
				time.Sleep(10 * time.Millisecond)
				// It knows to a second for how long, by its own clock, and speaks of it for a while.
				want := 20 * time.Second
				if name != "stopped" {
					want = time.Hour
				}
				if got := a.lease.runs.heldUpFor(); (got - want).Abs() > time.Second {
					t.Errorf("held up for %v, want %v", got, want)
				}
				a.lease.slots.finished(run)
				a.lease.slots.returned(run)
				time.Sleep(20 * time.Second)
				if got := a.lease.runs.heldUpFor(); got != 0 {
					t.Errorf("held up for %v, long after", got)
				}
				if l := mustLease(t, b, "k"); l.Token <= token {
					t.Fatal("not passed on: the test shows nothing")
				}
				if n := seen.overlaps.Load(); n != 0 {
					t.Errorf("%d overlaps", n)
				}
				// It is observed again with what begins now.
				stop, _ := a.take("other")
				time.Sleep(10 * time.Second)
				stop(0)
				w := c.nodes[0].lease.witness
				w.mu.Lock()
				k := w.keys["other"]
				w.mu.Unlock()
				if k == nil || len(k.runs) != 1 {
					t.Error("a run after the hold-up is not observed")
				}
			})
		})
	}
}

// A run whose work was never said to be over takes no further part.
func TestWitness_ReturnedWithoutFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seenBy
		c := newFakeCluster(t, 3, seen.option(nil))
		a, b := c.nodes[1], c.nodes[2]
		id := a.openSession()
		_, token := a.take("k")
		run := a.lease.slots.runs()[0].ID
		got := make(chan func(time.Duration))
		go func() { stop, _ := b.take("k"); got <- stop }()
		time.Sleep(3 * time.Second)
		a.must(&fsm.Release{Key: "k", Token: token, SessionId: id})
		stop := <-got
		time.Sleep(5 * time.Second)
		stop(0)
		a.lease.slots.returned(run)
		if n := seen.overlaps.Load(); n != 1 { // a said that it worked on, and it was believed
			t.Errorf("%d overlaps, want 1", n)
		}
		if len(seen.gaps) != 0 {
			t.Errorf("gaps %v after a run whose end is not known", seen.gaps)
		}
	})
}

// While nothing changes nothing is sent beside keep-alives; while nothing runs
// they carry nothing.
func TestWitness_CostsNothingWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seenBy
		c := newFakeCluster(t, 3, seen.option(nil))
		var alone atomic.Int64
		c.mu.Lock()
		c.before = func(_ *fakeNode, m transport.Method) error {
			if m == methodReportRuns {
				alone.Add(1)
			}
			return nil
		}
		c.mu.Unlock()
		n := c.nodes[1]
		stop, _ := n.take("k")
		time.Sleep(10 * time.Second)
		if got := alone.Load(); got > 2 {
			t.Errorf("%d reports by themselves for the start of one run", got)
		}
		alone.Store(0)
		time.Sleep(10 * time.Minute)
		if got := alone.Load(); got != 0 {
			t.Errorf("%d reports while nothing changed", got)
		}
		stop(0)
		time.Sleep(time.Minute)
		seq := func() uint64 {
			l := n.lease.runs
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.watching {
				t.Error("the clock is watched while nothing runs")
			}
			return l.seq
		}
		before := seq()
		time.Sleep(10 * time.Minute)
		if after := seq(); after != before {
			t.Errorf("still reporting: %d to %d", before, after)
		}
	})
}

// Reports that come late, twice or under another name change nothing; what is
// kept is bounded.
func TestWitness_ReportsAreChecked(t *testing.T) {
	clock := NewTestClock(1, 0)
	var overlaps int
	w := newWitness(leaseConfig{clock: clock, log: discardLog, observe: observer{overlapped: func() { overlaps++ }}}, nil)
	w.term, w.nodes, w.keys = 7, map[string]*seenNode{}, map[string]*seenKey{}
	w.passed.reset(true)
	report := func(seq uint64, runs ...*nodepb.RunInterval) *nodepb.RunReport {
		return &nodepb.RunReport{Term: 7, Seq: seq, Sent: int64(clock.boot()), Runs: runs, InstanceId: "i"}
	}
	a := sender{"a", 2}
	running := &nodepb.RunInterval{Run: 1, Key: "k", Token: 1}
	if r := w.take(a, 7, report(5, running), clock.boot()); r == nil || r.Term != 7 {
		t.Fatalf("not taken: %v", r)
	}
	for name, r := range map[string]*nodepb.RunReply{
		"the same again":    w.take(a, 7, report(5), clock.boot()),
		"an older one":      w.take(a, 7, report(4), clock.boot()),
		"an earlier boot":   w.take(sender{"a", 1}, 7, report(9), clock.boot()),
		"of another term":   w.take(a, 6, report(9), clock.boot()),
		"nothing to report": w.take(a, 7, nil, clock.boot()),
	} {
		if r != nil {
			t.Errorf("%s was taken", name)
		}
	}
	// An echo of what was never sent is no round trip.
	q := report(6)
	q.EchoSeq, q.EchoReceived = 99, int64(clock.boot())
	w.take(a, 7, q, clock.boot())
	if len(w.nodes["a"].clock.trips) != 0 {
		t.Error("a trip of an unknown report counts")
	}
	// More runs of one key than fit, and more keys.
	seq := uint64(10)
	for i := range uint64(20) {
		w.take(sender{fmt.Sprint("n", i), 1}, 7, report(1, &nodepb.RunInterval{Run: i + 2, Key: "k", Token: i + 2}), clock.boot())
	}
	if n := len(w.keys["k"].runs); n != maxSeenPerKey {
		t.Errorf("%d runs of one key, want %d", n, maxSeenPerKey)
	}
	for i := 0; i < maxSeen+5000; i += maxReported {
		var runs []*nodepb.RunInterval
		for j := range maxReported {
			runs = append(runs, &nodepb.RunInterval{Run: uint64(100 + i + j), Key: fmt.Sprint("key", i+j), Token: uint64(100 + i + j)})
		}
		seq++
		w.take(a, 7, report(seq, runs...), clock.boot())
	}
	if w.total != maxSeen {
		t.Errorf("%d runs in memory, want %d", w.total, maxSeen)
	}
	for i := range uint64(2 * maxPassed) {
		w.passed.add(i+1, i+2)
	}
	if len(w.passed.by) != maxPassed || w.passed.from(2*maxPassed+1) != 2*maxPassed || w.passed.from(2) != 0 {
		t.Errorf("%d grants remembered, want the newest %d", len(w.passed.by), maxPassed)
	}
	// Nothing is mapped, so nothing is certain.
	if overlaps != 0 {
		t.Errorf("%d overlaps of runs of which nothing is known", overlaps)
	}
	// Who is silent is forgotten, and its runs with it.
	w.sweep(clock.boot() + 10*silentAfter)
	if w.total != 0 || len(w.nodes) != 0 || len(w.keys) != 0 {
		t.Errorf("left of the silent: %d runs, %d nodes, %d keys", w.total, len(w.nodes), len(w.keys))
	}
}
