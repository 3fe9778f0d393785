package fsm

import (
	"cmp"
	"iter"
	"slices"
	"sort"

	"github.com/tidwall/btree"
)

// Assigners and rebalancing modes of a group.
const (
	AssignSticky   = "sticky" // the default
	AssignBalanced = "balanced"
	AssignPrimary  = "primary"
	AssignCustom   = "custom" // a function of the embedding program

	RebalanceImmediate = "immediate" // the default
	RebalanceGraceful  = "graceful"
)

// Who has an owner stop where no operator did: Note.By of its lease.
const (
	ByPlanner = "planner" // a plan
	ByPause   = "pause"   // the workload is paused; Note.Reason says why
	ByGroup   = "group"   // nobody wants it any more, or its owner doesn't declare it
)

// Settings of a group.
type Settings struct {
	Assigner  string
	Rebalance string
	MaxMoves  int // at a time; 0 = 10 % of the group, at least 1
}

func settingsOf(s *GroupSettings) Settings {
	return Settings{
		Assigner:  cmp.Or(s.GetAssigner(), AssignSticky),
		Rebalance: cmp.Or(s.GetRebalance(), RebalanceImmediate),
		MaxMoves:  int(s.GetMaxMoves()),
	}
}

// GroupHead is what is known of a group as a whole.
type GroupHead struct {
	Name            string
	Settings        Settings
	CatalogHash     string // of its own catalog, "" = it has none
	Put             bool   // by PutGroup, not only by the joining of a member
	By              string // author of the last PutGroup
	MadeRevision    uint64
	UpdatedRevision uint64 // of the last change of inputs
	UpdatedAt       int64  // stamp, Unix nanoseconds
	// Inputs is raised by every change of members, catalogs, settings, pins and
	// pauses, and by drains and cordons of members. A plan names it.
	Inputs          uint64
	PlannedInputs   uint64 // of the last whole plan; 0 = none yet
	PlannedRevision uint64
	PlannedAt       int64     // stamp
	Planner         *Identity // who made it, never nil
}

// group is a group in the state. As a Session, it is copied once per epoch.
type group struct {
	GroupHead
	holder   string                             // of its leases
	members  *btree.Map[string, *Member]        // by the join order of their instances
	states   *btree.Map[string, *workloadState] // by workload, only of those that have one
	sources  []*source                          // the own catalog first, then the newest; replaced on change
	derived  *btree.Map[string, *Spec]          // of the workers that are to run; nil in any other group, which has sources
	wanted   int                                // workloads in sources or derived
	marked   int                                // states with a pin or pause
	planners int                                // members that are embedded
	epoch    uint64
}

// source is a catalog that a group wants its workloads from. It never changes.
type source struct {
	*Catalog
	members int  // how many declare it
	put     bool // it is the group's own
}

// GroupHolder is the holder of the leases that the group grants.
func GroupHolder(group string) string { return "group:" + group }

// WorkloadKey is the key of the lease of a group's workload.
func WorkloadKey(group, workload string) string { return group + "/" + workload }

// PlannerKey is the key of the lease whose holder plans for the group.
func PlannerKey(group string) string { return "miw/group/" + group + "/planner" }

// sharding is the tables of groups.
type sharding struct {
	groups       btree.Map[string, *group]
	catalogs     btree.Map[string, *catalogEntry]
	idle         []string // hashes of catalogs that nobody refers to, oldest first; replaced on change
	catalogBytes int      // of all catalogs
	memberKeys   int      // of all members
}

// copyFor gives v its own copy; what is empty needs none.
func (t *sharding) copyFor(v *sharding) {
	if t.catalogs.Len() > 0 {
		v.catalogs = *t.catalogs.IsoCopy()
	}
	if t.groups.Len() > 0 {
		v.groups = *t.groups.IsoCopy()
	}
}

// find returns a wanted workload.
func (g *group) find(workload string) (*Spec, bool) {
	if g.derived != nil {
		return g.derived.Get(workload)
	}
	for _, src := range g.sources {
		if spec, ok := src.Find(workload); ok {
			return spec, true
		}
	}
	return nil, false
}

// specOf returns a workload, with no more than its key if nobody wants it.
func (g *group) specOf(workload string) *Spec {
	if spec, wanted := g.find(workload); wanted {
		return spec
	}
	return &Spec{Key: workload}
}

// specs yields the wanted workloads after the key after, in the order of their keys.
func (g *group) specs(after string) iter.Seq[*Spec] {
	if g.derived == nil {
		return specs(g.sources, after)
	}
	return func(yield func(*Spec) bool) {
		g.derived.Ascend(after, func(key string, spec *Spec) bool {
			return key == after && after != "" || yield(spec)
		})
	}
}

// count counts the wanted workloads.
func (g *group) count() int {
	if g.derived != nil {
		return g.derived.Len()
	}
	return countSpecs(g.sources)
}

