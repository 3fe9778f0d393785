package node

import (
	"context"
	"sync"
)

// flights shares one call among all who wait when it begins. Who comes while
// one is under way waits for the next: an answer that began before a question
// proves nothing about it.
type flights[T any] struct {
	fly func() (T, error)

	mu      sync.Mutex
	next    *flight[T] // takes passengers; nil = none wait
	flying  bool
	stopped error // set by stop: nothing flies any more
	wg      sync.WaitGroup
}

type flight[T any] struct {
	done chan struct{}
	val  T
	err  error
}

func newFlights[T any](fly func() (T, error)) *flights[T] { return &flights[T]{fly: fly} }

// do waits for a flight that begins after the call.
func (f *flights[T]) do(ctx context.Context) (T, error) {
	f.mu.Lock()
	if f.stopped != nil {
		f.mu.Unlock()
		var zero T
		return zero, f.stopped
	}
	if f.next == nil {
		f.next = &flight[T]{done: make(chan struct{})}
	}
	mine := f.next
	if !f.flying {
		f.flying = true
		f.wg.Go(f.run)
	}
	f.mu.Unlock()
	select {
	case <-mine.done:
		return mine.val, mine.err
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
}

func (f *flights[T]) run() {
	for {
		f.mu.Lock()
		now := f.next
		f.next = nil
		if now == nil {
			f.flying = false
			f.mu.Unlock()
			return
		}
		err := f.stopped
		f.mu.Unlock()
		if err != nil {
			now.err = err
		} else {
			now.val, now.err = f.fly()
		}
		close(now.done)
	}
}

// stop fails all who wait and all who come, and waits for the flight under way.
func (f *flights[T]) stop(err error) {
	f.mu.Lock()
	f.stopped = err
	f.mu.Unlock()
	f.wg.Wait()
}
