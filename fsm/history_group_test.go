package fsm_test

import (
	"maps"
	"slices"

	"github.com/miwnode/miwnode/fsm"
)

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
	workloads := []string{"w1", "w2", "w3", "w4"}
	name := pick(g, []string{"g", "g", "g", "g", "h"})
	if g.workers {
		if g.r.IntN(2) == 0 {
			return g.workerOp()
		}
		if name = pick(g, []string{"g", "workers", "workers"}); name == fsm.WorkersGroup && t.version >= 3 {
			workloads = twinWorkerIDs
		}
	}
	workload, s := pick(g, workloads), g.session()
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
	switch g.r.IntN(25) {
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
		if name == fsm.WorkersGroup && t.version >= 3 && g.r.IntN(20) != 0 {
			op.Keys, op.CatalogHash, op.All, op.Runtimes = nil, "", false, pick(g, twinRuntimes)
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
		for _, w := range workloads {
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
	case 22:
		return &fsm.DeleteGroup{Group: name}
	case 23:
		return &fsm.RecordSleep{Key: key, Token: token, InstanceId: instance, SleptNs: 30 * second}
	}
	return &fsm.RecordJob{Key: pick(g, []string{"j1", "j2"}), LeaseKey: key, Token: token, Outcome: pick(g, []string{"", "ok", "started", "started"})}
}
