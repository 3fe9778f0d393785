package worker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
)

// prepare loads a worker on this instance before it comes here.
func (c *Catalog) prepare(ctx context.Context, w coord.Workload) error {
	rec, known := c.c.View().Worker(w.Key)
	if !known || rec.Current == nil {
		return fsm.Errorf(fsm.CodeNotFound, "no worker %s is loaded", w.Key)
	}
	if c.shelf.has(w.Key, rec.Current) {
		return nil
	}
	unit, err := c.fit(ctx, rec)
	if err != nil {
		return err
	}
	c.shelf.put(w.Key, rec.Current, unit)
	return nil
}

// forget frees what was loaded of a worker that is here no more.
func (c *Catalog) forget(w coord.Workload) { c.shelf.drop(w.Key) }

// host runs a worker under its lease until the lease ends or the worker is done.
func (c *Catalog) host(ctx context.Context, w coord.Workload, l *coord.Lease) error {
	rec, known := c.c.View().Worker(w.Key)
	if !known || rec.Current == nil {
		return nil // it was deleted meanwhile; the lease is about to end
	}
	t := &tenant{
		Catalog: c, ctx: ctx, lease: l, id: w.Key, log: c.logOf(rec),
		restarts: restarts{policy: rec.Restart, backoff: c.cfg.RunBackoff, most: c.cfg.RunRestarts},
	}
	return t.stay(rec)
}

// tenant is a worker that this instance has, from the first run under a grant to
// the last. The goroutine of stay owns it.
type tenant struct {
	*Catalog
	ctx   context.Context // of the lease's work
	lease *coord.Lease
	id    string
	log   *slog.Logger
	restarts
	record runRecord
	runs   int

	unit   Unit
	src    *fsm.Source // of unit
	loaded uint64      // the attempt that found the source good
}

// stay runs the worker again and again. It returns an error only where this
// instance could not load it: then another may.
func (t *tenant) stay(rec *fsm.Worker) error {
	t.src, t.loaded = rec.Current, rec.Loaded
	unit, ready := t.shelf.take(t.id, t.src)
	if !ready {
		var err error
		if unit, err = t.fit(t.ctx, rec); err != nil {
			if t.asked() {
				return nil
			}
			return err
		}
	}
	t.unit = unit
	defer func() { t.shelf.put(t.id, t.src, t.unit) }() // for the next run here, if there is one
	defer t.closeRecord()
	for {
		next, took, err := t.run(rec)
		if next != nil {
			t.exchange(next)
		}
		if t.asked() {
			return nil
		}
		if next != nil {
			t.log.Info("worker goes on with new code", slog.String("source", t.src.Text))
			continue
		}
		v := t.returned(err, took, rand.Float64())
		switch {
		case !v.again && t.finish(err):
			return nil
		case !v.again:
			if next = t.await(nil); next != nil {
				t.exchange(next)
			}
			if t.asked() {
				return nil
			}
			continue
		case err != nil:
			t.log.Warn("run failed; running it again", slog.Any("error", err), slog.Int("failures", t.row), slog.Duration("delay", v.after))
			t.failed(err, took, v.after)
		default:
			t.recovered()
		}
		if next = t.rest(v.after); next != nil {
			t.exchange(next)
		}
		if t.asked() {
			return nil
		}
	}
}

// asked tells whether the worker is to stop here.
func (t *tenant) asked() bool {
	select {
	case <-t.lease.Draining():
		return true
	case <-t.ctx.Done():
		return true
	default:
		return false
	}
}

// exchange takes what a reload has brought in place of what ran.
func (t *tenant) exchange(next *shelved) {
	t.unload(t.id, t.unit)
	t.unit, t.src, t.loaded = next.unit, &next.src, next.loaded
	t.row = 0
	t.recovered()
}

// run is one run. next is what to go on with, if the run was ended for that.
func (t *tenant) run(rec *fsm.Worker) (next *shelved, took time.Duration, err error) {
	t.runs++
	ctx, cut := context.WithCancel(t.ctx)
	defer cut()
	drain := make(chan struct{})
	over := make(chan struct{})
	brought := make(chan *shelved, 1)
	go func() {
		defer close(brought)
		t.attend(over, drain, cut, brought)
	}()
	began := time.Now()
	finished := false
	defer func() {
		if !finished { // the run has ended its goroutine, and this function with it
			close(over)
			if next := <-brought; next != nil {
				t.unload(t.id, next.unit)
			}
			_ = t.finish(Errorf(TypePanicked, "the run ended its goroutine instead of returning"))
		}
	}()
	err = t.guarded(func() error {
		return t.unit.Run(ctx, Run{
			WorkerID: t.id, Name: rec.Name, Key: t.lease.Key(), Token: t.lease.Token(), Number: t.runs,
			Args: rec.Args, Env: labelMap(rec.Env), Config: rec.Config, Log: t.log, Lease: t.lease, Drain: drain,
		})
	})
	finished = true
	took = time.Since(began)
	close(over)
	next = <-brought
	t.ended(rec, err, took, next != nil || t.asked())
	return next, took, err
}

