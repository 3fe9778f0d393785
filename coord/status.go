package coord

import "time"

// RunnerState is what a Runner is doing.
type RunnerState string

// States of a Runner.
const (
	StateIdle       RunnerState = "idle"        // Run was not called
	StateWaiting    RunnerState = "waiting"     // in the queue of the key, or trying to get there
	StatePreparing  RunnerState = "preparing"   // of a Coordinator: in Prepare, for a workload that is to come here
	StateStarting   RunnerState = "starting"    // granted; Prepare, the slot or the proof of trust is awaited
	StateRunning    RunnerState = "running"     // in the function
	StateResting    RunnerState = "resting"     // holds the lease between two runs
	StateDraining   RunnerState = "draining"    // told to finish
	StateStopping   RunnerState = "stopping"    // its context has ended; not yet returned, or not yet released
	StateStuck      RunnerState = "stuck"       // has not returned in time
	StateBackingOff RunnerState = "backing_off" // after a failed run
	StateSuspended  RunnerState = "suspended"   // waits for an undrain (DrainConfig.Resume)
	StateStopped    RunnerState = "stopped"     // Run has returned
)

// Status is a snapshot of a Runner.
type Status struct {
	Key       string
	Name      string
	State     RunnerState
	Since     time.Time // when State began
	Token     uint64    // of the grant, 0 without one
	Runs      int       // calls of the function so far
	Failures  int       // in a row, when the last run failed
	LastError string    // of the last run that failed, "" if none has
	Stuck     *StuckRun // nil unless a run hangs
}

// Status tells what the Runner is doing.
func (r *Runner) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

func (r *Runner) set(change func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.status.State
	change(&r.status)
	if r.status.State != before {
		r.status.Since = time.Now()
	}
}
