package jepsen_test

import (
	"bytes"
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
	bin    string
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

func newRig(t *testing.T, name string, ns *jepsen.Namespaces) *rig {
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
	s := procSettings
	seed := cmpOr(*seedFlag, 1)
	s.Binary, s.Dir, s.Net = bin, dir, ns
	nodes := []string{"n1", "n2", "n3"}
	g := &rig{t: t, dir: dir, bin: bin, faults: jepsen.AllFaults()}
	g.r = jepsen.NewRecorder(jepsen.Meta{Tier: "processes", Name: name, Seed: seed, Nodes: nodes, Bounds: jepsen.Bounds{
		TTL: s.TTL, Election: 2 * time.Second, Slack: 3 * time.Second, Wanted: s.Singletons,
	}})
	sock := filepath.Join(dir, "obs.sock")
	if g.obs, err = jepsen.Observe(g.r, sock); err != nil {
		t.Fatal(err)
	}
	s.Worker = []string{self, "worker", sock}
	if g.Processes, err = jepsen.NewProcesses(s, g.r, g.obs); err != nil {
		t.Fatal(err)
	}
	g.ctx, g.stop = context.WithCancel(t.Context())
	t.Cleanup(g.cleanup)
	for _, n := range nodes {
		if err := g.Start(n, false); err != nil {
			t.Fatal(err)
		}
	}
	g.ready(30*time.Second, nodes...)
	for i, n := range nodes {
		g.wg.Go(func() { g.API(n).Follow(g.ctx, g.r, n) })
		g.wg.Go(func() { g.execute(n) })
		c := &jepsen.Client{
			Name: fmt.Sprintf("c%d", i+1), R: g.r, Rng: rand.New(rand.NewPCG(uint64(seed), uint64(i))), Rate: 1, Nodes: nodes, Endpoint: g.Endpoint,
			Load: jepsen.Load{Keys: []string{"raw1", "raw2"}, TTL: 3 * time.Second, Renew: 500 * time.Millisecond, Hold: time.Second, CallTimeout: 2 * time.Second},
		}
		g.wg.Go(func() { c.Run(g.ctx) })
	}
	return g
}

func cmpOr(a, b int64) int64 {
	if a != 0 {
		return a
	}
	return b
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
			for _, path := range []string{"/v1/leases", "/v1/instances", "/v1/history"} {
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

// TestProcess torments three real nodes on loopback: kill -9 with and without
// the guard, SIGSTOP shorter and longer than the TTL, a rolling restart, then
// faults as the seed says.
func TestProcess(t *testing.T) {
	processTier(t)
	g := newRig(t, "processes on loopback", nil)
	slack := g.r.Now() // nothing before this counts below
	for _, k := range procSettings.Singletons {
		if _, ok := g.owner(k, 0, 20*time.Second); !ok {
			return
		}
	}
	t.Logf("first runs %v after the observer's beginning", g.r.Now()-slack)

	// kill -9 of a holder, the guard lives: its commands die and the key passes on by proof.
	run, _ := g.owner("solo1", 0, time.Second)
	healed := g.r.Fault("kill", []string{run.Node}, "kill -9 "+run.Node+", its guard lives")
	at := g.r.Now()
	g.Crash(run.Node)
	if next, ok := g.owner("solo1", at, procSettings.TTL+4*time.Second); ok {
		t.Logf("kill -9 of a holder's node: next run on %s after %v", next.Node, next.Start-at)
	}
	if err := g.Start(run.Node, false); err != nil {
		t.Fatal(err)
	}
	g.ready(15*time.Second, run.Node)
	healed()

	// kill -9 of a holder and all that belongs to it, and the restart proves the death.
	g.settled()
	run, _ = g.owner("solo1", 0, time.Second)
	healed = g.r.Fault("kill-all", []string{run.Node}, "kill -9 "+run.Node+" with its guard")
	kids := descendants(g.Pid(run.Node))
	at = g.r.Now()
	g.Crash(run.Node)
	for _, pid := range kids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := g.Start(run.Node, false); err != nil {
		t.Fatal(err)
	}
	if next, ok := g.owner("solo1", at, procSettings.TTL+6*time.Second); ok {
		t.Logf("kill -9 of node and guard, restart at once: next run on %s after %v", next.Node, next.Start-at)
	}
	g.ready(15*time.Second, run.Node)
	healed()

	// SIGSTOP of a holder for longer than its lease: the guard stops the command in time.
	g.settled()
	run, _ = g.owner("solo2", 0, time.Second)
	healed = g.r.Fault("stop", []string{run.Node}, "SIGSTOP "+run.Node)
	at = g.r.Now()
	g.Pause(run.Node)
	if next, ok := g.owner("solo2", at, procSettings.TTL+6*time.Second); ok {
		t.Logf("SIGSTOP of a holder's node: next run on %s after %v", next.Node, next.Start-at)
	}
	g.Resume(run.Node)
	healed()

	// SIGSTOP of the leader, shorter than the TTL.
	if l := g.Leader(); l != "" {
		healed = g.r.Fault("stop", []string{l}, "SIGSTOP leader "+l)
		g.Pause(l)
		g.pause(procSettings.TTL / 2)
		g.Resume(l)
		healed()
	}

	// A rolling restart, one after the other as a deploy does it.
	for _, n := range g.Nodes() {
		healed = g.r.Fault("roll", []string{n}, "rolling restart of "+n)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		at = g.r.Now()
		if err := g.Leave(ctx, n); err != nil {
			t.Errorf("%v\n%s", err, g.logs())
		}
		cancel()
		t.Logf("%s left within %v", n, g.r.Now()-at)
		if err := g.Start(n, false); err != nil {
			t.Fatal(err)
		}
		g.ready(15*time.Second, n)
		healed()
	}

	// And whatever the seed says.
	steps := g.schedule(25 * time.Second)
	(&jepsen.Nemesis{C: g, R: g.r, Faults: g.faults}).Run(t.Context(), steps)
	g.finish(steps)
}

// schedule draws from the faults that this cluster can suffer.
func (g *rig) schedule(length time.Duration) []jepsen.Step {
	seed := cmpOr(*seedFlag, 1)
	can := slices.DeleteFunc(jepsen.AllFaults(), func(f jepsen.Fault) bool { return f.Available(g) != nil })
	steps := jepsen.Schedule(seed, can, g.Nodes(), length)
	for i := range steps {
		steps[i].For = min(steps[i].For, 6*time.Second)
	}
	return steps
}

// TestProcessPartition cuts real nodes off from each other, each of them in a
// network namespace of its own.
func TestProcessPartition(t *testing.T) {
	processTier(t)
	if err := jepsen.NamespacesAvailable(); err != nil {
		t.Skipf("no partition of real processes here: %v", err)
	}
	ns, err := jepsen.NewNamespaces([]string{"n1", "n2", "n3"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	g := newRig(t, "processes in network namespaces", ns)
	for _, k := range procSettings.Singletons {
		if _, ok := g.owner(k, 0, 20*time.Second); !ok {
			return
		}
	}
	n := &jepsen.Nemesis{C: g, R: g.r, Faults: g.faults}
	steps := []jepsen.Step{
		{At: time.Second, For: 8 * time.Second, Fault: "isolate-leader", Node: "leader", Other: "n1"},
		{At: 14 * time.Second, For: 6 * time.Second, Fault: "cut-outgoing", Node: "leader", Other: "n1"},
		{At: 24 * time.Second, For: 6 * time.Second, Fault: "cut-incoming", Node: "leader", Other: "n1"},
	}
	for _, s := range g.schedule(20 * time.Second) {
		s.At += 32 * time.Second
		steps = append(steps, s)
	}
	n.Run(t.Context(), steps)
	g.finish(steps)
}
