package jepsen_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/jepsen"
)

// How many seeds of a group a CI run has, without and with the race detector.
const (
	groupSeeds = 120
	groupRaced = 9
)

// groupConfig says what the group of a simulated cluster is like. Its name is
// "g"; every node has a Coordinator of it.
type groupConfig struct {
	workloads int
	members   int // that are no nodes
	group     coord.Group
	// prepares: successors get ready first, which takes up to a second and fails
	// now and then.
	prepares bool
	// deploys: what a Coordinator declares differs from one life to the next, but
	// for the first half of the workloads.
	deploys bool
}

// drawGroup draws a group from the seed.
func drawGroup(seed int64) *groupConfig {
	rng := rand.New(rand.NewPCG(uint64(seed), 0x67726f7570))
	c := &groupConfig{workloads: 24, members: 2 + rng.IntN(2), prepares: rng.IntN(3) == 0, deploys: rng.IntN(4) == 0}
	c.group = coord.Group{Name: "g", Rebalance: coord.Rebalance(rng.IntN(2)), MaxMoves: rng.IntN(5)}
	switch rng.IntN(10) {
	case 0:
		c.group.Assigner = coord.Balanced{}
	case 1:
		c.group.Assigner = coord.Primary{}
	}
	for i := range c.workloads {
		c.group.Workloads = append(c.group.Workloads, coord.Workload{Key: fmt.Sprintf("w%02d", i)})
	}
	return c
}

// keys are the workloads' names.
func (c *groupConfig) names() (names []string) {
	for _, w := range c.group.Workloads {
		names = append(names, w.Key)
	}
	return names
}

// wanted are the keys that every Coordinator declares.
func (c *groupConfig) wanted() (keys []string) {
	for _, w := range c.group.Workloads[:c.common()] {
		keys = append(keys, fsm.WorkloadKey("g", w.Key))
	}
	return keys
}

func (c *groupConfig) common() int {
	if c.deploys {
		return len(c.group.Workloads) / 2
	}
	return len(c.group.Workloads)
}

// declares is the group as one Coordinator declares it.
func (c *groupConfig) declares(rng *rand.Rand) coord.Group {
	g := c.group
	g.Workloads = slices.Clone(g.Workloads[:c.common()])
	for _, w := range c.group.Workloads[c.common():] {
		if rng.IntN(3) > 0 {
			g.Workloads = append(g.Workloads, w)
		}
	}
	return g
}

// shares has a life of a node take part in the group, as `miwnode start --group`
// does. Its Coordinator leaves now and then, and comes back. It runs in a bubble.
func (s *simCluster) shares(sn *simNode, l *simLife, cfg *groupConfig) {
	ctx := s.during(l)
	rng := rand.New(rand.NewPCG(uint64(s.cfg.seed), uint64(sn.index*1000+sn.boots)))
	work := func(ctx context.Context, w coord.Workload, lease *coord.Lease) error {
		return s.work.Do(ctx, jepsen.Grant{Proc: l.proc, Node: sn.name, Key: lease.Key(), Token: lease.Token(), Valid: lease.Valid, Draining: lease.Draining(), Dead: l.dead})
	}
	co, err := coord.NewCoordinator(l.n, cfg.declares(rng), work, func(c *coord.CoordinatorConfig) {
		c.Planning.Backoff = coord.Backoff{Initial: 200 * time.Millisecond, Max: time.Second}
		c.Stuck.Exit = func(int) { s.exit(sn, l, "a workload of the group") }
		c.Logger = s.c.Config(sn.index).Logger
		if cfg.prepares {
			c.Prepare, c.PrepareTimeout = preparing(uint64(s.cfg.seed)), 3*time.Second
		}
	})
	if err != nil {
		s.t.Error(err)
		return
	}
	planner, err := coord.NewPlanner(l.n)
	if err != nil {
		s.t.Error(err)
		return
	}
	s.wg.Go(func() { _ = planner.Run(ctx) })
	s.wg.Go(func() {
		for ctx.Err() == nil {
			stay := 10*time.Second + time.Duration(rng.Int64N(int64(50*time.Second)))
			away := 500*time.Millisecond + time.Duration(rng.Int64N(int64(5*time.Second)))
			there, leave := context.WithCancel(ctx)
			back := func() {}
			timer := time.AfterFunc(stay, func() {
				if s.calm.Load() {
					return
				}
				back = s.r.Fault(jepsen.FaultAway, []string{sn.name}, sn.name+" leaves the group for "+away.Round(time.Millisecond).String())
				leave()
			})
			_ = co.Run(there)
			left := there.Err() != nil
			timer.Stop()
			leave()
			if left || ctx.Err() == nil {
				time.Sleep(away)
			}
			back()
		}
	})
}

