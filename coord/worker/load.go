package worker

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
)

// loaded is what a Runtime made of a source.
type loaded struct {
	unit Unit
	code Code
	err  error
}

// countedFor is how long a load counts as one of Config.MaxLoads: those that
// hang hold up others for that long at most.
const countedFor = 10 * time.Second

// slot waits until a load may begin, as one of those in slots; done must be called
// when it is over.
func (c *Catalog) slot(ctx context.Context, slots chan struct{}) (done func(), err error) {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	free := sync.OnceFunc(func() { <-slots })
	timer := time.AfterFunc(countedFor, free)
	return func() {
		timer.Stop()
		free()
	}, nil
}

// fit loads the current source of a worker that this instance is to run.
func (c *Catalog) fit(ctx context.Context, w *fsm.Worker) (Unit, error) {
	done, err := c.slot(ctx, c.slots)
	if err != nil {
		return nil, err
	}
	defer done()
	unit, _, _, fault := c.try(ctx, w, w.Current)
	if fault != nil {
		return nil, fault
	}
	return unit, nil
}

// try loads a source, several times if need be, within the time that a load may
// take. Its caller has a slot.
func (c *Catalog) try(ctx context.Context, w *fsm.Worker, src *fsm.Source) (Unit, Code, int, *Error) {
	c.loads.Add(1)
	defer c.loads.Add(-1)
	began := time.Now()
	limit, cancel := context.WithTimeoutCause(ctx, c.cfg.LoadTimeout, Errorf(TypeLoadTimeout, "not loaded within %v", c.cfg.LoadTimeout))
	defer cancel()
	pauses := coord.Backoff{Initial: c.cfg.LoadBackoff, Max: c.cfg.LoadTimeout, Jitter: -1}
	for n := 1; ; n++ {
		l := c.once(limit, w, src)
		fault := errorOf(l.err, TypeLoadFailed)
		if again := fault != nil && n < c.cfg.LoadTries && !final[fault.Type]; again && pause(limit, pauses.Delay(n, 0)) == nil {
			c.log.Warn("loading a worker failed; trying again", slog.String("worker_id", w.ID), slog.Any("error", fault), slog.Int("try", n))
			continue
		}
		if fault != nil && limit.Err() != nil {
			fault = errorOf(context.Cause(limit), TypeLoadFailed)
		}
		if hook := c.cfg.Hooks.Loaded; hook != nil && ctx.Err() == nil {
			c.call(func() { hook(w.ID, w.Runtime, fault, time.Since(began)) })
		}
		return l.unit, l.code, n, fault
	}
}

// once is one try. It returns when ctx ends, whatever the Runtime does.
func (c *Catalog) once(ctx context.Context, w *fsm.Worker, src *fsm.Source) loaded {
	done := make(chan loaded)
	c.strays.Go(func() {
		l := c.read(ctx, w, src)
		select {
		case done <- l:
		case <-ctx.Done():
			c.unload(w.ID, l.unit)
		}
	})
	select {
	case l := <-done:
		return l
	case <-ctx.Done():
		return loaded{err: context.Cause(ctx)}
	}
}

// read fetches the code, if there is any to fetch, and has the Runtime load it.
func (c *Catalog) read(ctx context.Context, w *fsm.Worker, src *fsm.Source) (l loaded) {
	defer func() {
		if v := recover(); v != nil {
			l = loaded{err: Errorf(TypePanicked, "panic: %v", v)}
			c.log.Error("loading a worker panicked", slog.String("worker_id", w.ID), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		}
	}()
	r := c.runtimes[w.Runtime]
	if r == nil {
		return loaded{err: Errorf(TypeRuntimeMissing, "this instance has no runtime %q", w.Runtime)}
	}
	if w.Runtime != RuntimeFunc {
		if l.code, l.err = c.cfg.Artifacts.Fetch(ctx, src.Text, src.SHA256); l.err != nil {
			return l
		}
		if src.SHA256 != "" && l.code.SHA256() != src.SHA256 {
			return loaded{err: Errorf(TypeDigestMismatch, "the code has the digest %s, not %s", l.code.SHA256(), src.SHA256)}
		}
	}
	l.unit, l.err = r.Load(ctx, c.program(w, src, l.code))
	if l.err == nil && l.unit == nil {
		l.err = Errorf(TypeLoadFailed, "the runtime %q loaded nothing", w.Runtime)
	}
	return l
}

func (c *Catalog) program(w *fsm.Worker, src *fsm.Source, code Code) Program {
	return Program{
		WorkerID: w.ID, Name: w.Name, Source: src.Text, Code: code, Args: w.Args, Env: labelMap(w.Env), Config: w.Config, Log: c.logOf(w),
	}
}

func (c *Catalog) logOf(w *fsm.Worker) *slog.Logger {
	return c.log.With(slog.String("worker", w.Name), slog.String("worker_id", w.ID))
}

func labelMap(labels []fsm.Label) map[string]string {
	m := make(map[string]string, len(labels))
	for _, l := range labels {
		m[l.Key] = l.Value
	}
	return m
}

// unload frees what a Runtime has got ready; unit may be nil.
func (c *Catalog) unload(id string, unit Unit) {
	if unit == nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			c.log.Error("unloading a worker panicked", slog.String("worker_id", id), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		}
	}()
	if err := unit.Unload(); err != nil {
		c.log.Warn("unloading a worker failed", slog.String("worker_id", id), slog.Any("error", err))
	}
}

// pause waits for d, or returns why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
