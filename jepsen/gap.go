package jepsen

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

const eventLeader = "leader.changed"

// faultRestart is a graceful end and a new start.
const faultRestart = "restart"

// Gap is the time between two runs of a wanted key in which nobody ran it.
type Gap struct {
	Key      string
	Old, New Run
	// Reason is why the old grant ended, as the log says: released, crashed, …
	Reason string
	// Cause is the fault that hit the old run's node; nil if none did, or more
	// than one: then nothing can be said of why it took as long as it did.
	Cause *Window
	// Alone says that no other fault was under way since the cause began, or since
	// the old run stopped, and nobody kept the key from all.
	Alone bool
	// Nobody says that at some instant nobody was there who might have taken the key.
	Nobody bool
	// Passed is when somebody else was granted the key in between, who ran nothing,
	// as first observed; 0 if nobody was.
	Passed time.Duration
	// Led is when the leader changed before the key was granted again, as first
	// observed; 0 if it didn't.
	Led time.Duration
}

// Length is how long nobody ran it.
func (g *Gap) Length() time.Duration { return g.New.Start - g.Old.Stop }

// gaps lists those of the wanted keys.
func (h *History) gaps() []Gap {
	type grant struct {
		key   string
		token uint64
	}
	reasons, next := map[grant]string{}, map[grant]Event{} // next: the grant after one
	last := map[string]uint64{}                            // token
	var leaders []Event
	for _, e := range h.log() {
		switch e.Type {
		case eventEnded:
			reasons[grant{e.Key, e.Token}] = e.Reason
		case eventGranted:
			next[grant{e.Key, last[e.Key]}], last[e.Key] = e, e.Token
		case eventLeader:
			leaders = append(leaders, e)
		}
	}
	var all []Gap
	for _, key := range h.Meta.Bounds.Wanted {
		runs := h.runsOf(key)
		for i := 1; i < len(runs); i++ {
			g := Gap{Key: key, Old: runs[i-1], New: runs[i]}
			if g.Length() < 0 || g.Old.Token == g.New.Token {
				continue // an overlap is told elsewhere, and a restart under one grant is no hand-over
			}
			g.Reason = reasons[grant{key, g.Old.Token}]
			after := next[grant{key, g.Old.Token}]
			if after.Token != g.New.Token {
				g.Passed = after.At
			}
			h.blame(&g)
			since := g.since()
			for _, e := range leaders {
				if e.At >= since && e.Revision < after.Revision {
					g.Led = max(g.Led, e.At)
				}
			}
			all = append(all, g)
		}
	}
	return all
}

// over is when the key had an owner again. Where one that ran nothing is between
// the runs, what the bounds promise is that this one was granted it in time: how
// long it then kept the key to itself is held to the widest bound alone, by
// checkTakeOver.
func (g *Gap) over() time.Duration {
	if g.Passed != 0 {
		return min(g.Passed, g.New.Start)
	}
	return g.New.Start
}

// since is when what ended the old run began.
func (g *Gap) since() time.Duration {
	if g.Cause != nil {
		return min(g.Cause.From, g.Old.Stop)
	}
	return g.Old.Stop
}

// blame finds the cause of a gap. A fault that was over for more than a TTL
// and an election when the run stopped is not to blame for it.
func (h *History) blame(g *Gap) {
	near := h.Meta.Bounds.TTL + h.Meta.Bounds.Election
	var hit []*Window
	for i := range h.Windows {
		w := &h.Windows[i]
		if w.disturbs() && slices.Contains(w.Nodes, g.Old.Node) && w.From <= g.Old.Stop && w.To >= g.Old.Stop-near {
			hit = append(hit, w)
		}
	}
	if len(hit) == 1 {
		g.Cause = hit[0]
	}
	g.Alone = len(hit) <= 1
	for i := range h.Windows {
		w := &h.Windows[i]
		if w != g.Cause && (w.disturbs() || slices.Contains(w.Keys, g.Key)) && w.From <= g.over() && w.To >= g.since() {
			g.Alone = false
		}
	}
	g.Nobody = h.allHit(g.since(), g.over())
}

