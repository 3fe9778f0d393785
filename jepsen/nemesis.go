package jepsen

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Step is one fault of a schedule: plain data, so that a schedule can be
// printed, replayed and shrunk.
type Step struct {
	At    time.Duration `json:"at"`
	For   time.Duration `json:"for"` // until it is healed
	Fault string        `json:"fault"`
	// Node is who is hit, "leader" for whoever leads then; Other is its peer
	// where a fault has two ends.
	Node   string        `json:"node,omitempty"`
	Other  string        `json:"other,omitempty"`
	Amount float64       `json:"amount,omitempty"` // loss, or rate
	Jump   time.Duration `json:"jump,omitempty"`   // of a clock, or delay
	Doom   *Doom         `json:"doom,omitempty"`   // where the node dies
}

func (s Step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v +%v %s", s.At.Round(time.Millisecond), s.For.Round(time.Millisecond), s.Fault)
	for _, w := range []string{s.Node, s.Other} {
		if w != "" {
			b.WriteString(" " + w)
		}
	}
	if s.Amount != 0 {
		fmt.Fprintf(&b, " %.4f", s.Amount)
	}
	if s.Jump != 0 {
		fmt.Fprintf(&b, " %v", s.Jump.Round(time.Millisecond))
	}
	if s.Doom != nil {
		fmt.Fprintf(&b, " %q (%d)", s.Doom.Step, s.Doom.Nth)
	}
	return b.String()
}

// Fault is a kind of fault.
type Fault struct {
	Name   string
	Needs  []Verb
	Weight int // how often a schedule draws it
	// Draw fills in what the seed decides.
	Draw func(rng *rand.Rand, s *Step)
	// Hits names the nodes that can't be counted on while it lasts.
	Hits func(n *Nemesis, s Step) []string
	// Inject begins it, Heal ends it. Both must bear nodes that are down.
	Inject func(ctx context.Context, n *Nemesis, s Step) error
	// Late: it hits when the node comes to it, if ever, which the cluster tells.
	Late bool
	// Flaps: it is healed and injected anew each Jump of the step for as long as it lasts.
	Flaps bool
	Heal  func(ctx context.Context, n *Nemesis, s Step) error
}

