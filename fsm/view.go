package fsm

import (
	"iter"
	"strings"
	"time"
)

// Cluster is what the state knows of the cluster as a whole.
type Cluster struct {
	ID            string // "" before InitCluster
	Generation    uint64
	Version       uint32 // what may be proposed
	LeaderID      string // of the last RecordLeader
	LeaderTerm    uint64
	MaxSessionTTL time.Duration
}

// View is the state at one revision. It never changes and may be read by any
// number of goroutines; holding one keeps its memory alive. What its methods
// return must not be changed.
type View struct{ tables }

// Revision is the index of the last applied entry.
func (v *View) Revision() uint64 { return v.cluster.revision }

// Cluster returns what is known of the cluster as a whole.
func (v *View) Cluster() Cluster {
	c := &v.cluster
	return Cluster{
		ID:            c.id,
		Generation:    c.generation,
		Version:       c.version,
		LeaderID:      c.leaderID,
		LeaderTerm:    c.leaderTerm,
		MaxSessionTTL: c.maxTTL,
	}
}

// Session returns a live session.
func (v *View) Session(id string) (*Session, bool) { return v.sessions.Get(id) }

// SessionCount returns how many sessions are live.
func (v *View) SessionCount() int { return v.sessions.Len() }

// Sessions yields the live sessions in the order of their IDs.
func (v *View) Sessions() iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		v.sessions.Scan(func(_ string, s *Session) bool { return yield(s) })
	}
}

// SessionChanged returns the revision of the last change to the session's
// leases; ok is false when it is not live.
func (v *View) SessionChanged(id string) (revision uint64, ok bool) {
	s, ok := v.sessions.Get(id)
	if !ok {
		return 0, false
	}
	return s.ChangedRevision, true
}

// NodeSession returns the node's own session, of its newest boot if several are live.
func (v *View) NodeSession(nodeID string) (session *Session, ok bool) {
	last := nodeBoot(nodeID, ^uint64(0))
	v.nodes.Descend(last, func(k, id string) bool {
		if s, _ := v.sessions.Get(id); s.NodeID == nodeID && len(k) == len(last) {
			session, ok = s, true
		}
		return false
	})
	return session, ok
}

// Instance returns the session of a live instance.
func (v *View) Instance(id string) (*Session, bool) {
	sessionID, ok := v.instances.Get(id)
	if !ok {
		return nil, false
	}
	return v.sessions.Get(sessionID)
}

// Instances yields the live instances in the order in which they joined, marked
// ones included.
func (v *View) Instances() iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		v.joined.Scan(func(_, id string) bool {
			s, _ := v.sessions.Get(id)
			return yield(s)
		})
	}
}

// Lease returns the lease of key, false if the key is free.
func (v *View) Lease(key string) (*Lease, bool) { return v.leases.Get(key) }

// LeaseCount returns how many keys are not free.
func (v *View) LeaseCount() int { return v.leases.Len() }

// Leases yields the leases, barred keys included, whose key begins with prefix
// and comes after after, in the order of the keys.
func (v *View) Leases(prefix, after string) iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		v.leases.Ascend(max(prefix, after), func(key string, l *Lease) bool {
			if !strings.HasPrefix(key, prefix) {
				return false
			}
			return key == after && after != "" || yield(l)
		})
	}
}

// PendingLeases yields the leases whose end the leader has to bring about: the
// revoked and the barred. It looks at all leases.
func (v *View) PendingLeases() iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		v.leases.Scan(func(_ string, l *Lease) bool {
			return l.State != Revoked && l.State != Barred || yield(l)
		})
	}
}

// SessionLeases yields the leases that hang on the session, in the order of their keys.
func (v *View) SessionLeases(sessionID string) iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		if s, ok := v.sessions.Get(sessionID); ok && s.leases != nil {
			s.leases.Scan(func(_ string, l *Lease) bool { return yield(l) })
		}
	}
}

// Waiters yields the queue of key, first come first.
func (v *View) Waiters(key string) iter.Seq[*Waiter] {
	return func(yield func(*Waiter) bool) {
		if q, ok := v.queues.Get(key); ok {
			for _, w := range q.waiters {
				if !yield(w) {
					return
				}
			}
		}
	}
}

// WaiterCount returns the length of the queue of key.
func (v *View) WaiterCount(key string) int { return v.queueLen(key) }

// Waiting reports whether (session, holder) has a place in the queue of key.
func (v *View) Waiting(key, sessionID, holder string) bool {
	s, ok := v.sessions.Get(sessionID)
	return ok && v.placeOf(s, key, holder) != nil
}

// ClientBoot returns the newest boot of the node that has proposed, 0 if none has.
func (v *View) ClientBoot(nodeID string) uint64 {
	if c, ok := v.clients.Get(nodeID); ok {
		return c.boot
	}
	return 0
}

// Events yields the events after since, oldest first. ok is false when some of
// them have left the ring: the reader has a hole and must read the state anew.
func (v *View) Events(since EventID) (events iter.Seq[*Event], ok bool) {
	low, high := 0, v.events.len()
	for low < high {
		if mid := (low + high) / 2; since.Less(v.events.at(mid).ID) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return v.events.from(low), !since.Less(v.cluster.dropped)
}

// OldestEvent returns the ID of the oldest event in the ring, the zero ID if it is empty.
func (v *View) OldestEvent() EventID {
	if v.events.len() == 0 {
		return EventID{}
	}
	return v.events.at(0).ID
}
