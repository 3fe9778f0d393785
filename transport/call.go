package transport

import (
	"context"
	"errors"
	"sync"
	"time"
)

// incoming is one call that is being served, and the context of its handler. As a context it costs nothing until somebody waits on it.
type incoming struct {
	conn     *serverConn
	call     uint64
	method   Method
	body     []byte
	deadline time.Time // zero = none

	mu     sync.Mutex
	err    error         // guarded by mu, like all below
	done   chan struct{} // nil until asked for
	timer  *time.Timer
	after  map[*func()]struct{}
	silent bool // the caller does not want the answer any more
}

var _ context.Context = (*incoming)(nil)

// Deadline implements context.Context.
func (c *incoming) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

// Value implements context.Context.
func (c *incoming) Value(any) any { return nil }

// Err implements context.Context.
func (c *incoming) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && !c.deadline.IsZero() && !time.Now().Before(c.deadline) {
		c.end(context.DeadlineExceeded)
	}
	return c.err
}

// Done implements context.Context.
func (c *incoming) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		}
		c.watch()
	}
	return c.done
}

// AfterFunc lets package context derive from this one without a goroutine.
func (c *incoming) AfterFunc(f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go f()
		return func() bool { return false }
	}
	if c.after == nil {
		c.after = map[*func()]struct{}{}
	}
	key := &f
	c.after[key] = struct{}{}
	c.watch()
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, ok := c.after[key]
		delete(c.after, key)
		return ok
	}
}

// watch starts the timer of the deadline. Called with c.mu held.
func (c *incoming) watch() {
	if c.err == nil && c.timer == nil && !c.deadline.IsZero() {
		c.timer = time.AfterFunc(time.Until(c.deadline), func() { c.cancel(context.DeadlineExceeded, false) })
	}
}

// end ends the context. Called with c.mu held.
func (c *incoming) end(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	if c.done != nil {
		close(c.done)
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	for f := range c.after {
		go (*f)()
	}
	c.after = nil
}

// cancel ends the context from outside; silent: nobody waits for the answer.
func (c *incoming) cancel(err error, silent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(err)
	c.silent = c.silent || silent
}

// finish ends the context after the handler returned and tells whether the answer is wanted.
func (c *incoming) finish() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(context.Canceled)
	return !c.silent
}

// failureOf turns the error of a handler into what travels.
func failureOf(err error) *RPCError {
	if e, ok := errors.AsType[*RPCError](err); ok {
		return e
	}
	if c, ok := errors.AsType[interface {
		error
		RPCCoder
	}](err); ok {
		e := &RPCError{Code: c.RPCCode(), Message: err.Error()}
		if d, ok := errors.AsType[interface {
			error
			RPCDetailer
		}](err); ok {
			e.Detail = d.RPCDetail()
		}
		return e
	}
	return &RPCError{Code: CodeUnknown, Message: err.Error()}
}