// ended tells how a run ended.
func (t *tenant) ended(rec *fsm.Worker, err error, took time.Duration, asked bool) {
	outcome := OutcomeDone
	switch {
	case asked:
		outcome = OutcomeStopped
	case err != nil:
		outcome = OutcomeFailed
	}
	if asked && err != nil {
		t.log.Info("run was asked to end and returned an error, which counts for nothing", slog.Any("error", err))
	}
	if hook := t.cfg.Hooks.Returned; hook != nil {
		t.call(func() { hook(t.id, rec.Runtime, outcome, took) })
	}
}

// guarded makes an error of a panic.
func (t *tenant) guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = Errorf(TypePanicked, "panic: %v", v)
			t.log.Error("run panicked", slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		}
	}()
	return f()
}

// attend asks the run to finish when its lease does, and when a reload has
// brought new code, which is loaded here first. over is closed when the run has
// returned.
func (t *tenant) attend(over <-chan struct{}, drain chan<- struct{}, cut context.CancelFunc, brought chan<- *shelved) {
	next := t.await(over)
	if next == nil {
		select {
		case <-t.lease.Draining():
			close(drain)
		default:
		}
		return
	}
	brought <- next
	close(drain)
	timer := time.NewTimer(t.cfg.DrainTimeout)
	defer timer.Stop()
	select {
	case <-over:
		return
	case <-timer.C:
		cut()
	}
	timer.Reset(t.cfg.KillTimeout)
	select {
	case <-over:
	case <-timer.C:
		t.log.Error("the run ignores the end of its context; its worker's new code waits until it returns")
	}
}

// rest waits between two runs: for a time, or until the worker is to stop, or
// until a reload has brought new code.
func (t *tenant) rest(d time.Duration) *shelved {
	over := make(chan struct{})
	timer := time.AfterFunc(d, func() { close(over) })
	defer timer.Stop()
	return t.await(over)
}

// await returns new code that a reload has brought, loaded on this instance;
// nil when that is over, or the worker is to stop.
func (t *tenant) await(over <-chan struct{}) *shelved {
	wake, unwatch := t.c.Watch(fsm.WorkerTopic(t.id))
	defer unwatch()
	for failures := 0; ; {
		if rec, known := t.c.View().Worker(t.id); known && t.outdated(rec) {
			next, err := t.fetch(over, rec, redriveAfter.Delay(failures, 0))
			if err == nil {
				return next
			}
			failures++
			t.log.Warn("new code could not be loaded here; going on with the old", slog.Any("error", err))
			continue
		}
		failures = 0
		select {
		case <-wake:
		case <-over:
			return nil
		case <-t.lease.Draining():
			return nil
		case <-t.ctx.Done():
			return nil
		}
	}
}

// fetch loads the worker's new code after a while; nil when that is of no use
// any more.
func (t *tenant) fetch(over <-chan struct{}, rec *fsm.Worker, after time.Duration) (*shelved, error) {
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-over:
		case <-t.lease.Draining():
		case <-ctx.Done():
		}
	}()
	if pause(ctx, after) != nil {
		return nil, nil
	}
	unit, err := t.fit(ctx, rec)
	switch {
	case err == nil:
		return &shelved{unit, *rec.Current, rec.Loaded}, nil
	case ctx.Err() != nil:
		return nil, nil
	}
	return nil, err
}

// outdated tells whether the worker has newer code than this instance runs. A
// reload of the same source counts; one that failed does not.
func (t *tenant) outdated(rec *fsm.Worker) bool {
	return rec.State == fsm.WorkerRunning && rec.Loaded != t.loaded
}

// finish tells that the worker has ended by itself. It is false if that is not so: a
// reload has brought other code than what ended.
func (t *tenant) finish(err error) bool {
	op := &fsm.FinishRun{WorkerId: t.id, Token: t.lease.Token(), Attempt: t.loaded, Ok: err == nil}
	if fault := errorOf(err, TypeRunFailed); fault != nil {
		op.ErrorType, op.Message = fault.told()
		t.log.Error("worker failed", slog.String("type", fault.Type), slog.Any("error", fault), slog.Int("failures", t.row))
	} else {
		t.log.Info("worker is done")
	}
	for tries := 1; ; tries++ {
		limit, cancel := context.WithTimeout(t.ctx, submitTimeout)
		_, err := submit(limit, t.c, op)
		cancel()
		switch {
		case err == nil, t.ctx.Err() != nil:
			return true
		case !errors.Is(err, fsm.ErrNoQuorum) && !errors.Is(err, fsm.ErrUncertain) && !errors.Is(err, fsm.ErrOverloaded):
			rec, known := t.c.View().Worker(t.id)
			return !known || !t.outdated(rec) // else it is not to run any more, or not here
		}
		t.log.Warn("the end of a worker is not recorded yet", slog.Any("error", err))
		_ = pause(t.ctx, redriveAfter.Delay(tries, 0))
	}
}
