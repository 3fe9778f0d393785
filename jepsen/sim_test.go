package jepsen_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

// How many seeds a CI run has, without and with the race detector.
const (
	simSeeds = 320
	simRaced = 14
)

// simulate runs one seed and returns what was seen, to be judged.
func simulate(t *testing.T, cfg simConfig, faults []jepsen.Fault) (*jepsen.History, []jepsen.Step, []jepsen.Verdict) {
	var (
		h     *jepsen.History
		extra []jepsen.Verdict
		steps []jepsen.Step
	)
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(uint64(cfg.seed), 0x6c6f6164))
		length := time.Minute + time.Duration(rng.Int64N(int64(time.Minute)))
		s := newSim(t, cfg)
		if steps = cfg.steps; steps == nil {
			steps = jepsen.Schedule(cfg.seed, faults, s.names, length)
		}
		if cfg.lasts > 0 {
			steps = stretch(steps, cfg.lasts)
		}
		if !s.ready(30 * time.Second) {
			t.Error("the cluster was not ready within 30 s")
		}
		for i := range 4 {
			crng := rand.New(rand.NewPCG(uint64(cfg.seed), uint64(i)))
			c := &jepsen.Client{
				Name: fmt.Sprintf("c%d", i+1), R: s.r, Rng: crng, Rate: jepsen.ClockRate(crng), Nodes: s.names,
				Load: jepsen.Load{Keys: []string{"raw1", "raw2"}, TTL: 3 * time.Second, Renew: 500 * time.Millisecond, Hold: 1500 * time.Millisecond, CallTimeout: 2 * time.Second},
			}
			c.Endpoint = func(n string) jepsen.Endpoint { return s.endpoint(n, crng) }
			s.wg.Go(func() { c.Run(s.ctx) })
		}
		octx, stop := context.WithCancel(s.ctx)
		var operator sync.WaitGroup
		if cfg.operator {
			operator.Go(func() { s.operator(append([]string{"raw1", "raw2"}, cfg.singletons...)).Run(octx) })
		}
		(&jepsen.Nemesis{C: s, R: s.r, Faults: faults}).Run(s.ctx, steps)
		stop()
		operator.Wait()
		h, extra = s.finish()
	})
	return h, steps, extra
}

// stretch makes faults last at least d, one after the other.
func stretch(steps []jepsen.Step, d time.Duration) []jepsen.Step {
	at := time.Duration(0)
	for i := range steps {
		steps[i].At, steps[i].For = max(at, steps[i].At), max(steps[i].For, d)
		if steps[i].Fault == "step-down" {
			steps[i].For = time.Second
		}
		at = steps[i].At + steps[i].For + 3*time.Second
	}
	return steps
}

// TestSim torments a simulated cluster, one seed after the other: cuts both
// ways and one way, loss and delay, pauses, crashes and restarts at the same and
// at another address, clocks that run at different rates and jump, planned
// restarts and changes of leader.
func TestSim(t *testing.T) {
	if *seedsFlag == 0 && *seedFlag == 0 && *scheduleFlag == "" && !raceEnabled {
		t.Cleanup(func() { judgeSteps(t) })
	}
	torments(t, simSeeds, simRaced, func(seed int64) torment {
		return torment{run: simulate, faults: jepsen.AllFaults(), cfg: simConfig{
			seed: seed, name: "random faults", singletons: []string{"solo1", "solo2", "solo3"}, handles: []string{"raw1", "raw2"}, operator: true, stubborn: 30,
		}}
	}, func(c jepsen.Counts) bool { return c.Grants >= 20 && c.Runs >= 20 && c.Faults >= 5 && c.Samples >= 20 })
}
