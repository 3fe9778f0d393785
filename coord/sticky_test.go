package coord_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/miwnode/miwnode/coord"
)

// randomProblem has everything: different weights or not, capacities, zones,
// instances that declared a part, drains, cordons, pins and failures.
func randomProblem(rng *rand.Rand) coord.Problem {
	p := coord.Problem{Workloads: numbered(rng.IntN(60)), Instances: fleet(rng.IntN(10))}
	n := len(p.Instances)
	kind := rng.Uint32()
	on := func(bit int) bool { return kind>>bit&1 == 1 }
	if on(0) {
		for w := range p.Workloads {
			p.Workloads[w].Weight = []float64{0, 0.1, 1, 1.5, 3, 17, 1e-7, 3.14159}[rng.IntN(8)]
		}
	}
	for i := range p.Instances {
		in := &p.Instances[i]
		if on(1) {
			in.Capacity = float64(rng.IntN(20))
		}
		if on(2) {
			in.Zone = []string{"", "x", "y", "z"}[rng.IntN(4)]
		}
		if on(3) && rng.IntN(4) == 0 {
			in.Eligible = false
			in.Draining = rng.IntN(2) == 0
		}
		if on(4) && i > 0 && rng.IntN(3) == 0 {
			in.JoinedRevision = p.Instances[i-1].JoinedRevision
		}
	}
	if on(5) && n > 0 {
		declared := make([]bool, n*len(p.Workloads))
		catalogs := 1 + rng.IntN(4)
		for w := range p.Workloads {
			for i := range n {
				declared[w*n+i] = rng.IntN(3) > 0
				if on(6) && i >= catalogs { // a few catalogs rather than any mixture
					declared[w*n+i] = declared[w*n+i%catalogs]
				}
			}
		}
		p.Can = func(i, w int) bool { return declared[w*n+i] }
	}
	wishes := func(chance int) (all []int) {
		for range p.Workloads {
			i := coord.None
			if n > 0 && rng.IntN(100) < chance {
				i = rng.IntN(n)
			}
			all = append(all, i)
		}
		return all
	}
	if on(7) {
		p.Current = wishes(rng.IntN(101))
	}
	if on(8) {
		p.Pinned = wishes(15)
	}
	if on(9) {
		p.Avoid = wishes(20)
	}
	return p
}

// promises checks what Sticky says of every answer, and returns what is broken.
func promises(p coord.Problem, a coord.Assignment) error {
	pinned := make([]bool, len(a))
	room, free := make([]float64, len(p.Instances)), loads(p, a)
	largest := 0.0
	for i, in := range p.Instances {
		room[i] = 1e300
		if in.Capacity > 0 {
			room[i] = in.Capacity - free[i]
		}
	}
	weight := func(w int) float64 {
		if x := p.Workloads[w].Weight; x > 0 {
			return x
		}
		return 1
	}
	wish := func(of []int, w int) int {
		if of == nil {
			return coord.None
		}
		return of[w]
	}
	for w := range a {
		largest = max(largest, weight(w))
	}
	bounded := slices.ContainsFunc(p.Instances, func(in coord.InstanceInfo) bool { return in.Capacity > 0 })
	gives := func(i, w int) bool { // what it does not have
		return p.Instances[i].Eligible && !p.Instances[i].Draining && (p.Can == nil || p.Can(i, w))
	}
	for w, i := range a {
		key, cur := p.Workloads[w].Key, wish(p.Current, w)
		candidates := 0
		for j := range p.Instances {
			if gives(j, w) {
				candidates++
			}
		}
		if i == coord.None {
			if candidates > 0 {
				return fmt.Errorf("%s has no owner, and %d could", key, candidates)
			}
			continue
		}
		if !p.Takes(i, w) {
			return fmt.Errorf("%s is on %s, which can't have it", key, p.Instances[i].ID)
		}
		if pin := wish(p.Pinned, w); pin != coord.None && p.Takes(pin, w) {
			pinned[w] = true
			if i != pin {
				return fmt.Errorf("%s is on %s, and pinned to %s", key, p.Instances[i].ID, p.Instances[pin].ID)
			}
			continue
		}
		if cur != coord.None && !p.Instances[cur].Eligible && p.Takes(cur, w) && i != cur {
			return fmt.Errorf("%s left %s, which is cordoned", key, p.Instances[cur].ID)
		}
		if i == wish(p.Avoid, w) && i != cur && !bounded {
			for j := range p.Instances {
				if j != i && gives(j, w) {
					return fmt.Errorf("%s is on %s, where it failed last, and %s could have it", key, p.Instances[i].ID, p.Instances[j].ID)
				}
			}
		}
	}
	tiny := 1e-9 * largest // weights are counted in integers
	// No single move makes loads more even by more than is promised, nor takes load off where there is too much.
	for w, i := range a {
		if i == coord.None || pinned[w] || !p.Instances[i].Eligible {
			continue
		}
		for j := range p.Instances {
			if j == i || !gives(j, w) || j == wish(p.Avoid, w) || room[j] < weight(w)+tiny {
				continue
			}
			if room[i] < -tiny {
				return fmt.Errorf("%s has more than its capacity, and %s has room for %s", p.Instances[i].ID, p.Instances[j].ID, p.Workloads[w].Key)
			}
			if d := free[i] - free[j]; d > largest+tiny && weight(w) < d-tiny {
				return fmt.Errorf("loads %v and %v of %s and %s differ by more than %v, and %s could move", free[i], free[j], p.Instances[i].ID, p.Instances[j].ID, largest, p.Workloads[w].Key)
			}
		}
	}
	return nil
}