// specs yields the workloads of sources after the key after, each once, in the
// order of their keys. Of a key that several have, the first source counts.
func specs(sources []*source, after string) iter.Seq[*Spec] {
	return func(yield func(*Spec) bool) {
		next := make([]int, len(sources))
		for i, src := range sources {
			if after != "" {
				next[i] = sort.Search(len(src.specs), func(j int) bool { return src.specs[j].Key > after })
			}
		}
		for {
			var least *Spec
			for i, src := range sources {
				if next[i] < len(src.specs) && (least == nil || src.specs[next[i]].Key < least.Key) {
					least = &src.specs[next[i]]
				}
			}
			if least == nil || !yield(least) {
				return
			}
			for i, src := range sources {
				if next[i] < len(src.specs) && src.specs[next[i]].Key == least.Key {
					next[i]++
				}
			}
		}
	}
}

// mayPlan reports whether the instance of a session may plan for the group.
func (g *group) mayPlan(sess *Session) bool {
	if g.planners == 0 {
		return !sess.Client && g.members.Len() > 0 && g.Settings.Assigner != AssignCustom
	}
	m, ok := g.memberOf(sess)
	return ok && m.Embedded
}

func (g *group) memberOf(sess *Session) (*Member, bool) {
	return g.members.Get(joinOrder(sess.Opening))
}

func (s *State) group(name string) (*group, error) {
	g, ok := s.groups.Get(name)
	if !ok {
		return nil, Errorf(CodeNotFound, "no group %s", name)
	}
	return g, nil
}

// ownGroup returns the group as a copy that no View sees, made once per epoch.
// Its caller may have an older one.
func (s *State) ownGroup(g *group) *group {
	g, _ = s.groups.Get(g.Name)
	if g.epoch == s.epoch {
		return g
	}
	c := *g
	c.epoch = s.epoch
	c.members, c.states = c.members.IsoCopy(), c.states.IsoCopy()
	if c.derived != nil {
		c.derived = c.derived.IsoCopy()
	}
	s.groups.Set(c.Name, &c)
	return &c
}

func (s *State) touchGroup(g *group) {
	s.touch(topic{kind: topicGroup, name: g.Name})
	s.touch(topic{kind: topicGroups})
}

// raise notes that the inputs of the group's plan have changed.
func (s *State) raise(g *group) *group {
	g = s.ownGroup(g)
	g.Inputs++
	g.UpdatedRevision, g.UpdatedAt = s.cluster.revision, s.stamp
	s.touchGroup(g)
	return g
}

// raiseFor raises the inputs of all groups of a session.
func (s *State) raiseFor(sess *Session) {
	for _, name := range sess.groups {
		g, _ := s.groups.Get(name)
		s.raise(g)
	}
}

func (s *State) putGroup(op *PutGroup) error {
	catalog, err := s.wholeCatalog(op.CatalogHash)
	if err != nil {
		return err
	}
	settings := settingsOf(op.Settings)
	g, known := s.groups.Get(op.Group)
	if known && g.Put && g.Settings == settings && g.CatalogHash == op.CatalogHash {
		return nil
	}
	if known {
		err = fits(g.sourcesWith(g.own(), -1, true, catalog, 1))
	} else {
		err = s.roomForGroup()
	}
	if err != nil {
		return err
	}
	s.refer(catalog, 1)
	if !known {
		g = s.makeGroup(op.Group)
	}
	g = s.raise(g)
	former := g.own()
	g.Put, g.By, g.Settings, g.CatalogHash = true, op.By, settings, op.CatalogHash
	s.emit(Event{Type: EventGroupUpdated, Key: g.Name, Note: noteOf(op.By, "put", "")})
	s.setSources(g, g.sourcesWith(former, -1, true, catalog, 1))
	s.refer(former, -1)
	return nil
}

// roomForGroup refuses one more group if the table is full and all are in use.
func (s *State) roomForGroup() error {
	if s.groups.Len() < MaxGroups || s.unusedGroup() != nil {
		return nil
	}
	return Errorf(CodeOverloaded, "there are %d groups, no more are taken", s.groups.Len())
}

// makeGroup makes a group that wants nothing yet. Where the table is full, it
// takes the place of the one that has been without use for the longest time.
func (s *State) makeGroup(name string) *group {
	if s.groups.Len() >= MaxGroups {
		s.dropGroup(s.unusedGroup())
	}
	g := &group{
		GroupHead: GroupHead{Name: name, Settings: settingsOf(nil), MadeRevision: s.cluster.revision, Planner: nobody},
		holder:    GroupHolder(name),
		members:   newMap[*Member](),
		states:    newMap[*workloadState](),
		epoch:     s.epoch,
	}
	if name == WorkersGroup && s.cluster.version >= workersVersion {
		g.derived = newMap[*Spec]()
	}
	s.groups.Set(name, g)
	return g
}

// dropGroup forgets a group without members, whose leases are all free.
func (s *State) dropGroup(g *group) {
	s.groups.Delete(g.Name)
	s.refer(g.own(), -1)
	s.touchGroup(g)
}

