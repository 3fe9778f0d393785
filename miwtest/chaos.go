package miwtest

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Fault is one sort of thing that Chaos does.
type Fault string

// Faults of Chaos. Each lasts up to fifteen seconds and is then taken back.
const (
	FaultCrash    Fault = "crash"     // kill -9; started again
	FaultRestart  Fault = "restart"   // a deploy of one node
	FaultPause    Fault = "pause"     // SIGSTOP; SIGCONT
	FaultIsolate  Fault = "isolate"   // a node is cut off from all others
	FaultCut      Fault = "cut"       // a link is cut
	FaultDelay    Fault = "delay"     // a node's packets are slow and get lost
	FaultDrain    Fault = "drain"     // an operator drains a node, and undrains it
	FaultStepDown Fault = "step down" // raft's leader hands over
)

// AllFaults are the faults of Chaos, in no particular order.
var AllFaults = []Fault{FaultCrash, FaultRestart, FaultPause, FaultIsolate, FaultCut, FaultDelay, FaultDrain, FaultStepDown}

// Chaos does the faults, all if none is named, one after the other by chance
// for at least d of the bubble's time, then has Calm. What chance does follows
// from Config.Seed.
func (c *Cluster) Chaos(d time.Duration, faults ...Fault) {
	c.t.Helper()
	if len(faults) == 0 {
		faults = slices.Clone(AllFaults)
	}
	rng := rand.New(rand.NewPCG(c.seed, uint64(c.Elapsed())))
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(between(rng, 0, 5*time.Second))
		c.strike(faults[rng.IntN(len(faults))], rng)
	}
	c.Calm()
}

// strike does one fault and takes it back.
func (c *Cluster) strike(f Fault, rng *rand.Rand) {
	c.t.Helper()
	i := rng.IntN(c.Len())
	j := (i + 1 + rng.IntN(c.Len()-1)) % c.Len()
	lasts := between(rng, 100*time.Millisecond, 15*time.Second)
	if !c.awake(i) { // it ended itself, and is about to be started
		return
	}
	switch f {
	case FaultCrash:
		c.Crash(i)
		time.Sleep(lasts)
		c.Start(i)
	case FaultRestart:
		c.Restart(i)
	case FaultPause:
		c.Pause(i)
		time.Sleep(lasts)
		c.Resume(i)
	case FaultIsolate:
		c.Isolate(i)
		time.Sleep(lasts)
		c.Rejoin(i)
	case FaultCut:
		c.Cut(i, j)
		time.Sleep(lasts)
		c.Heal(i, j)
	case FaultDelay:
		c.notef("packets of node %d are slow and get lost", i)
		for to := range c.Len() {
			c.inner.Net.SetDelay(c.Host(i), c.Host(to), 50*time.Millisecond, 100*time.Millisecond)
			c.inner.Net.SetLoss(c.Host(i), c.Host(to), 0.1)
		}
		time.Sleep(lasts)
		c.inner.Net.HealAll()
	case FaultDrain:
		c.Drain(i)
		time.Sleep(lasts)
		if c.Running(i) {
			c.Undrain(i)
		}
	case FaultStepDown:
		c.StepDown()
	}
}

func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)))
}
