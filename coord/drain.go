package coord

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
)

// Drainable is work that can be asked to finish what it has begun and take
// nothing new.
type Drainable interface {
	// RequestDrain is called at most once for each run, when its drain begins
	// and before its context is cancelled. It should return at once.
	RequestDrain()
}

// DrainConfig says how a run is ended whose lease is kept meanwhile: because
// the instance drains, the node or the Runner is being stopped, or (with
// RebalanceGraceful) the lease is to pass to another instance.
type DrainConfig struct {
	// Timeout is how long the run may go on once it was asked to finish.
	// Defaults to the node's drain timeout.
	Timeout time.Duration
	// KillTimeout is how long the run may take to return once its context was
	// cancelled, before it counts as stuck. Defaults to the node's.
	KillTimeout time.Duration
	// Drainable is called before each run, on the run's goroutine, for what is
	// to be asked to finish that run: nothing is carried over from one run to
	// the next. It may return nil. Work may watch Lease.Draining instead.
	Drainable func() Drainable
	// Resume makes Run wait for an undrain and queue again. By default Run
	// returns when the instance drains.
	Resume bool
}

// Validate reports every fault of d at once.
func (d DrainConfig) Validate() error {
	var errs []error
	if d.Timeout < 0 {
		errs = append(errs, fmt.Errorf("Drain.Timeout is %v: it must be positive; %v would do", d.Timeout, DefaultTimings().DrainTimeout))
	}
	if d.KillTimeout < 0 {
		errs = append(errs, fmt.Errorf("Drain.KillTimeout is %v: it must be positive; %v would do", d.KillTimeout, 5*time.Second))
	}
	return errors.Join(errs...)
}

// requestDrain asks d, if there is one, on a goroutine of its own: a
// RequestDrain that hangs or panics changes nothing about the drain.
func requestDrain(d Drainable, log *relay) {
	if d == nil {
		return
	}
	go func() {
		defer func() {
			if v := recover(); v != nil {
				log.tell(slog.LevelError, "RequestDrain panicked", nil, slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			}
		}()
		d.RequestDrain()
	}()
}
