package fsm

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// The records of groups and jobs in a snapshot, and how they are read.

const (
	recCatalog = 20
	recGroup   = 21 // with its members and workloads between
	recJob     = 24
	recWorker  = 25
)

func (v *View) writeGroups(put func(*fsmpb.Record)) {
	v.catalogs.Scan(func(_ string, e *catalogEntry) bool {
		for i, p := range e.parts {
			if p != nil {
				put(&fsmpb.Record{Record: &fsmpb.Record_Catalog{Catalog: e.record(i, p)}})
			}
		}
		return true
	})
	v.groups.Scan(func(_ string, g *group) bool {
		put(&fsmpb.Record{Record: &fsmpb.Record_Group{Group: g.record()}})
		g.members.Scan(func(_ string, m *Member) bool {
			put(&fsmpb.Record{Record: &fsmpb.Record_Member{Member: m.record()}})
			return true
		})
		g.states.Scan(func(_ string, st *workloadState) bool {
			put(&fsmpb.Record{Record: &fsmpb.Record_Workload{Workload: st.record()}})
			return true
		})
		return true
	})
	v.jobs.Scan(func(_ string, j *Job) bool {
		put(&fsmpb.Record{Record: &fsmpb.Record_Job{Job: j.record()}})
		return true
	})
	v.workers.Scan(func(_ string, w *Worker) bool {
		put(&fsmpb.Record{Record: &fsmpb.Record_Worker{Worker: w.record()}})
		return true
	})
}

func (e *catalogEntry) record(part int, p *catalogPart) *fsmpb.CatalogRecord {
	op := &PutCatalog{Hash: e.hash, Part: uint32(part), Parts: uint32(len(e.parts))}
	for i := range p.specs {
		op.Workloads = append(op.Workloads, p.specs[i].wire())
	}
	return &fsmpb.CatalogRecord{
		Put:          op,
		MadeRevision: e.made.Revision,
		MadePosition: e.made.Position,
		IdleRevision: e.idle.Revision,
		IdlePosition: e.idle.Position,
	}
}

func (s Settings) wire() *GroupSettings {
	return &GroupSettings{Assigner: s.Assigner, Rebalance: s.Rebalance, MaxMoves: uint32(s.MaxMoves)}
}

func (g *group) record() *fsmpb.GroupRecord {
	return &fsmpb.GroupRecord{
		Name:              g.Name,
		Settings:          g.Settings.wire(),
		CatalogHash:       g.CatalogHash,
		Put:               g.Put,
		By:                g.By,
		MadeRevision:      g.MadeRevision,
		UpdatedRevision:   g.UpdatedRevision,
		UpdatedAt:         g.UpdatedAt,
		Inputs:            g.Inputs,
		PlannedInputs:     g.PlannedInputs,
		PlannedRevision:   g.PlannedRevision,
		PlannedAt:         g.PlannedAt,
		PlannerInstanceId: g.Planner.InstanceID,
		PlannerNodeId:     g.Planner.NodeID,
		PlannerName:       g.Planner.Name,
	}
}

func (l *loader) headOf(r *fsmpb.GroupRecord) GroupHead {
	return GroupHead{
		Name:            r.Name,
		Settings:        settingsOf(r.Settings),
		CatalogHash:     r.CatalogHash,
		Put:             r.Put,
		By:              r.By,
		MadeRevision:    r.MadeRevision,
		UpdatedRevision: r.UpdatedRevision,
		UpdatedAt:       r.UpdatedAt,
		Inputs:          r.Inputs,
		PlannedInputs:   r.PlannedInputs,
		PlannedRevision: r.PlannedRevision,
		PlannedAt:       r.PlannedAt,
		Planner:         l.identity(Identity{InstanceID: r.PlannerInstanceId, NodeID: r.PlannerNodeId, Name: r.PlannerName}),
	}
}

func (m *Member) record() *fsmpb.MemberRecord {
	return &fsmpb.MemberRecord{
		Join: &JoinGroup{
			SessionId:   m.SessionID,
			CatalogHash: m.CatalogHash,
			Keys:        m.Keys,
			All:         m.All,
			Runtimes:    m.Runtimes,
			Capacity:    m.Capacity,
			Embedded:    m.Embedded,
			Prepares:    m.Prepares,
		},
		JoinedRevision: m.JoinedRevision,
		JoinedAt:       m.JoinedAt,
	}
}

func (st *workloadState) record() *fsmpb.WorkloadRecord {
	r := &fsmpb.WorkloadRecord{Key: st.key, Pause: st.pause.record()}
	if st.pin != nil {
		r.Pin, r.PinInstanceId, r.PinNodeId = st.pin.Mark.record(), st.pin.InstanceID, st.pin.NodeID
	}
	if f := st.failure; f != nil {
		r.Failure = &fsmpb.FailureRecord{InstanceId: f.InstanceID, Count: uint32(f.Count), Error: f.Error, Revision: f.Revision, At: f.At}
	}
	if o := st.last; o != nil {
		r.Last = &fsmpb.LastOwnerRecord{
			InstanceId: o.InstanceID, NodeId: o.NodeID, Name: o.Name, Client: o.Client,
			Revision: o.Revision, At: o.At, Reason: fsmpb.EndReason(o.Reason),
		}
	}
	return r
}

