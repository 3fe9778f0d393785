package coord

import (
	"cmp"
	"math"
	"strings"

	"github.com/miwnode/miwnode/fsm"
)

// draft is a group as whoever plans for it sees it, read from one View.
type draft struct {
	group   *fsm.Group
	members *roster
	// problem is what the Assigner is asked. Its Current says whom a workload
	// suits best: who has it or is to get it, or had it and has come back.
	problem Problem
	// bound says who has each workload or is to get it, by the state alone.
	bound    []int
	specs    []*fsm.Spec
	leases   []*fsm.Lease // nil: nobody has it
	underWay int          // moves for the sake of balance
	// waiting are wanted workloads that are no part of the problem.
	waiting  []waiter
	failures map[string]*fsm.Failure // by workload
	// astray counts workloads that run elsewhere than where they failed last.
	astray int
}

// waiter is a workload that nobody is to be given now.
type waiter struct {
	workload fsm.Workload
	why      string
}

// hold tells why a free workload is to wait, "" if it is not to.
type hold func(w *fsm.Workload, d *draft) (why string)

// newDraft reads the group. It costs what the group has workloads, and members.
func newDraft(v *fsm.View, g *fsm.Group, wait hold) *draft {
	d := &draft{group: g, failures: make(map[string]*fsm.Failure)}
	n := g.WantedCount()
	p := &d.problem
	p.Workloads = make([]WorkloadInfo, 0, n)
	d.bound, d.specs, d.leases = make([]int, 0, n), make([]*fsm.Spec, 0, n), make([]*fsm.Lease, 0, n)
	p.Current, p.Pinned, p.Avoid = make([]int, 0, n), make([]int, 0, n), make([]int, 0, n)

	d.members = d.readMembers()
	for w := range g.Workloads("") {
		if w.Failure != nil {
			d.failures[w.Key] = w.Failure
		}
		if why := d.idle(&w, wait); why != "" {
			d.waiting = append(d.waiting, waiter{w, why})
			continue
		}
		d.add(&w)
	}
	d.readDeclarations()
	return d
}

// roster finds the members of a group by their instance and by their node.
type roster struct {
	members    []*fsm.Member
	byInstance map[string]int
	byNode     map[string]int // those that are nodes themselves
}

func (r *roster) at(instanceID string) int {
	if i, ok := r.byInstance[instanceID]; ok {
		return i
	}
	return None
}

func (d *draft) readMembers() *roster {
	n := d.group.MemberCount()
	r := &roster{byInstance: make(map[string]int, n), byNode: make(map[string]int, n)}
	for m, s := range d.group.Members() {
		i := len(d.problem.Instances)
		r.members = append(r.members, m)
		r.byInstance[s.InstanceID] = i
		if !s.Client {
			r.byNode[s.NodeID] = i
		}
		d.problem.Instances = append(d.problem.Instances, InstanceInfo{
			ID: s.InstanceID, JoinedRevision: s.Revision, Position: s.Position, Zone: s.Zone, Labels: labelMap(s.Labels),
			Capacity: m.Capacity, Eligible: !s.Draining() && !s.Cordoned(), Draining: s.Draining(),
		})
	}
	return r
}

func labelMap(labels []fsm.Label) map[string]string {
	if len(labels) == 0 {
		return nil
	}
	m := make(map[string]string, len(labels))
	for _, l := range labels {
		m[l.Key] = l.Value
	}
	return m
}

// idle says why a workload is no part of the problem, "" if it is one.
func (d *draft) idle(w *fsm.Workload, wait hold) string {
	switch l := w.Lease; {
	case w.Pause != nil:
		return "it is paused"
	case l == nil:
		if wait != nil {
			return wait(w, d)
		}
	case l.Group != d.group.Name:
		return "its key is held by somebody outside the group"
	case l.State == fsm.Revoked:
		return "its lease was revoked, and its holder is being given the time to stop"
	case l.State == fsm.Barred:
		return "its key is barred for a while"
	}
	return ""
}

