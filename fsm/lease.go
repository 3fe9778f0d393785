package fsm

import (
	"strings"
	"time"
)

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
	EndOverlap   EndReason = 8 // in the ledger only: no end, but two runs that overlapped
	EndSlept     EndReason = 9 // in the ledger only: no end, but the holder's machine slept
)

var endReasons = [...]string{"", "released", "expired", "revoked", "moved", "closed", "restarted", "crashed", "overlap", "slept"}

// ends tells whether r ended anything, or only notes something about a grant.
func (r EndReason) ends() bool { return r != EndOverlap && r != EndSlept }

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
	Token            uint64    // of a barred key: of the grant that ended
	SessionID        string    // a secret; "" when barred
	Holder           string    // who in the session holds it; "" = the session itself
	Who              *Identity // never nil; of a barred key: of the grant that ended
	State            LeaseState
	AcquiredAt       int64  // stamp, Unix nanoseconds
	AcquiredRevision uint64 // of the entry that granted it
	ChangedRevision  uint64 // of the last change of state, the grant included
	LockDelay        time.Duration
	Note             *Note  // of a transfer or revoke, or with To only: who prepares; never nil
	Group            string // that granted it; "" = its holder acquired it
	Stuck            *Stuck // nil = its run returns, as far as anybody knows

	asks asks
}

// belongs reports whether (session, holder) holds the lease and may go on.
func (l *Lease) belongs(sess *Session, holder string) bool {
	return l.SessionID == sess.ID && l.Holder == holder && (l.State == Held || l.State == Transferring)
}

func (s *State) acquire(op *Acquire, r *Result) error {
	sess, err := s.live(op.SessionId)
	if err != nil {
		return err
	}
	l, taken := s.leases.Get(op.Key)
	if taken && l.belongs(sess, op.Holder) {
		r.Token = l.Token
		s.got = place{l.Key, l.SessionID, l.Holder}
		s.askAgain(sess, s.got, op.Ask)
		return nil
	}
	if sess.Draining() {
		return Errorf(CodeDraining, "the instance %s drains and takes nothing new", sess.InstanceID)
	}
	if sess.Cordoned() && !op.Wait {
		return Errorf(CodeWrongState, "the instance %s is cordoned and takes nothing new", sess.InstanceID)
	}
	if taken && !op.Wait {
		return heldBy(l)
	}
	// A free key has no eligible waiter: nobody is overtaken here.
	if taken || sess.Cordoned() {
		err := s.enqueue(sess, op)
		r.Queued = err == nil
		return err
	}
	if s.leases.Len() >= MaxLeases {
		return Errorf(CodeOverloaded, "%d leases are held, no more are granted", s.leases.Len())
	}
	delay := time.Duration(op.LockDelayMs) * time.Millisecond
	l = s.grant(sess, strings.Clone(op.Key), strings.Clone(op.Holder), delay, asksOf(op.Ask))
	r.Token = l.Token
	s.got = place{l.Key, l.SessionID, l.Holder}
	return nil
}

// heldBy is the refusal of an acquire that does not wait. The holder's session is its secret.
func heldBy(l *Lease) error {
	record := l.Record()
	record.SessionId, record.Holder, record.Asks = "", "", nil
	e := &Error{Code: CodeLeaseHeld, Detail: record}
	switch {
	case l.State == Barred:
		e.Message = "the key is barred after its holder was lost"
	case l.Who.InstanceID != "":
		e.Message = "held by instance " + l.Who.InstanceID
	case l.Who.Name != "":
		e.Message = "held by " + l.Who.Name
	default:
		e.Message = "held by another session"
	}
	return e
}

// grant gives a key that is free, or that ends in this entry, to (session, holder).
func (s *State) grant(sess *Session, key, holder string, delay time.Duration, a asks) *Lease {
	return s.grantLease(sess, &Lease{Key: key, Holder: holder, LockDelay: delay, asks: a})
}

