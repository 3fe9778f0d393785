//go:build linux

package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

const sigKill = syscall.SIGKILL

// Process is one command that Spawn has started. Nobody needs to wait for it.
type Process struct {
	guard   *Guard
	run     uint64
	command string
	key     string
	token   uint64
	budget  time.Duration

	started chan error    // of size 1: the outcome of the start
	done    chan struct{} // closed when all of it is gone
	status  Status        // set before done is closed

	pid, sid int    // guarded by guard.mu until started; then constant
	start    uint64 // likewise
}

// PID returns the process ID of the command, which is its process group's too.
func (p *Process) PID() int {
	p.guard.mu.Lock()
	defer p.guard.mu.Unlock()
	return p.pid
}

// Done returns a channel that is closed when the command and everything it started is gone.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for Done and says how the command ended. The only error is that of ctx.
func (p *Process) Wait(ctx context.Context) (Status, error) {
	select {
	case <-p.done:
		return p.status, nil
	default:
	}
	select {
	case <-p.done:
		return p.status, nil
	case <-ctx.Done():
		return Status{}, context.Cause(ctx)
	}
}

// Signal sends a signal to the command's process group. It returns os.ErrProcessDone where all is gone. It does not wait
// for the signal to arrive.
func (p *Process) Signal(sig syscall.Signal) error {
	return p.send(message{Signal: &signalMessage{Run: p.run, Signal: int(sig)}})
}

// Stop tells the command and everything it started to end: TERM now, KILL when the budget is over. 0 takes the budget of its Spec; a
// negative one kills at once. It does not wait for the end; Wait does. A second Stop can only shorten the time.
func (p *Process) Stop(budget time.Duration) error {
	if budget == 0 {
		budget = p.budget
	}
	return p.send(message{Stop: &stopMessage{Run: p.run, Budget: max(0, budget)}})
}

func (p *Process) send(m message) error {
	g := p.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.procs[p.run] != p {
		return os.ErrProcessDone
	}
	if g.link == nil {
		return nil // its guard died: it is being killed
	}
	if err := g.link.put(m, nil); err != nil && !errors.Is(err, ErrGuardDied) {
		return err
	}
	return nil
}

// end reports the command's end. It is called once.
func (p *Process) end(s Status) {
	p.status = s
	close(p.done)
	if s.Reason == ReasonGuardDied {
		p.refuse(ErrGuardDied)
	}
}

// refuse ends a Spawn that waits.
func (p *Process) refuse(err error) {
	select {
	case p.started <- err:
	default:
	}
}

// refusal turns the guard's answer into an error.
func (p *Process) refusal(m *refusedMessage) error {
	switch m.Why {
	case refusedCommand:
		return &StartError{Command: p.command, Code: m.Code, Reason: m.Reason}
	case refusedNotFed:
		return ErrNotFed
	case refusedRecord:
		return fmt.Errorf("%w: %s", ErrRecord, m.Reason)
	}
	return fmt.Errorf("run %q: %s", p.command, m.Reason)
}
