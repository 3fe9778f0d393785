package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/guard"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestMain makes the test binary a miwnode, too: tests run it as its users do.
func TestMain(m *testing.M) {
	guard.Main()
	if os.Getenv("MIW_TEST_MAIN") != "" {
		os.Unsetenv("MIW_TEST_MAIN") // what it starts is not a miwnode
		main()
	}
	goleak.VerifyTestMain(m)
}

// limit bounds what a test waits for; a machine that is busy needs more of it.
const limit = 60 * time.Second

// cli runs miwnode in a folder of its own.
type cli struct {
	t   *testing.T
	dir string
	env []string
}

func newCLI(t *testing.T) *cli { return &cli{t: t, dir: t.TempDir()} }

// with is the same with more environment.
func (c *cli) with(env ...string) *cli {
	return &cli{t: c.t, dir: c.dir, env: append(append([]string{}, c.env...), env...)}
}

// in is the same in another test.
func (c *cli) in(t *testing.T) *cli { return &cli{t: t, dir: c.dir, env: c.env} }

func (c *cli) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cli) write(name, text string) string {
	c.t.Helper()
	if err := os.WriteFile(c.path(name), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return c.path(name)
}

func (c *cli) command(ctx context.Context, args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Dir = c.dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "MIW_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	// A race detector waits for a second at the end of each process unless told not to.
	cmd.Env = append(append(cmd.Env, "MIW_TEST_MAIN=1", "GORACE=atexit_sleep_ms=0"), c.env...)
	return cmd
}

// result is how a command ended.
type result struct {
	t           *testing.T
	line        string
	code        int
	out, errOut string
	took        time.Duration
}

// run runs a command to its end.
func (c *cli) run(args ...string) result {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	cmd := c.command(ctx, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	began := time.Now()
	err := cmd.Run()
	r := result{t: c.t, line: "miwnode " + strings.Join(args, " "), code: cmd.ProcessState.ExitCode(), out: out.String(), errOut: errOut.String(), took: time.Since(began)}
	if ctx.Err() != nil {
		c.t.Fatalf("%s: did not end within %v\n%s%s", r.line, limit, r.out, r.errOut)
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("%s: %v", r.line, err)
	}
	return r
}

// ends wants an exit code.
func (r result) ends(code int) result {
	r.t.Helper()
	if r.code != code {
		r.t.Fatalf("%s: code %d, want %d\nstdout: %s\nstderr: %s", r.line, r.code, code, r.out, r.errOut)
	}
	return r
}

// shows wants texts on standard output.
func (r result) shows(texts ...string) result {
	r.t.Helper()
	for _, text := range texts {
		if !strings.Contains(r.out, text) {
			r.t.Fatalf("%s: no %q in\n%s\nstderr: %s", r.line, text, r.out, r.errOut)
		}
	}
	return r
}

// complains wants one line on standard error with the texts in it.
func (r result) complains(texts ...string) result {
	r.t.Helper()
	if strings.Count(r.errOut, "\n") != 1 || !strings.HasPrefix(r.errOut, "miwnode") {
		r.t.Fatalf("%s: want one line on stderr, got\n%s", r.line, r.errOut)
	}
	return r.says(texts...)
}

// says wants texts on standard error.
func (r result) says(texts ...string) result {
	r.t.Helper()
	for _, text := range texts {
		if !strings.Contains(r.errOut, text) {
			r.t.Fatalf("%s: no %q in\n%s", r.line, text, r.errOut)
		}
	}
	return r
}

// running is a command that goes on.
type running struct {
	t    *testing.T
	line string
	cmd  *exec.Cmd
	done chan struct{}
	read chan struct{} // closed when all output has come

	mu   sync.Mutex
	out  bytes.Buffer
	wake chan struct{} // closed at the next output
}

func (c *cli) start(args ...string) *running {
	c.t.Helper()
	p := &running{t: c.t, line: "miwnode " + strings.Join(args, " "), cmd: c.command(context.Background(), args...), done: make(chan struct{}), read: make(chan struct{}), wake: make(chan struct{})}
	r, w, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	w.Close()
	go func() {
		defer close(p.read)
		defer r.Close()
		_, _ = io.Copy(p, r)
	}()
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	c.t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(limit):
			_ = p.cmd.Process.Kill()
			<-p.done
			c.t.Errorf("%s: did not end after TERM", p.line)
		}
		<-p.read
		if c.t.Failed() {
			c.t.Logf("%s:\n%s", p.line, p.text())
		}
	})
	return p
}

// Write takes the output.
func (p *running) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.wake)
	p.wake = make(chan struct{})
	return p.out.Write(b)
}

func (p *running) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// says waits for a text in the output.
func (p *running) says(text string) {
	p.t.Helper()
	until := time.After(limit)
	for {
		p.mu.Lock()
		wake, has := p.wake, strings.Contains(p.out.String(), text)
		p.mu.Unlock()
		if has {
			return
		}
		select {
		case <-wake:
		case <-p.done:
			select {
			case <-p.read:
			case <-until: // what it left behind may hold the pipe
			}
			p.mu.Lock()
			has := strings.Contains(p.out.String(), text)
			p.mu.Unlock()
			if !has {
				p.t.Fatalf("%s: ended without saying %q:\n%s", p.line, text, p.text())
			}
		case <-until:
			p.t.Fatalf("%s: does not say %q:\n%s", p.line, text, p.text())
		}
	}
}

