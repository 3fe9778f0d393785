package fsm_test

import "github.com/miwnode/miwnode/fsm"

func (t *twin) setPin(op *fsm.SetPin) *twinAnswer {
	if op.MarkedRevision != 0 && op.Term != t.term {
		return refusal(fsm.CodeWrongState)
	}
	g := t.groups[op.Group]
	if g == nil {
		return refusal(fsm.CodeNotFound)
	}
	n, key := g.note(op.Workload), fsm.WorkloadKey(op.Group, op.Workload)
	if op.InstanceId == "" {
		if n.pin == "" {
			return twinDone
		}
		if op.MarkedRevision != 0 && op.MarkedRevision != n.pinned {
			return refusal(fsm.CodeWrongState)
		}
		n.pin, n.pinned = "", 0
		g.inputs++
		t.emit("workload.unpinned %s 0", key)
		return twinDone
	}
	s := t.sessions[t.instance(op.InstanceId)]
	if !t.wants(g, op.Workload) || s == nil {
		return refusal(fsm.CodeNotFound)
	}
	m := g.members[s.open.SessionId]
	if m == nil || !t.mayRun(s.open.SessionId) || !t.declares(m, op.Workload) {
		return refusal(fsm.CodeWrongState)
	}
	if n.pin != op.InstanceId {
		g.inputs++
		t.emit("workload.pinned %s 0 %s", key, op.InstanceId)
	}
	n.pin, n.pinned = op.InstanceId, t.index
	return twinDone
}

func (t *twin) setPause(op *fsm.SetPause) *twinAnswer {
	if op.MarkedRevision != 0 && op.Term != t.term {
		return refusal(fsm.CodeWrongState)
	}
	g := t.groups[op.Group]
	if g == nil {
		return refusal(fsm.CodeNotFound)
	}
	n, key := g.note(op.Workload), fsm.WorkloadKey(op.Group, op.Workload)
	if !op.Paused {
		switch {
		case n.paused == 0:
			return twinDone
		case op.MarkedRevision != 0 && op.MarkedRevision != n.paused:
			return refusal(fsm.CodeWrongState)
		}
		n.paused, n.failed, n.failures = 0, "", 0
		g.inputs++
		t.emit("workload.resumed %s 0", key)
		return twinDone
	}
	if !t.wants(g, op.Workload) {
		return refusal(fsm.CodeNotFound)
	}
	if n.paused == 0 {
		g.inputs++
		t.emit("workload.paused %s 0", key)
		t.tell(t.leases[key], g, fsm.ByPause)
	}
	n.paused = t.index
	return twinDone
}
