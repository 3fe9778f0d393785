package fsm

import "iter"

// Group is a group at the revision of a View. What its methods return must not
// be changed.
type Group struct {
	*GroupHead
	group *group
	view  *View
}

// WorkloadStatus says how a workload does.
type WorkloadStatus uint8

// Statuses.
const (
	StatusInactive     WorkloadStatus = 1 // nobody has it
	StatusActive       WorkloadStatus = 2
	StatusTransferring WorkloadStatus = 3 // its owner is asked to stop
	StatusPaused       WorkloadStatus = 4
	StatusStuck        WorkloadStatus = 5 // its run doesn't return
	StatusFailed       WorkloadStatus = 6 // nobody has it, and its last run failed
)

var statusNames = [...]string{"unknown", "inactive", "active", "transferring", "paused", "stuck", "failed"}

// String returns the name that the HTTP contract uses.
func (s WorkloadStatus) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return statusNames[0]
}

// Workload is a wanted workload at the revision of a View.
type Workload struct {
	*Spec
	LeaseKey string
	Status   WorkloadStatus
	Lease    *Lease     // nil = nobody has it
	Pin      *Pin       // nil = not pinned
	Pause    *Mark      // nil = not paused
	Failure  *Failure   // nil = its last run didn't fail
	Last     *LastOwner // nil = nobody had it before
}

// Successor returns the instance that gets the workload next, "" if none is named.
func (w *Workload) Successor() string {
	if w.Lease == nil {
		return ""
	}
	return w.Lease.Note.To
}

// Preparing reports whether a successor is named that has yet to prepare, while
// the owner goes on.
func (w *Workload) Preparing() bool {
	return w.Lease != nil && w.Lease.State == Held && w.Lease.Note.To != ""
}

// Group returns the group of that name.
func (v *View) Group(name string) (*Group, bool) {
	g, ok := v.groups.Get(name)
	if !ok {
		return nil, false
	}
	return &Group{&g.GroupHead, g, v}, true
}

// GroupCount returns how many groups there are.
func (v *View) GroupCount() int { return v.groups.Len() }

// Groups yields the groups in the order of their names.
func (v *View) Groups() iter.Seq[*Group] {
	return func(yield func(*Group) bool) {
		v.groups.Scan(func(_ string, g *group) bool { return yield(&Group{&g.GroupHead, g, v}) })
	}
}

// MemberCount returns how many members the group has.
func (g *Group) MemberCount() int { return g.group.members.Len() }

// Members yields the members with their sessions, in the order in which their
// instances joined the cluster.
func (g *Group) Members() iter.Seq2[*Member, *Session] {
	return func(yield func(*Member, *Session) bool) {
		g.group.members.Scan(func(_ string, m *Member) bool {
			s, _ := g.view.sessions.Get(m.SessionID)
			return yield(m, s)
		})
	}
}

// Member returns the member of that instance.
func (g *Group) Member(instanceID string) (*Member, bool) {
	s, ok := g.view.Instance(instanceID)
	if !ok {
		return nil, false
	}
	return g.group.members.Get(joinOrder(s.Opening))
}

// Embedded reports whether a member can plan: if none can, any node does.
func (g *Group) Embedded() bool { return g.group.planners > 0 }

// Candidates yields those who may plan for the group, in join order: its
// embedded members; where it has members and none is embedded, the nodes.
func (g *Group) Candidates() iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		for s := range g.view.Instances() {
			if g.MayPlan(s) && !yield(s) {
				return
			}
		}
	}
}

// MayPlan reports whether the instance of s is one of the Candidates.
func (g *Group) MayPlan(s *Session) bool { return g.group.mayPlan(s) }

// WantedCount returns how many workloads the group wants.
func (g *Group) WantedCount() int { return g.group.wanted }

// Wanted returns the workload if the group wants it: it is in its own catalog or
// in that of a member. Where they differ, the own one counts, else the newest.
func (g *Group) Wanted(workload string) (*Spec, bool) { return g.group.find(workload) }

// CanRun reports whether the instance may be granted the workload: it is a
// member that declares it and neither drains nor is cordoned.
func (g *Group) CanRun(instanceID, workload string) bool {
	s, ok := g.view.Instance(instanceID)
	if !ok || !s.eligible() {
		return false
	}
	m, ok := g.group.members.Get(joinOrder(s.Opening))
	return ok && m.Declares(g.group.specOf(workload))
}

// Workload returns one wanted workload.
func (g *Group) Workload(key string) (Workload, bool) {
	spec, ok := g.group.find(key)
	if !ok {
		return Workload{}, false
	}
	return g.workload(spec), true
}

// Workloads yields the wanted workloads after the key after, in the order of the keys.
func (g *Group) Workloads(after string) iter.Seq[Workload] {
	return func(yield func(Workload) bool) {
		for spec := range g.group.specs(after) {
			if !yield(g.workload(spec)) {
				return
			}
		}
	}
}

// Successions yields the leases for which the session's instance is the named
// successor of a group, in the order of their keys: those that are Held wait for
// its Prepared.
func (v *View) Successions(sessionID string) iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		s, ok := v.sessions.Get(sessionID)
		if !ok || s.coming == nil {
			return
		}
		s.coming.Scan(func(key string, _ struct{}) bool {
			l, _ := v.leases.Get(key)
			return yield(l)
		})
	}
}

// PendingMarks yields the pins and pauses that run out. It looks at all of them.
func (v *View) PendingMarks() iter.Seq[WorkloadMark] {
	return func(yield func(WorkloadMark) bool) {
		for g := range v.Groups() {
			more := true
			g.group.states.Scan(func(_ string, st *workloadState) bool {
				if st.pin != nil && st.pin.ExpiresIn > 0 {
					more = yield(WorkloadMark{g.Name, st.key, PinMark, &st.pin.Mark})
				}
				if more && st.pause != nil && st.pause.ExpiresIn > 0 {
					more = yield(WorkloadMark{g.Name, st.key, PauseMark, st.pause})
				}
				return more
			})
			if !more {
				return
			}
		}
	}
}

// Catalog returns the catalog of that hash if it is known and whole.
func (v *View) Catalog(hash string) (*Catalog, bool) {
	e, ok := v.catalogs.Get(hash)
	if !ok || e.catalog == nil {
		return nil, false
	}
	return e.catalog, true
}

func (g *Group) workload(spec *Spec) Workload {
	w := Workload{Spec: spec, LeaseKey: WorkloadKey(g.Name, spec.Key)}
	w.Lease, _ = g.view.leases.Get(w.LeaseKey)
	if st, ok := g.group.states.Get(spec.Key); ok {
		w.Pin, w.Pause, w.Failure, w.Last = st.pin, st.pause, st.failure, st.last
	}
	w.Status = w.status()
	return w
}

func (w *Workload) status() WorkloadStatus {
	switch l := w.Lease; {
	case l == nil && w.Pause != nil:
		return StatusPaused
	case l == nil && w.Failure != nil:
		return StatusFailed
	case l == nil || l.State == Barred:
		return StatusInactive
	case l.Stuck != nil:
		return StatusStuck
	case l.State == Held:
		return StatusActive
	}
	return StatusTransferring
}
