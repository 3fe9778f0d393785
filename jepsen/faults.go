package jepsen

import (
	"context"
	"math/rand/v2"
	"time"
)

func hitsNode(_ *Nemesis, s Step) []string { return []string{s.Node} }
func hitsBoth(_ *Nemesis, s Step) []string { return []string{s.Node, s.Other} }
func hitsAll(n *Nemesis, _ Step) []string  { return n.C.Nodes() }

// cuts makes a fault that cuts directions and mends the same ones.
func cuts(directions func(n *Nemesis, s Step, do func(from, to string))) (inject, heal func(context.Context, *Nemesis, Step) error) {
	return func(_ context.Context, n *Nemesis, s Step) error { directions(n, s, n.cut); return nil },
		func(_ context.Context, n *Nemesis, s Step) error { directions(n, s, n.mend); return nil }
}

// faultFlapping is a cut that comes and goes.
const faultFlapping = "flapping"

// AllFaults are the faults of this suite.
func AllFaults() []Fault {
	cut := Fault{Name: "cut", Needs: []Verb{VerbCut}, Weight: 10, Hits: hitsNode}
	cut.Inject, cut.Heal = cuts(func(n *Nemesis, s Step, do func(from, to string)) {
		n.others(s.Node, func(o string) { do(s.Node, o); do(o, s.Node) })
	})
	link := Fault{Name: "cut-link", Needs: []Verb{VerbCut}, Weight: 6, Hits: hitsBoth}
	link.Inject, link.Heal = cuts(func(_ *Nemesis, s Step, do func(from, to string)) {
		do(s.Node, s.Other)
		do(s.Other, s.Node)
	})
	out := Fault{Name: "cut-outgoing", Needs: []Verb{VerbCut}, Weight: 6, Hits: hitsNode}
	out.Inject, out.Heal = cuts(func(n *Nemesis, s Step, do func(from, to string)) {
		n.others(s.Node, func(o string) { do(s.Node, o) })
	})
	in := Fault{Name: "cut-incoming", Needs: []Verb{VerbCut}, Weight: 6, Hits: hitsNode}
	in.Inject, in.Heal = cuts(func(n *Nemesis, s Step, do func(from, to string)) {
		n.others(s.Node, func(o string) { do(o, s.Node) })
	})
	oneWay := Fault{Name: "cut-one-way", Needs: []Verb{VerbCut}, Weight: 4, Hits: hitsBoth}
	oneWay.Inject, oneWay.Heal = cuts(func(_ *Nemesis, s Step, do func(from, to string)) { do(s.Node, s.Other) })
	all := Fault{Name: "cut-all", Needs: []Verb{VerbCut}, Weight: 2, Hits: hitsAll}
	all.Inject, all.Heal = cuts(func(n *Nemesis, _ Step, do func(from, to string)) {
		for _, a := range n.C.Nodes() {
			n.others(a, func(b string) { do(a, b) })
		}
	})
	leads := Fault{Name: "isolate-leader", Needs: []Verb{VerbCut}, Weight: 8, Hits: hitsNode, Draw: func(_ *rand.Rand, s *Step) { s.Node = leader }}
	leads.Inject, leads.Heal = cut.Inject, cut.Heal

	// The others are two halves that don't see each other; the node sees both.
	bridge := Fault{Name: "bridge", Needs: []Verb{VerbCut}, Weight: 4, Hits: func(n *Nemesis, s Step) (hit []string) {
		n.others(s.Node, func(o string) { hit = append(hit, o) })
		return hit
	}}
	bridge.Inject, bridge.Heal = cuts(func(n *Nemesis, s Step, do func(from, to string)) {
		var others []string
		n.others(s.Node, func(o string) { others = append(others, o) })
		half := len(others) / 2
		for _, a := range others[:half] {
			for _, b := range others[half:] {
				do(a, b)
				do(b, a)
			}
		}
	})
	flapping := Fault{Name: faultFlapping, Needs: []Verb{VerbCut}, Weight: 5, Hits: hitsNode, Flaps: true, Draw: func(rng *rand.Rand, s *Step) {
		s.Jump = draw(rng, 50*time.Millisecond, 1500*time.Millisecond)
	}}
	flapping.Inject, flapping.Heal = cut.Inject, cut.Heal

	return append([]Fault{
		cut, link, out, in, oneWay, all, leads, bridge, flapping,
		{
			// Each packet and each stream takes a time of its own, so that what was sent
			// later overtakes what was sent before; within one stream nothing does.
			Name: "jumble", Needs: []Verb{VerbShape}, Weight: 3, Hits: hitsAll,
			Draw:   func(rng *rand.Rand, s *Step) { s.Jump = draw(rng, 10*time.Millisecond, 150*time.Millisecond) },
			Inject: func(_ context.Context, n *Nemesis, s Step) error { n.shapeAll(0, s.Jump, 0); return nil },
			Heal:   func(_ context.Context, n *Nemesis, _ Step) error { n.shapeAll(0, 0, 0); return nil },
		},
		{
			Name: "lossy", Needs: []Verb{VerbShape}, Weight: 4, Hits: hitsAll,
			Draw: func(rng *rand.Rand, s *Step) {
				s.Amount, s.Jump = 0.02+0.28*rng.Float64(), draw(rng, time.Millisecond, 80*time.Millisecond)
			},
			Inject: func(_ context.Context, n *Nemesis, s Step) error { n.shapeAll(s.Jump, s.Jump, s.Amount); return nil },
			Heal:   func(_ context.Context, n *Nemesis, _ Step) error { n.shapeAll(0, 0, 0); return nil },
		},
		{
			Name: "pause", Needs: []Verb{VerbPause}, Weight: 10, Hits: hitsNode,
			Inject: func(_ context.Context, n *Nemesis, s Step) error { n.C.Pause(s.Node); return nil },
			Heal:   func(_ context.Context, n *Nemesis, s Step) error { n.C.Resume(s.Node); return nil },
		},
		{
			Name: "crash", Needs: []Verb{VerbCrash}, Weight: 10, Hits: hitsNode,
			Inject: func(_ context.Context, n *Nemesis, s Step) error { n.C.Crash(s.Node); return nil },
			Heal:   func(_ context.Context, n *Nemesis, s Step) error { return n.C.Start(s.Node, false) },
		},
		{
			Name: "crash-move", Needs: []Verb{VerbCrash, VerbAddress}, Weight: 4, Hits: hitsNode,
			Inject: func(_ context.Context, n *Nemesis, s Step) error { n.C.Crash(s.Node); return nil },
			Heal:   func(_ context.Context, n *Nemesis, s Step) error { return n.C.Start(s.Node, true) },
		},
		{
			Name: "crash-two", Needs: []Verb{VerbCrash}, Weight: 2, Hits: hitsBoth,
			Inject: func(_ context.Context, n *Nemesis, s Step) error {
				n.C.Crash(s.Node)
				n.C.Crash(s.Other)
				return nil
			},
			Heal: func(_ context.Context, n *Nemesis, s Step) error {
				if err := n.C.Start(s.Node, false); err != nil {
					return err
				}
				return n.C.Start(s.Other, false)
			},
		},
		{
			Name: faultRestart, Needs: []Verb{VerbLeave}, Weight: 5, Hits: hitsNode,
			Inject: func(ctx context.Context, n *Nemesis, s Step) error { return n.C.Leave(ctx, s.Node) },
			Heal:   func(_ context.Context, n *Nemesis, s Step) error { return n.C.Start(s.Node, false) },
		},
		{
			Name: "step-down", Needs: []Verb{VerbStepDown}, Weight: 4,
			Inject: func(ctx context.Context, n *Nemesis, _ Step) error { return n.C.StepDown(ctx) },
		},
		{
			Name: "clock-rate", Needs: []Verb{VerbRate}, Weight: 5,
			Draw:   func(rng *rand.Rand, s *Step) { s.Amount = ClockRate(rng) },
			Inject: func(_ context.Context, n *Nemesis, s Step) error { n.C.SetRate(s.Node, s.Amount); return nil },
		},
		{
			Name: "suspend", Needs: []Verb{VerbSuspend}, Weight: 4, Hits: hitsNode,
			Draw:   func(rng *rand.Rand, s *Step) { s.Jump = draw(rng, 500*time.Millisecond, time.Minute) },
			Inject: func(_ context.Context, n *Nemesis, s Step) error { n.C.Suspend(s.Node, s.Jump); return nil },
		},
		{
			Name: "wall-jump", Needs: []Verb{VerbWall}, Weight: 4,
			Draw:   func(rng *rand.Rand, s *Step) { s.Jump = draw(rng, -time.Hour, time.Hour) },
			Inject: func(_ context.Context, n *Nemesis, s Step) error { n.C.StepWall(s.Node, s.Jump); return nil },
		},
	}, insideFaults()...)
}

// ClockRate draws the rate of a node's clock: within 2.5 % of the true one, so
// that two differ by 5 % at most, the promise's limit; often at its ends.
func ClockRate(rng *rand.Rand) float64 {
	switch rng.IntN(3) {
	case 0:
		return 0.975
	case 1:
		return 1.025
	}
	return 0.975 + 0.05*rng.Float64()
}

func (n *Nemesis) shapeAll(delay, jitter time.Duration, loss float64) {
	for _, a := range n.C.Nodes() {
		n.others(a, func(b string) { n.C.Shape(a, b, delay, jitter, loss) })
	}
}
