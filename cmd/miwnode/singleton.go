package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/guard"
	"github.com/miwnode/miwnode/node"
)

// newSingleton runs a command on exactly one node: a runner whose work is a
// process of the node's guard.
func newSingleton(n *node.Node, s singleton, cfg startConfig) *coord.Runner {
	return coord.NewRunner(n, s.key, newCommand(n, s, cfg).run, func(r *coord.RunnerConfig) {
		r.Logger = cfg.log
		r.Drain.Resume = true
		// The guard kills the command by the instant at which this would have to
		// end the process.
		r.Stuck.WhenLost = coord.PolicyReport
	})
}

func newCommand(n *node.Node, s singleton, cfg startConfig) *command {
	return &command{singleton: s, node: n, addr: socketOf(cfg), timing: cfg.node.Timing.WithDefaults(), log: cfg.log.With("node", n.ID(), "key", s.key)}
}

func socketOf(cfg startConfig) string {
	abs, err := filepath.Abs(filepath.Join(cfg.node.DataDir, api.SocketName))
	if err != nil {
		return cfg.server.Socket
	}
	return abs
}

// command is the work of a singleton, or of a workload of a group.
type command struct {
	singleton
	node   *node.Node
	addr   string
	timing node.Timing
	log    *slog.Logger
}

// run runs the command until it ends or must. An end that was asked for, and
// exit code 0, are no failure.
func (c *command) run(ctx context.Context, l *coord.Lease) error {
	logged, out, errOut, err := c.outputs()
	if err != nil {
		return err
	}
	p, err := c.node.Spawn(ctx, guard.Spec{
		Argv: c.argv, Env: append(os.Environ(), "MIW_KEY="+c.key, fmt.Sprintf("MIW_TOKEN=%d", l.Token()), "MIW_ADDR="+c.addr),
		Stdout: out, Stderr: errOut, Key: c.key, Token: l.Token(),
	})
	_, _ = out.Close(), errOut.Close() // the command has its own
	defer logged.Wait()
	if err != nil {
		return fmt.Errorf("start %s: %w", strings.Join(c.argv, " "), err)
	}
	c.log.Info("command started", "pid", p.PID(), "token", l.Token(), "command", strings.Join(c.argv, " "))
	asked := c.attend(ctx, l, p)
	status, err := p.Wait(context.WithoutCancel(ctx))
	if err != nil {
		return fmt.Errorf("wait for %s: %w", strings.Join(c.argv, " "), err)
	}
	c.log.Info("command ended", "pid", p.PID(), "how", status.String())
	if asked || status.ExitCode() == 0 {
		return nil
	}
	return fmt.Errorf("%s ended: %s", strings.Join(c.argv, " "), status)
}

// attend returns when the command has ended; asked says that it was told to.
func (c *command) attend(ctx context.Context, l *coord.Lease, p *guard.Process) (asked bool) {
	draining := l.Draining()
	for {
		select {
		case <-p.Done():
			return asked
		case <-draining:
			draining, asked = nil, true
			_ = p.Signal(syscall.SIGTERM) // it may finish; one that is gone needs no signal
		case <-ctx.Done():
			budget := c.timing.KillTimeout
			if errors.Is(context.Cause(ctx), coord.ErrLost) {
				budget = c.timing.StopBudget
			}
			_ = p.Stop(budget)
			<-p.Done()
			return true
		}
	}
}

// outputs are the write ends of pipes whose lines go to the log.
func (c *command) outputs() (logged *sync.WaitGroup, stdout, stderr *os.File, err error) {
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		_, _ = outR.Close(), outW.Close()
		return nil, nil, nil, err
	}
	logged = new(sync.WaitGroup)
	logged.Go(func() { c.logLines(outR, "stdout") })
	logged.Go(func() { c.logLines(errR, "stderr") })
	return logged, outW, errW, nil
}

// maxLine is where a line of output is cut in the log.
const maxLine = 16 << 10

func (c *command) logLines(r io.ReadCloser, stream string) {
	defer r.Close()
	in := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			c.log.Info(strings.ToValidUTF8(strings.TrimRight(string(line), "\r\n"), "\uFFFD"), "stream", stream)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
