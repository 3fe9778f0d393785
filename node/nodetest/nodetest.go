package nodetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/transport/memnet"
)

// port is where every node listens on its own host.
const port = "7400"

// DefaultWait is how long, in the bubble's time, a wait may take before it
// fails the test.
const DefaultWait = 60 * time.Second

// Config describes a cluster. Zero fields mean their defaults.
type Config struct {
	// Nodes is the number of nodes that New starts; default 3.
	Nodes int
	// Seed makes the network's delays and losses.
	Seed uint64
	// Expect is the nodes' BootstrapExpect; default Nodes. Nodes added later join only.
	Expect int
	// Voters is the nodes' Voters; default that of package node.
	Voters int
	Timing node.Timing
	// Edit changes the configuration of node i before each start.
	Edit func(i int, cfg *node.Config)
	// Seams changes the seams of node i before each start.
	Seams func(i int, s *node.Seams)
	// Clock is the rate and the offset of node i's clock; default 1 and 0.
	Clock func(i int) (rate float64, offset time.Duration)
	// Idle leaves the nodes unstarted.
	Idle bool
	// Log takes the nodes' logs; nil discards them, unless MIW_TEST_LOG is set.
	Log *slog.Logger
	// Unchecked turns the invariants at the end off: for tests that break them on purpose.
	Unchecked bool
}

// Cluster is a set of nodes on one network.
type Cluster struct {
	t   testing.TB
	cfg Config
	dir string

	// Net is the network under the nodes; node i lives on Host(i).
	Net *memnet.Net

	mu      sync.Mutex
	members []*member
	lastIP  int
}

// member is one node's place: its host and folder outlive its starts.
type member struct {
	index  int
	host   string
	dir    string
	clock  *node.TestClock
	joiner bool

	life atomic.Pointer[life] // the newest start, nil before the first
}

// life is one start of a node.
type life struct {
	node   *node.Node
	kill   func() // once
	cancel context.CancelFunc
	done   chan struct{} // closed when Run has returned
	err    error         // what Run returned; after done
}

func (m *member) running() bool {
	l := m.life.Load()
	if l == nil {
		return false
	}
	select {
	case <-l.done:
		return false
	default:
		return true
	}
}

// New makes a cluster and starts its nodes. It must be called in a synctest
// bubble. Everything is stopped and checked when the test ends.
func New(t testing.TB, cfg Config) *Cluster {
	t.Helper()
	cfg.Nodes = cmp.Or(cfg.Nodes, 3)
	cfg.Expect = cmp.Or(cfg.Expect, cfg.Nodes)
	if cfg.Log == nil && os.Getenv("MIW_TEST_LOG") != "" {
		var level slog.Level
		_ = level.UnmarshalText([]byte(os.Getenv("MIW_TEST_LOG")))
		cfg.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level}))
	}
	c := &Cluster{t: t, cfg: cfg, dir: tempDir(t), Net: memnet.New(cfg.Seed)}
	t.Cleanup(c.end)
	for range cfg.Nodes {
		c.add(false)
	}
	if !cfg.Idle {
		for i := range cfg.Nodes {
			c.Start(i)
		}
	}
	return c
}

// tempDir is on a file system in memory if there is one: what it is after is
// the order of writes, not their cost.
func tempDir(t testing.TB) string {
	const shm = "/dev/shm"
	if st, err := os.Stat(shm); err != nil || !st.IsDir() {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(shm, "miw-nodetest-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (c *Cluster) add(joiner bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := len(c.members)
	rate, offset := 1.0, time.Duration(0)
	if c.cfg.Clock != nil {
		rate, offset = c.cfg.Clock(i)
	}
	c.members = append(c.members, &member{
		index: i, host: fmt.Sprintf("n%d", i+1), dir: filepath.Join(c.dir, fmt.Sprintf("n%d", i+1)),
		clock: node.NewTestClock(rate, offset), joiner: joiner,
	})
	return i
}

// Add starts one more node, which joins, and returns its number.
func (c *Cluster) Add() int {
	c.t.Helper()
	i := c.add(true)
	c.Start(i)
	return i
}

// AddIdle makes room for one more node, which joins when it is started.
func (c *Cluster) AddIdle() int { return c.add(true) }

func (c *Cluster) member(i int) *member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[i]
}

// Len is the number of nodes, running or not.
func (c *Cluster) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.members)
}

// Node is the newest start of node i.
func (c *Cluster) Node(i int) *node.Node {
	if l := c.member(i).life.Load(); l != nil {
		return l.node
	}
	return nil
}

// Host is the network name of node i.
func (c *Cluster) Host(i int) string { return c.member(i).host }

// Dir is the data folder of node i.
func (c *Cluster) Dir(i int) string { return c.member(i).dir }

// Clock is the clock of node i.
func (c *Cluster) Clock(i int) *node.TestClock { return c.member(i).clock }

// Running tells whether node i has been started and its Run has not returned.
func (c *Cluster) Running(i int) bool { return c.member(i).running() }

