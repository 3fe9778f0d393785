package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/jepsen"
)

// maxTortureNodes is what one machine bears and a page shows.
const maxTortureNodes = 15

func (a *app) tortureCommand() *cobra.Command {
	var t jepsen.Torture
	var check string
	var nemesis []string
	cmd := &cobra.Command{
		Use: "torture", Short: "Torment a cluster on this machine, and say which promises held", Args: noArgs,
		Long: `Start nodes on this machine as processes of their own, set clients, singletons
and a group to work on them, torment them as the seed says, and judge from outside
whether every promise held: one owner at any instant, growing tokens, nothing lost
that was acknowledged, take-overs within their bounds, equal copies, streams
without a hole, nothing left behind. Of --nemesis (default: all):

` + plagueTable() + `
As root each node has a network namespace and a disk of its own. Without, all is on
loopback through a proxy that cuts, delays and loses. What can't be done here is
said. Nothing stays on the machine but the report: report.html to look at, and
history.jsonl, all that was observed, which --check judges again.

The exit code is 0 only if all promises held, else 1. Ctrl-C ends the torment early
and judges what there is; a second one ends at once.`,
		Example: `  miwnode torture
  miwnode torture --nodes 5 --for 2m --nemesis partition,kill,pause
  miwnode torture --binary ./my-build/miwnode --seed 7
  miwnode torture --check miw-report-20260102-150405`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check != "" {
				for _, name := range []string{"nodes", "for", "nemesis", "seed", "report", "binary", "network", "ttl"} {
					if cmd.Flags().Changed(name) {
						return usage(cmd, "--check judges what was recorded: it goes with no --%s", name)
					}
				}
				return a.recheck(check)
			}
			var err error
			if t.Plagues, err = jepsen.ChoosePlagues(nemesis); err != nil {
				return usage(cmd, "--nemesis: %v", err)
			}
			if err := checkTorture(cmd, &t); err != nil {
				return err
			}
			return a.torture(cmd.Context(), &t)
		},
	}
	f := cmd.Flags()
	f.IntVar(&t.Nodes, "nodes", 3, "how many nodes")
	f.DurationVar(&t.Length, "for", 2*time.Minute, "how long they are tormented; starting, healing and judging come on top")
	f.StringSliceVar(&nemesis, "nemesis", nil, "what they suffer, separated by commas (default: all)")
	f.Int64Var(&t.Seed, "seed", 0, "repeat the schedule and the clients of a run (default: drawn)")
	f.StringVar(&t.Report, "report", "", "folder of the report (default: miw-report-<time>)")
	f.StringVar(&t.Binary, "binary", "", "another build of miwnode to torment (default: this one)")
	f.StringVar(&t.Network, "network", "", "namespaces or loopback (default: what does more here)")
	f.DurationVar(&t.TTL, "ttl", 4*time.Second, "TTL of the nodes' sessions; their other timings follow from it")
	f.StringVar(&check, "check", "", "judge the recording in a report's folder again, and rewrite the report")
	_ = cmd.RegisterFlagCompletionFunc("nemesis", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return jepsen.PlagueNames(jepsen.Plagues()), cobra.ShellCompDirectiveNoFileComp
	})
	cmd.AddCommand(tortureWorkerCommand())
	return cmd
}

func plagueTable() string {
	var b strings.Builder
	for _, p := range jepsen.Plagues() {
		fmt.Fprintf(&b, "  %-14s %s\n", p.Name, p.What)
	}
	return b.String()
}

// checkTorture refuses what can't be run, before anything is started.
func checkTorture(cmd *cobra.Command, t *jepsen.Torture) error {
	switch {
	case runtime.GOOS != "linux":
		return usage(cmd, "torture needs Linux: work is stopped by guards, and watched by the clock that all processes share")
	case t.Nodes < 2 || t.Nodes > maxTortureNodes:
		return usage(cmd, "--nodes is %d: it must be from 2 to %d", t.Nodes, maxTortureNodes)
	case t.Length < 5*time.Second || t.Length > 24*time.Hour:
		return usage(cmd, "--for is %v: it must be from 5s to 24h", t.Length)
	case t.TTL < 3*time.Second || t.TTL > time.Minute:
		return usage(cmd, "--ttl is %v: it must be from 3s to 1m", t.TTL)
	case t.Network != "" && t.Network != jepsen.NetworkNamespaces && t.Network != jepsen.NetworkLoopback:
		return usage(cmd, "--network is %q: it must be %s or %s", t.Network, jepsen.NetworkNamespaces, jepsen.NetworkLoopback)
	case t.Seed < 0:
		return usage(cmd, "--seed is %d: it must not be negative", t.Seed)
	}
	if t.Binary != "" {
		if err := unrunnable([]string{t.Binary}); err != nil {
			return usage(cmd, "--binary: %v", err)
		}
	}
	return nil
}

