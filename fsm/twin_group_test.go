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

type twinJob struct {
	total uint64
	owner string
	runs  []twinRun
}

type twinRun struct {
	token             uint64
	instance, outcome string
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
	case *fsm.RecordJob:
		return t.recordJob(op)
	}
	panic(fmt.Sprintf("twin: %T", op))
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
	t.groups[name] = &twinGroup{name: name, members: map[string]*fsm.JoinGroup{}, notes: map[string]*twinNotes{}}
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

func (t *twin) joinGroup(op *fsm.JoinGroup) *twinAnswer {
	s, g := t.sessions[op.SessionId], t.groups[op.Group]
	switch {
	case s == nil:
		return refusal(fsm.CodeSessionExpired)
	case s.open.InstanceId == "":
		return refusal(fsm.CodeWrongState)
	case op.CatalogHash != "" && t.catalogs[op.CatalogHash] == nil, g == nil && op.Settings == nil:
		return refusal(fsm.CodeNotFound)
	}
	resets := op.Settings != nil && (g == nil || !g.put && g.assigner != twinAssigner(op.Settings))
	if g == nil {
		g = t.newGroup(op.Group)
	}
	former := g.members[op.SessionId]
	if former != nil && !resets && former.CatalogHash == op.CatalogHash && slices.Equal(former.Keys, op.Keys) &&
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
	g.note(l.workload()).last = l.instance + "," + reason
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

func (t *twin) recordJob(op *fsm.RecordJob) *twinAnswer {
	run := twinRun{token: op.Token, instance: op.InstanceId, outcome: cmp.Or(op.Outcome, "done")}
	if op.Token != 0 {
		l := t.leases[cmp.Or(op.LeaseKey, op.Key)]
		if l == nil || l.state == "barred" || l.token != op.Token {
			return refusal(fsm.CodeStaleToken)
		}
		run.instance = l.instance
	}
	if t.jobs[op.Key] == nil {
		t.jobs[op.Key] = &twinJob{}
	}
	j := t.jobs[op.Key]
	open := t.openRun(j, op.Token)
	if open != nil && run.outcome == "started" {
		t.closeRun(op.Key, open, "lost")
		open = nil
	}
	if open != nil {
		t.closeRun(op.Key, open, run.outcome)
	} else {
		j.total++
		j.owner = run.instance
		j.runs = append(j.runs, run)
		j.runs = j.runs[max(0, len(j.runs)-32):]
		t.emit("job.recorded %s %d %s", op.Key, run.token, run.instance)
	}
	return &twinAnswer{total: j.total}
}

func (t *twin) openRun(j *twinJob, token uint64) *twinRun {
	for i := range j.runs {
		if token != 0 && j.runs[i].token == token && j.runs[i].outcome == "started" {
			return &j.runs[i]
		}
	}
	return nil
}

func (t *twin) closeRun(key string, r *twinRun, outcome string) {
	r.outcome, t.jobs[key].owner = outcome, r.instance
	t.emit("job.recorded %s %d %s", key, r.token, r.instance)
}

func (t *twin) loseRuns(l *twinLease) {
	for _, key := range slices.Sorted(maps.Keys(t.jobs)) {
		if r := t.openRun(t.jobs[key], l.token); r != nil {
			t.closeRun(key, r, "lost")
		}
	}
}

func (t *twin) raiseFor(s *twinSession) {
	for _, g := range t.groups {
		if g.members[s.open.SessionId] != nil {
			g.inputs++
		}
	}
}

// twinWorkload is how both sides describe a workload.
type twinWorkload struct {
	group, key, status, pin, failed, last string
	pinned, paused                        uint64
	failures                              int
}

func (t *twin) dumpGroups() (out []string) {
	for _, name := range slices.Sorted(maps.Keys(t.groups)) {
		g := t.groups[name]
		out = append(out, fmt.Sprintf("group %s %s put=%v inputs=%d planned=%d wanted=%v", name, g.assigner, g.put, g.inputs, g.planned, t.wanted(g)))
		members := slices.SortedFunc(maps.Keys(g.members), func(a, b string) int { return cmp.Compare(t.sessions[a].order, t.sessions[b].order) })
		out = append(out, fmt.Sprintf("members %v", members))
		for _, w := range t.wanted(g) {
			n, l := g.note(w), t.leases[fsm.WorkloadKey(name, w)]
			row := twinWorkload{name, w, "inactive", n.pin, n.failed, n.last, n.pinned, n.paused, n.failures}
			switch {
			case l == nil && n.paused != 0:
				row.status = "paused"
			case l == nil && n.failures > 0:
				row.status = "failed"
			case l == nil || l.state == "barred":
			case l.stuck:
				row.status = "stuck"
			case l.state == "held":
				row.status = "active"
			default:
				row.status = "transferring"
			}
			out = append(out, fmt.Sprintf("%+v", row))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(t.jobs)) {
		j := t.jobs[key]
		out = append(out, fmt.Sprintf("job %s %d %s %v", key, j.total, j.owner, j.runs))
	}
	return out
}

func dumpGroups(v *fsm.View) (out []string) {
	for g := range v.Groups() {
		wanted, members := []string(nil), []string(nil)
		for w := range g.Workloads("") {
			wanted = append(wanted, w.Key)
		}
		for m := range g.Members() {
			members = append(members, m.SessionID)
		}
		out = append(out, fmt.Sprintf("group %s %s put=%v inputs=%d planned=%d wanted=%v", g.Name, g.Settings.Assigner, g.Put, g.Inputs, g.PlannedInputs, wanted))
		out = append(out, fmt.Sprintf("members %v", members))
		for w := range g.Workloads("") {
			row := twinWorkload{group: g.Name, key: w.Key, status: w.Status.String()}
			if w.Pin != nil {
				row.pin, row.pinned = w.Pin.InstanceID, w.Pin.Revision
			}
			if w.Pause != nil {
				row.paused = w.Pause.Revision
			}
			if w.Failure != nil {
				row.failed, row.failures = w.Failure.InstanceID, w.Failure.Count
			}
			if w.Last != nil {
				row.last = w.Last.InstanceID + "," + w.Last.Reason.String()
			}
			out = append(out, fmt.Sprintf("%+v", row))
		}
	}
	for j := range v.Jobs("", "") {
		var runs []twinRun
		for r := range j.Recent() {
			runs = append(runs, twinRun{r.Token, r.Who.InstanceID, r.Outcome})
		}
		out = append(out, fmt.Sprintf("job %s %d %s %v", j.Key, j.Total, j.Owner.InstanceID, runs))
	}
	return out
}

var twinCatalogs = [][]string{{"w1", "w2", "w3"}, {"w2", "w3", "w4"}, {"w1"}, {"w3", "w4"}}

// memberOf returns a session, for the most part a member of the group.
func (g *generator) memberOf(name string) string {
	tg := g.twin.groups[name]
	if tg == nil || len(tg.members) == 0 || g.r.IntN(8) == 0 {
		return g.session()
	}
	return pick(g, slices.Sorted(maps.Keys(tg.members)))
}

// plannerOp sees to it now and then that one who may plan has the planner's lease.
func (g *generator) plannerOp(name string) fsm.Op {
	tg, key := g.twin.groups[name], fsm.PlannerKey(name)
	if tg == nil || len(tg.members) == 0 || g.r.IntN(3) != 0 {
		return nil
	}
	l := g.twin.leases[key]
	if l == nil {
		return &fsm.Acquire{Key: key, SessionId: g.memberOf(name)}
	}
	if m := tg.members[l.session]; l.session != "" && (m == nil || !m.Embedded) && g.r.IntN(2) == 0 {
		return &fsm.Release{Key: key, SessionId: l.session, Token: l.token}
	}
	return nil
}

// groupOp makes a command of groups or jobs in the same small world.
func (g *generator) groupOp() fsm.Op {
	t := g.twin
	name, workload, s := pick(g, []string{"g", "g", "g", "g", "h"}), pick(g, []string{"w1", "w2", "w3", "w4"}), g.session()
	key := fsm.WorkloadKey(name, workload)
	hash := fsm.CatalogHash(specsOf(pick(g, twinCatalogs)...))
	instance := "n1-1"
	if s := t.sessions[g.memberOf(name)]; s != nil && s.open.InstanceId != "" {
		instance = s.open.InstanceId
	}
	token, successor := g.token(key), s
	if l := t.leases[key]; l != nil {
		if g.r.IntN(4) != 0 && l.session != "" {
			s = l.session
		}
		if to := t.instance(l.to); to != "" {
			successor = to
		}
	}
	settings := &fsm.GroupSettings{Assigner: pick(g, []string{"", "", "", "custom"})}
	if op := g.plannerOp(name); op != nil {
		return op
	}
	switch g.r.IntN(24) {
	case 0:
		_, puts, _ := fsm.NewCatalog(specsOf(pick(g, twinCatalogs)...))
		return puts[0]
	case 2:
		return &fsm.PutGroup{Group: name, CatalogHash: pick(g, []string{"", hash, hash}), Settings: settings}
	case 1, 3, 4:
		op := &fsm.JoinGroup{Group: name, SessionId: g.session(), Embedded: g.r.IntN(2) == 0, Prepares: g.r.IntN(2) == 0}
		if op.Embedded {
			op.Settings = settings
		}
		switch g.r.IntN(4) {
		case 0:
			op.Keys = []string{workload}
		case 1:
			op.CatalogHash = hash
		default:
			op.All = true
		}
		return op
	case 7:
		return &fsm.LeaveGroup{Group: name, SessionId: s}
	case 8:
		return &fsm.Acquire{Key: fsm.PlannerKey(name), SessionId: g.memberOf(name)}
	case 5, 6, 9, 10, 11, 12:
		op := &fsm.PlanGroup{Group: name, Inputs: 1, PlannerToken: g.token(fsm.PlannerKey(name)), More: g.r.IntN(5) == 0}
		if tg := t.groups[name]; tg != nil && g.r.IntN(10) != 0 {
			op.Inputs = max(1, tg.inputs)
		}
		for _, w := range []string{"w1", "w2", "w3", "w4"} {
			if s := t.sessions[g.memberOf(name)]; s != nil && s.open.InstanceId != "" && g.r.IntN(4) != 0 {
				op.Assignments = append(op.Assignments, &fsm.Assignment{Workload: w, Instance: uint32(len(op.Instances))})
				op.Instances = append(op.Instances, s.open.InstanceId)
			}
		}
		return op
	case 13:
		return &fsm.MoveWorkload{Group: name, Workload: workload, ToInstance: instance}
	case 14, 15:
		op := &fsm.SetPin{Group: name, Workload: workload}
		if g.r.IntN(2) == 0 {
			op.InstanceId = instance
		} else if tg := t.groups[name]; tg != nil && tg.note(workload).pinned != 0 && g.r.IntN(2) == 0 {
			op.MarkedRevision, op.Term = tg.note(workload).pinned, g.termOf()
		}
		return op
	case 16, 17:
		op := &fsm.SetPause{Group: name, Workload: workload, Paused: g.r.IntN(4) == 0}
		if tg := t.groups[name]; tg != nil && !op.Paused && tg.note(workload).paused != 0 && g.r.IntN(2) == 0 {
			op.MarkedRevision, op.Term = tg.note(workload).paused, g.termOf()
		}
		return op
	case 18, 19:
		return &fsm.Prepared{Group: name, Workload: workload, Token: token, SessionId: successor, Ok: g.r.IntN(3) != 0, Message: "no"}
	case 20:
		return &fsm.ForgetFailure{Group: name, Workload: workload, Token: token, SessionId: s}
	case 21:
		return &fsm.RecordStuck{Key: key, Token: token, SessionId: s}
	}
	return &fsm.RecordJob{Key: pick(g, []string{"j1", "j2"}), LeaseKey: key, Token: token, Outcome: pick(g, []string{"", "ok", "started", "started"})}
}