// Index is the number of the node with that ID, -1 for none.
func (c *Cluster) Index(id string) int {
	for i := range c.Len() {
		if n := c.Node(i); n != nil && n.ID() == id {
			return i
		}
	}
	return -1
}

// Config returns the configuration with which node i would be started.
func (c *Cluster) Config(i int) node.Config {
	m := c.member(i)
	host := c.Net.Host(m.host)
	cfg := node.Config{
		DataDir: m.dir, Bind: host.IP() + ":" + port, Insecure: true, Network: host, Logger: c.cfg.Log,
		Voters: c.cfg.Voters, Timing: c.cfg.Timing,
	}
	for j := range c.Len() {
		if j != i {
			cfg.Join = append(cfg.Join, c.Host(j)+":"+port)
		}
	}
	if !m.joiner {
		cfg.BootstrapExpect = c.cfg.Expect
	}
	if c.cfg.Edit != nil {
		c.cfg.Edit(i, &cfg)
	}
	return cfg
}

// Start starts node i and returns without waiting for more than its start.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	if err := c.TryStart(i); err != nil {
		c.t.Fatalf("start node %d: %v", i, err)
	}
}

// TryStart is Start for a start that may fail.
func (c *Cluster) TryStart(i int) error {
	m := c.member(i)
	if m.running() {
		return errors.New("it is running")
	}
	if m.life.Load() != nil && !c.cfg.Unchecked {
		c.checkOverlaps(i) // of the former start
	}
	cfg := c.Config(i)
	kill := make(chan struct{})
	seams := node.Seams{Clock: m.clock, Kill: kill, KernelBoot: "kernel-of-" + m.host}
	if c.cfg.Seams != nil {
		c.cfg.Seams(i, &seams)
	}
	node.SetSeams(&cfg, seams)
	n, err := node.New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{node: n, kill: sync.OnceFunc(func() { close(kill) }), cancel: cancel, done: make(chan struct{})}
	m.life.Store(l)
	go func() {
		defer close(l.done)
		l.err = n.Run(ctx)
	}()
	return nil
}

// Crash ends node i as kill -9 does: nothing is handed over or told; the folder stays.
func (c *Cluster) Crash(i int) {
	c.Kill(i)
	if l := c.member(i).life.Load(); l != nil {
		<-l.done
		l.cancel()
	}
}

// Kill is Crash for a goroutine of the node itself: it does not wait for the end.
func (c *Cluster) Kill(i int) {
	m := c.member(i)
	c.Net.Crash(m.host)
	if l := m.life.Load(); l != nil {
		l.kill()
	}
}

// Stop has node i leave gracefully and returns what Run returned.
func (c *Cluster) Stop(i int) error {
	l := c.member(i).life.Load()
	if l == nil {
		return nil
	}
	l.cancel()
	<-l.done
	return l.err
}

// Done is closed when Run of node i, which must have been started, has
// returned; Err is what it returned then.
func (c *Cluster) Done(i int) <-chan struct{} { return c.member(i).life.Load().done }

// Err is what the last Run of node i returned.
func (c *Cluster) Err(i int) error {
	l := c.member(i).life.Load()
	<-l.done
	return l.err
}

// Restart crashes node i if it runs and starts it again.
func (c *Cluster) Restart(i int) {
	c.t.Helper()
	c.Crash(i)
	c.Start(i)
}

// Wipe empties the folder of node i, which must not be running.
func (c *Cluster) Wipe(i int) {
	c.t.Helper()
	if c.Running(i) {
		c.t.Fatalf("wipe node %d: it is running", i)
	}
	if err := os.RemoveAll(c.Dir(i)); err != nil {
		c.t.Fatal(err)
	}
}

// Move gives the host of node i another address. A node that runs must be
// restarted to use it.
func (c *Cluster) Move(i int) {
	c.mu.Lock()
	c.lastIP++
	ip := fmt.Sprintf("10.9.0.%d", c.lastIP)
	c.mu.Unlock()
	c.Net.SetAddr(c.Host(i), ip)
}

// Pause stops node i as SIGSTOP does: nothing goes in or out and none of its
// alarms rings. Its goroutines go on in the bubble, unheard.
func (c *Cluster) Pause(i int) {
	c.Net.Pause(c.Host(i))
	c.Clock(i).Freeze()
}

// Resume ends Pause.
func (c *Cluster) Resume(i int) {
	c.Clock(i).Thaw()
	c.Net.Resume(c.Host(i))
}

// Isolate cuts node i off from all others.
func (c *Cluster) Isolate(i int) { c.Net.Isolate(c.Host(i)) }

// Rejoin ends Isolate.
func (c *Cluster) Rejoin(i int) { c.Net.Rejoin(c.Host(i)) }

// Cut cuts the link between two nodes, both ways.
func (c *Cluster) Cut(i, j int) { c.Net.Cut(c.Host(i), c.Host(j)) }

// Heal ends Cut.
func (c *Cluster) Heal(i, j int) { c.Net.Heal(c.Host(i), c.Host(j)) }
