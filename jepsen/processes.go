package jepsen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
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
	// WorkerStop is how long a worker takes to stop: a duration, or "deaf".
	WorkerStop string
	// Net gives every node a network namespace; nil: all on loopback.
	Net *Namespaces
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
	name, addr string
	boots      int
	cmd        *exec.Cmd // nil: down
	exited     chan struct{}
	stopped    bool // SIGSTOP was sent last
	wanted     bool // not told to end
	endpoint   *HTTPEndpoint
}

var _ Cluster = (*Processes)(nil)

// NewProcesses prepares a cluster; nothing runs until Start.
func NewProcesses(s Settings, r *Recorder, obs *Observer) (*Processes, error) {
	p := &Processes{s: s, r: r, obs: obs, procs: map[string]*process{}}
	for i := range s.Nodes {
		name := fmt.Sprintf("n%d", i+1)
		addr, err := p.address(name)
		if err != nil {
			return nil, err
		}
		e, err := NewHTTPEndpoint(filepath.Join(s.Dir, name, "miw.sock"))
		if err != nil {
			return nil, err
		}
		p.names = append(p.names, name)
		p.procs[name] = &process{name: name, addr: addr, endpoint: e}
	}
	return p, nil
}

func (p *Processes) address(name string) (string, error) {
	if p.s.Net != nil {
		return p.s.Net.IP(name) + ":7400", nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

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
	case VerbCut, VerbAddress:
		if p.s.Net == nil {
			return fmt.Errorf("%s needs network namespaces", v)
		}
		if v == VerbAddress {
			return errors.New("addresses of namespaces are fixed")
		}
	case VerbShape, VerbRate, VerbSuspend, VerbWall:
		return fmt.Errorf("%s can't be done to a real machine from here", v)
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
		"start", "--id", node, "--data-dir", filepath.Join(p.s.Dir, node), "--bind", pr.addr, "--api", "off",
		"--bootstrap-expect", fmt.Sprint(p.s.Nodes),
		"--session-ttl", p.s.TTL.String(), "--renew-interval", p.s.Renew.String(), "--margin", p.s.Margin.String(), "--stop-budget", p.s.StopBudget.String(),
		"--drain-timeout", p.s.DrainTimeout.String(), "--kill-timeout", p.s.KillTimeout.String(), "--raft-timeout", p.s.RaftTimeout.String(),
	}
	for _, n := range p.names {
		if n != node {
			args = append(args, "--join", p.procs[n].addr)
		}
	}
	for _, k := range p.s.Singletons {
		args = append(args, "--singleton", k+"="+strings.Join(append(slices.Clone(p.s.Worker), node, p.s.WorkerStop), " "))
	}
	argv := append([]string{p.s.Binary}, args...)
	if p.s.Net != nil {
		argv = append(p.s.Net.exec(node), append(argv, "--insecure")...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	log, err := os.OpenFile(filepath.Join(p.s.Dir, node+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", node, err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own: a ^C at the test must not reach it first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", node, err)
	}
	pr.cmd, pr.exited, pr.wanted, pr.stopped = cmd, make(chan struct{}), true, false
	p.r.Notef(node, "process %d started (boot %d)", cmd.Process.Pid, pr.boots)
	go func(exited chan struct{}) {
		err := cmd.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if pr.cmd == cmd {
			pr.cmd = nil
		}
		p.r.Notef(node, "process %d ended: %s", cmd.Process.Pid, cmp.Or(errText(err), "exit 0"))
		close(exited)
	}(pr.exited)
	return nil
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

// Shape, SetRate, Suspend and StepWall are not available here.
func (p *Processes) Shape(string, string, time.Duration, time.Duration, float64) {}

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
