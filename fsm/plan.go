package fsm

import "strings"

// planTarget is one of the instances that a plan names.
type planTarget struct {
	sess   *Session // nil = it may be given nothing
	member *Member
	notes  map[uint32]placing // by reason: many assignments share them
}

// placing is what is noted of a workload that is given to an instance.
type placing struct {
	granted *Note
	named   *Note // with To
}

func placingOf(by, reason, to string) placing {
	return placing{noteOf(by, reason, ""), noteOf(by, reason, to)}
}

func (s *State) planGroup(op *PlanGroup, r *Result) error {
	g, err := s.group(op.Group)
	if err != nil {
		return err
	}
	l, ok := s.leases.Get(PlannerKey(g.Name))
	if !ok || l.Token != op.PlannerToken || l.State != Held && l.State != Transferring {
		return Errorf(CodeStaleToken, "token %d is not that of the group's planner", op.PlannerToken)
	}
	if planner, _ := s.sessions.Get(l.SessionID); !g.mayPlan(planner) {
		return Errorf(CodeWrongState, "the instance %s can't plan for the group: it is no member with a planner", l.Who.InstanceID)
	}
	if op.Inputs != g.Inputs && !s.defects.StalePlan {
		return Errorf(CodeWrongState, "the plan is for the inputs %d, but they are at %d: plan anew", op.Inputs, g.Inputs)
	}
	g = s.ownGroup(g)
	targets := s.planTargets(g, op.Instances)
	for _, a := range op.Assignments {
		t := &targets[a.Instance]
		if t.sess == nil {
			continue
		}
		reason := ""
		if a.Reason > 0 {
			reason = op.Reasons[a.Reason-1]
		}
		p, known := t.notes[a.Reason]
		if !known {
			p = placingOf(ByPlanner, reason, t.sess.InstanceID)
			t.notes[a.Reason] = p
		}
		if changed, _ := s.place(g, a.Workload, t.sess, t.member, p); changed {
			r.Total++
		}
	}
	s.planned(g, op, l.Who, r.Total)
	return nil
}

// planTargets looks up the instances once: as many assignments name each.
func (s *State) planTargets(g *group, instances []string) []planTarget {
	targets := make([]planTarget, len(instances))
	for i, id := range instances {
		sess := s.instance(id)
		if sess == nil || !sess.eligible() {
			continue
		}
		if m, ok := g.memberOf(sess); ok {
			targets[i] = planTarget{sess: s.own(sess), member: m, notes: map[uint32]placing{}}
		}
	}
	return targets
}

// planned notes that the plan was applied, by its last part.
func (s *State) planned(g *group, op *PlanGroup, planner *Identity, changes uint64) {
	if changes > 0 || !op.More && g.PlannedInputs != op.Inputs {
		note := &Note{By: ByPlanner, Number: changes}
		s.emit(Event{Type: EventGroupPlanned, Key: g.Name, Who: planner, Note: note})
		s.touchGroup(g)
	}
	if !op.More {
		g.PlannedInputs, g.PlannedRevision, g.PlannedAt, g.Planner = op.Inputs, s.cluster.revision, s.stamp, planner
	}
}

// instance returns the session of a live instance, nil if there is none.
func (s *State) instance(id string) *Session {
	sessionID, ok := s.instances.Get(id)
	if !ok || id == "" {
		return nil
	}
	sess, _ := s.sessions.Get(sessionID)
	return sess
}

// mayRun refuses an instance that a workload may not be granted to.
func (s *State) mayRun(g *group, workload string, sess *Session) error {
	m, ok := g.memberOf(sess)
	if !ok {
		return Errorf(CodeWrongState, "the instance %s is no member of the group", sess.InstanceID)
	}
	if sess.Draining() {
		return Errorf(CodeDraining, "the instance %s drains and takes nothing new", sess.InstanceID)
	}
	if sess.Cordoned() {
		return Errorf(CodeWrongState, "the instance %s is cordoned and takes nothing new", sess.InstanceID)
	}
	return g.grantable(workload, m, sess)
}

// grantable refuses a workload that a member may not have now.
func (g *group) grantable(workload string, m *Member, sess *Session) error {
	spec, wanted := g.find(workload)
	if !wanted {
		return Errorf(CodeNotFound, "the group doesn't want %s", workload)
	}
	if !m.Declares(spec) {
		return Errorf(CodeWrongState, "the instance %s doesn't declare %s", sess.InstanceID, workload)
	}
	if g.state(workload).pause != nil {
		return Errorf(CodeWrongState, "%s is paused", workload)
	}
	return nil
}

// place gives a workload to an eligible member: grants it if it is free, else
// names the member its successor. It tells whether something changed.
func (s *State) place(g *group, workload string, sess *Session, m *Member, p placing) (changed bool, err error) {
	if err := g.grantable(workload, m, sess); err != nil {
		return false, err
	}
	key := WorkloadKey(g.Name, workload)
	l, taken := s.leases.Get(key)
	switch {
	case !taken && s.leases.Len() >= MaxLeases:
		return false, Errorf(CodeOverloaded, "%d leases are held, no more are granted", s.leases.Len())
	case !taken:
		s.grantWorkload(g, sess, key, EventWorkloadAssigned, p.granted)
		return true, nil
	case l.Group != g.Name:
		return false, heldBy(l)
	case l.State == Revoked:
		return false, Errorf(CodeWrongState, "the lease is revoked: wait until it is free")
	case p.named.By == ByPlanner && s.operatorsMove(g, workload, l):
		return false, nil
	case l.SessionID == sess.ID && l.State == Held:
		if l.Note.To != "" {
			s.withoutSuccessor(l)
		}
		return l.Note.To != "", nil
	case l.Note.To == sess.InstanceID:
		return false, nil
	case l.State == Held && m.Prepares:
		s.changeLease(l, Held, p.named, EventWorkloadPreparing)
	default:
		// An owner that was asked to stop already can't be told to go on: it
		// becomes its own successor.
		s.changeLease(l, Transferring, p.named, EventLeaseTransferring)
		if s.defects.MoveAtOnce {
			l, _ = s.leases.Get(key)
			s.giveUp(l)
		}
	}
	s.touchGroup(g)
	return true, nil
}

