package coord

import (
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// standing is what the local copy says about a grant.
type standing uint8

const (
	held    standing = iota
	moving           // held, and asked to pass to another instance
	revoked          // taken away; freed T after the revoke was applied
	gone             // no such grant: freed, or the key is granted anew
)

// look reads the standing of the grant from the copy. It is one lookup: a
// lease that is checked costs no allocation and well below a microsecond.
func look(v *fsm.View, key, session string, token uint64) (standing, *fsm.Lease) {
	l, ok := v.Lease(key)
	if !ok || l.Token != token || l.SessionID != session {
		return gone, nil
	}
	switch l.State {
	case fsm.Held:
		return held, l
	case fsm.Transferring:
		return moving, l
	case fsm.Revoked:
		return revoked, l
	}
	return gone, nil // barred: the token is that of a grant that ended
}

// enough is the trust that a run must find to begin without a further proof:
// half of what is left of the TTL when the margin, at least a tenth of it, is
// taken off. A session that renews in time always has more.
func enough(ttl time.Duration) time.Duration { return (ttl - ttl/10) / 2 }

// grace is what a run that must end at once is given to return before it is
// made to. The margin is at least a tenth of the TTL; half of it allows for
// clocks that run at different rates, this is the other half.
func grace(ttl time.Duration) time.Duration { return ttl / 20 }

// sample is one reading of a session's trust: read first, and the revision of
// the copy after it.
type sample struct {
	until    time.Time // when the session is ending, by that reading
	revision uint64
}

// revokedUntil is the latest moment at which a run whose lease was revoked by
// the entry of the given revision is surely alone. Answers to keep-alives
// count only for a copy that has applied what they cover. So trust read while
// the copy had not yet applied the revoke comes from keep-alives that were
// sent before it, and runs out before the leader frees the key, T after it.
// Without such a reading there is no proof, and the answer is zero.
func revokedUntil(samples []sample, revision uint64) time.Time {
	for i := len(samples) - 1; i >= 0; i-- {
		if samples[i].revision < revision {
			return samples[i].until
		}
	}
	return time.Time{}
}
