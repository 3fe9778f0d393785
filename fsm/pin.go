package fsm

// Pin ties a workload to an instance. One to an instance that is gone stays: the
// planner may hold it to be of the same node. It never changes.
type Pin struct {
	Mark
	InstanceID string
	NodeID     string // of that instance
}

// workloadState is what is kept of a workload besides its lease. It never changes.
type workloadState struct {
	key     string
	pin     *Pin
	pause   *Mark
	failure *Failure
	last    *LastOwner
}

func (st *workloadState) marked() bool { return st.pin != nil || st.pause != nil }

func (st *workloadState) empty() bool { return !st.marked() && st.failure == nil && st.last == nil }

// MarkKind tells the marks of a workload apart.
type MarkKind uint8

// Kinds.
const (
	PinMark   MarkKind = 1
	PauseMark MarkKind = 2
)

// WorkloadMark names a pin or pause that runs out. The leader clears it by
// SetPin or SetPause with its revision and the term.
type WorkloadMark struct {
	Group    string
	Workload string
	Kind     MarkKind
	*Mark
}

var noState = &workloadState{}

// state returns what is kept of a workload, never nil.
func (g *group) state(workload string) *workloadState {
	if g.states.Len() > 0 {
		if st, ok := g.states.Get(workload); ok {
			return st
		}
	}
	return noState
}

// setState replaces what is kept of a workload.
func (s *State) setState(g *group, next *workloadState) {
	g = s.ownGroup(g)
	former := g.state(next.key)
	if former.marked() {
		g.marked--
	}
	if next.marked() {
		g.marked++
	}
	if next.empty() {
		g.states.Delete(next.key)
	} else {
		g.states.Set(next.key, next)
	}
}

// stateOf returns a copy of what is kept of a workload, to change and set.
func (g *group) stateOf(workload string) *workloadState {
	next := *g.state(workload)
	next.key = workload
	return &next
}

// sweepStates forgets what was noted of workloads that nobody wants any more,
// pins and pauses apart.
func (s *State) sweepStates(g *group) {
	for _, st := range g.states.Values() {
		if _, wanted := g.find(st.key); wanted || st.failure == nil && st.last == nil {
			continue
		}
		next := g.stateOf(st.key)
		next.failure, next.last = nil, nil
		s.setState(g, next)
	}
}

// roomForMark refuses a mark on what the group doesn't want, and one too many.
func (g *group) roomForMark(st *workloadState) error {
	if _, wanted := g.find(st.key); !wanted {
		return Errorf(CodeNotFound, "the group doesn't want %s", st.key)
	}
	if g.marked >= MaxWorkloads && !st.marked() {
		return Errorf(CodeOverloaded, "the group has %d pinned or paused workloads, no more are taken", g.marked)
	}
	return nil
}

// clears refuses the clearing of another mark than the present one, nil if there is none.
func clears(present *Mark, revision uint64) error {
	if present != nil && revision != 0 && revision != present.Revision {
		return Errorf(CodeWrongState, "the mark was set anew at revision %d", present.Revision)
	}
	return nil
}

// mark makes a mark and tells the leader if it runs out.
func (s *State) mark(g *group, workload string, kind MarkKind, by, reason string, expiresInMs int64) *Mark {
	m := &Mark{Revision: s.cluster.revision, Reason: reason, By: by, At: s.stamp, ExpiresIn: milliseconds(expiresInMs)}
	if m.ExpiresIn > 0 {
		s.outcome.MarkedWorkloads = append(s.outcome.MarkedWorkloads, WorkloadMark{g.Name, workload, kind, m})
	}
	return m
}

func (s *State) setPin(op *SetPin) error {
	if op.MarkedRevision != 0 {
		if err := s.otherTerm(op.Term); err != nil {
			return err
		}
	}
	g, err := s.group(op.Group)
	if err != nil {
		return err
	}
	next := g.stateOf(op.Workload)
	former := next.pin
	if op.InstanceId == "" {
		return s.unpin(g, next, op)
	}
	if err := g.roomForMark(next); err != nil {
		return err
	}
	sess := s.instance(op.InstanceId)
	if sess == nil {
		return Errorf(CodeNotFound, "no live instance %s", op.InstanceId)
	}
	// Pausing it meanwhile is no reason against a pin.
	m, member := g.memberOf(sess)
	switch {
	case !member:
		return Errorf(CodeWrongState, "the instance %s is no member of the group", op.InstanceId)
	case !sess.eligible():
		return Errorf(CodeWrongState, "the instance %s drains or is cordoned", op.InstanceId)
	case !m.Declares(g.specOf(op.Workload)):
		return Errorf(CodeWrongState, "the instance %s doesn't declare %s", op.InstanceId, op.Workload)
	}
	next.pin = &Pin{
		Mark:       *s.mark(g, op.Workload, PinMark, op.By, op.Reason, op.ExpiresInMs),
		InstanceID: sess.InstanceID,
		NodeID:     sess.NodeID,
	}
	s.setState(g, next)
	if former == nil || former.InstanceID != next.pin.InstanceID {
		s.raise(g)
		s.emit(Event{Type: EventWorkloadPinned, Key: WorkloadKey(g.Name, op.Workload), Who: sess.Identity, Note: noteOf(op.By, op.Reason, "")})
	}
	return nil
}

func (s *State) unpin(g *group, next *workloadState, op *SetPin) error {
	if next.pin == nil {
		return nil
	}
	if err := clears(&next.pin.Mark, op.MarkedRevision); err != nil {
		return err
	}
	next.pin = nil
	s.setState(g, next)
	s.raise(g)
	s.emit(Event{Type: EventWorkloadUnpinned, Key: WorkloadKey(g.Name, op.Workload), Note: noteOf(op.By, op.Reason, "")})
	return nil
}

func (s *State) setPause(op *SetPause) error {
	if op.MarkedRevision != 0 {
		if err := s.otherTerm(op.Term); err != nil {
			return err
		}
	}
	g, err := s.group(op.Group)
	if err != nil {
		return err
	}
	next := g.stateOf(op.Workload)
	former := next.pause
	key := WorkloadKey(g.Name, op.Workload)
	if !op.Paused {
		if former == nil {
			return nil
		}
		if err := clears(former, op.MarkedRevision); err != nil {
			return err
		}
		next.pause, next.failure = nil, nil
		s.setState(g, next)
		s.raise(g)
		s.emit(Event{Type: EventWorkloadResumed, Key: key, Note: noteOf(op.By, op.Reason, "")})
		return nil
	}
	if err := g.roomForMark(next); err != nil {
		return err
	}
	next.pause = s.mark(g, op.Workload, PauseMark, op.By, op.Reason, op.ExpiresInMs)
	s.setState(g, next)
	if former == nil {
		s.raise(g)
		s.emit(Event{Type: EventWorkloadPaused, Key: key, Note: noteOf(op.By, op.Reason, "")})
		s.tellKey(key, g, noteOf(ByPause, op.Reason, ""))
	}
	return nil
}
