package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/load"
)

// benchCell measures one thing once, in a cluster of its own.
type benchCell struct {
	name, variant string
	what          string
	slow          bool // only on demand: minutes
	run           func(ctx context.Context, b *bench) (load.Row, error)
}

var benchCells = []benchCell{
	{"start", "", "three fresh nodes until the first lease", false, benchStart},
	{"pairs", "leader", "acquire and release, 1 caller on the leader's node", false, benchPairsLeader},
	{"pairs", "follower", "the same on a follower's node", false, benchPairsFollower},
	{"pairs", "spread", "the same, 128 callers over three nodes", false, benchPairsSpread},
	{"renewals", "", "keep-alives proved by the leader, 128 sessions in flight", false, benchRenewals},
	{"handover", "", "release on one node until the waiter's node sees its grant", false, benchHandover},
	{"reads", "local", "owner of a key, read in the process", false, benchReadsLocal},
	{"reads", "linearizable", "the same, proved fresh, on a follower", false, benchReadsLinearizable},
	{"drain", "", "a node with 100 singletons is drained until all run elsewhere", false, benchDrain},
	{"group-drain", "", "gap of a workload when one of three nodes that share 300 is drained", false, benchGroupDrain},
	{"group-prepare", "", "the same gap where the next owner takes 2 s to get ready", false, benchGroupPrepare},
	{"group-start", "", "three fresh nodes until 10,000 workloads run", false, benchGroupStart},
	{"worker-create", "", "create a worker, on an idle cluster whose loads never end", false, benchWorkerCreate},
	{"worker-start", "", "1,000 workers created by 16 callers until all run", false, benchWorkerStart},
	{"worker-restore", "", "restart of all three nodes: from a quorum until 1,000 workers are as they were", false, benchWorkerRestore},
	{"worker-load", "killed", "kill -9 of process and guard that load a worker until another has", false, benchWorkerLoadKilled},
	{"worker-load", "restart", "the same, and the killed process is started again at once", false, benchWorkerLoadRestart},
	{"failover", "default", "kill -9 of the raft leader until an acquire succeeds", false, benchFailoverDefault},
	{"failover", "200ms", "the same with --raft-timeout 200ms", false, benchFailoverFast},
	{"crash", "guard", "kill -9 of a holder's process until the waiter on another node runs", false, benchCrashGuard},
	{"crash", "leader", "the same when the killed process leads raft", false, benchCrashLeader},
	{"crash", "restart", "kill -9 of process and guard, restart: until somebody runs", false, benchCrashRestart},
	{"idle", "", "CPU of three idle nodes over --window; memory of one", true, benchIdle},
	{"hold", "", "extra CPU of the cluster for holding 10,000 leases, over --window", true, benchHold},
}

// bench is what the cells share.
type bench struct {
	duration time.Duration // of one measured run
	window   time.Duration // of a CPU reading
	dir      string        // where clusters keep their data
	self     string        // our own binary
	progress io.Writer
}

func (a *app) benchCommand() *cobra.Command {
	var (
		cells []string
		runs  int
		b     bench
	)
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure this build on this machine",
		Long: `Measure this build on this machine: three nodes on loopback, fsync on, a fresh
cluster for every run. Figures are medians of the runs; p99 is the median of the
runs' 99th percentiles. Cells that take minutes (idle, hold) run only when named.`,
		Example: `  miwnode bench
  miwnode bench --cells pairs/spread,handover --runs 5
  miwnode bench --cells idle,hold --window 60s -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if runs < 1 || b.duration <= 0 || b.window <= 0 {
				return usage(cmd, "--runs, --duration and --window must be positive")
			}
			if a.output != "" && a.output != "json" {
				return usage(cmd, "-o is %q: it must be json, or left out for a table", a.output)
			}
			chosen, err := chooseCells(cells)
			if err != nil {
				return usage(cmd, "%v", err)
			}
			if b.self, err = os.Executable(); err != nil {
				return err
			}
			b.progress = a.stderr
			return b.measure(cmd.Context(), chosen, runs, a.output, a.stdout)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&cells, "cells", nil, "cells to measure, NAME or NAME/VARIANT (default all quick ones)")
	f.IntVar(&runs, "runs", 5, "runs of each cell")
	f.DurationVar(&b.duration, "duration", 3*time.Second, "measured time of a run, where a cell counts calls")
	f.DurationVar(&b.window, "window", 60*time.Second, "length of a CPU reading")
	f.StringVar(&b.dir, "dir", "", "folder for the clusters' data (default a temporary one)")
	f.StringVarP(&a.output, "output", "o", "", "json prints a line for each cell")
	cmd.AddCommand(benchWorkerCommand())
	return cmd
}

func chooseCells(names []string) ([]benchCell, error) {
	if len(names) == 0 {
		return slices.DeleteFunc(slices.Clone(benchCells), func(c benchCell) bool { return c.slow }), nil
	}
	var chosen []benchCell
	for _, name := range names {
		found := false
		for _, c := range benchCells {
			if name == c.name || name == c.id() {
				chosen, found = append(chosen, c), true
			}
		}
		if !found {
			return nil, fmt.Errorf("--cells %q: there is no such cell; there are %s", name, cellNames())
		}
	}
	return chosen, nil
}

func (c benchCell) id() string { return strings.TrimSuffix(c.name+"/"+c.variant, "/") }

func cellNames() string {
	var names []string
	for _, c := range benchCells {
		names = append(names, c.id())
	}
	return strings.Join(names, ", ")
}

func (b *bench) measure(ctx context.Context, cells []benchCell, runs int, output string, out io.Writer) error {
	if b.dir == "" {
		dir, err := os.MkdirTemp("", "miwnode-bench-")
		if err != nil {
			return err
		}
		b.dir = dir
		defer os.RemoveAll(dir)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if output == "" {
		fmt.Fprintln(table, "CELL\tPER S\tP50\tP99\tCPU\tRSS\tENTRIES\tRUNS\tWHAT")
	}
	for _, c := range cells {
		var rows []load.Row
		for run := range runs {
			fmt.Fprintf(b.progress, "\r%-60s\r%s: run %d of %d", "", c.id(), run+1, runs)
			row, err := c.run(ctx, b)
			if err != nil {
				fmt.Fprintln(b.progress)
				return fmt.Errorf("bench %s: %w", c.id(), err)
			}
			rows = append(rows, row)
		}
		fmt.Fprintf(b.progress, "\r%-60s\r", "")
		m := load.Median(rows)
		m.Cell, m.Variant, m.Product = c.name, c.variant, "miwnode"
		if output == "json" {
			if err := json.NewEncoder(out).Encode(m); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", c.id(), figure(m.PerS, "%.0f"), figure(m.P50, "%.3f ms"), figure(m.P99, "%.3f ms"),
			figure(m.CPU, "%.2f %%"), figure(m.RSS, "%.1f MB"), figure(m.Entries, "%.0f"), m.Runs, c.what)
		if m.Overlap > 0 {
			return errors.Join(table.Flush(), fmt.Errorf("bench %s: %d overlaps: two owners at once", c.id(), m.Overlap))
		}
	}
	return table.Flush()
}

func figure(v float64, format string) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}
