package jepsen_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

// procWorkloads are what real processes share out.
var procWorkloads = []string{"w00", "w01", "w02", "w03", "w04", "w05", "w06", "w07", "w08", "w09", "w10", "w11"}

// sharers are two programs over HTTP that take part in the group beside the
// nodes; they stay as they are once calm is set.
func (g *rig) sharers(calm *atomic.Bool) {
	for i := range 2 {
		m := &jepsen.Member{
			Name: fmt.Sprintf("m%d", i+1), Group: "g", TTL: 3 * time.Second, Renew: 400 * time.Millisecond, Stop: 200 * time.Millisecond,
			R: g.r, Rng: rand.New(rand.NewPCG(uint64(cmp.Or(*seedFlag, 1)), uint64(100+i))), Rate: 1, Nodes: g.Nodes(), Endpoint: g.Endpoint, Calm: calm.Load,
		}
		g.wg.Go(func() { m.Run(g.ctx) })
	}
}

// steering steers the group through a node that is up and goes on.
func (g *rig) steering() jepsen.HTTPSteering {
	return jepsen.HTTPSteering{Name: "g", Any: func() *jepsen.HTTPEndpoint {
		for _, n := range g.Nodes() {
			ctx, cancel := context.WithTimeout(g.t.Context(), 300*time.Millisecond)
			_, err := g.API(n).Get(ctx, "/readyz", nil)
			cancel()
			if err == nil {
				return g.API(n)
			}
		}
		return nil
	}}
}

// rest waits until the group is as even as it gets, and notes that; what is not
// even in time is noted too, for the judge.
func (g *rig) rest(within time.Duration) {
	g.t.Helper()
	var r jepsen.Rest
	for deadline := g.r.Now() + within; ; {
		r = g.atRest()
		least, most := len(procWorkloads), 0
		for _, s := range r.Shares {
			if !s.Draining && !s.Cordoned {
				least, most = min(least, s.Has), max(most, s.Has)
			}
		}
		if r.Wanted > 0 && len(r.Nobody) == 0 && most-least <= 1 || g.r.Now() > deadline {
			g.r.Rest(r)
			return
		}
		g.pause(50 * time.Millisecond)
	}
}

func (g *rig) atRest() (r jepsen.Rest) {
	e := g.steering().Any()
	if e == nil {
		return r
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), 2*time.Second)
	defer cancel()
	group, err := e.Group(ctx, "g")
	if err != nil {
		return r
	}
	r = jepsen.Rest{Node: "any", Revision: group.Revision, Group: "g", Assigner: group.Assigner, Wanted: len(group.Workloads)}
	for _, w := range group.Workloads {
		if w.Owner == "" {
			r.Nobody = append(r.Nobody, w.Key)
		}
	}
	for _, m := range group.Members {
		r.Shares = append(r.Shares, jepsen.Share{Instance: m.InstanceID, Has: m.Workloads, Draining: m.Draining, Cordoned: m.Cordoned})
	}
	return r
}

// worst waits until every workload of owner runs elsewhere since a moment, and
// returns the longest time that took.
func (g *rig) worst(keys []string, since, within time.Duration) (longest time.Duration) {
	for _, k := range keys {
		if run, ok := g.owner(k, since, within); ok {
			longest = max(longest, run.Start-since)
		}
	}
	return longest
}

// workloadsOf are the keys whose latest run is a node's.
func (g *rig) workloadsOf(node string) (keys []string) {
	for _, w := range procWorkloads {
		if run, ok := g.owner("g/"+w, 0, time.Second); ok && run.Node == node {
			keys = append(keys, "g/"+w)
		}
	}
	return keys
}