// operatorsMove reports whether an operator named a successor that may still run it.
func (s *State) operatorsMove(g *group, workload string, l *Lease) bool {
	if l.Note.To == "" || l.Note.By == ByPlanner {
		return false
	}
	to := s.instance(l.Note.To)
	return to != nil && s.mayRun(g, workload, to) == nil
}

// grantWorkload grants a free key of the group.
func (s *State) grantWorkload(g *group, sess *Session, key string, event EventType, note *Note) {
	l := s.grantLease(sess, &Lease{Key: key, Holder: g.holder, Group: g.Name})
	s.emit(Event{Type: event, Key: key, Token: l.Token, Who: l.Who, Note: note})
}

func (s *State) moveWorkload(op *MoveWorkload) error {
	g, err := s.group(op.Group)
	if err != nil {
		return err
	}
	if _, wanted := g.find(op.Workload); !wanted {
		return Errorf(CodeNotFound, "the group doesn't want %s", op.Workload)
	}
	sess := s.instance(op.ToInstance)
	if sess == nil {
		return Errorf(CodeNotFound, "no live instance %s", op.ToInstance)
	}
	if err := s.mayRun(g, op.Workload, sess); err != nil {
		return err
	}
	if p := g.state(op.Workload).pin; p != nil && p.InstanceID != op.ToInstance && s.instance(p.InstanceID) != nil {
		return Errorf(CodeWrongState, "%s is pinned to the instance %s", op.Workload, p.InstanceID)
	}
	m, _ := g.memberOf(sess)
	_, err = s.place(s.ownGroup(g), op.Workload, s.own(sess), m, placingOf(op.By, op.Reason, op.ToInstance))
	return err
}

// nameSuccessor keeps the successors' side of what a lease of a group says.
func (s *State) nameSuccessor(l *Lease, to string) {
	if l.Group == "" || l.Note.To == to {
		return
	}
	if sess := s.instance(l.Note.To); sess != nil && sess.coming != nil {
		s.own(sess).coming.Delete(l.Key)
		s.touch(topic{kind: topicSession, name: sess.ID})
	}
	if sess := s.instance(to); sess != nil {
		sess = s.own(sess)
		if sess.coming == nil {
			sess.coming = newMap[struct{}]()
		}
		sess.coming.Set(l.Key, struct{}{})
		s.touch(topic{kind: topicSession, name: sess.ID})
	}
}

// passOn grants what a group's lease that has ended was about to its named
// successor; false if there is none that may run it. What becomes free, the
// planner sees.
func (s *State) passOn(l *Lease, reason EndReason) bool {
	if l.Group == "" {
		s.touchKey(l.Key)
		return false
	}
	g, _ := s.groups.Get(l.Group)
	workload := workloadOf(l)
	s.nameSuccessor(l, "")
	s.hadLast(g, workload, l, reason)
	if !s.defects.FreeUnseen {
		s.touchGroup(g)
	}
	to := s.instance(l.Note.To)
	if to == nil || s.mayRun(g, workload, to) != nil && !s.defects.SuccessorUnseen {
		return false
	}
	event := EventWorkloadMoved
	if to.ID == l.SessionID {
		event = EventWorkloadAssigned
	}
	s.grantWorkload(g, to, l.Key, event, noteOf(l.Note.By, l.Note.Reason, ""))
	return true
}

// touchKey tells the planner that a key of its group, which somebody held
// outside it, is free.
func (s *State) touchKey(key string) {
	if name, _, ok := strings.Cut(key, "/"); ok {
		if g, ok := s.groups.Get(name); ok {
			s.touchGroup(g)
		}
	}
}

func (s *State) prepared(op *Prepared) error {
	sess, err := s.live(op.SessionId)
	if err != nil {
		return err
	}
	g, err := s.group(op.Group)
	if err != nil {
		return err
	}
	l, err := s.named(WorkloadKey(g.Name, op.Workload), op.Token)
	if err != nil {
		return err
	}
	if l.Group != g.Name || sess.InstanceID == "" || l.Note.To != sess.InstanceID {
		return Errorf(CodeWrongState, "the instance %s is not the successor", sess.InstanceID)
	}
	if l.State != Held {
		return nil // its owner stops already
	}
	if op.Ok {
		s.changeLease(l, Transferring, l.Note, EventLeaseTransferring)
		s.touchGroup(g)
		return nil
	}
	s.hasFailed(g, op.Workload, sess.InstanceID, op.Message)
	s.emit(Event{Type: EventWorkloadFailed, Key: l.Key, Token: l.Token, Who: sess.Identity, Note: noteOf("", "prepare: "+op.Message, "")})
	s.withoutSuccessor(l)
	s.touchGroup(g)
	return nil
}
