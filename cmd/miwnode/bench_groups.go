package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/load"
	"github.com/miwnode/miwnode/node"
)

// benchGroup is a group that the three nodes of a cluster share out; every run
// stamps its start and end with one observer.
type benchGroup struct {
	watch *stamps
	stop  context.CancelFunc
	ended sync.WaitGroup
}

// shareOut has the nodes of c take part in a group of so many workloads.
func (c *benchCluster) shareOut(ctx context.Context, workloads int, prepare func(context.Context, coord.Workload) error) (*benchGroup, error) {
	all := make([]coord.Workload, workloads)
	for i := range all {
		all[i].Key = fmt.Sprintf("w%05d", i)
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	g := &benchGroup{watch: newStamps(), stop: stop}
	for _, n := range c.nodes {
		work := func(ctx context.Context, w coord.Workload, l *coord.Lease) error {
			defer g.watch.begin(w.Key, n.ID())()
			select {
			case <-l.Draining():
			case <-ctx.Done():
			}
			return nil
		}
		co, err := coord.NewCoordinator(n, coord.Group{Name: "bench", Workloads: all, Rebalance: coord.RebalanceGraceful}, work,
			func(c *coord.CoordinatorConfig) { c.Prepare = prepare })
		if err != nil {
			return nil, errors.Join(err, g.close())
		}
		g.ended.Go(func() { _ = co.Run(life) })
	}
	return g, nil
}

func (g *benchGroup) close() error {
	g.stop()
	g.ended.Wait()
	return nil
}

// runs waits until the nodes, in their order, run so many workloads each.
func (g *benchGroup) runs(ctx context.Context, nodes []*node.Node, counts ...int) error {
	return g.watch.wait(ctx, func(by map[string]int) bool {
		for i, n := range nodes {
			if by[n.ID()] != counts[i] {
				return false
			}
		}
		return true
	})
}

func benchGroupDrain(ctx context.Context, b *bench) (load.Row, error) {
	return b.groupDrain(ctx, nil)
}

// benchGroupPrepare: what takes two seconds to get ready is ready before its old
// owner is asked to stop.
func benchGroupPrepare(ctx context.Context, b *bench) (load.Row, error) {
	return b.groupDrain(ctx, func(ctx context.Context, _ coord.Workload) error { return pause(ctx, 2*time.Second) })
}

// groupDrain drains one of three nodes that share 300 workloads out. A gap is
// the time from the end of a workload's run to the start of its next.
func (b *bench) groupDrain(ctx context.Context, prepare func(context.Context, coord.Workload) error) (load.Row, error) {
	return b.inCluster(ctx, func(c *benchCluster) (row load.Row, err error) {
		const workloads = 300
		g, err := c.shareOut(ctx, workloads, prepare)
		if err != nil {
			return row, err
		}
		defer g.close()
		nodes := []*node.Node{c.nodes[c.leader], c.follower(0), c.follower(1)}
		if err := g.runs(ctx, nodes, workloads/3, workloads/3, workloads/3); err != nil {
			return row, err
		}
		victim := nodes[1]
		r, err := victim.Submit(ctx, &fsm.MarkInstance{InstanceId: victim.InstanceID(), Mark: fsm.MarkDrain, By: "bench"})
		if err == nil {
			err = fsm.ResultErr(r)
		}
		if err == nil {
			err = g.runs(ctx, nodes, workloads/2, 0, workloads/2)
		}
		if err != nil {
			return row, err
		}
		gaps := g.watch.gapsSoFar()
		if len(gaps) != workloads/3 {
			return row, fmt.Errorf("%d workloads moved, want %d", len(gaps), workloads/3)
		}
		return load.Row{P50: load.MS(load.Quantile(gaps, 0.5)), P99: load.MS(load.Quantile(gaps, 0.99)), Overlap: g.watch.overlaps}, nil
	})
}

// benchGroupStart starts three nodes on empty folders and has them share out as
// many workloads as a group may have: until all run, and what the whole log has
// by then.
func benchGroupStart(ctx context.Context, b *bench) (load.Row, error) {
	begin := time.Now()
	return b.inCluster(ctx, func(c *benchCluster) (row load.Row, err error) {
		g, err := c.shareOut(ctx, fsm.MaxWorkloads, nil)
		if err != nil {
			return row, err
		}
		defer g.close()
		all := func(by map[string]int) bool {
			return by[c.nodes[0].ID()]+by[c.nodes[1].ID()]+by[c.nodes[2].ID()] == fsm.MaxWorkloads
		}
		if err := g.watch.wait(ctx, all); err != nil {
			return row, err
		}
		took := time.Since(begin)
		return load.Row{P50: load.MS(took), Entries: float64(c.nodes[c.leader].Status().CommitIndex), Overlap: g.watch.overlaps}, nil
	})
}
