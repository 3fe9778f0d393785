package fsm_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/miwnode/miwnode/fsm"
)

// The rules of groups and jobs again, for the twin.

type twinGroups struct {
	catalogs map[string][]string // by hash
	groups   map[string]*twinGroup
	jobs     map[string]*twinJob
}

type twinGroup struct {
	name, assigner, catalog string
	put                     bool
	inputs, planned         uint64
	members                 map[string]*fsm.JoinGroup // by session
	notes                   map[string]*twinNotes     // by workload
}

type twinNotes struct {
	pin            string
	pinned, paused uint64 // revisions
	failed         string
	failures       int
	last           string
}

func newTwinGroups() twinGroups {
	return twinGroups{catalogs: map[string][]string{}, groups: map[string]*twinGroup{}, jobs: map[string]*twinJob{}}
}

func (t *twin) runGroup(op fsm.Op) *twinAnswer {
	switch op := op.(type) {
	case *fsm.PutCatalog:
		var keys []string
		for _, w := range op.Workloads {
			keys = append(keys, w.Key)
		}
		t.catalogs[op.Hash] = keys
		return twinDone
	case *fsm.PutGroup:
		return t.putGroup(op)
	case *fsm.JoinGroup:
		return t.joinGroup(op)
	case *fsm.LeaveGroup:
		return t.leaveGroup(op)
	case *fsm.PlanGroup:
		return t.planGroup(op)
	case *fsm.MoveWorkload:
		return t.moveWorkload(op)
	case *fsm.SetPin:
		return t.setPin(op)
	case *fsm.SetPause:
		return t.setPause(op)
	case *fsm.Prepared:
		return t.prepared(op)
	case *fsm.ForgetFailure:
		l, a := t.ownLease(fsm.WorkloadKey(op.Group, op.Workload), op.Token, op.SessionId, op.Group)
		if l == nil {
			return a
		}
		n := t.groups[op.Group].note(op.Workload)
		n.failed, n.failures = "", 0
		return twinDone
	case *fsm.RecordStuck:
		l, a := t.ownLease(op.Key, op.Token, op.SessionId, "")
		if l == nil {
			return a
		}
		if !l.stuck {
			l.stuck = true
			t.emit("workload.stuck %s %d %s", l.key, l.token, l.instance)
		}
		return twinDone
	case *fsm.RecordSleep:
		t.ledger = append(t.ledger, fmt.Sprintf("%s %d %s %d-%d slept", op.Key, op.Token, op.InstanceId, t.index, t.index))
		t.emit("lease.slept %s %d %s", op.Key, op.Token, op.InstanceId)
		return twinDone
	case *fsm.RecordJob:
		return t.recordJob(op)
	case *fsm.DeleteGroup:
		return t.deleteGroup(op)
	}
	return t.runWorker(op)
}

// ownLease finds the lease that a session has under a token, or the refusal.
func (t *twin) ownLease(key string, token uint64, session, group string) (*twinLease, *twinAnswer) {
	l := t.leases[key]
	switch {
	case t.sessions[session] == nil:
		return nil, refusal(fsm.CodeSessionExpired)
	case group != "" && t.groups[group] == nil, l == nil, l.state == "barred":
		return nil, refusal(fsm.CodeNotFound)
	case l.token != token, l.session != session:
		return nil, refusal(fsm.CodeStaleToken)
	}
	return l, nil
}

func (g *twinGroup) note(workload string) *twinNotes {
	if g.notes[workload] == nil {
		g.notes[workload] = &twinNotes{}
	}
	return g.notes[workload]
}

