//go:build linux

package node_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/guard"
	"github.com/miwnode/miwnode/node"
)

// Names of what the test binary can be beside a test.
const (
	programRole   = "program"   // embeds a node, calls guard.Main first
	unguardedRole = "unguarded" // the same without that call
	commandRole   = "command"   // what a program runs under its guard
)

// roles makes of the process what its arguments say, and does not return then.
func roles(args []string) {
	role := ""
	if len(args) > 1 {
		role = args[1]
	}
	if role == unguardedRole {
		programMain()
	}
	guard.Main()
	switch role {
	case programRole:
		programMain()
	case commandRole:
		commandMain(args[2], args[3])
		os.Exit(0)
	}
}

// programPatience is how long a test waits for what must happen. It is long, since machines under test are busy.
const programPatience = 40 * time.Second

// programKey is the key of the program's work.
const programKey = "work"

// settings are the program's, on its standard input.
type settings struct {
	ID, Dir, Bind string
	Join          []string
	Expect        int
	TTL           time.Duration
	Lock          string // the work holds this file's lock: what it says about overlaps is the kernel's word
	Command       bool   // the work is a command under the guard
	LogLevel      string
	LogJSON       bool
}

// said is a line of the program's standard output.
type said struct {
	What   string
	Token  uint64 `json:",omitempty"`
	At     time.Duration
	Leader string `json:",omitempty"`
	Err    string `json:",omitempty"`
}

// sayTo writes lines, each in one piece.
func sayTo(w io.Writer) func(said) {
	return func(line said) {
		line.At = guard.BootTime()
		b, _ := json.Marshal(line)
		_, _ = w.Write(append(b, '\n'))
	}
}

// programMain is a service that embeds a node and has one piece of work.
func programMain() {
	in := bufio.NewReader(os.Stdin)
	var s settings
	if line, err := in.ReadBytes('\n'); err != nil || json.Unmarshal(line, &s) != nil {
		os.Exit(3)
	}
	say := sayTo(os.Stdout)
	var level slog.Level
	_ = level.UnmarshalText([]byte(s.LogLevel))
	var log slog.Handler = slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	if s.LogJSON {
		log = slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	}
	n, err := node.New(node.Config{
		DataDir: s.Dir, ID: s.ID, Bind: s.Bind, Join: s.Join, BootstrapExpect: s.Expect, Logger: slog.New(log),
		Timing: node.Timing{SessionTTL: s.TTL, Margin: s.TTL / 10},
	})
	if err != nil {
		say(said{What: "failed", Err: err.Error()})
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		<-n.Ready()
		leader := ""
		for _, m := range n.Members() {
			if m.Leader {
				leader = m.NodeID
			}
		}
		say(said{What: "ready", Leader: leader})
	})
	wg.Go(func() {
		if line, err := in.ReadString('\n'); err != nil || line != "work\n" {
			return
		}
		work := coord.NewRunner(n, programKey, func(ctx context.Context, l *coord.Lease) error {
			return workMain(ctx, n, l, s, say)
		})
		wg.Go(func() { sayQueued(ctx, n, say) })
		_ = work.Run(ctx)
	})
	err = n.Run(ctx)
	say(said{What: "left", Err: fmt.Sprint(err)})
	os.Stdin.Close()
	os.Exit(0)
}

// sayQueued says when the node stands in the work's queue, if it does.
func sayQueued(ctx context.Context, n *node.Node, say func(said)) {
	wake, stop := n.Watch(fsm.QueueTopic(programKey))
	defer stop()
	for {
		view := n.View()
		own, ok := view.NodeSession(n.ID())
		for w := range view.Waiters(programKey) {
			if ok && w.SessionID == own.ID {
				say(said{What: "queued"})
				return
			}
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return
		}
	}
}

// workMain holds the file's lock for as long as it runs. A lock that is not free is an overlap.
func workMain(ctx context.Context, n *node.Node, l *coord.Lease, s settings, say func(said)) error {
	if s.Command {
		p, err := n.Spawn(ctx, guard.Spec{
			Argv: []string{"/proc/self/exe", commandRole, s.Lock, fmt.Sprint(l.Token())}, Stdout: os.Stdout, Key: l.Key(), Token: l.Token(),
		})
		if err != nil {
			say(said{What: "refused", Token: l.Token(), Err: err.Error()})
			return err
		}
		select {
		case <-l.Draining():
		case <-ctx.Done():
		case <-p.Done():
		}
		_ = p.Stop(0)
		_, err = p.Wait(context.WithoutCancel(ctx))
		say(said{What: "ended", Token: l.Token()})
		return err
	}
	f, err := beginWork(s.Lock, l.Token(), say)
	if err != nil {
		return err
	}
	defer f.Close()
	select {
	case <-l.Draining():
	case <-ctx.Done():
	}
	say(said{What: "ended", Token: l.Token()})
	return nil
}

// beginWork takes the file's lock and says so.
func beginWork(lock string, token uint64, say func(said)) (*os.File, error) {
	f, err := os.OpenFile(lock, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		say(said{What: "overlap", Token: token, Err: err.Error()})
		return nil, err
	}
	say(said{What: "began", Token: token})
	return f, nil
}

