package fsm

import "time"

// LeaseState is the state of a lease that is not free.
type LeaseState uint8

// States of a lease; numbers are those of fsmpb.LeaseState.
const (
	Held         LeaseState = 1
	Transferring LeaseState = 2 // held, and its holder is asked to hand it to Note.To
	Revoked      LeaseState = 3 // the holder must stop; freed when it releases or when the leader's timer has run
	Barred       LeaseState = 4 // nobody holds it; a lock delay runs
)

// String returns the name that the HTTP contract uses.
func (s LeaseState) String() string {
	switch s {
	case Held:
		return "held"
	case Transferring:
		return "transferring"
	case Revoked:
		return "revoked"
	case Barred:
		return "barred"
	}
	return "free"
}

// EndReason says why a grant or a session ended; numbers are those of fsmpb.EndReason.
type EndReason uint8

// Reasons.
const (
	EndReleased  EndReason = 1
	EndExpired   EndReason = 2
	EndRevoked   EndReason = 3
	EndMoved     EndReason = 4
	EndClosed    EndReason = 5
	EndRestarted EndReason = 6
	EndCrashed   EndReason = 7
)

var endReasons = [...]string{"", "released", "expired", "revoked", "moved", "closed", "restarted", "crashed"}

// String returns the name that the HTTP contract uses, "" for none.
func (r EndReason) String() string {
	if int(r) < len(endReasons) {
		return endReasons[r]
	}
	return "unknown"
}

// Note is what an author said: shared, must not be changed, never nil in a
// record of this package.
type Note struct {
	By     string
	Reason string
	To     string // instance that a transfer names
	Number uint64 // term of leader.changed, version of version.raised
}

// Lease is a key that is not free. A Lease that a View hands out never changes.
type Lease struct {
	Key              string
	Token            uint64 // of a barred key: of the grant that ended
	SessionID        string // a secret; "" when barred
	Holder           string // who in the session holds it; "" = the session itself
	Who              *Identity
	State            LeaseState
	AcquiredAt       int64  // stamp, Unix nanoseconds
	AcquiredRevision uint64 // of the entry that granted it
	ChangedRevision  uint64 // of the last change of state
	LockDelay        time.Duration
	Note             *Note // of a transfer or revoke
}

// Record returns l on the wire, with its session.
func (l *Lease) Record() *LeaseRecord { return leaseRecord(l) }

// LeaseOf is the reverse of Record.
func LeaseOf(r *LeaseRecord) *Lease { return leaseOf(r) }
