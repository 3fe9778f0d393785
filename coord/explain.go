package coord

import (
	"fmt"
	"slices"
	"strings"

	"github.com/miwnode/miwnode/fsm"
)

// Explanation says where a workload is, and why.
type Explanation struct {
	Group     string
	Workload  string
	Status    fsm.WorkloadStatus
	Owner     string // instance, "" for nobody
	Successor string // instance that is to get it next, "" for none
	// Because is sentences for people, without full stops, the one that decides
	// first.
	Because []string
	// Instances are the members of the group, in join order.
	Instances []Judgement
}

// Judgement says whether an instance could be given a workload, and why.
type Judgement struct {
	InstanceID string
	Can        bool
	Because    string
}

// Change is what if: without some instances, with some more.
type Change struct {
	// Without are instances that are to be thought away, as if they drained.
	Without []string
	// Add is how many instances are to be thought to join: new-1, new-2 and so
	// on. They can run everything.
	Add int
}

// PlannedMove is a workload that a plan would give to somebody else.
type PlannedMove struct {
	Workload string
	From     string // instance, "" for nobody
	To       string // instance, "" for nobody: none can have it
	Because  string // a sentence for people, without a full stop
	Later    bool   // beyond what may move at a time
}

// mostAdded bounds Change.Add.
const mostAdded = 1000

// WhatIf returns what the group's planner would do after a change, or without
// one now. own is the program's Assigner, for groups that are placed by a
// function; nil will do for all others. It changes nothing and asks nobody:
// what it costs is one plan.
//
// Errors: fsm.ErrNotFound (no such group), fsm.ErrInvalidArgument (an instance
// that is no member), fsm.ErrWrongState (placed by a function that is not
// here), *AssignError.
func WhatIf(v *fsm.View, group string, change Change, own Assigner) ([]PlannedMove, error) {
	d, err := draftOf(v, group)
	if err != nil {
		return nil, err
	}
	if change.Add < 0 || change.Add > mostAdded {
		return nil, fsm.Errorf(fsm.CodeInvalidArgument, "add is %d: it must lie between 0 and %d", change.Add, mostAdded)
	}
	for _, id := range change.Without {
		i := d.members.at(id)
		if i == None {
			return nil, fsm.Errorf(fsm.CodeInvalidArgument, "the instance %s is no member of the group %s", id, group)
		}
		d.thinkAway(i)
	}
	d.thinkOf(change.Add)
	a, err := assignerFor(d.group.Settings, own)
	if err != nil {
		return nil, err
	}
	now, later, err := d.moves(a, MoveLimits{Most: d.group.Settings.MaxMoves, UnderWay: d.underWay})
	if err != nil {
		return nil, err
	}
	moves := make([]PlannedMove, 0, len(now)+len(later))
	for i, m := range slices.Concat(now, later) {
		p := PlannedMove{Workload: d.problem.Workloads[m.Workload].Key, From: d.id(m.From), To: d.id(m.To), Because: m.Because, Later: i >= len(now)}
		if slices.Contains(change.Without, p.From) {
			p.Because = strings.Replace(p.Because, p.From+" drains", p.From+" is gone", 1)
		}
		moves = append(moves, p)
	}
	return moves, nil
}

func draftOf(v *fsm.View, group string) (*draft, error) {
	g, ok := v.Group(group)
	if !ok {
		return nil, fsm.Errorf(fsm.CodeNotFound, "no group %s", group)
	}
	return newDraft(v, g, nil), nil
}

func (d *draft) id(i int) string {
	if i == None {
		return ""
	}
	return d.problem.Instances[i].ID
}

// thinkAway makes an instance one that has to give everything away.
func (d *draft) thinkAway(i int) {
	in := &d.problem.Instances[i]
	in.Eligible, in.Draining = false, true
}

// thinkOf adds instances.
func (d *draft) thinkOf(n int) {
	if n == 0 {
		return
	}
	p := &d.problem
	last, known := uint64(0), len(p.Instances)
	for _, in := range p.Instances {
		last = max(last, in.JoinedRevision)
	}
	for i := range n {
		p.Instances = append(p.Instances, InstanceInfo{ID: fmt.Sprintf("new-%d", i+1), JoinedRevision: last + 1 + uint64(i), Eligible: true})
	}
	if can := p.Can; can != nil {
		p.Can = func(instance, workload int) bool { return instance >= known || can(instance, workload) }
	}
}

