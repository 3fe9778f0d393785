package coord

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/miwnode/miwnode/fsm"
)

// Func is the work of a Runner. It runs while the lease is held, must return
// soon after ctx ends, and may ask context.Cause(ctx) why it ended.
type Func func(ctx context.Context, l *Lease) error

// RestartPolicy says what follows when a run has returned by itself.
type RestartPolicy uint8

// Restart policies. A failure is an error, a panic, or a goroutine that ended;
// it always releases the lease at once, so that another instance may try.
const (
	// RestartAlways: a run that returned nil keeps the lease and is run again
	// after the restart delay; one that failed queues again after its back-off.
	RestartAlways RestartPolicy = iota
	// RestartOnFailure: a run that returned nil ends the Runner; one that
	// failed queues again after its back-off.
	RestartOnFailure
	// RestartNever: the Runner ends with its first run.
	RestartNever
)

func (p RestartPolicy) String() string {
	switch p {
	case RestartAlways:
		return "always"
	case RestartOnFailure:
		return "on_failure"
	case RestartNever:
		return "never"
	}
	return fmt.Sprintf("restart_policy_%d", uint8(p))
}

// Rebalance says how a run ends whose lease is to pass to another instance.
type Rebalance uint8

// Ways of ending such a run.
const (
	// RebalanceImmediate cancels its context at once.
	RebalanceImmediate Rebalance = iota
	// RebalanceGraceful lets it finish as in a drain.
	RebalanceGraceful
)

// RunnerConfig sets a Runner up. Zero fields mean their defaults.
type RunnerConfig struct {
	// Name is what the log calls the work. Defaults to the key.
	Name string
	// LockDelay keeps the key barred to everybody for so long after the lease
	// ended otherwise than by a release. Defaults to none.
	LockDelay time.Duration

	// Restart is the restart policy. Defaults to RestartAlways.
	Restart RestartPolicy
	// RestartDelay is the time between a run that returned nil and the next.
	// Defaults to the node's renew interval; negative means none.
	RestartDelay time.Duration
	// Backoff is what a failed run waits before it queues again.
	Backoff Backoff
	// MaxFailures ends the Runner with a *FailedError after so many failures
	// in a row; a run that lasted longer than Backoff.Max begins a new row.
	// Defaults to no limit.
	MaxFailures int

	// Prepare, if set, is called before the first run of each grant: as soon as
	// the Runner is next in line, without the lease, so that a hot standby
	// loses no time when it is granted; else under the new lease. It gets ready
	// what needs no exclusion. Its context ends when Run is to return.
	Prepare func(ctx context.Context) error
	// Drain says how a run ends whose lease is kept meanwhile.
	Drain DrainConfig
	// Stuck says what happens to a run that does not return when it must.
	Stuck StuckConfig
	// Rebalance says how a run ends when the lease is to pass to another
	// instance. Defaults to RebalanceImmediate.
	Rebalance Rebalance

	// Hooks are told what happens.
	Hooks Hooks
	// Logger takes the log; nil discards it.
	Logger *slog.Logger
}

// Validate reports every fault of c at once, each naming its field and what
// would do.
func (c RunnerConfig) Validate() error {
	errs := []error{c.Backoff.Validate(), c.Drain.Validate(), c.Stuck.Validate()}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Name != "" && (strings.TrimSpace(c.Name) == "" || strings.ContainsFunc(c.Name, unicode.IsControl)) {
		bad("Name is %q: it must have something to read, and no control characters; an empty one stands for the key", c.Name)
	}
	if c.LockDelay < 0 {
		bad("LockDelay is %v: it must not be negative; 0 means none", c.LockDelay)
	}
	if c.Restart > RestartNever {
		bad("Restart is %v: RestartAlways, RestartOnFailure or RestartNever would do", c.Restart)
	}
	if c.MaxFailures < 0 {
		bad("MaxFailures is %d: it must not be negative; 0 means no limit", c.MaxFailures)
	}
	if c.Rebalance > RebalanceGraceful {
		bad("Rebalance is %d: RebalanceImmediate or RebalanceGraceful would do", c.Rebalance)
	}
	return errors.Join(errs...)
}

