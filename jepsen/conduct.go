package jepsen

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// FaultDisk is the fault of a node whose disk is full: it may end by itself.
const FaultDisk = "full-disk"

// checkRecords: the totals of a job count each execution once, in an order that
// fits with when the records were asked for and answered, whatever was repeated.
func checkRecords(h *History) Verdict {
	var faults []string
	records, totals := map[string][]Op{}, map[string][]Op{}
	checked := 0
	for _, o := range h.Ops {
		switch o.Kind {
		case KindRecord:
			records[o.Key] = append(records[o.Key], o)
		case KindTotal:
			totals[o.Key] = append(totals[o.Key], o)
		case KindRepeat:
			checked++
			if o.Outcome == OK && o.Got != o.Token {
				faults = append(faults, fmt.Sprintf("%s: the repeat of a record that was answered %d was answered %d at %v", o.Key, o.Token, o.Got, o.Return))
			}
		}
	}
	for _, job := range slices.Sorted(maps.Keys(records)) {
		var done []Op
		open := 0
		for _, o := range records[job] {
			checked++
			switch o.Outcome {
			case OK:
				done = append(done, o)
			case Uncertain:
				open++
			}
		}
		slices.SortStableFunc(done, func(a, b Op) int { return cmp.Compare(a.Got, b.Got) })
		latestCall := Op{}
		for i, o := range done {
			if i > 0 && o.Got == done[i-1].Got {
				faults = append(faults, fmt.Sprintf("%s: total %d was answered twice, at %v and at %v", job, o.Got, done[i-1].Return, o.Return))
			}
			if o.Return < latestCall.Call {
				faults = append(faults, fmt.Sprintf("%s: total %d was answered at %v, before %d was asked for at %v", job, o.Got, o.Return, latestCall.Got, latestCall.Call))
			}
			if o.Call > latestCall.Call {
				latestCall = o
			}
		}
		for _, t := range totals[job] {
			if t.Outcome != OK {
				continue
			}
			checked++
			// Answered before the read was sent: in it. Asked for after it was answered: not.
			least, most := uint64(0), uint64(0)
			for _, o := range records[job] {
				if o.Outcome == OK && o.Return <= t.Call {
					least++
				}
				if (o.Outcome == OK || o.Outcome == Uncertain) && o.Call <= t.Return {
					most++
				}
			}
			if t.Got < least || t.Got > most {
				faults = append(faults, fmt.Sprintf("%s: total %d was read at %v; %d records had been answered by then, %d sent", job, t.Got, t.Return, least, most))
			}
		}
		if n := len(done); n > 0 && done[n-1].Got > uint64(n+open) {
			faults = append(faults, fmt.Sprintf("%s: total %d was answered at %v for %d records, %d of them without an answer", job, done[n-1].Got, done[n-1].Return, n+open, open))
		}
	}
	return verdict(CheckRecords, checked, faults)
}

// checkExits: no node's process ends by itself, save one whose disk is full.
func checkExits(h *History) Verdict {
	var faults []string
	for _, e := range h.Exits {
		if h.hit(e.Node, FaultDisk, e.At) {
			continue
		}
		how := fmt.Sprintf("with code %d", e.Code)
		if e.Code < 0 {
			how = "by a signal"
		}
		faults = append(faults, fmt.Sprintf("%s ended by itself at %v %s: %s", e.Node, e.At, how, cmp.Or(e.Last, "its log is empty")))
	}
	return verdict(CheckExits, len(h.Meta.Nodes)+len(h.Exits), faults)
}

// hit tells whether a node was under a fault at an instant, or had just been: it
// may drain its work before it ends.
func (h *History) hit(node, fault string, at time.Duration) bool {
	const after = 15 * time.Second
	return slices.ContainsFunc(h.Windows, func(w Window) bool {
		return w.Fault == fault && slices.Contains(w.Nodes, node) && w.From <= at && (w.To == Never || at <= w.To+after)
	})
}

// checkLeaves: a node that is told to leave is gone within its bound.
func checkLeaves(h *History) Verdict {
	var faults []string
	for _, l := range h.Leaves {
		switch {
		case !l.Done:
			faults = append(faults, fmt.Sprintf("%s was told to leave at %v and was still there after %v; the bound is %v", l.Node, l.From, l.Took, l.Bound))
		case l.Took > l.Bound:
			faults = append(faults, fmt.Sprintf("%s was told to leave at %v and took %v; the bound is %v", l.Node, l.From, l.Took, l.Bound))
		}
	}
	return verdict(CheckLeave, len(h.Leaves), faults)
}

// What a process may have more after the torment than before without leaking:
// connections that the torment has moved, and what rest does not end at once.
const (
	spareGoroutines = 40
	spareHandles    = 24
)

// checkLeaks: no process is left behind, and no node has more goroutines and
// handles at rest than any had before. Which one that was says nothing: a leader
// has more than the others.
func checkLeaks(h *History) Verdict {
	faults := h.found(CheckLeaks)
	checked := len(h.Meta.Nodes)
	var base Gauge
	for _, g := range h.Gauges {
		if g.When == Before {
			base.Goroutines, base.Handles = max(base.Goroutines, g.Goroutines), max(base.Handles, g.Handles)
		}
	}
	for _, g := range h.Gauges {
		if g.When != After || base.Handles == 0 {
			continue
		}
		checked++
		if g.Goroutines > base.Goroutines+spareGoroutines {
			faults = append(faults, fmt.Sprintf("%s has %d goroutines at rest at %v; before the torment none had more than %d", g.Node, g.Goroutines, g.At, base.Goroutines))
		}
		if g.Handles > base.Handles+spareHandles {
			faults = append(faults, fmt.Sprintf("%s has %d open handles at rest at %v; before the torment none had more than %d", g.Node, g.Handles, g.At, base.Handles))
		}
	}
	return verdict(CheckLeaks, checked, faults)
}

// checkRecovery: once everything is healed, every node is ready again.
func checkRecovery(h *History) Verdict {
	return verdict(CheckRecovery, len(h.Meta.Nodes), h.found(CheckRecovery))
}

// found are the findings that fail a check.
func (h *History) found(check string) (faults []string) {
	for _, f := range h.Found {
		if f.Check == check {
			faults = append(faults, fmt.Sprintf("at %v: %s", f.At, f.What))
		}
	}
	return faults
}
