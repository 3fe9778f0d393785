package jepsen

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// retransmit is how late a stream gets a segment that was lost: TCP's first wait
// before it sends one again.
const retransmit = 200 * time.Millisecond

// direction is everything that passes from one node to another.
type direction struct {
	mu            sync.Mutex
	open          chan struct{} // guarded by mu; closed unless the direction is cut
	delay, jitter time.Duration // guarded by mu
	loss          float64       // guarded by mu
}

func newDirection() *direction {
	d := &direction{open: make(chan struct{})}
	close(d.open)
	return d
}

func (d *direction) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isOpen() {
		d.open = make(chan struct{})
	}
}

func (d *direction) mend() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.isOpen() {
		close(d.open)
	}
}

// isOpen is called with mu held.
func (d *direction) isOpen() bool {
	select {
	case <-d.open:
		return true
	default:
		return false
	}
}

func (d *direction) shape(delay, jitter time.Duration, loss float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.delay, d.jitter, d.loss = delay, jitter, loss
}

// wait waits until the direction is not cut; false if ctx ends before.
func (d *direction) wait(ctx context.Context) bool {
	for {
		d.mu.Lock()
		open := d.open
		d.mu.Unlock()
		select {
		case <-open:
		case <-ctx.Done():
			return false
		}
		d.mu.Lock()
		same := d.open == open
		d.mu.Unlock()
		if same {
			return true
		}
	}
}

// packet draws how late a packet is, or that it never arrives.
func (d *direction) packet() (lag time.Duration, lost bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lag(), !d.isOpen() || rand.Float64() < d.loss
}

// segment draws how late a part of a stream is, what was lost and sent again included.
func (d *direction) segment() (lag time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	lag = d.lag()
	for again := retransmit; rand.Float64() < d.loss; again *= 2 {
		lag += again
	}
	return lag
}

func (d *direction) lag() time.Duration {
	lag := d.delay
	if d.jitter > 0 {
		lag += time.Duration((2*rand.Float64() - 1) * float64(d.jitter))
	}
	return max(0, lag)
}

// parcel is a part of a stream under way.
type parcel struct {
	data []byte
	due  time.Time
	end  error // instead of data: how the stream ended
}

// carry carries one direction of a stream to its end, in order. What a cut holds
// up arrives when it is mended, as TCP's repeats would.
func carry(ctx context.Context, from, to *net.TCPConn, there, back *direction) {
	queue := make(chan parcel, 64)
	go func() {
		defer close(queue)
		for {
			buf := make([]byte, 16<<10)
			n, err := from.Read(buf)
			due := time.Now().Add(there.segment())
			if n > 0 {
				queue <- parcel{data: buf[:n], due: due}
			}
			if err != nil {
				queue <- parcel{end: err, due: due}
				return
			}
		}
	}()
	defer func() {
		for range queue { // so that the reader ends
		}
	}()
	for p := range queue {
		if !sleep(ctx, time.Until(p.due)) || !there.wait(ctx) {
			reset(from)
			return
		}
		switch {
		case errors.Is(p.end, io.EOF):
			_ = to.CloseWrite()
			return
		case p.end != nil:
			reset(to)
			return
		}
		if _, err := to.Write(p.data); err != nil {
			back.wait(ctx) // the word that the receiver is gone must pass, too
			reset(from)
			return
		}
	}
}

// reset ends a stream as a process does that has died.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	c.Close()
}
