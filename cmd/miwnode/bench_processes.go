package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/load"
)

// benchProcesses is three `miwnode start` on loopback.
type benchProcesses struct {
	b     *bench
	dir   string
	addrs []string
	args  []string
	env   []string // beside our own
	procs []*benchProcess
}

type benchProcess struct {
	dir    string
	cmd    *exec.Cmd
	client *api.Client
	status api.Status // when it became ready
}

func (b *bench) startProcesses(ctx context.Context, args ...string) (*benchProcesses, error) {
	return b.startProcessesWith(ctx, nil, args...)
}

// startProcessesWith adds to the environment of the nodes.
func (b *bench) startProcessesWith(ctx context.Context, env []string, args ...string) (*benchProcesses, error) {
	dir, err := os.MkdirTemp(b.dir, "p-")
	if err != nil {
		return nil, err
	}
	c := &benchProcesses{b: b, dir: dir, args: args, env: env}
	if c.addrs, err = freeAddrs(3); err != nil {
		return nil, err
	}
	for i := range c.addrs {
		p, err := c.start(ctx, i)
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.procs = append(c.procs, p)
	}
	for _, p := range c.procs {
		if err := p.ready(ctx); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

// start starts (again) the i-th process on its own folder.
func (c *benchProcesses) start(ctx context.Context, i int) (*benchProcess, error) {
	p := &benchProcess{dir: filepath.Join(c.dir, strconv.Itoa(i))}
	args := []string{
		"start", "--data-dir", p.dir, "--bind", c.addrs[i], "--api", "off", "--bootstrap-expect", "3", "--log-level", "error",
	}
	for _, addr := range c.addrs {
		args = append(args, "--join", addr)
	}
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), c.b.self, append(args, c.args...)...)
	p.cmd.Env = append(os.Environ(), c.env...)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if p.client, err = api.NewClient(api.ClientConfig{Addr: filepath.Join(p.dir, api.SocketName)}); err != nil {
		return nil, err
	}
	return p, p.cmd.Start()
}

// ready polls until the node says that it is ready; nothing else tells from outside.
func (p *benchProcess) ready(ctx context.Context) error {
	for {
		if _, err := p.client.Do(ctx, api.Request{Method: "GET", Path: "/v1/status"}, &p.status); err == nil && p.status.Ready {
			return nil
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("node %s is not ready: %w", p.dir, err)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// kill ends the process as a crash would.
func (p *benchProcess) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// guards are the process's children: its guard. Each thread has those that it
// has started.
func (p *benchProcess) guards() (pids []int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.cmd.Process.Pid))
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		for f := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func (c *benchProcesses) close() error {
	for _, p := range c.procs {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, p := range c.procs {
		done := make(chan struct{})
		go func() { _ = p.cmd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			_ = p.cmd.Process.Kill()
			<-done
		}
		p.client.Close()
	}
	return os.RemoveAll(c.dir)
}

// leader is the index of the process that leads raft.
func (c *benchProcesses) leader(ctx context.Context) (int, error) {
	for i, p := range c.procs {
		var s api.Status
		if _, err := p.client.Do(ctx, api.Request{Method: "GET", Path: "/v1/status"}, &s); err != nil {
			return 0, err
		}
		if s.Role == "leader" {
			return i, nil
		}
	}
	return 0, errors.New("nobody leads")
}

// lead has another process lead, and waits until it does.
func (c *benchProcesses) lead(ctx context.Context, leader, to int) error {
	step := api.Request{Method: "POST", Path: "/v1/raft/step-down", Body: api.StepDownRequest{To: c.procs[to].status.NodeID}}
	if _, err := c.procs[leader].client.Do(ctx, step, nil); err != nil {
		return err
	}
	for leader != to {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
		leader, _ = c.leader(ctx)
	}
	return nil
}

func benchFailoverDefault(ctx context.Context, b *bench) (load.Row, error) {
	return b.failover(ctx)
}

func benchFailoverFast(ctx context.Context, b *bench) (load.Row, error) {
	return b.failover(ctx, "--raft-timeout", "200ms")
}

// failover: one acquire through a survivor, sent when the leader is killed.
func (b *bench) failover(ctx context.Context, args ...string) (row load.Row, err error) {
	c, err := b.startProcesses(ctx, args...)
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	leader, err := c.leader(ctx)
	if err != nil {
		return row, err
	}
	survivor := c.procs[(leader+1)%3]
	var s api.Session
	open := api.Request{Method: "POST", Path: "/v1/sessions", Body: api.OpenSessionRequest{TTL: api.Duration(10 * time.Second)}}
	if _, err := survivor.client.Do(ctx, open, &s); err != nil {
		return row, err
	}
	begin := time.Now()
	c.procs[leader].kill()
	acquire := api.Request{
		Method: "POST", Path: "/v1/leases/acquire", IdempotencyKey: "bench",
		Body: api.AcquireRequest{Key: "bench/failover", SessionID: s.SessionID},
	}
	if _, err := survivor.client.Do(ctx, acquire, nil); err != nil {
		return row, err
	}
	row.P50 = load.MS(time.Since(begin))
	return row, nil
}

// benchWorkerCommand is the work of the crash cells: it tells an observer that
// it runs, over a connection that ends with it.
func benchWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use: "worker SOCKET", Hidden: true, Args: nArgs(1, "the observer's socket"),
		Short:   "Tell an observer that this runs, until TERM (used by bench itself)",
		Example: "  miwnode bench worker /tmp/observer.sock",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
			defer stop()
			conn, err := net.Dial("unix", args[0])
			if err != nil {
				return err
			}
			defer conn.Close()
			if _, err := fmt.Fprintln(conn, os.Getenv("MIW_TOKEN")); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		},
	}
}

