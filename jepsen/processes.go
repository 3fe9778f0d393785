package jepsen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Settings are those of a cluster of processes.
type Settings struct {
	Binary string // miwnode
	Worker []string
	Dir    string // data folders, logs, sockets; short, since socket paths are
	Nodes  int
	TTL, Renew, Margin, StopBudget,
	DrainTimeout, KillTimeout, RaftTimeout time.Duration
	// Singletons are the keys that every node runs a worker for.
	Singletons []string
	// Group are workloads that the nodes share out as the group "g", each a
	// worker's key within it; nil: there is no group.
	Group []string
	// Args are more flags of start.
	Args []string
	// WorkerStop is how long a worker takes to stop: a duration, or "deaf"; of a
	// key in Stops, what that says.
	WorkerStop string
	Stops      map[string]string
	Net        Network
	// Ended, if not nil, is told that a node's process has ended by itself.
	Ended func(node string, code int)
}

// Processes is a cluster of real processes. It implements Cluster.
type Processes struct {
	s   Settings
	r   *Recorder
	obs *Observer

	mu    sync.Mutex
	procs map[string]*process // guarded by mu
	names []string
}

type process struct {
	name     string
	boots    int
	cmd      *exec.Cmd // nil: down
	exited   chan struct{}
	stopped  bool // SIGSTOP was sent last
	wanted   bool // not told to end
	endpoint *HTTPEndpoint
}

var _ Cluster = (*Processes)(nil)

// NewProcesses prepares a cluster; nothing runs until Start.
func NewProcesses(s Settings, r *Recorder, obs *Observer) (*Processes, error) {
	p := &Processes{s: s, r: r, obs: obs, procs: map[string]*process{}}
	for i := range s.Nodes {
		name := NodeName(i)
		e, err := NewHTTPEndpoint(filepath.Join(s.Dir, name, "miw.sock"))
		if err != nil {
			return nil, err
		}
		p.names = append(p.names, name)
		p.procs[name] = &process{name: name, endpoint: e}
	}
	return p, nil
}

// NodeName is the name of the i-th node of a cluster of processes, from 0.
func NodeName(i int) string { return fmt.Sprintf("n%d", i+1) }

// Nodes implements Cluster.
func (p *Processes) Nodes() []string { return p.names }

// Endpoint returns the node's API, nil while its process is down.
func (p *Processes) Endpoint(node string) Endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pr := p.procs[node]; pr.cmd != nil {
		return pr.endpoint
	}
	return nil
}

// API returns the node's API, up or down.
func (p *Processes) API(node string) *HTTPEndpoint { return p.procs[node].endpoint }

// Up implements Cluster.
func (p *Processes) Up(node string) bool { return p.Endpoint(node) != nil }

// Pid returns the process of a node, 0 while it is down.
func (p *Processes) Pid(node string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pr := p.procs[node]; pr.cmd != nil {
		return pr.cmd.Process.Pid
	}
	return 0
}