// Why explains a placement. own is as for WhatIf; where it lacks, Because does
// not say what the assigner makes of it. It changes nothing and asks nobody.
//
// Errors: fsm.ErrNotFound for a group that is not there, and for a workload
// that it does not want.
func Why(v *fsm.View, group, workload string, own Assigner) (*Explanation, error) {
	d, err := draftOf(v, group)
	if err != nil {
		return nil, err
	}
	w, ok := d.group.Workload(workload)
	if !ok {
		return nil, fsm.Errorf(fsm.CodeNotFound, "the group %s does not want a workload %s", group, workload)
	}
	e := &Explanation{Group: group, Workload: workload, Status: w.Status, Successor: w.Successor()}
	if w.Lease != nil && w.Lease.State != fsm.Barred {
		e.Owner = w.Lease.Who.InstanceID
	}
	e.Instances = d.judge(&w)
	say := func(format string, args ...any) { e.Because = append(e.Because, fmt.Sprintf(format, args...)) }

	if w.Pause != nil {
		say("it is paused%s", markedBy(w.Pause))
	}
	if w.Lease != nil {
		saySomebodyHasIt(&w, say)
	} else {
		d.sayNobodyHasIt(v, &w, e.Instances, say)
	}
	if w.Pin != nil {
		d.sayPin(&w, say)
	}
	if f := w.Failure; f != nil {
		say("it failed %s, last on %s: %s", times(f.Count), f.InstanceID, f.Error)
	}
	if l := w.Last; l != nil {
		say("before, %s had it, until revision %d (%s)", l.InstanceID, l.Revision, endOf(v, &w))
	}
	if why := faultOfPlanner(v, group); why != "" {
		say("the planner gives no new plan, so the last good one stays: %s", why)
	} else {
		d.sayAssigner(&w, own, say)
	}
	return e, nil
}

// endOf says why the former owner gave a workload up, and who said so.
func endOf(v *fsm.View, w *fsm.Workload) string {
	last := w.Last
	if w.Pause != nil && last.Reason == fsm.EndMoved && last.Revision >= w.Pause.Revision {
		return "paused"
	}
	end := last.Reason.String()
	if last.Reason != fsm.EndMoved && last.Reason != fsm.EndRevoked {
		return end
	}
	for _, e := range v.History(fsm.HistoryQuery{Key: w.LeaseKey, Since: last.Revision - 1}) {
		if e.EndedRevision == last.Revision && e.Note.Reason != "" {
			end += markedBy(&fsm.Mark{By: e.Note.By, Reason: e.Note.Reason})
		}
	}
	return end
}

func markedBy(m *fsm.Mark) string {
	s := ""
	if m.By != "" {
		s = " by " + m.By
	}
	if m.Reason != "" {
		s += ": " + m.Reason
	}
	return s
}

func saySomebodyHasIt(w *fsm.Workload, say func(string, ...any)) {
	l := w.Lease
	who, to := l.Who.InstanceID, l.Note.To
	why := ""
	if l.Note.By != "" {
		why = " (by " + l.Note.By
		if l.Note.Reason != "" {
			why += ": " + l.Note.Reason
		}
		why += ")"
	}
	switch {
	case l.State == fsm.Barred:
		say("nobody has it: its key is barred for a while")
	case l.Stuck != nil:
		say("%s was asked to stop it at revision %d, and the run does not return; it is started nowhere else until it has", who, l.ChangedRevision)
	case l.State == fsm.Revoked:
		say("its lease was taken from %s%s; it passes on when that has surely stopped", who, why)
	case l.State == fsm.Held && to != "":
		say("%s has it and goes on while %s prepares to take it over%s", who, to, why)
	case l.State == fsm.Held:
		say("%s has it since revision %d, with token %d", who, l.AcquiredRevision, l.Token)
	case to == who:
		say("%s was asked to stop it and is to begin it anew%s", who, why)
	case to != "":
		say("it moves from %s to %s%s: %s was asked to stop at revision %d and has not given it up yet", who, to, why, who, l.ChangedRevision)
	default:
		say("%s was asked to stop it%s", who, why)
	}
}

