//go:build linux

package guard_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/guard"
)

// start makes this test process a node with a guard, fed for a minute.
func start(t *testing.T, cfg guard.Config) *guard.Guard {
	t.Helper()
	cfg.Stderr = logWriter(t)
	g, err := guard.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	proc := watch(t, g.PID())
	t.Cleanup(func() {
		if err := g.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
		proc.awaitGone(t, "guard")
	})
	feed(t, g, time.Minute, time.Minute)
	return g
}

func feed(t *testing.T, g *guard.Guard, stop, kill time.Duration) {
	t.Helper()
	now := guard.BootTime()
	if err := g.Feed(guard.Feed{StopAt: now + stop, KillAt: now + kill}); err != nil {
		t.Fatal(err)
	}
}

func spawn(t *testing.T, g *guard.Guard, s guard.Spec) *guard.Process {
	t.Helper()
	p, err := g.Spawn(t.Context(), s)
	if err != nil {
		t.Fatalf("spawn %v: %v", s.Argv, err)
	}
	return p
}

func wait(t *testing.T, p *guard.Process) guard.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("command %d did not end: %v", p.PID(), err)
	}
	return s
}

// Ensure the caller learns how the command ended, as a shell would say it.
func TestProcess_ExitCode(t *testing.T) {
	g := start(t, guard.Config{})
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	noInterpreter := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(noInterpreter, []byte("#!/no/such/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		argv []string
		want int
		is   error
	}{
		{childArgv("exit=0"), 0, nil},
		{childArgv("exit=3"), 3, nil},
		{childArgv("die=9"), 137, nil},
		{childArgv("die=15"), 143, nil},
		{[]string{"sh", "-c", "exit 41"}, 41, nil},
		{[]string{plain}, 126, guard.ErrNotExecutable},
		{[]string{t.TempDir()}, 126, guard.ErrNotExecutable},
		{[]string{noInterpreter}, 126, guard.ErrNotExecutable},
		{[]string{"/no/such/command"}, 127, guard.ErrNotFound},
		{[]string{"no-such-command-anywhere"}, 127, guard.ErrNotFound},
	} {
		p, err := g.Spawn(t.Context(), guard.Spec{Argv: test.argv})
		got := guard.ExitCode(err)
		if err == nil {
			got = wait(t, p).ExitCode()
		}
		if got != test.want || !errors.Is(err, test.is) {
			t.Errorf("%v: code %d, error %v; want %d, %v", test.argv, got, err, test.want, test.is)
		}
	}
}

// Ensure a command gets what its Spec says, and nothing else.
func TestProcess_Spec(t *testing.T) {
	g := start(t, guard.Config{})
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	out, errs := newOutput(t), newOutput(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := spawn(t, g, guard.Spec{
		Argv: childArgv("env=MIW_TOKEN", "env=MIW_GUARD_ROLE", "dir", "fds", "echo", "exit=0"),
		Env:  []string{"MIW_TOKEN=7", "GOMEMLIMIT=off", "MIW_GUARD_ROLE=guard"}, Dir: dir, Stdin: r, Stdout: out.w, Stderr: errs.w,
	})
	fmt.Fprintln(w, "hello")
	w.Close()
	for _, want := range []string{"env MIW_TOKEN=7", "dir " + dir, "fd 0 pipe", "fd 1 pipe", "fd 2 pipe", fmt.Sprintf("up child %d", p.PID()), "echo hello"} {
		if got := out.line(t); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := errs.line(t); got != "stdin ended" {
		t.Errorf("stderr says %q", got)
	}
	if s := wait(t, p); s != (guard.Status{Reason: guard.ReasonExited}) {
		t.Errorf("status %+v, want code 0 by itself", s)
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal after the end: %v, want os.ErrProcessDone", err)
	}
}

// Ensure an environment that would break a Go program's runtime reaches the command as it is.
func TestProcess_HostileEnvironment(t *testing.T) {
	g := start(t, guard.Config{})
	out := newOutput(t)
	p := spawn(t, g, guard.Spec{Argv: []string{"/bin/sh", "-c", `echo "$GOMEMLIMIT $GODEBUG"`}, Env: []string{"GOMEMLIMIT=rubbish", "GODEBUG=rubbish"}, Stdout: out.w})
	if got, want := out.line(t), "rubbish rubbish"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	wait(t, p)
}

// Ensure a big environment and many arguments pass.
func TestProcess_BigEnvironment(t *testing.T) {
	g := start(t, guard.Config{})
	env := []string{"PATH=/bin:/usr/bin"}
	for i := range 20 {
		env = append(env, fmt.Sprintf("V%d=%s", i, strings.Repeat("x", 20_000)))
	}
	out := newOutput(t)
	p := spawn(t, g, guard.Spec{Argv: []string{"sh", "-c", "echo ${#V19}"}, Env: env, Stdout: out.w})
	if got := out.line(t); got != "20000" {
		t.Errorf("got %q, want 20000", got)
	}
	wait(t, p)
}

// Ensure Stop ends a command and all it started, with TERM first, and KILL for what does not mind.
func TestProcess_Stop(t *testing.T) {
	g := start(t, guard.Config{})
	for _, test := range []struct {
		name   string
		modes  []string
		count  int
		budget time.Duration
		want   guard.Status
	}{
		{"minds TERM", []string{"term=5"}, 1, time.Minute, guard.Status{Code: 5, Reason: guard.ReasonStopped}},
		{"dies of TERM", nil, 1, time.Minute, guard.Status{Code: -1, Signal: syscall.SIGTERM, Reason: guard.ReasonStopped}},
		{"ignores TERM", []string{"ignore-term"}, 1, 100 * time.Millisecond, guard.Status{Code: -1, Signal: syscall.SIGKILL, Reason: guard.ReasonStopped, Killed: true}},
		{"at once", []string{"term=5"}, 1, -1, guard.Status{Code: -1, Signal: syscall.SIGKILL, Reason: guard.ReasonStopped, Killed: true}},
		{"with descendants that mind", []string{"term=5", "+", "name=a", "+", "name=b", "setsid", "+", "name=c", "setsid", "orphan", "+", "name=d", "setsid", "orphan", "wipe"}, 5, time.Minute, guard.Status{Code: 5, Reason: guard.ReasonStopped}},
		{"with descendants that do not", []string{"term=5", "+", "name=a", "ignore-term", "+", "name=b", "setsid", "ignore-term", "+", "name=c", "setsid", "orphan", "wipe", "ignore-term"}, 4, 200 * time.Millisecond, guard.Status{Code: 5, Reason: guard.ReasonStopped, Killed: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := newOutput(t)
			p := spawn(t, g, guard.Spec{Argv: childArgv(test.modes...), Stdout: out.w})
			all := out.ups(t, test.count)
			if err := p.Stop(test.budget); err != nil {
				t.Fatal(err)
			}
			if s := wait(t, p); s != test.want {
				t.Errorf("status %+v, want %+v", s, test.want)
			}
			for name, c := range all {
				if !c.gone(0) {
					t.Errorf("%s lived when the end was reported", name)
				}
			}
		})
	}
}

// Ensure a stopped command can still end the gentle way.
func TestProcess_StopOfAStopped(t *testing.T) {
	g := start(t, guard.Config{})
	out := newOutput(t)
	p := spawn(t, g, guard.Spec{Argv: childArgv("term=5", "+", "name=a", "setsid", "orphan"), Stdout: out.w})
	for _, c := range out.ups(t, 2) {
		c.kill(t, syscall.SIGSTOP)
	}
	p.Stop(time.Minute)
	if s, want := wait(t, p), (guard.Status{Code: 5, Reason: guard.ReasonStopped}); s != want {
		t.Errorf("status %+v, want %+v", s, want)
	}
	out.ended(t)
}

// Ensure a command that ends by itself takes with it what it left behind, and no other command.
func TestProcess_LeavesOthersBehind(t *testing.T) {
	g := start(t, guard.Config{StopBudget: 100 * time.Millisecond})
	bystander, out := newOutput(t), newOutput(t)
	other := spawn(t, g, guard.Spec{Argv: childArgv("+", "name=kin", "setsid", "orphan"), Stdout: bystander.w})
	kin := bystander.ups(t, 2)
	p := spawn(t, g, guard.Spec{Argv: childArgv("exit=3", "+", "name=a", "+", "name=b", "ignore-term", "setsid", "+", "name=c", "setsid", "orphan"), Stdout: out.w})
	all := out.ups(t, 4)
	if s, want := wait(t, p), (guard.Status{Code: 3, Reason: guard.ReasonExited, Killed: true}); s != want {
		t.Errorf("status %+v, want %+v", s, want)
	}
	out.ended(t)
	for name, c := range all {
		if !c.gone(0) {
			t.Errorf("%s lived when the end was reported", name)
		}
	}
	for name, c := range kin {
		if c.gone(0) {
			t.Errorf("%s of another command was killed", name)
		}
	}
	other.Stop(-1)
	wait(t, other)
	bystander.ended(t)
}

// Ensure no command starts without a lease, and none runs past it.
func TestProcess_Feed(t *testing.T) {
	g, err := guard.Start(guard.Config{Stderr: logWriter(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close(context.Background())
	watch(t, g.PID())
	if _, err := g.Spawn(t.Context(), guard.Spec{Argv: childArgv()}); !errors.Is(err, guard.ErrNotFed) {
		t.Errorf("Spawn without a feed: %v, want ErrNotFed", err)
	}
	feed(t, g, time.Minute, time.Minute)
	out := newOutput(t)
	minds := spawn(t, g, guard.Spec{Argv: childArgv("term=5"), Stdout: out.w})
	stubborn := spawn(t, g, guard.Spec{Argv: childArgv("ignore-term"), Stdout: out.w})
	out.line(t)
	out.line(t)
	feed(t, g, time.Millisecond, 300*time.Millisecond)
	if s, want := wait(t, minds), (guard.Status{Code: 5, Reason: guard.ReasonDeadline}); s != want {
		t.Errorf("status %+v, want %+v", s, want)
	}
	// A renewal that comes too late spares nobody who was told to stop.
	feed(t, g, time.Minute, time.Minute)
	if s, want := wait(t, stubborn), (guard.Status{Code: -1, Signal: syscall.SIGKILL, Reason: guard.ReasonDeadline, Killed: true}); s != want {
		t.Errorf("status %+v, want %+v", s, want)
	}
	feed(t, g, time.Nanosecond, time.Minute)
	if _, err := g.Spawn(t.Context(), guard.Spec{Argv: childArgv()}); !errors.Is(err, guard.ErrNotFed) {
		t.Errorf("Spawn after StopAt: %v, want ErrNotFed", err)
	}
	for _, f := range []guard.Feed{{}, {StopAt: 2, KillAt: 1}, {StopAt: 1, KillAt: 2, Session: &guard.Session{}}} {
		if err := g.Feed(f); err == nil {
			t.Errorf("Feed(%+v) was taken", f)
		}
	}
}

// Ensure Spawn's caller may give up, and gets no command then.
func TestProcess_SpawnGivenUp(t *testing.T) {
	g := start(t, guard.Config{})
	out := newOutput(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Spawn(ctx, guard.Spec{Argv: childArgv("ignore-term"), Stdout: out.w}); !errors.Is(err, context.Canceled) {
		t.Errorf("Spawn: %v, want context.Canceled", err)
	}
	out.ended(t)
}

// Ensure fifty commands at once start, keep apart and end.
func TestProcess_Fifty(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		g := start(t, guard.Config{Dir: dir})
		out := newOutput(t)
		began := time.Now()
		var wg sync.WaitGroup
		count := pick(20, 50)
		for i := range count {
			wg.Go(func() {
				p, err := g.Spawn(t.Context(), guard.Spec{Argv: []string{"sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i)}, Stdout: out.w})
				if err != nil {
					t.Errorf("spawn %d: %v", i, err)
					return
				}
				if s := wait(t, p); s != (guard.Status{Code: i, Reason: guard.ReasonExited}) {
					t.Errorf("command %d: %+v", i, s)
				}
			})
		}
		wg.Wait()
		t.Logf("%d commands started and ended in %v", count, time.Since(began))
		out.ended(t)
	}
}

// Ensure Close leaves no process, whatever runs.
func TestProcess_Close(t *testing.T) {
	g := start(t, guard.Config{Dir: t.TempDir(), StopBudget: 100 * time.Millisecond})
	out := newOutput(t)
	p := spawn(t, g, guard.Spec{Argv: childArgv("+", "name=a", "ignore-term", "setsid"), Stdout: out.w})
	all := out.ups(t, 2)
	proc := watch(t, g.PID())
	if err := g.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !proc.gone(0) {
		t.Error("the guard lives after Close")
	}
	for name, c := range all {
		if !c.gone(0) {
			t.Errorf("%s lives after Close", name)
		}
	}
	if s := wait(t, p); s.Reason != guard.ReasonStopped {
		t.Errorf("status %+v, want stopped", s)
	}
	out.ended(t)
	if _, err := g.Spawn(t.Context(), guard.Spec{Argv: childArgv()}); !errors.Is(err, guard.ErrClosed) {
		t.Errorf("Spawn after Close: %v, want ErrClosed", err)
	}
	if err := g.Feed(guard.Feed{StopAt: 1, KillAt: 1}); !errors.Is(err, guard.ErrClosed) {
		t.Errorf("Feed after Close: %v, want ErrClosed", err)
	}
}

// Ensure Close with an impatient context kills, and leaves no process either.
func TestProcess_CloseImpatient(t *testing.T) {
	g := start(t, guard.Config{StopBudget: time.Hour})
	out := newOutput(t)
	spawn(t, g, guard.Spec{Argv: childArgv("ignore-term", "+", "name=a", "ignore-term", "setsid"), Stdout: out.w})
	out.ups(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close: %v, want context.Canceled", err)
	}
	out.ended(t)
}

// Ensure neither the node nor its guard collects descriptors, whatever becomes of the commands.
func TestProcess_Descriptors(t *testing.T) {
	if raceEnabled {
		t.Skip("counts no races, and takes long with the race detector")
	}
	g := start(t, guard.Config{Dir: t.TempDir()})
	round := func() {
		for _, s := range []guard.Spec{{Argv: childArgv("exit=0"), Stdin: os.Stdin, Stderr: os.Stderr}, {Argv: []string{"/no/such/command"}, Stderr: os.Stderr}, {Argv: []string{"true"}, Dir: "/no/such/folder"}} {
			if p, err := g.Spawn(t.Context(), s); err == nil {
				wait(t, p)
			}
		}
	}
	round()
	ours, theirs := fds(t, os.Getpid()), fds(t, g.PID())
	for range 6 {
		round()
	}
	// Six rounds of three commands: a leak is at least six. A look at /proc may be under way.
	if now := fds(t, os.Getpid()); len(now) > len(ours)+5 {
		t.Errorf("the node has\n%s\nand had\n%s", strings.Join(now, "\n"), strings.Join(ours, "\n"))
	}
	if now := fds(t, g.PID()); len(now) > len(theirs)+5 {
		t.Errorf("the guard has\n%s\nand had\n%s", strings.Join(now, "\n"), strings.Join(theirs, "\n"))
	}
}

// fds lists what a process has open.
func fds(t *testing.T, pid int) (open []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		target, _ := os.Readlink(dir + e.Name())
		open = append(open, e.Name()+" "+target)
	}
	return open
}

// Ensure the guard is small.
func TestProcess_Memory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector is not small")
	}
	g := start(t, guard.Config{})
	for range 20 {
		wait(t, spawn(t, g, guard.Spec{Argv: []string{"true"}}))
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", g.PID()))
	if err != nil {
		t.Skip(err)
	}
	var rss, anon int
	for line := range strings.Lines(string(b)) {
		fmt.Sscanf(line, "Rss: %d", &rss)
		fmt.Sscanf(line, "Anonymous: %d", &anon)
	}
	t.Logf("resident %.1f MB, of which the guard's own %.1f MB", float64(rss)/1024, float64(anon)/1024)
	if rss > 30<<10 {
		t.Errorf("resident %d kB", rss)
	}
}

// Ensure what Start can't do is said.
func TestStart_Refused(t *testing.T) {
	if _, err := guard.Start(guard.Config{StopBudget: -1, LeftoverTimeout: -1}); err == nil || !strings.Contains(err.Error(), "StopBudget") || !strings.Contains(err.Error(), "LeftoverTimeout") {
		t.Errorf("got %v, want both fields named", err)
	}
	if _, err := guard.Start(guard.Config{Dir: "/no/such/folder", Stderr: logWriter(t)}); !errors.Is(err, os.ErrNotExist) && (err == nil || !strings.Contains(err.Error(), "no such file")) {
		t.Errorf("got %v, want no such file", err)
	}
	g := start(t, guard.Config{})
	for _, s := range []guard.Spec{{}, {Argv: []string{""}}, {Argv: []string{"a\x00b"}}, {Argv: []string{"a"}, Env: []string{"A=\x00"}}, {Argv: []string{"a"}, StopBudget: -1}} {
		if _, err := g.Spawn(t.Context(), s); err == nil {
			t.Errorf("Spawn(%+v) was taken", s)
		}
	}
}