// withDefaults returns c with its zero fields set from the node's settings.
func (c RunnerConfig) withDefaults(cl Cluster, key string) RunnerConfig {
	c.Name = cmp.Or(c.Name, key)
	c.RestartDelay = max(0, cmp.Or(c.RestartDelay, cl.RenewInterval()))
	c.Backoff = c.Backoff.withDefaults()
	c.Drain.Timeout = cmp.Or(c.Drain.Timeout, cl.DrainTimeout())
	c.Drain.KillTimeout = cmp.Or(c.Drain.KillTimeout, cl.KillTimeout())
	c.Stuck = c.Stuck.withDefaults(cl, PolicyExit)
	if c.Logger == nil {
		c.Logger = discard
	}
	return c
}

// Runner runs a function in exactly one of all processes that run a Runner of
// the same key. It is safe for concurrent use.
type Runner struct {
	c       Cluster
	key     string
	work    Func
	cfg     RunnerConfig
	err     error // what is wrong with the configuration
	events  relay
	standby standby
	aside   sync.WaitGroup // what is told to the cluster beside the run
	planned bool           // a planner grants the key, nobody queues for it
	// graceful tells whether a run whose lease moves may finish first.
	graceful func() bool
	// patient tells whether a run that is to be drained waits for who is next to
	// get ready; nil: it doesn't.
	patient func() bool

	mu      sync.Mutex
	running bool
	status  Status
}

// NewRunner makes a Runner of the work under key; each option may change the
// configuration:
//
//	coord.NewRunner(n, "singleton:mailer", work, func(c *coord.RunnerConfig) {
//		c.Restart = coord.RestartOnFailure
//	})
//
// The configuration is checked here; [Runner.Err] tells what is wrong with it,
// and Run returns that before it does anything.
func NewRunner(c Cluster, key string, work Func, options ...func(*RunnerConfig)) *Runner {
	var cfg RunnerConfig
	for _, set := range options {
		set(&cfg)
	}
	errs := []error{checkKey(key), cfg.Validate()}
	if c == nil {
		errs = append(errs, errors.New("the cluster is nil"))
	}
	if work == nil {
		errs = append(errs, errors.New("the function is nil"))
	}
	if err := errors.Join(errs...); err != nil {
		return &Runner{
			c: c, key: key, status: Status{Key: key, State: StateIdle},
			err: &fsm.Error{Code: fsm.CodeInvalidArgument, Message: fmt.Sprintf("runner of %q: %v", key, err)},
		}
	}
	return newRunner(c, key, work, cfg.withDefaults(c, key))
}

// newRunner makes a Runner of a configuration that is checked and whole.
func newRunner(c Cluster, key string, work Func, cfg RunnerConfig) *Runner {
	r := &Runner{c: c, key: key, work: work, cfg: cfg, status: Status{Key: key, State: StateIdle}}
	r.graceful = func() bool { return r.cfg.Rebalance == RebalanceGraceful }
	r.status.Name = r.cfg.Name
	r.events.log = r.cfg.Logger.With(slog.String("runner", r.cfg.Name), slog.String("key", key))
	r.standby = standby{prepare: r.cfg.Prepare, log: &r.events}
	return r
}

// Key is the key of the Runner's lease.
func (r *Runner) Key() string { return r.key }

// Err is what is wrong with the configuration, nil if nothing is.
func (r *Runner) Err() error { return r.err }