func (s *State) grantLease(sess *Session, l *Lease) *Lease {
	l.Token = s.nextToken()
	l.SessionID, l.Who = sess.ID, sess.Identity
	l.State, l.Note = Held, noNote
	l.AcquiredAt = s.stamp
	l.AcquiredRevision, l.ChangedRevision = s.cluster.revision, s.cluster.revision
	s.leases.Set(l.Key, l)
	s.changed(sess).setLease(l)
	s.emit(Event{Type: EventLeaseGranted, Key: l.Key, Token: l.Token, Who: l.Who})
	s.touchLease(l)
	return l
}

// grantNext grants a key that nobody holds to its next waiter; false if none may run.
func (s *State) grantNext(key, successor string) bool {
	w, sess := s.popWaiter(key, successor)
	if w == nil {
		return false
	}
	s.grant(sess, w.Key, w.Holder, w.LockDelay, w.asks)
	return true
}

// endLease ends a grant and passes its key on in the same entry: to the named
// successor, else to the first waiter. Where the holder is lost, time and not
// its own word saying that it has stopped, a lock delay keeps the key first.
func (s *State) endLease(l *Lease, reason EndReason, lost bool) {
	note := noNote
	if reason == EndRevoked || reason == EndMoved {
		note = l.Note
	}
	s.ledger.push(LedgerEntry{
		Key:             l.Key,
		Token:           l.Token,
		Who:             l.Who,
		GrantedAt:       l.AcquiredAt,
		GrantedRevision: l.AcquiredRevision,
		EndedAt:         s.stamp,
		EndedRevision:   s.cluster.revision,
		EndReason:       reason,
		Note:            note,
	})
	s.emit(Event{Type: EventLeaseEnded, Key: l.Key, Token: l.Token, Who: l.Who, Note: note, EndReason: reason})
	s.touchLease(l)
	if sess, ok := s.sessions.Get(l.SessionID); ok {
		s.changed(sess).leases.Delete(l.Key)
	}
	if s.openRuns.Len() > 0 {
		s.loseRuns(l)
	}
	if l.LockDelay > 0 && lost {
		barred := *l
		barred.State, barred.SessionID, barred.Holder, barred.asks, barred.Stuck = Barred, "", "", nil, nil
		barred.ChangedRevision = s.cluster.revision
		s.leases.Set(l.Key, &barred)
		return
	}
	if s.groups.Len() > 0 && s.passOn(l, reason) {
		return
	}
	if !s.grantNext(l.Key, l.Note.To) {
		s.leases.Delete(l.Key)
	}
}

func (s *State) transfer(op *Transfer) error {
	l, err := s.named(op.Key, op.Token)
	if err != nil {
		return err
	}
	if l.State == Revoked {
		return Errorf(CodeWrongState, "the lease is revoked")
	}
	to, ok := s.instances.Get(op.ToInstance)
	if !ok {
		return Errorf(CodeNotFound, "no live instance %s", op.ToInstance)
	}
	target, _ := s.sessions.Get(to)
	if !target.eligible() {
		return Errorf(CodeWrongState, "the instance %s drains or is cordoned", op.ToInstance)
	}
	if target.waitsFor(op.Key) == 0 {
		return Errorf(CodeWrongState, "the instance %s doesn't wait for the key", op.ToInstance)
	}
	if l.State == Transferring && l.Note.To == op.ToInstance {
		return nil
	}
	s.changeLease(l, Transferring, noteOf(op.By, op.Reason, op.ToInstance), EventLeaseTransferring)
	return nil
}

func (s *State) revoke(op *Revoke) error {
	l, err := s.named(op.Key, op.Token)
	if err != nil || l.State == Revoked {
		return err
	}
	s.changeLease(l, Revoked, noteOf(op.By, op.Reason, l.Note.To), EventLeaseRevoked)
	return nil
}

// named returns the lease of key if somebody holds it under that token.
func (s *State) named(key string, token uint64) (*Lease, error) {
	l, ok := s.leases.Get(key)
	if !ok || l.State == Barred {
		return nil, Errorf(CodeNotFound, "nobody holds the key")
	}
	if l.Token != token {
		return nil, stale(token, l.Token)
	}
	return l, nil
}

