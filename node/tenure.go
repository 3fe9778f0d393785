package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// gaveUp is the error of a call that changed nothing and whose ctx ended.
func gaveUp(ctx context.Context, what string) error {
	return &endedError{error: fsm.Errorf(fsm.CodeNoQuorum, "%s", what), cause: context.Cause(ctx)}
}

// endedError is a refusal whose reason is the end of the caller's context; it
// matches both.
type endedError struct {
	error
	cause error
}

func (e *endedError) Unwrap() []error { return []error{e.error, e.cause} }
func (e *endedError) Error() string   { return e.error.Error() + ": " + e.cause.Error() }

// retryPause waits before another try: until the leader changes, at the latest for a
// short while with jitter that grows with the tries.
func retryPause(ctx context.Context, c clock, lead leadership, try int) error {
	a := c.alarm()
	defer a.stop()
	a.setAt(c.boot() + backOff(try))
	select {
	case <-a.ring():
		return nil
	case <-lead.changed():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// backOff is 20 ms, doubled with each try up to 320 ms, half of it random.
func backOff(try int) time.Duration {
	d := 20 * time.Millisecond << min(try, 4)
	return d/2 + rand.N(d/2)
}

// tenure is a context that ends whenever the known leader changes: what was sent
// to the former one need not be waited for.
type tenure struct {
	lead leadership

	mu     sync.Mutex
	ctx    context.Context
	cancel context.CancelCauseFunc
}

var errNewLeader = errors.New("the leader has changed")

func newTenure(lead leadership) *tenure {
	r := &tenure{lead: lead}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	return r
}

func (r *tenure) context() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ctx
}

// watch follows the leader until ctx ends, which ends the last tenure.
func (r *tenure) watch(ctx context.Context) {
	changed := r.lead.changed()
	leader := r.lead.leader()
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			r.mu.Lock()
			r.cancel(context.Cause(ctx))
			r.mu.Unlock()
			return
		}
		changed = r.lead.changed()
		if now := r.lead.leader(); now != leader {
			leader = now
			r.mu.Lock()
			r.cancel(errNewLeader)
			r.ctx, r.cancel = context.WithCancelCause(context.Background())
			r.mu.Unlock()
		}
	}
}
