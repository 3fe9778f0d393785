package main

import (
	"context"
	"log/slog"
	"sync"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
)

// newGroup takes this node's part in a group whose workloads are processes of
// the node's guard.
func newGroup(n *node.Node, f groupFile, cfg startConfig) (*coord.Coordinator, error) {
	assigner, err := coord.AssignerOf(f.assigner)
	if err != nil {
		return nil, err
	}
	group := coord.Group{Name: f.name, Assigner: assigner, MaxMoves: f.maxMoves, Capacity: f.capacity}
	if f.rebalance == fsm.RebalanceGraceful {
		group.Rebalance = coord.RebalanceGraceful
	}
	commands := make(map[string]*command, len(f.workloads))
	for _, w := range f.workloads {
		group.Workloads = append(group.Workloads, coord.Workload{Key: w.key, DisplayName: w.displayName, Weight: w.weight, Labels: w.labels})
		commands[w.key] = newCommand(n, singleton{fsm.WorkloadKey(f.name, w.key), w.argv}, cfg)
	}
	run := func(ctx context.Context, w coord.Workload, l *coord.Lease) error { return commands[w.Key].run(ctx, l) }
	return coord.NewCoordinator(n, group, run, func(c *coord.CoordinatorConfig) {
		c.Logger = cfg.log
		// The guard kills the command by the instant at which this would have to
		// end the process.
		c.Stuck.WhenLost = coord.PolicyReport
	})
}

// sharing is a node's part in groups: those of its files, and planning for
// those whose members all came over HTTP.
type sharing struct {
	groups  []*coord.Coordinator
	planner *coord.Planner
	log     *slog.Logger
}

func newSharing(n *node.Node, cfg startConfig) (*sharing, error) {
	s := &sharing{log: cfg.log.With("node", n.ID())}
	for _, f := range cfg.groups {
		c, err := newGroup(n, f, cfg)
		if err != nil {
			return nil, err
		}
		s.groups = append(s.groups, c)
	}
	var err error
	s.planner, err = coord.NewPlanner(n, func(c *coord.PlannerConfig) { c.Logger = cfg.log })
	return s, err
}

// run ends with ctx, when all commands have.
func (s *sharing) run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, c := range s.groups {
		wg.Go(func() {
			if err := c.Run(ctx); err != nil {
				s.log.Error("group ended", "group", c.Status().Group, "error", err)
			}
		})
	}
	wg.Go(func() {
		if err := s.planner.Run(ctx); err != nil {
			s.log.Error("planning for members over HTTP ended", "error", err)
		}
	})
	wg.Wait()
}
