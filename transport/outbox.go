package transport

import (
	"context"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// outboxLimit is how much may wait to be written before senders wait.
	outboxLimit = 1 << 20
	// keepBuffer is the largest buffer an idle connection keeps.
	keepBuffer = 64 << 10
	// writeTimeout ends a connection that takes none of writePiece bytes for so long.
	writeTimeout = 10 * time.Second
	writePiece   = 256 << 10
)

// outbox collects frames for one connection; its one writer goroutine sends all that waits with one write.
type outbox struct {
	conn   net.Conn
	dead   chan struct{} // closed with err set
	others atomic.Int32  // calls under way beside the one that wakes the writer

	mu    sync.Mutex
	buf   []byte        // waiting; guarded by mu, like all below
	batch uint64        // number of the batch that buf will be
	room  chan struct{} // closed when buf is taken; nil = nobody waits for room
	wake  chan struct{} // size 1
	err   error
}

func newOutbox(c net.Conn) *outbox {
	return &outbox{conn: c, dead: make(chan struct{}), batch: 1, wake: make(chan struct{}, 1)}
}

// wakeWriter makes the writer look. Called after something was appended.
func (o *outbox) wakeWriter() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// lock waits until there is room for a frame, and returns with o.mu held; or with an error and not. done may be nil.
func (o *outbox) lock(ctx context.Context) error {
	o.mu.Lock()
	for o.err == nil && len(o.buf) >= outboxLimit {
		if o.room == nil {
			o.room = make(chan struct{})
		}
		room := o.room
		o.mu.Unlock()
		select {
		case <-room:
		case <-o.dead:
		case <-ctx.Done():
			return ctx.Err()
		}
		o.mu.Lock()
	}
	if o.err != nil {
		defer o.mu.Unlock()
		return o.err
	}
	return nil
}

// fail ends the connection. It returns true for the first caller.
func (o *outbox) fail(err error) bool {
	o.mu.Lock()
	first := o.err == nil
	if first {
		o.err = err
		o.buf = nil
		close(o.dead)
	}
	o.mu.Unlock()
	if first {
		_ = o.conn.Close() // its error can't be worse than err
	}
	return first
}

// run writes until the connection fails.
func (o *outbox) run() {
	var spare []byte
	var deadline time.Time
	for {
		select {
		case <-o.wake:
		case <-o.dead:
			return
		}
		if o.others.Load() > 0 {
			// A busy connection: whoever is about to append may do so first, for fewer and larger writes. A lone call is not kept waiting.
			runtime.Gosched()
		}
		o.mu.Lock()
		if o.err != nil {
			o.mu.Unlock()
			return
		}
		out := o.buf
		o.buf = spare[:0]
		o.batch++
		if o.room != nil {
			close(o.room)
			o.room = nil
		}
		o.mu.Unlock()

		for p := out; len(p) > 0; {
			// Moving the deadline at each write would cost as much as the write of a small batch.
			if now := time.Now(); deadline.Sub(now) < writeTimeout/2 {
				deadline = now.Add(writeTimeout)
				if err := o.conn.SetWriteDeadline(deadline); err != nil {
					o.fail(err)
					return
				}
			}
			n := min(len(p), writePiece)
			if _, err := o.conn.Write(p[:n]); err != nil {
				o.fail(err)
				return
			}
			p = p[n:]
		}
		if spare = out; cap(spare) > keepBuffer {
			spare = nil
		}
	}
}