// TestProcessGroup has three real nodes share out commands, and torments them:
// kill -9 with and without the guard, SIGSTOP longer than the TTL, a rolling
// restart; then programs over HTTP join and leave, and an operator drains,
// cordons and moves, under faults as the seed says.
func TestProcessGroup(t *testing.T) {
	processTier(t)
	g := newRig(t, "a group of processes on loopback", nil, procWorkloads)
	for _, w := range procWorkloads {
		if _, ok := g.owner("g/"+w, 0, 20*time.Second); !ok {
			return
		}
	}
	g.rest(20 * time.Second)
	const bound = 4*time.Second + 4*time.Second // TTL, an election and what processes cost

	kill := func(name string, guard bool, victim string) {
		t.Helper()
		keys := g.workloadsOf(victim)
		healed := g.r.Fault(name, []string{victim}, name+" "+victim)
		kids := descendants(g.Pid(victim))
		at := g.r.Now()
		g.Crash(victim)
		if guard {
			for _, pid := range kids {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		t.Logf("%s: its %d workloads all run elsewhere after %v", name, len(keys), g.worst(keys, at, bound))
		if err := g.Start(victim, false); err != nil {
			t.Fatal(err)
		}
		g.ready(15*time.Second, victim)
		healed()
		g.rest(20 * time.Second)
	}
	other := func() string { // one that does not lead
		l := g.Leader()
		return g.Nodes()[(slices.Index(g.Nodes(), l)+1)%3]
	}
	kill("kill", false, other())
	kill("kill-leader", false, cmp.Or(g.Leader(), "n1"))
	kill("kill-all", true, other())

	// SIGSTOP for longer than the lease: the guard stops the commands in time.
	victim := other()
	keys := g.workloadsOf(victim)
	healed := g.r.Fault("stop", []string{victim}, "SIGSTOP "+victim)
	at := g.r.Now()
	g.Pause(victim)
	t.Logf("SIGSTOP: its %d workloads all run elsewhere after %v", len(keys), g.worst(keys, at, bound))
	g.Resume(victim)
	healed()
	g.rest(20 * time.Second)

	// A rolling restart, as a deploy does it.
	for _, n := range g.Nodes() {
		healed = g.r.Fault("roll", []string{n}, "rolling restart of "+n)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		at = g.r.Now()
		if err := g.Leave(ctx, n); err != nil {
			t.Errorf("%v\n%s", err, g.logs())
		}
		cancel()
		t.Logf("%s left within %v", n, g.r.Now()-at)
		if err := g.Start(n, false); err != nil {
			t.Fatal(err)
		}
		g.ready(15*time.Second, n)
		healed()
	}
	g.rest(20 * time.Second)

	// And whatever the seed says.
	g.tormentGroup(g.schedule(25 * time.Second))
}

// tormentGroup carries a schedule out while members and an operator are at work,
// and judges.
func (g *rig) tormentGroup(steps []jepsen.Step) {
	g.t.Helper()
	var calm atomic.Bool
	g.sharers(&calm)
	operator := &jepsen.GroupOperator{R: g.r, Rng: rand.New(rand.NewPCG(uint64(cmp.Or(*seedFlag, 1)), 7)), Group: "g", Workloads: procWorkloads, S: g.steering()}
	octx, stop := context.WithCancel(g.ctx)
	var operating sync.WaitGroup
	operating.Go(func() { operator.Run(octx) })
	(&jepsen.Nemesis{C: g, R: g.r, Faults: g.faults}).Run(g.t.Context(), steps)
	stop()
	operating.Wait()
	calm.Store(true)
	g.ready(20*time.Second, g.Nodes()...)
	operator.Relieve(g.ctx)
	g.rest(30 * time.Second)
	g.finish(steps)
}

// TestProcessGroupPartition cuts the nodes of a group off from each other, each
// of them in a network namespace of its own.
func TestProcessGroupPartition(t *testing.T) {
	processTier(t)
	if err := jepsen.NamespacesAvailable(); err != nil {
		t.Skipf("no partition of real processes here: %v", err)
	}
	ns, err := jepsen.NewNamespaces([]string{"n1", "n2", "n3"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	g := newRig(t, "a group of processes in network namespaces", ns, procWorkloads)
	for _, w := range procWorkloads {
		if _, ok := g.owner("g/"+w, 0, 20*time.Second); !ok {
			return
		}
	}
	g.rest(20 * time.Second)
	steps := []jepsen.Step{
		{At: time.Second, For: 8 * time.Second, Fault: "isolate-leader", Node: "leader", Other: "n1"},
		{At: 14 * time.Second, For: 6 * time.Second, Fault: "cut-outgoing", Node: "leader", Other: "n1"},
		{At: 24 * time.Second, For: 6 * time.Second, Fault: "cut-incoming", Node: "leader", Other: "n1"},
	}
	for _, s := range g.schedule(15 * time.Second) {
		s.At += 32 * time.Second
		steps = append(steps, s)
	}
	g.tormentGroup(steps)
}
