package coord

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// tenure is the time from a grant to its release: the runs under one token.
// The goroutine of Runner.Run owns it.
type tenure struct {
	r     *Runner
	lease *Lease
	over  *overseer
	run   *run             // under way, nil between two
	rest  <-chan time.Time // until the next run
	id    uint64           // the node's number of the last run, until it was told that it returned
}

// tenureEnd says how a tenure ended by itself; all fields are zero when
// something else ended it.
type tenureEnd struct {
	completed bool  // a run returned nil, and the policy keeps nothing
	failure   error // a run failed
	ranWell   bool  // a run returned nil, or lasted: a new row of failures begins
	hindered  error // the node could not begin a run
}

// hold runs the work under the grant until the grant ends, and releases it.
func (r *Runner) hold(ctx context.Context, lo *lookout, s *seat) tenureEnd {
	l := newLease(ctx, r.c, s)
	t := &tenure{r: r, lease: l}
	t.over = &overseer{
		lo: lo, lease: l, stuck: r.cfg.Stuck,
		drainTimeout: r.cfg.Drain.Timeout, killTimeout: r.cfg.Drain.KillTimeout,
		graceful: r.graceful, patient: r.patient,
		on: overseerEvents{
			told: t.told, cut: func(error) { r.set(func(s *Status) { s.State = StateStopping }) }, lost: t.lost, stuck: t.stuck,
			stack: func() func() string { return t.run.stack },
			runID: func() uint64 {
				if t.run == nil {
					return 0
				}
				return t.run.id.Load()
			},
			busy: func() bool { return t.run != nil && t.run.hangs() },
		},
	}
	unwatch := t.over.begin()
	r.acquired(l)
	t.start()
	t.over.check() // what happened between the grant and the watch
	end := t.watch(ctx.Done())
	unwatch()
	t.release(ctx, end)
	return end
}

// watch returns when nothing runs any more and nothing will.
func (t *tenure) watch(stop <-chan struct{}) (end tenureEnd) {
	for {
		if t.run == nil && t.over.status.cause != nil {
			return end
		}
		var done <-chan struct{}
		if t.run != nil {
			done = t.run.done
		}
		switch t.over.next(done, stop, t.rest) {
		case stopAsked:
			stop = nil
			t.over.tell(ErrShutDown)
		case restDone:
			t.rest = nil
			t.start()
		case workDone:
			e := t.run
			t.run, t.id = nil, e.id.Load()
			e.cancel(context.Canceled)
			if e.wasEntered() {
				t.r.returned(t.lease, e)
			}
			end.ranWell = end.ranWell || e.wasEntered() && (e.err == nil || e.took >= t.r.cfg.Backoff.Max)
			switch {
			case t.over.status.cause != nil: // told to stop, and it has
				return end
			case errors.Is(e.err, errAborted): // the lease is over, and the copy says so
				if t.over.check(); t.over.status.cause == nil {
					t.over.lose(ErrLost)
				}
				return end
			case errors.Is(e.err, errHindered):
				end.hindered = e.err
				return end
			case e.err != nil:
				end.failure = e.err
				return end
			case t.r.cfg.Restart != RestartAlways:
				end.completed = true
				return end
			}
			t.returned()
			t.rest = time.After(t.r.cfg.RestartDelay)
			t.r.set(func(s *Status) { s.State = StateResting })
		}
	}
}

func (t *tenure) start() {
	t.r.set(func(s *Status) { s.State = StateStarting })
	t.run = t.r.start(t.lease)
}

// told is the beginning of the end: a run that has not begun is called off, one
// that has is asked to finish.
func (t *tenure) told(cause error) {
	t.r.stopping(t.lease, cause)
	switch {
	case t.run == nil:
		t.rest = nil
	case t.run.abort():
		t.run.cancel(cause)
	default:
		requestDrain(t.run.drainable, &t.r.events)
	}
}

func (t *tenure) lost(cause error) {
	l, f := t.lease, t.r.cfg.Hooks.Lost
	t.r.events.tell(slog.LevelWarn, "lease lost", hook(f != nil, func() { f(l, cause) }),
		slog.Uint64("token", l.Token()), slog.Any("cause", cause))
}

func (t *tenure) stuck(s StuckRun) {
	t.r.set(func(st *Status) { st.State, st.Stuck = StateStuck, &s })
	if !s.Lost {
		t.r.recordStuck(t.lease, s)
	}
	f := t.r.cfg.Hooks.Stuck
	msg := "work is stuck; its lease is kept, so that it starts nowhere else, until it returns"
	if s.Lost {
		msg = "work is stuck and its lease is lost"
	}
	t.r.events.tell(slog.LevelError, msg, hook(f != nil, func() { f(s) }),
		append(s.attrs(), slog.String("stack", s.Stack))...)
}

