package jepsen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// chamber is a cluster of processes with everything that torments and watches it.
type chamber struct {
	*Processes
	t     *Torture
	dir   string
	net   Network
	disks *Disks
	r     *Recorder
	obs   *Observer
	plagues,
	all []Plague

	work    context.Context // ends clients and readers
	stop    context.CancelFunc
	workers sync.WaitGroup
	watch   context.Context // ends those that watch
	blind   context.CancelFunc
	eyes    sync.WaitGroup

	mu      sync.Mutex
	ending  bool                     // guarded by mu; no node is started any more
	leaving map[string]chan struct{} // guarded by mu; closed when the node has left
}

var _ Machines = (*chamber)(nil)

// open makes the network, the disks and the observer; nothing runs yet.
func (c *chamber) open() error {
	t := c.t
	c.leaving = map[string]chan struct{}{}
	c.work, c.stop = context.WithCancel(context.Background())
	c.watch, c.blind = context.WithCancel(context.Background())
	var nodes []string
	for i := range t.Nodes {
		nodes = append(nodes, NodeName(i))
	}
	var err error
	if c.net, err = t.network(nodes, c.dir); err != nil {
		return err
	}
	if c.disks, err = NewDisks(c.dir, nodes); err != nil {
		return err
	}
	s := t.timing()
	s.Binary, s.Dir, s.Nodes, s.Net, s.Ended = t.Binary, c.dir, t.Nodes, c.net, c.ended
	s.Singletons, s.Group, s.WorkerStop, s.Stops = tortureSingletons, tortureGroup, "100ms", tortureStops
	wanted := append([]string(nil), tortureSingletons...)
	for _, w := range tortureGroup {
		wanted = append(wanted, "g/"+w)
	}
	c.r = NewRecorder(Meta{Tier: "processes", Name: "torture", Seed: t.Seed, Nodes: nodes, Bounds: Bounds{
		TTL: s.TTL, Election: 2 * time.Second, Slack: 2 * time.Second, Wanted: wanted,
	}})
	sock := filepath.Join(c.dir, "obs.sock")
	if c.obs, err = Observe(c.r, sock); err != nil {
		return err
	}
	s.Worker = append(append([]string(nil), t.Worker...), sock)
	if c.Processes, err = NewProcesses(s, c.r, c.obs); err != nil {
		return err
	}
	c.plagues, t.Setup.Missing = Available(t.Plagues, c)
	c.all = t.Plagues
	t.Setup.Network, t.Setup.Machine, t.Setup.Nemesis = c.net.Name()+", "+c.disks.Kind(), machine(), PlagueNames(c.plagues)
	t.Setup.Timing = map[string]string{
		"session-ttl": s.TTL.String(), "renew-interval": s.Renew.String(), "margin": s.Margin.String(), "stop-budget": s.StopBudget.String(),
		"drain-timeout": s.DrainTimeout.String(), "kill-timeout": s.KillTimeout.String(), "raft-timeout": s.RaftTimeout.String(),
	}
	t.Setup.Began = time.Now().Round(time.Second)
	c.r.SetUp(t.Setup)
	if len(c.plagues) == 0 {
		return fmt.Errorf("nothing that was asked for can be done here: %s", strings.Join(t.Setup.Missing, "; "))
	}
	t.mu.Lock()
	t.r, t.notices = c.r, t.Setup.notices()
	t.mu.Unlock()
	return nil
}

// network is the one that is asked for; namespaces where they can do everything,
// else loopback.
func (t *Torture) network(nodes []string, dir string) (Network, error) {
	if t.Network != NetworkLoopback {
		err := NamespacesAvailable()
		if err == nil {
			n, nerr := NewNamespaces(nodes)
			if nerr == nil && (t.Network == NetworkNamespaces || !t.shapes() || n.Can(VerbShape) == nil) {
				return n, nil
			}
			err = nerr
			if n != nil {
				err = n.Can(VerbShape)
				n.Close()
			}
		}
		if t.Network == NetworkNamespaces {
			return nil, err
		}
		t.Setup.Loopback = err.Error()
	}
	return NewLoopback(nodes, dir)
}

// shapes tells whether packets are to be delayed or lost.
func (t *Torture) shapes() bool {
	for _, p := range t.Plagues {
		for _, f := range p.Faults {
			for _, v := range f.Needs {
				if v == VerbShape {
					return true
				}
			}
		}
	}
	return false
}

// start starts the nodes and waits until all work runs.
func (c *chamber) start(ctx context.Context) error {
	c.eyes.Go(func() { c.r.Pulse(c.watch, c.Nodes()) })
	c.eyes.Go(c.watchOut)
	c.t.say(fmt.Sprintf("starting %d nodes", c.t.Nodes))
	begun := c.r.Fault(FaultStart, c.Nodes(), "the nodes start")
	for _, n := range c.Nodes() {
		if err := c.Start(n, false); err != nil {
			return err
		}
	}
	rctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := c.WaitReady(rctx, c.Nodes()...); err != nil {
		return fmt.Errorf("%w\n%s", err, c.lastLines())
	}
	begun()
	c.t.say("waiting until all work runs")
	if !c.untilAllRuns(ctx, c.r.h.Meta.Bounds.takeOver()) && ctx.Err() == nil {
		c.r.Notef("", "not all work runs after the start")
	}
	c.measure(ctx, Before)
	return context.Cause(ctx)
}