// Leader implements Cluster: what most nodes that answer say.
func (p *Processes) Leader() string {
	var (
		mu    sync.Mutex
		votes = map[string]int{}
		wg    sync.WaitGroup
	)
	for _, n := range p.names {
		if !p.Up(n) {
			continue
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			if s, err := p.API(n).Status(ctx); err == nil && s.LeaderID != "" {
				mu.Lock()
				votes[s.LeaderID]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	best := ""
	for _, n := range p.names {
		if votes[n] > votes[best] {
			best = n
		}
	}
	return best
}

// Can implements Cluster.
func (p *Processes) Can(v Verb) error {
	switch v {
	case VerbCut, VerbShape, VerbAddress:
		return p.s.Net.Can(v)
	case VerbRate, VerbSuspend, VerbWall:
		return fmt.Errorf("%s can't be done to a real machine from here", v)
	case VerbStep, VerbAil:
		return errNoInsides
	}
	return nil
}

// Start implements Cluster.
func (p *Processes) Start(node string, _ bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	pr := p.procs[node]
	if pr.cmd != nil {
		return nil
	}
	pr.boots++
	args := []string{
		"start", "--data-dir", filepath.Join(p.s.Dir, node), "--id", node, "--api", "off",
		"--bootstrap-expect", fmt.Sprint(p.s.Nodes),
		"--session-ttl", p.s.TTL.String(), "--renew-interval", p.s.Renew.String(), "--margin", p.s.Margin.String(), "--stop-budget", p.s.StopBudget.String(),
		"--drain-timeout", p.s.DrainTimeout.String(), "--kill-timeout", p.s.KillTimeout.String(), "--raft-timeout", p.s.RaftTimeout.String(),
	}
	args = append(append(args, p.s.Args...), p.s.Net.flags(node)...)
	for _, n := range p.names {
		if n != node {
			args = append(args, "--join", p.s.Net.address(n))
		}
	}
	for _, k := range p.s.Singletons {
		args = append(args, "--singleton", k+"="+p.worker(node, k))
	}
	if p.s.Group != nil {
		path, err := p.groupFile(node)
		if err != nil {
			return fmt.Errorf("start %s: %w", node, err)
		}
		args = append(args, "--group", path)
	}
	cmd := p.Command(node, append([]string{p.s.Binary}, args...)...)
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", lifeVariable, pr.boots))
	log, err := os.OpenFile(filepath.Join(p.s.Dir, node+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", node, err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", node, err)
	}
	pr.cmd, pr.exited, pr.wanted, pr.stopped = cmd, make(chan struct{}), true, false
	p.r.Notef(node, "process %d started (boot %d)", cmd.Process.Pid, pr.boots)
	go func(exited chan struct{}) {
		err := cmd.Wait()
		p.mu.Lock()
		if pr.cmd == cmd {
			pr.cmd = nil
		}
		wanted := pr.wanted
		p.r.Notef(node, "process %d ended: %s", cmd.Process.Pid, cmp.Or(errText(err), "exit 0"))
		p.mu.Unlock()
		close(exited)
		if wanted && p.s.Ended != nil {
			p.s.Ended(node, cmd.ProcessState.ExitCode())
		}
	}(pr.exited)
	return nil
}

// Command is a command on a node's machine, marked as of this cluster. It leads a
// process group: a ^C at the terminal must not reach it first. The settings of
// nodes that the environment may hold are not those of these.
func (p *Processes) Command(node string, argv ...string) *exec.Cmd {
	argv = append(p.s.Net.exec(node), argv...)
	cmd := exec.Command(argv[0], argv[1:]...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "MIW_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, markVariable+"="+p.s.Dir+"/"+node)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// worker is the command line of a key's worker, in words of a shell.
func (p *Processes) worker(node, key string) string {
	words := append(slices.Clone(p.s.Worker), node, cmp.Or(p.s.Stops[key], p.s.WorkerStop))
	for i, w := range words {
		words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(words, " ")
}

// groupFile writes what a node has of the group.
func (p *Processes) groupFile(node string) (path string, err error) {
	var b strings.Builder
	b.WriteString("group: g\nrebalance: graceful\nworkloads:\n")
	for _, w := range p.s.Group {
		fmt.Fprintf(&b, "  - {key: %s, run: %q}\n", w, p.worker(node, "g/"+w))
	}
	path = filepath.Join(p.s.Dir, node+".yaml")
	return path, os.WriteFile(path, []byte(b.String()), 0o644)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// WaitReady waits until the nodes are ready.
func (p *Processes) WaitReady(ctx context.Context, nodes ...string) error {
	for _, n := range nodes {
		for {
			cctx, cancel := context.WithTimeout(ctx, time.Second)
			_, err := p.API(n).Get(cctx, "/readyz", nil)
			cancel()
			if err == nil {
				break
			}
			if !sleep(ctx, 20*time.Millisecond) {
				return fmt.Errorf("%s is not ready: %w", n, err)
			}
		}
	}
	return nil
}

func (p *Processes) signal(node string, sig syscall.Signal) (exited chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pr := p.procs[node]
	if pr.cmd == nil {
		return nil
	}
	switch sig {
	case syscall.SIGKILL, syscall.SIGTERM:
		pr.wanted = false
	case syscall.SIGSTOP:
		pr.stopped = true
	case syscall.SIGCONT:
		pr.stopped = false
	}
	_ = pr.cmd.Process.Signal(sig) // gone already: the waiter says so
	return pr.exited
}

// Pause implements Cluster with SIGSTOP.
func (p *Processes) Pause(node string) { p.signal(node, syscall.SIGSTOP) }

// Resume implements Cluster with SIGCONT.
func (p *Processes) Resume(node string) { p.signal(node, syscall.SIGCONT) }

// Crash implements Cluster with SIGKILL and waits until the process is gone.
func (p *Processes) Crash(node string) {
	if exited := p.signal(node, syscall.SIGKILL); exited != nil {
		<-exited
	}
}

// Leave implements Cluster with SIGTERM.
func (p *Processes) Leave(ctx context.Context, node string) error {
	p.Resume(node) // a stopped process hears nothing else
	exited := p.signal(node, syscall.SIGTERM)
	if exited == nil {
		return nil
	}
	select {
	case <-exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s did not leave: %w", node, context.Cause(ctx))
	}
}

// StepDown implements Cluster.
func (p *Processes) StepDown(ctx context.Context) error {
	l := p.Leader()
	if l == "" {
		return errors.New("nobody leads")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return p.API(l).StepDown(ctx)
}

// Cut implements Cluster.
func (p *Processes) Cut(from, to string) {
	if err := p.s.Net.Cut(from, to); err != nil {
		p.r.Notef(from, "%v", err)
	}
}

// Mend implements Cluster.
func (p *Processes) Mend(from, to string) {
	if err := p.s.Net.Mend(from, to); err != nil {
		p.r.Notef(from, "%v", err)
	}
}

// Shape implements Cluster.
func (p *Processes) Shape(from, to string, delay, jitter time.Duration, loss float64) {
	if err := p.s.Net.Shape(from, to, delay, jitter, loss); err != nil {
		p.r.Notef(from, "%v", err)
	}
}

// SetRate is not available here.
func (p *Processes) SetRate(string, float64) {}

// Suspend is not available here.
func (p *Processes) Suspend(string, time.Duration) {}

// StepWall is not available here.
func (p *Processes) StepWall(string, time.Duration) {}

// StopAll ends every node, one after the other gracefully, and kills what does
// not end until ctx does.
func (p *Processes) StopAll(ctx context.Context) error {
	var errs []error
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, n := range p.names {
		wg.Go(func() {
			if err := p.Leave(ctx, n); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
				p.Crash(n)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// killMarked kills every process of a cluster, whoever has become its parent, and
// returns how many there were.
func killMarked(dir string) int {
	killed := map[int]struct{}{}
	for range 40 { // what is killed may just have started something
		left := marked(dir)
		if len(left) == 0 {
			break
		}
		for pid := range left {
			killed[pid] = struct{}{}
			_ = syscall.Kill(pid, syscall.SIGKILL) // gone already
		}
		sleep(context.Background(), 50*time.Millisecond)
	}
	return len(killed)
}
