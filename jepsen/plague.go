package jepsen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// What only real machines can suffer.
const (
	VerbCrashHost Verb = "crash-host" // kill -9 of the node, its guard and its commands
	VerbDisk      Verb = "disk"       // nothing more can be written
	VerbDrain     Verb = "drain"      // by an operator
)

// Machines is a Cluster of real processes. Methods bear nodes that are down.
type Machines interface {
	Cluster
	// CrashHost kills everything that runs on a node's machine.
	CrashHost(node string)
	FillDisk(node string) error
	FreeDisk(node string) error
	// Drain drains a node through whichever other answers; Undrain takes that back.
	Drain(ctx context.Context, node string) error
	Undrain(ctx context.Context, node string) error
}

// Plague is a kind of torment that a user may ask for by name.
type Plague struct {
	Name, What string
	Faults     []Fault
}

// Plagues are those that there are.
func Plagues() []Plague {
	all := AllFaults()
	some := func(names ...string) (picked []Fault) {
		for _, f := range all {
			if slices.Contains(names, f.Name) {
				picked = append(picked, f)
			}
		}
		return picked
	}
	return []Plague{
		{"partition", "nodes are cut off from each other, both ways or one way", some("cut", "cut-link", "cut-outgoing", "cut-incoming", "cut-one-way", "cut-all", "isolate-leader")},
		{"kill", "kill -9 of a node, of all that runs on its machine, of two nodes", append(some("crash", "crash-two"), crashHost)},
		{"pause", "SIGSTOP of a node, longer and shorter than its sessions live", some("pause")},
		{"restart", "a node leaves gracefully and starts again", some(faultRestart)},
		{"slow-network", "packets are delayed and lost", append(some("lossy"), slowNode)},
		{"full-disk", "nothing more can be written on a node", []Fault{fullDisk}},
		{"step-down", "another node leads", some("step-down")},
		{"drain", "an operator drains a node, and takes that back", []Fault{drained}},
	}
}

// ChoosePlagues returns those that are named, all for none.
func ChoosePlagues(names []string) ([]Plague, error) {
	all := Plagues()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []Plague
	for _, name := range names {
		i := slices.IndexFunc(all, func(p Plague) bool { return p.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("%q is no nemesis; there are %s", name, strings.Join(PlagueNames(all), ", "))
		}
		if !slices.ContainsFunc(chosen, func(p Plague) bool { return p.Name == name }) {
			chosen = append(chosen, all[i])
		}
	}
	return chosen, nil
}

// PlagueNames are the names of plagues.
func PlagueNames(all []Plague) (names []string) {
	for _, p := range all {
		names = append(names, p.Name)
	}
	return names
}

// Available are the plagues with those of their faults that c can suffer; of each
// fault that it can't, missing says why.
func Available(all []Plague, c Cluster) (can []Plague, missing []string) {
	for _, p := range all {
		var faults []Fault
		for _, f := range p.Faults {
			if err := f.Available(c); err != nil {
				missing = append(missing, err.Error())
				continue
			}
			faults = append(faults, f)
		}
		if p.Faults = faults; len(faults) > 0 {
			can = append(can, p)
		}
	}
	return can, missing
}

// Visitation draws a schedule in which each plague comes as often as any other,
// one fault every 2 to 9 s, over in time for the last to be healed by length. The
// seed decides everything but who leads.
func Visitation(seed int64, plagues []Plague, nodes []string, length time.Duration) []Step {
	rng := rand.New(rand.NewPCG(uint64(seed), 0x746f7274))
	var steps []Step
	var deck []int
	for at := draw(rng, time.Second, 3*time.Second); at < length; at += draw(rng, 2*time.Second, 9*time.Second) {
		if len(deck) == 0 {
			deck = rng.Perm(len(plagues))
		}
		f := drawFault(rng, plagues[deck[0]].Faults)
		deck = deck[1:]
		s := newStep(rng, f, nodes, at)
		s.For = min(s.For, max(length-at, 500*time.Millisecond))
		if f.Heal == nil {
			s.For = time.Second // it is over at once: what follows from it is not
		}
		steps = append(steps, s)
	}
	return steps
}

var errNoMachine = errors.New("this needs real processes")

// onMachine makes half of a fault of real machines.
func onMachine(do func(ctx context.Context, m Machines, s Step) error) func(context.Context, *Nemesis, Step) error {
	return func(ctx context.Context, n *Nemesis, s Step) error {
		m, ok := n.C.(Machines)
		if !ok {
			return errNoMachine
		}
		return do(ctx, m, s)
	}
}

var crashHost = Fault{
	Name: "crash-host", Needs: []Verb{VerbCrashHost}, Weight: 8, Hits: hitsNode,
	Inject: onMachine(func(_ context.Context, m Machines, s Step) error { m.CrashHost(s.Node); return nil }),
	Heal:   onMachine(func(_ context.Context, m Machines, s Step) error { return m.Start(s.Node, false) }),
}

var fullDisk = Fault{
	Name: FaultDisk, Needs: []Verb{VerbDisk}, Weight: 5, Hits: hitsNode,
	Inject: onMachine(func(_ context.Context, m Machines, s Step) error { return m.FillDisk(s.Node) }),
	Heal:   onMachine(func(_ context.Context, m Machines, s Step) error { return m.FreeDisk(s.Node) }),
}

var drained = Fault{
	Name: faultDrain, Needs: []Verb{VerbDrain}, Weight: 5, Hits: hitsNode,
	Inject: onMachine(func(ctx context.Context, m Machines, s Step) error { return m.Drain(ctx, s.Node) }),
	Heal:   onMachine(func(ctx context.Context, m Machines, s Step) error { return m.Undrain(ctx, s.Node) }),
}

// slowNode delays what goes to and comes from one node, and loses little of it.
var slowNode = Fault{
	Name: "slow-node", Needs: []Verb{VerbShape}, Weight: 4, Hits: hitsNode,
	Draw: func(rng *rand.Rand, s *Step) {
		s.Amount, s.Jump = 0.05*rng.Float64(), draw(rng, 5*time.Millisecond, 150*time.Millisecond)
	},
	Inject: func(_ context.Context, n *Nemesis, s Step) error {
		n.others(s.Node, func(o string) {
			n.C.Shape(s.Node, o, s.Jump, s.Jump/2, s.Amount)
			n.C.Shape(o, s.Node, s.Jump, s.Jump/2, s.Amount)
		})
		return nil
	},
	Heal: func(_ context.Context, n *Nemesis, s Step) error {
		n.others(s.Node, func(o string) {
			n.C.Shape(s.Node, o, 0, 0, 0)
			n.C.Shape(o, s.Node, 0, 0, 0)
		})
		return nil
	},
}
