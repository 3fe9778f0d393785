package fsm

import (
	"time"

	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// Mark is a drain or cordon of an instance.
type Mark struct {
	Revision  uint64 // of the entry that set it; names the mark when the leader clears it
	Reason    string
	By        string
	At        int64         // stamp, Unix nanoseconds
	ExpiresIn time.Duration // counted by the leader from its apply; 0 = never
}

// markEvents are the events of setting and clearing.
var markEvents = map[fsmpb.Mark]EventType{
	MarkDrain:    EventInstanceDraining,
	MarkUndrain:  EventInstanceUndrained,
	MarkCordon:   EventInstanceCordoned,
	MarkUncordon: EventInstanceUncordoned,
}

func (s *State) markInstance(op *MarkInstance) error {
	if op.MarkedRevision != 0 {
		if err := s.otherTerm(op.Term); err != nil {
			return err
		}
	}
	sessionID, ok := s.instances.Get(op.InstanceId)
	if !ok {
		return Errorf(CodeNotFound, "no live instance %s", op.InstanceId)
	}
	sess, _ := s.sessions.Get(sessionID)
	present := sess.Drain
	if op.Mark == MarkCordon || op.Mark == MarkUncordon {
		present = sess.Cordon
	}
	var next *Mark
	if op.Mark == MarkDrain || op.Mark == MarkCordon {
		next = &Mark{
			Revision:  s.cluster.revision,
			Reason:    op.Reason,
			By:        op.By,
			At:        s.stamp,
			ExpiresIn: time.Duration(op.ExpiresInMs) * time.Millisecond,
		}
	} else if present == nil {
		return nil // not set: nothing to clear
	} else if op.MarkedRevision != 0 && op.MarkedRevision != present.Revision {
		return Errorf(CodeWrongState, "the mark was set anew at revision %d", present.Revision)
	}
	sess = s.own(sess)
	if op.Mark == MarkDrain || op.Mark == MarkUndrain {
		sess.Drain = next
	} else {
		sess.Cordon = next
	}
	s.touch(topic{kind: topicInstance, name: sess.InstanceID})
	if next != nil {
		s.outcome.Marked = append(s.outcome.Marked, sess.InstanceID)
	}
	if (present == nil) != (next == nil) {
		s.emit(Event{Type: markEvents[op.Mark], Who: sess.Identity, Note: noteOf(op.By, op.Reason, "")})
		s.raiseFor(sess)
	}
	if next == nil && sess.eligible() {
		s.serveWaiter(sess)
	}
	return nil
}

// serveWaiter grants the free keys that an instance waits for, after a mark
// kept it from them, in the order of the keys.
func (s *State) serveWaiter(sess *Session) {
	if sess.waits == nil {
		return
	}
	for _, key := range sess.waits.Keys() {
		if _, taken := s.leases.Get(key); !taken {
			s.grantNext(key, "")
		}
	}
}
