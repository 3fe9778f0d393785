// Command bench measures miwnode beside etcd on this machine, in turns within
// one run, and prints medians and their ratios. It is a module of its own so
// that the product does not depend on etcd.
//
//	cd bench && go run .                  # every cell that both have, five rounds
//	cd bench && go run . -cells pairs -rounds 7 -o json
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/miwnode/miwnode/load"
)

type cell struct {
	name, variant string
	bar           float64 // miwnode ÷ etcd for rates, etcd ÷ miwnode for times; 0 = shown only
	rate          bool
}

var cells = []cell{
	{"pairs", "leader", 1.0, true},
	{"pairs", "follower", 0.4, true},
	{"pairs", "spread", 3.0, true},
	{"renewals", "", 0, true},
	{"handover", "", 0, false},
	{"start", "", 0, false},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	only := flag.String("cells", "", "comma-separated cells: pairs, renewals, handover, start (default all)")
	rounds := flag.Int("rounds", 5, "rounds of each cell and product")
	duration := flag.Duration("duration", 3*time.Second, "measured time of one round")
	output := flag.String("o", "table", "table or json")
	child := flag.String("etcd", "", "measure one etcd cell CELL/VARIANT and print its row (used by itself)")
	flag.Parse()
	if *child != "" {
		name, variant, _ := strings.Cut(*child, "/")
		r, err := etcdCell(ctx, name, variant, *duration)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	dir, err := os.MkdirTemp("", "bench-miwnode-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	miwnode := filepath.Join(dir, "miwnode")
	build := exec.CommandContext(ctx, "go", "build", "-o", miwnode, "./cmd/miwnode")
	build.Dir, build.Stderr = "..", os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build miwnode: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	if *output == "table" {
		fmt.Fprintln(table, "CELL\tVARIANT\tMIWNODE\tETCD\tUNIT\tRATIO\tBAR\tMIWNODE P99\tETCD P99")
	}
	for _, c := range cells {
		if *only != "" && !strings.Contains(","+*only+",", ","+c.name+",") {
			continue
		}
		var ours, theirs []load.Row
		for round := range *rounds {
			fmt.Fprintf(os.Stderr, "\r%s %s: round %d of %d   ", c.name, c.variant, round+1, *rounds)
			r, err := output1(ctx, self, "-etcd", c.name+"/"+c.variant, "-duration", duration.String())
			if err != nil {
				return fmt.Errorf("etcd %s/%s: %w", c.name, c.variant, err)
			}
			theirs = append(theirs, r)
			r, err = output1(ctx, miwnode, "bench", "--cells", strings.TrimSuffix(c.name+"/"+c.variant, "/"), "--runs", "1", "--duration", duration.String(), "-o", "json")
			if err != nil {
				return fmt.Errorf("miwnode %s/%s: %w", c.name, c.variant, err)
			}
			ours = append(ours, r)
		}
		fmt.Fprint(os.Stderr, "\r                                             \r")
		a, b := load.Median(ours), load.Median(theirs)
		a.Cell, a.Variant, a.Product = c.name, c.variant, "miwnode"
		b.Cell, b.Variant, b.Product = c.name, c.variant, "etcd"
		if *output == "json" {
			enc := json.NewEncoder(os.Stdout)
			_ = enc.Encode(a)
			_ = enc.Encode(b)
			continue
		}
		unit, x, y := "ms", a.P50, b.P50
		ratio := y / x
		if c.rate {
			unit, x, y = "per s", a.PerS, b.PerS
			ratio = x / y
		}
		bar := "-"
		if c.bar > 0 {
			bar = fmt.Sprintf("%.1f", c.bar)
		}
		fmt.Fprintf(table, "%s\t%s\t%.1f\t%.1f\t%s\t%.2f\t%s\t%.2f ms\t%.2f ms\n", c.name, c.variant, x, y, unit, ratio, bar, a.P99, b.P99)
	}
	return table.Flush()
}

// output1 runs a command that prints one row as a JSON line.
func output1(ctx context.Context, name string, args ...string) (load.Row, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return load.Row{}, err
	}
	var r load.Row
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return load.Row{}, fmt.Errorf("%q: %w", lines.Text(), err)
		}
	}
	return r, nil
}
