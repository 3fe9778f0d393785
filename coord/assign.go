package coord

import (
	"cmp"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/miwnode/miwnode/fsm"
)

// None is the index of no instance: nobody has it, nothing is wished.
const None = -1

// Assigner decides which instance runs which workload of a group. It must be a
// pure function of the Problem: the planner may move to another node at any
// time, and every plan is made from scratch. [Sticky], [Balanced] and [Primary]
// are the built-in ones; [AssignerFunc] makes one of a function.
type Assigner interface {
	Assign(p Problem) Assignment
}

// AssignerFunc is a function as an Assigner.
type AssignerFunc func(p Problem) Assignment

// Assign calls f.
func (f AssignerFunc) Assign(p Problem) Assignment { return f(p) }

// Assignment names, for each of Problem.Workloads, the index of its owner in
// Problem.Instances. None is right only where no instance can run it.
type Assignment []int

// Problem is what an Assigner is asked. Workloads and instances come in no
// particular order; [Problem.KeyOrder] and [Problem.JoinOrder] give one.
//
// Paused workloads, and those that wait for the instance they are pinned to,
// are no part of it.
type Problem struct {
	Workloads []WorkloadInfo
	Instances []InstanceInfo

	// Can reports whether the instance declared the workload. nil: all can run
	// all. It is called up to once for each pair, so it should be cheap.
	Can func(instance, workload int) bool

	// Current, Pinned and Avoid name an instance for each workload, or None.
	// nil is None for all.
	Current []int // who has it, or is to get it by an earlier plan
	Pinned  []int // who shall have it
	Avoid   []int // where it failed last
}

// WorkloadInfo is a workload of a Problem.
type WorkloadInfo struct {
	Key    string
	Weight float64 // how much work it is, compared to others; 0 means 1
	Labels map[string]string
}

// InstanceInfo is an instance of a Problem. Those that are not live are no part
// of it.
type InstanceInfo struct {
	ID             string
	JoinedRevision uint64 // of the entry of the log by which it joined
	Position       uint32 // within that entry
	Zone           string
	Labels         map[string]string
	Capacity       float64 // the sum of weights that it takes; 0 means no bound
	Eligible       bool    // takes what it does not have: neither cordoned nor draining
	Draining       bool    // must give away what it has; never eligible
}

// Takes reports whether the workload may be given to the instance or left
// there: the instance declared it, does not drain, and is not cordoned or has it
// already.
func (p *Problem) Takes(instance, workload int) bool {
	in := &p.Instances[instance]
	if in.Draining || !in.Eligible && !p.has(instance, workload) {
		return false
	}
	return p.Can == nil || p.Can(instance, workload)
}

func (p *Problem) has(instance, workload int) bool {
	c := p.at(p.Current, workload)
	return c != None && p.Instances[c].ID == p.Instances[instance].ID
}

// at reads one of Current, Pinned and Avoid. What makes no sense is None.
func (p *Problem) at(wishes []int, workload int) int {
	if workload >= len(wishes) || wishes[workload] < 0 || wishes[workload] >= len(p.Instances) {
		return None
	}
	return wishes[workload]
}

// pin is the instance that the workload is pinned to, None where that one can't
// have it: a pin is no way round a cordon or a drain.
func (p *Problem) pin(workload int) int {
	if i := p.at(p.Pinned, workload); i != None && p.Takes(i, workload) {
		return i
	}
	return None
}

func (p *Problem) weight(workload int) float64 {
	if w := p.Workloads[workload].Weight; w > 0 && !math.IsInf(w, 1) {
		return w
	}
	return 1
}

// JoinOrder returns the indexes of the instances, the one that joined first
// first; ties are broken by ID, byte by byte. An ID that comes twice counts
// once, as what joined first.
func (p *Problem) JoinOrder() []int {
	order := make([]int, len(p.Instances))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := &p.Instances[a], &p.Instances[b]
		return cmp.Or(cmp.Compare(x.JoinedRevision, y.JoinedRevision), cmp.Compare(x.Position, y.Position), strings.Compare(x.ID, y.ID))
	})
	seen := make(map[string]bool, len(order))
	return slices.DeleteFunc(order, func(i int) bool {
		again := seen[p.Instances[i].ID]
		seen[p.Instances[i].ID] = true
		return again
	})
}

// KeyOrder returns the indexes of the workloads by key, byte by byte.
func (p *Problem) KeyOrder() []int {
	order := make([]int, len(p.Workloads))
	for i := range order {
		order[i] = i
	}
	byKey := func(a, b int) int { return strings.Compare(p.Workloads[a].Key, p.Workloads[b].Key) }
	if !slices.IsSortedFunc(order, byKey) {
		slices.SortStableFunc(order, byKey)
	}
	return order
}

// Validate reports the first fault of the problem itself, as
// fsm.ErrInvalidArgument.
func (p *Problem) Validate() error {
	bad := func(format string, args ...any) error { return fsm.Errorf(fsm.CodeInvalidArgument, format, args...) }
	keys := make(map[string]bool, len(p.Workloads))
	for w := range p.Workloads {
		in := &p.Workloads[w]
		switch {
		case strings.TrimSpace(in.Key) == "":
			return bad("workload %d has a blank key", w)
		case keys[in.Key]:
			return bad("workload %q is there twice", in.Key)
		case math.IsNaN(in.Weight) || math.IsInf(in.Weight, 0) || in.Weight < 0:
			return bad("weight of workload %q is %v: it must be more than zero (zero means 1)", in.Key, in.Weight)
		}
		keys[in.Key] = true
	}
	for i := range p.Instances {
		in := &p.Instances[i]
		switch {
		case strings.TrimSpace(in.ID) == "":
			return bad("instance %d has a blank ID", i)
		case math.IsNaN(in.Capacity) || math.IsInf(in.Capacity, 0) || in.Capacity < 0:
			return bad("capacity of instance %q is %v: it must be more than zero (zero means no bound)", in.ID, in.Capacity)
		}
	}
	for _, wishes := range []struct {
		name string
		of   []int
	}{{"Current", p.Current}, {"Pinned", p.Pinned}, {"Avoid", p.Avoid}} {
		if wishes.of != nil && len(wishes.of) != len(p.Workloads) {
			return bad("%s has %d entries for %d workloads", wishes.name, len(wishes.of), len(p.Workloads))
		}
		for w, i := range wishes.of {
			if i < None || i >= len(p.Instances) {
				return bad("%s names instance %d of %d for workload %q", wishes.name, i, len(p.Instances), p.Workloads[w].Key)
			}
		}
	}
	return nil
}

