package coord_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
)

type named struct{ coord.AssignerFunc }

func (named) String() string { return "mine" }

// Ensures that no wrong answer passes, and that each is told for what it is.
func TestPlace_Faults(t *testing.T) {
	p := coord.Problem{
		Workloads: workloads("a", "b", "c"),
		Instances: []coord.InstanceInfo{
			joined("one", 1),
			{ID: "cordoned", JoinedRevision: 2},
			{ID: "drains", JoinedRevision: 3, Draining: true},
			joined("two", 4),
		},
		Current: []int{coord.None, 1, 2},
		Can:     func(i, w int) bool { return i != 3 || w == 0 },
	}
	answer := func(a ...int) coord.AssignerFunc {
		return func(coord.Problem) coord.Assignment { return a }
	}
	for _, c := range []struct {
		name               string
		a                  coord.AssignerFunc
		want               string
		workload, instance string
	}{
		{"short", answer(0), "assigner mine answered for 1 workloads of 3", "", ""},
		{"nil", answer(), "assigner mine answered for 0 workloads of 3", "", ""},
		{"long", answer(0, 0, 0, 0), "assigner mine answered for 4 workloads of 3", "", ""},
		{"unknown", answer(0, 0, 4), `assigner mine gives "c" to instance 4, of 4 that there are`, "c", ""},
		{"negative", answer(0, -2, 0), `assigner mine gives "b" to instance -2, of 4 that there are`, "b", ""},
		{"not declared", answer(3, 3, 3), `assigner mine gives "b" to "two", which did not declare it (and 1 more)`, "b", "two"},
		{"cordoned", answer(1, 1, 0), `assigner mine gives "a" to "cordoned", which is cordoned`, "a", "cordoned"},
		{"draining", answer(0, 1, 2), `assigner mine gives "c" to "drains", which drains`, "c", "drains"},
		{"left out", answer(0, 1, coord.None), `assigner mine leaves out "c", which "one" can run`, "c", "one"},
		{"panic", func(coord.Problem) coord.Assignment { panic("oh no") }, "assigner mine panicked: oh no", "", ""},
		{"index out of range", func(p coord.Problem) coord.Assignment { p.Instances = nil; return coord.Assignment{p.Current[7]} }, "assigner mine panicked: runtime error: index out of range [7] with length 3", "", ""},
		{"sorts the problem", func(p coord.Problem) coord.Assignment {
			slices.Reverse(p.Workloads)
			return make(coord.Assignment, 3)
		}, "assigner mine changed the order of the problem, by which its answer is read: sort a copy", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := coord.Place(named{c.a}, p)
			e, ok := errors.AsType[*coord.AssignError](err)
			if !ok || got != nil {
				t.Fatalf("answer %v, error %v", got, err)
			}
			equal(t, err.Error(), c.want, "error")
			equal(t, e.Workload, c.workload, "workload")
			equal(t, e.Instance, c.instance, "instance")
			if _, panicked := errors.AsType[*coord.PanicError](err); panicked != strings.Contains(c.want, "panicked") {
				t.Errorf("is a panic: %v", panicked)
			}
		})
	}
	equal(t, placed(p, must(t, answer(3, 1, 0), p)), "one: c | cordoned: b | drains: | two: a", "a good answer")
	p.Pinned = []int{0, 3, 0} // two did not declare b
	equal(t, placed(p, must(t, answer(3, 1, 1), p)), "one: a c | cordoned: b | drains: | two:", "pins are put right, where they can hold")
	equal(t, placed(p, must(t, nil, p)), "one: a c | cordoned: b | drains: | two:", "nil is Sticky")
	equal(t, placed(p, must(t, coord.AssignerFunc(func(q coord.Problem) coord.Assignment {
		q.Current[0], q.Pinned[0] = 3, 3
		return []int{0, 1, 0}
	}), p)), "one: a c | cordoned: b | drains: | two:", "wishes that were overwritten")
}