// Run queues for the key, runs the function while it holds the lease, and goes
// on so until ctx ends, the instance drains or the restart policy is done. The
// end of ctx is a drain of this Runner: the run may finish, for up to the drain
// timeout, before its context is cancelled; the lease is released when it has
// returned; then Run returns. Under PolicyHold Run waits for a stuck run for
// ever, and says so.
//
// Run returns nil after a stop, a drain, or a run that ended well and is not to
// be run again; a *FailedError when the restart policy allows no further try;
// ErrRunning while it runs already. No goroutine of it outlives it, except
// those that the function started or that hang in a RequestDrain.
func (r *Runner) Run(ctx context.Context) error {
	if r.err != nil {
		return r.err
	}
	r.mu.Lock()
	if r.running {
		r.mu.Unlock()
		return ErrRunning
	}
	r.running = true
	r.mu.Unlock()

	lo := lookoutFor(r.c)
	defer lo.leave()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	r.standby.ctx = life
	r.events.tell(slog.LevelInfo, "runner starts", nil, slog.String("instance", r.c.InstanceID()))

	err := r.loop(ctx, lo)

	end()
	r.standby.work.Wait()
	r.aside.Wait()
	r.standby.spent()
	r.set(func(s *Status) { s.State, s.Token = StateStopped, 0 })
	stopped := r.cfg.Hooks.Stopped
	r.events.tell(slog.LevelInfo, "runner stopped", hook(stopped != nil, func() { stopped(err) }))
	r.events.drained()
	r.mu.Lock()
	r.running = false
	r.mu.Unlock()
	return err
}

// loop is the life of the Runner: wait, hold, and what follows from it.
func (r *Runner) loop(ctx context.Context, lo *lookout) error {
	failures := 0
	for {
		if ctx.Err() != nil {
			return nil
		}
		if cause := lo.refresh(); cause != nil {
			if !errors.Is(cause, ErrDrained) || !r.cfg.Drain.Resume {
				return nil
			}
			r.set(func(s *Status) { s.State = StateSuspended })
			if !r.undrained(ctx, lo) {
				return nil
			}
			continue
		}
		seat, err := r.seek(ctx, lo)
		if err != nil {
			if ctx.Err() == nil && lo.refresh() == nil {
				r.events.tell(slog.LevelWarn, "can't queue for the lease; trying again", nil, slog.Any("error", err))
				r.wait(ctx, lo, r.c.RenewInterval()/2)
			}
			continue
		}

		end := r.hold(ctx, lo, seat)
		switch {
		case end.completed && r.cfg.Restart != RestartAlways:
			return nil
		case end.hindered != nil:
			r.events.tell(slog.LevelWarn, "can't begin a run; queues again", nil, slog.Any("error", end.hindered))
			r.wait(ctx, lo, r.c.RenewInterval()/2)
			continue
		}
		if end.ranWell {
			failures = 0
			r.set(func(s *Status) { s.Failures = 0 })
		}
		if end.failure == nil {
			continue
		}
		failures++
		if r.cfg.Restart == RestartNever || r.cfg.MaxFailures > 0 && failures >= r.cfg.MaxFailures {
			return &FailedError{Key: r.key, Failures: failures, Err: end.failure}
		}
		delay := r.cfg.Backoff.Delay(failures, rand.Float64())
		r.failed(end.failure, failures, delay)
		r.wait(ctx, lo, delay)
	}
}

func (r *Runner) seek(ctx context.Context, lo *lookout) (*seat, error) {
	r.set(func(s *Status) { s.State, s.Token = StateWaiting, 0 })
	s := &seeker{lo: lo, key: r.key, kind: "runner", wait: true, lockDelay: r.cfg.LockDelay}
	s.cleaning = func(leave func()) { leave() }
	if r.cfg.Prepare != nil {
		s.next = r.standby.begin
	}
	seat, err := s.seek(ctx)
	if err == nil {
		seat.asked.end()
	}
	return seat, err
}

// wait waits for d, less when ctx ends or the instance halts.
func (r *Runner) wait(ctx context.Context, lo *lookout, d time.Duration) {
	until := within(ctx, lo.halted())
	defer until.end()
	_ = pause(until, d)
}

// undrained waits until the instance may take work again; false when ctx ends
// or the node closes first.
func (r *Runner) undrained(ctx context.Context, lo *lookout) bool {
	wake, unwatch := r.c.Watch(fsm.InstanceTopic(r.c.InstanceID()))
	defer unwatch()
	for {
		switch cause := lo.refresh(); {
		case cause == nil:
			return true
		case errors.Is(cause, ErrShutDown):
			return false
		}
		select {
		case <-wake:
		case <-r.c.Closing():
		case <-ctx.Done():
			return false
		}
	}
}

// hook returns f if there is a hook to be called, nil if not.
func hook(there bool, f func()) func() {
	if there {
		return f
	}
	return nil
}
