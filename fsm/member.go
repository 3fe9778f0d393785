package fsm

import "slices"

// Member is an instance that joined a group. It never changes.
type Member struct {
	SessionID      string   // a secret
	CatalogHash    string   // of the catalog that it declares; "" = Keys or All say what it runs
	Keys           []string // sorted; nil = one of the others says it
	All            bool     // it runs whatever the group wants
	Runtimes       []string // sorted; it runs the workers that need these, see Worker.Needs
	Capacity       float64  // in weights; 0 = no limit
	Embedded       bool     // a coordinator inside its process joined it: it can plan
	Prepares       bool     // it wants to prepare before it takes over
	JoinedRevision uint64   // of the entry by which it joined
	JoinedAt       int64    // stamp, Unix nanoseconds

	catalog *Catalog
}

// Declares reports whether the member can run a workload, if the group wants it.
func (m *Member) Declares(w *Spec) bool {
	switch {
	case m.All:
		return true
	case m.Runtimes != nil:
		return m.Provides(w.needs)
	case m.catalog != nil:
		_, ok := m.catalog.Find(w.Key)
		return ok
	}
	_, ok := slices.BinarySearch(m.Keys, w.Key)
	return ok
}

// Provides reports whether the member has what Worker.Needs names.
func (m *Member) Provides(runtime string) bool {
	_, ok := slices.BinarySearch(m.Runtimes, runtime)
	return ok
}

// saysTheSame reports whether two joinings declare the same.
func (m *Member) saysTheSame(o *Member) bool {
	return m.CatalogHash == o.CatalogHash && slices.Equal(m.Keys, o.Keys) && m.All == o.All && slices.Equal(m.Runtimes, o.Runtimes) &&
		m.Capacity == o.Capacity && m.Embedded == o.Embedded && m.Prepares == o.Prepares
}

func memberOf(op *JoinGroup, catalog *Catalog) *Member {
	return &Member{
		SessionID:   op.SessionId,
		CatalogHash: op.CatalogHash,
		Keys:        op.Keys,
		All:         op.All,
		Runtimes:    op.Runtimes,
		Capacity:    op.Capacity,
		Embedded:    op.Embedded,
		Prepares:    op.Prepares,
		catalog:     catalog,
	}
}

// noMember stands for the former declaration of one who joins.
var noMember = &Member{}

func (s *State) joinGroup(op *JoinGroup) error {
	sess, err := s.live(op.SessionId)
	if err != nil {
		return err
	}
	if sess.InstanceID == "" {
		return Errorf(CodeWrongState, "the session has no instance: open one that has")
	}
	catalog, err := s.wholeCatalog(op.CatalogHash)
	if err != nil {
		return err
	}
	g, known := s.groups.Get(op.Group)
	if !known && op.Settings == nil && len(op.Runtimes) == 0 {
		return Errorf(CodeNotFound, "no group %s: put it first", op.Group)
	}
	next, former, rejoins := memberOf(op, catalog), noMember, false
	next.SessionID = sess.ID
	if known {
		if former, rejoins = g.memberOf(sess); !rejoins {
			former = noMember
		}
		if !rejoins && g.members.Len() >= MaxMembers {
			return Errorf(CodeOverloaded, "the group has %d members, no more are taken", g.members.Len())
		}
		if err := fits(g.sourcesWith(former.catalog, -1, false, catalog, 1)); err != nil {
			return err
		}
	}
	if s.memberKeys-former.listed()+next.listed() > MaxMemberKeys {
		return Errorf(CodeOverloaded, "members declare %d keys one by one, no more are taken: declare all, or a catalog", s.memberKeys)
	}
	resets := op.Settings != nil && (!known || !g.Put && g.Settings != settingsOf(op.Settings))
	if rejoins && former.saysTheSame(next) && !resets {
		return nil
	}
	if !known {
		if err := s.roomForGroup(); err != nil {
			return err
		}
	}
	s.refer(catalog, 1)
	if !known {
		g = s.makeGroup(op.Group)
	}
	g = s.raise(g)
	if resets {
		g.Settings = settingsOf(op.Settings)
	}
	what := "joined"
	if rejoins {
		what = "declared"
	}
	s.emit(Event{Type: EventGroupUpdated, Key: g.Name, Who: sess.Identity, Note: noteOf("", what, "")})
	s.putMember(g, s.own(sess), former, next)
	return nil
}