// allHit tells whether at some instant between two all nodes were hit, by faults
// or by orders such as to drain or to leave a group: one crashed, say, while the
// others took nothing.
func (h *History) allHit(from, until time.Duration) bool {
	begins := []time.Duration{from}
	for i := range h.Windows {
		begins = append(begins, h.Windows[i].From)
	}
	return slices.ContainsFunc(begins, func(at time.Duration) bool {
		return at >= from && at <= until && !slices.ContainsFunc(h.Meta.Nodes, func(node string) bool {
			return !slices.ContainsFunc(h.Windows, func(w Window) bool { return w.From <= at && w.To > at && slices.Contains(w.Nodes, node) })
		})
	})
}

// Names of what is no fault but the time before and after the torment, in which
// nodes start and end.
const (
	FaultStart = "start"
	FaultEnd   = "end"
)

// frames tells whether a window is one of those.
func (w *Window) frames() bool { return w.Fault == FaultStart || w.Fault == FaultEnd }

// disturbs tells whether a window is a fault, not an order that the cluster
// carries out without a hitch.
func (w *Window) disturbs() bool {
	return !slices.Contains([]string{faultDrain, faultCordon, faultKept, FaultAway}, w.Fault)
}

const (
	kindHandOver = "hand-over"
	kindCrash    = "crash"
	kindRestart  = "restart"
	kindLost     = "lost"
)

// kind is which of the promised bounds a gap is to be judged by.
type kind struct {
	name, what string
	reasons    []string
}

var kinds = []kind{
	{kindHandOver, "drain, deploy, rebalance: the old run's stop and a commit", []string{"released", "moved", "closed"}},
	{kindCrash, "the process died, its guard lived: two commits, an election if it led", []string{"crashed"}},
	{kindRestart, "the holder started again on its folder: its start, no TTL", []string{"restarted"}},
	{kindLost, "the host died, was cut off or stood still: the TTL and a commit, an election if it led", []string{"expired"}},
}

func (g *Gap) kind() *kind {
	for i := range kinds {
		if slices.Contains(kinds[i].reasons, g.Reason) {
			return &kinds[i]
		}
	}
	return nil
}

// bound is the longest that the gap may be, counted from which instant; false
// if no bound applies by itself.
func (g *Gap) bound(b Bounds) (from, most time.Duration, ok bool) {
	k := g.kind()
	if k == nil || !g.Alone || g.Nobody || g.Old.Own || g.New.Own {
		return 0, 0, false
	}
	most = b.Slack
	if g.Led > 0 {
		most += b.Election
	}
	if k.name == kindHandOver {
		// What is cut off or stands still can't hand over.
		return g.Old.Stop, most, g.Cause == nil || g.Cause.Fault == faultRestart
	}
	if g.Cause == nil || len(g.Cause.Nodes) > 1 {
		return 0, 0, false
	}
	if g.Cause.Fault == DiskSlow || g.Cause.Fault == faultFlapping { // it may do its harm at any time
		return max(g.Old.Stop, g.Cause.To), most + b.TTL, g.Cause.To != Never
	}
	switch k.name {
	case kindCrash:
		return g.Old.Stop, most, true
	case kindRestart:
		return max(g.Old.Stop, g.Cause.To), most, g.Cause.To != Never
	}
	return max(g.Cause.From, g.Led), most + b.TTL, true
}

// checkBounds: every gap that has one fault or none behind it is within the
// bound that is promised for its kind. checkTakeOver holds what happens under
// several faults to the widest of them.
func checkBounds(h *History) Verdict {
	var faults []string
	checked := 0
	for _, g := range h.gaps() {
		from, most, ok := g.bound(h.Meta.Bounds)
		if !ok {
			continue
		}
		checked++
		took := g.over() - from
		if took <= most {
			continue
		}
		cause := "no fault"
		if g.Cause != nil {
			cause = fmt.Sprintf("%s from %v until %v", cmp.Or(g.Cause.Text, g.Cause.Fault), g.Cause.From, g.Cause.To)
		}
		passed := ""
		if g.Passed != 0 {
			passed = fmt.Sprintf(" after another was granted it at %v", g.Passed)
		}
		faults = append(faults, fmt.Sprintf("%s: token %d in %s stopped at %v (%s), token %d in %s started at %v%s: %v from %v on, the bound is %v (%s; %s)",
			g.Key, g.Old.Token, g.Old.Proc, g.Old.Stop, g.Reason, g.New.Token, g.New.Proc, g.New.Start, passed, took, from, most, g.kind().name, cause))
	}
	return verdict(CheckBounds, checked, faults)
}