// deleteGroup refuses while anybody may still run a workload of the group: who
// has left it keeps what it has until it has stopped.
func (s *State) deleteGroup(op *DeleteGroup) error {
	g, err := s.group(op.Group)
	if err != nil {
		return err
	}
	if n := g.members.Len(); n > 0 {
		return Errorf(CodeWrongState, "the group has members (%d): have them leave it first", n)
	}
	if s.holdsAny(g) {
		return Errorf(CodeWrongState, "a workload of the group is still held: wait until it has stopped")
	}
	s.emit(Event{Type: EventGroupUpdated, Key: g.Name, Note: noteOf(op.By, "deleted", "")})
	s.dropGroup(g)
	return nil
}

// unusedGroup returns the group that has been without members, workloads and
// marks for the longest time, nil if there is none.
func (s *State) unusedGroup() (oldest *group) {
	s.groups.Scan(func(_ string, g *group) bool {
		unused := g.wanted == 0 && g.members.Len() == 0 && g.marked == 0 && (g.derived == nil || s.workers.Len() == 0)
		if unused && (oldest == nil || g.UpdatedRevision < oldest.UpdatedRevision) && !s.holdsAny(g) {
			oldest = g
		}
		return true
	})
	return oldest
}

// holdsAny reports whether a lease that the group has granted is left.
func (s *State) holdsAny(g *group) (held bool) {
	prefix := WorkloadKey(g.Name, "")
	s.leases.Ascend(prefix, func(key string, l *Lease) bool {
		within := len(key) >= len(prefix) && key[:len(prefix)] == prefix
		held = within && l.Group == g.Name
		return within && !held
	})
	return held
}

// own returns the group's own catalog, nil if it has none.
func (g *group) own() *Catalog {
	if len(g.sources) > 0 && g.sources[0].put {
		return g.sources[0].Catalog
	}
	return nil
}

// sourcesWith returns what the sources are with one catalog less and one more,
// which may be nil and the same. put says whose they are: the group's or a member's.
func (g *group) sourcesWith(less *Catalog, lessBy int, put bool, more *Catalog, moreBy int) []*source {
	out := make([]*source, 0, len(g.sources)+1)
	change := func(c *Catalog, by int) {
		if c == nil {
			return
		}
		i := slices.IndexFunc(out, func(src *source) bool { return src.Hash == c.Hash })
		next := source{Catalog: c}
		if i >= 0 {
			next = *out[i]
		}
		if put {
			next.put = by > 0
		} else {
			next.members += by
		}
		switch {
		case i < 0:
			out = append(out, &next)
		case next.put || next.members > 0:
			out[i] = &next
		default:
			out = slices.Delete(out, i, i+1)
		}
	}
	out = append(out, g.sources...)
	change(less, lessBy)
	change(more, moreBy)
	slices.SortFunc(out, func(a, b *source) int {
		if a.put != b.put {
			if a.put {
				return -1
			}
			return 1
		}
		if a.made.Less(b.made) {
			return 1
		}
		return -1
	})
	return out
}

// fits refuses sources that want more workloads together than a group may have.
func fits(sources []*source) error {
	n := 0
	for _, src := range sources {
		n += len(src.specs)
	}
	if n <= MaxWorkloads {
		return nil
	}
	if n = countSpecs(sources); n > MaxWorkloads {
		return tooManyWorkloads(n)
	}
	return nil
}

func countSpecs(sources []*source) (n int) {
	if len(sources) == 1 {
		return len(sources[0].specs)
	}
	for range specs(sources, "") {
		n++
	}
	return n
}

// setSources changes what the group wants. Who has a workload that nobody wants
// any more is asked to stop it. Where catalogs stay the same it costs nothing.
func (s *State) setSources(g *group, next []*source) {
	former := g.sources
	g.sources = next
	if sameCatalogs(former, next) {
		return
	}
	g.wanted = g.count()
	for _, src := range former {
		if slices.ContainsFunc(next, func(n *source) bool { return n.Hash == src.Hash }) {
			continue
		}
		for i := range src.specs {
			if _, wanted := g.find(src.specs[i].Key); !wanted {
				s.tellKey(WorkloadKey(g.Name, src.specs[i].Key), g, noteOf(ByGroup, "unwanted", ""))
			}
		}
	}
	if g.states.Len() > MaxWorkloads {
		s.sweepStates(g)
	}
}

func sameCatalogs(a, b []*source) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(src *source) bool {
		return !slices.ContainsFunc(b, func(o *source) bool { return o.Hash == src.Hash })
	})
}

// tellKey asks whoever has a lease of the group to stop.
func (s *State) tellKey(key string, g *group, note *Note) {
	if l, ok := s.leases.Get(key); ok && l.Group == g.Name {
		s.tell(l, note)
	}
}

// tell asks the owner to stop and names no successor.
func (s *State) tell(l *Lease, note *Note) {
	if l.State == Revoked || l.State == Transferring && l.Note.To == "" {
		return
	}
	if _, live := s.sessions.Get(l.SessionID); live {
		s.changeLease(l, Transferring, note, EventLeaseTransferring)
	}
}
