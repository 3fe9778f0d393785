package coord_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

var _ coord.Cluster = (*node.Node)(nil)

// real runs f in a bubble with three real nodes.
func real(t *testing.T, f func(t *testing.T, c *nodetest.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Nodes: 3, Seed: 1})
		c.WaitReady()
		f(t, c)
	})
}

// Ensures that singletons on real nodes run once, leave with their node at
// once, and are followed when their node is cut off, with no overlap.
func TestNode_Singletons(t *testing.T) {
	real(t, func(t *testing.T, c *nodetest.Cluster) {
		const singletons = 20
		var o observer
		var all sync.WaitGroup
		stops := make([]context.CancelFunc, c.Len())
		for i := range c.Len() {
			ctx, cancel := context.WithCancel(context.Background())
			stops[i] = cancel
			defer cancel()
			for k := range singletons {
				r := coord.NewRunner(c.Node(i), fmt.Sprint("k", k), func(ctx context.Context, l *coord.Lease) error {
					defer o.enter(fmt.Sprint(i), l)()
					select {
					case <-l.Draining():
					case <-ctx.Done():
					}
					return nil
				})
				all.Go(func() {
					if err := r.Run(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			time.Sleep(100 * time.Millisecond)
		}
		owners := func() map[string]int {
			count := make(map[string]int)
			for k := range singletons {
				for _, r := range o.of(fmt.Sprint("k", k)) {
					if r.end.IsZero() {
						count[r.who]++
					}
				}
			}
			return count
		}
		equal(t, owners()["0"], singletons, "singletons of the first")

		stops[0]() // the runners stop: everything passes to the second
		time.Sleep(time.Second)
		equal(t, owners()["1"], singletons, "singletons of the second")
		for k := range singletons {
			runs := o.of(fmt.Sprint("k", k))
			if gap := runs[1].start.Sub(runs[0].end); gap > 100*time.Millisecond {
				t.Errorf("gap of %v", gap)
			}
		}

		cut := time.Now()
		c.Isolate(1)
		c.Until(time.Minute, "the third has all", func() bool { return owners()["2"] == singletons })
		if d := time.Since(cut); d < 7*time.Second || d > 12*time.Second {
			t.Errorf("followed after %v", d)
		}
		c.Rejoin(1)
		time.Sleep(5 * time.Second)
		equal(t, owners()["2"], singletons, "singletons of the third")
		for _, stop := range stops {
			stop()
		}
		all.Wait()
		o.check(t)
	})
}

// Ensures that a node that leaves hands over before it is gone.
func TestNode_Leaves(t *testing.T) {
	real(t, func(t *testing.T, c *nodetest.Cluster) {
		leader := c.WaitLeader()
		next := (leader + 1) % c.Len()
		var o observer
		var all sync.WaitGroup
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for _, i := range []int{leader, next} {
			r := coord.NewRunner(c.Node(i), "k", func(ctx context.Context, l *coord.Lease) error {
				defer o.enter(fmt.Sprint(i), l)()
				select {
				case <-l.Draining():
				case <-ctx.Done():
				}
				return nil
			})
			all.Go(func() {
				if err := r.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(500 * time.Millisecond)
		}
		if err := c.Stop(leader); err != nil {
			t.Error(err)
		}
		c.Until(10*time.Second, "the next runs", func() bool { return len(o.of("k")) == 2 })
		runs := o.of("k")
		equal(t, runs[1].who, fmt.Sprint(next), "successor")
		if gap := runs[1].start.Sub(runs[0].end); gap > 100*time.Millisecond {
			t.Errorf("gap of %v", gap)
		}
		cancel()
		all.Wait()
		o.check(t)
	})
}