// putMember sets what a session declares; former is what it declared before.
// What it has and no longer declares, it is asked to stop.
func (s *State) putMember(g *group, sess *Session, former, next *Member) {
	next.JoinedRevision, next.JoinedAt = s.cluster.revision, s.stamp
	if former != noMember {
		next.JoinedRevision, next.JoinedAt = former.JoinedRevision, former.JoinedAt
	}
	g.members.Set(joinOrder(sess.Opening), next)
	g.planners += embedded(next) - embedded(former)
	s.memberKeys += next.listed() - former.listed()
	s.setSources(g, g.sourcesWith(former.catalog, -1, false, next.catalog, 1))
	s.refer(former.catalog, -1)
	if former == noMember {
		i, _ := slices.BinarySearch(sess.groups, g.Name)
		sess.groups = slices.Insert(slices.Clone(sess.groups), i, g.Name)
		return
	}
	for _, l := range s.groupLeases(g, sess) {
		if !next.Declares(g.specOf(workloadOf(l))) {
			s.tell(l, noteOf(ByGroup, "undeclared", ""))
		}
	}
}

// listed counts what the member declares one by one.
func (m *Member) listed() int { return len(m.Keys) + len(m.Runtimes) }

func embedded(m *Member) int {
	if m.Embedded {
		return 1
	}
	return 0
}

// groupLeases returns the leases of a group that a session has.
func (s *State) groupLeases(g *group, sess *Session) (out []*Lease) {
	if sess.leases == nil {
		return nil
	}
	prefix := WorkloadKey(g.Name, "")
	sess.leases.Ascend(prefix, func(key string, l *Lease) bool {
		if len(key) < len(prefix) || key[:len(prefix)] != prefix {
			return false
		}
		if l.Group == g.Name {
			out = append(out, l)
		}
		return true
	})
	return out
}

// workloadOf returns the workload of a lease that a group granted.
func workloadOf(l *Lease) string { return l.Key[len(l.Group)+1:] }

func (s *State) leaveGroup(op *LeaveGroup) error {
	sess, err := s.live(op.SessionId)
	if err != nil {
		return err
	}
	g, err := s.group(op.Group)
	if err != nil {
		return err
	}
	if _, member := g.memberOf(sess); member {
		s.leave(g, sess)
	}
	return nil
}

// leave takes a member that lives on out of a group, and asks it to stop what
// it has of it.
func (s *State) leave(g *group, sess *Session) {
	sess = s.own(sess)
	sess.groups = slices.DeleteFunc(slices.Clone(sess.groups), func(name string) bool { return name == g.Name })
	s.takeOut(g, sess)
	for _, l := range s.groupLeases(g, sess) {
		s.tell(l, noteOf(ByGroup, "left", ""))
	}
	s.notComing(sess, g.Name)
}

// takeOut takes a member out of a group.
func (s *State) takeOut(g *group, sess *Session) {
	g = s.raise(g)
	m, _ := g.members.Delete(joinOrder(sess.Opening))
	g.planners -= embedded(m)
	s.memberKeys -= m.listed()
	s.refer(m.catalog, -1)
	s.emit(Event{Type: EventGroupUpdated, Key: g.Name, Who: sess.Identity, Note: noteOf("", "left", "")})
	s.setSources(g, g.sourcesWith(m.catalog, -1, false, nil, 0))
}

// leaveAll takes a session that has ended out of its groups, and as a successor
// out of their leases.
func (s *State) leaveAll(sess *Session) {
	for _, name := range sess.groups {
		g, _ := s.groups.Get(name)
		s.takeOut(g, sess)
	}
	s.notComing(sess, "")
}

// notComing takes back that a session's instance was named a successor, in one
// group or in all ("").
func (s *State) notComing(sess *Session, group string) {
	if sess.coming == nil {
		return
	}
	for _, key := range sess.coming.Keys() {
		l, _ := s.leases.Get(key)
		if l.Note.To != sess.InstanceID || group != "" && l.Group != group {
			continue // of a session that has ended, the keys of others may be old
		}
		if _, live := s.sessions.Get(l.SessionID); live {
			s.withoutSuccessor(l)
		}
	}
}

// withoutSuccessor takes back that a lease of a group has a named successor.
// Its owner keeps it, unless it was asked to stop already.
func (s *State) withoutSuccessor(l *Lease) {
	note := noteOf(l.Note.By, l.Note.Reason, "")
	switch l.State {
	case Held:
		s.changeLease(l, Held, noNote, EventWorkloadKept)
	case Transferring:
		s.changeLease(l, Transferring, note, EventLeaseTransferring)
	case Revoked:
		// Nothing that its holder acts on.
		next := *l
		next.Note = note
		s.nameSuccessor(l, "")
		s.putLease(&next)
	}
}
