package fsm

// Failure says that runs of a workload have failed, or the preparation of a
// successor, and that none ran well since. It never changes.
type Failure struct {
	InstanceID string // of the last one
	Count      int    // in a row
	Error      string // of the last one
	Revision   uint64
	At         int64 // stamp, Unix nanoseconds
}

// LastOwner is who had a workload before the present grant, or before it became
// free. It never changes.
type LastOwner struct {
	*Identity
	Client   bool // NodeID is only the node that the client came in through
	Revision uint64
	At       int64 // stamp, Unix nanoseconds
	Reason   EndReason
}

// Stuck says that the run under a lease was told to stop and doesn't return. It
// never changes.
type Stuck struct {
	Revision uint64
	At       int64  // stamp, Unix nanoseconds
	Detail   string // its stack
}

// runFailed notes that the run under a lease, which is being given up, has failed.
func (s *State) runFailed(l *Lease, message string) {
	s.emit(Event{Type: EventWorkloadFailed, Key: l.Key, Token: l.Token, Who: l.Who, Note: noteOf("", message, "")})
	if l.Group != "" {
		g, _ := s.groups.Get(l.Group)
		s.hasFailed(g, workloadOf(l), l.Who.InstanceID, message)
	}
}

// keeps reports whether notes of a workload are kept. Those of what nobody wants
// now are too, to a bound: who declared it may come back. Those of a worker are
// kept as long as its record.
func (s *State) keeps(g *group, workload string) bool {
	if g.derived != nil {
		_, known := s.workers.Get(workload)
		return known
	}
	if g.states.Len() < 2*MaxWorkloads {
		return true
	}
	_, wanted := g.find(workload)
	return wanted || g.state(workload) != noState
}

func (s *State) hasFailed(g *group, workload, instanceID, message string) {
	if !s.keeps(g, workload) {
		return
	}
	next := g.stateOf(workload)
	count := 1
	if next.failure != nil {
		count += next.failure.Count
	}
	next.failure = &Failure{InstanceID: instanceID, Count: count, Error: message, Revision: s.cluster.revision, At: s.stamp}
	s.setState(g, next)
}

// hadLast notes who had a workload, so that a planner can give it back.
func (s *State) hadLast(g *group, workload string, l *Lease, reason EndReason) {
	if !s.keeps(g, workload) {
		return
	}
	sess, live := s.sessions.Get(l.SessionID)
	if !live {
		sess = s.ending
	}
	next := g.stateOf(workload)
	next.last = &LastOwner{Identity: l.Who, Client: sess.Client, Revision: s.cluster.revision, At: s.stamp, Reason: reason}
	s.setState(g, next)
}

func (s *State) forgetFailure(op *ForgetFailure) error {
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
	if l.SessionID != sess.ID {
		return Errorf(CodeStaleToken, "token %d is not a grant of this session", op.Token)
	}
	if next := g.stateOf(op.Workload); next.failure != nil {
		next.failure = nil
		s.setState(g, next)
		s.touchGroup(g)
	}
	return nil
}

func (s *State) recordStuck(op *RecordStuck) error {
	sess, err := s.live(op.SessionId)
	if err != nil {
		return err
	}
	l, err := s.named(op.Key, op.Token)
	if err != nil {
		return err
	}
	if l.SessionID != sess.ID {
		return Errorf(CodeStaleToken, "token %d is not a grant of this session", op.Token)
	}
	if l.Stuck != nil {
		return nil
	}
	next := *l
	next.Stuck = &Stuck{Revision: s.cluster.revision, At: s.stamp, Detail: op.Detail}
	s.putLease(&next)
	s.emit(Event{Type: EventWorkloadStuck, Key: l.Key, Token: l.Token, Who: l.Who})
	s.touchLease(l)
	if l.Group != "" {
		g, _ := s.groups.Get(l.Group)
		s.touchGroup(g)
	}
	return nil
}
