package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// clientIdle is when a connection without calls is closed.
const clientIdle = time.Minute

// slotBits of a call's number say which slot it has; the rest counts.
const slotBits = 10

var _ = [1]struct{}{}[maxCalls-1<<slotBits]

// slot is the place of one outgoing call. Its channel is made once: calls cost no allocation.
type slot struct {
	call    uint64 // 0 = free
	batch   uint64 // of the outbox that its request went into
	at      int    // offset of the request in that batch
	done    chan struct{}
	kind    frameType
	body    []byte
	failure *RPCError
}

// slotTable is the slots of one connection.
type slotTable struct {
	all    []*slot
	free   []uint16
	freed  chan struct{} // closed when a slot gets free; nil = nobody waits for one
	active int
	count  uint64 // of calls ever
}

// take finds a free slot and numbers a new call, or returns a channel that is closed when one gets free.
func (t *slotTable) take() (int, <-chan struct{}) {
	i := len(t.all)
	switch n := len(t.free); {
	case n > 0:
		i = int(t.free[n-1])
		t.free = t.free[:n-1]
	case i < maxCalls:
		t.all = append(t.all, &slot{done: make(chan struct{}, 1)})
	default:
		if t.freed == nil {
			t.freed = make(chan struct{})
		}
		return 0, t.freed
	}
	t.active++
	t.count++
	t.all[i].call = t.count<<slotBits | uint64(i)
	return i, nil
}

// put frees a slot whose channel is empty.
func (t *slotTable) put(i int) {
	s := t.all[i]
	s.call, s.body, s.failure = 0, nil, nil
	t.free = append(t.free, uint16(i))
	t.active--
	t.wake()
}

// wake lets those who wait for a slot look again.
func (t *slotTable) wake() {
	if t.freed != nil {
		close(t.freed)
		t.freed = nil
	}
}

// clientConn is the calling end of an RPC connection.
type clientConn struct {
	t    *Transport
	s    *stream
	out  *outbox
	over func()      // called when the connection has ended; may be called again
	gone atomic.Bool // failed or retired

	// Guarded by out.mu.
	slots   slotTable
	watch   watch
	retired bool // takes no new calls and ends with its last
}

func newClientConn(t *Transport, s *stream, over func()) *clientConn {
	c := &clientConn{t: t, s: s, out: newOutbox(s), over: over}
	c.out.mu.Lock()
	c.watch = watch{tick: t.cfg.PeerTimeout / silentLooks, idleFrom: time.Now(), timer: time.AfterFunc(clientIdle, c.look)}
	c.out.mu.Unlock()
	t.tasks.Go(c.out.run)
	t.tasks.Go(func() { c.end(c.read()) })
	return c
}

// settled tells whether both ends knew their cluster at the greeting. Another greeting may tell more.
func (c *clientConn) settled() bool { return c.s.self.ClusterID != "" && c.s.peer.ClusterID != "" }

// usable tells whether new calls may go this way.
func (c *clientConn) usable(self Identity) bool {
	return !c.gone.Load() && c.s.self.ClusterID == self.ClusterID
}

// end fails the connection and all its calls.
func (c *clientConn) end(err error) {
	c.gone.Store(true)
	c.out.fail(err)
	c.out.mu.Lock()
	c.watch.timer.Stop()
	c.slots.wake()
	c.out.mu.Unlock()
	// The calls hear of it by out.dead.
	c.over()
}

// retire lets the connection end with its last call.
func (c *clientConn) retire() {
	c.gone.Store(true)
	c.out.mu.Lock()
	c.retired = true
	last := c.slots.active == 0
	c.out.mu.Unlock()
	if last {
		c.end(errIdle)
	}
}

func (c *clientConn) read() error {
	r := bufio.NewReaderSize(c.s, readAhead)
	for {
		f, err := readFrame(r)
		if err != nil {
			return err
		}
		var failure *RPCError
		switch f.kind {
		case frameAnswer, framePong, frameVoid:
		case frameFailure:
			if failure, err = decodeFailure(f.body); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%w: type %d at the calling end", errFrame, f.kind)
		}
		c.out.mu.Lock()
		c.watch.heard()
		if f.kind == frameAnswer || f.kind == frameFailure {
			if i := int(f.call & (1<<slotBits - 1)); i < len(c.slots.all) && c.slots.all[i].call == f.call {
				s := c.slots.all[i]
				s.call = 0
				s.kind, s.body, s.failure = f.kind, f.body, failure
				s.done <- struct{}{} // size 1, and empty: a slot is freed with its channel drained
			}
		}
		c.out.mu.Unlock()
	}
}

