package node

import (
	"strings"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// addMarks has the marks of an instance run out that are to; l.mu is held.
func (l *lessor) addMarks(s *fsm.Session, now time.Duration) {
	if s.InstanceID == "" {
		return
	}
	if m := s.Drain; m != nil && m.ExpiresIn > 0 {
		l.addTimer(timerName{drainTimer, s.InstanceID, m.Revision}, now, m.ExpiresIn)
	}
	if m := s.Cordon; m != nil && m.ExpiresIn > 0 {
		l.addTimer(timerName{cordonTimer, s.InstanceID, m.Revision}, now, m.ExpiresIn)
	}
}

// addWorkloadMark has a pin or a pause run out; l.mu is held.
func (l *lessor) addWorkloadMark(m fsm.WorkloadMark, now time.Duration) {
	kind := pinTimer
	if m.Kind == fsm.PauseMark {
		kind = pauseTimer
	}
	l.addTimer(timerName{kind, fsm.WorkloadKey(m.Group, m.Workload), m.Revision}, now, m.ExpiresIn)
}

// decideWorkload is decide for a pin or a pause. Of a workload that nobody wants
// at present the view tells no marks; the command names the revision of the
// mark that it clears, and clears no other.
func decideWorkload(view *fsm.View, d *deadline, term uint64) fsm.Op {
	group, workload, _ := strings.Cut(d.name, "/") // group names have no slash
	g, ok := view.Group(group)
	if !ok {
		return nil
	}
	w, wanted := g.Workload(workload)
	if d.kind == pinTimer {
		if wanted && (w.Pin == nil || w.Pin.Revision != d.number) {
			return nil
		}
		return &fsm.SetPin{Group: group, Workload: workload, MarkedRevision: d.number, Term: term, Reason: "expired"}
	}
	if wanted && (w.Pause == nil || w.Pause.Revision != d.number) {
		return nil
	}
	return &fsm.SetPause{Group: group, Workload: workload, MarkedRevision: d.number, Term: term, Reason: "expired"}
}