func (d *draft) sayNobodyHasIt(v *fsm.View, w *fsm.Workload, members []Judgement, say func(string, ...any)) {
	if w.Pause != nil {
		return
	}
	can := slices.ContainsFunc(members, func(j Judgement) bool { return j.Can })
	planner, planned := v.Lease(fsm.PlannerKey(d.group.Name))
	switch {
	case len(members) == 0:
		say("nobody has it: the group has no members")
	case !can:
		say("nobody has it: no member can be given it now")
	case !planned && !someone(d.group):
		say("nobody has it: no instance can plan for the group")
	case !planned:
		say("nobody has it, and nobody plans for the group at this moment")
	default:
		say("nobody has it: the planner, %s, has yet to give it to somebody", planner.Who.InstanceID)
	}
}

func someone(g *fsm.Group) bool {
	for range g.Candidates() {
		return true
	}
	return false
}

func (d *draft) sayPin(w *fsm.Workload, say func(string, ...any)) {
	i, to := d.members.pinOf(w.Pin), w.Pin.InstanceID
	say("it is pinned to %s%s", to, markedBy(&w.Pin.Mark))
	if i == None {
		say("%s is not there: until it is, or another instance of its node, others may have it", to)
		return
	}
	if d.id(i) != to {
		say("%s is the present instance of that node", d.id(i))
	}
	if !d.problem.Instances[i].Eligible && (w.Lease == nil || w.Lease.Who.InstanceID != d.id(i)) {
		say("%s takes nothing now: until it does, others may have it", d.id(i))
	}
}

// sayAssigner tells what the assigner makes of the workload now.
func (d *draft) sayAssigner(w *fsm.Workload, own Assigner, say func(string, ...any)) {
	at := slices.IndexFunc(d.problem.Workloads, func(info WorkloadInfo) bool { return info.Key == w.Key })
	if at < 0 {
		return
	}
	name := d.group.Settings.Assigner
	a, err := assignerFor(d.group.Settings, own)
	if err != nil {
		return
	}
	now, later, err := d.moves(a, MoveLimits{Most: -1})
	if err != nil {
		say("the assigner %s gives no answer, so the last plan stays: %v", name, err)
		return
	}
	for _, m := range slices.Concat(now, later) {
		switch {
		case m.Workload != at:
		case m.To == None:
			say("the assigner %s has nobody to give it to", name)
			return
		default:
			say("the assigner %s would give it to %s: %s", name, d.id(m.To), m.Because)
			return
		}
	}
	if to := d.bound[at]; to != None {
		say("the assigner %s leaves it with %s, which has %s", name, d.id(to), newDiff(d.asBound()).amount(to))
	}
}

// judge says of each member whether it could have the workload.
func (d *draft) judge(w *fsm.Workload) []Judgement {
	loads := newDiff(d.asBound())
	var all []Judgement
	i := -1
	for m, s := range d.group.Members() {
		i++
		j := Judgement{InstanceID: s.InstanceID}
		owns := w.Lease != nil && w.Lease.Who.InstanceID == s.InstanceID && w.Lease.State != fsm.Barred
		load := "it has " + loads.amount(i)
		if m.Capacity > 0 {
			load += " and room for " + number(loads.capacity(i))
		}
		switch {
		case !m.Declares(w.Spec):
			j.Because = "it did not declare it"
		case s.Draining():
			j.Because = "it drains" + markedBy(s.Drain)
		case s.Cordoned() && !owns:
			j.Because = "it is cordoned" + markedBy(s.Cordon)
		case w.Pause != nil:
			j.Because = "the workload is paused"
		case owns:
			j.Can, j.Because = true, "it is the owner; "+load
		case w.Successor() == s.InstanceID:
			j.Can, j.Because = true, "it is the named successor; "+load
		case w.Failure != nil && w.Failure.InstanceID == s.InstanceID:
			j.Can, j.Because = true, "the workload failed here last, so others come first; "+load
		default:
			j.Can, j.Because = true, load
		}
		all = append(all, j)
	}
	return all
}
