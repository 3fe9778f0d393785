package miwtest

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
	"github.com/miwnode/miwnode/transport/memnet"
)

const (
	// supervision is how long a node that ended itself stays down.
	supervision = time.Second
	// patience is how long work may take to end with the test.
	patience = time.Minute
	// resting is how long the cluster may take to come to rest before its
	// copies are compared.
	resting = 15 * time.Second
)

// Config describes a cluster. Zero fields mean their defaults.
type Config struct {
	// Nodes is the number of nodes; default 3. One has nobody to hand over to.
	Nodes int
	// Seed makes the delays of the network and the faults of Chaos; default 1.
	Seed uint64
	// Timing is that of the nodes; the zero value is what production has. There
	// is no need for short times: the bubble's time costs little.
	Timing node.Timing
	// Edit changes the configuration of node i before each start.
	Edit func(i int, cfg *node.Config)
	// Log takes the nodes' logs; nil discards them, unless the environment has
	// MIW_TEST_LOG=debug, info or warn.
	Log *slog.Logger
}

// Run calls f with a cluster whose nodes are ready, in a bubble (package
// testing/synctest: t.Run, t.Parallel and t.Deadline do not work in one). When f
// has returned, the cluster is checked and ended. Each option may change the
// configuration:
//
//	miwtest.Run(t, test, func(c *miwtest.Config) { c.Nodes = 5 })
func Run(t *testing.T, f func(t *testing.T, c *Cluster), options ...func(*Config)) {
	t.Helper()
	cfg := Config{Nodes: 3, Seed: 1}
	for _, set := range options {
		set(&cfg)
	}
	synctest.Test(t, func(t *testing.T) { f(t, newCluster(t, cfg)) })
}

// Cluster is a set of nodes, by their numbers from 0, and what their processes
// do.
type Cluster struct {
	t      testing.TB
	inner  *nodetest.Cluster
	timing node.Timing
	seed   uint64
	made   time.Time
	runs   *book
	works  *book
	record journal

	mu       sync.Mutex
	nodes    []*Node // newest starts
	programs []func(context.Context, *Node) error
	holders  map[uint64]holding // by token
	drained  map[int]bool
	over     bool
}

// holding is whose a token is.
type holding struct {
	n       *Node
	session string
}

func newCluster(t *testing.T, cfg Config) *Cluster {
	t.Helper()
	c := &Cluster{
		t: t, timing: cfg.Timing.WithDefaults(), seed: cfg.Seed, made: time.Now(), runs: newBook("run", false), works: newBook("work", true),
		nodes: make([]*Node, cfg.Nodes), holders: map[uint64]holding{}, drained: map[int]bool{},
	}
	t.Cleanup(c.left) // the last of all
	c.inner = nodetest.New(t, nodetest.Config{
		Nodes: cfg.Nodes, Seed: cfg.Seed, Timing: cfg.Timing, Edit: cfg.Edit, Log: cfg.Log, Idle: true, Unchecked: true,
	})
	t.Cleanup(c.end)
	for i := range cfg.Nodes {
		c.Start(i)
	}
	c.WaitReady()
	return c
}

// Node is the newest start of node i.
func (c *Cluster) Node(i int) *Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[i]
}

// Len is the number of nodes, running or not.
func (c *Cluster) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.nodes)
}

// Running tells whether the process of node i lives; one that is paused does.
func (c *Cluster) Running(i int) bool {
	n := c.Node(i)
	return n != nil && !n.isDead() && c.inner.Running(i)
}

// Elapsed is the time since the cluster was made.
func (c *Cluster) Elapsed() time.Duration { return time.Since(c.made) }

// Net is the network under the nodes, for delays and losses; node i lives on
// Host(i).
func (c *Cluster) Net() *memnet.Net { return c.inner.Net }

// Host is the network name of node i.
func (c *Cluster) Host(i int) string { return c.inner.Host(i) }

// Deploy runs the program on every node: now where one runs, and at each start
// after that. It is what the main of the program does once it has a node: it
// blocks until ctx ends, which it does when the node is stopped or crashes. A
// program that returns an error before that fails the test.
func (c *Cluster) Deploy(program func(ctx context.Context, n *Node) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.programs = append(c.programs, program)
	for _, n := range c.nodes {
		if n != nil && !n.isDead() && n.ctx.Err() == nil {
			n.Go(func(ctx context.Context) error { return program(ctx, n) })
		}
	}
}

// boot starts node i and its programs.
func (c *Cluster) boot(i int) error {
	if err := c.inner.TryStart(i); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	boot := 1
	if old := c.nodes[i]; old != nil {
		boot = old.boot + 1
	}
	n := newNode(c, i, boot, c.inner.Node(i))
	c.nodes[i] = n
	delete(c.drained, i)
	for _, program := range c.programs {
		n.Go(func(ctx context.Context) error { return program(ctx, n) })
	}
	done := c.inner.Done(i)
	go func() {
		<-done
		if !n.isDead() && n.ctx.Err() == nil {
			c.t.Errorf("node %d ended by itself: %v", i, c.inner.Err(i))
		}
	}()
	c.notef("node %d starts, boot %d", i, boot)
	return nil
}

