package coord

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/miwnode/miwnode/fsm"
)

// Workload is a named unit of work of a group, which one instance at a time runs.
type Workload struct {
	// Key names it within its group. Its lease has the key <group>/<key>.
	Key string
	// DisplayName is what people are shown. Defaults to the key.
	DisplayName string
	// Weight is how much work it is, compared to the others. Defaults to 1.
	Weight float64
	// Labels are for the assigner and for people.
	Labels map[string]string
}

// Group is a set of workloads that instances share out among themselves. Every
// instance that may run them declares it with a Coordinator. Instances may
// declare different workloads under one name, as in a rolling deploy: the group
// wants them all, and gives each to an instance that declared it.
type Group struct {
	// Name names the group in the cluster: at most 128 bytes, no slash, not "miw".
	Name string
	// Workloads are those that this instance can run: at most 10,000, in any order.
	Workloads []Workload
	// Runtimes, in place of Workloads, are what this instance has for the group
	// of workers ([fsm.WorkersGroup]): exec, wasm, func:<name>. The workloads of
	// that group are the workers that are to run, which change at any time.
	Runtimes []string
	// Assigner decides who runs what. Defaults to Sticky. All instances should
	// say the same: the one that plans uses its own, and does so only where it
	// is of the kind that the group's settings name.
	Assigner Assigner
	// Rebalance says how a run ends whose workload is to pass from a healthy
	// instance to another. Defaults to RebalanceImmediate, which cancels it at
	// once. RebalanceGraceful lets it finish what it has begun, for up to the
	// drain timeout, and is what most work wants.
	Rebalance Rebalance
	// MaxMoves is how many workloads may be under way at a time for the sake of
	// balance. Defaults to a tenth of the group, at least one. What has nobody,
	// or must leave an instance that drains, is not counted.
	MaxMoves int
	// Capacity is the sum of weights that this instance takes. Zero means no bound.
	Capacity float64
}

// Validate reports every fault of g at once, naming the field or the workload
// and what would do.
func (g Group) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case strings.TrimSpace(g.Name) == "":
		bad("Name is blank: it names the group in the cluster")
	case strings.Contains(g.Name, "/"):
		bad("Name is %q: it must not contain a slash, which ends it in the keys of leases", g.Name)
	case (g.Name == fsm.WorkersGroup) != (len(g.Runtimes) > 0):
		bad("Name is %q: that name is of the group of workers, which an instance joins with Runtimes, as no other", g.Name)
	case g.Name == "miw":
		bad("Name is %q: keys below miw/ are the product's own", g.Name)
	case len(g.Name) > fsm.MaxGroupNameBytes:
		bad("Name has %d bytes: at most %d", len(g.Name), fsm.MaxGroupNameBytes)
	}
	if g.Rebalance > RebalanceGraceful {
		bad("Rebalance is %d: RebalanceImmediate or RebalanceGraceful would do", g.Rebalance)
	}
	if g.MaxMoves < 0 || g.MaxMoves > fsm.MaxWorkloads {
		bad("MaxMoves is %d: it must lie between 1 and %d, or be 0 for a tenth of the group", g.MaxMoves, fsm.MaxWorkloads)
	}
	if !(g.Capacity >= 0) || math.IsInf(g.Capacity, 0) {
		bad("Capacity is %v: it must be above 0 and finite, or 0 for no bound", g.Capacity)
	}
	switch n := len(g.Workloads); {
	case n == 0 && len(g.Runtimes) == 0:
		bad("Workloads is empty: an instance joins with what it can run")
	case n > 0 && len(g.Runtimes) > 0:
		bad("Workloads and Runtimes are both there: one of them")
	case n > fsm.MaxWorkloads:
		bad("Workloads are %d: a group has at most %d; split it in two", n, fsm.MaxWorkloads)
	}
	errs = append(errs, checkWorkloads(g.Workloads)...)
	return errors.Join(errs...)
}

