package coord

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Phases of a run.
const (
	starting int32 = iota // it may still be called off
	entered               // the function is being called
	aborted               // it will not be called
)

// run is one call of the function of a Runner. Its goroutine owns the fields
// below done until done is closed.
type run struct {
	r      *Runner
	lease  *Lease
	ctx    context.Context
	cancel context.CancelCauseFunc
	phase  atomic.Int32
	id     atomic.Uint64          // the node's number of the run, 0 before Begin
	gid    atomic.Pointer[string] // goroutine that calls the function
	done   chan struct{}

	drainable Drainable // set before the phase is entered
	begun     time.Time
	took      time.Duration
	err       error
}

// start begins a run of the function under the lease.
func (r *Runner) start(l *Lease) *run {
	e := &run{r: r, lease: l, done: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancelCause(l.ctx)
	go e.do()
	return e
}

func (e *run) do() {
	defer close(e.done)
	id := goid()
	e.gid.Store(&id)
	if e.err = e.prepare(); e.err != nil {
		return
	}
	if e.r.cfg.Drain.Drainable != nil {
		e.err = e.guarded(func() error { e.drainable = e.r.cfg.Drain.Drainable(); return nil })
		if e.err != nil {
			return
		}
	}
	if !e.phase.CompareAndSwap(starting, entered) {
		e.err = errAborted
		return
	}
	e.begun = time.Now()
	e.r.started(e.lease)
	n := e.id.Load()
	e.lease.c.Started(n)
	defer e.lease.c.Finished(n)
	e.err = e.guarded(func() error { return e.r.work(e.ctx, e.lease) })
}

// prepare does everything that must be done before the function is called: it
// returns with the slot of the key taken, and the lease trusted.
func (e *run) prepare() error {
	if err := e.r.standby.await(e.ctx); err != nil && e.ctx.Err() == nil {
		return fmt.Errorf("prepare: %w", err)
	}
	c, p := e.lease.c, e.lease.seat
	id, err := c.Begin(e.ctx, p.key, p.token)
	if err == nil {
		e.id.Store(id)
		err = p.session.secure(e.ctx)
	}
	if e.ctx.Err() != nil {
		return errAborted
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errHindered, err)
	}
	if st, _ := p.look(c.View()); st == revoked || st == gone {
		return errAborted // whoever watches over the lease sees it, too
	}
	return nil
}

// guarded calls f and makes an error of a panic and of an ended goroutine. In
// the latter case it does not return; what it stores stays.
func (e *run) guarded(f func() error) (err error) {
	finished := false
	defer func() {
		if !e.begun.IsZero() {
			e.took = time.Since(e.begun)
		}
		if finished {
			return
		}
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
			return
		}
		e.err = ErrGoexit
	}()
	err = f()
	finished = true
	return err
}

// abort calls the run off; it fails when the function has been entered.
func (e *run) abort() bool {
	return e.phase.CompareAndSwap(starting, aborted) || e.phase.Load() == aborted
}

func (e *run) wasEntered() bool { return e.phase.Load() == entered }

// hangs tells whether the function was called and has not returned.
func (e *run) hangs() bool {
	select {
	case <-e.done:
		return false
	default:
		return e.wasEntered()
	}
}

func (e *run) stack() string {
	if id := e.gid.Load(); id != nil {
		return stackOf(*id)
	}
	return "(not begun)"
}

// standby is the Prepare of a Runner: called when the Runner is next in line,
// or else under the new grant; once for each grant.
type standby struct {
	prepare func(context.Context) error
	log     *relay

	mu     sync.Mutex
	ctx    context.Context // of the Runner's Run
	done   chan struct{}   // of the call under way or over, nil before
	err    error
	failed bool // over, with an error
	work   sync.WaitGroup
}

// begin starts the call if none is under way or done. A call that failed is
// not made again before the key is granted.
func (s *standby) begin() {
	if s.prepare == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done != nil {
		return
	}
	s.launch()
}

func (s *standby) launch() {
	done := make(chan struct{})
	s.done, s.err, s.failed = done, nil, false
	ctx := s.ctx
	s.work.Go(func() {
		defer close(done)
		err := error(ErrGoexit)
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.err, s.failed = err, err != nil
			if err != nil && ctx.Err() == nil {
				s.log.tell(slog.LevelWarn, "Prepare failed", nil, slog.Any("error", err))
			}
		}()
		err = s.prepare(ctx)
	})
}

// await returns once the Prepare for the present grant has been made; the next
// await of the same grant finds it made.
func (s *standby) await(ctx context.Context) error {
	if s.prepare == nil {
		return nil
	}
	s.mu.Lock()
	if s.done == nil || s.failed {
		s.launch()
	}
	done := s.done
	s.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// spent forgets a Prepare that was made: the grant it was made for is over.
func (s *standby) spent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done == nil {
		return
	}
	select {
	case <-s.done:
		s.done = nil
	default: // still under way: it serves the next grant
	}
}