func (p *running) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%s: signal %v: %v", p.line, s, err)
	}
}

// ends waits for the end and wants a code (-1: ended by a signal).
func (p *running) ends(code int) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.t.Fatalf("%s: goes on:\n%s", p.line, p.text())
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Fatalf("%s: code %d, want %d:\n%s", p.line, got, code, p.text())
	}
}

// eventually waits for something that nothing signals.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for until := time.After(limit); !ok(); {
		select {
		case <-tick.C:
		case <-until:
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// nodeProcess is a node as a process.
type nodeProcess struct {
	*running
	cli  *cli // whose default node it is
	dir  string
	args []string
}

// startNode starts a node with its data in dir, and waits until it is ready.
func (c *cli) startNode(dir string, args ...string) *nodeProcess {
	c.t.Helper()
	n := c.launchNode(dir, args...)
	n.ready()
	return n
}

func (c *cli) launchNode(dir string, args ...string) *nodeProcess {
	c.t.Helper()
	args = append([]string{"start", "--data-dir", dir, "--api", "off"}, args...)
	return &nodeProcess{running: c.start(args...), cli: c.with("MIW_DATA_DIR=" + c.path(dir)), dir: c.path(dir), args: args}
}

// again starts a node that has ended with the same folder.
func (n *nodeProcess) again() {
	n.t.Helper()
	n.running = n.cli.start(n.args...)
}

func (n *nodeProcess) client() *api.Client {
	n.t.Helper()
	c, err := api.NewClient(api.ClientConfig{Addr: filepath.Join(n.dir, api.SocketName)})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(c.Close)
	return c
}

func (n *nodeProcess) ready() {
	n.t.Helper()
	c := n.client()
	eventually(n.t, n.line+" is ready", func() bool {
		select {
		case <-n.done:
			n.t.Fatalf("%s: ended:\n%s", n.line, n.text())
		default:
		}
		ctx, cancel := context.WithTimeout(n.t.Context(), time.Second)
		defer cancel()
		_, err := c.Do(ctx, api.Request{Method: "GET", Path: "/readyz"}, nil)
		return err == nil
	})
}

// get reads from the node's API.
func (n *nodeProcess) get(path string, out any) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 10*time.Second)
	defer cancel()
	path, raw, _ := strings.Cut(path, "?")
	req := api.Request{Method: "GET", Path: path, Query: map[string][]string{}}
	for _, pair := range strings.FieldsFunc(raw, func(r rune) bool { return r == '&' }) {
		k, v, _ := strings.Cut(pair, "=")
		req.Query[k] = []string{v}
	}
	if _, err := n.client().Do(ctx, req, out); err != nil {
		n.t.Fatalf("GET %s of %s: %v", path, n.dir, err)
	}
}

// holder is the node that holds key, and the token; "" if it is free.
func (n *nodeProcess) holder(key string) (node string, token uint64) {
	n.t.Helper()
	var l api.Leases
	n.get("/v1/leases?key="+key, &l)
	if len(l.Leases) == 0 || l.Leases[0].Holder == nil {
		return "", 0
	}
	return l.Leases[0].Holder.NodeID, l.Leases[0].Token
}

// startCluster starts n nodes named n1, n2, …, and waits until all are ready.
func (c *cli) startCluster(n int, args ...string) []*nodeProcess {
	c.t.Helper()
	addrs, err := freeAddrs(n)
	if err != nil {
		c.t.Fatal(err)
	}
	var nodes []*nodeProcess
	for i := range n {
		id := fmt.Sprintf("n%d", i+1)
		own := append([]string{"--id", id, "--bind", addrs[i], "--bootstrap-expect", fmt.Sprint(n)}, args...)
		for j, addr := range addrs {
			if j != i {
				own = append(own, "--join", addr)
			}
		}
		nodes = append(nodes, c.launchNode(id, own...))
	}
	for _, p := range nodes {
		p.ready()
	}
	for _, p := range nodes {
		eventually(c.t, "all have joined", func() bool {
			var all api.Instances
			var members api.Members
			p.get("/v1/instances", &all)
			p.get("/v1/members", &members)
			voters := 0
			for _, m := range members.Members {
				if m.Voter {
					voters++
				}
			}
			return len(all.Instances) == n && voters == n
		})
	}
	return nodes
}

// leader is the node that leads, as the first one that answers says.
func leader(t *testing.T, nodes []*nodeProcess) *nodeProcess {
	t.Helper()
	var found *nodeProcess
	eventually(t, "one leads", func() bool {
		for _, n := range nodes {
			var s api.Status
			n.get("/v1/status", &s)
			if s.Role == "leader" {
				found = n
			}
		}
		return found != nil
	})
	return found
}

func id(n *nodeProcess) string { return filepath.Base(n.dir) }
