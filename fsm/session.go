package fsm

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/miwnode/miwnode/fsm/fsmpb"
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
	ID        string // a secret: whoever knows it may act for the session
	*Identity        // never nil
	Client    bool   // opened for a client of the API: it outlives the node it came in through
	Boot      uint64 // of a node's own session
	Nonce     string
	TTL       time.Duration
	Zone      string
	Labels    []Label // sorted by key
	At        int64   // stamp, Unix nanoseconds; for show
	Revision  uint64  // order of opening: (Revision, Position)
	Position  uint32
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

	leases *btree.Map[string, *Lease]   // held, transferring and revoked, by key; nil = none
	waits  *btree.Map[string, int]      // places in queues, by key; nil = none
	coming *btree.Map[string, struct{}] // keys of which a group named it the successor; nil = none
	groups []string                     // that its instance is a member of, sorted; replaced on change
	epoch  uint64                       // in which the State may still change it
}

// Draining reports whether the instance drains.
func (s *Session) Draining() bool { return s.Drain != nil }

// Cordoned reports whether the instance is cordoned.
func (s *Session) Cordoned() bool { return s.Cordon != nil }

// LeaseCount returns how many leases hang on the session.
func (s *Session) LeaseCount() int {
	if s.leases == nil {
		return 0
	}
	return s.leases.Len()
}

// Groups returns the names of the groups that the instance is a member of, sorted.
func (s *Session) Groups() []string { return s.groups }

// eligible reports whether a waiter of the session may be granted a lease.
func (s *Session) eligible() bool { return s.Drain == nil && s.Cordon == nil }

func (s *Session) waitsFor(key string) int {
	if s.waits == nil {
		return 0
	}
	n, _ := s.waits.Get(key)
	return n
}

// addWait and the like change a session that the State owns.
func (s *Session) addWait(key string, n int) {
	if s.waits == nil {
		s.waits = newMap[int]()
	}
	if n += s.waitsFor(key); n > 0 {
		s.waits.Set(key, n)
	} else {
		s.waits.Delete(key)
	}
}

func (s *Session) setLease(l *Lease) {
	if s.leases == nil {
		s.leases = newMap[*Lease]()
	}
	s.leases.Set(l.Key, l)
}

// own returns the session as a copy that no View sees, made once per epoch.
func (s *State) own(sess *Session) *Session {
	if sess.epoch == s.epoch {
		return sess
	}
	c := *sess
	c.epoch = s.epoch
	if c.leases != nil {
		c.leases = c.leases.IsoCopy()
	}
	if c.waits != nil {
		c.waits = c.waits.IsoCopy()
	}
	if c.coming != nil {
		c.coming = c.coming.IsoCopy()
	}
	s.sessions.Set(c.ID, &c)
	return &c
}

// changed returns the session to change, with a change to one of its leases noted.
func (s *State) changed(sess *Session) *Session {
	sess = s.own(sess)
	sess.ChangedRevision = s.cluster.revision
	s.touch(topic{kind: topicSession, name: sess.ID})
	return sess
}

// live returns the session of that ID. Whether it ended or never was makes no difference.
func (s *State) live(id string) (*Session, error) {
	sess, ok := s.sessions.Get(id)
	if !ok {
		return nil, Errorf(CodeSessionExpired, "the session is not live: open a new one")
	}
	return sess, nil
}

// joinOrder sorts instances by (revision, position) of their opening.
func joinOrder(o *Opening) string { return placeOrder(EventID{o.Revision, o.Position}) }

func placeOrder(id EventID) string {
	var b [12]byte
	binary.BigEndian.PutUint64(b[:], id.Revision)
	binary.BigEndian.PutUint32(b[8:], id.Position)
	return string(b[:])
}

// nodeBoot sorts a node's own sessions by boot. IDs have no control characters.
func nodeBoot(nodeID string, boot uint64) string {
	return string(binary.BigEndian.AppendUint64(append([]byte(nodeID), 0), boot))
}

func (s *State) openSession(op *OpenSession, r *Result) error {
	if present, ok := s.sessions.Get(op.SessionId); ok {
		if present.Client == (op.NodeId == "") && present.Boot == op.Boot && present.Nonce == op.Nonce && present.InstanceID == op.InstanceId {
			r.SessionId = present.ID
			return nil // a repeat
		}
		return Errorf(CodeAlreadyExists, "another session has this ID")
	}
	if ttl := time.Duration(op.TtlMs) * time.Millisecond; ttl > s.cluster.maxTTL {
		return invalid("ttl", "is %v, must be %v to %v", ttl, MinSessionTTL, s.cluster.maxTTL)
	}
	var earlier []string
	if op.NodeId != "" {
		var err error
		if earlier, err = s.earlierBoots(op); err != nil {
			return err
		}
	}
	if taken, ok := s.instances.Get(op.InstanceId); ok && op.InstanceId != "" && !slices.Contains(earlier, taken) {
		return Errorf(CodeAlreadyExists, "the instance %s is live in another session", op.InstanceId)
	}
	if s.sessions.Len()-len(earlier) >= MaxSessions {
		return Errorf(CodeOverloaded, "%d sessions are open, no more are taken", s.sessions.Len())
	}
	for _, id := range earlier {
		sess, _ := s.sessions.Get(id)
		s.endSession(sess, EndRestarted)
	}
	s.places++
	sess := &Session{Opening: openingOf(op, s.stamp, s.cluster.revision, s.places), epoch: s.epoch}
	s.addSession(sess)
	s.emit(Event{Type: EventSessionOpened, Who: sess.Identity})
	s.touch(topic{kind: topicSession, name: sess.ID})
	if sess.InstanceID != "" {
		s.emit(Event{Type: EventInstanceJoined, Who: sess.Identity})
		s.touch(topic{kind: topicInstance, name: sess.InstanceID})
	}
	r.SessionId = sess.ID
	return nil
}

