//go:build linux

package guard_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/miwnode/miwnode/guard"
)

// The test binary is everything: the test, its guards and their shims, the nodes that are killed, and the commands.
func TestMain(m *testing.M) {
	guard.RegisterCloser("report", reportCloser)
	guard.Main()
	if len(os.Args) > 2 && os.Args[1] == "stand-in" {
		switch os.Args[2] {
		case "node":
			nodeMain()
		case "child":
			childMain(os.Args[3:])
		case "nested":
			nestedMain()
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// reportCloser tells the test (at the unix socket in Param) that it was called, and does what the test answers.
func reportCloser(ctx context.Context, s guard.Session) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", s.Param)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := json.NewEncoder(conn).Encode(closing{ID: s.ID, At: guard.BootTime(), PID: os.Getpid()}); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if answer = strings.TrimSpace(answer); answer != "closed" {
		return errors.New(answer)
	}
	return nil
}

type closing struct {
	ID  string
	At  time.Duration
	PID int
}

// order is what the test tells a node stand-in; event is what that answers.
type order struct {
	Start  string // folder; "-" is none
	Spawn  []string
	Feed   *feedOrder
	Close  bool
	Wait   int // a run's PID: say when it has ended
	Signal *signalOrder
	Become []string // another program in the same process
}

type feedOrder struct {
	Stop, Kill time.Duration // from now
	TTL        time.Duration
	Session    string
	Socket     string
}

type signalOrder struct {
	PID    int
	Signal int
	Stop   time.Duration
}

type event struct {
	What   string
	PID    int
	Status guard.Status
	Err    string
	Code   int
}

// nodeMain is a node stand-in: it has a guard, takes orders on stdin and reports on stdout. Its commands' stdout is its
// descriptor 3.
func nodeMain() {
	var g *guard.Guard
	procs := map[int]*guard.Process{}
	out := json.NewEncoder(os.Stdout)
	say := func(e event, err error) {
		if err != nil {
			e.Err, e.Code = err.Error(), guard.ExitCode(err)
		}
		out.Encode(e)
	}
	commandOut := os.NewFile(3, "commands")
	in := json.NewDecoder(os.Stdin)
	for {
		var o order
		if in.Decode(&o) != nil {
			return
		}
		switch {
		case o.Start != "":
			var err error
			g, err = guard.Start(guard.Config{Dir: strings.TrimPrefix(o.Start, "-"), StopBudget: 200 * time.Millisecond})
			e := event{What: "start"}
			if err == nil {
				e.PID = g.PID()
			}
			say(e, err)
		case o.Spawn != nil:
			p, err := g.Spawn(context.Background(), guard.Spec{Argv: o.Spawn, Stdout: commandOut, Stderr: os.Stderr, Key: "k", Token: 7})
			e := event{What: "spawn"}
			if err == nil {
				e.PID = p.PID()
				procs[e.PID] = p
			}
			say(e, err)
		case o.Feed != nil:
			now := guard.BootTime()
			f := guard.Feed{StopAt: now + o.Feed.Stop, KillAt: now + o.Feed.Kill}
			if o.Feed.Session != "" {
				f.Session = &guard.Session{ID: o.Feed.Session, TTL: o.Feed.TTL, Closer: "report", Param: o.Feed.Socket}
			}
			say(event{What: "feed"}, g.Feed(f))
		case o.Signal != nil && o.Signal.Stop != 0:
			say(event{What: "stop"}, procs[o.Signal.PID].Stop(o.Signal.Stop))
		case o.Signal != nil:
			say(event{What: "signal"}, procs[o.Signal.PID].Signal(syscall.Signal(o.Signal.Signal)))
		case o.Wait != 0:
			s, err := procs[o.Wait].Wait(context.Background())
			say(event{What: "wait", PID: o.Wait, Status: s}, err)
		case o.Become != nil:
			say(event{What: "become"}, nil)
			say(event{What: "become"}, syscall.Exec(o.Become[0], o.Become, nil))
		case o.Close:
			say(event{What: "close"}, g.Close(context.Background()))
		}
	}
}

// nestedMain is a command that has a guard and commands of its own, as exec under exec does.
func nestedMain() {
	g, err := guard.Start(guard.Config{})
	if err == nil {
		err = g.Feed(guard.Feed{StopAt: guard.BootTime() + time.Minute, KillAt: guard.BootTime() + time.Minute})
	}
	if err == nil {
		_, err = g.Spawn(context.Background(), guard.Spec{Argv: childArgv("name=inner", "+", "name=kin", "setsid", "orphan"), Stdout: os.Stdout, Stderr: os.Stderr})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nested:", err)
		return
	}
	for {
		unix.Poll(nil, -1)
	}
}

// childMain is a command. Its arguments are modes; "+" begins a child of its own with the modes that follow. It says that it
// stands, and as who, on stdout, which it keeps open: the end of that pipe is the end of all of them.
//
//	exit=N       end with this code        die=N        end by this signal
//	ignore-term  do not mind TERM          term=N       end with this code on TERM
//	say-term     say so when TERM comes
//	orphan       (of a child) started by a process that ends at once
//	setsid       (of a child) in a session of its own
//	wipe         (of a child) with an empty environment
//	env=NAME     say this variable's value echo         copy stdin to stdout
//	dir          say the working directory fds          say which descriptors are open
//
// It stands only when its children do.
func childMain(args []string) {
	if slices.Contains(args, "ready") {
		unix.CloseOnExec(3)
	}
	modes, rest := args, []string(nil)
	if i := slices.Index(args, "+"); i >= 0 {
		modes, rest = args[:i], args[i:]
	}
	has := func(name string) (string, bool) {
		for _, m := range modes {
			if k, v, _ := strings.Cut(m, "="); k == name {
				return v, true
			}
		}
		return "", false
	}
	if _, ok := has("ignore-term"); ok {
		signal.Ignore(syscall.SIGTERM)
	}
	if v, ok := has("term"); ok {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		go func() {
			<-c
			code, _ := strconv.Atoi(v)
			os.Exit(code)
		}()
	}
	if _, ok := has("say-term"); ok {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		go func() {
			for range c {
				fmt.Println("told")
			}
		}()
	}
	if v, ok := has("env"); ok {
		fmt.Printf("env %s=%s\n", v, os.Getenv(v))
	}
	if _, ok := has("dir"); ok {
		dir, _ := os.Getwd()
		fmt.Printf("dir %s\n", dir)
	}
	if _, ok := has("fds"); ok {
		list, _ := os.ReadDir("/proc/self/fd")
		for _, e := range list {
			if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/proc/") && !strings.HasPrefix(target, "/sys/fs/cgroup/") {
				// The others are this process's own runtime's.
				fmt.Printf("fd %s %s\n", e.Name(), target)
			}
		}
	}
	for len(rest) > 0 {
		group := rest[1:]
		if i := slices.Index(group, "+"); i >= 0 {
			group, rest = group[:i], group[i:]
		} else {
			rest = nil
		}
		startChild(group)
	}
	if _, ok := has("relay"); ok {
		return
	}
	name := "child"
	if v, ok := has("name"); ok {
		name = v
	}
	fmt.Printf("up %s %d\n", name, os.Getpid())
	if _, ok := has("ready"); ok {
		unix.Close(3)
	}
	if _, ok := has("echo"); ok {
		s := bufio.NewScanner(os.Stdin)
		for s.Scan() {
			fmt.Printf("echo %s\n", s.Text())
		}
		fmt.Fprintln(os.Stderr, "stdin ended")
	}
	if v, ok := has("exit"); ok {
		code, _ := strconv.Atoi(v)
		os.Exit(code)
	}
	if v, ok := has("die"); ok {
		n, _ := strconv.Atoi(v)
		unix.Kill(os.Getpid(), unix.Signal(n))
	}
	for {
		unix.Poll(nil, -1)
	}
}

func startChild(modes []string) {
	cmd := &exec.Cmd{Path: "/proc/self/exe", Stdout: os.Stdout, Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{}}
	own := slices.DeleteFunc(slices.Clone(modes), func(m string) bool { return m == "orphan" || m == "setsid" || m == "wipe" })
	if slices.Contains(modes, "wipe") {
		cmd.Env = []string{"PATH=/bin"}
	}
	if slices.Contains(modes, "orphan") {
		// A relay in between ends at once and leaves its child without a parent.
		left := slices.DeleteFunc(slices.Clone(modes), func(m string) bool { return m == "orphan" })
		cmd.Args = append([]string{os.Args[0], "stand-in", "child", "relay", "+"}, left...)
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "relay:", err)
		}
		return
	}
	r, w, err := os.Pipe()
	if err != nil {
		fmt.Fprintln(os.Stderr, "start child:", err)
		return
	}
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr.Setsid = slices.Contains(modes, "setsid")
	cmd.Args = append([]string{os.Args[0], "stand-in", "child", "ready"}, own...)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "start child:", err)
	}
	w.Close()
	r.Read(make([]byte, 1)) // its end says that the child stands
	r.Close()
}
