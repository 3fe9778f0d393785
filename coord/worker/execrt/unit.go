package execrt

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/guard"
)

const (
	// busyTries and busyPause are for a program that the kernel takes for one that is being written: another thread may have
	// forked while it was, and the child has not let go of its copy of the file yet.
	busyTries = 10
	busyPause = 20 * time.Millisecond

	// lastWords is how long output is waited for that somebody holds who is not of the run, when all of the run is gone.
	lastWords = time.Second
)

// unit is a worker loaded on this machine.
type unit struct {
	runtime *Runtime
	image   *image
	dir     string // of the worker's own
}

var _ worker.Unit = (*unit)(nil)

// Unload implements worker.Unit.
func (u *unit) Unload() error {
	return errors.Join(os.RemoveAll(u.dir), u.runtime.drop(u.image))
}

// Run implements worker.Unit.
func (u *unit) Run(ctx context.Context, run worker.Run) error {
	stdout, err := newPipe(worker.NewOutput(run.Log, "stdout"))
	if err != nil {
		return worker.Errorf(worker.TypeRunFailed, "make a pipe: %w", err)
	}
	stderr, err := newPipe(worker.NewOutput(run.Log, "stderr"))
	if err != nil {
		stdout.finish()
		return worker.Errorf(worker.TypeRunFailed, "make a pipe: %w", err)
	}
	defer stdout.finish()
	defer stderr.finish()
	p, err := u.spawn(ctx, guard.Spec{
		Argv: append([]string{u.image.path}, run.Args...), Env: u.runtime.env(run), Dir: u.dir,
		Stdout: stdout.w, Stderr: stderr.w, Key: run.Key, Token: run.Token,
	})
	stdout.handedOver()
	stderr.handedOver()
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, guard.ErrNotFound), errors.Is(err, guard.ErrNotExecutable):
		return worker.Errorf(worker.TypeNotExecutable, "the command can't be run: %w", err)
	case err != nil:
		return worker.Errorf(worker.TypeRunFailed, "start the command: %w", err)
	}
	run.Log.Info("command started", "pid", p.PID(), "token", run.Token)
	u.runtime.attend(ctx, run, p)
	status, err := p.Wait(context.WithoutCancel(ctx))
	if err != nil {
		return worker.Errorf(worker.TypeRunFailed, "wait for the command: %w", err)
	}
	run.Log.Info("command ended", "pid", p.PID(), "how", status.String())
	return outcome(status)
}

// outcome is what a run returns whose command ended so.
func outcome(s guard.Status) error {
	switch {
	case s.Reason == guard.ReasonGuardDied:
		return worker.Errorf(worker.TypeRunFailed, "the command was killed, since its guard process had died")
	case s.Signal != 0:
		return worker.Errorf(worker.TypeExited, "the command was ended by signal %d (%v)", int(s.Signal), s.Signal)
	case s.Code != 0:
		return worker.Errorf(worker.TypeExited, "the command exited with code %d", s.Code)
	}
	return nil
}

// spawn starts the command.
func (u *unit) spawn(ctx context.Context, s guard.Spec) (*guard.Process, error) {
	for try := 1; ; try++ {
		p, err := u.runtime.cfg.Spawner.Spawn(ctx, s)
		refused, ok := errors.AsType[*guard.StartError](err)
		if !ok || try == busyTries || !strings.Contains(refused.Reason, syscall.ETXTBSY.Error()) {
			return p, err
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// attend hands on to the command what the run is told, and returns when it has ended.
func (r *Runtime) attend(ctx context.Context, run worker.Run, p *guard.Process) {
	draining := run.Draining()
	for {
		select {
		case <-p.Done():
			return
		case <-draining:
			draining = nil
			_ = p.Signal(syscall.SIGTERM) // one that is gone needs none
		case <-ctx.Done():
			budget := r.cfg.KillTimeout
			if errors.Is(context.Cause(ctx), coord.ErrLost) {
				budget = r.cfg.StopBudget
			}
			_ = p.Stop(budget)
			<-p.Done()
			return
		}
	}
}

// pipe is where a command writes to.
type pipe struct {
	r, w *os.File
	read sync.WaitGroup
}

func newPipe(to io.WriteCloser) (*pipe, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p := &pipe{r: r, w: w}
	p.read.Go(func() {
		_, _ = io.Copy(to, r)
		_ = to.Close()
	})
	return p, nil
}

// handedOver closes our copy of the end that the command has.
func (p *pipe) handedOver() { _ = p.w.Close() }

// finish waits for the last of what was written.
func (p *pipe) finish() {
	p.handedOver()
	_ = p.r.SetReadDeadline(time.Now().Add(lastWords))
	p.read.Wait()
	_ = p.r.Close()
}
