package coord

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Timings are the five durations by which services of this kind have always
// been set, and the three that the size rule needs beside them. They describe
// one session: [Timings.SessionTTL], [Timings.KeepAliveInterval] and
// [Timings.RestartDelay] say what a node is to be given.
//
// The first five have no default and must be positive; the rest may be zero.
type Timings struct {
	// LeaseTTL is the longest a lease outlives the last sign of its holder.
	LeaseTTL time.Duration
	// RenewInterval is the time between two renewals of a lease, and what a
	// run that returned nil waits before it is run again.
	RenewInterval time.Duration
	// HeartbeatTTL is the longest an instance outlives its last sign.
	HeartbeatTTL time.Duration
	// HeartbeatInterval is the time between two signs of an instance.
	HeartbeatInterval time.Duration
	// DrainTimeout bounds how long a run may go on once its instance drains.
	DrainTimeout time.Duration

	// Margin allows for clocks that run at different rates. Defaults to 1 s
	// or a tenth of the session's TTL, whichever is more.
	Margin time.Duration
	// StopBudget is the time between telling work to stop and making it.
	// Defaults to 1 s.
	StopBudget time.Duration
	// Election is raft's election timeout. Defaults to 500 ms.
	Election time.Duration
}

// Limits of a session's TTL and defaults of Timings.
const (
	MinSessionTTL = 2 * time.Second
	MaxSessionTTL = 60 * time.Second

	DefaultMargin     = time.Second
	DefaultStopBudget = time.Second
	DefaultElection   = 500 * time.Millisecond
)

// DefaultTimings is what a node uses when it is told nothing.
func DefaultTimings() Timings {
	return Timings{
		LeaseTTL: 10 * time.Second, RenewInterval: 2 * time.Second,
		HeartbeatTTL: 10 * time.Second, HeartbeatInterval: 2 * time.Second,
		DrainTimeout: 30 * time.Second,
		Margin:       DefaultMargin, StopBudget: DefaultStopBudget, Election: DefaultElection,
	}
}

// SessionTTL is the TTL of the one session that carries leases and instance.
func (t Timings) SessionTTL() time.Duration { return min(t.LeaseTTL, t.HeartbeatTTL) }

// KeepAliveInterval is the time between two keep-alives of that session.
func (t Timings) KeepAliveInterval() time.Duration { return min(t.RenewInterval, t.HeartbeatInterval) }

// RestartDelay is what a run that returned nil waits before it runs again.
func (t Timings) RestartDelay() time.Duration { return t.RenewInterval }

// WithDefaults sets those of the last three fields that are zero.
func (t Timings) WithDefaults() Timings {
	t.Margin = cmp.Or(t.Margin, max(DefaultMargin, t.SessionTTL()/10))
	t.StopBudget = cmp.Or(t.StopBudget, DefaultStopBudget)
	t.Election = cmp.Or(t.Election, DefaultElection)
	return t
}

// TimingError is one fault of Timings: which field, what it is, and a value of
// that field that would do.
type TimingError struct {
	Field  string
	Value  time.Duration
	Why    string
	Remedy time.Duration // a value of Field that would do
	Other  string        // another way out, "" when there is none
}

func (e *TimingError) Error() string {
	s := fmt.Sprintf("%s is %v: %s; %v would do", e.Field, e.Value, e.Why, e.Remedy)
	if e.Other != "" {
		s += ", or " + e.Other
	}
	return s
}

