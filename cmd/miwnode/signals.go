package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

var errInterrupted = errors.New("interrupted")

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string {
	return fmt.Sprintf("ended by signal %d (%v)", int(e.signal), e.signal)
}
func (e *signalError) Is(target error) bool { return target == errInterrupted }

// interruptible is a context that SIGINT and SIGTERM end, with a *signalError.
func interruptible(ctx context.Context) (context.Context, func()) {
	q := listen(os.Interrupt, syscall.SIGTERM)
	ctx, cancel := q.interruptible(ctx)
	return ctx, func() {
		cancel()
		q.stop()
	}
}

// signalQueue takes signals in place of their default action.
type signalQueue struct{ ch chan os.Signal }

func listen(which ...os.Signal) *signalQueue {
	q := &signalQueue{ch: make(chan os.Signal, 8)}
	signal.Notify(q.ch, which...)
	return q
}

// forwardable takes the signals that a command is to get in our place.
func forwardable() *signalQueue {
	return listen(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
}

func (q *signalQueue) stop() { signal.Stop(q.ch) }

// interruptible is a context that the next signal ends.
func (q *signalQueue) interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case s := <-q.ch:
			sig, _ := s.(syscall.Signal)
			cancel(&signalError{sig})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}