// untilAllRuns waits until every wanted key runs.
func (c *chamber) untilAllRuns(ctx context.Context, within time.Duration) bool {
	for until := c.r.Now() + within; ; {
		idle := 0
		for _, k := range c.r.h.Meta.Bounds.Wanted {
			if c.obs.Running(k) == 0 {
				idle++
			}
		}
		if idle == 0 {
			return true
		}
		if c.r.Now() > until || !sleep(ctx, 50*time.Millisecond) {
			return false
		}
	}
}

// torment sets clients and readers to work and carries out what the seed says.
func (c *chamber) torment(ctx context.Context) []Step {
	nodes, seed := c.Nodes(), c.t.Seed
	rng := func(i int) *rand.Rand { return rand.New(rand.NewPCG(uint64(seed), uint64(i))) }
	for i, n := range nodes {
		c.workers.Go(func() { c.API(n).Follow(c.watch, c.r, n) })
		c.workers.Go(func() { c.execute(n) })
		client := &Client{
			Name: fmt.Sprintf("c%d", i+1), R: c.r, Rng: rng(i), Rate: 1, Nodes: nodes, Endpoint: c.Endpoint,
			Load: Load{Keys: tortureRaw, TTL: 3 * time.Second, Renew: 400 * time.Millisecond, Hold: time.Second, CallTimeout: 2 * time.Second},
		}
		c.workers.Go(func() { client.Run(c.work) })
		keeper := &Bookkeeper{Name: fmt.Sprintf("b%d", i+1), Jobs: tortureJobs, R: c.r, Rng: rng(100 + i), Nodes: nodes, Endpoint: c.up}
		c.workers.Go(func() { keeper.Run(c.work) })
	}
	c.workers.Go(func() {
		for sleep(c.work, 2*time.Second) {
			c.SampleCopies(c.work)
		}
	})
	c.workers.Go(func() {
		for sleep(c.work, 5*time.Second) {
			for _, g := range c.gauges(c.work, During) {
				c.r.Gauge(g)
			}
		}
	})
	var faults []Fault
	for _, p := range c.plagues {
		faults = append(faults, p.Faults...)
	}
	steps := Visitation(seed, c.plagues, nodes, c.t.Length)
	c.t.say("tormenting")
	c.t.mu.Lock()
	c.t.began = c.r.Now()
	c.t.mu.Unlock()
	tctx, cancel := context.WithTimeout(ctx, c.t.Length)
	defer cancel()
	(&Nemesis{C: c, R: c.r, Faults: faults}).Run(tctx, steps)
	<-tctx.Done()
	if ctx.Err() != nil {
		c.t.Setup.Stopped = true
		c.r.SetUp(c.t.Setup)
		c.r.Notef("", "stopped before its time: %v", context.Cause(ctx))
	}
	return steps
}

// up is a node's API, nil while its process is down.
func (c *chamber) up(node string) *HTTPEndpoint {
	if !c.Up(node) {
		return nil
	}
	return c.API(node)
}

// execute runs a worker under `miwnode exec` on node again and again.
func (c *chamber) execute(node string) {
	for c.work.Err() == nil {
		if c.Up(node) {
			argv := append([]string{c.t.Binary, "exec", "--addr", filepath.Join(c.dir, node, "miw.sock"), "--key", tortureExec, "--ttl", "3s", "--"}, c.s.Worker...)
			cmd := c.Command(node, append(argv, "exec-"+node, "50ms")...)
			done := make(chan error, 1)
			if err := cmd.Start(); err == nil {
				go func() { done <- cmd.Wait() }()
				select {
				case <-done:
				case <-c.work.Done():
					_ = cmd.Process.Signal(syscall.SIGTERM)
					<-done
				}
			}
		}
		sleep(c.work, 200*time.Millisecond)
	}
}

// watchOut looks who leads, and for violations that can be seen at once.
func (c *chamber) watchOut() {
	for i := 0; sleep(c.watch, 500*time.Millisecond); i++ {
		l := c.Leader()
		c.t.mu.Lock()
		c.t.leader = l
		c.t.mu.Unlock()
		if i%6 != 0 {
			continue
		}
		h := &History{Runs: c.r.runsSoFar()}
		outcries := append(checkOverlap(h).Faults, checkTokens(h).Faults...)
		c.t.mu.Lock()
		c.t.outcries = outcries
		c.t.mu.Unlock()
	}
}