// take finds a free slot and returns with out.mu held, or with an error and not.
func (c *clientConn) take(ctx context.Context) (int, error) {
	for {
		if err := c.out.lock(ctx); err != nil {
			return 0, err
		}
		if c.retired {
			c.out.mu.Unlock()
			return 0, errIdle
		}
		i, freed := c.slots.take()
		if freed == nil {
			return i, nil
		}
		c.out.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// put frees a slot. Called with out.mu held.
func (c *clientConn) put(i int) {
	c.slots.put(i)
	if c.slots.active == 0 {
		c.watch.idleFrom = time.Now()
	}
}

// call sends one request and waits for its answer. An error that matches errStale means that the connection was gone before anything was sent.
func (c *clientConn) call(ctx context.Context, m Method, body []byte) ([]byte, error) {
	i, err := c.take(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, notSent(contextError(ctx))
		}
		return nil, &staleError{err}
	}
	s := c.slots.all[i]
	var limit time.Duration
	if d, ok := ctx.Deadline(); ok {
		if limit = time.Until(d); limit <= 0 {
			c.put(i)
			c.out.mu.Unlock()
			return nil, notSent(context.DeadlineExceeded)
		}
	}
	c.out.others.Store(int32(c.slots.active - 1))
	s.batch, s.at = c.out.batch, len(c.out.buf)
	c.out.buf = appendRequest(c.out.buf, s.call, m, limit, body)
	c.watch.called()
	c.out.mu.Unlock()
	c.out.wakeWriter()

	select {
	case <-s.done:
		return c.answer(i)
	case <-ctx.Done():
		return c.giveUp(ctx, i)
	case <-c.out.dead:
		return c.lost(i)
	}
}

// answer takes the answer out of a slot whose channel has been drained.
func (c *clientConn) answer(i int) ([]byte, error) {
	c.out.mu.Lock()
	s := c.slots.all[i]
	body, failure := s.body, s.failure
	c.put(i)
	last := c.retired && c.slots.active == 0
	c.out.mu.Unlock()
	if last {
		c.end(errIdle)
	}
	if failure != nil {
		return nil, failure
	}
	return body, nil
}

// giveUp takes a call back if it has not left yet, else tells the peer.
func (c *clientConn) giveUp(ctx context.Context, i int) ([]byte, error) {
	c.out.mu.Lock()
	s := c.slots.all[i]
	if s.call == 0 { // the answer came meanwhile
		c.out.mu.Unlock()
		<-s.done
		return c.answer(i)
	}
	err := contextError(ctx)
	switch {
	case c.out.err != nil:
		if s.batch == c.out.batch {
			err = notSent(err)
		}
	case s.batch == c.out.batch: // still ours
		c.out.buf[s.at+lengthSize+headSize-1] = byte(frameVoid)
		err = notSent(err)
	default:
		c.out.buf = appendSignal(c.out.buf, s.call, frameCancel)
	}
	c.put(i)
	last := c.retired && c.slots.active == 0
	c.out.mu.Unlock()
	if last {
		c.end(errIdle)
	}
	c.out.wakeWriter()
	return nil, err
}

// lost ends a call with its connection.
func (c *clientConn) lost(i int) ([]byte, error) {
	c.out.mu.Lock()
	s := c.slots.all[i]
	if s.call == 0 { // the answer came first
		c.out.mu.Unlock()
		<-s.done
		return c.answer(i)
	}
	err := c.out.err
	unsent := s.batch == c.out.batch
	c.put(i)
	c.out.mu.Unlock()
	if unsent {
		return nil, &staleError{err}
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("closed by the peer")
	}
	if c.t.ctx.Err() != nil {
		err = ErrClosed
	}
	return nil, fmt.Errorf("%w: %w", ErrConnLost, err)
}

// contextError returns why ctx ended, matching both its Err and its cause.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// staleError means that a connection ended before a request was handed to it: another one may be tried.
type staleError struct{ err error }

func (e *staleError) Error() string        { return e.err.Error() }
func (e *staleError) Unwrap() error        { return e.err }
func (e *staleError) Is(target error) bool { return target == ErrNotSent }
