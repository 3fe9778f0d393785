package node

import (
	"context"
	"strings"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
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

// ownMarks are the marks of this node's instance, as its copy shows them. In the
// state they end with the session; but the instance lives on, and with it what
// an operator wants of it.
type ownMarks struct {
	drain, cordon *fsm.Mark
	seen          fsm.EventID
}

// look takes over what the view shows, and where the session has ended since the
// last look, what was set before it did.
func (m *ownMarks) look(view *fsm.View, instance string) {
	defer func() { m.seen = fsm.AfterRevision(view.Revision()) }()
	if s, live := view.Instance(instance); live {
		m.drain, m.cordon = s.Drain, s.Cordon
		return
	}
	events, whole := view.Events(m.seen)
	if !whole {
		return
	}
	for e := range events {
		if e.Who.InstanceID != instance {
			continue
		}
		// When it was to run out is not told: it stays until it is taken back.
		set := &fsm.Mark{By: e.Note.By, Reason: e.Note.Reason}
		switch e.Type {
		case fsm.EventInstanceDraining:
			m.drain = set
		case fsm.EventInstanceUndrained:
			m.drain = nil
		case fsm.EventInstanceCordoned:
			m.cordon = set
		case fsm.EventInstanceUncordoned:
			m.cordon = nil
		}
	}
}

// remark sets the marks of the former session for the one that was just opened,
// before anybody gets to use it. It returns false when that session is gone, and
// gives up when ctx ends.
func (k *sessionKeeper) remark(ctx context.Context) bool {
	for _, m := range []struct {
		mark fsmpb.Mark
		*fsm.Mark
	}{{fsm.MarkDrain, k.marks.drain}, {fsm.MarkCordon, k.marks.cordon}} {
		for m.Mark != nil {
			err := k.markSelf(ctx, m.mark, m.Mark)
			if err == nil {
				k.log.Info("the instance is marked as it was under its former session", "mark", m.mark, "by", m.By, "reason", m.Reason)
				break
			}
			if fsm.CodeOf(err) == fsm.CodeNotFound {
				return false
			}
			if sleepOn(ctx, k.clock, openRetry) != nil {
				return true // whoever holds the session sees that the node leaves, and closes it
			}
		}
	}
	return true
}

func (k *sessionKeeper) markSelf(ctx context.Context, mark fsmpb.Mark, m *fsm.Mark) error {
	ctx, cancel := context.WithTimeout(ctx, k.timing.SessionTTL)
	defer cancel()
	res, err := k.propose(ctx, &fsm.MarkInstance{
		InstanceId: k.self.instanceID, Mark: mark, By: m.By, Reason: m.Reason, ExpiresInMs: m.ExpiresIn.Milliseconds(),
	})
	if err == nil {
		err = fsm.ResultErr(res)
	}
	return err
}
