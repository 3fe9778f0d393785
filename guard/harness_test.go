//go:build linux

package guard_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miwnode/miwnode/guard"
)

// patience is how long a test waits for what must happen. It is long, since machines under test are busy.
const patience = 20 * time.Second

// process is one that the test knows, by a pidfd: never another that got its number. It is killed when the test ends.
type process struct {
	pid int
	fd  int
}

func watch(t *testing.T, pid int) process {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	t.Cleanup(func() {
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		unix.Close(fd)
	})
	return process{pid, fd}
}

func (p process) gone(d time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	for end := guard.BootTime() + d; ; {
		n, err := unix.Poll(fds, int(max(0, end-guard.BootTime()).Milliseconds()))
		if err != unix.EINTR {
			return n == 1
		}
	}
}

func (p process) awaitGone(t *testing.T, what string) {
	t.Helper()
	if !p.gone(patience) {
		t.Fatalf("%s (process %d) lives on", what, p.pid)
	}
}

func (p process) kill(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := unix.PidfdSendSignal(p.fd, sig, nil, 0); err != nil {
		t.Fatalf("signal %v to process %d: %v", sig, p.pid, err)
	}
}

// output is what commands write, line by line. Its end is the end of all who could write.
type output struct {
	lines chan string
	w     *os.File
}

func newOutput(t *testing.T) *output {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	o := &output{lines: make(chan string, 1024), w: w}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(o.lines)
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			o.lines <- s.Text()
		}
	})
	t.Cleanup(func() { w.Close(); r.Close(); wg.Wait() })
	return o
}

func (o *output) line(t *testing.T) string {
	t.Helper()
	select {
	case l, ok := <-o.lines:
		if !ok {
			t.Fatal("output ended")
		}
		return l
	case <-time.After(patience):
		t.Fatal("no line of output")
	}
	return ""
}

// up waits until a command stands, and returns it.
func (o *output) up(t *testing.T) process {
	t.Helper()
	for _, p := range o.ups(t, 1) {
		return p
	}
	return process{}
}

// ups waits until so many commands stand, and returns them by their names.
func (o *output) ups(t *testing.T, count int) map[string]process {
	t.Helper()
	all := map[string]process{}
	for range count {
		l := o.line(t)
		var name string
		var pid int
		if _, err := fmt.Sscanf(l, "up %s %d", &name, &pid); err != nil {
			t.Fatalf("got %q, want a command that stands", l)
		}
		all[name] = watch(t, pid)
	}
	return all
}

// rest waits until nobody has the output open any more, and returns what was written until then.
func (o *output) rest(t *testing.T) (lines []string) {
	t.Helper()
	o.w.Close()
	for end := time.After(patience); ; {
		select {
		case l, ok := <-o.lines:
			if !ok {
				return lines
			}
			lines = append(lines, l)
		case <-end:
			t.Fatal("somebody still has the commands' output open")
		}
	}
}

// ended waits until nobody has the output open any more, but for the test itself, which closes it.
func (o *output) ended(t *testing.T) {
	t.Helper()
	o.rest(t)
}

// node is a stand-in for a node in a process of its own.
type node struct {
	process
	cmd   *exec.Cmd
	out   *output // of its commands
	guard process
	stdin io.Closer
	in    *json.Encoder
	evs   chan event
}

// closeStdin lets the stand-in's main return.
func (n *node) closeStdin() { n.stdin.Close() }

// endsUntold ends the node, none of whose commands may have had the TERM that nothing gets after KillAt.
func (n *node) endsUntold(t *testing.T) {
	t.Helper()
	n.closeStdin()
	if lines := n.out.rest(t); slices.Contains(lines, "told") {
		t.Errorf("the command was told to end after KillAt: %q", lines)
	}
}

func startNode(t *testing.T, dir string) *node {
	t.Helper()
	n := &node{out: newOutput(t), evs: make(chan event, 64)}
	n.cmd = exec.Command("/proc/self/exe", "stand-in", "node")
	n.cmd.Args[0] = os.Args[0]
	n.cmd.Stderr = logWriter(t)
	n.cmd.ExtraFiles = []*os.File{n.out.w}
	stdin, err := n.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	n.cmd.Stdout = w
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	n.process = watch(t, n.cmd.Process.Pid)
	n.stdin, n.in = stdin, json.NewEncoder(stdin)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(n.evs)
		for dec := json.NewDecoder(r); ; {
			var e event
			if dec.Decode(&e) != nil {
				return
			}
			n.evs <- e
		}
	})
	t.Cleanup(func() {
		stdin.Close()
		n.cmd.Process.Kill()
		n.cmd.Wait()
		wg.Wait()
		r.Close()
	})
	e := n.tell(t, order{Start: "-" + dir})
	n.guard = watch(t, e.PID)
	return n
}

