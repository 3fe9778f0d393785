package jepsen

import (
	"fmt"
	"slices"
	"time"
)

// restless is how long ago a run may have ended of a worker that is run again.
const restless = 2 * time.Second

// checkLostStart: a start that was acknowledged, and neither stopped nor deleted
// afterwards, runs when all is healed and at rest; or the worker has failed, and
// says why. What is known to be good (Bounds.Sound) must run.
func checkLostStart(h *History) Verdict {
	var faults []string
	checked := 0
	for _, l := range h.catalog() {
		rest := l.rest()
		if rest == nil {
			continue
		}
		for i := range l.calls {
			o := &l.calls[i]
			if !o.acknowledgedStart() {
				continue
			}
			checked++
			if !l.ended(o) {
				if why := l.lost(h, rest); why != "" {
					faults = append(faults, fmt.Sprintf("%s: %s was acknowledged to %s at %v and never taken back; %s", l.key, o.Kind, o.By, o.Return, why))
				}
			}
		}
	}
	return verdict(CheckLostStart, checked, faults)
}

func (o *Op) acknowledgedStart() bool {
	return o.Outcome == OK && (o.Kind == KindStart || o.Kind == KindCreate && o.Worker.StartRequested)
}

// rest is how the worker was at rest, nil if nobody has looked.
func (l *life) rest() *Op {
	i := slices.IndexFunc(l.calls, func(o Op) bool { return o.Who == atRest })
	if i < 0 {
		return nil
	}
	return &l.calls[i]
}

// ended tells whether somebody may have stopped or deleted the worker after the
// start, or beside it where the log can't tell.
func (l *life) ended(start *Op) bool {
	at, told := l.asked[start.By]
	for i := range l.changes {
		c := &l.changes[i]
		switch {
		case c.by == "" || c.events[0] != workerDeleted && !slices.Contains(c.events, workerStopped) && !slices.Contains(c.events, workerWithdrawn):
		case told && i > at, !told && c.seen > start.Call:
			return true
		}
	}
	return false
}

// lost says why a worker that is to run has lost that; "" if it has not.
func (l *life) lost(h *History, rest *Op) string {
	if rest.Outcome != OK {
		return fmt.Sprintf("at rest it is gone: %s", rest.Code)
	}
	w := rest.Worker
	sound := l.sound(h)
	switch {
	case w.State == stateRunning:
		for _, r := range h.runsOf(l.key) {
			if r.Start <= rest.Return && (r.Stop >= rest.Call || !sound && r.Stop >= rest.Call-restless) {
				return ""
			}
		}
		return "at rest it is to run, and nothing runs"
	case (w.State == stateFailed || w.State == stateLoadFailed) && w.Error != "" && !sound:
		return ""
	case w.State == stateStopped && !sound && l.endedItself():
		return ""
	}
	return fmt.Sprintf("at rest its source is %s, it is %s, error %q", w.Source, w.State, w.Error)
}

// sound tells whether all that the worker was ever made of is.
func (l *life) sound(h *History) bool {
	for i := range l.calls {
		o := &l.calls[i]
		asks := (o.Kind == KindCreate || o.Kind == KindReload) && o.Worker.Source != ""
		if asks && (o.Outcome == OK || o.Outcome == Uncertain) && !slices.Contains(h.Meta.Bounds.Sound, o.Worker.Source) {
			return false
		}
	}
	return true
}

// endedItself tells whether the last run of the worker ended by itself, well, as
// far as its events tell.
func (l *life) endedItself() bool {
	for i := len(l.changes) - 1; i >= 0; i-- {
		switch c := &l.changes[i]; {
		case slices.Contains(c.events, workerStopped):
			return c.by == ""
		case slices.Contains(c.events, workerStarted):
			return false
		}
	}
	return false
}

// CatalogCounts say how much a history holds of workers.
type CatalogCounts struct {
	Workers     int // that were created
	Calls       int
	Changes     int // of records that events tell of
	Events      int // a change may be two transitions: loaded and started, withdrawn and stopped
	Starts      int // acknowledged
	Outstanding int // of them, never taken back
	Lost        int // of those
	Loads       int // outcomes
}

// CountCatalog counts what h holds of workers.
func CountCatalog(h *History) (c CatalogCounts) {
	for _, l := range h.catalog() {
		if len(l.changes) > 0 {
			c.Workers++
		}
		c.Calls += len(l.calls)
		c.Events += l.count
		c.Changes += len(l.changes)
		rest := l.rest()
		for i := range l.changes {
			x := &l.changes[i]
			if x.events[0] == workerLoaded || x.events[0] == workerNotLoaded {
				c.Loads++
			}
		}
		for i := range l.calls {
			o := &l.calls[i]
			if o.acknowledgedStart() {
				c.Starts++
				if rest != nil && !l.ended(o) {
					c.Outstanding++
					if l.lost(h, rest) != "" {
						c.Lost++
					}
				}
			}
		}
	}
	return c
}

// Add adds those of another history.
func (c *CatalogCounts) Add(d CatalogCounts) {
	c.Workers, c.Calls, c.Changes, c.Events = c.Workers+d.Workers, c.Calls+d.Calls, c.Changes+d.Changes, c.Events+d.Events
	c.Starts, c.Outstanding, c.Lost, c.Loads = c.Starts+d.Starts, c.Outstanding+d.Outstanding, c.Lost+d.Lost, c.Loads+d.Loads
}
