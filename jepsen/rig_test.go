package jepsen_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

// rig is a cluster of real processes with everything that watches it.
type rig struct {
	*jepsen.Processes
	t      *testing.T
	r      *jepsen.Recorder
	obs    *jepsen.Observer
	dir    string
	bin    string // of miwnode
	self   string // of these tests, which are the work, too
	faults []jepsen.Fault
	stop   context.CancelFunc // ends clients and readers
	wg     sync.WaitGroup
	ctx    context.Context
}

// binaryDir is where binary has built; TestMain removes it.
var binaryDir string

// binary builds miwnode once for all tests of the process.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "miw-bin-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	bin := filepath.Join(dir, "miwnode")
	out, err := exec.Command("go", "build", "-o", bin, "../cmd/miwnode").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build miwnode: %w: %s", err, out)
	}
	return bin, nil
})

var procSettings = jepsen.Settings{
	Nodes: 3, TTL: 4 * time.Second, Renew: 500 * time.Millisecond, Margin: 400 * time.Millisecond, StopBudget: 500 * time.Millisecond,
	DrainTimeout: 5 * time.Second, KillTimeout: time.Second, RaftTimeout: 300 * time.Millisecond,
	Singletons: []string{"solo1", "solo2", "solo3"}, WorkerStop: "100ms",
}

// newRig starts the nodes, each with runners of the singletons; group, if not
// nil, are workloads that they share out instead. The network is loopback unless
// one is given.
func newRig(t *testing.T, name string, network jepsen.Network, group []string) *rig {
	t.Helper()
	g := bareRig(t)
	g.faults = jepsen.AllFaults()
	s := procSettings
	s.Net, s.Worker = network, []string{g.self, "worker", g.sock()}
	wanted := s.Singletons
	if group != nil {
		s.Singletons, s.Group, wanted = nil, group, nil
		for _, w := range group {
			wanted = append(wanted, "g/"+w)
		}
	}
	g.wire(s, name, jepsen.Bounds{Wanted: wanted})
	if group != nil {
		return g
	}
	for i, n := range g.Nodes() {
		g.wg.Go(func() { g.execute(n) })
		c := &jepsen.Client{
			Name: fmt.Sprintf("c%d", i+1), R: g.r, Rng: rand.New(rand.NewPCG(uint64(rigSeed()), uint64(i))), Rate: 1, Nodes: g.Nodes(), Endpoint: g.Endpoint,
			Load: jepsen.Load{Keys: []string{"raw1", "raw2"}, TTL: 3 * time.Second, Renew: 500 * time.Millisecond, Hold: time.Second, CallTimeout: 2 * time.Second},
		}
		g.wg.Go(func() { c.Run(g.ctx) })
	}
	return g
}

// bareRig is a rig without nodes.
func bareRig(t *testing.T) *rig {
	t.Helper()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "miwj-") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, dir: dir, bin: bin, self: self}
}

// sock is where the observer listens.
func (g *rig) sock() string { return filepath.Join(g.dir, "obs.sock") }

func rigSeed() int64 { return cmp.Or(*seedFlag, 1) }

// wire starts three nodes, their observer and the readers of their events. The
// network is loopback unless s has one; of the bounds, those that all share are set.
func (g *rig) wire(s jepsen.Settings, name string, b jepsen.Bounds) {
	g.t.Helper()
	nodes := []string{"n1", "n2", "n3"}
	if s.Net == nil {
		network, err := jepsen.NewLoopback(nodes, g.dir)
		if err != nil {
			g.t.Fatal(err)
		}
		g.t.Cleanup(network.Close)
		s.Net = network
	}
	s.Binary, s.Dir = g.bin, g.dir
	b.TTL, b.Election, b.Slack = s.TTL, 2*time.Second, 3*time.Second
	g.r = jepsen.NewRecorder(jepsen.Meta{Tier: "processes", Name: name, Seed: rigSeed(), Nodes: nodes, Bounds: b})
	var err error
	if g.obs, err = jepsen.Observe(g.r, g.sock()); err != nil {
		g.t.Fatal(err)
	}
	if g.Processes, err = jepsen.NewProcesses(s, g.r, g.obs); err != nil {
		g.t.Fatal(err)
	}
	g.ctx, g.stop = context.WithCancel(g.t.Context())
	g.t.Cleanup(g.cleanup)
	for _, n := range nodes {
		if err := g.Start(n, false); err != nil {
			g.t.Fatal(err)
		}
	}
	g.ready(30*time.Second, nodes...)
	for _, n := range nodes {
		g.wg.Go(func() { g.API(n).Follow(g.ctx, g.r, n) })
	}
}