func (n *node) tell(t *testing.T, o order) event {
	t.Helper()
	e := n.ask(t, o)
	if e.Err != "" {
		t.Fatalf("%s: %s", e.What, e.Err)
	}
	return e
}

func (n *node) ask(t *testing.T, o order) event {
	t.Helper()
	n.send(t, o)
	return n.event(t)
}

func (n *node) send(t *testing.T, o order) {
	t.Helper()
	if err := n.in.Encode(o); err != nil {
		t.Fatal(err)
	}
}

func (n *node) event(t *testing.T) event {
	t.Helper()
	select {
	case e, ok := <-n.evs:
		if !ok {
			t.Fatal("node stand-in ended")
		}
		return e
	case <-time.After(patience):
		t.Fatal("node stand-in does not answer")
	}
	return event{}
}

// child runs a command under the node's guard and waits until it stands.
func (n *node) child(t *testing.T, modes ...string) process {
	t.Helper()
	n.tell(t, order{Spawn: childArgv(modes...)})
	return n.out.up(t)
}

func childArgv(modes ...string) []string {
	return append([]string{"/proc/self/exe", "stand-in", "child"}, modes...)
}

// closerServer is where the "report" closer reports.
type closerServer struct {
	path   string
	calls  chan closing
	mu     sync.Mutex
	answer string // "" does not answer
}

func newCloserServer(t *testing.T, answer string) *closerServer {
	t.Helper()
	dir, err := os.MkdirTemp("", "miw")
	if err != nil {
		t.Fatal(err)
	}
	s := &closerServer{path: filepath.Join(dir, "s"), calls: make(chan closing, 1024), answer: answer}
	l, err := net.Listen("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				var c closing
				if json.NewDecoder(conn).Decode(&c) != nil {
					return
				}
				s.calls <- c
				s.mu.Lock()
				a := s.answer
				s.mu.Unlock()
				if a == "" {
					io.Copy(io.Discard, conn)
					return
				}
				fmt.Fprintln(conn, a)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait(); os.RemoveAll(dir) })
	return s
}

func (s *closerServer) call(t *testing.T) closing {
	t.Helper()
	select {
	case c := <-s.calls:
		return c
	case <-time.After(patience):
		t.Fatal("the closer was not called")
	}
	return closing{}
}

func (s *closerServer) none(t *testing.T) {
	t.Helper()
	select {
	case c := <-s.calls:
		t.Fatalf("the closer was called: %+v", c)
	default:
	}
}

// feed allows a minute and names the session to close.
func (s *closerServer) feed(ttl time.Duration) order {
	return order{Feed: &feedOrder{Stop: time.Minute, Kill: time.Minute, TTL: ttl, Session: "s1", Socket: s.path}}
}

// lastFeed feeds the node's guard and returns when the guard has it: what the node could still do is done. It says when it was.
func (n *node) lastFeed(t *testing.T, s *closerServer, stop, kill time.Duration) time.Duration {
	t.Helper()
	at := guard.BootTime()
	n.tell(t, order{Feed: &feedOrder{Stop: stop, Kill: kill, TTL: time.Minute, Session: "s1", Socket: s.path}})
	n.ask(t, order{Spawn: []string{"true"}}) // it answers in order
	return at
}

// awaitBoot waits for an instant of the guard's clock.
func awaitBoot(t *testing.T, at time.Duration) {
	t.Helper()
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}, nil); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := unix.Read(fd, make([]byte, 8)); err != unix.EINTR {
			return
		}
	}
}

// pick is few rounds where time is short, or processes are slow: each start of one costs the race detector a fifth of a second.
func pick(few, many int) int {
	if testing.Short() || raceEnabled {
		return few
	}
	return many
}

// logWriter sends what processes write to stderr to the test's log.
func logWriter(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for s := bufio.NewScanner(r); s.Scan(); {
			t.Log(strings.TrimSpace(s.Text()))
		}
	})
	t.Cleanup(func() { w.Close(); wg.Wait(); r.Close() })
	return w
}
