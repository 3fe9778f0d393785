package miwtest_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/miwtest"
)

// good is work that returns when it is asked to.
func good(ctx context.Context, l *coord.Lease) error {
	select {
	case <-l.Draining():
	case <-ctx.Done():
	}
	return nil
}

// runner is a program that runs work under key.
func runner(key string, work coord.Func, options ...func(*coord.RunnerConfig)) func(context.Context, *miwtest.Node) error {
	return func(ctx context.Context, n *miwtest.Node) error {
		return coord.NewRunner(n, key, work, options...).Run(ctx)
	}
}

// within fails unless d lies between least and most.
func within(t *testing.T, d, least, most time.Duration, what string) {
	t.Helper()
	if d < least || d > most {
		t.Errorf("%s after %v, want %v to %v", what, d, least, most)
	}
}

// Ensures that a crash passes the work on after the TTL, and that the program
// runs again where its node is started again.
func TestCluster_Crash(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		c.Deploy(runner("k", good))
		first := c.WaitOwner("k")
		at := c.Elapsed()
		c.Crash(first)
		if c.Owner("k") != -1 || c.Running(first) {
			t.Error("a crashed node runs its work")
		}
		second := c.WaitOwner("k")
		within(t, c.Elapsed()-at, 5*time.Second, 15*time.Second, "taken over")
		c.Start(first)
		c.Crash(second)
		c.Crash((3 - first) - second) // the third: only the first is left
		c.Start(second)
		c.WaitOwner("k", first, second)
		if runs := c.Runs("k"); len(runs) != 3 || runs[0].Node != first || runs[0].End != at || runs[2].End != 0 {
			t.Errorf("runs: %+v", runs)
		}
	})
}

// Ensures that programs of single nodes queue in the order of their starts.
func TestNode_Go(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		for i := range 2 {
			c.Node(i).Go(coord.NewRunner(c.Node(i), "k", good).Run)
			time.Sleep(100 * time.Millisecond)
		}
		c.WaitOwner("k", 0)
		c.Crash(0)
		c.WaitOwner("k", 1)
	})
}

// Ensures that what operators do passes work on at once, and drains are taken
// back.
func TestCluster_Operators(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		c.Deploy(runner("k", good, func(cfg *coord.RunnerConfig) { cfg.Drain.Resume = true }))
		owner := c.WaitOwner("k")
		soon := func(what string, do func()) {
			t.Helper()
			at := c.Elapsed()
			do()
			other := c.WaitOwner("k", (owner+1)%3, (owner+2)%3)
			within(t, c.Elapsed()-at, 0, time.Second, what)
			owner = other
		}
		drained := owner
		soon("drain", func() { c.Drain(drained) })
		c.WaitIdle(drained)
		c.Undrain(drained)
		soon("restart", func() { c.Restart(owner) })
		soon("revoke", func() { c.Revoke("k") })
		next := (owner + 2) % 3
		soon("move", func() { c.Move("k", next) })
		if owner != next {
			t.Errorf("moved to node %d, want %d", owner, next)
		}
		leader := c.Leader()
		if next := c.StepDown(); next == leader || c.Leader() != next {
			t.Errorf("node %d leads after node %d", next, leader)
		}
		if got := c.Owner("k"); got != owner {
			t.Errorf("node %d has it after a change of leader, want %d", got, owner)
		}
		c.Stop(owner)
		if c.Running(owner) {
			t.Error("runs after Stop")
		}
		c.Calm()
		c.WaitReady(owner)
	})
}

// Ensures that lost sessions end work in time and pass it on.
func TestCluster_Sessions(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		var causes []error
		c.Deploy(runner("k", func(ctx context.Context, l *coord.Lease) error {
			<-ctx.Done()
			causes = append(causes, context.Cause(ctx))
			return nil
		}, func(cfg *coord.RunnerConfig) { cfg.Drain.Timeout = time.Second }))
		for _, lose := range []func(int){c.LoseSession, c.Expire} {
			owner, at := c.WaitOwner("k"), c.Elapsed()
			runs := len(c.Runs("k"))
			lose(owner)
			c.Until(time.Minute, "another run", func() bool { return len(c.Runs("k")) > runs })
			// Told at T - M - S after the last keep-alive, which is up to 2 s
			// old.
			within(t, c.Runs("k")[runs-1].End-at, 6*time.Second, 8*time.Second, "ended")
			within(t, c.Runs("k")[runs].Start-at, 8*time.Second, 15*time.Second, "taken over")
		}
		if len(causes) != 2 || !errors.Is(causes[0], coord.ErrLost) || !errors.Is(causes[1], coord.ErrLost) {
			t.Errorf("causes: %v", causes)
		}
	})
}

