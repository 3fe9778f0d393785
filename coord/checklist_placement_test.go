package coord_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
)

// assignRow is a row that needs no cluster: what an assigner answers.
func assignRow(name string, test func(t *testing.T)) row {
	return row{name: name, test: func(t *testing.T, _ *coordtest.World) { test(t) }}
}

var placementRows = []row{
	assignRow("066_FourWorkloadsAndTwoInstancesCase_ShouldAssignEvenSliceOrderedByJoinTime", func(t *testing.T) {
		p := coord.Problem{Workloads: workloads("d", "b", "c", "a"), Instances: []coord.InstanceInfo{joined("second", 2), joined("first", 1)}}
		equal(t, placed(p, must(t, coord.Balanced{}, p)), "first: a b | second: c d", "slices")
	}),
	assignRow("066_RemainderCase_ShouldAssignExtraWorkloadToEarlierJoinedInstance", func(t *testing.T) {
		p := coord.Problem{Workloads: workloads("a", "b", "c", "d", "e"), Instances: []coord.InstanceInfo{joined("first", 1), joined("second", 2)}}
		equal(t, placed(p, must(t, coord.Balanced{}, p)), "first: a b c | second: d e", "slices")
		p = coord.Problem{Workloads: workloads("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"), Instances: fleet(4)}
		equal(t, placed(p, must(t, coord.Balanced{}, p)), "i000: a b c | i001: d e f | i002: g h i | i003: j k", "slices of 11 over 4")
	}),
	assignRow("066_MissingInstanceCase_ShouldAssignNoWorkloads", func(t *testing.T) {
		p := coord.Problem{Workloads: workloads("a", "b"), Instances: []coord.InstanceInfo{joined("first", 1)}}
		a := must(t, coord.Balanced{}, p)
		equal(t, keysOf(p, a, "first"), "a b", "of the one that is there")
		equal(t, keysOf(p, a, "missing"), "", "of the one that is not")
		p.Instances = nil
		equal(t, placed(p, must(t, coord.Balanced{}, p)), "nobody: a b", "without instances")
	}),
	assignRow("066_balanced_fewer_workloads_than_instances_or_none", func(t *testing.T) {
		p := coord.Problem{Workloads: workloads("a", "b"), Instances: fleet(4)}
		equal(t, placed(p, must(t, coord.Balanced{}, p)), "i000: a | i001: b | i002: | i003:", "two for four")
		p.Workloads = nil
		equal(t, placed(p, must(t, coord.Balanced{}, p)), "i000: | i001: | i002: | i003:", "none for four")
	}),
	assignRow("067_InstancesOutOfIdOrder_ShouldBeSlicedByJoinTimeNotInstanceId", func(t *testing.T) {
		p := coord.Problem{Workloads: workloads("a", "b", "c", "d"), Instances: []coord.InstanceInfo{joined("aaa", 20), joined("zzz", 10)}}
		equal(t, placed(p, must(t, coord.Balanced{}, p)), "zzz: a b | aaa: c d", "slices")
	}),
	assignRow("067_SameJoinTime_ShouldBreakTiesByInstanceId", func(t *testing.T) {
		// By byte, so capitals come before all small letters in every language.
		p := coord.Problem{Workloads: workloads("b", "B", "a", "A", "é", "z"), Instances: []coord.InstanceInfo{joined("b", 7), joined("a", 7), joined("B", 7)}}
		equal(t, placed(p, must(t, coord.Balanced{}, p)), "B: A B | a: a b | b: z é", "slices")
		p.Instances[0].Position, p.Instances[1].Position, p.Instances[2].Position = 1, 2, 3
		equal(t, placed(p, must(t, coord.Balanced{}, p)), "b: A B | a: a b | B: z é", "by the position in the entry")
	}),
	assignRow("067_balanced_duplicates_count_once_and_order_means_nothing", func(t *testing.T) {
		p := coord.Problem{Workloads: workloads("a", "b", "c", "d"), Instances: []coord.InstanceInfo{joined("x", 1), joined("y", 2), joined("x", 1), joined("x", 9)}}
		equal(t, keysOf(p, must(t, coord.Balanced{}, p), "x"), "a b", "of x, who is there three times")
		equal(t, keysOf(p, must(t, coord.Balanced{}, p), "y"), "c d", "of y")
		rng := rand.New(rand.NewPCG(67, 1))
		for range 500 {
			p := coord.Problem{Workloads: numbered(rng.IntN(40)), Instances: fleet(1 + rng.IntN(12))}
			want := byID(p, must(t, coord.Balanced{}, p))
			q := shuffled(rng, p)
			if got := byID(q, must(t, coord.Balanced{}, q)); !maps.Equal(got, want) {
				t.Fatalf("got %v, want %v", got, want)
			}
		}
	}),
	assignRow("068_balanced_covers_all_disjoint_and_even", func(t *testing.T) {
		rng := rand.New(rand.NewPCG(68, 1))
		for range 3000 {
			w, n := rng.IntN(300), 1+rng.IntN(30)
			p := shuffled(rng, coord.Problem{Workloads: numbered(w), Instances: fleet(n)})
			a := must(t, coord.Balanced{}, p)
			// One owner each is the shape of the answer; that somebody has it is not.
			if slices.Contains(a, coord.None) {
				t.Fatalf("%d over %d: %v", w, n, a)
			}
			inOrder := make([]int, 0, n)
			for _, i := range p.JoinOrder() {
				inOrder = append(inOrder, counts(p, a)[i])
			}
			if n > 0 && (slices.Max(inOrder)-slices.Min(inOrder) > 1 || !slices.IsSortedFunc(inOrder, func(x, y int) int { return y - x })) {
				t.Fatalf("%d over %d: %v", w, n, inOrder)
			}
			// Contiguous: owners by key, in join order, never go back.
			last := uint64(0)
			for _, k := range p.KeyOrder() {
				if r := p.Instances[a[k]].JoinedRevision; r < last {
					t.Fatalf("%d over %d is not contiguous", w, n)
				} else {
					last = r
				}
			}
		}
	}),
	assignRow("069_sticky_one_join_moves_at_most_its_share", func(t *testing.T) {
		for w := range 120 {
			for n := 1; n <= 14; n++ {
				p := coord.Problem{Workloads: numbered(w), Instances: fleet(n)}
				p.Current = must(t, coord.Sticky{}, p)
				p.Instances = fleet(n + 1)
				a := must(t, coord.Sticky{}, p)
				if got, most := moved(p.Current, a), (w+n)/(n+1); got > most {
					t.Fatalf("%d workloads, %d instances and one more: %d moved, at most %d should", w, n, got, most)
				}
				for k, i := range a {
					if i != p.Current[k] && i != n {
						t.Fatalf("%d workloads, %d instances and one more: %d moved to one that was there", w, n, k)
					}
				}
			}
		}
	}),
	assignRow("070_CurrentInstanceJoinedEarliestCase_ShouldAssignEveryWorkload", func(t *testing.T) {
		p := coord.Problem{Workloads: workloads("c", "a", "b"), Instances: []coord.InstanceInfo{joined("later", 2), joined("me", 1)}}
		equal(t, keysOf(p, must(t, coord.Primary{}, p), "me"), "a b c", "of the earliest")
	}),
	assignRow("070_CurrentInstanceDidNotJoinEarliestCase_ShouldAssignNoWorkloads", func(t *testing.T) {
		p := coord.Problem{Workloads: workloads("c", "a", "b"), Instances: []coord.InstanceInfo{joined("earliest", 1), joined("me", 2)}}
		equal(t, keysOf(p, must(t, coord.Primary{}, p), "me"), "", "of the later one")
	}),
	assignRow("070_NoActiveInstancesCase_ShouldAssignNoWorkloads", func(t *testing.T) {
		p := coord.Problem{Workloads: workloads("a", "b")}
		equal(t, placed(p, must(t, coord.Primary{}, p)), "nobody: a b", "without instances")
		p.Instances = []coord.InstanceInfo{{ID: "drains", Draining: true}}
		equal(t, placed(p, must(t, coord.Primary{}, p)), "drains: | nobody: a b", "with one that drains")
	}),
	assignRow("070_PrimaryFailsOverCase_ShouldReassignEveryWorkloadToNextEarliestJoinedInstance", func(t *testing.T) {
		p := coord.Problem{Workloads: workloads("a", "b"), Instances: []coord.InstanceInfo{joined("one", 1), joined("two", 2), joined("three", 3)}}
		a := must(t, coord.Primary{}, p)
		equal(t, placed(p, a), "one: a b | two: | three:", "at first")
		p = without(p, a, 0)
		equal(t, placed(p, must(t, coord.Primary{}, p)), "two: a b | three:", "after the first left")
	}),
	assignRow("070_NewInstanceJoinsWithAnAlphabeticallyEarlierIdCase_ShouldNotStealPrimaryFromTheIncumbent", func(t *testing.T) {
		p := coord.Problem{Workloads: workloads("a"), Instances: []coord.InstanceInfo{joined("zebra", 1), joined("aardvark", 2)}}
		equal(t, placed(p, must(t, coord.Primary{}, p)), "zebra: a | aardvark:", "primary")
	}),
	assignRow("070_TiedJoinTimeCase_ShouldBreakTieByInstanceIdOrdinal", func(t *testing.T) {
		p := coord.Problem{Workloads: workloads("a"), Instances: []coord.InstanceInfo{joined("a", 1), joined("B", 1)}}
		equal(t, placed(p, must(t, coord.Primary{}, p)), "B: a | a:", "primary")
	}),
	assignRow("071_an_assigner_of_ones_own_is_asked_with_instances_and_join_times", func(t *testing.T) {
		p := coord.Problem{Workloads: workloads("a", "b"), Instances: []coord.InstanceInfo{joined("one", 1), joined("two", 2)}}
		latest := coord.AssignerFunc(func(p coord.Problem) coord.Assignment {
			order := p.JoinOrder()
			a := make(coord.Assignment, len(p.Workloads))
			for w := range a {
				a[w] = order[len(order)-1]
			}
			return a
		})
		equal(t, placed(p, must(t, latest, p)), "one: | two: a b", "to the latest")
	}),
	assignRow("071_assigners_are_pure", func(t *testing.T) {
		rng := rand.New(rand.NewPCG(71, 1))
		for range 300 {
			p := randomProblem(rng)
			for _, a := range assigners {
				before := p
				before.Current, before.Pinned, before.Avoid = slices.Clone(p.Current), slices.Clone(p.Pinned), slices.Clone(p.Avoid)
				first := a.Assign(p)
				if !slices.Equal(first, a.Assign(p)) {
					t.Fatalf("%v answers differently when it is asked again", a)
				}
				if !slices.Equal(before.Current, p.Current) || !slices.Equal(before.Pinned, p.Pinned) || !slices.Equal(before.Avoid, p.Avoid) {
					t.Fatalf("%v changed its problem", a)
				}
			}
		}
	}),
}
