package node

import "time"

// The arithmetic of intervals that were measured on clocks which nobody has
// set: what is known of an instant is a span, and what is said of two runs is
// said only where it holds for every instant in their spans. It is pure: the
// caller brings the instants.

// maxTrips is how many round trips a clockMap remembers.
const maxTrips = 8

// far is an instant that no clock shows.
const far = time.Duration(1) << 62

// drift is by how much two clocks can have moved apart in d: one of them may
// run 5 % slower than the other, so it gains up to 1/0.95 - 1 = 1/19.
func drift(d time.Duration) time.Duration {
	if d < 0 {
		d = -d
	}
	if d == 0 {
		return 0
	}
	return d/19 + 1
}

// span is where an instant lies for certain.
type span struct{ lo, hi time.Duration }

func exactly(t time.Duration) span  { return span{t, t} }
func (s span) width() time.Duration { return s.hi - s.lo }
func (s span) mid() time.Duration   { return s.lo + s.width()/2 }

// trip is a message and its answer: it left and came back by the clock of its
// sender, it arrived and was answered by that of the receiver.
type trip struct {
	sent, received    time.Duration // the sender's clock
	arrived, answered time.Duration // the receiver's
}

// latest is the last instant of the receiver's clock at which the sender's may
// have shown t: the message left no later than it arrived.
func (x trip) latest(t time.Duration) time.Duration {
	return x.arrived + (t - x.sent) + drift(t-x.sent)
}

// earliest is the first such instant: the answer came no earlier than it left.
func (x trip) earliest(t time.Duration) time.Duration {
	return x.answered + (t - x.received) - drift(t-x.received)
}

// clockMap tells, from recent round trips, which instants of the receiver's
// clock the sender's instants were.
type clockMap struct {
	trips []trip // oldest first
}

// add takes a round trip in. It is false if the trip contradicts what is known:
// then one of the clocks has jumped, and all is forgotten.
func (m *clockMap) add(x trip) bool {
	if x.sent > x.received || x.arrived > x.answered || x.earliest(x.sent) > x.latest(x.sent) {
		m.trips = nil
		return false
	}
	for _, o := range m.trips {
		// The room between the bounds is smallest between the two instants.
		if o.earliest(x.sent) > x.latest(x.sent) || x.earliest(x.received) > o.latest(x.received) {
			m.trips = nil
			return false
		}
	}
	if len(m.trips) == maxTrips {
		m.trips = append(m.trips[:0], m.trips[1:]...)
	}
	m.trips = append(m.trips, x)
	return true
}

// covers tells whether a round trip began at t or later. Without one the
// clocks may have jumped since the last, and nobody would know.
func (m *clockMap) covers(t time.Duration) bool {
	n := len(m.trips)
	return n > 0 && m.trips[n-1].sent >= t
}

// at is where the sender's instant lies on the receiver's clock; there must be
// a round trip.
func (m *clockMap) at(t time.Duration) span {
	s := span{-far, far}
	for _, x := range m.trips {
		s.lo, s.hi = max(s.lo, x.earliest(t)), min(s.hi, x.latest(t))
	}
	return s
}

// stretch is what is known of one run.
type stretch struct {
	start span
	// until is an instant at which it still ran, its end if over.
	until span
	over  bool
	// final: no more will be known of it.
	final bool
}

// finding is what two stretches say of each other.
type finding struct {
	certain time.Duration // they overlapped by this at least; not positive = perhaps not at all
	doubt   time.Duration // by how much more, as far as both are known
	decided bool          // nothing that may still be learnt changes whether certain is positive
}

// judge compares two runs.
func judge(a, b stretch) finding {
	var v finding
	v.certain = min(a.until.lo, b.until.lo) - max(a.start.hi, b.start.hi)
	v.doubt = min(a.until.hi, b.until.hi) - max(a.start.lo, b.start.lo) - v.certain
	v.decided = v.certain > 0 ||
		a.over && a.until.hi <= b.start.lo || b.over && b.until.hi <= a.start.lo ||
		a.final && (b.final || b.until.lo >= a.until.lo) ||
		b.final && a.until.lo >= b.until.lo
	return v
}

// gapBetween is the time from the end of one run to the start of the next.
func gapBetween(end, start span) time.Duration { return max(0, start.mid()-end.mid()) }
