package coord

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// Hooks are told what a Runner does. All are optional. They are called one at a
// time, in the order in which things happened, never by the goroutine that
// watches over the lease: a slow hook delays the hooks after it and the return
// of Run, and nothing else. A hook that panics is logged.
type Hooks struct {
	// Acquired: the lease was granted.
	Acquired func(*Lease)
	// Started: the function is about to be called; run counts the calls of
	// this Runner, from 1.
	Started func(l *Lease, run int)
	// Stopping: the work was told to stop; cause is one of this package's.
	Stopping func(l *Lease, cause error)
	// Returned: the function has returned (or panicked: *PanicError), after
	// the given time.
	Returned func(l *Lease, err error, took time.Duration)
	// Released: the release was tried; err is nil when it is done.
	Released func(l *Lease, err error)
	// Lost: the lease ended before it was released (ErrLost, ErrRevoked); it
	// is told once for each lease.
	Lost func(l *Lease, cause error)
	// Stuck: work did not return in time; told once a minute while it hangs.
	// Under PolicyExit the process may end before it is called.
	Stuck func(StuckRun)
	// Failed: a run failed, and the Runner waits before it queues again.
	Failed func(err error, failures int, delay time.Duration)
	// Stopped: Run is about to return err.
	Stopped func(err error)
}

// relay runs what it is given in order, one at a time, on a goroutine of its
// own that lives while there is something to run. Giving never blocks.
type relay struct {
	log *slog.Logger

	mu      sync.Mutex
	queue   []func()
	running chan struct{} // closed when the goroutine ends, nil when there is none
}

func (r *relay) post(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, f)
	if r.running == nil {
		r.running = make(chan struct{})
		go r.run(r.running)
	}
}

func (r *relay) run(done chan<- struct{}) {
	defer close(done)
	for {
		r.mu.Lock()
		if len(r.queue) == 0 {
			r.queue, r.running = nil, nil
			r.mu.Unlock()
			return
		}
		f := r.queue[0]
		r.queue = r.queue[1:]
		r.mu.Unlock()
		r.call(f)
	}
}

func (r *relay) call(f func()) {
	defer func() {
		if v := recover(); v != nil {
			r.log.Error("a hook panicked", slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		}
	}()
	f()
}

// drained waits until everything posted so far has run.
func (r *relay) drained() {
	r.mu.Lock()
	running := r.running
	r.mu.Unlock()
	if running != nil {
		<-running
	}
}

// tell posts a line of the log and, where there is one, the hook of it.
func (r *relay) tell(level slog.Level, msg string, hook func(), attrs ...slog.Attr) {
	r.post(func() {
		r.log.LogAttrs(context.Background(), level, msg, attrs...)
		if hook != nil {
			hook()
		}
	})
}
