package jepsen_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/jepsen"
	"github.com/miwnode/miwnode/node"
)

// TestDefect_StalePlan has a plan applied that was made before an operator
// pinned what it moves.
func TestDefect_StalePlan(t *testing.T) {
	if raceEnabled {
		t.Skip("planted bugs are hunted without the race detector")
	}
	t.Parallel()
	p := &ponderer{}
	directed(t, drill{
		name: "a stale plan is applied", defects: node.Defects{FSM: fsm.Defects{StalePlan: true}}, want: jepsen.CheckPlan,
		edit: func(cfg *simConfig) {
			cfg.singletons = nil
			cfg.group = &groupConfig{group: coord.Group{Name: "g", Assigner: p, MaxMoves: 3, Workloads: []coord.Workload{{Key: "w00"}, {Key: "w01"}, {Key: "w02"}}}}
		},
		schedule: p.overtaken,
	})
}

// ponderer is an Assigner that takes its time, and has a mind of its own.
type ponderer struct {
	mu     sync.Mutex
	wish   map[string]string // workload → instance
	thinks time.Duration
}

func (p *ponderer) set(wish map[string]string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wish, p.thinks = wish, d
}

// Assign implements coord.Assigner, in a bubble.
func (p *ponderer) Assign(x coord.Problem) coord.Assignment {
	p.mu.Lock()
	wish, d := p.wish, p.thinks
	p.mu.Unlock()
	answer := coord.Sticky{}.Assign(x)
	for w, info := range x.Workloads {
		for i, in := range x.Instances {
			if in.ID == wish[info.Key] {
				answer[w] = i
			}
		}
	}
	time.Sleep(d)
	return answer
}

// overtaken pins a workload to its owner while a planner thinks of moving it.
func (p *ponderer) overtaken(t *testing.T, s *simCluster) {
	s.calm.Store(true) // nobody leaves the group
	owner := s.holder("g/w00")
	other := s.holder("g/w01")
	time.Sleep(5 * time.Second)
	instance := func(n string) string { return s.lifeOf(n).n.InstanceID() }
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	pin := func(workload, to string) {
		err := s.submit(ctx, &fsm.SetPin{Group: "g", Workload: workload, InstanceId: to, By: "operator"})
		s.r.Notef("", "operator: pin %s to %s: %v", workload, to, err)
		if err != nil {
			t.Errorf("pin %s: %v", workload, err)
		}
	}
	p.set(map[string]string{"w00": instance(s.others(owner)[0])}, 2*time.Second)
	pin("w01", instance(other)) // the planner begins to think
	time.Sleep(time.Second)
	pin("w00", instance(owner))
	time.Sleep(5 * time.Second)
	p.set(nil, 0)
}
