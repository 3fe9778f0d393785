package coord_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// Ensures that everything that is wrong with a group is told at once, each with
// what would do.
func TestGroup_Validate(t *testing.T) {
	for _, c := range []struct {
		name  string
		group coord.Group
		want  []string
	}{
		{"good", coord.Group{Name: "g", Workloads: works("a", "b")}, nil},
		{"blank", coord.Group{}, []string{
			"Name is blank: it names the group in the cluster",
			"Workloads is empty: an instance joins with what it can run",
		}},
		{"names", coord.Group{Name: "a/b", Workloads: works("a")}, []string{
			`Name is "a/b": it must not contain a slash, which ends it in the keys of leases`,
		}},
		{"the product's own", coord.Group{Name: "miw", Workloads: works("a")}, []string{
			`Name is "miw": keys below miw/ are the product's own`,
		}},
		{"keys", coord.Group{Name: "g", Workloads: works("a", " ", "a", "")}, []string{
			"Workloads[1] has a blank key",
			`Workloads[2] has the key "a" of Workloads[0]: each key once`,
			"Workloads[3] has a blank key",
		}},
		{"numbers", coord.Group{
			Name: "g", Workloads: []coord.Workload{{Key: "a", Weight: -1}, {Key: "b", Weight: math.NaN()}, {Key: "c", Weight: math.Inf(1)}},
			MaxMoves: -1, Capacity: -3, Rebalance: 7,
		}, []string{
			"Rebalance is 7: RebalanceImmediate or RebalanceGraceful would do",
			"MaxMoves is -1: it must lie between 1 and 10000, or be 0 for a tenth of the group",
			"Capacity is -3: it must be above 0 and finite, or 0 for no bound",
			`Weight of workload "a" is -1: it must be above 0 and finite, or 0 for 1`,
			`Weight of workload "b" is NaN: it must be above 0 and finite, or 0 for 1`,
			`Weight of workload "c" is +Inf: it must be above 0 and finite, or 0 for 1`,
		}},
		{"the group of workers", coord.Group{Name: "workers", Runtimes: []string{"exec"}}, nil},
		{"the group of workers, with workloads", coord.Group{Name: "workers", Workloads: works("a")}, []string{
			`Name is "workers": that name is of the group of workers, which an instance joins with Runtimes, as no other`,
		}},
		{"runtimes elsewhere", coord.Group{Name: "g", Workloads: works("a"), Runtimes: []string{"exec"}}, []string{
			`Name is "g": that name is of the group of workers, which an instance joins with Runtimes, as no other`,
			"Workloads and Runtimes are both there: one of them",
		}},
		{"too many", coord.Group{Name: "g", Workloads: many(10_001)}, []string{
			"Workloads are 10001: a group has at most 10000; split it in two",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if err := c.group.Validate(); err != nil {
				got = err.Error()
			}
			equal(t, got, strings.Join(c.want, "\n"), "faults")
		})
	}
	blank := coord.Group{Name: "g", Workloads: make([]coord.Workload, 100)}
	equal(t, strings.HasSuffix(blank.Validate().Error(), "and 80 more workloads are wrong"), true, "faults of a hundred are summed up")
	odd := coord.Group{Name: "g", Workloads: []coord.Workload{{Key: "a", DisplayName: "a\nb"}, {Key: "b", Labels: map[string]string{"": "x"}}}}
	equal(t, strings.Count(odd.Validate().Error(), "\n"), 1, "faults of names and labels")
}

func TestNewCoordinator_Refuses(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		run := func(context.Context, coord.Workload, *coord.Lease) error { return nil }
		good := coord.Group{Name: "g", Workloads: works("a")}
		for name, err := range map[string]error{
			"no cluster":  second(coord.NewCoordinator(nil, good, run)),
			"no function": second(coord.NewCoordinator(a, good, nil)),
			"bad group":   second(coord.NewCoordinator(a, coord.Group{}, run)),
			"bad configuration": second(coord.NewCoordinator(a, good, run, func(c *coord.CoordinatorConfig) {
				c.PrepareTimeout, c.DrainTimeout, c.Planning.RestartGrace = -1, -1, -1
			})),
		} {
			if !errors.Is(err, fsm.ErrInvalidArgument) {
				t.Errorf("%s: got %v", name, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }
