package coord_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodetest"
)

// Ensures that a group on real nodes is shared out in few entries, that a drain
// leaves gaps of milliseconds, and that a node that is cut off is followed, with
// no overlap.
func TestNode_Group(t *testing.T) {
	real(t, func(t *testing.T, c *nodetest.Cluster) {
		const workloads = 300
		var o observer
		var all sync.WaitGroup
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		before := c.Node(0).View().Revision()
		start := time.Now()
		for i := range c.Len() {
			name := fmt.Sprint(i)
			co, err := coord.NewCoordinator(c.Node(i), coord.Group{Name: "g", Workloads: many(workloads)}, func(ctx context.Context, _ coord.Workload, l *coord.Lease) error {
				defer o.enter(name, l)()
				select {
				case <-l.Draining():
				case <-ctx.Done():
				}
				return nil
			}, func(cfg *coord.CoordinatorConfig) { cfg.Stuck.WhenLost = coord.PolicyReport })
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				if err := co.Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		c.Until(10*time.Second, "all run", func() bool { return o.count() == "0 100, 1 100, 2 100" })
		t.Logf("%d run after %v, %d entries", workloads, time.Since(start), c.Node(0).View().Revision()-before)

		res, err := c.Node(0).Submit(ctx, &fsm.MarkInstance{InstanceId: c.Node(1).InstanceID(), Mark: fsm.MarkDrain, By: "test"})
		if err != nil || fsm.ResultErr(res) != nil {
			t.Fatal(err, fsm.ResultErr(res))
		}
		c.Until(10*time.Second, "the drained one has none", func() bool { return o.count() == "0 150, 2 150" })
		var gaps []time.Duration
		for _, x := range many(workloads) {
			if runs := o.of("g/" + x.Key); len(runs) == 2 {
				gaps = append(gaps, runs[1].start.Sub(runs[0].end))
			}
		}
		slices.Sort(gaps)
		equal(t, len(gaps), 100, "moved")
		if p99 := gaps[98]; p99 > 100*time.Millisecond {
			t.Errorf("99 of 100 gaps are up to %v", p99)
		} else {
			t.Logf("gaps of a drain: median %v, 99th percentile %v", gaps[49], p99)
		}

		cut := time.Now()
		c.Isolate(2)
		c.Until(time.Minute, "the last has all", func() bool { return o.count() == "0 300" })
		if d := time.Since(cut); d < 7*time.Second || d > 12*time.Second {
			t.Errorf("followed after %v", d)
		}
		c.Rejoin(2)
		res, err = c.Node(0).Submit(ctx, &fsm.MarkInstance{InstanceId: c.Node(1).InstanceID(), Mark: fsm.MarkUndrain, By: "test"})
		if err != nil || fsm.ResultErr(res) != nil {
			t.Fatal(err, fsm.ResultErr(res))
		}
		c.Until(time.Minute, "shared out again", func() bool { return o.count() == "0 100, 1 100, 2 100" })
		stop()
		all.Wait()
		o.check(t)
	})
}
