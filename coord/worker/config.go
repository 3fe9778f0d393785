package worker

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
)

// Config sets a Catalog up. Zero fields mean their defaults.
type Config struct {
	// Runtimes are what this instance can run, each name once.
	Runtimes []Runtime
	// Artifacts gets hold of code. Needed where a runtime other than
	// RuntimeFunc is.
	Artifacts Artifacts

	// MaxLoads is how many loads are under way at a time on this instance, not
	// counting those that take longer than 10 s. Defaults to 8.
	MaxLoads int
	// LoadTimeout bounds a load, all tries of it together. Defaults to 5 min.
	LoadTimeout time.Duration
	// LoadTries is how often a load is tried whose error another try may mend.
	// Defaults to 3.
	LoadTries int
	// LoadBackoff is the time before the second try of a load; it doubles.
	// Defaults to 200 ms.
	LoadBackoff time.Duration

	// RunRestarts is how many failures in a row are answered by another run,
	// on the instance that has the worker; the next one is the worker's. A run
	// that lasted for as long as the longest RunBackoff begins a new row.
	// Defaults to 10; negative means none.
	RunRestarts int
	// RunBackoff is the time between a run that failed and the next; its
	// Initial also that after one of RestartAlways that ended well. Defaults to
	// 200 ms, doubled up to 30 s.
	RunBackoff coord.Backoff
	// DrainTimeout is how long a run may go on once it was asked to finish.
	// Defaults to the node's.
	DrainTimeout time.Duration
	// KillTimeout is how long a run may take to return once its context was
	// cancelled, before it counts as stuck. Defaults to the node's.
	KillTimeout time.Duration
	// Stuck says what happens to a run that does not return when it must.
	Stuck coord.StuckConfig

	// Planning is how workers are placed while this instance does it.
	Planning coord.Planning
	// Hooks is told what happens here.
	Hooks Hooks
	// Logger takes the log, that of workers too; nil discards it.
	Logger *slog.Logger
}

// Hooks are told what a Catalog does. All are optional. They are called by
// whoever does it and must not block; one that panics is logged.
type Hooks struct {
	// Loaded: this instance has loaded the code of a worker, to find out
	// whether it is good or to run it, or has failed to.
	Loaded func(workerID, runtime string, err *Error, took time.Duration)
	// Returned: a run has ended. outcome is one of the Outcome words.
	Returned func(workerID, runtime, outcome string, took time.Duration)
}

// Outcomes of a run.
const (
	OutcomeDone    = "done"    // it returned nil
	OutcomeFailed  = "failed"  // it returned an error, or panicked
	OutcomeStopped = "stopped" // it was asked to end before it did
)

// Defaults of Config.
const (
	DefaultMaxLoads    = 8
	DefaultLoadTimeout = 5 * time.Minute
	DefaultLoadTries   = 3
	DefaultLoadBackoff = 200 * time.Millisecond
	DefaultRunRestarts = 10
)

// defaultRunBackoff is between runs that fail.
var defaultRunBackoff = coord.Backoff{Initial: 200 * time.Millisecond, Max: 30 * time.Second}

// Validate reports every fault of c at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	seen := make(map[string]bool)
	for i, r := range c.Runtimes {
		switch {
		case r == nil:
			bad("Runtimes[%d] is nil", i)
			continue
		case seen[r.Name()]:
			bad("Runtimes[%d] is %q once more: each runtime once", i, r.Name())
		case r.Name() != RuntimeFunc && c.Artifacts == nil:
			bad("Artifacts is nil: the runtime %q needs code", r.Name())
		}
		seen[r.Name()] = true
	}
	if c.MaxLoads < 0 {
		bad("MaxLoads is %d: it must be positive, or 0 for %d", c.MaxLoads, DefaultMaxLoads)
	}
	if c.LoadTries < 0 {
		bad("LoadTries is %d: it must be positive, or 0 for %d", c.LoadTries, DefaultLoadTries)
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"LoadTimeout", c.LoadTimeout}, {"LoadBackoff", c.LoadBackoff}, {"DrainTimeout", c.DrainTimeout}, {"KillTimeout", c.KillTimeout}} {
		if d.d < 0 {
			bad("%s is %v: it must be positive, or 0 for the default", d.name, d.d)
		}
	}
	if err := c.RunBackoff.Validate(); err != nil {
		bad("Run%w", err)
	}
	return errors.Join(append(errs, c.Stuck.Validate(), c.Planning.Validate())...)
}

func (c Config) withDefaults(cl coord.Cluster) Config {
	c.MaxLoads = cmp.Or(c.MaxLoads, DefaultMaxLoads)
	c.LoadTimeout = cmp.Or(c.LoadTimeout, DefaultLoadTimeout)
	c.LoadTries = cmp.Or(c.LoadTries, DefaultLoadTries)
	c.LoadBackoff = cmp.Or(c.LoadBackoff, DefaultLoadBackoff)
	c.RunRestarts = max(0, cmp.Or(c.RunRestarts, DefaultRunRestarts))
	c.RunBackoff.Initial = cmp.Or(c.RunBackoff.Initial, defaultRunBackoff.Initial)
	c.RunBackoff.Max = max(cmp.Or(c.RunBackoff.Max, defaultRunBackoff.Max), c.RunBackoff.Initial)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, cl.DrainTimeout())
	c.KillTimeout = cmp.Or(c.KillTimeout, cl.KillTimeout())
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// invalid makes a refusal of faults, unless err has a code of its own.
func invalid(what string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*fsm.Error](err); ok {
		return &fsm.Error{Code: e.Code, Message: what + ": " + e.Message}
	}
	return &fsm.Error{Code: fsm.CodeInvalidArgument, Message: fmt.Sprintf("%s: %v", what, err)}
}