// recordStuck tells the whole cluster, which costs nothing that matters: it is
// not awaited, and tried again when the run is reported again.
func (r *Runner) recordStuck(l *Lease, s StuckRun) {
	if record, ok := r.c.View().Lease(l.Key()); !ok || record.Token != l.Token() || record.Stuck != nil || !l.seat.session.lo.knowsGroups() {
		return
	}
	r.aside.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
		defer cancel()
		_, _ = r.c.Submit(ctx, &fsm.RecordStuck{Key: s.Key, Token: s.Token, SessionId: l.seat.session.id, Detail: fsm.ClipLines(s.Stack, fsm.MaxStuckBytes)})
	})
}

// returned tells the node that the last run has returned.
func (t *tenure) returned() {
	if t.id != 0 {
		t.lease.c.Returned(t.id)
		t.id = 0
	}
}

// release frees the key when the work has returned: by token, bounded, with a
// context that no shutdown cancels. The run counts as outstanding until then,
// so that the node leaves after its last lease.
func (t *tenure) release(ctx context.Context, end tenureEnd) {
	t.lease.cancel(ErrReleased)
	limit := releaseTimeout
	if t.lease.seat.session.ending.Err() != nil {
		limit = lostReleaseTimeout
	}
	failure := end.failure
	if failure == nil && t.r.planned {
		failure = end.hindered // else it would be granted again at once
	}
	err := t.lease.seat.freeAfter(ctx, limit, failure)
	if t.over.status.isLost && (errors.Is(err, fsm.ErrStaleToken) || errors.Is(err, fsm.ErrSessionExpired)) {
		err = nil // lost, as was told
	}
	t.r.released(t.lease, err)
	t.returned()
	t.lease.seat.drop()
	t.r.standby.spent()
}

// What the Runner tells of a tenure.

func (r *Runner) acquired(l *Lease) {
	r.set(func(s *Status) { s.State, s.Token, s.Stuck = StateStarting, l.Token(), nil })
	f := r.cfg.Hooks.Acquired
	r.events.tell(slog.LevelInfo, "lease acquired", hook(f != nil, func() { f(l) }), slog.Uint64("token", l.Token()))
}

// started is called by the goroutine of the run.
func (r *Runner) started(l *Lease) {
	n := 0
	r.set(func(s *Status) {
		s.State = StateRunning
		s.Runs++
		n = s.Runs
	})
	f := r.cfg.Hooks.Started
	r.events.tell(slog.LevelInfo, "run starts", hook(f != nil, func() { f(l, n) }), slog.Uint64("token", l.Token()), slog.Int("run", n))
}

func (r *Runner) stopping(l *Lease, cause error) {
	r.set(func(s *Status) { s.State = StateDraining })
	f := r.cfg.Hooks.Stopping
	r.events.tell(slog.LevelInfo, "work is told to stop", hook(f != nil, func() { f(l, cause) }),
		slog.Uint64("token", l.Token()), slog.Any("cause", cause))
}

func (r *Runner) returned(l *Lease, e *run) {
	err, took := e.err, e.took
	r.set(func(s *Status) {
		s.Stuck = nil
		if err != nil {
			s.LastError = err.Error()
		}
	})
	level, attrs := slog.LevelInfo, []slog.Attr{slog.Uint64("token", l.Token()), slog.Duration("took", took)}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	if p, ok := errors.AsType[*PanicError](err); ok {
		level, attrs = slog.LevelError, append(attrs, slog.String("stack", string(p.Stack)))
	}
	f := r.cfg.Hooks.Returned
	r.events.tell(level, "run returned", hook(f != nil, func() { f(l, err, took) }), attrs...)
}

func (r *Runner) released(l *Lease, err error) {
	f := r.cfg.Hooks.Released
	level, msg, attrs := slog.LevelInfo, "lease released", []slog.Attr{slog.Uint64("token", l.Token())}
	if err != nil {
		level, msg, attrs = slog.LevelWarn, "lease not surely released; the node gives it back", append(attrs, slog.Any("error", err))
	}
	r.events.tell(level, msg, hook(f != nil, func() { f(l, err) }), attrs...)
}

func (r *Runner) failed(err error, failures int, delay time.Duration) {
	r.set(func(s *Status) { s.State, s.Token, s.Failures, s.LastError = StateBackingOff, 0, failures, err.Error() })
	f := r.cfg.Hooks.Failed
	r.events.tell(slog.LevelWarn, "run failed; queues again after a while", hook(f != nil, func() { f(err, failures, delay) }),
		slog.Any("error", err), slog.Int("failures", failures), slog.Duration("delay", delay))
}