func (l *loader) stateOf(r *fsmpb.WorkloadRecord) *workloadState {
	st := &workloadState{key: l.key(r.Key), pause: markOf(r.Pause)}
	if r.Pin != nil {
		st.pin = &Pin{Mark: *markOf(r.Pin), InstanceID: r.PinInstanceId, NodeID: r.PinNodeId}
	}
	if f := r.Failure; f != nil {
		st.failure = &Failure{InstanceID: f.InstanceId, Count: int(f.Count), Error: f.Error, Revision: f.Revision, At: f.At}
	}
	if o := r.Last; o != nil {
		st.last = &LastOwner{
			Identity: l.identity(Identity{InstanceID: o.InstanceId, NodeID: o.NodeId, Name: o.Name}),
			Client:   o.Client, Revision: o.Revision, At: o.At, Reason: EndReason(o.Reason),
		}
	}
	return st
}

func (j *Job) record() *fsmpb.JobRecord {
	r := &fsmpb.JobRecord{
		Key:          j.Key,
		Total:        j.Total,
		InstanceId:   j.Owner.InstanceID,
		NodeId:       j.Owner.NodeID,
		Name:         j.Owner.Name,
		LastAt:       j.LastAt,
		LastRevision: j.LastRevision,
		LastPosition: j.position,
	}
	for i := range j.recent {
		run := &j.recent[i]
		r.Recent = append(r.Recent, &fsmpb.JobRunRecord{
			At: run.At, EndedAt: run.EndedAt, Token: run.Token, LeaseKey: run.LeaseKey,
			InstanceId: run.Who.InstanceID, NodeId: run.Who.NodeID, Name: run.Who.Name,
			Outcome: run.Outcome, Detail: run.Detail,
		})
	}
	return r
}

func (s *Stuck) record() *fsmpb.StuckRecord {
	if s == nil {
		return nil
	}
	return &fsmpb.StuckRecord{Revision: s.Revision, At: s.At, Detail: s.Detail}
}

func stuckOf(r *fsmpb.StuckRecord) *Stuck {
	if r == nil {
		return nil
	}
	return &Stuck{Revision: r.Revision, At: r.At, Detail: r.Detail}
}

func (l *loader) addGroupRecord(rec *fsmpb.Record) error {
	switch r := rec.Record.(type) {
	case *fsmpb.Record_Catalog:
		return l.catalog(r.Catalog)
	case *fsmpb.Record_Group:
		return l.groupRecord(r.Group)
	case *fsmpb.Record_Member:
		return l.member(r.Member)
	case *fsmpb.Record_Workload:
		return l.workload(r.Workload)
	case *fsmpb.Record_Job:
		return l.job(r.Job)
	case *fsmpb.Record_Worker:
		return l.worker(r.Worker)
	}
	return fmt.Errorf("unknown record %T", rec.Record)
}

func (l *loader) catalog(r *fsmpb.CatalogRecord) error {
	op := r.Put
	if err := l.in(recCatalog, fmt.Sprintf("%s %08d", op.GetHash(), op.GetPart())); err != nil {
		return err
	}
	if err := checkPutCatalog(op); err != nil {
		return err
	}
	made, idle := EventID{r.MadeRevision, r.MadePosition}, EventID{r.IdleRevision, r.IdlePosition}
	e, ok := l.s.catalogs.Get(op.Hash)
	if !ok {
		e = &catalogEntry{hash: op.Hash, parts: make([]*catalogPart, op.Parts), made: made, idle: idle}
		l.s.catalogs.Set(op.Hash, e)
	}
	if len(e.parts) != int(op.Parts) || e.made != made || e.idle != idle || made == (EventID{}) {
		return errors.New("the parts of a catalog contradict each other")
	}
	e.parts[op.Part] = &catalogPart{specs: specsOf(op.Workloads), size: partSize(op.Workloads)}
	l.s.catalogBytes += e.parts[op.Part].size
	return e.assemble()
}

func (l *loader) groupRecord(r *fsmpb.GroupRecord) error {
	if err := l.in(recGroup, r.Name); err != nil {
		return err
	}
	if err := first(groupName(r.Name), checkSettings(r.Settings)); err != nil {
		return err
	}
	catalog, err := l.s.wholeCatalog(r.CatalogHash)
	if err != nil {
		return err
	}
	if l.s.groups.Len() >= MaxGroups {
		return errors.New("too many groups")
	}
	g := l.s.makeGroup(r.Name)
	if g.derived != nil && (catalog != nil || r.Put) {
		return errors.New("the group of the workers has a catalog")
	}
	g.GroupHead = l.headOf(r)
	g.sources = g.sourcesWith(nil, 0, true, catalog, 1)
	l.countRef(catalog)
	l.group, l.groupPart = g, ""
	return nil
}

func (l *loader) countRef(c *Catalog) {
	if c != nil {
		e, _ := l.s.catalogs.Get(c.Hash)
		e.refs++
	}
}