// Ensures every promise on problems of all kinds, that the answer does not
// depend on the order of the input, and that it is final.
func TestSticky_Promises(t *testing.T) {
	for seed := range uint64(20_000 / scale) {
		rng := rand.New(rand.NewPCG(seed, 3))
		p := randomProblem(rng)
		a := must(t, coord.Sticky{}, p)
		if err := promises(p, a); err != nil {
			t.Fatalf("seed %d: %v\n%+v\n%v", seed, err, p, a)
		}
		q := shuffled(rng, p)
		if got, want := byID(q, must(t, coord.Sticky{}, q)), byID(p, a); !maps.Equal(got, want) {
			t.Fatalf("seed %d: in another order\ngot  %v\nwant %v", seed, got, want)
		}
		p.Current = a
		if again := must(t, coord.Sticky{}, p); !slices.Equal(again, a) {
			t.Fatalf("seed %d: asked again, it moves %d\n%+v", seed, moved(a, again), p)
		}
	}
}

// Ensures that of all even answers it gives one with the fewest moves.
func TestSticky_MovesOnlyTheSurplus(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for range 10_000 / scale {
		w, n := rng.IntN(200), 1+rng.IntN(20)
		p := coord.Problem{Workloads: numbered(w), Instances: fleet(n), Current: make([]int, w)}
		lopsided := 1 + rng.IntN(n)
		for k := range p.Current {
			p.Current[k] = rng.IntN(lopsided+1) - 1
		}
		a := must(t, coord.Sticky{}, p)
		got := counts(p, a)
		if slices.Max(got)-slices.Min(got) > 1 {
			t.Fatalf("%d over %d: %v", w, n, got)
		}
		base, remainder, surplus, over := w/n, w%n, 0, 0
		for _, had := range counts(p, p.Current) {
			surplus += max(0, had-base)
			if had > base {
				over++
			}
		}
		if want := surplus - min(over, remainder); moved(p.Current, a) != want {
			t.Fatalf("%d over %d had %v: %d moved, %d would do", w, n, counts(p, p.Current), moved(p.Current, a), want)
		}
	}
}