// wanted is the sorted union of the group's catalog and those of its members.
func (t *twin) wanted(g *twinGroup) (out []string) {
	if g.name == "workers" && t.version >= 3 {
		for id, w := range t.workers {
			if w.wanted() {
				out = append(out, id)
			}
		}
		slices.Sort(out)
		return out
	}
	out = append(out, t.catalogs[g.catalog]...)
	for _, m := range g.members {
		out = append(out, t.catalogs[m.CatalogHash]...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (t *twin) wants(g *twinGroup, workload string) bool {
	return slices.Contains(t.wanted(g), workload)
}

func (t *twin) declares(m *fsm.JoinGroup, workload string) bool {
	if len(m.Runtimes) > 0 {
		w := t.workers[workload]
		return w.wanted() && slices.Contains(m.Runtimes, w.needs())
	}
	return m.All || slices.Contains(m.Keys, workload) || slices.Contains(t.catalogs[m.CatalogHash], workload)
}

// changed runs change and asks the owners of what is not wanted any more to stop.
func (t *twin) changed(g *twinGroup, change func()) {
	before := t.wanted(g)
	change()
	for _, w := range before {
		if !t.wants(g, w) {
			t.tell(t.leases[fsm.WorkloadKey(g.name, w)], g, fsm.ByGroup)
		}
	}
}

func (t *twin) tell(l *twinLease, g *twinGroup, by string) {
	if l == nil || l.group != g.name || t.sessions[l.session] == nil || l.state == "revoked" || l.state == "transferring" && l.to == "" {
		return
	}
	t.change(l, "transferring", by, "", "lease.transferring")
}

func (t *twin) change(l *twinLease, state, by, to, event string) {
	l.state, l.by, l.to, l.changed, t.sessions[l.session].changed = state, by, to, t.index, t.index
	t.emit("%s %s %d %s", event, l.key, l.token, l.instance)
}

func twinAssigner(s *fsm.GroupSettings) string { return cmp.Or(s.GetAssigner(), "sticky") }

func (t *twin) newGroup(name string) *twinGroup {
	t.groups[name] = &twinGroup{name: name, assigner: "sticky", members: map[string]*fsm.JoinGroup{}, notes: map[string]*twinNotes{}}
	return t.groups[name]
}

func (t *twin) putGroup(op *fsm.PutGroup) *twinAnswer {
	if op.CatalogHash != "" && t.catalogs[op.CatalogHash] == nil {
		return refusal(fsm.CodeNotFound)
	}
	g := t.groups[op.Group]
	if g == nil {
		g = t.newGroup(op.Group)
	} else if g.put && g.assigner == twinAssigner(op.Settings) && g.catalog == op.CatalogHash {
		return twinDone
	}
	g.inputs++
	t.emit("group.updated %s 0", g.name)
	g.put, g.assigner = true, twinAssigner(op.Settings)
	t.changed(g, func() { g.catalog = op.CatalogHash })
	return twinDone
}

func (t *twin) deleteGroup(op *fsm.DeleteGroup) *twinAnswer {
	g := t.groups[op.Group]
	if g == nil {
		return refusal(fsm.CodeNotFound)
	}
	if len(g.members) > 0 {
		return refusal(fsm.CodeWrongState)
	}
	for _, l := range t.leases {
		if l.group == g.name {
			return refusal(fsm.CodeWrongState)
		}
	}
	t.emit("group.updated %s 0", g.name)
	delete(t.groups, g.name)
	return twinDone
}

func (t *twin) joinGroup(op *fsm.JoinGroup) *twinAnswer {
	s, g := t.sessions[op.SessionId], t.groups[op.Group]
	switch {
	case s == nil:
		return refusal(fsm.CodeSessionExpired)
	case s.open.InstanceId == "":
		return refusal(fsm.CodeWrongState)
	case op.CatalogHash != "" && t.catalogs[op.CatalogHash] == nil, g == nil && op.Settings == nil && len(op.Runtimes) == 0:
		return refusal(fsm.CodeNotFound)
	}
	resets := op.Settings != nil && (g == nil || !g.put && g.assigner != twinAssigner(op.Settings))
	if g == nil {
		g = t.newGroup(op.Group)
	}
	former := g.members[op.SessionId]
	if former != nil && !resets && former.CatalogHash == op.CatalogHash && slices.Equal(former.Keys, op.Keys) && slices.Equal(former.Runtimes, op.Runtimes) &&
		former.All == op.All && former.Embedded == op.Embedded && former.Prepares == op.Prepares {
		return twinDone
	}
	g.inputs++
	if resets {
		g.assigner = twinAssigner(op.Settings)
	}
	t.emit("group.updated %s 0 %s", g.name, s.open.InstanceId)
	t.changed(g, func() { g.members[op.SessionId] = op })
	if former != nil {
		for _, l := range t.leasesOf(op.SessionId, g) {
			if !t.declares(op, l.workload()) {
				t.tell(l, g, fsm.ByGroup)
			}
		}
	}
	return twinDone
}

func (l *twinLease) workload() string { return strings.TrimPrefix(l.key, l.group+"/") }

func (t *twin) leasesOf(session string, g *twinGroup) (out []*twinLease) {
	for _, key := range slices.Sorted(maps.Keys(t.leases)) {
		if l := t.leases[key]; l.session == session && l.group == g.name {
			out = append(out, l)
		}
	}
	return out
}

func (t *twin) leaveGroup(op *fsm.LeaveGroup) *twinAnswer {
	s, g := t.sessions[op.SessionId], t.groups[op.Group]
	switch {
	case s == nil:
		return refusal(fsm.CodeSessionExpired)
	case g == nil:
		return refusal(fsm.CodeNotFound)
	case g.members[op.SessionId] == nil:
		return twinDone
	}
	t.takeOut(g, s)
	for _, l := range t.leasesOf(op.SessionId, g) {
		t.tell(l, g, fsm.ByGroup)
	}
	t.notComing(s, g.name)
	return twinDone
}

func (t *twin) takeOut(g *twinGroup, s *twinSession) {
	g.inputs++
	t.emit("group.updated %s 0 %s", g.name, s.open.InstanceId)
	t.changed(g, func() { delete(g.members, s.open.SessionId) })
}

// leaveAll is for a session that is not in the table any more.
func (t *twin) leaveAll(s *twinSession) {
	for _, name := range slices.Sorted(maps.Keys(t.groups)) {
		if t.groups[name].members[s.open.SessionId] != nil {
			t.takeOut(t.groups[name], s)
		}
	}
	t.notComing(s, "")
}

func (t *twin) notComing(s *twinSession, group string) {
	for _, key := range slices.Sorted(maps.Keys(t.leases)) {
		l := t.leases[key]
		if l.group != "" && (group == "" || l.group == group) && l.to == s.open.InstanceId && l.to != "" && t.sessions[l.session] != nil {
			t.withoutSuccessor(l)
		}
	}
}

func (t *twin) withoutSuccessor(l *twinLease) {
	switch l.state {
	case "held":
		t.change(l, "held", "", "", "workload.kept")
	case "transferring":
		t.change(l, "transferring", l.by, "", "lease.transferring")
	default:
		l.to = ""
	}
}

// grantable returns why a member may not have a workload, CodeDone if it may.
func (t *twin) grantable(g *twinGroup, workload string, s *twinSession) fsm.Code {
	m := g.members[s.open.SessionId]
	switch {
	case m == nil:
		return fsm.CodeWrongState
	case s.marks["drain"] != 0:
		return fsm.CodeDraining
	case s.marks["cordon"] != 0:
		return fsm.CodeWrongState
	case !t.wants(g, workload):
		return fsm.CodeNotFound
	case !t.declares(m, workload), g.note(workload).paused != 0:
		return fsm.CodeWrongState
	}
	return fsm.CodeDone
}

// place gives a workload to an instance as far as that may be.
func (t *twin) place(g *twinGroup, workload string, s *twinSession, by string) (changed bool, code fsm.Code) {
	if c := t.grantable(g, workload, s); c != fsm.CodeDone {
		return false, c
	}
	key, to := fsm.WorkloadKey(g.name, workload), s.open.InstanceId
	l := t.leases[key]
	if l == nil {
		t.grantTo(g, key, s, "workload.assigned")
		return true, fsm.CodeDone
	}
	if l.group != g.name {
		return false, fsm.CodeLeaseHeld
	}
	if l.state == "revoked" {
		return false, fsm.CodeWrongState
	}
	if by == fsm.ByPlanner && l.to != "" && l.by != fsm.ByPlanner {
		if o := t.sessions[t.instance(l.to)]; o != nil && t.grantable(g, workload, o) == fsm.CodeDone {
			return false, fsm.CodeDone
		}
	}
	if l.session == s.open.SessionId && l.state == "held" {
		if l.to == "" {
			return false, fsm.CodeDone
		}
		t.withoutSuccessor(l)
		return true, fsm.CodeDone
	}
	if l.to == to {
		return false, fsm.CodeDone
	}
	if l.state == "held" && g.members[s.open.SessionId].Prepares {
		t.change(l, "held", by, to, "workload.preparing")
	} else {
		t.change(l, "transferring", by, to, "lease.transferring")
	}
	return true, fsm.CodeDone
}

func (t *twin) grantTo(g *twinGroup, key string, s *twinSession, event string) {
	l := t.grant(key, &twinWaiter{session: s.open.SessionId, holder: fsm.GroupHolder(g.name)})
	l.group = g.name
	t.emit("%s %s %d %s", event, key, l.token, l.instance)
}

func (t *twin) planGroup(op *fsm.PlanGroup) *twinAnswer {
	g := t.groups[op.Group]
	if g == nil {
		return refusal(fsm.CodeNotFound)
	}
	l := t.leases[fsm.PlannerKey(g.name)]
	if l == nil || l.token != op.PlannerToken || l.state != "held" && l.state != "transferring" {
		return refusal(fsm.CodeStaleToken)
	}
	planner, embedded := t.sessions[l.session], false
	for _, m := range g.members {
		embedded = embedded || m.Embedded
	}
	m := g.members[l.session]
	if embedded && (m == nil || !m.Embedded) || !embedded && (planner.open.NodeId == "" || len(g.members) == 0 || g.assigner == "custom") {
		return refusal(fsm.CodeWrongState)
	}
	if g.inputs != op.Inputs {
		return refusal(fsm.CodeWrongState)
	}
	a := &twinAnswer{}
	for _, as := range op.Assignments {
		if s := t.sessions[t.instance(op.Instances[as.Instance])]; s != nil {
			if changed, _ := t.place(g, as.Workload, s, fsm.ByPlanner); changed {
				a.total++
			}
		}
	}
	if a.total > 0 || !op.More && g.planned != op.Inputs {
		t.emit("group.planned %s 0 %s", g.name, l.instance)
	}
	if !op.More {
		g.planned = op.Inputs
	}
	return a
}

func (t *twin) moveWorkload(op *fsm.MoveWorkload) *twinAnswer {
	g := t.groups[op.Group]
	if g == nil || !t.wants(g, op.Workload) || t.instance(op.ToInstance) == "" {
		return refusal(fsm.CodeNotFound)
	}
	s := t.sessions[t.instance(op.ToInstance)]
	if c := t.grantable(g, op.Workload, s); c != fsm.CodeDone {
		return refusal(c)
	}
	if pin := g.note(op.Workload).pin; pin != "" && pin != op.ToInstance && t.instance(pin) != "" {
		return refusal(fsm.CodeWrongState)
	}
	_, code := t.place(g, op.Workload, s, op.By)
	return refusal(code)
}

func (t *twin) prepared(op *fsm.Prepared) *twinAnswer {
	s, g := t.sessions[op.SessionId], t.groups[op.Group]
	if s == nil {
		return refusal(fsm.CodeSessionExpired)
	}
	if g == nil {
		return refusal(fsm.CodeNotFound)
	}
	l := t.leases[fsm.WorkloadKey(op.Group, op.Workload)]
	switch {
	case l == nil || l.state == "barred":
		return refusal(fsm.CodeNotFound)
	case l.token != op.Token:
		return refusal(fsm.CodeStaleToken)
	case l.group != g.name || l.to == "" || l.to != s.open.InstanceId:
		return refusal(fsm.CodeWrongState)
	case l.state != "held":
		return twinDone
	case op.Ok:
		t.change(l, "transferring", l.by, l.to, "lease.transferring")
		return twinDone
	}
	t.failed(g, op.Workload, s.open.InstanceId)
	t.emit("workload.failed %s %d %s", l.key, l.token, s.open.InstanceId)
	t.withoutSuccessor(l)
	return twinDone
}

func (t *twin) failed(g *twinGroup, workload, instance string) {
	if !t.keeps(g, workload) {
		return
	}
	n := g.note(workload)
	n.failed = instance
	n.failures++
}

// passOn grants a group's key that nobody holds any more to its successor.
func (t *twin) passOn(l *twinLease, reason string) bool {
	if l.group == "" {
		return false
	}
	g := t.groups[l.group]
	if t.keeps(g, l.workload()) {
		g.note(l.workload()).last = l.instance + "," + reason
	}
	s := t.sessions[t.instance(l.to)]
	if s == nil || t.grantable(g, l.workload(), s) != fsm.CodeDone {
		return false
	}
	event := "workload.moved"
	if s.open.SessionId == l.session {
		event = "workload.assigned"
	}
	t.grantTo(g, l.key, s, event)
	return true
}

func (t *twin) raiseFor(s *twinSession) {
	for _, g := range t.groups {
		if g.members[s.open.SessionId] != nil {
			g.inputs++
		}
	}
}