// execute runs a worker under `miwnode exec` on node again and again.
func (g *rig) execute(node string) {
	self, _ := os.Executable()
	for g.ctx.Err() == nil {
		if g.Up(node) {
			cmd := exec.Command(g.bin, "exec", "--addr", filepath.Join(g.dir, node, "miw.sock"), "--key", "exec1", "--ttl", "3s", "--",
				self, "worker", filepath.Join(g.dir, "obs.sock"), "exec-"+node, "50ms")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			done := make(chan error, 1)
			if err := cmd.Start(); err == nil {
				go func() { done <- cmd.Wait() }()
				select {
				case <-done:
				case <-g.ctx.Done():
					_ = cmd.Process.Signal(syscall.SIGTERM)
					<-done
				}
			}
		}
		g.pause(200 * time.Millisecond)
	}
}

// pause waits, or less when the rig ends.
func (g *rig) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-g.ctx.Done():
	}
}

func (g *rig) ready(within time.Duration, nodes ...string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), within)
	defer cancel()
	if err := g.WaitReady(ctx, nodes...); err != nil {
		g.t.Fatalf("%v\n%s", err, g.logs())
	}
}

// logs is the end of every node's log.
func (g *rig) logs() string {
	var b strings.Builder
	for _, n := range g.Nodes() {
		raw, _ := os.ReadFile(filepath.Join(g.dir, n+".log"))
		lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
		fmt.Fprintf(&b, "--- %s\n%s\n", n, strings.Join(lines[max(0, len(lines)-15):], "\n"))
	}
	return b.String()
}