// Ensures the bounds on what moves at a join, a leave and a drain, with
// different weights too, through long histories.
func TestSticky_Histories(t *testing.T) {
	joins, beyond := 0, 0
	for seed := range uint64(1000 / scale) {
		rng := rand.New(rand.NewPCG(seed, 5))
		weighted := seed%2 == 1
		p := coord.Problem{Workloads: numbered(1 + rng.IntN(150)), Instances: fleet(1 + rng.IntN(5))}
		if weighted {
			for w := range p.Workloads {
				p.Workloads[w].Weight = []float64{1, 1, 1, 2, 5, 0.3, 0.01}[rng.IntN(7)] * (1 + rng.Float64()/10)
			}
		}
		for i := range p.Instances {
			p.Instances[i].Zone = fmt.Sprint(rng.IntN(3))
		}
		a := must(t, coord.Sticky{}, p)
		for step := range 40 {
			before, did := p, ""
			switch n := len(p.Instances); {
			case n > 1 && rng.IntN(2) == 0:
				gone := rng.IntN(n)
				if rng.IntN(2) == 0 {
					did = "leave"
					p = without(p, a, gone)
				} else {
					did = "drain"
					p.Current = slices.Clone(a)
					p.Instances = slices.Clone(p.Instances)
					p.Instances[gone].Draining, p.Instances[gone].Eligible = true, false
					drained := must(t, coord.Sticky{}, p)
					if got, had := moved(a, drained), counts(p, a)[gone]; got != had {
						t.Fatalf("seed %d step %d: drain of one that had %d moved %d", seed, step, had, got)
					}
					a = drained
					p = without(p, a, gone)
				}
			default:
				did = "join"
				p.Current = slices.Clone(a)
				p.Instances = append(slices.Clone(p.Instances), coord.InstanceInfo{ID: fmt.Sprintf("n%d", step), JoinedRevision: uint64(100 + step), Zone: fmt.Sprint(rng.IntN(3)), Eligible: true})
			}
			a = must(t, coord.Sticky{}, p)
			if err := promises(p, a); err != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, err)
			}
			got, most := moved(p.Current, a), 0
			if did == "join" {
				most = (len(p.Workloads) + len(before.Instances)) / len(p.Instances)
				joins++
				if weighted && got > most { // 500 times heavier than others, some of them
					beyond++
					most *= 2
				}
			}
			if got > most {
				t.Fatalf("seed %d step %d: %s of one, with %d workloads and now %d instances, moved %d, at most %d should", seed, step, did, len(p.Workloads), len(p.Instances), got, most)
			}
			largest := 0.0
			for _, w := range p.Workloads {
				largest = max(largest, w.Weight, 0)
			}
			if !weighted {
				largest = 1
			}
			if l := loads(p, a); slices.Max(l)-slices.Min(l) > largest+1e-6 {
				t.Fatalf("seed %d step %d: loads %v differ by more than %v", seed, step, l, largest)
			}
		}
	}
	if beyond*5000 > joins {
		t.Errorf("%d of %d joins moved more than the share of one", beyond, joins)
	}
}

// Ensures, with a search for every possible chain, that with equal weights
// capacities hold whenever they can, and loads are as even as they can be,
// whoever declared what.
func TestSticky_EqualWeightsAreExact(t *testing.T) {
	full, tight := 0, 0
	for seed := range uint64(4000 / scale) {
		rng := rand.New(rand.NewPCG(seed, 6))
		w, n := 1+rng.IntN(24), 1+rng.IntN(5)
		p := coord.Problem{Workloads: numbered(w), Instances: fleet(n)}
		for i := range p.Instances {
			p.Instances[i].Capacity = float64(1 + rng.IntN(2*w/n+2))
		}
		declared := make([]bool, w*n)
		for k := range w {
			declared[k*n+rng.IntN(n)] = true
			for i := range n {
				declared[k*n+i] = declared[k*n+i] || rng.IntN(3) == 0
			}
		}
		p.Can = func(i, k int) bool { return declared[k*n+i] }
		if seed%2 == 0 {
			for range w {
				p.Current = append(p.Current, rng.IntN(n+1)-1)
			}
		}
		a := must(t, coord.Sticky{}, p)
		got := counts(p, a)
		fits := matching(p, func(i int) int { return int(p.Instances[i].Capacity) }) == w
		over := false
		for i, c := range got {
			over = over || c > int(p.Instances[i].Capacity)
		}
		if fits == over {
			t.Fatalf("seed %d: there is room for all: %v; counts %v of\n%+v", seed, fits, got, p)
		}
		if !fits {
			full++
			continue
		}
		tight++
		// As even as can be: nobody could have less at the top.
		top := slices.Max(got)
		if matching(p, func(i int) int { return min(top-1, int(p.Instances[i].Capacity)) }) == w {
			t.Fatalf("seed %d: counts %v, and the most loaded could have less", seed, got)
		}
	}
	if full < 100/scale || tight < 100/scale {
		t.Errorf("%d problems were too full and %d were not: too few of one kind", full, tight)
	}
}

// matching is the most workloads that find an owner when each instance takes so many.
func matching(p coord.Problem, capacity func(i int) int) (n int) {
	has := make([][]int, len(p.Instances))
	var try func(w int, seen []bool) bool
	try = func(w int, seen []bool) bool {
		for i := range p.Instances {
			if seen[i] || !p.Can(i, w) {
				continue
			}
			seen[i] = true
			if len(has[i]) < capacity(i) {
				has[i] = append(has[i], w)
				return true
			}
			for k, other := range has[i] {
				if try(other, seen) {
					has[i][k] = w
					return true
				}
			}
		}
		return false
	}
	for w := range p.Workloads {
		if try(w, make([]bool, len(p.Instances))) {
			n++
		}
	}
	return n
}