func stale(token, present uint64) error {
	return Errorf(CodeStaleToken, "token %d is not the present one, %d", token, present)
}

func (s *State) changeLease(l *Lease, state LeaseState, note *Note, event EventType) {
	next := *l
	next.State, next.Note, next.ChangedRevision = state, note, s.cluster.revision
	s.nameSuccessor(l, note.To)
	s.leases.Set(l.Key, &next)
	sess, _ := s.sessions.Get(l.SessionID)
	s.changed(sess).setLease(&next)
	s.emit(Event{Type: event, Key: l.Key, Token: l.Token, Who: l.Who, Note: note})
	s.touchLease(&next)
}

func (s *State) release(op *Release) error {
	sess, err := s.live(op.SessionId)
	if err != nil {
		return err
	}
	l, ok := s.leases.Get(op.Key)
	if !ok {
		return Errorf(CodeStaleToken, "nobody holds the key: token %d was released or lost before", op.Token)
	}
	if l.Token != op.Token && !s.defects.ReleaseByKey {
		return stale(op.Token, l.Token)
	}
	if l.SessionID != sess.ID {
		return Errorf(CodeStaleToken, "token %d is not a grant of this session", op.Token)
	}
	if op.Failure != "" {
		s.runFailed(l, op.Failure)
	}
	s.giveUp(l)
	return nil
}

// giveUp ends a lease by its holder's word that the work has stopped.
func (s *State) giveUp(l *Lease) {
	reason := EndReleased
	switch l.State {
	case Transferring:
		reason = EndMoved
	case Revoked:
		reason = EndRevoked
	}
	s.endLease(l, reason, false)
}

func (s *State) cancelWait(op *CancelWait) error {
	sess, err := s.live(op.SessionId)
	if err != nil {
		return err
	}
	if op.Ask != 0 && !s.unask(sess, place{op.Key, sess.ID, op.Holder}, op.Ask) {
		return nil
	}
	left := s.leaveQueue(sess, op.Key, op.Holder)
	// The wait may have been granted meanwhile. A revoked lease beside a place
	// in the queue is the former run's, which releases it by its token.
	if l, ok := s.leases.Get(op.Key); ok && !left && l.SessionID == sess.ID && l.Holder == op.Holder {
		s.giveUp(l)
	}
	return nil
}

func (s *State) freeRevoked(op *FreeRevoked) error {
	if err := s.otherTerm(op.Term); err != nil {
		return err
	}
	l, err := s.named(op.Key, op.Token)
	if err != nil {
		return err
	}
	if l.State != Revoked {
		return Errorf(CodeWrongState, "the lease is %v", l.State)
	}
	s.endLease(l, EndRevoked, true)
	return nil
}

func (s *State) liftBar(op *LiftBar) error {
	if err := s.otherTerm(op.Term); err != nil {
		return err
	}
	l, ok := s.leases.Get(op.Key)
	if !ok || l.State != Barred {
		return Errorf(CodeNotFound, "the key is not barred")
	}
	if l.Token != op.Token {
		return stale(op.Token, l.Token)
	}
	s.emit(Event{Type: EventLeaseUnbarred, Key: l.Key, Token: l.Token, Who: l.Who})
	s.touchLease(l)
	if !s.grantNext(l.Key, l.Note.To) {
		s.leases.Delete(l.Key)
	}
	return nil
}

// putLease replaces a lease by one that differs in nothing that its holder acts on.
func (s *State) putLease(next *Lease) {
	s.leases.Set(next.Key, next)
	if sess, ok := s.sessions.Get(next.SessionID); ok {
		s.own(sess).setLease(next)
	}
}

// touchLease wakes who watches the key, and who waits for or holds it as l does.
func (s *State) touchLease(l *Lease) {
	s.touch(topic{kind: topicLease, name: l.Key})
	s.touch(topic{kind: topicGrant, name: l.Key, session: l.SessionID, holder: l.Holder})
}