// ended is told that a node's process has ended by itself: it is started again, as
// a supervisor would.
func (c *chamber) ended(node string, code int) {
	c.mu.Lock()
	ending := c.ending
	c.mu.Unlock()
	if ending {
		return
	}
	c.r.Exit(Exit{Node: node, Code: code, Last: c.lastLine(node)})
	back := c.r.Fault("down", []string{node}, node+" has ended by itself")
	defer back()
	if !sleep(c.watch, time.Second) {
		return
	}
	if err := c.Start(node, false); err != nil {
		c.r.Notef(node, "start: %v", err)
	}
	rctx, cancel := context.WithTimeout(c.watch, 30*time.Second)
	defer cancel()
	_ = c.WaitReady(rctx, node) // what comes of it is seen when all must be ready
}

// Start implements Cluster: when the node has left, if it was told to, and not
// while everything ends.
func (c *chamber) Start(node string, newAddress bool) error {
	c.mu.Lock()
	left := c.leaving[node]
	c.mu.Unlock()
	if left != nil {
		<-left
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return nil
	}
	if err := c.Processes.Start(node, newAddress); err != nil {
		return err
	}
	return c.disks.forbid(node)
}

// log is the path of a node's log.
func (c *chamber) log(node string) string { return filepath.Join(c.dir, node+".log") }

func (c *chamber) lastLine(node string) string {
	raw, _ := os.ReadFile(c.log(node))
	text := strings.TrimSpace(string(raw))
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// lastLines are the ends of all nodes' logs.
func (c *chamber) lastLines() string {
	var b strings.Builder
	for _, n := range c.Nodes() {
		raw, _ := os.ReadFile(c.log(n))
		lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
		fmt.Fprintf(&b, "%s: %s\n", n, strings.Join(lines[max(0, len(lines)-3):], "\n    "))
	}
	return strings.TrimSpace(b.String())
}

// Can implements Cluster.
func (c *chamber) Can(v Verb) error {
	switch v {
	case VerbCrashHost, VerbDisk, VerbDrain:
		return nil
	}
	return c.Processes.Can(v)
}

// CrashHost implements Machines.
func (c *chamber) CrashHost(node string) {
	victims := marked(c.dir)
	if pid := c.Pid(node); pid != 0 {
		c.signal(node, syscall.SIGKILL) // before its guard finds out
	}
	for pid, of := range victims {
		if of == node {
			_ = syscall.Kill(pid, syscall.SIGKILL) // gone already
		}
	}
	c.Crash(node) // waits for its end
}

// FillDisk implements Machines.
func (c *chamber) FillDisk(node string) error { return c.disks.Fill(node) }

// FreeDisk implements Machines.
func (c *chamber) FreeDisk(node string) error { return c.disks.Free(node) }

// Drain implements Machines.
func (c *chamber) Drain(ctx context.Context, node string) error {
	return c.mark(ctx, node, faultDrain, 2)
}

// Undrain implements Machines. It insists, since a drain outlives the process that
// was drained: what can't be done now is done when the node is back.
func (c *chamber) Undrain(ctx context.Context, node string) error {
	err := c.mark(context.WithoutCancel(ctx), node, "un"+faultDrain, 3)
	if err == nil || c.work.Err() != nil {
		return err
	}
	c.workers.Go(func() {
		over := c.r.Fault(faultDrain, []string{node}, node+" is still drained")
		defer over()
		for c.work.Err() == nil && c.mark(c.work, node, "un"+faultDrain, 3) != nil {
		}
	})
	return nil
}

// mark marks a node's present instance through whichever node answers.
func (c *chamber) mark(ctx context.Context, node, mark string, tries int) error {
	err := errors.New("no node answers")
	for i := range tries {
		for _, via := range c.Nodes() {
			if via == node && i%2 == 0 || !c.Up(via) {
				continue
			}
			mctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
			err = c.API(via).MarkNode(mctx, node, mark)
			cancel()
			if err == nil {
				return nil
			}
		}
		if !sleep(ctx, 200*time.Millisecond) {
			break
		}
	}
	return fmt.Errorf("%s %s: %w", mark, node, err)
}

// leaveBound is how long a node may take to leave.
func (c *chamber) leaveBound() time.Duration {
	return c.s.DrainTimeout + c.s.KillTimeout + c.s.TTL + 10*time.Second
}

// Leave implements Cluster. It does not wait for the end, so that other faults
// may strike meanwhile: Start does.
func (c *chamber) Leave(_ context.Context, node string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving[node] != nil || !c.Up(node) {
		return nil
	}
	left := make(chan struct{})
	c.leaving[node] = left
	c.workers.Go(func() {
		c.leave(node)
		c.mu.Lock()
		delete(c.leaving, node)
		c.mu.Unlock()
		close(left)
	})
	return nil
}

// leave ends a node gracefully; who takes too long is killed.
func (c *chamber) leave(node string) {
	if !c.Up(node) {
		return
	}
	from := c.r.Now()
	ctx, cancel := context.WithTimeout(context.Background(), c.leaveBound())
	defer cancel()
	err := c.Processes.Leave(ctx, node)
	c.r.Leave(Leave{Node: node, From: from, Took: c.r.Now() - from, Bound: c.leaveBound(), Done: err == nil})
	if err != nil {
		c.Crash(node)
	}
}
