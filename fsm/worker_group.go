package fsm

import "slices"

// The group of the workers follows their records: each that is to run is one of
// its workloads. It wants nothing from catalogs.

// putWorker replaces the record of a worker; former is nil for a new one.
func (s *State) putWorker(former, next *Worker, r *Result) {
	next.Etag++
	next.ChangedAt, next.Revision = s.stamp, s.cluster.revision
	if next.Wanted() && (former == nil || !former.Wanted()) {
		next.StartedAfter = s.lastToken()
	}
	s.workers.Set(next.ID, next)
	if next.State == WorkerLoading {
		s.loading.Set(next.ID, next)
	} else {
		s.loading.Delete(next.ID)
	}
	s.workerBytes += next.size() - former.size()
	s.touchWorker(next)
	s.want(former, next)
	r.Total = next.Etag
}

func (s *State) dropWorker(w *Worker) {
	s.workers.Delete(w.ID)
	s.loading.Delete(w.ID)
	s.workerBytes -= w.size()
	s.touchWorker(w)
	s.want(w, nil)
	g, _ := s.groups.Get(WorkersGroup)
	if g.state(w.ID) != noState {
		s.setState(g, &workloadState{key: w.ID})
	}
}

func (s *State) touchWorker(w *Worker) {
	s.touch(topic{kind: topicWorker, name: w.ID})
	s.touch(topic{kind: topicWorkers})
}

// roomForBytes refuses a record that would make all of them together too large.
func (s *State) roomForBytes(former, next *Worker) error {
	if n := next.size() - former.size(); n > 0 && s.workerBytes+n > maxAllWorkers {
		return Errorf(CodeOverloaded, "the workers have %d bytes, no more are taken", s.workerBytes)
	}
	return nil
}

// want keeps the group in step with a record that changed, is new or is gone.
func (s *State) want(former, next *Worker) {
	was, is := former != nil && former.Wanted(), next != nil && next.Wanted()
	if !was && !is {
		return
	}
	g, _ := s.groups.Get(WorkersGroup)
	if !is {
		g = s.raise(g)
		g.derived.Delete(former.ID)
		g.wanted = g.derived.Len()
		s.tellKey(WorkerKey(former.ID), g, noteOf(ByGroup, "unwanted", ""))
		return
	}
	spec := next.spec()
	if was {
		present, _ := g.derived.Get(next.ID)
		if present.needs == spec.needs && slices.Equal(present.Labels, spec.Labels) {
			return
		}
	}
	g = s.raise(g)
	g.derived.Set(next.ID, spec)
	g.wanted = g.derived.Len()
	s.tellUndeclared(g, spec)
}

// tellUndeclared asks the owner of a worker to stop it if it doesn't provide
// what the worker needs now.
func (s *State) tellUndeclared(g *group, spec *Spec) {
	l, ok := s.leases.Get(WorkloadKey(g.Name, spec.Key))
	if !ok || l.Group != g.Name {
		return
	}
	sess, live := s.sessions.Get(l.SessionID)
	if !live {
		return
	}
	if m, member := g.memberOf(sess); member && !m.Declares(spec) {
		s.tell(l, noteOf(ByGroup, "undeclared", ""))
	}
}

// forgetRun clears what was noted of failed runs: what runs next is begun anew.
func (s *State) forgetRun(id string) {
	g, _ := s.groups.Get(WorkersGroup)
	if next := g.stateOf(id); next.failure != nil {
		next.failure = nil
		s.setState(g, next)
	}
}

// reserveWorkers makes a group that had the name before it was reserved the
// state's own: it wants nothing any more, and its members leave.
func (s *State) reserveWorkers() {
	g, known := s.groups.Get(WorkersGroup)
	if !known {
		return
	}
	g = s.raise(g)
	own := g.own()
	g.Put, g.By, g.CatalogHash, g.Settings = false, "", "", settingsOf(nil)
	s.emit(Event{Type: EventGroupUpdated, Key: g.Name, Note: noteOf("", "reserved", "")})
	s.setSources(g, g.sourcesWith(own, -1, true, nil, 0))
	s.refer(own, -1)
	for _, m := range g.members.Values() {
		sess, _ := s.sessions.Get(m.SessionID)
		s.leave(g, sess)
	}
	g = s.ownGroup(g)
	for _, key := range g.states.Keys() {
		s.setState(g, &workloadState{key: key})
	}
	g.derived = newMap[*Spec]()
}
