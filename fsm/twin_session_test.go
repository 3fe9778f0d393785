package fsm_test

import (
	"cmp"
	"maps"
	"slices"

	"github.com/miwnode/miwnode/fsm"
)

// The twin's rules of sessions and instances.

func (t *twin) instance(id string) string {
	for _, s := range t.sessions {
		if id != "" && s.open.InstanceId == id {
			return s.open.SessionId
		}
	}
	return ""
}

func (t *twin) open(op *fsm.OpenSession) *twinAnswer {
	if s := t.sessions[op.SessionId]; s != nil {
		if s.open.NodeId == op.NodeId && s.open.Boot == op.Boot && s.open.InstanceId == op.InstanceId {
			return &twinAnswer{session: op.SessionId}
		}
		return refusal(fsm.CodeAlreadyExists)
	}
	var earlier []*twinSession
	newest := uint64(0)
	for _, s := range t.sessions {
		if op.NodeId != "" && s.open.NodeId == op.NodeId {
			newest = max(newest, s.open.Boot)
			if op.RestartProved {
				earlier = append(earlier, s)
			}
		}
	}
	if newest > op.Boot {
		return refusal(fsm.CodeWrongState)
	}
	if op.NodeId != "" && newest == op.Boot {
		return refusal(fsm.CodeAlreadyExists)
	}
	if taken := t.sessions[t.instance(op.InstanceId)]; taken != nil && !slices.Contains(earlier, taken) {
		return refusal(fsm.CodeAlreadyExists)
	}
	slices.SortFunc(earlier, func(a, b *twinSession) int { return cmp.Compare(a.open.Boot, b.open.Boot) })
	for _, s := range earlier {
		t.end(s.open.SessionId, "restarted")
	}
	t.opened++
	t.sessions[op.SessionId] = &twinSession{open: op, order: t.opened, marks: map[string]uint64{}}
	t.emit("session.opened %s", op.InstanceId)
	if op.InstanceId != "" {
		t.emit("instance.joined %s", op.InstanceId)
	}
	return &twinAnswer{session: op.SessionId}
}

func (t *twin) end(id, reason string) {
	s := t.sessions[id]
	delete(t.sessions, id)
	if reason == "expired" {
		t.emit("session.expired %s expired", s.open.InstanceId)
	} else {
		t.emit("session.closed %s %s", s.open.InstanceId, reason)
	}
	if s.open.InstanceId != "" {
		t.emit("instance.left %s %s", s.open.InstanceId, reason)
	}
	for key := range t.queues {
		t.queues[key] = slices.DeleteFunc(t.queues[key], func(w *twinWaiter) bool { return w.session == id })
	}
	t.leaveAll(s)
	for _, key := range slices.Sorted(maps.Keys(t.leases)) {
		if t.leases[key].session == id {
			t.endLease(t.leases[key], reason, reason == "expired")
		}
	}
}

func (t *twin) mark(op *fsm.MarkInstance) *twinAnswer {
	if op.MarkedRevision != 0 && op.Term != t.term {
		return refusal(fsm.CodeWrongState)
	}
	s := t.sessions[t.instance(op.InstanceId)]
	if s == nil {
		return refusal(fsm.CodeNotFound)
	}
	name := map[bool]string{true: "drain", false: "cordon"}[op.Mark == fsm.MarkDrain || op.Mark == fsm.MarkUndrain]
	if op.Mark == fsm.MarkDrain || op.Mark == fsm.MarkCordon {
		if s.marks[name] == 0 {
			t.emit("instance.%s %s", map[string]string{"drain": "draining", "cordon": "cordoned"}[name], op.InstanceId)
			t.raiseFor(s)
		}
		s.marks[name] = t.index
		return twinDone
	}
	if s.marks[name] == 0 {
		return twinDone
	}
	if op.MarkedRevision != 0 && op.MarkedRevision != s.marks[name] {
		return refusal(fsm.CodeWrongState)
	}
	delete(s.marks, name)
	t.emit("instance.%s %s", map[string]string{"drain": "undrained", "cordon": "uncordoned"}[name], op.InstanceId)
	t.raiseFor(s)
	for _, key := range slices.Sorted(maps.Keys(t.queues)) {
		if t.leases[key] == nil {
			t.serve(key, "")
		}
	}
	return twinDone
}