func TestPlace_Problem(t *testing.T) {
	for _, c := range []struct {
		want string
		p    coord.Problem
	}{
		{"workload 1 has a blank key", coord.Problem{Workloads: workloads("a", " ")}},
		{`workload "a" is there twice`, coord.Problem{Workloads: workloads("a", "b", "a")}},
		{`weight of workload "a" is NaN: it must be more than zero (zero means 1)`, coord.Problem{Workloads: []coord.WorkloadInfo{{Key: "a", Weight: math.NaN()}}}},
		{`weight of workload "a" is -1: it must be more than zero (zero means 1)`, coord.Problem{Workloads: []coord.WorkloadInfo{{Key: "a", Weight: -1}}}},
		{`weight of workload "a" is +Inf: it must be more than zero (zero means 1)`, coord.Problem{Workloads: []coord.WorkloadInfo{{Key: "a", Weight: math.Inf(1)}}}},
		{"instance 0 has a blank ID", coord.Problem{Instances: make([]coord.InstanceInfo, 1)}},
		{`capacity of instance "i" is -2: it must be more than zero (zero means no bound)`, coord.Problem{Instances: []coord.InstanceInfo{{ID: "i", Capacity: -2}}}},
		{"Pinned has 1 entries for 2 workloads", coord.Problem{Workloads: workloads("a", "b"), Pinned: []int{-1}}},
		{`Current names instance 1 of 1 for workload "b"`, coord.Problem{Workloads: workloads("a", "b"), Instances: fleet(1), Current: []int{0, 1}}},
		{`Avoid names instance -2 of 1 for workload "a"`, coord.Problem{Workloads: workloads("a"), Instances: fleet(1), Avoid: []int{-2}}},
	} {
		_, err := coord.Place(coord.Balanced{}, c.p)
		wantErr(t, err, fsm.ErrInvalidArgument)
		if err != nil && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("got %q, want %q", err, c.want)
		}
	}
}

func TestAssignerOf(t *testing.T) {
	for _, a := range assigners {
		got, err := coord.AssignerOf(coord.AssignerName(a))
		if err != nil || got != a {
			t.Errorf("%v: got %v, %v", a, got, err)
		}
	}
	got, err := coord.AssignerOf("")
	equal(t, got, coord.Assigner(coord.Sticky{}), "default")
	equal(t, err, nil, "error")
	_, err = coord.AssignerOf("Sticky")
	wantErr(t, err, fsm.ErrInvalidArgument)
	equal(t, coord.AssignerName(coord.AssignerFunc(nil)), "coord.AssignerFunc", "name of a function")
}

// What the seed's formula does not say: instances that can't have what their
// slice names.
func TestBalanced_Subsets(t *testing.T) {
	three := fleet(3)
	p := coord.Problem{Workloads: workloads("a", "b", "c", "d", "e", "f"), Instances: three, Can: func(i, w int) bool { return i > 0 || w == 0 }}
	equal(t, placed(p, must(t, coord.Balanced{}, p)), "i000: a | i001: b c d | i002: e f", "b goes to the one with the fewest")
	p.Can = func(i, w int) bool { return w != 1 }
	equal(t, placed(p, must(t, coord.Balanced{}, p)), "i000: a | i001: c d | i002: e f | nobody: b", "declared by nobody")

	// A cordon moves nothing: the instance keeps its place in the order.
	p.Can = nil
	p.Current = must(t, coord.Balanced{}, p)
	p.Instances = slices.Clone(three)
	p.Instances[1].Eligible = false
	equal(t, placed(p, must(t, coord.Balanced{}, p)), "i000: a b | i001: c d | i002: e f", "cordoned")
	p.Current[2] = coord.None
	equal(t, placed(p, must(t, coord.Balanced{}, p)), "i000: a b c | i001: d | i002: e f", "cordoned, and c had ended")
	p.Instances[1].Draining = true
	equal(t, placed(p, must(t, coord.Balanced{}, p)), "i000: a b c | i001: | i002: d e f", "draining")
	p.Pinned = []int{2, 1, coord.None, coord.None, coord.None, coord.None}
	equal(t, placed(p, must(t, coord.Balanced{}, p)), "i000: b c | i001: | i002: a d e f", "pins, one of them to the draining one")
}

func TestPrimary_Subsets(t *testing.T) {
	p := coord.Problem{Workloads: workloads("a", "b", "c"), Instances: fleet(3), Can: func(i, w int) bool { return i > 0 || w == 0 }, Pinned: []int{coord.None, coord.None, 2}}
	equal(t, placed(p, must(t, coord.Primary{}, p)), "i000: a | i001: b | i002: c", "declared by some, and a pin")
	p.Instances[0].Eligible = false
	equal(t, placed(p, must(t, coord.Primary{}, p)), "i000: | i001: a b | i002: c", "cordoned before it had any")
	p.Current = []int{0, coord.None, coord.None}
	equal(t, placed(p, must(t, coord.Primary{}, p)), "i000: a | i001: b | i002: c", "cordoned after it had one")
}
