package jepsen_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

// TestProcess torments three real nodes on loopback: kill -9 with and without
// the guard, SIGSTOP shorter and longer than the TTL, a rolling restart, then
// faults as the seed says.
func TestProcess(t *testing.T) {
	processTier(t)
	g := newRig(t, "processes on loopback", nil, nil)
	slack := g.r.Now() // nothing before this counts below
	for _, k := range procSettings.Singletons {
		if _, ok := g.owner(k, 0, 20*time.Second); !ok {
			return
		}
	}
	t.Logf("first runs %v after the observer's beginning", g.r.Now()-slack)

	// kill -9 of a holder, the guard lives: its commands die and the key passes on by proof.
	run, _ := g.owner("solo1", 0, time.Second)
	healed := g.r.Fault("kill", []string{run.Node}, "kill -9 "+run.Node+", its guard lives")
	at := g.r.Now()
	g.Crash(run.Node)
	if next, ok := g.owner("solo1", at, procSettings.TTL+4*time.Second); ok {
		t.Logf("kill -9 of a holder's node: next run on %s after %v", next.Node, next.Start-at)
	}
	if err := g.Start(run.Node, false); err != nil {
		t.Fatal(err)
	}
	g.ready(15*time.Second, run.Node)
	healed()

	// kill -9 of a holder and all that belongs to it, and the restart proves the death.
	g.settled()
	run, _ = g.owner("solo1", 0, time.Second)
	healed = g.r.Fault("kill-all", []string{run.Node}, "kill -9 "+run.Node+" with its guard")
	kids := descendants(g.Pid(run.Node))
	at = g.r.Now()
	g.Crash(run.Node)
	for _, pid := range kids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := g.Start(run.Node, false); err != nil {
		t.Fatal(err)
	}
	if next, ok := g.owner("solo1", at, procSettings.TTL+6*time.Second); ok {
		t.Logf("kill -9 of node and guard, restart at once: next run on %s after %v", next.Node, next.Start-at)
	}
	g.ready(15*time.Second, run.Node)
	healed()

	// SIGSTOP of a holder for longer than its lease: the guard stops the command in time.
	g.settled()
	run, _ = g.owner("solo2", 0, time.Second)
	healed = g.r.Fault("stop", []string{run.Node}, "SIGSTOP "+run.Node)
	at = g.r.Now()
	g.Pause(run.Node)
	if next, ok := g.owner("solo2", at, procSettings.TTL+6*time.Second); ok {
		t.Logf("SIGSTOP of a holder's node: next run on %s after %v", next.Node, next.Start-at)
	}
	g.Resume(run.Node)
	healed()

	// SIGSTOP of the leader, shorter than the TTL.
	if l := g.Leader(); l != "" {
		healed = g.r.Fault("stop", []string{l}, "SIGSTOP leader "+l)
		g.Pause(l)
		g.pause(procSettings.TTL / 2)
		g.Resume(l)
		healed()
	}

	// A rolling restart, one after the other as a deploy does it.
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

	// And whatever the seed says.
	steps := g.schedule(25 * time.Second)
	(&jepsen.Nemesis{C: g, R: g.r, Faults: g.faults}).Run(t.Context(), steps)
	g.finish(steps)
}

// TestProcessPartition cuts real nodes off from each other, each of them in a
// network namespace of its own.
func TestProcessPartition(t *testing.T) {
	processTier(t)
	if err := jepsen.NamespacesAvailable(); err != nil {
		t.Skipf("no partition of real processes here: %v", err)
	}
	ns, err := jepsen.NewNamespaces([]string{"n1", "n2", "n3"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	g := newRig(t, "processes in network namespaces", ns, nil)
	for _, k := range procSettings.Singletons {
		if _, ok := g.owner(k, 0, 20*time.Second); !ok {
			return
		}
	}
	n := &jepsen.Nemesis{C: g, R: g.r, Faults: g.faults}
	steps := []jepsen.Step{
		{At: time.Second, For: 8 * time.Second, Fault: "isolate-leader", Node: "leader", Other: "n1"},
		{At: 14 * time.Second, For: 6 * time.Second, Fault: "cut-outgoing", Node: "leader", Other: "n1"},
		{At: 24 * time.Second, For: 6 * time.Second, Fault: "cut-incoming", Node: "leader", Other: "n1"},
	}
	for _, s := range g.schedule(20 * time.Second) {
		s.At += 32 * time.Second
		steps = append(steps, s)
	}
	n.Run(t.Context(), steps)
	g.finish(steps)
}