// AssignError is what [Place] found wrong with the answer of an Assigner.
type AssignError struct {
	Assigner string // its name, or its type
	Workload string // the first that is concerned, "" when it is none
	Instance string // likewise
	Why      string
	More     int   // how many further workloads are wrong
	Err      error // the *PanicError, when it panicked
}

func (e *AssignError) Error() string {
	s := "assigner " + e.Assigner + " " + e.Why
	if e.More > 0 {
		s += fmt.Sprintf(" (and %d more)", e.More)
	}
	return s
}

// Unwrap returns the *PanicError of an Assigner that panicked.
func (e *AssignError) Unwrap() error { return e.Err }

// Place asks the Assigner, nil being [Sticky], and believes nothing: it returns
// an assignment that may be carried out, or an *AssignError that says why not.
// A panic is such an error. Pins are put right without a word, so that an
// Assigner need not know of them.
func Place(a Assigner, p Problem) (Assignment, error) {
	if a == nil {
		a = Sticky{}
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	// The answer is read by index, so the Assigner gets slices of its own: one
	// that sorts them must not shift everybody's work.
	given := p
	given.Workloads, given.Instances = slices.Clone(p.Workloads), slices.Clone(p.Instances)
	given.Current, given.Pinned, given.Avoid = slices.Clone(p.Current), slices.Clone(p.Pinned), slices.Clone(p.Avoid)
	answer, err := ask(a, given)
	if err != nil {
		return nil, err
	}
	sameKey := func(x, y WorkloadInfo) bool { return x.Key == y.Key }
	sameID := func(x, y InstanceInfo) bool { return x.ID == y.ID }
	switch {
	case !slices.EqualFunc(p.Workloads, given.Workloads, sameKey) || !slices.EqualFunc(p.Instances, given.Instances, sameID):
		return nil, &AssignError{Assigner: AssignerName(a), Why: "changed the order of the problem, by which its answer is read: sort a copy"}
	case len(answer) != len(p.Workloads):
		return nil, &AssignError{Assigner: AssignerName(a), Why: fmt.Sprintf("answered for %d workloads of %d", len(answer), len(p.Workloads))}
	}
	answer = slices.Clone(answer)
	var first *AssignError
	for w := range answer {
		if i := p.pin(w); i != None {
			answer[w] = i
			continue
		}
		if instance, why := p.fault(w, answer[w]); why != "" {
			if first != nil {
				first.More++
				continue
			}
			first = &AssignError{Assigner: AssignerName(a), Workload: p.Workloads[w].Key, Instance: instance, Why: why}
		}
	}
	if first != nil {
		return nil, first
	}
	return answer, nil
}

func ask(a Assigner, p Problem) (answer Assignment, err error) {
	defer func() {
		if v := recover(); v != nil {
			answer, err = nil, &AssignError{
				Assigner: AssignerName(a), Why: fmt.Sprintf("panicked: %v", v),
				Err: &PanicError{Value: v, Stack: debug.Stack()},
			}
		}
	}()
	return a.Assign(p), nil
}

// fault says why the instance of that index can't be the owner, "" when it can.
func (p *Problem) fault(workload, i int) (instance, why string) {
	key := p.Workloads[workload].Key
	if i == None {
		for j := range p.Instances {
			if p.Takes(j, workload) {
				return p.Instances[j].ID, fmt.Sprintf("leaves out %q, which %q can run", key, p.Instances[j].ID)
			}
		}
		return "", ""
	}
	if i < 0 || i >= len(p.Instances) {
		return "", fmt.Sprintf("gives %q to instance %d, of %d that there are", key, i, len(p.Instances))
	}
	in := &p.Instances[i]
	switch {
	case p.Can != nil && !p.Can(i, workload):
		return in.ID, fmt.Sprintf("gives %q to %q, which did not declare it", key, in.ID)
	case in.Draining:
		return in.ID, fmt.Sprintf("gives %q to %q, which drains", key, in.ID)
	case !p.Takes(i, workload):
		return in.ID, fmt.Sprintf("gives %q to %q, which is cordoned", key, in.ID)
	}
	return "", ""
}

// AssignerName is the name by which settings of groups know the Assigner:
// sticky, balanced or primary, and the type of any other.
func AssignerName(a Assigner) string {
	if s, ok := a.(fmt.Stringer); ok {
		return fmt.Sprint(s) // contains a panic of String
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", a), "*")
}

// AssignerOf returns the built-in Assigner of that name; "" is [Sticky].
func AssignerOf(name string) (Assigner, error) {
	switch name {
	case "", "sticky":
		return Sticky{}, nil
	case "balanced":
		return Balanced{}, nil
	case "primary":
		return Primary{}, nil
	}
	return nil, fsm.Errorf(fsm.CodeInvalidArgument, "assigner is %q: it must be sticky, balanced or primary", name)
}
