package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/guard"
	"github.com/miwnode/miwnode/node"
)

func (a *app) execCommand() *cobra.Command {
	e := &execution{a: a}
	cmd := &cobra.Command{
		Use: "exec --key KEY [flags] -- CMD [ARG...]", Short: "Run a command while holding a lease",
		Long: `Run a command while holding a lease. It starts when the key is granted, with
MIW_KEY, MIW_TOKEN and MIW_ADDR in its environment, and never outlives the lease:
when the lease can't be renewed the command and everything it started gets TERM,
and KILL before anybody else can be granted the key. Give MIW_TOKEN to whatever
you write to, and have it refuse smaller ones. (MIW_RUN marks what a guard started;
leave it alone.) A revoke reaches the command within a keep-alive, a fifth of the
TTL and at most 2 s.

It waits until the key is free, through outages too, unless --wait limits that,
and says once what it waits for. INT, TERM, HUP, QUIT, USR1 and USR2 are handed on to
the command, which decides: one that ignores TERM runs on.

The exit code is the command's own; 75 when the lease was lost, 124 when --wait was
over, 126 and 127 when the command can't be run or found, 128+n when signal n ended
it or the wait, 69 when no node or no quorum was there for all of --wait.`,
		Example: `  miwnode exec --key nightly -- ./report.sh
  miwnode exec --key nightly --wait 10s -- ./report.sh    # give up after 10 s (code 124)
  miwnode exec --key nightly --wait 0s -- ./report.sh     # only if it is free now
  miwnode exec --key migrate --ttl 30s -- sh -c 'echo "token $MIW_TOKEN"; ./migrate'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(cmd, "the command is missing: write it after --")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkKey(e.key); err != nil {
				return usage(cmd, "--key: %v", err)
			}
			if e.ttl < node.MinSessionTTL || e.ttl > node.MaxSessionTTL {
				return usage(cmd, "--ttl is %v: it must lie between %v and %v", e.ttl, node.MinSessionTTL, node.MaxSessionTTL)
			}
			e.limited = cmd.Flags().Changed("wait")
			if e.wait < 0 {
				return usage(cmd, "--wait is %v: it must not be negative", e.wait)
			}
			c, err := a.client(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			e.client, e.argv = c, args
			return e.run(cmd.Context())
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&e.key, "key", "", "the lease's key")
	cmd.Flags().DurationVar(&e.wait, "wait", 0, "wait at most so long for the lease, outages and all; 0s: only if it is free now (default: without limit)")
	cmd.Flags().DurationVar(&e.ttl, "ttl", node.DefaultSessionTTL, "TTL of the session that holds the lease: 2s to 60s")
	return cmd
}

// execution is one exec.
type execution struct {
	a       *app
	client  *api.Client
	key     string
	wait    time.Duration
	limited bool
	ttl     time.Duration
	argv    []string
}

// run holds the lease and runs the command under it.
func (e *execution) run(ctx context.Context) error {
	if _, err := exec.LookPath(e.argv[0]); err != nil && !errors.Is(err, exec.ErrDot) {
		return e.unrunnable(err)
	}
	g, err := guard.Start(guard.Config{StopBudget: stopBudget(e.ttl)})
	if err != nil {
		return fmt.Errorf("the guard of the command does not start: %w", err)
	}
	defer g.Close(context.WithoutCancel(ctx))
	signals := forwardable()
	defer signals.stop()

	asking, cancel := signals.interruptible(ctx)
	s, token, err := e.acquire(asking)
	cancel()
	if err != nil {
		return err
	}
	lease := heldLease{key: e.key, token: token}
	defer s.close(lease, e.a.timeout)
	return e.supervise(ctx, g, s, lease, signals)
}

func (e *execution) unrunnable(err error) error {
	code := exitNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		code = exitNotFound
	}
	if inner := (*exec.Error)(nil); errors.As(err, &inner) {
		err = inner.Err
	}
	return &exitError{code, fmt.Errorf("%s can't be run: %w", e.argv[0], err)}
}

func (e *execution) interrupted(ctx context.Context, err error) error {
	if sig, ok := errors.AsType[*signalError](context.Cause(ctx)); ok {
		return &exitError{exitSignal + int(sig.signal), fmt.Errorf("%v while waiting for %q", sig, e.key)}
	}
	return err
}

// supervise runs the command under the lease. The guard kills it when it is not
// fed; this loop feeds it with every confirmed keep-alive that lists the lease.
func (e *execution) supervise(ctx context.Context, g *guard.Guard, s *execSession, lease heldLease, signals *signalQueue) error {
	if err := g.Feed(s.feed()); err != nil {
		return err
	}
	p, err := g.Spawn(ctx, guard.Spec{
		Argv: e.argv, Env: append(os.Environ(), "MIW_KEY="+e.key, fmt.Sprintf("MIW_TOKEN=%d", lease.token), "MIW_ADDR="+absolute(e.client.Addr())),
		Stdin: file(e.a.stdin), Stdout: file(e.a.stdout), Stderr: file(e.a.stderr),
		Key: e.key, Token: lease.token,
	})
	if err != nil {
		if code := guard.ExitCode(err); code == exitNotFound || code == exitNotExecutable {
			return &exitError{code, err}
		}
		return fmt.Errorf("start %s: %w", e.argv[0], err)
	}
	lost := e.watch(ctx, g, p, s, lease, signals)
	status, err := p.Wait(context.WithoutCancel(ctx))
	if err != nil {
		return fmt.Errorf("wait for %s: %w", e.argv[0], err)
	}
	switch {
	case lost == nil && (status.Reason == guard.ReasonDeadline):
		lost = errors.New("it could not be renewed in time")
	case lost == nil && status.Reason == guard.ReasonGuardDied:
		lost = errors.New("its guard died")
	}
	if lost != nil {
		return &exitError{exitLeaseLost, fmt.Errorf("the lease of %q is gone: %w; the command was stopped", e.key, lost)}
	}
	if code := status.ExitCode(); code != 0 {
		return &exitError{code: code}
	}
	return nil
}

// watch returns when the command has ended, and why its lease was lost, if it was.
func (e *execution) watch(ctx context.Context, g *guard.Guard, p *guard.Process, s *execSession, lease heldLease, signals *signalQueue) (lost error) {
	beat := time.NewTicker(renewEvery(e.ttl))
	defer beat.Stop()
	answers := make(chan keptAlive, 1) // one is asked for at a time
	asking := false
	patience := time.NewTimer(0) // of a hand-over
	<-patience.C
	defer patience.Stop()
	for {
		select {
		case <-p.Done():
			return lost
		case sig := <-signals.ch:
			_ = p.Signal(sig.(syscall.Signal)) // a command that is gone needs none
		case <-patience.C:
			_ = p.Stop(stopBudget(e.ttl))
		case <-beat.C:
			if !asking && !over(lost) {
				asking = true
				go func() { answers <- s.keepAlive(ctx) }()
			}
		case ka := <-answers:
			asking = false
			before := lost
			if lost = s.apply(ka, lease); lost == nil {
				lost = before
			}
			switch {
			case over(lost):
				_ = p.Stop(stopBudget(e.ttl))
			case ka.err == nil:
				_ = g.Feed(s.feed()) // a guard that is gone has killed the command
			}
			if errors.Is(lost, errHandOver) && !errors.Is(before, errHandOver) {
				// The lease stays ours until the command has ended.
				_ = p.Signal(syscall.SIGTERM)
				patience.Reset(node.DefaultDrainTimeout)
			}
		}
	}
}

// over tells whether the lease is gone for good; one that is to be handed over is not yet.
func over(lost error) bool { return lost != nil && !errors.Is(lost, errHandOver) }

func absolute(addr string) string {
	if filepath.IsAbs(addr) || len(addr) == 0 || isURL(addr) {
		return addr
	}
	abs, err := filepath.Abs(addr)
	if err != nil {
		return addr
	}
	return abs
}

// file is a stream as the file that a child can inherit; what is no file is /dev/null to it.
func file(stream any) *os.File {
	f, _ := stream.(*os.File)
	return f
}

func newHolder() string { return "exec-" + rand.Text() }