// earlierBoots returns the sessions of the node that op's restart proof closes,
// or why the boot may not open.
func (s *State) earlierBoots(op *OpenSession) (earlier []string, err error) {
	last := nodeBoot(op.NodeId, ^uint64(0))
	s.nodes.Descend(last, func(k, id string) bool {
		sess, _ := s.sessions.Get(id)
		switch {
		case sess.NodeID != op.NodeId || len(k) != len(last):
			return false
		case sess.Boot > op.Boot:
			err = Errorf(CodeWrongState, "boot %d of node %s has a session already, this is boot %d", sess.Boot, op.NodeId, op.Boot)
			return false
		case sess.Boot == op.Boot:
			err = Errorf(CodeAlreadyExists, "boot %d of node %s has another live session", op.Boot, op.NodeId)
			return false
		}
		if op.RestartProved {
			earlier = append(earlier, id)
		}
		return true
	})
	slices.Reverse(earlier) // oldest boot first
	return earlier, err
}

func openingOf(op *OpenSession, at int64, revision uint64, position uint32) *Opening {
	o := &Opening{
		ID:       op.SessionId,
		Identity: &Identity{InstanceID: op.InstanceId, NodeID: op.NodeId, Name: op.Name},
		Client:   op.NodeId == "",
		Boot:     op.Boot,
		Nonce:    op.Nonce,
		TTL:      time.Duration(op.TtlMs) * time.Millisecond,
		Zone:     op.Zone,
		At:       at,
		Revision: revision,
		Position: position,
	}
	if o.Client {
		o.NodeID = op.ViaNodeId
	}
	for _, l := range op.Labels {
		o.Labels = append(o.Labels, Label{l.GetKey(), l.GetValue()})
	}
	return o
}

// addSession puts a session into the tables that find it.
func (s *State) addSession(sess *Session) {
	s.sessions.Set(sess.ID, sess)
	if sess.InstanceID != "" {
		s.instances.Set(sess.InstanceID, sess.ID)
		s.joined.Set(joinOrder(sess.Opening), sess.ID)
	}
	if !sess.Client {
		s.nodes.Set(nodeBoot(sess.NodeID, sess.Boot), sess.ID)
	}
}

func (s *State) closeSession(op *CloseSession) error {
	sess, err := s.live(op.SessionId)
	if err != nil {
		return err
	}
	s.endSession(sess, EndReason(op.Reason))
	return nil
}

func (s *State) expireSession(op *ExpireSession) error {
	if err := s.otherTerm(op.Term); err != nil {
		return err
	}
	sess, err := s.live(op.SessionId)
	if err != nil {
		return err
	}
	s.endSession(sess, EndExpired)
	return nil
}

// endSession takes the session, its places in queues and its instance out of
// the state, then ends its leases in the order of their keys, each granted to
// its next waiter.
func (s *State) endSession(sess *Session, reason EndReason) {
	s.sessions.Delete(sess.ID)
	if !sess.Client {
		s.nodes.Delete(nodeBoot(sess.NodeID, sess.Boot))
	}
	kind := EventSessionClosed
	if reason == EndExpired {
		kind = EventSessionExpired
	}
	s.emit(Event{Type: kind, Who: sess.Identity, EndReason: reason})
	s.touch(topic{kind: topicSession, name: sess.ID})
	if sess.InstanceID != "" {
		s.instances.Delete(sess.InstanceID)
		s.joined.Delete(joinOrder(sess.Opening))
		s.emit(Event{Type: EventInstanceLeft, Who: sess.Identity, EndReason: reason})
		s.touch(topic{kind: topicInstance, name: sess.InstanceID})
	}
	if sess.waits != nil && !s.defects.DeadGrant {
		for _, key := range sess.waits.Keys() {
			s.dequeue(key, func(w *Waiter) bool { return w.SessionID == sess.ID })
		}
	}
	if len(sess.groups) > 0 || sess.coming != nil {
		s.leaveAll(sess)
	}
	if sess.leases != nil {
		s.ending = sess
		for _, l := range sess.leases.Values() {
			s.endLease(l, reason, reason == EndExpired)
		}
		s.ending = nil
	}
}

// labelsOf sorts labels for the wire.
func labelsOf(labels map[string]string) []*fsmpb.Label {
	out := make([]*fsmpb.Label, 0, len(labels))
	for k, v := range labels {
		out = append(out, &fsmpb.Label{Key: k, Value: v})
	}
	slices.SortFunc(out, func(a, b *fsmpb.Label) int { return strings.Compare(a.Key, b.Key) })
	return out
}
