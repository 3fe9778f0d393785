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
	EventSessionOpened        EventType = 1
	EventSessionClosed        EventType = 2
	EventSessionExpired       EventType = 3
	EventInstanceJoined       EventType = 4
	EventInstanceLeft         EventType = 5
	EventInstanceDraining     EventType = 6
	EventInstanceUndrained    EventType = 7
	EventInstanceCordoned     EventType = 8
	EventInstanceUncordoned   EventType = 9
	EventLeaseGranted         EventType = 10
	EventLeaseTransferring    EventType = 11
	EventLeaseRevoked         EventType = 12 // marked: its holder must stop
	EventLeaseEnded           EventType = 13
	EventLeaseUnbarred        EventType = 14 // a lock delay is over
	EventMemberAdded          EventType = 15
	EventMemberPromoted       EventType = 16
	EventMemberDemoted        EventType = 17
	EventMemberRemoved        EventType = 18
	EventLeaderChanged        EventType = 19
	EventVersionRaised        EventType = 20
	EventGroupUpdated         EventType = 21 // Note.Reason says what
	EventGroupPlanned         EventType = 22 // Note.Number: how many assignments changed something
	EventWorkloadAssigned     EventType = 23 // granted to Who by a group
	EventWorkloadMoved        EventType = 24 // granted to Who, the named successor
	EventWorkloadPreparing    EventType = 25 // Note.To prepares while Who goes on
	EventWorkloadKept         EventType = 26 // Who keeps it after all
	EventWorkloadPaused       EventType = 27
	EventWorkloadResumed      EventType = 28
	EventWorkloadPinned       EventType = 29
	EventWorkloadUnpinned     EventType = 30
	EventWorkloadStuck        EventType = 31 // told to stop, and it doesn't return
	EventWorkloadFailed       EventType = 32 // a run, or a successor's preparation
	EventJobRecorded          EventType = 33 // Note.Reason: the outcome, Note.Number: the total
	EventLeaseOverlap         EventType = 34 // two runs certainly overlapped; Note.Number: for how many nanoseconds
	EventWorkerCreated        EventType = 35 // Worker.StartRequested says whether it is to start
	EventWorkerLoaded         EventType = 36
	EventWorkerLoadFailed     EventType = 37
	EventWorkerReloading      EventType = 38
	EventWorkerStartRequested EventType = 39 // of a worker that is loading
	EventWorkerStartWithdrawn EventType = 40
	EventWorkerStarted        EventType = 41
	EventWorkerStopped        EventType = 42
	EventWorkerFailed         EventType = 43
	EventWorkerDeleted        EventType = 44
	EventLeaseSlept           EventType = 45 // the holder's machine slept; Note.Number: for how many nanoseconds
)

var eventNames = [...]string{
	EventSessionOpened:        "session.opened",
	EventSessionClosed:        "session.closed",
	EventSessionExpired:       "session.expired",
	EventInstanceJoined:       "instance.joined",
	EventInstanceLeft:         "instance.left",
	EventInstanceDraining:     "instance.draining",
	EventInstanceUndrained:    "instance.undrained",
	EventInstanceCordoned:     "instance.cordoned",
	EventInstanceUncordoned:   "instance.uncordoned",
	EventLeaseGranted:         "lease.granted",
	EventLeaseTransferring:    "lease.transferring",
	EventLeaseRevoked:         "lease.revoked",
	EventLeaseEnded:           "lease.ended",
	EventLeaseUnbarred:        "lease.unbarred",
	EventMemberAdded:          "member.added",
	EventMemberPromoted:       "member.promoted",
	EventMemberDemoted:        "member.demoted",
	EventMemberRemoved:        "member.removed",
	EventLeaderChanged:        "leader.changed",
	EventVersionRaised:        "version.raised",
	EventGroupUpdated:         "group.updated",
	EventGroupPlanned:         "group.planned",
	EventWorkloadAssigned:     "workload.assigned",
	EventWorkloadMoved:        "workload.moved",
	EventWorkloadPreparing:    "workload.preparing",
	EventWorkloadKept:         "workload.kept",
	EventWorkloadPaused:       "workload.paused",
	EventWorkloadResumed:      "workload.resumed",
	EventWorkloadPinned:       "workload.pinned",
	EventWorkloadUnpinned:     "workload.unpinned",
	EventWorkloadStuck:        "workload.stuck",
	EventWorkloadFailed:       "workload.failed",
	EventJobRecorded:          "job.recorded",
	EventLeaseOverlap:         "lease.overlap",
	EventWorkerCreated:        "worker.created",
	EventWorkerLoaded:         "worker.loaded",
	EventWorkerLoadFailed:     "worker.load_failed",
	EventWorkerReloading:      "worker.reloading",
	EventWorkerStartRequested: "worker.start_requested",
	EventWorkerStartWithdrawn: "worker.start_withdrawn",
	EventWorkerStarted:        "worker.started",
	EventWorkerStopped:        "worker.stopped",
	EventWorkerFailed:         "worker.failed",
	EventWorkerDeleted:        "worker.deleted",
	EventLeaseSlept:           "lease.slept",
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
	// Worker is what the event tells of its worker, whose lease has the key; nil
	// in events of anything else.
	Worker *WorkerNote
	Type   EventType
	// EndReason is set in lease.ended, session.closed, session.expired and instance.left.
	EndReason EndReason
}

// WorkerNote is a worker after a transition, or of worker.deleted before it. It
// never changes.
type WorkerNote struct {
	Name           string
	Runtime        string
	State          WorkerState
	StartRequested bool
	Error          *WorkerError // of worker.load_failed and worker.failed, else nil
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
