package node

import (
	"slices"
	"time"
)

// trustRule is the arithmetic of what a holder may believe. Instants are those
// of the holder's own clock.
type trustRule struct {
	ttl    time.Duration
	margin time.Duration // allows for clocks of different rates, never less than ttl/10
	stop   time.Duration // between being told to stop and being made to
}

func newTrustRule(ttl, margin, stop time.Duration) trustRule {
	return trustRule{ttl: ttl, margin: max(margin, ttl/10), stop: stop}
}

// until is the end of trust for a keep-alive that was sent at the instant. The
// leader counts its TTL from the arrival, which is no earlier than the sending,
// so as long as the clocks' rates differ by less than the margin allows, this
// instant comes before the leader's deadline: the holder is out before anybody
// else can be in.
func (r trustRule) until(sent time.Duration) time.Duration { return sent + r.ttl - r.margin }

// warn is when work must be told to stop, so that it is out at until.
func (r trustRule) warn(sent time.Duration) time.Duration { return r.until(sent) - r.stop }

// answer is a confirmed keep-alive that the local copy may not cover yet.
type answer struct {
	sent    time.Duration
	changed uint64 // revision of the last change to the session's leases
}

// maxUncovered bounds the answers that wait for a lagging copy.
const maxUncovered = 16

// trust is what one holder may believe about one session. It is pure: the
// caller brings the instants. A trust only ever ends once.
type trust struct {
	rule trustRule
	// sent is the sending of the newest confirmed and covered keep-alive (or of
	// the first try to open the session).
	sent time.Duration
	// asleep: the machine slept after sent; nothing is believed until a
	// keep-alive of a later sending is confirmed.
	asleep    bool
	wokeAt    time.Duration
	ending    bool
	over      bool
	uncovered []answer // by sending
}

// newTrust counts from the FIRST sending of the command that opened the
// session: the leader sets its deadline when it applies it, which a retry may
// have made any time after that sending.
func newTrust(rule trustRule, firstSent time.Duration) *trust {
	return &trust{rule: rule, sent: firstSent}
}

// confirmed takes a proved answer to a keep-alive. It counts at once when the
// copy has applied what it covers, else covered will count it: an answer that
// overtakes the log must not prolong a lease that the log has revoked.
func (t *trust) confirmed(a answer, applied uint64) {
	if a.sent <= t.sent && !(t.asleep && a.sent >= t.wokeAt) {
		return
	}
	if a.changed <= applied {
		t.extend(a.sent)
		return
	}
	i, _ := slices.BinarySearchFunc(t.uncovered, a, func(x, y answer) int { return int(min(1, max(-1, x.sent-y.sent))) })
	t.uncovered = slices.Insert(t.uncovered, i, a)
	if n := len(t.uncovered); n > maxUncovered {
		// The oldest may be covered first, the newest is worth most.
		t.uncovered = slices.Delete(t.uncovered, n-2, n-1)
	}
}

// covered counts the answers that the copy now covers.
func (t *trust) covered(applied uint64) {
	t.uncovered = slices.DeleteFunc(t.uncovered, func(a answer) bool {
		if a.changed > applied {
			return false
		}
		t.extend(a.sent)
		return true
	})
}

// waitsFor is the smallest revision that would make an answer count.
func (t *trust) waitsFor() (revision uint64, ok bool) {
	for _, a := range t.uncovered {
		if !ok || a.changed < revision {
			revision, ok = a.changed, true
		}
	}
	return revision, ok
}

func (t *trust) extend(sent time.Duration) {
	// One way: work that was told to stop is not told otherwise, and the
	// instant at which it is made to stop does not move.
	if t.ending {
		return
	}
	t.sent = max(t.sent, sent)
	if t.asleep && sent >= t.wokeAt {
		t.asleep = false
	}
}

// slept has the machine wake at now: what was confirmed before may have been
// given away meanwhile, so nothing is believed until the next answer.
func (t *trust) slept(now time.Duration) {
	t.asleep, t.wokeAt = true, now
}

// at moves the trust to now and tells which of its two ends have come.
func (t *trust) at(now time.Duration) (ending, over bool) {
	t.ending = t.ending || now >= t.rule.warn(t.sent)
	t.over = t.over || t.ending && now >= t.rule.until(t.sent)
	return t.ending, t.over
}

// end ends the trust at once: the session is gone.
func (t *trust) end() { t.ending, t.over = true, true }

// left is how long work may go on; not positive when nothing is believed.
func (t *trust) left(now time.Duration) time.Duration {
	if t.asleep || t.ending {
		return 0
	}
	return max(0, t.rule.warn(t.sent)-now)
}

// next is the instant at which at would tell something new.
func (t *trust) next() (at time.Duration, ok bool) {
	switch {
	case t.over:
		return 0, false
	case t.ending:
		return t.rule.until(t.sent), true
	}
	return t.rule.warn(t.sent), true
}
