package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
	"github.com/miwnode/miwnode/node"
)

// demoGroup is a group of sample workloads.
type demoGroup struct {
	name, about string
	assigner    coord.Assigner
	workloads   []string
}

// demoMail is the workload whose owner is killed and drained.
const demoMail = "mail/mailer"

var demoGroups = []demoGroup{
	{"shards", "shared out evenly (balanced)", coord.Balanced{}, []string{"a", "b", "c", "d", "e", "f"}},
	{"mail", "all on one node, the others stand by (primary)", coord.Primary{}, []string{"mailer", "sweeper"}},
}

func (g demoGroup) group() coord.Group {
	group := coord.Group{Name: g.name, Assigner: g.assigner, MaxMoves: len(g.workloads)}
	for _, w := range g.workloads {
		group.Workloads = append(group.Workloads, coord.Workload{Key: w})
	}
	return group
}

// demoQuiet is how long nothing must happen before the demo says who runs what.
const demoQuiet = 300 * time.Millisecond

// demoTiming makes a take-over visible in seconds: nobody can see a whole
// machine die, so a successor waits until the session has run out.
var demoTiming = node.Timing{
	SessionTTL: 3 * time.Second, RenewInterval: 500 * time.Millisecond, Margin: 500 * time.Millisecond,
	StopBudget: 300 * time.Millisecond, DrainTimeout: 2 * time.Second, KillTimeout: time.Second, RaftTimeout: 300 * time.Millisecond,
}

func (a *app) demoCommand() *cobra.Command {
	var length, killAfter, restartAfter time.Duration
	cmd := &cobra.Command{
		Use: "demo", Short: "Watch three nodes in one process share work out and take it over from each other", Args: noArgs,
		Long: `Run three nodes in one process, in a temporary folder, over loopback. They share
out six workloads evenly, and two more run on one of them while the others stand
by. A node is killed as if its machine had lost power; the others take over; it
comes back; another is drained, as before a deploy. The demo tells who runs what,
measures the gaps in which nobody ran a workload, and counts the moments in which
two did: there must be none, else the exit code is 1.

Without --for it goes on until Ctrl-C, and Enter kills the node that has the mailer,
first in place of the scripted kill.`,
		Example: `  miwnode demo
  miwnode demo --for 20s --kill-after 5s    # a script: ends by itself, code 0 if nothing overlapped`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for name, d := range map[string]time.Duration{"--for": length, "--kill-after": killAfter, "--restart-after": restartAfter} {
				if d < 0 {
					return usage(cmd, "%s is %v: it must not be negative", name, d)
				}
			}
			if length > 0 && killAfter >= length {
				return usage(cmd, "--kill-after is %v: it must be less than --for (%v)", killAfter, length)
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			d := newDemo(a.stdout)
			if length == 0 {
				d.commands = readLines(ctx, a.stdin)
			}
			return d.run(ctx, script{length, killAfter, restartAfter})
		},
	}
	cmd.Flags().DurationVar(&length, "for", 0, "end after so long (default: on Ctrl-C)")
	cmd.Flags().DurationVar(&killAfter, "kill-after", 5*time.Second, "kill the node that has the mailer after so long; 0 never does")
	cmd.Flags().DurationVar(&restartAfter, "restart-after", 3*time.Second, "start the killed node again so long after the take-over")
	return cmd
}

// script says when what happens.
type script struct{ length, killAfter, restartAfter time.Duration }

