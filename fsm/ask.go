package fsm

import "slices"

// asks are the askings that a place in a queue, or a grant, rests on: the calls
// that wait for it or were answered with it. Each may be taken back by its
// number; the last one takes the place or grant with it. Without any, nobody
// but the holder gives it up. An asks never changes.
type asks []uint64

// maxAsks bounds the askings of one place.
const maxAsks = 8

func asksOf(ask uint64) asks {
	if ask == 0 {
		return nil
	}
	return asks{ask}
}

// with adds an asking. One without a number, and one too many, can't be taken
// back, so from then on none can.
func (a asks) with(ask uint64) asks {
	switch {
	case len(a) == 0, slices.Contains(a, ask):
		return a
	case ask == 0, len(a) == maxAsks:
		return nil
	}
	return append(slices.Clip(a), ask)
}

// without takes an asking back; last says that it was the only one.
func (a asks) without(ask uint64) (rest asks, last bool) {
	i := slices.Index(a, ask)
	switch {
	case i < 0:
		return a, false
	case len(a) == 1:
		return a, true
	}
	return slices.Delete(slices.Clone(a), i, i+1), false
}

// askAgain adds an asking to the place or grant that p has.
func (s *State) askAgain(sess *Session, p place, ask uint64) {
	s.changeAsks(sess, p, func(a asks) asks { return a.with(ask) })
}

// askedAnew is askAgain for a repeat that was answered without being applied.
func (s *State) askedAnew(p place, ask uint64) {
	if sess, ok := s.sessions.Get(p.session); ok {
		s.askAgain(sess, p, ask)
	}
}

// unask takes an asking back and tells whether it was the last one of p.
func (s *State) unask(sess *Session, p place, ask uint64) (last bool) {
	s.changeAsks(sess, p, func(a asks) (rest asks) {
		rest, last = a.without(ask)
		return rest
	})
	return last
}

// changeAsks changes the asks of p's place in the queue, else of its grant.
// Nothing that anybody watches changes by it.
func (s *State) changeAsks(sess *Session, p place, change func(asks) asks) {
	if w := s.placeOf(sess, p.key, p.holder); w != nil {
		next := *w
		if next.asks = change(w.asks); slices.Equal(next.asks, w.asks) {
			return
		}
		q := s.queue(p.key)
		q.waiters = slices.Clone(q.waiters)
		q.waiters[slices.Index(q.waiters, w)] = &next
		return
	}
	l, ok := s.leases.Get(p.key)
	if !ok || l.SessionID != sess.ID || l.Holder != p.holder {
		return
	}
	next := *l
	if next.asks = change(l.asks); slices.Equal(next.asks, l.asks) {
		return
	}
	s.leases.Set(l.Key, &next)
	s.own(sess).setLease(&next)
}
