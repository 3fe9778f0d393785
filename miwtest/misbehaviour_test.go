package miwtest_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/miwtest"
)

// Work that breaks one rule each, and what a user is told.

// deafWork does not look at its context for seventy seconds.
func deafWork(context.Context, *coord.Lease) error {
	time.Sleep(70 * time.Second)
	return nil
}

// told fails unless exactly one violation of the kind was seen, with all the
// words in its text.
func told(t *testing.T, c *miwtest.Cluster, kind miwtest.Kind, words ...string) {
	t.Helper()
	var texts []string
	for _, v := range c.Violations() {
		if v.Kind == kind {
			texts = append(texts, v.String())
		}
	}
	if len(texts) != 1 {
		t.Errorf("%d violations of kind %q, want 1:\n%s", len(texts), kind, strings.Join(texts, "\n"))
		return
	}
	for _, w := range words {
		if !strings.Contains(texts[0], w) {
			t.Errorf("%q is not in the text: %s", w, texts[0])
		}
	}
}

// Ensures that a run that does not end with its drain is shown with its stack.
func TestMisbehaviour_IgnoresDrain(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		c.Expect(miwtest.Stuck)
		c.Deploy(runner("k", deafWork))
		owner := c.WaitOwner("k")
		c.Drain(owner)
		c.WaitIdle(owner)
		told(t, c, miwtest.Stuck, `the run of "k" on node`, "has not returned 35s after it was told to stop", "miwtest_test.deafWork")
	})
}

// Ensures that a run that ignores the loss of its lease ends its process, which
// is started again, and that nothing overlaps.
func TestMisbehaviour_IgnoresLoss(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		c.Expect(miwtest.Stuck)
		c.Deploy(runner("k", deafWork))
		owner := c.WaitOwner("k")
		n := c.Node(owner)
		c.Expire(owner)
		c.WaitOwner("k")
		c.WaitReady(owner)
		if c.Node(owner) == n {
			t.Error("the process goes on")
		}
		told(t, c, miwtest.Stuck, "has not returned 1s after it was told to stop", "miwtest_test.deafWork")
	})
}

// Ensures that work which asks for coord.PolicyReport is shown what that costs.
func TestMisbehaviour_Report(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		c.Expect(miwtest.Stuck, miwtest.Overlap)
		c.Deploy(runner("k", deafWork, func(cfg *coord.RunnerConfig) { cfg.Stuck.WhenLost = coord.PolicyReport }))
		owner := c.WaitOwner("k")
		c.Expire(owner)
		c.Until(time.Minute, "a second run", func() bool { return len(c.Runs("k")) == 2 })
		told(t, c, miwtest.Overlap, `a run of "k" is on node`, "while that on node")
	})
}

// Ensures that work which is left behind by a run that has returned is seen to
// go on, and to be there when the next begins.
func TestMisbehaviour_GoesOn(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		c.Expect(miwtest.Overdue, miwtest.Overlap)
		obs := c.Observe("ledger")
		c.Deploy(runner("k", func(ctx context.Context, l *coord.Lease) error {
			done := obs.Begin(l)
			go func() {
				<-ctx.Done()
				time.Sleep(10 * time.Second) // flushing
				done()
			}()
			<-ctx.Done()
			return nil
		}, func(cfg *coord.RunnerConfig) { cfg.Drain.Timeout = time.Second }))
		owner := c.WaitOwner("k")
		c.Expire(owner)
		obs.WaitCount(2)
		told(t, c, miwtest.Overdue, `a work of "ledger" is on node`, "must end when Lease.Context does")
		told(t, c, miwtest.Overlap, `a work of "ledger" is on node`)
	})
}

// Ensures that work under a lease that is lost is told what to ask first.
func TestMisbehaviour_NeedsValid(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		c.Expect(miwtest.Stale)
		obs := c.Observe("k")
		l, err := coord.Acquire(t.Context(), c.Node(0), "k")
		if err != nil {
			t.Fatal(err)
		}
		context.AfterFunc(l.Context(), func() { _ = l.Release(context.Background()) })
		obs.Begin(l)()
		c.Expire(0)
		obs.Begin(l)()
		told(t, c, miwtest.Stale, `a work on "k" of node 0`, "its lease is lost", "ask Lease.Valid before each, Lease.Confirm where it must be sure, and hand Lease.Token to what is written to")
		if obs.Count() != 1 {
			t.Errorf("%d works, want 1", obs.Count())
		}
	})
}

// Ensures that work which goes on as if its process had not stood still is told
// so, and that what it begins in the pause is not counted.
func TestMisbehaviour_NeedsValidAfterPause(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		c.Expect(miwtest.Stale, miwtest.Overdue)
		obs := c.Observe("k")
		l, err := coord.Acquire(t.Context(), c.Node(0), "k")
		if err != nil {
			t.Fatal(err)
		}
		c.Pause(0)
		time.Sleep(15 * time.Second)
		done := obs.Begin(l)
		c.Resume(0)
		obs.Begin(l)()
		told(t, c, miwtest.Stale, "its lease was lost while the process stood still")
		time.Sleep(5 * time.Second)
		done()
		told(t, c, miwtest.Overdue, `a work of "k" is on node 0`)
		_ = l.Release(t.Context())
	})
}

// Ensures that many works under one lease at a time are no overlap.
func TestObserver_Parallel(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		obs := c.Observe("k")
		c.Deploy(runner("k", func(ctx context.Context, l *coord.Lease) error {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					defer obs.Begin(l)()
					<-l.Draining()
				})
			}
			wg.Wait()
			return nil
		}))
		obs.WaitCount(4)
		c.Stop(c.Owner("k"))
		obs.WaitCount(8)
	})
}