func TestSticky_Table(t *testing.T) {
	two := []coord.InstanceInfo{joined("a", 1), joined("b", 2)}
	none := coord.None
	for _, c := range []struct {
		name string
		p    coord.Problem
		want string
	}{
		{"fresh", coord.Problem{Workloads: workloads("1", "2", "3", "4", "5"), Instances: two}, "a: 1 3 5 | b: 2 4"},
		{"nothing", coord.Problem{Instances: two}, "a: | b:"},
		{"nobody", coord.Problem{Workloads: workloads("1")}, "nobody: 1"},
		{"heaviest first", coord.Problem{
			Workloads: []coord.WorkloadInfo{{Key: "light", Weight: 1}, {Key: "heavy", Weight: 3}, {Key: "middle", Weight: 2}}, Instances: two,
		}, "a: heavy | b: light middle"},
		{"what is there stays", coord.Problem{
			Workloads: workloads("1", "2", "3", "4"), Instances: two, Current: []int{1, 1, 0, 0},
		}, "a: 3 4 | b: 1 2"},
		{"only the surplus", coord.Problem{
			Workloads: workloads("1", "2", "3", "4"), Instances: two, Current: []int{0, 0, 0, 1},
		}, "a: 1 2 | b: 3 4"},
		{"cordoned keeps, gets nothing", coord.Problem{
			Workloads: workloads("1", "2", "3", "4"), Current: []int{0, none, none, none},
			Instances: []coord.InstanceInfo{{ID: "a", JoinedRevision: 1}, joined("b", 2)},
		}, "a: 1 | b: 2 3 4"},
		{"draining gives away", coord.Problem{
			Workloads: workloads("1", "2"), Current: []int{0, 0},
			Instances: []coord.InstanceInfo{{ID: "a", JoinedRevision: 1, Draining: true}, joined("b", 2)},
		}, "a: | b: 1 2"},
		{"draining never takes, whatever else is said of it", coord.Problem{
			Workloads: workloads("1", "2"), Pinned: []int{0, 0},
			Instances: []coord.InstanceInfo{{ID: "a", JoinedRevision: 1, Draining: true, Eligible: true}, joined("b", 2)},
		}, "a: | b: 1 2"},
		{"pins win over balance and capacity", coord.Problem{
			Workloads: workloads("1", "2", "3", "4"), Pinned: []int{0, 0, 0, none}, Current: []int{1, 0, 0, 0},
			Instances: []coord.InstanceInfo{{ID: "a", JoinedRevision: 1, Eligible: true, Capacity: 2}, joined("b", 2)},
		}, "a: 1 2 3 | b: 4"},
		{"a pin is no way round a cordon", coord.Problem{
			Workloads: workloads("1", "2"), Pinned: []int{0, 0}, Current: []int{none, 0},
			Instances: []coord.InstanceInfo{{ID: "a", JoinedRevision: 1}, joined("b", 2)},
		}, "a: 2 | b: 1"},
		{"a pin calls off a cordoned instance", coord.Problem{
			Workloads: workloads("1"), Pinned: []int{1}, Current: []int{0},
			Instances: []coord.InstanceInfo{{ID: "a", JoinedRevision: 1}, joined("b", 2)},
		}, "a: | b: 1"},
		{"not where it failed", coord.Problem{
			Workloads: workloads("1"), Instances: two, Avoid: []int{0},
		}, "a: | b: 1"},
		{"where it failed, for want of another", coord.Problem{
			Workloads: workloads("1"), Instances: two[:1], Avoid: []int{0},
		}, "a: 1"},
		{"where it failed, for want of room elsewhere", coord.Problem{
			Workloads: workloads("1", "2"), Avoid: []int{0, none}, Current: []int{none, 1},
			Instances: []coord.InstanceInfo{joined("a", 1), {ID: "b", JoinedRevision: 2, Eligible: true, Capacity: 1}},
		}, "a: 2 | b: 1"},
		{"it runs where it failed once", coord.Problem{
			Workloads: workloads("1"), Instances: two, Avoid: []int{0}, Current: []int{0},
		}, "a: 1 | b:"},
		{"capacity", coord.Problem{
			Workloads: workloads("1", "2", "3", "4"),
			Instances: []coord.InstanceInfo{{ID: "a", JoinedRevision: 1, Eligible: true, Capacity: 1}, joined("b", 2)},
		}, "a: 1 | b: 2 3 4"},
		{"beyond all capacities", coord.Problem{
			Workloads: workloads("1", "2", "3", "4"),
			Instances: []coord.InstanceInfo{{ID: "a", JoinedRevision: 1, Eligible: true, Capacity: 1}, {ID: "b", JoinedRevision: 2, Eligible: true, Capacity: 1}},
		}, "a: 1 3 | b: 2 4"},
		{"capacity in weights, filled to the last bit", coord.Problem{
			Workloads: []coord.WorkloadInfo{{Key: "1", Weight: 0.1}, {Key: "2", Weight: 0.2}, {Key: "3", Weight: 0.3}, {Key: "4", Weight: 0.3}},
			Instances: []coord.InstanceInfo{{ID: "a", JoinedRevision: 1, Eligible: true, Capacity: 0.6}, {ID: "b", JoinedRevision: 2, Eligible: true, Capacity: 0.3}},
		}, "a: 1 2 3 | b: 4"},
		{"a heavy one gets room", coord.Problem{
			Workloads: []coord.WorkloadInfo{{Key: "1", Weight: 3}, {Key: "2", Weight: 2}, {Key: "3", Weight: 2}}, Current: []int{none, 0, 1},
			Instances: []coord.InstanceInfo{{ID: "a", JoinedRevision: 1, Eligible: true, Capacity: 4}, {ID: "b", JoinedRevision: 2, Eligible: true, Capacity: 4}},
		}, "a: 1 | b: 2 3"},
		{"capacity that shrank", coord.Problem{
			Workloads: workloads("1", "2", "3"), Current: []int{0, 0, 0},
			Instances: []coord.InstanceInfo{{ID: "a", JoinedRevision: 1, Eligible: true, Capacity: 1}, joined("b", 2)},
		}, "a: 1 | b: 2 3"},
		{"zones first", coord.Problem{
			Workloads: workloads("1", "2", "3", "4", "5", "6"),
			Instances: []coord.InstanceInfo{
				{ID: "x1", JoinedRevision: 1, Zone: "x", Eligible: true},
				{ID: "x2", JoinedRevision: 2, Zone: "x", Eligible: true},
				{ID: "y1", JoinedRevision: 3, Zone: "y", Eligible: true},
				{ID: "y2", JoinedRevision: 4, Zone: "y", Eligible: true},
			},
		}, "x1: 1 5 | x2: 3 | y1: 2 6 | y2: 4"},
		{"declared by one", coord.Problem{
			Workloads: workloads("1", "2", "3"), Instances: two, Can: func(i, w int) bool { return i == 0 || w == 2 },
		}, "a: 1 2 | b: 3"},
		{"declared by nobody", coord.Problem{
			Workloads: workloads("1", "2"), Instances: two, Can: func(_, w int) bool { return w == 1 }, Current: []int{0, none},
		}, "a: 2 | b: | nobody: 1"},
		{"a chain of moves", coord.Problem{ // 1 and 2 can't go to c; 3 can
			Workloads: workloads("1", "2", "3"), Instances: []coord.InstanceInfo{joined("a", 1), joined("b", 2), joined("c", 3)},
			Current: []int{0, 0, 1}, Can: func(i, w int) bool { return i != 2 || w == 2 },
		}, "a: 1 | b: 2 | c: 3"},
		{"nobody idles while another has two", coord.Problem{
			Workloads: []coord.WorkloadInfo{{Key: "heavy", Weight: 10}, {Key: "1", Weight: 1}, {Key: "2", Weight: 1}, {Key: "3", Weight: 1}},
			Instances: []coord.InstanceInfo{joined("a", 1), joined("b", 2), joined("c", 3)}, Current: []int{0, 1, 1, 1},
		}, "a: heavy | b: 1 2 | c: 3"},
		{"twice the same instance", coord.Problem{
			Workloads: workloads("1", "2"), Instances: []coord.InstanceInfo{joined("a", 1), joined("a", 1), joined("b", 2)}, Current: []int{1, 1},
		}, "a: 1 | b: 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			equal(t, placed(c.p, must(t, coord.Sticky{}, c.p)), c.want, "placement")
		})
	}
}