// preparing is a Prepare that takes up to a second, and fails one time in ten.
func preparing(seed uint64) func(context.Context, coord.Workload) error {
	var calls atomic.Uint64
	return func(ctx context.Context, _ coord.Workload) error {
		rng := rand.New(rand.NewPCG(seed, calls.Add(1)))
		t := time.NewTimer(time.Duration(rng.Int64N(int64(time.Second))))
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if rng.IntN(10) == 0 {
			return fmt.Errorf("not ready, as the seed says")
		}
		return nil
	}
}

// simSteering steers the group through whichever node answers.
type simSteering struct{ s *simCluster }

func (g simSteering) view() *fsm.View {
	if l := g.s.any(); l != nil {
		return l.n.View()
	}
	return nil
}

// Members implements jepsen.Steering.
func (g simSteering) Members() (all []jepsen.GroupInstance) {
	v := g.view()
	if v == nil {
		return nil
	}
	if group, ok := v.Group("g"); ok {
		for _, sess := range group.Members() {
			i := jepsen.GroupInstance{ID: sess.InstanceID, Draining: sess.Draining(), Cordoned: sess.Cordoned()}
			if !sess.Client {
				i.Node = sess.NodeID
			}
			all = append(all, i)
		}
	}
	return all
}

// Mark implements jepsen.Steering.
func (g simSteering) Mark(ctx context.Context, mark, instance string) error {
	marks := map[string]func() *fsm.MarkInstance{
		"drain":    func() *fsm.MarkInstance { return &fsm.MarkInstance{Mark: fsm.MarkDrain} },
		"undrain":  func() *fsm.MarkInstance { return &fsm.MarkInstance{Mark: fsm.MarkUndrain} },
		"cordon":   func() *fsm.MarkInstance { return &fsm.MarkInstance{Mark: fsm.MarkCordon} },
		"uncordon": func() *fsm.MarkInstance { return &fsm.MarkInstance{Mark: fsm.MarkUncordon} },
	}
	op := marks[mark]()
	op.InstanceId, op.By, op.Reason = instance, "operator", "as the seed says"
	return g.s.submit(ctx, op)
}

// Steer implements jepsen.Steering.
func (g simSteering) Steer(ctx context.Context, verb, workload, to string) error {
	switch verb {
	case "move":
		return g.s.submit(ctx, &fsm.MoveWorkload{Group: "g", Workload: workload, ToInstance: to, By: "operator"})
	case "pause", "resume":
		return g.s.submit(ctx, &fsm.SetPause{Group: "g", Workload: workload, Paused: verb == "pause", By: "operator"})
	case "revoke":
		v := g.view()
		if v == nil {
			return fsm.ErrNotReady
		}
		l, held := v.Lease(fsm.WorkloadKey("g", workload))
		if !held {
			return fsm.ErrNotFound
		}
		return g.s.submit(ctx, &fsm.Revoke{Key: l.Key, Token: l.Token, By: "operator"})
	}
	return g.s.submit(ctx, &fsm.SetPin{Group: "g", Workload: workload, InstanceId: to, By: "operator"})
}

// rest notes how a copy shows the group.
func (s *simCluster) rest() {
	l := s.any()
	if l == nil {
		s.t.Error("no node is ready though nothing hinders it")
		return
	}
	v := l.n.View()
	g, ok := v.Group("g")
	if !ok {
		s.t.Error("there is no group")
		return
	}
	s.r.Rest(s.restOf(l, v, g))
}

// restOf is how a copy shows a group.
func (s *simCluster) restOf(l *simLife, v *fsm.View, g *fsm.Group) jepsen.Rest {
	r := jepsen.Rest{Node: l.n.ID(), Revision: v.Revision(), Group: g.Name, Assigner: g.Settings.Assigner, Wanted: g.WantedCount()}
	if s.cfg.group != nil && s.cfg.group.deploys {
		r.Assigner += ", not all can run all"
	}
	has := map[string]int{}
	for w := range g.Workloads("") {
		switch {
		case w.Lease != nil:
			has[w.Lease.Who.InstanceID]++
		case s.could(g, w.Spec):
			r.Nobody = append(r.Nobody, w.Key)
		}
	}
	for _, sess := range g.Members() {
		r.Shares = append(r.Shares, jepsen.Share{Instance: sess.InstanceID, Has: has[sess.InstanceID], Draining: sess.Draining(), Cordoned: sess.Cordoned()})
	}
	return r
}

// even tells whether a copy shows a group as it should be at rest.
func (s *simCluster) even(l *simLife, v *fsm.View, group string) bool {
	g, ok := v.Group(group)
	if !ok {
		return false
	}
	r := s.restOf(l, v, g)
	return len(r.Faults()) == 0
}

// quiet is how long nothing has changed once all is at rest: longer than anybody
// waits before the next try.
const quiet = 8 * time.Second