// Validate reports every fault at once (errors.Join of *TimingError), each
// with the field, its value and one that would do.
func (t Timings) Validate() error {
	t = t.WithDefaults()
	var errs []error
	bad := func(field string, value, remedy time.Duration, other, why string, args ...any) {
		errs = append(errs, &TimingError{Field: field, Value: value, Why: fmt.Sprintf(why, args...), Remedy: remedy, Other: other})
	}

	normal := DefaultTimings()
	for _, f := range []struct {
		name             string
		value, remedy    time.Duration
		defaultedIfUnset bool
	}{
		{"LeaseTTL", t.LeaseTTL, normal.LeaseTTL, false},
		{"RenewInterval", t.RenewInterval, normal.RenewInterval, false},
		{"HeartbeatTTL", t.HeartbeatTTL, normal.HeartbeatTTL, false},
		{"HeartbeatInterval", t.HeartbeatInterval, normal.HeartbeatInterval, false},
		{"DrainTimeout", t.DrainTimeout, normal.DrainTimeout, false},
		{"Margin", t.Margin, normal.Margin, true},
		{"StopBudget", t.StopBudget, normal.StopBudget, true},
		{"Election", t.Election, normal.Election, true},
	} {
		if f.value <= 0 {
			bad(f.name, f.value, f.remedy, "", "it must be more than zero")
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...) // the relations below mean nothing yet
	}

	if t.RenewInterval >= t.LeaseTTL {
		bad("RenewInterval", t.RenewInterval, t.LeaseTTL/5, "", "it must be less than LeaseTTL (%v)", t.LeaseTTL)
	}
	if t.HeartbeatInterval >= t.HeartbeatTTL {
		bad("HeartbeatInterval", t.HeartbeatInterval, t.HeartbeatTTL/5, "", "it must be less than HeartbeatTTL (%v)", t.HeartbeatTTL)
	}

	ttl, renew := t.SessionTTL(), t.KeepAliveInterval()
	ttlField := "LeaseTTL"
	if t.HeartbeatTTL < t.LeaseTTL {
		ttlField = "HeartbeatTTL"
	}
	renewField := "RenewInterval"
	if t.HeartbeatInterval < t.RenewInterval {
		renewField = "HeartbeatInterval"
	}
	switch {
	case ttl < MinSessionTTL:
		bad(ttlField, ttl, normal.LeaseTTL, "", "the session's TTL must lie between %v and %v", MinSessionTTL, MaxSessionTTL)
	case ttl > MaxSessionTTL:
		bad(ttlField, ttl, MaxSessionTTL, "", "the session's TTL must lie between %v and %v", MinSessionTTL, MaxSessionTTL)
	}
	if least := (ttl + 9) / 10; t.Margin < least {
		bad("Margin", t.Margin, least, "", "it must be at least a tenth of the session's TTL (%v)", ttl)
	}
	errs = append(errs, t.checkSize(ttlField, ttl, renewField, renew)...)
	return errors.Join(errs...)
}

// checkSize holds the size rule TTL > renew + margin + stop budget + 2*election:
// after one lost keep-alive and one election there must still be trust left.
func (t Timings) checkSize(ttlField string, ttl time.Duration, renewField string, renew time.Duration) []error {
	fixed := t.Margin + t.StopBudget + 2*t.Election
	if ttl > renew+fixed {
		return nil
	}
	fault := &TimingError{Why: fmt.Sprintf(
		"the session's TTL (%v) must exceed the keep-alive interval (%v) + Margin (%v) + StopBudget (%v) + 2*Election (%v) = %v",
		ttl, renew, t.Margin, t.StopBudget, 2*t.Election, renew+fixed)}
	lower := ttl - fixed                                            // what the interval must stay below
	longer := roundUp(renew + fixed)                                // a TTL that would do with this margin
	both := roundUp((renew + t.StopBudget + 2*t.Election) / 9 * 10) // one that would do with a tenth as margin
	withMargin := fmt.Sprintf("%s %v with Margin %v", ttlField, both, both/10)
	switch {
	case longer <= MaxSessionTTL && t.Margin >= longer/10:
		fault.Field, fault.Value, fault.Remedy = ttlField, ttl, longer
		if lower > time.Millisecond {
			fault.Other = fmt.Sprintf("%s below %v", renewField, lower)
		}
	case lower > time.Millisecond:
		fault.Field, fault.Value, fault.Remedy = renewField, renew, lower/2
		if both <= MaxSessionTTL {
			fault.Other = withMargin
		}
	case both <= MaxSessionTTL:
		fault.Field, fault.Value, fault.Remedy = ttlField, ttl, both
		fault.Why += fmt.Sprintf(" (and Margin must then be %v)", both/10)
	default: // no TTL would do: the largest of what is kept back must shrink
		fault.Field, fault.Value, fault.Remedy = renewField, renew, DefaultTimings().RenewInterval
		if most := max(renew, t.StopBudget, 2*t.Election); most == t.StopBudget {
			fault.Field, fault.Value, fault.Remedy = "StopBudget", t.StopBudget, DefaultStopBudget
		} else if most == 2*t.Election {
			fault.Field, fault.Value, fault.Remedy = "Election", t.Election, DefaultElection
		}
	}
	return []error{fault}
}

// roundUp returns the next tenth of a second that is strictly more than d.
func roundUp(d time.Duration) time.Duration {
	const step = 100 * time.Millisecond
	return d/step*step + step
}
