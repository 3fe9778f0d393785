package fsm

import (
	"time"

	"github.com/tidwall/btree"
)

// Identity says who holds or did something, as the public may see it: it never
// carries a session ID. It is shared and must not be changed.
type Identity struct {
	InstanceID string // "" for a session without an instance
	NodeID     string // of the node itself, or that a client came in through
	Name       string
}

// Label is one label of a session.
type Label struct{ Key, Value string }

// Opening is what a session was opened with. It never changes.
type Opening struct {
	ID string // a secret: whoever knows it may act for the session
	Identity
	Client   bool // opened for a client of the API: it outlives the node it came in through
	Boot     uint64
	Nonce    string
	TTL      time.Duration
	Zone     string
	Labels   []Label // sorted by key
	At       int64   // stamp, Unix nanoseconds; for show
	Revision uint64  // order of opening: (Revision, Position)
	Position uint32
}

// Mark is a drain or cordon of an instance.
type Mark struct {
	Revision  uint64 // of the entry that set it; names the mark when the leader clears it
	Reason    string
	By        string
	At        int64         // stamp, Unix nanoseconds
	ExpiresIn time.Duration // counted by the leader from its apply; 0 = never
}

// Session is a live session and, if InstanceID is set, its instance. A Session
// that a View hands out never changes.
type Session struct {
	*Opening
	// ChangedRevision is the revision of the last grant, revoke, transfer or
	// free that touched a lease of this session. An answer to a keep-alive
	// counts only for a copy that has applied it.
	ChangedRevision uint64
	Drain           *Mark // nil = not draining
	Cordon          *Mark // nil = not cordoned

	leases btree.Map[string, *Lease] // held, transferring and revoked, by key
	waits  btree.Map[string, int]    // places in queues, by key
	epoch  uint64                    // of the State that may still change it
}

// Draining reports whether the instance drains.
func (s *Session) Draining() bool { return s.Drain != nil }

// Cordoned reports whether the instance is cordoned.
func (s *Session) Cordoned() bool { return s.Cordon != nil }

// LeaseCount returns how many leases hang on the session.
func (s *Session) LeaseCount() int { return s.leases.Len() }