func (g *rig) cleanup() {
	g.stop()
	for _, n := range g.Nodes() {
		for _, pid := range append(descendants(g.Pid(n)), g.Pid(n)) {
			if pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	g.wg.Wait()
	g.obs.Close()
	for _, pid := range processesOf(g.dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if g.t.Failed() && *keepFlag != "" {
		for _, n := range g.Nodes() {
			if raw, err := os.ReadFile(filepath.Join(g.dir, n+".log")); err == nil {
				_ = os.WriteFile(filepath.Join(reportDir(g.t), n+".log"), raw, 0o644)
			}
		}
	}
	os.RemoveAll(g.dir)
}

// finish ends the work, compares the copies, stops the nodes and judges.
func (g *rig) finish(schedule []jepsen.Step) *jepsen.Report {
	g.t.Helper()
	g.ready(20*time.Second, g.Nodes()...)
	g.settle()
	g.sample()
	g.stop()
	g.wg.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	leaks := jepsen.Verdict{Check: jepsen.CheckLeaks, OK: true, Checked: len(g.Nodes())}
	if err := g.StopAll(ctx); err != nil {
		leaks.OK, leaks.Faults = false, append(leaks.Faults, err.Error())
	}
	for deadline := time.Now().Add(3 * time.Second); ; {
		left := processesOf(g.dir)
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			for _, pid := range left {
				cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				leaks.OK, leaks.Faults = false, append(leaks.Faults, fmt.Sprintf("process %d is left: %s", pid, bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
			}
			break
		}
		<-time.After(50 * time.Millisecond)
	}
	g.obs.Close()
	rep := judge(g.t, g.r.Finish(), schedule, leaks)
	g.t.Log(rep.Summary())
	if g.t.Failed() {
		g.t.Log(g.logs())
	}
	return rep
}

// settle gives every reader time to catch up and every key its owner.
func (g *rig) settle() {
	since := g.r.Now()
	g.pause(procSettings.TTL + 5*time.Second)
	g.r.Notef("", "settled since %v", since)
}

// sample compares the copies of all nodes at one revision.
func (g *rig) sample() {
	type copied struct {
		revision uint64
		hash     string
	}
	for range 50 {
		seen := map[string]copied{}
		for _, n := range g.Nodes() {
			var c copied
			h := sha256.New()
			for _, path := range []string{"/v1/leases", "/v1/instances", "/v1/groups", "/v1/history"} {
				ctx, cancel := context.WithTimeout(g.t.Context(), 2*time.Second)
				raw, err := g.API(n).Get(ctx, path, nil)
				cancel()
				if err != nil {
					continue
				}
				var body map[string]any
				dec := json.NewDecoder(bytes.NewReader(raw))
				dec.UseNumber()
				if dec.Decode(&body) != nil {
					continue
				}
				rev, _ := strconv.ParseUint(fmt.Sprint(body["revision"]), 10, 64)
				if c.revision != 0 && rev != c.revision {
					c.revision = 0
					break
				}
				c.revision = rev
				delete(body, "age")
				_ = json.NewEncoder(h).Encode(body)
			}
			c.hash = fmt.Sprintf("%x", h.Sum(nil)[:8])
			seen[n] = c
		}
		same := true
		for _, c := range seen {
			same = same && c.revision != 0 && c.revision == seen["n1"].revision
		}
		if same {
			for n, c := range seen {
				g.r.Sample(n, c.revision, c.hash)
			}
			return
		}
		g.pause(50 * time.Millisecond)
	}
	g.r.Notef("", "the copies were never seen at one revision")
}

// descendants lists all processes below pid.
func descendants(pid int) []int {
	if pid <= 0 {
		return nil
	}
	children := map[int][]int{}
	for _, p := range pids() {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		if err != nil {
			continue
		}
		rest := string(raw[bytes.LastIndexByte(raw, ')')+1:])
		if f := strings.Fields(rest); len(f) > 1 {
			ppid, _ := strconv.Atoi(f[1])
			children[ppid] = append(children[ppid], p)
		}
	}
	var all []int
	for todo := children[pid]; len(todo) > 0; todo = todo[1:] {
		all = append(all, todo[0])
		todo = append(todo, children[todo[0]]...)
	}
	return all
}

func pids() []int {
	entries, _ := os.ReadDir("/proc")
	var all []int
	for _, e := range entries {
		if p, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// processesOf lists the processes (zombies not) whose command line names dir.
func processesOf(dir string) []int {
	var all []int
	for _, p := range pids() {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p))
		if err == nil && p != os.Getpid() && bytes.Contains(raw, []byte(dir)) {
			all = append(all, p)
		}
	}
	return all
}

// settled waits until every singleton runs and has done so for a while.
func (g *rig) settled() {
	g.t.Helper()
	for _, k := range procSettings.Singletons {
		g.owner(k, 0, 20*time.Second)
	}
	g.pause(time.Second)
}

// owner waits until key runs and returns its run.
func (g *rig) owner(key string, since, within time.Duration) (jepsen.Run, bool) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), within)
	defer cancel()
	run, err := g.obs.Started(ctx, key, since)
	if err != nil {
		g.t.Errorf("%v\n%s", err, g.logs())
		return run, false
	}
	return run, true
}

func processTier(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("the process tier takes minutes: left out by -short")
	}
	if runtime.GOOS != "linux" {
		t.Skip("the process tier needs Linux")
	}
}

// schedule draws from the faults that this cluster can suffer.
func (g *rig) schedule(length time.Duration) []jepsen.Step {
	seed := cmp.Or(*seedFlag, 1)
	can := slices.DeleteFunc(jepsen.AllFaults(), func(f jepsen.Fault) bool { return f.Available(g) != nil })
	steps := jepsen.Schedule(seed, can, g.Nodes(), length)
	for i := range steps {
		steps[i].For = min(steps[i].For, 6*time.Second)
	}
	return steps
}
