package fsm

import (
	"iter"
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

// Who names a successor, or nobody, where no operator did: Note.By of such a lease.
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
	PlannedAt       int64
	Planner         *Identity // who made it, never nil
}

// source is a catalog that a group wants its workloads from. It never changes.
type source struct {
	*Catalog
	members int  // how many declare it
	put     bool // it is the group's own
}

// group is a group in the state. It is copied once per epoch, as a Session is.
type group struct {
	GroupHead
	members  *btree.Map[string, *Member]        // by join order of the instance
	states   *btree.Map[string, *workloadState] // by workload, only of those that have one
	sources  []*source                          // the own catalog first, then the newest; replaced on change
	wanted   int                                // workloads in sources
	marked   int                                // states with a pin or pause
	planners int                                // members that are embedded
	epoch    uint64
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
	for _, src := range g.sources {
		if spec, ok := src.Find(workload); ok {
			return spec, true
		}
	}
	return nil, false
}

// specs yields the wanted workloads after the key after, each once, in order.
func (g *group) specs(after string) iter.Seq[*Spec] {
	return mergeSpecs(g.sources, after)
}

func mergeSpecs(sources []*source, after string) iter.Seq[*Spec] {
	return func(yield func(*Spec) bool) {
		next := make([]int, len(sources))
		if after != "" {
			for i, src := range sources {
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
	m, ok := g.members.Get(joinOrder(sess.Opening))
	return ok && m.Embedded
}