// Ensures that what a paused process does is not counted, and that it is counted
// again where its lease has outlived the pause.
func TestCluster_Pause(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		obs := c.Observe("k")
		c.Deploy(runner("k", func(ctx context.Context, l *coord.Lease) error {
			defer obs.Begin(l)()
			<-ctx.Done()
			return nil
		}))
		owner := c.WaitOwner("k")
		c.Pause(owner)
		if c.Owner("k") != -1 || c.Running(owner) != true {
			t.Error("a paused node runs its work")
		}
		time.Sleep(3 * time.Second)
		c.Resume(owner)
		if got := c.Owner("k"); got != owner {
			t.Errorf("node %d runs it after a short pause, want %d", got, owner)
		}
		c.Pause(owner)
		other := c.WaitOwner("k")
		time.Sleep(3 * time.Second)
		c.Resume(owner)
		time.Sleep(5 * time.Second)
		if got := c.Owner("k"); got != other || other == owner {
			t.Errorf("node %d runs it after a long pause, want %d", got, other)
		}
		if !c.Running(owner) {
			t.Error("the node that stood still is down")
		}
		if spans := obs.Spans(); len(spans) != 2 || spans[0].Node != owner || spans[1].Node != other {
			t.Errorf("works: %+v", spans)
		}
	})
}

// Ensures that a cut link moves nothing, and an isolated node loses what it has.
func TestCluster_Cuts(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		c.Deploy(runner("k", good))
		owner := c.WaitOwner("k")
		next, last := (owner+1)%3, (owner+2)%3
		c.Cut(next, last)
		time.Sleep(30 * time.Second)
		c.Heal(next, last)
		if got := c.Runs("k"); len(got) != 1 {
			t.Errorf("runs: %+v", got)
		}
		c.Isolate(owner)
		c.WaitOwner("k", next, last)
		c.Rejoin(owner)
		c.WaitReady(owner)
	})
}

// Ensures that handles are observed as runs are.
func TestCluster_Acquire(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		l, err := coord.Acquire(t.Context(), c.Node(0), "k")
		if err != nil {
			t.Fatal(err)
		}
		c.WaitOwner("k", 0)
		if _, err := coord.Acquire(t.Context(), c.Node(1), "k", coord.Try()); !errors.Is(err, fsm.ErrLeaseHeld) {
			t.Errorf("got %v, want %v", err, fsm.ErrLeaseHeld)
		}
		done := c.Observe("k").Begin(l)
		done()
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if got := c.Owner("k"); got != -1 {
			t.Errorf("node %d has it after the release", got)
		}
	})
}

// Ensures that minutes of faults by chance leave the work of a group where
// it should be.
func TestCluster_Chaos(t *testing.T) {
	for seed := range uint64(2) {
		t.Run("", func(t *testing.T) {
			miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
				obs := c.Observe("shards/a")
				c.Deploy(func(ctx context.Context, n *miwtest.Node) error {
					g := coord.Group{Name: "shards", Workloads: []coord.Workload{{Key: "a"}, {Key: "b"}, {Key: "c"}}}
					co, err := coord.NewCoordinator(n, g, func(ctx context.Context, w coord.Workload, l *coord.Lease) error {
						if w.Key == "a" {
							defer obs.Begin(l)()
						}
						return good(ctx, l)
					})
					if err != nil {
						return err
					}
					return co.Run(ctx)
				})
				c.Chaos(2 * time.Minute)
				c.WaitOwned("shards/a", "shards/b", "shards/c")
				time.Sleep(10 * time.Second)
				var all []string
				for i := range c.Len() {
					all = append(all, c.Keys(i)...)
				}
				if slices.Sort(all); !slices.Equal(all, []string{"shards/a", "shards/b", "shards/c"}) {
					t.Errorf("owned: %v", all)
				}
				if n := len(c.Runs("shards/a")) + len(c.Runs("shards/b")) + len(c.Runs("shards/c")); n < 5 {
					t.Errorf("%d runs in two minutes of chaos", n)
				}
				if got, want := obs.Count(), len(c.Runs("shards/a")); got == 0 || got > want {
					t.Errorf("%d works in %d runs", got, want)
				}
			}, func(c *miwtest.Config) { c.Seed = seed + 1 })
		})
	}
}
