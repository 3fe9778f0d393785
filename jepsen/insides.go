package jepsen

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/miwnode/miwnode/node"
)

// What only a node suffers that can be reached into.
const (
	VerbStep Verb = "step" // it dies at a step of its own work
	VerbAil  Verb = "ail"  // its disk is slow, full or fails
)

// Insides is a Cluster that reaches into its nodes. Methods bear nodes that are
// down. What they do begins when the node comes to it: the cluster itself
// tells the recorder when a node is hit and when no longer.
type Insides interface {
	Cluster
	// Doom has the node die as by kill -9 when it comes to a step for the n-th
	// time from now: nothing that follows is done.
	Doom(node string, d Doom)
	// DoomStart is Doom for a node that is killed and started for it.
	DoomStart(node string, d Doom) error
	// Revive takes a doom back; who has died of it is started.
	Revive(node string) error
	// Ail has a node's disk suffer from one of the ailments: a slow one takes delay
	// for each write. Cure ends that; whose node has stopped for it is started.
	Ail(node, ailment string, delay time.Duration)
	Cure(node string) error
}

// Doom is where a node dies.
type Doom struct {
	Step node.Step `json:"step"`
	Nth  int       `json:"nth"`
	// Torn: with the power lost, so that half of what was being written is.
	Torn bool `json:"torn,omitempty"`
}

// When a step is taken, so that a doom is likely to come to pass.
type occasion uint8

const (
	running  occasion = iota // by any node, often
	leading                  // by the leader, often
	electing                 // by all, in an election
	starting                 // by a node that starts
)

// dooms are the steps by the occasion on which they are tried, with the largest n.
var dooms = []struct {
	when  occasion
	most  int
	steps []node.Step
}{
	{running, 40, []node.Step{
		node.StepLogWrite, node.StepLogSync, node.StepLogSynced, node.StepAppendAnswer, node.StepAppendAnswered,
		node.StepTermAnswer, node.StepTermAnswered,
	}},
	{running, 8, []node.Step{node.StepGrantAnswer, node.StepReleaseAnswer}},
	{running, 2, []node.Step{
		node.StepLogBegin, node.StepLogBegun, node.StepLogMove, node.StepLogMoved, node.StepLogCut, node.StepLogWasCut,
		node.StepSnapshotCreate, node.StepSnapshotCreated, node.StepSnapshotWrote, node.StepSnapshotClose, node.StepSnapshotClosed,
		node.StepAddressesWrite, node.StepAddressesRenamed, node.StepAddressesWritten,
	}},
	{leading, 30, []node.Step{
		node.StepCommandsPropose, node.StepCommandsCommitted, node.StepCommandsAnswer, node.StepCommandsAnswered,
		node.StepKeepAliveAnswer, node.StepKeepAliveAnswered,
	}},
	{leading, 5, []node.Step{node.StepReadAnswer, node.StepReadAnswered}},
	{electing, 1, []node.Step{
		node.StepTermSave, node.StepTermSaved, node.StepVoteTermSave, node.StepVoteTermSaved, node.StepVoteSave, node.StepVoteSaved,
		node.StepVoteAnswer, node.StepVoteAnswered,
	}},
	{starting, 1, []node.Step{
		node.StepIdentityWrite, node.StepIdentityRenamed, node.StepIdentityWritten, node.StepAddressesWrite, node.StepAddressesRenamed,
		node.StepLogBegin, node.StepLogBegun, node.StepLogMove, node.StepLogMoved, node.StepSnapshotRestore, node.StepSnapshotRestored,
		node.StepRestartProof, node.StepSessionOpened,
	}},
}

// doom returns the Draw of a fault: a step of one of the occasions.
func doom(when ...occasion) func(rng *rand.Rand, s *Step) {
	type choice struct {
		when occasion
		most int
		step node.Step
	}
	var choices []choice
	for _, d := range dooms {
		for _, w := range when {
			for _, step := range d.steps {
				if w == d.when {
					choices = append(choices, choice{w, d.most, step})
				}
			}
		}
	}
	return func(rng *rand.Rand, s *Step) {
		c := choices[rng.IntN(len(choices))]
		s.Doom = &Doom{Step: c.step, Nth: 1 + rng.IntN(c.most), Torn: c.step == node.StepLogSync && rng.IntN(2) == 0}
		if c.when == leading && rng.IntN(4) > 0 {
			s.Node = leader
		}
	}
}

var errNoInsides = errors.New("this needs nodes that can be reached into")

// inside makes half of a fault of a node's insides.
func inside(do func(ctx context.Context, c Insides, s Step) error) func(context.Context, *Nemesis, Step) error {
	return func(ctx context.Context, n *Nemesis, s Step) error {
		c, ok := n.C.(Insides)
		if !ok {
			return errNoInsides
		}
		return do(ctx, c, s)
	}
}

// insideFaults are those of the simulation alone.
func insideFaults() []Fault {
	revive := inside(func(_ context.Context, c Insides, s Step) error { return c.Revive(s.Node) })
	ail := func(name string, weight int) Fault {
		return Fault{
			Name: name, Needs: []Verb{VerbAil}, Weight: weight, Late: true,
			Inject: inside(func(_ context.Context, c Insides, s Step) error { c.Ail(s.Node, s.Fault, s.Jump); return nil }),
			Heal:   inside(func(_ context.Context, c Insides, s Step) error { return c.Cure(s.Node) }),
		}
	}
	slow := ail(DiskSlow, 5)
	slow.Draw = func(rng *rand.Rand, s *Step) { s.Jump = draw(rng, 5*time.Millisecond, 500*time.Millisecond) }
	slow.Late, slow.Hits = false, hitsNode
	return []Fault{
		slow, ail(DiskFailing, 5), ail(DiskFull, 5),
		{
			Name: "crash-at", Needs: []Verb{VerbStep}, Weight: 14, Late: true, Draw: doom(running, leading),
			Inject: inside(func(_ context.Context, c Insides, s Step) error { c.Doom(s.Node, *s.Doom); return nil }),
			Heal:   revive,
		},
		{
			Name: "crash-voting", Needs: []Verb{VerbStep, VerbStepDown}, Weight: 6, Late: true, Draw: doom(electing),
			Inject: inside(func(ctx context.Context, c Insides, s Step) error {
				c.Doom(s.Node, *s.Doom)
				return c.StepDown(ctx)
			}),
			Heal: revive,
		},
		{
			Name: "crash-starting", Needs: []Verb{VerbStep, VerbCrash}, Weight: 8, Late: true, Draw: doom(starting),
			Inject: inside(func(_ context.Context, c Insides, s Step) error { return c.DoomStart(s.Node, *s.Doom) }),
			Heal:   revive,
		},
	}
}
