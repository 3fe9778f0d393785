package fsm

import "slices"

// Member is an instance that joined a group. It never changes.
type Member struct {
	SessionID      string   // a secret
	CatalogHash    string   // of the catalog that it declares; "" = Keys or All say what it runs
	Keys           []string // sorted; nil = CatalogHash or All says it
	All            bool     // it runs whatever the group wants
	Capacity       float64  // in weights; 0 = no limit
	Embedded       bool     // a coordinator inside its process joined it: it can plan
	Prepares       bool     // it wants to prepare before it takes over
	JoinedRevision uint64   // of the entry by which it joined
	JoinedAt       int64    // stamp, Unix nanoseconds

	catalog *Catalog
}

// Declares reports whether the member can run a workload, if the group wants it.
func (m *Member) Declares(workload string) bool {
	switch {
	case m.All:
		return true
	case m.catalog != nil:
		_, ok := m.catalog.Find(workload)
		return ok
	}
	_, ok := slices.BinarySearch(m.Keys, workload)
	return ok
}