// Ensures that the remainder is spread over zones, whatever their sizes.
func TestSticky_ZonesSpread(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 2000 / scale {
		n, zones := 2+rng.IntN(12), 2+rng.IntN(3)
		p := coord.Problem{Workloads: numbered(rng.IntN(60)), Instances: fleet(n)}
		for i := range p.Instances {
			p.Instances[i].Zone = fmt.Sprint(i % zones)
		}
		a := must(t, coord.Sticky{}, p)
		total := map[string]int{}
		for i, c := range counts(p, a) {
			total[p.Instances[i].Zone] += c
		}
		for i, c := range counts(p, a) {
			for j, d := range counts(p, a) {
				x, y := p.Instances[i].Zone, p.Instances[j].Zone
				if c > d && total[x] > total[y]+1 {
					t.Fatalf("%d workloads over %d instances: zone %s has %d, zone %s %d, and one more would fit there", len(p.Workloads), n, x, total[x], y, total[y])
				}
			}
		}
	}
}

// Ensures that weights which change a little move nothing, over and over.
func TestSticky_DeadBand(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for range 300 / scale {
		p := coord.Problem{Workloads: numbered(30 + rng.IntN(60)), Instances: fleet(3 + rng.IntN(3))}
		weights := make([]float64, len(p.Workloads))
		for w := range weights {
			weights[w] = float64(1 + rng.IntN(4))
			p.Workloads[w].Weight = weights[w]
		}
		p.Current = must(t, coord.Sticky{}, p)
		for range 20 {
			p.Workloads = slices.Clone(p.Workloads)
			for w := range weights {
				p.Workloads[w].Weight = weights[w] * (0.98 + 0.04*rng.Float64())
			}
			if a := must(t, coord.Sticky{}, p); moved(p.Current, a) != 0 {
				t.Fatalf("%d moved within the band: loads %v", moved(p.Current, a), loads(p, p.Current))
			}
		}
	}

	// Many light workloads, measured: a's became a tenth heavier at once.
	p := coord.Problem{Workloads: numbered(400), Instances: fleet(2)}
	for w := range p.Workloads {
		p.Workloads[w].Weight = 1 + float64(w%7)/10
	}
	p.Current = must(t, coord.Sticky{}, p)
	for w, i := range p.Current {
		if i == 0 {
			p.Workloads[w].Weight *= 1.1
		}
	}
	equal(t, moved(p.Current, must(t, coord.Sticky{DeadBand: 0.15}, p)), 0, "moves within a dead band of 15 %")
	a := must(t, coord.Sticky{}, p)
	equal(t, moved(p.Current, a), 8, "moves without one")
	p.Current = a
	equal(t, moved(p.Current, must(t, coord.Sticky{}, p)), 0, "moves after that")
}

