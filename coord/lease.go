package coord

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// Bounds of a release: of a lease whose session has trust, and of one whose
// session is lost, where releasing is a courtesy: the session's end frees it.
const (
	releaseTimeout     = 5 * time.Second
	lostReleaseTimeout = time.Second
)

// Lease is one grant of a key to this process. It is safe for concurrent use.
//
// A Lease comes from [Acquire], and then lasts until [Lease.Release]; or a
// [Runner] hands it to its function, and then the Runner releases it.
type Lease struct {
	c        Cluster
	seat     *seat
	ctx      context.Context
	cancel   context.CancelCauseFunc
	draining chan struct{} // closed when the work is asked to finish
	handle   *handle       // nil: a Runner's
}

func newLease(ctx context.Context, c Cluster, s *seat) *Lease {
	l := &Lease{c: c, seat: s, draining: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return l
}

// Key is the key that the lease owns.
func (l *Lease) Key() string { return l.seat.key }

// Token is the fencing token of the grant. Tokens of a key grow from grant to
// grant: hand it to whatever the work writes to, and have that refuse smaller
// ones. A run that is run again under the same grant keeps the token.
func (l *Lease) Token() uint64 { return l.seat.token }

// Context ends when the work under the lease must stop. context.Cause tells
// why: ErrLost, ErrRevoked, ErrMoved, ErrDrained, ErrShutDown or ErrReleased.
// It keeps the values, not the end, of the context that Acquire was given.
func (l *Lease) Context() context.Context { return l.ctx }

// Draining is closed when the work should finish what it has begun and take
// nothing new: the instance drains, or the Runner is being stopped. The context
// ends only when the drain timeout has passed.
func (l *Lease) Draining() <-chan struct{} { return l.draining }

// Valid tells, without asking anybody, whether the lease is still this
// process's to act under: its session is trusted and the local copy shows the
// grant, not revoked. It costs no allocation and takes well below a
// microsecond. It says nothing of the moment after it returned: writes that
// must never be stale carry the [Lease.Token] besides.
func (l *Lease) Valid() bool {
	if l.handle != nil && l.handle.released() {
		return false
	}
	if l.c.Trusted(l.seat.session.id) <= 0 {
		return false
	}
	st, _ := l.seat.look(l.c.View())
	return st == held || st == moving
}

// Confirm returns nil if the lease was this process's at some moment after the
// call began, by a keep-alive that was sent after it and proved by a majority.
// Otherwise it says why not: ErrLost or ErrRevoked for a lease that is gone,
// ErrReleased after Release, else what hindered the proof (which says nothing
// of the lease).
func (l *Lease) Confirm(ctx context.Context) error {
	if l.handle != nil && l.handle.released() {
		return ErrReleased
	}
	select {
	case <-l.seat.session.ending.Done():
		return ErrLost
	default:
	}
	if err := l.c.Confirm(ctx, l.seat.session.id); err != nil {
		if errors.Is(err, fsm.ErrSessionExpired) {
			return ErrLost
		}
		return fmt.Errorf("confirm lease %q: %w", l.seat.key, err)
	}
	switch st, _ := l.seat.look(l.c.View()); st {
	case revoked:
		return ErrRevoked
	case gone:
		return ErrLost
	}
	return nil
}

// Transfer asks that the lease pass to another instance, which must wait for
// the key. The context then ends with ErrMoved, and the key passes on in the
// entry that releases it: here with Release, under a Runner when the run has
// returned. Refusals: fsm.ErrStaleToken (no longer this process's),
// fsm.ErrWrongState (nobody of that instance waits, or another transfer or a
// revoke is under way).
func (l *Lease) Transfer(ctx context.Context, toInstance string) error {
	res, err := l.c.Submit(ctx, &fsm.Transfer{Key: l.seat.key, Token: l.seat.token, ToInstance: toInstance, By: l.c.InstanceID()})
	if err == nil {
		err = fsm.ResultErr(res)
	}
	if err != nil {
		return fmt.Errorf("transfer lease %q: %w", l.seat.key, err)
	}
	return nil
}

// Release gives the lease back by its token; call it when the work under the
// lease has stopped. It is bounded (five seconds, or ctx's deadline if that
// comes first) and does its work although ctx may be cancelled already. It may
// be called again, by anybody.
//
//	nil                                done: the key is free of this grant
//	fsm.ErrStaleToken                  refused: the grant had ended before, nothing was changed
//	fsm.ErrUncertain, fsm.ErrNoQuorum  the key may still be held; the node goes
//	                                   on trying to give it back, and calling
//	                                   again tells how it went
//
// After any of them this process is done with the lease. Inside a Runner's
// function Release is refused (fsm.ErrWrongState): return instead.
func (l *Lease) Release(ctx context.Context) error {
	if l.handle == nil {
		return fsm.Errorf(fsm.CodeWrongState, "the runner releases lease %q when the run has returned: return from it", l.seat.key)
	}
	if err := l.handle.release(ctx, l); err != nil {
		return fmt.Errorf("release lease %q: %w", l.seat.key, err)
	}
	return nil
}

// handle is what a Lease of Acquire has beyond the grant.
type handle struct {
	lo   *lookout
	run  uint64
	over chan struct{} // closed by the first Release
	// acquiredAt is the stack of the Acquire, for a report that it is still held.
	acquiredAt []uintptr

	once  sync.Once
	alone sync.WaitGroup // the goroutine that watches over the lease

	mu    sync.Mutex // held while a release is tried
	tried bool       // a release was sent whose fate is not known
	done  bool
	err   error // how it ended, when done
}

func (h *handle) released() bool {
	select {
	case <-h.over:
		return true
	default:
		return false
	}
}

func (h *handle) release(ctx context.Context, l *Lease) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done {
		return h.err
	}
	first := false
	h.once.Do(func() {
		first = true
		l.c.Finished(h.run)
		l.cancel(ErrReleased)
		close(h.over)
		h.alone.Wait()
	})

	limit := releaseTimeout
	if l.seat.session.ending.Err() != nil {
		limit = lostReleaseTimeout
	}
	if deadline, ok := ctx.Deadline(); ok {
		if left := time.Until(deadline); left > 0 {
			limit = min(limit, left)
		}
	}
	err := l.seat.free(ctx, limit)
	switch {
	case err == nil:
		h.done = true
	case errors.Is(err, fsm.ErrStaleToken), errors.Is(err, fsm.ErrSessionExpired):
		h.done = true
		if h.tried { // an earlier try, or the node after it, did it
			err = nil
		} else {
			err = fsm.Errorf(fsm.CodeStaleToken, "the grant with token %d had ended before", l.seat.token)
		}
	}
	h.tried, h.err = true, err
	if first {
		// The claim goes last: what this release could not free, the node does.
		l.c.Returned(h.run)
		l.seat.drop()
		h.lo.leave()
	}
	return err
}