// workers observes the runs of one singleton: a run begins with a connection
// and ends with it.
type workers struct {
	ln     net.Listener
	seen   *stamps
	begins chan time.Time
}

func watchWorkers(path string) (*workers, error) {
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	w := &workers{ln: ln, seen: newStamps(), begins: make(chan time.Time, 16)}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				token, err := r.ReadString('\n')
				if err != nil {
					return
				}
				defer w.seen.begin("bench", strings.TrimSpace(token))()
				w.begins <- time.Now()
				_, _ = r.ReadByte() // until the worker is gone
			}()
		}
	}()
	return w, nil
}

func benchCrashGuard(ctx context.Context, b *bench) (load.Row, error) {
	return b.crash(ctx, func(leader int) int { return (leader + 1) % 3 }, false)
}

func benchCrashLeader(ctx context.Context, b *bench) (load.Row, error) {
	return b.crash(ctx, func(leader int) int { return leader }, false)
}

func benchCrashRestart(ctx context.Context, b *bench) (load.Row, error) {
	return b.crash(ctx, func(leader int) int { return (leader + 1) % 3 }, true)
}

// crash kills the process of the singleton's holder, which is the one that pick
// chooses, and measures until the work runs again. With restart the guard is
// killed too, the process is started again, and that start is where time begins.
func (b *bench) crash(ctx context.Context, pick func(leader int) int, restart bool) (row load.Row, err error) {
	dir, err := os.MkdirTemp(b.dir, "o-")
	if err != nil {
		return row, err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "observer.sock")
	w, err := watchWorkers(socket)
	if err != nil {
		return row, err
	}
	defer w.ln.Close()
	c, err := b.startProcesses(ctx, "--singleton", fmt.Sprintf("bench='%s' bench worker '%s'", b.self, socket))
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := w.next(ctx); err != nil {
		return row, err
	}
	holder, err := c.holder(ctx)
	if err != nil {
		return row, err
	}
	// Leadership goes where the cell wants it; the work stays where it is.
	if leader, err := c.leader(ctx); err != nil {
		return row, err
	} else if pick(leader) != holder {
		to := slices.IndexFunc([]int{0, 1, 2}, func(i int) bool { return pick(i) == holder })
		if err := c.lead(ctx, leader, to); err != nil {
			return row, err
		}
	}
	if err := c.waiting(ctx, 2); err != nil {
		return row, err
	}
	guards := c.procs[holder].guards()
	begin := time.Now()
	c.procs[holder].kill()
	if restart {
		for _, pid := range guards {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if c.procs[holder], err = c.start(ctx, holder); err != nil {
			return row, err
		}
		begin = time.Now()
	}
	if err := w.next(ctx); err != nil {
		return row, err
	}
	return load.Row{P50: load.MS(time.Since(begin)), Overlap: w.seen.overlaps}, nil
}

// next waits for the next begin of a run.
func (w *workers) next(ctx context.Context) error {
	select {
	case <-w.begins:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *benchProcesses) lease(ctx context.Context) (api.Lease, error) {
	var leases api.Leases
	get := api.Request{Method: "GET", Path: "/v1/leases", Query: map[string][]string{"key": {"bench"}}}
	if _, err := c.procs[0].client.Do(ctx, get, &leases); err != nil {
		return api.Lease{}, err
	}
	if len(leases.Leases) != 1 || leases.Leases[0].Holder == nil {
		return api.Lease{}, errors.New("the singleton's key is not held")
	}
	return leases.Leases[0], nil
}

// holder is the index of the process whose node holds the singleton's key; the
// copy that is asked may show it a moment after the work has begun.
func (c *benchProcesses) holder(ctx context.Context) (int, error) {
	l, err := c.lease(ctx)
	for ; err != nil; l, err = c.lease(ctx) {
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return slices.IndexFunc(c.procs, func(p *benchProcess) bool { return p.status.NodeID == l.Holder.NodeID }), nil
}

// waiting returns once n others stand in the singleton's queue.
func (c *benchProcesses) waiting(ctx context.Context, n int) error {
	for {
		if l, err := c.lease(ctx); err == nil && l.Waiters >= n {
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// benchIdle reads the CPU of three nodes and their guards, and one node's memory.
func benchIdle(ctx context.Context, b *bench) (row load.Row, err error) {
	c, err := b.startProcesses(ctx)
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := pause(ctx, 5*time.Second); err != nil {
		return row, err
	}
	var pids []int
	for _, p := range c.procs {
		pids = append(append(pids, p.cmd.Process.Pid), p.guards()...)
	}
	before, err := cpuOf(pids)
	if err != nil {
		return row, err
	}
	if err := pause(ctx, b.window); err != nil {
		return row, err
	}
	after, err := cpuOf(pids)
	if err != nil {
		return row, err
	}
	row.CPU = 100 * (after - before).Seconds() / b.window.Seconds()
	row.RSS, err = rssOf(c.procs[0].cmd.Process.Pid)
	return row, err
}

// cpuOf is the user and system time of processes so far, to a hundredth of a second each.
func cpuOf(pids []int) (sum time.Duration, err error) {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		for _, ticks := range f[11:13] {
			n, err := strconv.Atoi(ticks)
			if err != nil {
				return 0, err
			}
			sum += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return sum, nil
}

// rssOf is a process's resident memory in MB.
func rssOf(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	f := strings.Fields(rest)
	if len(f) == 0 {
		return 0, errors.New("no VmRSS")
	}
	kb, err := strconv.ParseFloat(f[0], 64)
	return kb / 1024, err
}

// benchHold compares windows of one cluster in this process: idle, then one
// node holding 10,000 leases. CPU is what the second costs more.
func benchHold(ctx context.Context, b *bench) (load.Row, error) {
	return b.inCluster(ctx, func(c *benchCluster) (load.Row, error) {
		n := c.follower(0)
		idle, _, err := b.reading(ctx, c)
		if err != nil {
			return load.Row{}, err
		}
		var leases []*coord.Lease
		for i := range 10_000 {
			l, err := coord.Acquire(ctx, n, "bench/hold/"+strconv.Itoa(i))
			if err != nil {
				return load.Row{}, err
			}
			leases = append(leases, l)
		}
		held, entries, err := b.reading(ctx, c)
		if err != nil {
			return load.Row{}, err
		}
		for _, l := range leases {
			if !l.Valid() {
				return load.Row{}, errors.New("a lease was lost")
			}
			if err := l.Release(ctx); err != nil {
				return load.Row{}, err
			}
		}
		return load.Row{CPU: held - idle, Entries: entries}, nil
	})
}

// reading is this process's CPU in per cent of a core over the window, and the
// log entries written meanwhile, after a pause for what was before to settle.
func (b *bench) reading(ctx context.Context, c *benchCluster) (cpu, entries float64, err error) {
	if err := pause(ctx, 3*time.Second); err != nil {
		return 0, 0, err
	}
	self := []int{os.Getpid()}
	before, err := cpuOf(self)
	if err != nil {
		return 0, 0, err
	}
	index := c.nodes[0].Status().AppliedIndex
	if err := pause(ctx, b.window); err != nil {
		return 0, 0, err
	}
	after, err := cpuOf(self)
	return 100 * (after - before).Seconds() / b.window.Seconds(), float64(c.nodes[0].Status().AppliedIndex - index), err
}

// freeAddrs are loopback addresses that nobody listens on now.
func freeAddrs(n int) ([]string, error) {
	var addrs []string
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close()
		addrs = append(addrs, ln.Addr().String())
	}
	return addrs, nil
}
