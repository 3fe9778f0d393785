package coord

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
)

// Backoff says how long to wait after the n-th failure in a row. It is pure:
// the caller brings the chance. The zero value means the defaults.
type Backoff struct {
	// Initial is the delay after the first failure. Defaults to 1 s.
	Initial time.Duration
	// Max caps the delay. Defaults to 1 min.
	Max time.Duration
	// Factor is what each further failure multiplies the delay by. Defaults
	// to 2; 1 keeps it constant.
	Factor float64
	// Jitter is the share of the delay that chance may take off, so that
	// many that failed together don't come back together: 0.2 (the default)
	// spreads over the last fifth. Negative means none.
	Jitter float64
}

// Defaults of Backoff.
const (
	DefaultBackoffInitial = time.Second
	DefaultBackoffMax     = time.Minute
	DefaultBackoffFactor  = 2.0
	DefaultBackoffJitter  = 0.2
)

func (b Backoff) withDefaults() Backoff {
	b.Initial = cmp.Or(b.Initial, DefaultBackoffInitial)
	b.Max = cmp.Or(b.Max, max(DefaultBackoffMax, b.Initial))
	b.Factor = cmp.Or(b.Factor, DefaultBackoffFactor)
	b.Jitter = cmp.Or(b.Jitter, DefaultBackoffJitter)
	return b
}

// Validate reports every fault of b at once.
func (b Backoff) Validate() error {
	b = b.withDefaults()
	var errs []error
	if b.Initial < 0 {
		errs = append(errs, fmt.Errorf("Backoff.Initial is %v: it must be positive; %v would do", b.Initial, DefaultBackoffInitial))
	}
	if b.Max < b.Initial {
		errs = append(errs, fmt.Errorf("Backoff.Max is %v: it must not be less than Initial; %v would do", b.Max, b.Initial))
	}
	if !(b.Factor >= 1) || math.IsInf(b.Factor, 0) {
		errs = append(errs, fmt.Errorf("Backoff.Factor is %v: it must be at least 1; %v would do", b.Factor, DefaultBackoffFactor))
	}
	if !(b.Jitter <= 1) {
		errs = append(errs, fmt.Errorf("Backoff.Jitter is %v: it must be at most 1; %v would do", b.Jitter, DefaultBackoffJitter))
	}
	return errors.Join(errs...)
}

// Delay is the time to wait after the given number of failures in a row;
// chance lies in [0, 1). No failure, no delay.
func (b Backoff) Delay(failures int, chance float64) time.Duration {
	if failures <= 0 {
		return 0
	}
	b = b.withDefaults()
	d := float64(b.Max)
	if n := float64(b.Initial) * math.Pow(b.Factor, float64(failures-1)); n < d {
		d = n
	}
	return time.Duration(d - d*max(0, b.Jitter)*chance)
}