// AcquireOption sets what [Acquire] does beyond its default.
type AcquireOption func(*acquireOptions)

type acquireOptions struct {
	try          bool
	waitAtMost   time.Duration
	lockDelay    time.Duration
	drainTimeout time.Duration
	stuck        StuckConfig
	log          *slog.Logger
}

// Try makes Acquire answer at once: fsm.ErrLeaseHeld when the key is not free.
func Try() AcquireOption { return func(o *acquireOptions) { o.try = true } }

// WaitAtMost bounds the wait: fsm.ErrWaitTimeout when the key was not granted
// within d. Where the wait could not even begin, the error says that instead
// (fsm.ErrNoQuorum).
func WaitAtMost(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.waitAtMost = max(d, time.Nanosecond) }
}

// WithLockDelay keeps the key barred to everybody for d after the lease ended
// otherwise than by a release.
func WithLockDelay(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.lockDelay = d }
}

// WithDrainTimeout is how long the context of the lease goes on once the
// instance drains. Defaults to the node's drain timeout.
func WithDrainTimeout(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.drainTimeout = d }
}

// WithStuck says what happens when the lease is not released in time. For a
// lease of Acquire the default is to report it: nobody but the caller knows
// whether anything still runs under it.
func WithStuck(s StuckConfig) AcquireOption { return func(o *acquireOptions) { o.stuck = s } }

// WithLogger takes the log of the lease; none is written without it.
func WithLogger(log *slog.Logger) AcquireOption { return func(o *acquireOptions) { o.log = log } }

var discard = slog.New(slog.DiscardHandler)

