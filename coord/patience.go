package coord

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// joinings notices that instances join.
type joinings struct {
	known  bool
	newest uint64 // revision of the newest joining
	first  time.Time
	until  time.Time
}

// settled returns until when others may be about to join, too.
func (j *joinings) settled(g *fsm.Group, settle time.Duration, now time.Time) time.Time {
	newest := uint64(0)
	for m := range g.Members() {
		newest = max(newest, m.JoinedRevision)
	}
	if !j.known {
		j.known = true
		if g.PlannedInputs != 0 { // a former planner has seen them
			j.newest = newest
		}
	}
	if newest > j.newest {
		j.newest = newest
		if !now.Before(j.until) {
			j.first = now
		}
		j.until = now.Add(settle)
		if most := j.first.Add(4 * settle); j.until.After(most) {
			j.until = most
		}
	}
	return j.until
}

// patience says which free workloads are to wait, and for how long. What was
// seen first by another planner is waited for afresh: no two clocks are compared.
type patience struct {
	cfg     Planning
	view    *fsm.View
	now     time.Time
	settled time.Time
	next    time.Time
	seen    map[uint64]sighting // by the revision of what is waited for
	used    map[uint64]bool
}

type sighting struct {
	at     time.Time
	chance float64
}

func newPatience(cfg Planning) patience { return patience{cfg: cfg, seen: make(map[uint64]sighting)} }

func (p *patience) begin(v *fsm.View, now, settled time.Time) {
	p.view, p.now, p.settled, p.next = v, now, settled, time.Time{}
	p.used = make(map[uint64]bool)
}

// end returns when the first that waits has waited enough, zero for none.
func (p *patience) end() time.Time {
	maps.DeleteFunc(p.seen, func(revision uint64, _ sighting) bool { return !p.used[revision] })
	return p.next
}

func (p *patience) first(revision uint64) sighting {
	p.used[revision] = true
	s, known := p.seen[revision]
	if !known {
		s = sighting{p.now, rand.Float64()}
		p.seen[revision] = s
	}
	return s
}

// until tells whether that is yet to come, and notes it.
func (p *patience) until(at time.Time) bool {
	if !p.now.Before(at) {
		return false
	}
	p.next = earliest(p.next, at)
	return true
}

func (p *patience) hold(w *fsm.Workload, d *draft) string {
	back := d.members.returned(w.Last) != None
	if (w.Last == nil || orphaned(w.Last.Reason) && !back) && p.until(p.settled) {
		return "instances are joining just now"
	}
	if f := w.Failure; f != nil {
		s, tries := p.first(f.Revision), f.Count
		if d.other(f.InstanceID, w.Spec) {
			tries--
		}
		if p.until(s.at.Add(p.cfg.Backoff.Delay(tries, s.chance))) {
			return fmt.Sprintf("it failed %s, and is tried again after a while", times(f.Count))
		}
	}
	if l := w.Last; l != nil && !l.Client && orphaned(l.Reason) && !back {
		grace := p.cfg.RestartGrace
		if s, live := p.view.NodeSession(l.NodeID); live && s.InstanceID != l.InstanceID && !s.Draining() {
			grace = max(grace, returnGrace)
		}
		if grace > 0 && p.until(p.first(l.Revision).at.Add(grace)) {
			return "its instance may come back"
		}
	}
	return ""
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times in a row", n)
}