// commandMain is the work as a command. It lasts until it is killed.
func commandMain(lock, token string) {
	n, _ := strconv.ParseUint(token, 10, 64)
	f, err := beginWork(lock, n, sayTo(os.Stdout))
	if err != nil {
		os.Exit(1)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	f.Close()
}

// program is a running program.
type program struct {
	t    *testing.T
	s    settings
	role string
	pid  int
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  chan said
	done chan struct{}

	logEnded chan struct{} // closed when the program and its guard are gone

	mu  sync.Mutex
	log strings.Builder
}

func startProgram(t *testing.T, role string, s settings) *program {
	t.Helper()
	p := &program{t: t, s: s, role: role, cmd: exec.Command("/proc/self/exe", role), out: make(chan said, 100), done: make(chan struct{}), logEnded: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	logR, logW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = outW, logW
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.pid = p.cmd.Process.Pid
	outW.Close()
	logW.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(p.out)
		for lines := bufio.NewScanner(outR); lines.Scan(); {
			var line said
			if json.Unmarshal(lines.Bytes(), &line) == nil {
				p.out <- line
			}
		}
	})
	wg.Go(func() { // its guard has this pipe, too
		defer close(p.logEnded)
		for lines := bufio.NewScanner(logR); lines.Scan(); {
			p.mu.Lock()
			p.log.WriteString(lines.Text() + "\n")
			p.mu.Unlock()
		}
	})
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		// Without its guard, which would go on for a TTL to find a peer that lives.
		if p.cmd.Process.Signal(syscall.SIGSTOP) == nil {
			for _, pid := range p.guards() {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		_ = p.cmd.Process.Kill()
		p.in.Close()
		<-p.done
		wg.Wait()
		outR.Close()
		logR.Close()
		if t.Failed() {
			t.Logf("%s:\n%s", s.ID, p.text())
		}
	})
	b, _ := json.Marshal(s)
	fmt.Fprintf(p.in, "%s\n", b)
	return p
}

func (p *program) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// work has the program queue for its work.
func (p *program) work() { fmt.Fprintln(p.in, "work") }

// says waits for the program to say what is wanted; an overlap is never.
func (p *program) says(what string) said {
	p.t.Helper()
	for late := time.After(programPatience); ; {
		select {
		case line, ok := <-p.out:
			switch {
			case !ok:
				p.t.Fatalf("%s ended without saying %q", p.s.ID, what)
			case line.What == "overlap", line.What == "failed", line.What == "refused":
				p.t.Fatalf("%s says %+v", p.s.ID, line)
			case line.What == what:
				return line
			}
		case <-late:
			p.t.Fatalf("%s does not say %q", p.s.ID, what)
		}
	}
}

// refused waits for the program to say that its command was refused.
func (p *program) refused() said {
	p.t.Helper()
	for late := time.After(programPatience); ; {
		select {
		case line, ok := <-p.out:
			if !ok || line.What == "refused" {
				return line
			}
		case <-late:
			p.t.Fatalf("%s is not refused", p.s.ID)
		}
	}
}

// logs wants a text in what the program has logged.
func (p *program) logs(text string) {
	p.t.Helper()
	if !strings.Contains(p.text(), text) {
		p.t.Errorf("%s does not log %q:\n%s", p.s.ID, text, p.text())
	}
}

// guards are the program's guard processes.
func (p *program) guards() (pids []int) {
	p.t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		p.t.Fatal(err)
	}
	for _, d := range dirs {
		stat, err := os.ReadFile(d)
		if err != nil {
			continue
		}
		rest := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		line, err := os.ReadFile(filepath.Join(filepath.Dir(d), "cmdline"))
		if err == nil && rest[1] == strconv.Itoa(p.pid) && strings.Contains(string(line), ": guard") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(d)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// theGuard is the program's one guard, by a pidfd.
func (p *program) theGuard() (pid, fd int) {
	p.t.Helper()
	pids := p.guards()
	if len(pids) != 1 {
		p.t.Fatalf("%s has the guards %v, want one", p.s.ID, pids)
	}
	fd, err := unix.PidfdOpen(pids[0], 0)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { unix.Close(fd) })
	return pids[0], fd
}

// awaitExit waits for the end of a process by its pidfd.
func awaitExit(t *testing.T, fd int) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(programPatience); ; {
		n, err := unix.Poll(fds, int(max(0, time.Until(end)).Milliseconds()))
		switch {
		case n == 1:
			return
		case err != unix.EINTR:
			t.Fatal("a process lives on")
		}
	}
}

// kill ends the program as a crash does, and returns when that was.
func (p *program) kill() time.Duration {
	p.t.Helper()
	at := guard.BootTime()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	return at
}

// startPrograms starts three programs that make a cluster, and waits until they are ready. It returns the leader last.
func startPrograms(t *testing.T, edit func(*settings)) []*program {
	t.Helper()
	dir := t.TempDir()
	binds := freePorts(t, 3)
	var all []*program
	for i, bind := range binds {
		id := fmt.Sprintf("n%d", i+1)
		s := settings{ID: id, Dir: filepath.Join(dir, id), Bind: bind, Join: binds, Expect: 3, TTL: 30 * time.Second, Lock: filepath.Join(dir, "observer")}
		if edit != nil {
			edit(&s)
		}
		all = append(all, startProgram(t, programRole, s))
	}
	leader := ""
	for _, p := range all {
		leader = p.says("ready").Leader
	}
	for i, p := range all {
		if p.s.ID == leader {
			all[i], all[2] = all[2], all[i]
		}
	}
	return all
}

// freePorts are addresses on loopback that nobody has right now.
func freePorts(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}