// add makes the workload part of the problem.
func (d *draft) add(w *fsm.Workload) {
	members := d.members
	info := WorkloadInfo{Key: w.Key, Weight: w.Weight, Labels: labelMap(w.Labels)}
	bound, suits := None, None
	pin := members.pinOf(w.Pin)
	if l := w.Lease; l == nil {
		suits = members.returned(w.Last)
	} else {
		suits = members.at(l.Who.InstanceID)
		bound = suits
		if to := l.Note.To; to != "" {
			bound = members.at(to)
			switch {
			case bound == None:
			case d.problem.Instances[bound].Draining:
				bound = None
			case l.Note.By != fsm.ByPlanner:
				pin = bound // what an operator moves, goes there
			case bound != suits && bound != pin && d.mayStay(suits, w.Spec):
				d.underWay++
			}
		} else if l.State == fsm.Transferring {
			bound = None
		}
		if w.Failure != nil && l.State == fsm.Held && w.Failure.InstanceID != l.Who.InstanceID {
			d.astray++
		}
		if bound != None {
			suits = bound
		}
	}
	avoid := None
	if w.Failure != nil {
		avoid = members.at(w.Failure.InstanceID)
	}
	p := &d.problem
	p.Workloads = append(p.Workloads, info)
	d.bound, d.specs, d.leases = append(d.bound, bound), append(d.specs, w.Spec), append(d.leases, w.Lease)
	p.Current, p.Pinned, p.Avoid = append(p.Current, suits), append(p.Pinned, pin), append(p.Avoid, avoid)
}

// mayStay tells whether nothing but balance makes a workload leave its owner.
func (d *draft) mayStay(owner int, workload *fsm.Spec) bool {
	return owner != None && !d.problem.Instances[owner].Draining && d.members.members[owner].Declares(workload)
}

// other tells whether an instance other than that one can take the workload.
func (d *draft) other(instanceID string, workload *fsm.Spec) bool {
	for i, m := range d.members.members {
		if in := &d.problem.Instances[i]; in.Eligible && in.ID != instanceID && m.Declares(workload) {
			return true
		}
	}
	return false
}

// pinOf is the member that a pin means: its instance, or the next one of the
// same node.
func (r *roster) pinOf(pin *fsm.Pin) int {
	if pin == nil {
		return None
	}
	if i := r.at(pin.InstanceID); i != None {
		return i
	}
	if i, ok := r.byNode[pin.NodeID]; ok && pin.NodeID != "" {
		return i
	}
	return None
}

// returned is the member that is the former owner come back: of the same node,
// after a death that left the workload without one.
func (r *roster) returned(last *fsm.LastOwner) int {
	if last == nil || last.Client || !orphaned(last.Reason) {
		return None
	}
	if i, ok := r.byNode[last.NodeID]; ok {
		return i
	}
	return None
}

// orphaned tells whether a grant that ended so was never given up.
func orphaned(reason fsm.EndReason) bool {
	switch reason {
	case fsm.EndExpired, fsm.EndClosed, fsm.EndCrashed, fsm.EndRestarted:
		return true
	}
	return false
}

// readDeclarations sets problem.Can. Who declared the same, which is most, is
// asked once.
func (d *draft) readDeclarations() {
	p := &d.problem
	byWord := make(map[string][]bool)
	declared := make([][]bool, len(d.members.members)) // nil: everything
	some := false
	for i, m := range d.members.members {
		if m.All {
			continue
		}
		word := cmp.Or(m.CatalogHash, strings.Join(m.Runtimes, "\n"))
		row, known := byWord[word]
		if !known || word == "" {
			row = make([]bool, len(p.Workloads))
			whole := true
			for w := range p.Workloads {
				row[w] = m.Declares(d.specs[w])
				whole = whole && row[w]
			}
			if whole {
				row = nil
			}
			byWord[word] = row
		}
		declared[i] = row
		some = some || row != nil
	}
	if some {
		p.Can = func(instance, workload int) bool {
			row := declared[instance]
			return row == nil || row[workload]
		}
	}
}

// asBound is the problem with the state's word on who has what.
func (d *draft) asBound() Problem {
	p := d.problem
	p.Current = d.bound
	return p
}

// noBalance are limits under which nothing moves for the sake of balance.
var noBalance = MoveLimits{UnderWay: math.MaxInt}

// moves asks the Assigner and compares its answer with what is.
func (d *draft) moves(a Assigner, limits MoveLimits) (now, later []Move, err error) {
	to, err := Place(a, d.problem)
	if err != nil {
		return nil, nil, err
	}
	now, later = Moves(d.asBound(), to, limits)
	for i := range now {
		m := &now[i]
		switch {
		case m.Cause != CauseOwnerless || m.To == None:
		case d.leases[m.Workload] != nil:
			m.Because = "its owner was told to stop, and nobody is to follow"
		case m.To == d.problem.Current[m.Workload]:
			m.Because = d.problem.Instances[m.To].ID + " had it before it was restarted"
		}
	}
	return now, later, nil
}
