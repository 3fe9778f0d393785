package coord

import (
	"errors"
	"fmt"

	"github.com/miwnode/miwnode/fsm"
)

// Why the context of a lease ended: context.Cause of [Lease.Context], or of the
// context a Runner hands to its function, is one of these.
var (
	// ErrLost: the session could not be renewed in time, or the copy no longer
	// shows the grant. Somebody else may hold the key from T - M - S on.
	ErrLost = errors.New("lease lost")
	// ErrRevoked: an operator or a planner took the lease away.
	ErrRevoked = errors.New("lease revoked")
	// ErrMoved: the lease is to pass to another instance; it stays held until
	// it is released.
	ErrMoved = errors.New("lease moves to another instance")
	// ErrPaused: the workload is paused.
	ErrPaused = errors.New("workload paused")
	// ErrUnassigned: the group no longer wants the workload, or this instance
	// no longer declares it.
	ErrUnassigned = errors.New("workload no longer assigned here")
	// ErrDrained: the instance drains, and the time to finish in has passed.
	ErrDrained = errors.New("instance drained")
	// ErrShutDown: the node, or the Runner, is being stopped, and the time to
	// finish in has passed.
	ErrShutDown = errors.New("shut down")
	// ErrReleased: Release was called.
	ErrReleased = errors.New("lease released")
)

var (
	// ErrSessionLost is returned by Acquire when the session that waited for
	// the key ended; it matches fsm.ErrSessionExpired too. A new Acquire waits
	// under a new session.
	ErrSessionLost = fmt.Errorf("the session that waited is lost: %w", fsm.ErrSessionExpired)

	// ErrGoexit is the error of a run that ended its goroutine
	// (runtime.Goexit) instead of returning.
	ErrGoexit = errors.New("the run ended its goroutine instead of returning")

	// ErrRunning is returned by Run when the Runner is running already.
	ErrRunning = errors.New("runner runs already")

	// errAborted is the outcome of a run that was called off before it began.
	errAborted = errors.New("called off before it began")

	// errHindered is the outcome of a run that the node could not begin.
	errHindered = errors.New("the node can't begin the run")
)

// PanicError is the error of a run, or of a Prepare, that panicked.
type PanicError struct {
	Value any
	Stack []byte // of the panicking goroutine
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the panic's value when it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// FailedError is returned by Run when its restart policy allows no further try.
type FailedError struct {
	Key      string
	Failures int // in a row
	Err      error
}

func (e *FailedError) Error() string {
	if e.Failures == 1 {
		return fmt.Sprintf("run of %q failed: %v", e.Key, e.Err)
	}
	return fmt.Sprintf("run of %q failed %d times in a row, the last time with: %v", e.Key, e.Failures, e.Err)
}

// Unwrap returns the error of the last run.
func (e *FailedError) Unwrap() error { return e.Err }