// kill ends a start of a node as kill -9 does.
func (c *Cluster) kill(n *Node, cause error) {
	c.bury(n, cause)
	if c.Node(n.index) == n {
		c.inner.Resume(n.index) // the clock of the host outlives the process
		c.inner.Crash(n.index)
	}
}

// bury ends all that anybody can see of a process.
func (c *Cluster) bury(n *Node, cause error) {
	n.die()
	c.runs.kill(n, c.Elapsed())
	c.works.kill(n, c.Elapsed())
	n.cancel(cause)
}

// exited is the end of a process by itself; it may be called by a goroutine
// of the node. A supervisor starts it again.
func (c *Cluster) exited(n *Node) {
	c.bury(n, errCrashed)
	go func() {
		c.kill(n, errCrashed)
		time.Sleep(supervision)
		c.mu.Lock()
		again := !c.over && c.nodes[n.index] == n
		c.mu.Unlock()
		if again {
			if err := c.boot(n.index); err != nil {
				c.t.Errorf("start node %d again: %v", n.index, err)
			}
		}
	}()
}

func (c *Cluster) held(token uint64, n *Node, session string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holders[token] = holding{n, session}
}

// holder is the process that was granted the token, nil for none of the cluster.
func (c *Cluster) holder(token uint64) (n *Node, session string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.holders[token]
	return h.n, h.session
}

// end takes the faults back, checks what must hold and ends all processes.
func (c *Cluster) end() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.mend()
	if !c.t.Failed() && !c.record.expects(Overlap) {
		c.rest()
		c.inner.Check()
	}
	for i := range c.Len() {
		if n := c.Node(i); n != nil {
			c.kill(n, errStopped)
		}
	}
	for _, k := range c.record.unseen() {
		c.t.Errorf("expected a violation of kind %q, none was seen", k)
	}
	if c.t.Failed() {
		c.t.Logf("seed %d; what happened, by the time since the cluster was made:\n%s", c.seed, c.record.text())
	}
}

// rest waits until the copies can be compared. That they can't is no fault of
// the work under test.
func (c *Cluster) rest() {
	for end := time.Now().Add(resting); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		revisions := map[uint64]bool{}
		for i := range c.Len() {
			if c.Running(i) {
				revisions[c.Node(i).View().Revision()] = true
			}
		}
		if len(revisions) <= 1 {
			return
		}
	}
}

// left reports the goroutines that outlive the test, before the bubble ends
// the test binary because of them.
func (c *Cluster) left() {
	var all []string
	for end := time.Now().Add(patience); ; time.Sleep(time.Second) {
		if all = bubble(); len(all) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	const most = 5
	c.t.Errorf("%d goroutines are left %v after all nodes have ended: what a program starts must end with its context. They hang here:\n%s",
		len(all), patience, indent(strings.Join(all[:min(most, len(all))], "\n\n")))
}

// bubble returns the stacks of the goroutines of this bubble, but for the
// caller's and those of package testing.
func bubble() []string {
	buf := make([]byte, 1<<22)
	all := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	mark := bubbleOf(all[0])
	return slices.DeleteFunc(all[1:], func(g string) bool {
		return mark == "" || bubbleOf(g) != mark || strings.Contains(g, "\ninternal/synctest.Run(") || strings.Contains(g, "\ntesting/synctest.testingSynctestTest(")
	})
}

// bubbleOf is the bubble of a goroutine in a dump, "" for none.
func bubbleOf(stack string) string {
	head, _, _ := strings.Cut(stack, "\n")
	_, rest, ok := strings.Cut(head, "synctest bubble ")
	if !ok {
		return ""
	}
	id, _, _ := strings.Cut(rest, "]")
	return id
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}

func (c *Cluster) notef(format string, args ...any) {
	c.record.note(c.Elapsed(), fmt.Sprintf(format, args...))
}

// report fails the test for each violation that it does not expect.
func (c *Cluster) report(found ...Violation) {
	for _, v := range found {
		first, _, _ := strings.Cut(v.Text, "\n")
		c.record.note(v.At, "VIOLATION "+first)
		if !c.record.add(v) {
			c.t.Error(v.String())
		}
	}
}

// Expect makes violations of these kinds the purpose of the test: they do not
// fail it, but it fails if one of the kinds is not seen.
func (c *Cluster) Expect(kinds ...Kind) { c.record.expect(kinds) }

// Violations returns all that were seen so far, in order.
func (c *Cluster) Violations() []Violation { return c.record.violations() }
