package fsm

import (
	"strings"
	"time"
)

// Waiter is a place in the queue of a key. It never changes.
type Waiter struct {
	Key       string
	SessionID string // a secret
	Holder    string
	LockDelay time.Duration
	Revision  uint64 // order: (Revision, Position)
	Position  uint32

	asks asks
}

// queue is who waits for one key, first come first. Values are appended beyond
// what a View can see or the slice is copied, so a View keeps its own.
type queue struct {
	waiters []*Waiter
	epoch   uint64
}

// enqueue gives (session, holder) a place in the queue of key. One that has a
// place keeps it.
func (s *State) enqueue(sess *Session, op *Acquire) error {
	if w := s.placeOf(sess, op.Key, op.Holder); w != nil {
		s.got = place{w.Key, w.SessionID, w.Holder}
		s.askAgain(sess, s.got, op.Ask)
		return nil
	}
	if s.waiters >= MaxWaiters {
		return Errorf(CodeOverloaded, "%d waiters are queued, no more are taken", s.waiters)
	}
	if n := s.queueLen(op.Key); n >= MaxWaitersPerKey {
		return Errorf(CodeOverloaded, "%d waiters are queued for the key, no more are taken", n)
	}
	s.places++
	w := &Waiter{
		Key:       strings.Clone(op.Key),
		SessionID: sess.ID,
		Holder:    strings.Clone(op.Holder),
		LockDelay: time.Duration(op.LockDelayMs) * time.Millisecond,
		Revision:  s.cluster.revision,
		Position:  s.places,
		asks:      asksOf(op.Ask),
	}
	q := s.queue(w.Key)
	q.waiters = append(q.waiters, w)
	s.waiters++
	s.own(sess).addWait(w.Key, 1)
	s.got = place{w.Key, w.SessionID, w.Holder}
	s.touch(topic{kind: topicQueue, name: w.Key})
	return nil
}

// queue returns the queue of key to change, a new one if there is none.
func (s *State) queue(key string) *queue {
	q, ok := s.queues.Get(key)
	if ok && q.epoch == s.epoch {
		return q
	}
	n := &queue{epoch: s.epoch}
	if ok {
		n.waiters = q.waiters
	}
	s.queues.Set(key, n)
	return n
}

func (t *tables) queueLen(key string) int {
	if q, ok := t.queues.Get(key); ok {
		return len(q.waiters)
	}
	return 0
}

// placeOf returns the place of (session, holder) in the queue of key, nil if it has none.
func (t *tables) placeOf(sess *Session, key, holder string) *Waiter {
	if sess.waitsFor(key) == 0 {
		return nil
	}
	q, _ := t.queues.Get(key)
	for _, w := range q.waiters {
		if w.SessionID == sess.ID && w.Holder == holder {
			return w
		}
	}
	return nil
}

// dequeue takes every waiter of key that gone says has left out of the queue.
func (s *State) dequeue(key string, gone func(*Waiter) bool) {
	q, _ := s.queues.Get(key)
	kept := make([]*Waiter, 0, len(q.waiters))
	for _, w := range q.waiters {
		if !gone(w) {
			kept = append(kept, w)
		}
	}
	s.waiters -= len(q.waiters) - len(kept)
	s.setQueue(key, kept)
}

func (s *State) setQueue(key string, waiters []*Waiter) {
	s.touch(topic{kind: topicQueue, name: key})
	if len(waiters) == 0 {
		s.queues.Delete(key)
		return
	}
	// Not key, which may be cut from an entry and would keep all of it alive.
	s.queue(waiters[0].Key).waiters = waiters
}

// leaveQueue takes the place of (session, holder) away; false if it has none.
func (s *State) leaveQueue(sess *Session, key, holder string) bool {
	place := s.placeOf(sess, key, holder)
	if place == nil {
		return false
	}
	s.dequeue(place.Key, func(w *Waiter) bool { return w == place })
	s.own(sess).addWait(place.Key, -1)
	return true
}

// popWaiter takes the next in line for key out of the queue: the successor's
// first waiter if it has one, else the first one that may run. Those that may
// not, because their instance drains or is cordoned, keep their places.
func (s *State) popWaiter(key, successor string) (*Waiter, *Session) {
	if s.queues.Len() == 0 {
		return nil, nil
	}
	q, ok := s.queues.Get(key)
	if !ok {
		return nil, nil
	}
	next := -1
	var sess *Session
	for i, w := range q.waiters {
		ws, live := s.sessions.Get(w.SessionID)
		if !live && s.defects.DeadGrant {
			ws, live = deadSession(w), true
		}
		if !live || !ws.eligible() {
			continue
		}
		named := successor != "" && ws.InstanceID == successor
		if next < 0 || named {
			next, sess = i, ws
		}
		if named || successor == "" {
			break
		}
	}
	if next < 0 {
		return nil, nil
	}
	w := q.waiters[next]
	rest := q.waiters[1:]
	if next > 0 {
		rest = make([]*Waiter, 0, len(q.waiters)-1)
		rest = append(append(rest, q.waiters[:next]...), q.waiters[next+1:]...)
	}
	s.setQueue(key, rest)
	s.waiters--
	sess = s.own(sess)
	sess.addWait(key, -1)
	return w, sess
}

// deadSession is what a waiter's session was, for the planted defect that leaves
// it its place.
func deadSession(w *Waiter) *Session {
	return &Session{Opening: &Opening{ID: w.SessionID, Identity: nobody, Client: true}}
}