// Acquire returns with a lease on key, under the session of c's instance. By
// default it waits, first come first served over the whole cluster, until ctx
// ends; [Try] and [WaitAtMost] wait less. Every Acquire is a holder of its own:
// two of one process exclude each other.
//
// It returns once the lease may be used: the session has trust enough, and
// whatever this process ran under an earlier grant of the key has returned.
//
// Errors: fsm.ErrLeaseHeld, fsm.ErrWaitTimeout, fsm.ErrDraining and
// fsm.ErrClosing (this instance takes nothing new), ErrSessionLost (the session
// ended while it waited), fsm.ErrNoQuorum and fsm.ErrUncertain (ctx ended
// before the cluster had answered), the cause of ctx. After an error nothing is
// held: what a lost answer may have granted is given back.
func Acquire(ctx context.Context, c Cluster, key string, options ...AcquireOption) (*Lease, error) {
	if err := checkKey(key); err != nil {
		return nil, fmt.Errorf("acquire: %w", err)
	}
	if c == nil {
		return nil, fmt.Errorf("acquire %q: %w", key, fsm.Errorf(fsm.CodeInvalidArgument, "the cluster is nil"))
	}
	o := acquireOptions{drainTimeout: c.DrainTimeout(), log: discard}
	for _, set := range options {
		set(&o)
	}
	if err := errors.Join(o.stuck.Validate(), notNegative("lock delay", o.lockDelay), notNegative("drain timeout", o.drainTimeout)); err != nil {
		return nil, fmt.Errorf("acquire %q: %w", key, &fsm.Error{Code: fsm.CodeInvalidArgument, Message: err.Error()})
	}
	lo := lookoutFor(c)
	l, err := acquire(ctx, lo, key, o)
	if err != nil {
		lo.leave()
		return nil, fmt.Errorf("acquire %q: %w", key, err)
	}
	return l, nil
}

func acquire(ctx context.Context, lo *lookout, key string, o acquireOptions) (*Lease, error) {
	bounded := ctx
	if o.waitAtMost > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeoutCause(ctx, o.waitAtMost, fsm.Errorf(fsm.CodeWaitTimeout, "not granted within %v", o.waitAtMost))
		defer cancel()
	}
	s := &seeker{lo: lo, key: key, kind: "handle", wait: !o.try, lockDelay: o.lockDelay}
	s.cleaning = func(leave func()) { lo.keepFor(leave) }
	seat, err := s.seek(bounded)
	if err != nil {
		return nil, err
	}
	l := newLease(ctx, lo.c, seat)
	pcs := make([]uintptr, 16)
	l.handle = &handle{lo: lo, over: make(chan struct{}), acquiredAt: pcs[:runtime.Callers(3, pcs)]}
	l.handle.run, err = ready(lo, seat, o.try)
	seat.asked.end()
	if err != nil {
		l.cancel(ErrReleased)
		lo.keepFor(func() {
			_ = seat.free(ctx, leaveTimeout) // what it can't free, the node does
			seat.drop()
		})
		return nil, err
	}
	lo.c.Started(l.handle.run)
	// What the caller does after the context has ended nobody knows.
	context.AfterFunc(l.ctx, func() { lo.c.Finished(l.handle.run) })
	l.handle.alone.Go(func() { l.keep(o) })
	return l, nil
}

// slotTimeout bounds how long an Acquire that does not wait waits for an
// earlier run of this process under the same key.
const slotTimeout = time.Second

// ready waits until the grant may be used: the slot of the key is free in this
// process, and the session has trust enough.
func ready(lo *lookout, p *seat, try bool) (run uint64, err error) {
	slot, ctx := context.Context(p.asked), context.Context(p.asked)
	if try {
		var cancel context.CancelFunc
		slot, cancel = context.WithTimeoutCause(ctx, slotTimeout, fsm.Errorf(fsm.CodeLeaseHeld, "an earlier run of this process under the key has not returned"))
		defer cancel()
	}
	run, err = lo.c.Begin(slot, p.key, p.token)
	if err != nil {
		return 0, explain(slot, err)
	}
	if err = p.session.secure(ctx); err == nil {
		if st, _ := p.look(lo.c.View()); st == revoked || st == gone {
			err = ErrSessionLost
		}
	}
	if err != nil {
		lo.c.Returned(run)
		return 0, explain(ctx, err)
	}
	return run, nil
}

// keepFor runs f in the background and keeps the lookout until it is done.
func (lo *lookout) keepFor(f func()) {
	lookouts.Lock()
	lo.refs++
	lookouts.Unlock()
	go func() {
		defer lo.leave()
		f()
	}()
}

func notNegative(field string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("%s is %v: it must not be negative", field, d)
	}
	return nil
}
