package jepsen

import (
	"fmt"
	"slices"
	"time"
)

// Names of what is no fault but may keep work from somewhere.
const (
	faultDrain  = "drain"
	faultCordon = "cordon"
	faultKept   = "pause-workload"
	FaultAway   = "left-group" // a node's Coordinator is not there
)

const (
	eventDraining   = "instance.draining"
	eventUndrained  = "instance.undrained"
	eventCordoned   = "instance.cordoned"
	eventUncordoned = "instance.uncordoned"
	eventAssigned   = "workload.assigned"
	eventMoved      = "workload.moved"
)

// checkPlan: in the order of the log, no group gives a workload to an instance
// that drains or is cordoned, and no plan takes one from the instance that it is
// pinned to. And at rest everything that is wanted has an
// owner, nothing is left on an instance that drains, and under Sticky the loads
// of those that take work differ by one at most.
func checkPlan(h *History) Verdict {
	var faults []string
	draining, cordoned := map[string]bool{}, map[string]bool{}
	checked, pinned := 0, newPins()
	for _, e := range h.log() {
		if fault := pinned.step(&e, func(id string) bool { return !draining[id] && !cordoned[id] }); fault != "" {
			faults = append(faults, fault)
		}
		switch e.Type {
		case eventDraining, eventUndrained:
			draining[e.Instance] = e.Type == eventDraining
		case eventCordoned, eventUncordoned:
			cordoned[e.Instance] = e.Type == eventCordoned
		case eventAssigned, eventMoved:
			checked++
			if draining[e.Instance] || cordoned[e.Instance] {
				faults = append(faults, fmt.Sprintf("%s: token %d was given to %s at revision %d (draining %v, cordoned %v)",
					e.Key, e.Token, e.Instance, e.Revision, draining[e.Instance], cordoned[e.Instance]))
			}
		}
	}
	for i := range h.Rests {
		checked++
		faults = append(faults, h.Rests[i].faults()...)
	}
	return verdict(CheckPlan, checked, faults)
}

func (r *Rest) faults() (faults []string) {
	bad := func(format string, args ...any) {
		faults = append(faults, fmt.Sprintf("%s at rest at %v (revision %d on %s): ", r.Group, r.At, r.Revision, r.Node)+fmt.Sprintf(format, args...))
	}
	takers, least, most := 0, r.Wanted, 0
	for _, s := range r.Shares {
		switch {
		case s.Draining && s.Has > 0:
			bad("%s drains and has %d workloads", s.Instance, s.Has)
		case s.Draining, s.Cordoned:
		default:
			takers++
			least, most = min(least, s.Has), max(most, s.Has)
		}
	}
	if takers == 0 {
		return faults
	}
	if len(r.Nobody) > 0 {
		bad("nobody has %v, and %d instances could", r.Nobody, takers)
	}
	if r.Assigner == "sticky" && most-least > 1 {
		bad("loads differ by %d: %+v", most-least, r.Shares)
	}
	return faults
}

// checkHandOver: where a group moved a workload from an owner that gave it up to
// the named successor, and no fault was under way meanwhile, the successor runs a
// commit after the old run's stop, however long that took. Programs that are told
// by the answers to their keep-alives only are not held to that. A worker whose
// code the successor has yet to load, because it was not asked to prepare or a
// reload has brought other code since, runs a commit after that.
func checkHandOver(h *History) Verdict {
	var faults []string
	type grant struct {
		key   string
		token uint64
	}
	from := map[grant]uint64{} // of a grant by a move: the token that was given up for it
	given := map[string]uint64{}
	for _, e := range h.log() {
		switch {
		case e.Type == eventMoved:
			from[grant{e.Key, e.Token}] = given[e.Key]
		case e.Type == eventEnded && byHolder(e.Reason):
			given[e.Key] = e.Token
		case e.Type == eventEnded:
			given[e.Key] = 0
		}
	}
	checked, bound := 0, h.Meta.Bounds.Slack
	if len(from) == 0 {
		return verdict(CheckHandOver, 0, nil)
	}
	for _, key := range h.keys() {
		runs := h.runsOf(key)
		for i := 1; i < len(runs); i++ {
			old, next := runs[i-1], runs[i]
			if old.Own || next.Own || old.Token != from[grant{key, next.Token}] || h.disturbed(old.Stop, next.Start) {
				continue
			}
			checked++
			if gap := next.Start - old.Stop - h.loading(&next, old.Stop); gap > bound {
				faults = append(faults, fmt.Sprintf("%s: token %d in %s stopped at %v, token %d in %s, to whom it was moved, started %v later; the bound is %v",
					key, old.Token, old.Proc, old.Stop, next.Token, next.Proc, gap, bound))
			}
		}
	}
	return verdict(CheckHandOver, checked, faults)
}

// loading is how long, since then, the process of a run was busy with loads of its
// worker before it, pauses between tries included.
func (h *History) loading(next *Run, since time.Duration) time.Duration {
	from, to := next.Start, since
	for _, l := range h.Loads {
		if l.Proc == next.Proc && l.Key == next.Key && l.Start < next.Start && l.Stop > since {
			from, to = min(from, max(l.Start, since)), max(to, min(l.Stop, next.Start))
		}
	}
	return max(0, to-from)
}

// disturbed tells whether any fault was under way between two instants. That an
// instance was drained or cordoned, or left the group, or that a workload was
// paused, disturbs nobody.
func (h *History) disturbed(from, until time.Duration) bool {
	orders := []string{faultDrain, faultCordon, faultKept, FaultAway}
	for _, w := range h.Windows {
		if w.From <= until && w.To >= from && !slices.Contains(orders, w.Fault) {
			return true
		}
	}
	return false
}
