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
	SessionOpened      EventType = 1
	SessionClosed      EventType = 2
	SessionExpired     EventType = 3
	InstanceJoined     EventType = 4
	InstanceLeft       EventType = 5
	InstanceDraining   EventType = 6
	InstanceUndrained  EventType = 7
	InstanceCordoned   EventType = 8
	InstanceUncordoned EventType = 9
	LeaseGranted       EventType = 10
	LeaseTransferring  EventType = 11
	LeaseRevoked       EventType = 12
	LeaseEnded         EventType = 13
	LeaseUnbarred      EventType = 14
	MemberAddedEvent   EventType = 15
	MemberPromotedEvt  EventType = 16
	MemberDemotedEvt   EventType = 17
	MemberRemovedEvent EventType = 18
	LeaderChanged      EventType = 19
	VersionRaised      EventType = 20
)

// Event is one transition. It never changes and never carries a session ID.
type Event struct {
	ID        EventID
	At        int64 // stamp, Unix nanoseconds; for show
	Key       string
	Token     uint64
	Who       *Identity // never nil
	Note      *Note     // never nil
	Type      EventType
	EndReason EndReason // of lease.ended, session.closed, instance.left
}
