package fsm

// EventID orders events: by the revision of the entry, then by position in it,
// counted from 1.
type EventID struct {
	Revision uint64
	Position uint32
}

// AfterRevision is the ID to resume from for a reader that has seen the state
// of that revision.
func AfterRevision(revision uint64) EventID { return EventID{revision, ^uint32(0)} }

// Less reports whether a comes before b.
func (a EventID) Less(b EventID) bool {
	return a.Revision < b.Revision || a.Revision == b.Revision && a.Position < b.Position
}

// EventType is the kind of an Event. Numbers are in snapshots: only append.
type EventType uint8

// Event types.
const (
	EventSessionOpened      EventType = 1
	EventSessionClosed      EventType = 2
	EventSessionExpired     EventType = 3
	EventInstanceJoined     EventType = 4
	EventInstanceLeft       EventType = 5
	EventInstanceDraining   EventType = 6
	EventInstanceUndrained  EventType = 7
	EventInstanceCordoned   EventType = 8
	EventInstanceUncordoned EventType = 9
	EventLeaseGranted       EventType = 10
	EventLeaseTransferring  EventType = 11
	EventLeaseRevoked       EventType = 12 // marked: its holder must stop
	EventLeaseEnded         EventType = 13
	EventLeaseUnbarred      EventType = 14 // a lock delay is over
	EventMemberAdded        EventType = 15
	EventMemberPromoted     EventType = 16
	EventMemberDemoted      EventType = 17
	EventMemberRemoved      EventType = 18
	EventLeaderChanged      EventType = 19
	EventVersionRaised      EventType = 20
)

var eventNames = [...]string{
	EventSessionOpened:      "session.opened",
	EventSessionClosed:      "session.closed",
	EventSessionExpired:     "session.expired",
	EventInstanceJoined:     "instance.joined",
	EventInstanceLeft:       "instance.left",
	EventInstanceDraining:   "instance.draining",
	EventInstanceUndrained:  "instance.undrained",
	EventInstanceCordoned:   "instance.cordoned",
	EventInstanceUncordoned: "instance.uncordoned",
	EventLeaseGranted:       "lease.granted",
	EventLeaseTransferring:  "lease.transferring",
	EventLeaseRevoked:       "lease.revoked",
	EventLeaseEnded:         "lease.ended",
	EventLeaseUnbarred:      "lease.unbarred",
	EventMemberAdded:        "member.added",
	EventMemberPromoted:     "member.promoted",
	EventMemberDemoted:      "member.demoted",
	EventMemberRemoved:      "member.removed",
	EventLeaderChanged:      "leader.changed",
	EventVersionRaised:      "version.raised",
}

// String returns the name that the HTTP contract uses.
func (t EventType) String() string {
	if t.known() {
		return eventNames[t]
	}
	return "unknown"
}

func (t EventType) known() bool { return t != 0 && int(t) < len(eventNames) }

// Event is one transition. It never changes and never carries a session ID.
type Event struct {
	ID    EventID
	At    int64 // stamp, Unix nanoseconds; for show
	Key   string
	Token uint64
	Who   *Identity // never nil
	Note  *Note     // never nil
	Type  EventType
	// EndReason is set in lease.ended, session.closed, session.expired and instance.left.
	EndReason EndReason
}

// emit gives e its ID and puts it into the ring and the outcome.
func (s *State) emit(e Event) {
	s.position++
	e.ID = EventID{s.cluster.revision, s.position}
	e.At = s.stamp
	if e.Who == nil {
		e.Who = nobody
	}
	if e.Note == nil {
		e.Note = noNote
	}
	if s.events.full() {
		s.cluster.dropped = s.events.at(0).ID
	}
	s.outcome.Events = append(s.outcome.Events, s.events.push(e))
}
