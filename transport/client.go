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

// clientConn is the calling end of an RPC connection.
type clientConn struct {
	t    *Transport
	s    *stream
	out  *outbox
	tick time.Duration
	gone atomic.Bool // failed or retired

	// Guarded by out.mu.
	slots    []*slot
	free     []uint16
	freed    chan struct{} // closed when a slot gets free; nil = nobody waits for one
	active   int
	count    uint64
	retired  bool // takes no new calls and ends with its last
	sent     bool // since something was last read
	reads    bool // something was read since the timer looked last
	used     bool // a call began since the timer looked last
	silent   int  // looks at a peer that owes an answer and says nothing
	ticking  bool
	idleFrom time.Time
	timer    *time.Timer
}

func newClientConn(t *Transport, s *stream) *clientConn {
	c := &clientConn{t: t, s: s, out: newOutbox(s), tick: t.cfg.PeerTimeout / 3, idleFrom: time.Now()}
	c.out.mu.Lock()
	c.timer = time.AfterFunc(clientIdle, c.look)
	c.out.mu.Unlock()
	t.tasks.Go(c.out.run)
	t.tasks.Go(func() {
		err := c.read()
		c.end(err)
	})
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
	defer c.out.mu.Unlock()
	c.timer.Stop()
	if c.freed != nil {
		close(c.freed)
		c.freed = nil
	}
	// The calls hear of it by out.dead.
}

// retire lets the connection end with its last call.
func (c *clientConn) retire() {
	c.gone.Store(true)
	c.out.mu.Lock()
	c.retired = true
	last := c.active == 0
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
		c.sent, c.reads = false, true
		if f.kind == frameAnswer || f.kind == frameFailure {
			if i := int(f.call & (1<<slotBits - 1)); i < len(c.slots) && c.slots[i].call == f.call {
				s := c.slots[i]
				s.call = 0
				s.kind, s.body, s.failure = f.kind, f.body, failure
				s.done <- struct{}{} // size 1, and empty: a slot is freed with its channel drained
			}
		}
		c.out.mu.Unlock()
	}
}

// look is the timer: it asks a silent peer for life, gives it up, and closes an idle connection.
func (c *clientConn) look() {
	c.out.mu.Lock()
	if c.out.err != nil {
		c.out.mu.Unlock()
		return
	}
	var cause error
	switch {
	case (c.active > 0 || c.sent) && !c.reads:
		c.silent++
		if c.silent >= 3 {
			cause = fmt.Errorf("%w: nothing came for %v", ErrPeerSilent, c.t.cfg.PeerTimeout)
			break
		}
		c.out.buf = appendSignal(c.out.buf, 0, framePing)
		c.timer.Reset(c.tick)
	case c.active > 0 || c.used:
		c.silent = 0
		c.timer.Reset(c.tick)
	default:
		c.silent, c.ticking = 0, false
		if c.retired || time.Since(c.idleFrom) >= clientIdle {
			cause = errIdle
			break
		}
		c.timer.Reset(clientIdle)
	}
	c.reads, c.used = false, false
	c.out.mu.Unlock()
	if cause != nil {
		c.end(cause)
		return
	}
	c.out.wakeWriter()
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
		if n := len(c.free); n > 0 {
			i := c.free[n-1]
			c.free = c.free[:n-1]
			return int(i), nil
		}
		if n := len(c.slots); n < maxCalls {
			c.slots = append(c.slots, &slot{done: make(chan struct{}, 1)})
			return n, nil
		}
		if c.freed == nil {
			c.freed = make(chan struct{})
		}
		freed := c.freed
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
	s := c.slots[i]
	s.call, s.body, s.failure = 0, nil, nil
	c.free = append(c.free, uint16(i))
	c.active--
	if c.active == 0 {
		c.idleFrom = time.Now()
	}
	if c.freed != nil {
		close(c.freed)
		c.freed = nil
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
	s := c.slots[i]
	c.active++
	c.count++
	s.call = c.count<<slotBits | uint64(i)
	var limit time.Duration
	if d, ok := ctx.Deadline(); ok {
		if limit = time.Until(d); limit <= 0 {
			c.put(i)
			c.out.mu.Unlock()
			return nil, notSent(context.DeadlineExceeded)
		}
	}
	s.batch, s.at = c.out.batch, len(c.out.buf)
	c.out.buf = appendRequest(c.out.buf, s.call, m, limit, body)
	c.sent, c.used = true, true
	if !c.ticking {
		c.ticking = true
		c.reads, c.silent = false, 0
		c.timer.Reset(c.tick)
	}
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
	s := c.slots[i]
	body, failure := s.body, s.failure
	c.put(i)
	last := c.retired && c.active == 0
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
	s := c.slots[i]
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
	last := c.retired && c.active == 0
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
	s := c.slots[i]
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