func (l *loader) member(r *fsmpb.MemberRecord) error {
	if l.last != recGroup {
		return errOrder
	}
	sess, ok := l.s.sessions.Get(r.Join.GetSessionId())
	if !ok || sess.InstanceID == "" {
		return errSession
	}
	order := "1 " + joinOrder(sess.Opening)
	if order <= l.groupPart {
		return errOrder
	}
	l.groupPart = order
	catalog, err := l.s.wholeCatalog(r.Join.CatalogHash)
	if err != nil {
		return err
	}
	m := memberOf(r.Join, catalog)
	m.SessionID, m.JoinedRevision, m.JoinedAt = sess.ID, r.JoinedRevision, r.JoinedAt
	g := l.group
	if (g.derived != nil) != (len(m.Runtimes) > 0) {
		return errors.New("runtimes are what members of the group of the workers declare, and nobody else")
	}
	g.members.Set(joinOrder(sess.Opening), m)
	g.planners += embedded(m)
	g.sources = g.sourcesWith(nil, 0, false, catalog, 1)
	l.countRef(catalog)
	l.s.memberKeys += m.listed()
	sess.groups = append(sess.groups, g.Name) // groups come in order
	return nil
}

func (l *loader) workload(r *fsmpb.WorkloadRecord) error {
	if l.last != recGroup {
		return errOrder
	}
	order := "2 " + r.Key
	if order <= l.groupPart {
		return errOrder
	}
	l.groupPart = order
	if r.Last != nil && !knownReason(r.Last.Reason) {
		return &VersionError{What: fmt.Sprintf("end reason %d", r.Last.Reason)}
	}
	st := l.stateOf(r)
	if st.empty() {
		return errors.New("a workload of which nothing is kept")
	}
	l.s.setState(l.group, st)
	return nil
}

func (l *loader) job(r *fsmpb.JobRecord) error {
	if err := l.in(recJob, r.Key); err != nil {
		return err
	}
	j := &Job{
		Key:          r.Key,
		Total:        r.Total,
		Owner:        l.identity(Identity{InstanceID: r.InstanceId, NodeID: r.NodeId, Name: r.Name}),
		LastAt:       r.LastAt,
		LastRevision: r.LastRevision,
		position:     r.LastPosition,
	}
	if _, taken := l.s.byAge.Get(j.age()); taken || j.LastRevision == 0 || len(r.Recent) > MaxJobRuns {
		return errOrder
	}
	for _, run := range r.Recent {
		j.recent = append(j.recent, JobRun{
			At: run.At, EndedAt: run.EndedAt, Token: run.Token, LeaseKey: l.key(run.LeaseKey),
			Who:     l.identity(Identity{InstanceID: run.InstanceId, NodeID: run.NodeId, Name: run.Name}),
			Outcome: run.Outcome, Detail: run.Detail,
		})
		if run.Outcome == OutcomeStarted {
			l.s.isOpen(run.LeaseKey, j.Key)
		}
	}
	l.s.byAge.Set(j.age(), j.Key)
	l.s.jobs.Set(j.Key, j)
	return nil
}

// groupLease checks a lease that a group has granted, and notes its successor.
func (l *loader) groupLease(lease *Lease) error {
	if lease.Group == "" {
		return nil
	}
	if lease.State == Barred || !strings.HasPrefix(lease.Key, lease.Group+"/") {
		return fmt.Errorf("lease %q is of no workload of the group %q", lease.Key, lease.Group)
	}
	l.grouped = append(l.grouped, lease)
	if lease.Note.To == "" {
		return nil
	}
	to := l.s.instance(lease.Note.To)
	if to == nil {
		return fmt.Errorf("the successor %s is not live", lease.Note.To)
	}
	if to.coming == nil {
		to.coming = newMap[struct{}]()
	}
	to.coming.Set(lease.Key, struct{}{})
	return nil
}

// finishGroups counts what is derived, once all is read.
func (l *loader) finishGroups() (err error) {
	s := l.s
	for _, lease := range l.grouped {
		if _, ok := s.groups.Get(lease.Group); !ok {
			return fmt.Errorf("lease %q is of a group that is not there", lease.Key)
		}
	}
	s.groups.Scan(func(_ string, g *group) bool {
		if err = fits(g.sources); err == nil {
			g.wanted = g.count()
		}
		return err == nil
	})
	var idle []*catalogEntry
	s.catalogs.Scan(func(_ string, e *catalogEntry) bool {
		if (e.refs == 0) != (e.idle != EventID{}) {
			err = fmt.Errorf("catalog %s has %d referrers and is idle since %v", e.hash, e.refs, e.idle)
		} else if e.refs == 0 {
			idle = append(idle, e)
		}
		return err == nil
	})
	if len(idle) > MaxIdleCatalogs {
		return fmt.Errorf("%d catalogs are idle", len(idle))
	}
	slices.SortFunc(idle, func(a, b *catalogEntry) int { return strings.Compare(placeOrder(a.idle), placeOrder(b.idle)) })
	for _, e := range idle {
		s.idle = append(s.idle, e.hash)
	}
	return err
}