// maxFaults bounds how many faults of workloads are told one by one.
const maxFaults = 20

func checkWorkloads(workloads []Workload) (errs []error) {
	faults := 0
	bad := func(format string, args ...any) {
		if faults++; faults <= maxFaults {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	seen := make(map[string]int, len(workloads))
	for i, w := range workloads {
		if strings.TrimSpace(w.Key) == "" {
			bad("Workloads[%d] has a blank key", i)
			continue
		}
		if first, twice := seen[w.Key]; twice {
			bad("Workloads[%d] has the key %q of Workloads[%d]: each key once", i, w.Key, first)
			continue
		}
		seen[w.Key] = i
		if w.Weight == 0 {
			w.Weight = 1
		}
		if !(w.Weight > 0) || math.IsInf(w.Weight, 0) {
			bad("Weight of workload %q is %v: it must be above 0 and finite, or 0 for 1", w.Key, w.Weight)
			w.Weight = 1
		}
		// What else there is to say of one workload, the state says.
		if _, _, err := fsm.NewCatalog([]fsm.Spec{w.spec()}); err != nil {
			bad("workload %q: %s", w.Key, faultOf(err))
		}
	}
	if faults > maxFaults {
		errs = append(errs, fmt.Errorf("and %d more workloads are wrong", faults-maxFaults))
	}
	return errs
}

// faultOf is the message of a refusal without its code.
func faultOf(err error) string {
	if e, ok := errors.AsType[*fsm.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

// workloadFrom is a workload as the state has it.
func workloadFrom(s *fsm.Spec) *Workload {
	return &Workload{Key: s.Key, DisplayName: s.DisplayName, Weight: s.Weight, Labels: labelMap(s.Labels)}
}

func (w Workload) spec() fsm.Spec {
	s := fsm.Spec{Key: w.Key, DisplayName: w.DisplayName, Weight: w.Weight}
	for k, v := range w.Labels {
		s.Labels = append(s.Labels, fsm.Label{Key: k, Value: v})
	}
	slices.SortFunc(s.Labels, func(a, b fsm.Label) int { return strings.Compare(a.Key, b.Key) })
	return s
}

// name is what people are shown.
func (w Workload) name() string {
	if strings.TrimSpace(w.DisplayName) != "" {
		return w.DisplayName
	}
	return w.Key
}

// specs are the workloads as the state takes them.
func (g Group) specs() []fsm.Spec {
	specs := make([]fsm.Spec, len(g.Workloads))
	for i, w := range g.Workloads {
		specs[i] = w.spec()
	}
	return specs
}

// settings are what the group is made with, where it was not put.
func (g Group) settings() *fsm.GroupSettings {
	s := &fsm.GroupSettings{Assigner: kindOf(g.Assigner), Rebalance: fsm.RebalanceImmediate, MaxMoves: uint32(g.MaxMoves)}
	if g.Rebalance == RebalanceGraceful {
		s.Rebalance = fsm.RebalanceGraceful
	}
	return s
}

// kindOf is the word of a group's settings for an Assigner.
func kindOf(a Assigner) string {
	switch a.(type) {
	case nil, Sticky, *Sticky:
		return fsm.AssignSticky
	case Balanced, *Balanced:
		return fsm.AssignBalanced
	case Primary, *Primary:
		return fsm.AssignPrimary
	}
	return fsm.AssignCustom
}

// assignerFor is the Assigner that settings ask for: the program's own where it
// is of that kind, else the built-in one.
func assignerFor(s fsm.Settings, own Assigner) (Assigner, error) {
	if own != nil && kindOf(own) == s.Assigner {
		return own, nil
	}
	if s.Assigner == fsm.AssignCustom {
		return nil, fsm.Errorf(fsm.CodeWrongState, "the group is placed by a function of the programs that declared it, which this one does not have")
	}
	return AssignerOf(s.Assigner)
}
