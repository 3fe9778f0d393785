package coord_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/miwnode/miwnode/coord"
)

// told reads moves as text.
func told(p coord.Problem, moves []coord.Move) (lines []string) {
	id := func(i int) string {
		if i == coord.None {
			return "nobody"
		}
		return p.Instances[i].ID
	}
	for _, m := range moves {
		lines = append(lines, fmt.Sprintf("%s: %s → %s, %s: %s", p.Workloads[m.Workload].Key, id(m.From), id(m.To), m.Cause, m.Because))
	}
	return lines
}

// Ensures that each cause has its sentence, and the urgent ones come first.
func TestMoves_Because(t *testing.T) {
	none := coord.None
	p := coord.Problem{
		Workloads: workloads("drained", "failed", "free", "gone", "lost", "more", "pinned", "stays", "stranded"),
		Instances: []coord.InstanceInfo{joined("a", 1), joined("b", 2), {ID: "d", JoinedRevision: 3, Draining: true}},
		Can: func(i, w int) bool {
			return i == 2 || w != 8 && (i != 0 || w != 3) // a no longer declares gone, and nobody else stranded
		},
		Current: []int{2, none, none, 0, none, 0, 0, 0, 2},
		Pinned:  []int{none, none, none, none, 1, none, 1, none, none},
		Avoid:   []int{none, 0, none, none, none, none, none, none, none},
	}
	to := coord.Assignment{0, 1, 1, 1, 1, 1, 1, 0, none}
	now, later := coord.Moves(p, to, coord.MoveLimits{})
	equalLines(t, told(p, now),
		"failed: nobody → b, ownerless: it failed last on a, and b has none",
		"free: nobody → b, ownerless: nobody has it, and b has 1 workload",
		"lost: nobody → b, ownerless: nobody has it, and it is pinned to b",
		"drained: d → a, draining: d drains, and a has 4 workloads",
		"stranded: d → nobody, draining: d drains, and no other instance can have it",
		"gone: a → b, undeclared: a no longer declares it, and b has 3 workloads",
		"pinned: a → b, pinned: it is pinned to b",
		"more: a → b, rebalance: the assigner places it on b",
	)
	equalLines(t, told(p, later))

	heavy := coord.Problem{
		Workloads: []coord.WorkloadInfo{{Key: "1", Weight: 2}, {Key: "2", Weight: 1.5}, {Key: "3", Weight: 0.25}, {Key: "4", Weight: 0.1}},
		Instances: []coord.InstanceInfo{{ID: "a", JoinedRevision: 1, Eligible: true, Capacity: 3}, joined("b", 2)}, Current: []int{0, 0, 0, 1},
	}
	now, _ = coord.Moves(heavy, must(t, coord.Sticky{}, heavy), coord.MoveLimits{})
	equalLines(t, told(heavy, now), "2: a → b, rebalance: a has a load of 3.75 and room for 3, b has a load of 0.1")
}

// Ensures that only what moves for balance is limited, and that those moves go
// first which even out most.
func TestMoves_Limits(t *testing.T) {
	p := coord.Problem{Workloads: numbered(30), Instances: fleet(4)}
	for w := range p.Workloads {
		p.Current = append(p.Current, []int{0, 0, 0, 0, 0, 1, 1, 1, 1, 2}[w%10])
	}
	a := must(t, coord.Sticky{}, p)
	now, later := coord.Moves(p, a, coord.MoveLimits{})
	equalLines(t, told(p, now),
		"w0013: i000 → i003, rebalance: i000 has 15 workloads, i003 has none",
		"w0014: i000 → i003, rebalance: i000 has 14 workloads, i003 has 1 workload",
		"w0020: i000 → i003, rebalance: i000 has 13 workloads, i003 has 2 workloads",
	)
	equal(t, len(later), moved(p.Current, a)-3, "later")
	for _, c := range []struct {
		limits coord.MoveLimits
		now    int
	}{
		{coord.MoveLimits{UnderWay: 2}, 1},
		{coord.MoveLimits{UnderWay: 5}, 0},
		{coord.MoveLimits{Most: 7}, 7},
		{coord.MoveLimits{Most: 7, UnderWay: 3}, 4},
		{coord.MoveLimits{Most: -1, UnderWay: 99}, moved(p.Current, a)},
	} {
		now, later := coord.Moves(p, a, c.limits)
		equal(t, len(now), c.now, fmt.Sprintf("moves with %+v", c.limits))
		equal(t, len(now)+len(later), moved(p.Current, a), fmt.Sprintf("all moves with %+v", c.limits))
	}
	small := coord.Problem{Workloads: numbered(4), Instances: fleet(2), Current: []int{0, 0, 0, 0}}
	now, _ = coord.Moves(small, must(t, coord.Sticky{}, small), coord.MoveLimits{})
	equal(t, len(now), 1, "of a small group, one at a time")

	// A chain through a full instance: what makes room there goes first, though it evens out less.
	chain := coord.Problem{
		Workloads: workloads("1", "2", "3", "4", "5", "6", "7", "8"), Current: []int{0, 0, 0, 0, 0, 1, 1, 2}, Can: func(i, w int) bool { return i != 2 || w > 4 },
		Instances: []coord.InstanceInfo{joined("a", 1), {ID: "b", JoinedRevision: 2, Eligible: true, Capacity: 2}, joined("c", 3)},
	}
	now, _ = coord.Moves(chain, must(t, coord.Sticky{}, chain), coord.MoveLimits{Most: 2})
	equalLines(t, told(chain, now),
		"6: b → c, rebalance: b has 2 workloads, c has 1 workload",
		"4: a → b, rebalance: a has 5 workloads, b has 1 workload",
	)

	p.Instances[0].Draining = true
	a = must(t, coord.Sticky{}, p)
	now, later = coord.Moves(p, a, coord.MoveLimits{Most: 1, UnderWay: 1})
	equal(t, len(now), 15, "moves off a draining instance")
	equal(t, len(later), 2, "later, of one that had more than the mean")
}

// Ensures that moves, made a few at a time and planned anew each time, end in a
// placement that needs no more, that no limit is passed, that the order of the
// input does not show, and that all in all not more moves than at once.
func TestMoves_StepByStep(t *testing.T) {
	for seed := range uint64(3000 / scale) {
		rng := rand.New(rand.NewPCG(seed, 9))
		p := randomProblem(rng)
		if p.Current == nil {
			p.Current = make([]int, len(p.Workloads))
			for w := range p.Current {
				p.Current[w] = coord.None
			}
		}
		most := 1 + rng.IntN(4)
		for round := 0; ; round++ {
			a := must(t, coord.Sticky{}, p)
			now, later := coord.Moves(p, a, coord.MoveLimits{Most: most})
			q := shuffled(rng, p)
			elsewhere, _ := coord.Moves(q, must(t, coord.Sticky{}, q), coord.MoveLimits{Most: most})
			equalLines(t, told(q, elsewhere), told(p, now)...)
			limited, next := 0, slices.Clone(p.Current)
			for _, m := range append(slices.Clone(now), later...) {
				if m.From == m.To || m.To != a[m.Workload] || m.From != p.Current[m.Workload] || m.Because == "" {
					t.Fatalf("seed %d: %+v", seed, m)
				}
			}
			for _, m := range now {
				if m.Cause == coord.CauseRebalance {
					limited++
				}
				next[m.Workload] = m.To
			}
			for _, m := range later {
				if m.Cause != coord.CauseRebalance {
					t.Fatalf("seed %d: %+v is made to wait", seed, m)
				}
			}
			if limited > most || len(later) > 0 && limited < most {
				t.Fatalf("seed %d: %d of at most %d, %d wait", seed, limited, most, len(later))
			}
			p.Current = next
			if len(now) == 0 {
				if !slices.Equal(a, p.Current) {
					t.Fatalf("seed %d: nothing moves from %v to %v", seed, p.Current, a)
				}
				break
			}
			if round > 200 {
				t.Fatalf("seed %d: never done", seed)
			}
			if t.Failed() {
				t.FailNow()
			}
		}
	}
}