// FuzzSticky: whatever it is given, it keeps its promises and does not panic.
func FuzzSticky(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed, seed*7, []byte{byte(seed), 3, 200, 0, 77})
	}
	f.Fuzz(func(t *testing.T, seed, kind uint64, weights []byte) {
		rng := rand.New(rand.NewPCG(seed, kind))
		p := randomProblem(rng)
		for w := range min(len(weights), len(p.Workloads)) {
			p.Workloads[w].Weight = float64(weights[w]) * float64(kind%1000+1) / 8
		}
		a := must(t, coord.Sticky{}, p)
		if err := promises(p, a); err != nil {
			t.Fatalf("%v\n%+v\n%v", err, p, a)
		}
		q := shuffled(rng, p)
		if got, want := byID(q, must(t, coord.Sticky{}, q)), byID(p, a); !maps.Equal(got, want) {
			t.Fatalf("in another order\ngot  %v\nwant %v", got, want)
		}
		now, later := coord.Moves(p, a, coord.MoveLimits{})
		for _, m := range append(now, later...) {
			if m.Because == "" {
				t.Fatalf("%+v has no reason", m)
			}
		}
		p.Current = a
		if again := must(t, coord.Sticky{}, p); !slices.Equal(again, a) {
			t.Fatalf("asked again, it moves %d\n%+v", moved(a, again), p)
		}
		// What Place would refuse must not break it either.
		p.Current, p.Pinned, p.Avoid = []int{99, -7}, []int{1 << 40}, nil
		for w := range p.Workloads {
			p.Workloads[w].Weight = -float64(w)
		}
		coord.Sticky{DeadBand: float64(kind) - 1e9}.Assign(p)
	})
}