// settled waits until all is well and nothing changes any more, but most at the
// longest. With one seed of four it waits that long in any case: what is at rest
// stays so.
func (s *simCluster) settled(most time.Duration, well func(l *simLife, v *fsm.View) bool) {
	revision, since, end := uint64(0), time.Now(), time.Now().Add(most)
	for time.Until(end) > 0 {
		time.Sleep(min(time.Second, time.Until(end)))
		l := s.any()
		if l == nil || s.cfg.seed%4 == 0 {
			revision = 0
			continue
		}
		if v := l.n.View(); v.Revision() != revision || !well(l, v) {
			revision, since = v.Revision(), time.Now()
		}
		if time.Since(since) >= quiet {
			return
		}
	}
}

// could tells whether anybody may be given the workload.
func (s *simCluster) could(g *fsm.Group, workload *fsm.Spec) bool {
	for _, sess := range g.Members() {
		if g.CanRun(sess.InstanceID, workload.Key) {
			return true
		}
	}
	return false
}

// simulateGroup runs one seed of a group and returns what was seen, to be judged.
func simulateGroup(t *testing.T, cfg simConfig, faults []jepsen.Fault) (*jepsen.History, []jepsen.Step, []jepsen.Verdict) {
	var (
		h     *jepsen.History
		extra []jepsen.Verdict
		steps []jepsen.Step
	)
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(uint64(cfg.seed), 0x6c6f6164))
		length := 40*time.Second + time.Duration(rng.Int64N(int64(40*time.Second)))
		s := newSim(t, cfg)
		if steps = cfg.steps; steps == nil {
			steps = jepsen.Schedule(cfg.seed, faults, s.names, length)
		}
		if !s.ready(30 * time.Second) {
			t.Error("the cluster was not ready within 30 s")
		}
		for i := range cfg.group.members {
			mrng := rand.New(rand.NewPCG(uint64(cfg.seed), uint64(100+i)))
			m := &jepsen.Member{
				Name: fmt.Sprintf("m%d", i+1), Group: "g", TTL: 3 * time.Second, Renew: 400 * time.Millisecond, Stop: 500 * time.Millisecond,
				R: s.r, Rng: mrng, Rate: jepsen.ClockRate(mrng), Nodes: s.names, Calm: s.calm.Load,
			}
			m.Endpoint = func(n string) jepsen.Endpoint { return s.endpoint(n, mrng) }
			s.wg.Go(func() { m.Run(s.ctx) })
		}
		operator := &jepsen.GroupOperator{R: s.r, Rng: rand.New(rand.NewPCG(uint64(cfg.seed), 0x6f70)), Group: "g", Workloads: cfg.group.names(), S: simSteering{s}}
		octx, stop := context.WithCancel(s.ctx)
		var operating sync.WaitGroup
		if cfg.operator {
			operating.Go(func() { operator.Run(octx) })
		}
		(&jepsen.Nemesis{C: s, R: s.r, Faults: faults}).Run(s.ctx, steps)
		stop()
		operating.Wait()
		s.settles(operator, rng)
		h, extra = s.finish()
	})
	return h, steps, extra
}

// settles lets the group come to rest twice: with everybody there, and with one
// instance drained or cordoned.
func (s *simCluster) settles(operator *jepsen.GroupOperator, rng *rand.Rand) {
	s.calm.Store(true)
	s.work.Calm()
	s.mend()
	time.Sleep(s.cfg.timing.SessionTTL + 8*s.cfg.timing.RaftTimeout) // whoever has died is gone
	operator.Relieve(s.ctx)
	well := func(l *simLife, v *fsm.View) bool { return s.even(l, v, "g") }
	s.settled(40*time.Second, well)
	s.rest()
	all := operator.S.Members()
	if len(all) < 2 {
		s.t.Errorf("members though nothing hinders them: %v", all)
		return
	}
	who, mark := all[rng.IntN(len(all))], []string{"drain", "cordon"}[rng.IntN(2)]
	healed := s.r.Fault(mark, []string{who.Node}, mark+" "+who.ID)
	if err := operator.S.Mark(s.ctx, mark, who.ID); err != nil {
		s.t.Errorf("%s %s: %v", mark, who.ID, err)
	}
	s.settled(15*time.Second, well)
	s.rest()
	healed()
}

// TestSimGroup torments a group in a simulated cluster, one seed after the other:
// instances join and leave, are drained and cordoned, crash, pause, restart and
// are cut off, while every workload's run stamps its start and stop.
func TestSimGroup(t *testing.T) {
	torments(t, groupSeeds, groupRaced, func(seed int64) torment {
		return torment{run: simulateGroup, faults: jepsen.AllFaults(), cfg: simConfig{
			seed: seed, name: "group under random faults", group: drawGroup(seed), operator: true, stubborn: 60,
		}}
	}, func(c jepsen.Counts) bool {
		return c.Grants >= 40 && c.Runs >= 40 && c.Moves > 0 && c.Faults >= 5 && c.Rests == 2
	})
}