// Available returns nil, or why c can't suffer the fault.
func (f *Fault) Available(c Cluster) error {
	for _, v := range f.Needs {
		if err := c.Can(v); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// Schedule draws faults until length, one every 2 to 12 s. The seed decides
// everything but who leads.
func Schedule(seed int64, faults []Fault, nodes []string, length time.Duration) []Step {
	rng := rand.New(rand.NewPCG(uint64(seed), 0x6d6977))
	var steps []Step
	for at := draw(rng, 2*time.Second, 6*time.Second); at < length; at += draw(rng, 2*time.Second, 12*time.Second) {
		steps = append(steps, newStep(rng, drawFault(rng, faults), nodes, at))
	}
	return steps
}

// drawFault picks one by weight.
func drawFault(rng *rand.Rand, faults []Fault) Fault {
	total := 0
	for _, f := range faults {
		total += f.Weight
	}
	pick := rng.IntN(total)
	for _, f := range faults {
		if pick -= f.Weight; pick < 0 {
			return f
		}
	}
	panic("no fault has a weight")
}

// newStep draws whom a fault hits, for how long and how hard.
func newStep(rng *rand.Rand, f Fault, nodes []string, at time.Duration) Step {
	s := Step{At: at, For: draw(rng, 100*time.Millisecond, 9*time.Second), Fault: f.Name}
	i := rng.IntN(len(nodes))
	s.Node, s.Other = nodes[i], nodes[(i+1+rng.IntN(len(nodes)-1))%len(nodes)]
	if rng.IntN(3) == 0 {
		s.Node = leader
	}
	if f.Draw != nil {
		f.Draw(rng, &s)
	}
	return s
}

const leader = "leader"

func draw(rng *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(rng.Int64N(int64(to-from)))
}

// Nemesis carries a schedule out.
type Nemesis struct {
	C      Cluster
	R      *Recorder
	Faults []Fault

	cuts map[[2]string]int // how many faults want the direction cut; owner: Run
	last string            // who led when it was last known
}

// Run carries out steps and heals what it injected before it returns, also when
// ctx ends early.
func (n *Nemesis) Run(ctx context.Context, steps []Step) {
	n.cuts = map[[2]string]int{}
	type healing struct {
		at     time.Duration // of the healing, or of the next change of one that flaps
		off    bool          // it is healed for the moment
		s      Step
		f      *Fault
		healed func()
	}
	var sick []healing
	heal := func(h healing) {
		if h.f.Heal != nil && !h.off {
			if err := h.f.Heal(ctx, n, h.s); err != nil {
				n.R.Notef(h.s.Node, "heal %s: %v", h.f.Name, err)
			}
		}
		h.healed()
	}
	begin := n.R.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	wait := func(until time.Duration) bool {
		timer.Reset(max(0, begin+until-n.R.Now()))
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for len(steps) > 0 || len(sick) > 0 {
		if ctx.Err() != nil {
			for _, h := range sick {
				heal(h)
			}
			return
		}
		slices.SortStableFunc(sick, func(a, b healing) int { return cmp.Compare(a.at, b.at) })
		if len(sick) > 0 && (len(steps) == 0 || sick[0].at <= steps[0].At) {
			h := sick[0]
			if !wait(h.at) {
				continue
			}
			sick = sick[1:]
			end := h.s.At + h.s.For
			if h.at >= end {
				heal(h)
				continue
			}
			do := h.f.Heal
			if h.off {
				do = h.f.Inject
			}
			if err := do(ctx, n, h.s); err != nil {
				n.R.Notef(h.s.Node, "%s: %v", h.f.Name, err)
			}
			h.off, h.at = !h.off, min(end, h.at+h.s.Jump)
			sick = append(sick, h)
			continue
		}
		s := steps[0]
		if !wait(s.At) {
			continue
		}
		steps = steps[1:]
		f := n.fault(s.Fault)
		if l := n.C.Leader(); l != "" {
			n.last = l
		}
		if s.Node == leader {
			s.Node = cmp.Or(n.last, n.C.Nodes()[0])
			if s.Other == s.Node {
				i := slices.Index(n.C.Nodes(), s.Node)
				s.Other = n.C.Nodes()[(i+1)%len(n.C.Nodes())]
			}
		}
		if f == nil {
			n.R.Notef(s.Node, "no such fault: %s", s.Fault)
			continue
		}
		if err := f.Available(n.C); err != nil {
			n.R.Notef(s.Node, "not available: %v", err)
			continue
		}
		var hits []string
		if f.Hits != nil {
			hits = f.Hits(n, s)
		}
		healed := func() {}
		if f.Late {
			n.R.Notef(s.Node, "%v", s)
		} else {
			healed = n.R.Fault(f.Name, hits, s.String())
		}
		if err := f.Inject(ctx, n, s); err != nil {
			n.R.Notef(s.Node, "inject %s: %v", f.Name, err)
		}
		h := healing{at: s.At + s.For, s: s, f: f, healed: healed}
		if f.Flaps && s.Jump > 0 {
			h.at = min(h.at, s.At+s.Jump)
		}
		sick = append(sick, h)
	}
}

func (n *Nemesis) fault(name string) *Fault {
	for i := range n.Faults {
		if n.Faults[i].Name == name {
			return &n.Faults[i]
		}
	}
	return nil
}

// cut and mend count, so that two faults may want one direction cut.
func (n *Nemesis) cut(from, to string) {
	if from == to {
		return
	}
	if n.cuts[[2]string{from, to}]++; n.cuts[[2]string{from, to}] == 1 {
		n.C.Cut(from, to)
	}
}

func (n *Nemesis) mend(from, to string) {
	if from == to {
		return
	}
	if n.cuts[[2]string{from, to}]--; n.cuts[[2]string{from, to}] == 0 {
		n.C.Mend(from, to)
	}
}

// others calls f with every node but one.
func (n *Nemesis) others(node string, f func(other string)) {
	for _, o := range n.C.Nodes() {
		if o != node {
			f(o)
		}
	}
}