// readLines hands on each line of in; nil where nobody types.
func readLines(ctx context.Context, in io.Reader) <-chan struct{} {
	f, ok := in.(*os.File)
	if !ok {
		return nil
	}
	if st, err := f.Stat(); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	lines := make(chan struct{})
	go func() {
		for s := bufio.NewScanner(f); s.Scan(); {
			select {
			case lines <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return lines
}

// demo is three nodes, the groups that they share, and who watches them.
type demo struct {
	say      *narrator
	seen     *observer
	nodes    []*demoNode
	commands <-chan struct{}
}

func newDemo(out io.Writer) *demo {
	say := &narrator{out: out, began: time.Now()}
	var workloads []string
	for _, g := range demoGroups {
		for _, w := range g.workloads {
			workloads = append(workloads, g.name+"/"+w)
		}
	}
	return &demo{say: say, seen: newObserver(say, workloads)}
}

func (d *demo) run(ctx context.Context, s script) error {
	dir, err := os.MkdirTemp("", "miwnode-demo-")
	if err != nil {
		return fmt.Errorf("make a folder for the demo: %w", err)
	}
	defer os.RemoveAll(dir)
	d.say.line("Three nodes start in this process, with their data in %s.", dir)
	for i := range 3 {
		d.nodes = append(d.nodes, &demoNode{name: fmt.Sprintf("node-%d", i+1), dir: filepath.Join(dir, fmt.Sprintf("node-%d", i+1)), demo: d})
	}
	defer d.stop()
	if err := d.start(ctx); err != nil {
		return err
	}
	d.say.line("They have found each other and agree. They take part in two groups:")
	for _, g := range demoGroups {
		d.say.line("  %-6s  %d workloads, %s", g.name, len(g.workloads), g.about)
	}
	d.say.line("Look at them from another terminal: miwnode groups shards --data-dir %s", d.nodes[0].dir)
	if err := d.act(ctx, s); err != nil {
		return err
	}
	d.seen.close()
	d.say.line("Ending: the nodes leave gracefully.")
	d.stop()
	return d.verdict()
}

// start starts the first node, whose port the others join, and waits for all.
func (d *demo) start(ctx context.Context) error {
	var join []string
	for i, n := range d.nodes {
		if err := n.start(join, len(d.nodes)); err != nil {
			return err
		}
		if i == 0 {
			addr, err := n.bound(ctx)
			if err != nil {
				return err
			}
			join = []string{addr}
		}
	}
	for _, n := range d.nodes {
		if err := n.ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// act follows the script until its end. An Enter comes in place of the scripted
// kill, and one node at most is dead: two of three are needed to decide anything.
func (d *demo) act(ctx context.Context, s script) error {
	ctx, cancel := context.WithCancel(ctx)
	end, kill := after(s.length), after(s.killAfter)
	var restart, deploy, quiet <-chan time.Time
	var dead *demoNode
	var busy chan error // a revival or a deploy goes on
	begin := func(job func(context.Context) error) {
		busy = make(chan error, 1)
		go func() { busy <- job(ctx) }()
	}
	defer func() {
		cancel()
		if busy != nil {
			<-busy
		}
	}()
	taken := false
	strike := func() {
		kill = nil
		if dead = d.kill(); dead != nil {
			deploy, taken = nil, false
			restart = after(4 * demoTiming.SessionTTL) // at the latest
		}
	}
	if d.commands != nil {
		d.say.line("Press Enter to kill the node that has the mailer, Ctrl-C to end.")
	}
	for {
		changed, moved := d.seen.changed, d.seen.moved
		if busy != nil {
			changed, moved = nil, nil // what goes on watches for itself
		}
		select {
		case <-ctx.Done():
			return nil
		case <-end:
			return nil
		case <-changed:
			quiet = after(demoQuiet)
		case <-quiet:
			quiet = nil
			d.show()
		case n := <-moved:
			if dead != nil && !taken && n != dead.name {
				taken, restart = true, after(max(s.restartAfter, time.Millisecond))
			}
		case <-kill:
			strike()
		case <-d.commands:
			switch {
			case dead != nil && busy != nil:
				d.say.line("%s is just coming back; press Enter again when it has caught up.", dead.name)
			case dead != nil:
				d.say.line("%s is down and comes back first: without two of three nodes there is no quorum, and nobody may work.", dead.name)
			case busy != nil:
				d.say.line("The drain is not over yet; press Enter again when it is.")
			default:
				strike()
			}
		case <-restart:
			restart = nil
			begin(func(ctx context.Context) error { return d.revive(ctx, dead) })
		case <-deploy:
			deploy = nil
			begin(d.deploy)
		case err := <-busy:
			busy = nil
			if err != nil && ctx.Err() == nil {
				return err
			}
			if dead != nil {
				dead, deploy = nil, after(2*time.Second)
			}
			quiet = after(demoQuiet)
		}
	}
}

// show says who runs what.
func (d *demo) show() {
	for _, line := range d.seen.board() {
		d.say.line("%s", line)
	}
}

// settle waits until nothing has happened for a while.
func (d *demo) settle(ctx context.Context) {
	for limit := after(5 * time.Second); ; {
		select {
		case <-d.seen.changed:
		case <-after(demoQuiet):
			return
		case <-limit:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (d *demo) kill() *demoNode {
	owner := d.seen.owner(demoMail)
	for _, n := range d.nodes {
		if n.name == owner {
			d.say.line("KILL %s, as if its machine lost power: no goodbye, nothing released.", owner)
			d.say.line("Its session runs out after %v; until then nobody can be sure that it has stopped.", demoTiming.SessionTTL)
			n.kill()
			return n
		}
	}
	d.say.line("Nobody has the mailer right now; nothing to kill.")
	return nil
}

func (d *demo) revive(ctx context.Context, n *demoNode) error {
	d.say.line("%s comes back with the same data folder.", n.name)
	var join []string
	for _, other := range d.nodes {
		if other != n {
			join = append(join, other.addr)
		}
	}
	if err := n.start(join, 0); err != nil {
		return err
	}
	if err := n.ready(ctx); err != nil {
		return err
	}
	d.say.line("%s has caught up and joins; it gets its share of the shards, and the mail stays where it is.", n.name)
	return nil
}

// deploy drains the owner, as before a deploy: the planned way costs no TTL.
func (d *demo) deploy(ctx context.Context) error {
	owner := d.seen.owner(demoMail)
	for _, n := range d.nodes {
		if n.name != owner {
			continue
		}
		d.say.line("DRAIN %s, as before a deploy: it finishes and hands over what it has.", n.name)
		for _, mark := range []fsmpb.Mark{fsm.MarkDrain, fsm.MarkUndrain} {
			limit, cancel := context.WithTimeout(ctx, 5*time.Second)
			res, err := n.node.Submit(limit, &fsm.MarkInstance{InstanceId: n.node.InstanceID(), Mark: mark, Reason: "deploy", By: "demo"})
			cancel()
			if err := cmp.Or(err, fsm.ResultErr(res)); err != nil && ctx.Err() == nil {
				return fmt.Errorf("drain %s: %w", n.name, err)
			}
			if mark == fsm.MarkDrain {
				select {
				case <-d.seen.moved:
				case <-ctx.Done():
				case <-after(5 * time.Second):
				}
				d.settle(ctx)
				d.show()
				d.say.line("UNDRAIN %s: it takes work again.", n.name)
			}
		}
	}
	return nil
}

// stop ends all nodes gracefully, at once.
func (d *demo) stop() {
	var wg sync.WaitGroup
	for _, n := range d.nodes {
		wg.Go(n.stop)
	}
	wg.Wait()
}

// verdict sums up; an overlap is a failure.
func (d *demo) verdict() error {
	runs, gaps, overlaps := d.seen.sums()
	d.say.line("%s, %s.", count(uint64(runs), "run"), gaps)
	if overlaps > 0 {
		return fmt.Errorf("a workload ran twice at once %d times: this must never happen, please report it", overlaps)
	}
	if idle := d.seen.idle(); len(idle) > 0 {
		return fmt.Errorf("%s never ran: three nodes did not agree in time; is the machine busy?", strings.Join(idle, ", "))
	}
	d.say.line("At no moment did a workload run twice. That is the promise.")
	return nil
}

func after(d time.Duration) <-chan time.Time {
	if d == 0 {
		return nil
	}
	return time.After(d)
}
