package jepsen_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/jepsen"
)

// TestScenario holds faults that users of such systems reported against the
// whole cluster and the whole judge.
func TestScenario(t *testing.T) {
	plainOnly(t)
	// A link flaps 50 times, with outages from 0.1 to 8 s: never two owners, one
	// owner afterwards, nothing left of a dead session.
	t.Run("B-09_flapping_link_under_load", func(t *testing.T) {
		t.Parallel()
		rng := rand.New(rand.NewPCG(9, 9))
		var steps []jepsen.Step
		for at := 3 * time.Second; len(steps) < 50; {
			s := jepsen.Step{At: at, For: 100*time.Millisecond + time.Duration(rng.Int64N(int64(7900*time.Millisecond))), Fault: "cut", Node: "n1", Other: "n2"}
			if len(steps)%2 == 1 {
				s.Node = "leader"
			}
			steps = append(steps, s)
			at += s.For + 200*time.Millisecond + time.Duration(rng.Int64N(int64(2*time.Second)))
		}
		h, steps, extra := simulate(t, simConfig{seed: 9, name: "flapping link", singletons: []string{"solo1", "solo2"}, handles: []string{"raw1"}, steps: steps}, jepsen.AllFaults())
		t.Log(judge(t, h, steps, extra...).Summary())
	})

	// One node loses a fifth of its packets for ten minutes: whatever gossip makes
	// of it, no lease moves.
	t.Run("B-87_lossy_node_moves_nothing", func(t *testing.T) {
		t.Parallel()
		var h *jepsen.History
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, simConfig{seed: 87, name: "lossy node", singletons: []string{"solo1", "solo2", "solo3"}, restless: -1})
			if !s.ready(30 * time.Second) {
				t.Error("the cluster was not ready within 30 s")
			}
			lossy := "n3"
			if s.Leader() == lossy || s.holder("solo1") == lossy {
				lossy = "n2"
			}
			if s.Leader() == lossy || s.holder("solo1") == lossy {
				lossy = "n1"
			}
			time.Sleep(5 * time.Second)
			healed := s.r.Fault("lossy-node", []string{lossy}, lossy+" loses 20 % of its packets")
			for _, o := range s.names {
				if o != lossy {
					s.Shape(o, lossy, time.Millisecond, time.Millisecond, 0.2)
					s.Shape(lossy, o, time.Millisecond, time.Millisecond, 0.2)
				}
			}
			time.Sleep(10 * time.Minute)
			healed()
			h, _ = s.finish()
		})
		judge(t, h, nil)
		if len(h.Runs) != 3 {
			t.Errorf("runs of three keys in ten minutes: got %d, want 3: %+v", len(h.Runs), h.Runs)
		}
	})
}

// TestRegression holds the bugs that this suite found, each as the shortest
// way to it.
func TestRegression(t *testing.T) {
	plainOnly(t)
	// A command that was under way to the leader when its node stopped was
	// answered "closing", which says that it was not applied, and was.
	t.Run("command_under_way_when_its_node_leaves", func(t *testing.T) {
		t.Parallel()
		for seed := range int64(5) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, simConfig{seed: seed + 1, name: "leaving with commands under way", restless: -1})
				if !s.ready(30 * time.Second) {
					t.Error("the cluster was not ready within 30 s")
				}
				via := "n1"
				if s.Leader() == via {
					via = "n2"
				}
				l := s.lifeOf(via)
				ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
				defer cancel()
				const session = "00000000000000000000000000000abc"
				if _, err := l.n.Submit(ctx, &fsm.OpenSession{SessionId: session, TtlMs: 60000, Name: "c"}); err != nil {
					t.Error(err)
				}
				type refusal struct {
					key  string
					code fsm.Code
				}
				refused := make(chan refusal, 10000)
				for i := range 20 {
					s.wg.Go(func() {
						for n := 0; ctx.Err() == nil; n++ {
							key := fmt.Sprintf("k%d/%d", i, n)
							_, err := l.n.Submit(ctx, &fsm.Acquire{Key: key, SessionId: session})
							if code := fsm.CodeOf(err); code != fsm.CodeDone {
								if code != fsm.CodeUncertain {
									refused <- refusal{key, code}
								}
								return
							}
						}
					})
				}
				time.Sleep(300 * time.Millisecond)
				_ = s.Leave(ctx, via)
				<-l.done
				time.Sleep(2 * time.Second)
				other := s.lifeOf(s.leaderAmong([]string{"n1", "n2", "n3"}))
				for len(refused) > 0 {
					r := <-refused
					if _, ok := other.n.View().Lease(r.key); ok {
						t.Errorf("seed %d: acquire of %s was refused as %v, and is held", seed, r.key, r.code)
					}
				}
				s.finish()
			})
		}
	})
}