// torture runs one, with a report of how it goes.
func (a *app) torture(ctx context.Context, t *jepsen.Torture) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this binary: %w", err)
	}
	if t.Binary == "" {
		t.Binary = self
	}
	if t.Binary, err = exec.LookPath(t.Binary); err != nil {
		return err
	}
	if t.Binary, err = filepath.Abs(t.Binary); err != nil {
		return err
	}
	tested, err := exec.CommandContext(ctx, t.Binary, "version").Output()
	if err != nil {
		return fmt.Errorf("%s version: %w", t.Binary, err)
	}
	if t.Seed == 0 {
		t.Seed = 1 + rand.Int64N(1<<31)
	}
	if t.Report == "" {
		t.Report = "miw-report-" + time.Now().Format("20060102-150405")
	}
	if entries, err := os.ReadDir(t.Report); err == nil && len(entries) > 0 {
		return &exitError{exitUsage, fmt.Errorf("--report: %s is not empty; give another folder", t.Report)}
	}
	t.Worker = []string{self, "torture", "worker"}
	t.Setup = jepsen.Setup{Command: os.Args, Version: versionLine(), Binary: t.Binary, Tested: strings.TrimSpace(string(tested))}

	q := listen(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer q.stop()
	tctx, stop := q.interruptible(ctx)
	defer stop()
	hurry, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	show := newTortureStatus(a.stdout, t)
	done := make(chan struct{})
	go func() { // the second signal ends it at once
		defer close(done)
		select {
		case <-tctx.Done():
		case <-hurry.Done():
			return
		}
		if ctx.Err() != nil || hurry.Err() != nil {
			return
		}
		show.line("Stopping early; what was seen is judged. Again Ctrl-C ends at once, without a report.")
		select {
		case s := <-q.ch:
			end(&signalError{s.(syscall.Signal)})
		case <-hurry.Done():
		}
	}()
	show.begin()
	rep, err := t.Run(tctx, hurry)
	show.end()
	interrupted := context.Cause(tctx)
	end(nil)
	<-done
	if err != nil {
		if errors.Is(err, errInterrupted) {
			return &exitError{exitSignal + signalOf(err), errors.New("ended at once; there is no report")}
		}
		return err
	}
	verdictErr := a.sentence(rep, t.Report)
	if verdictErr == nil && errors.Is(interrupted, errInterrupted) {
		return &exitError{exitSignal + signalOf(interrupted), nil}
	}
	return verdictErr
}

// signalOf is the number of the signal that ended a context.
func signalOf(err error) int {
	if s, ok := errors.AsType[*signalError](err); ok {
		return int(s.signal)
	}
	return int(syscall.SIGINT)
}

// recheck judges the recording of a report again.
func (a *app) recheck(dir string) error {
	rep, err := jepsen.Recheck(dir)
	if err != nil {
		return err
	}
	return a.sentence(rep, dir)
}

// sentence says what came of it; an error if a promise was broken.
func (a *app) sentence(rep *jepsen.Report, dir string) error {
	writeVerdicts(a.stdout, rep)
	fmt.Fprintf(a.stdout, "\nreport  %s\nagain   %s\n", filepath.Join(dir, "report.html"), rep.Replay)
	if rep.OK() {
		return nil
	}
	var broken []string
	for _, check := range jepsen.FailedChecks(rep.Verdicts) {
		broken = append(broken, fmt.Sprintf("%s (%s)", jepsen.PromiseOf(check).Name, check))
	}
	return &exitError{exitFailed, fmt.Errorf("not held: %s; look at %s", strings.Join(broken, ", "), filepath.Join(dir, "report.html"))}
}

func writeVerdicts(w io.Writer, rep *jepsen.Report) {
	fmt.Fprintf(w, "\n%s\n\n", rep.Summary())
	for _, v := range rep.Verdicts {
		state := v.Outcome()
		if !v.OK {
			state = "BROKEN"
		}
		fmt.Fprintf(w, "  %-7s %-26s %s\n", state, jepsen.PromiseOf(v.Check).Name, count(uint64(v.Checked), "thing")+" looked at")
		for _, f := range v.Faults {
			fmt.Fprintf(w, "            %s\n", f)
		}
	}
}

// tortureWorkerCommand is the work: it stamps its start, that it is alive, and its stop.
func tortureWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use: "worker SOCKET NODE STOP", Hidden: true, Args: cobra.ExactArgs(3),
		Short:   "Tell an observer that this runs, until TERM (used by torture itself)",
		Example: "  miwnode torture worker /tmp/observer.sock n1 100ms",
		RunE: func(_ *cobra.Command, args []string) error {
			if code := jepsen.Worker(args); code != 0 {
				return &exitError{code: code}
			}
			return nil
		},
	}
}
