//go:build linux

package node_test

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

	"golang.org/x/sys/unix"

	"github.com/miwnode/miwnode/guard"
	"github.com/miwnode/miwnode/node"
)

// soon is what a hand-over by proof may take on a machine that is busy with other things. The session's TTL is three times that.
const soon = 10 * time.Second

// A program that embeds a node and calls guard.Main is killed: its successor runs within milliseconds, or an election if it led.
// What the guard says then has the level and the format of the program's log.
func TestProcess_Crash(t *testing.T) {
	all := startPrograms(t, func(s *settings) {
		s.LogLevel = map[string]string{"n1": "error", "n2": "info", "n3": "info"}[s.ID]
		s.LogJSON = s.ID == "n3"
	})
	follower, other, leader := all[0], all[1], all[2]
	_ = other
	follower.work()
	first := follower.says("began").Token
	_, left := follower.theGuard()
	leader.work()
	awaitWaiter(t, leader)

	died := follower.kill()
	next := leader.says("began")
	took(t, "follower killed", died, next)
	if next.Token <= first {
		t.Errorf("token %d after %d", next.Token, first)
	}
	awaitExit(t, left)
	follower.guardSpoke()

	again := startProgram(t, programRole, follower.s)
	again.says("ready")
	again.work()
	awaitWaiter(t, again)
	_, left = leader.theGuard()
	died = leader.kill()
	took(t, "leader killed", died, again.says("began"))
	awaitExit(t, left)
	leader.guardSpoke()
}

// took prints a gap and holds it against soon.
func took(t *testing.T, what string, died time.Duration, next said) {
	t.Helper()
	gap := next.At - died
	t.Logf("%s: the successor ran after %v", what, gap.Round(100*time.Microsecond))
	if gap > soon {
		t.Errorf("%s: the successor ran after %v, want less than %v", what, gap, soon)
	}
}

// guardSpoke holds what the guard of a dead program has written against the program's level and format.
func (p *program) guardSpoke() {
	p.t.Helper()
	spoke := `msg="guard: owner died`
	if p.s.LogJSON {
		spoke = `"msg":"guard: owner died`
	}
	<-p.logEnded
	if got, want := strings.Contains(p.text(), spoke), p.s.LogLevel != "error"; got != want {
		p.t.Errorf("at level %s the guard's %s is there: %v, want %v:\n%s", p.s.LogLevel, spoke, got, want, p.text())
	}
}

// Program and guard are killed together: the restart on the same folder proves the death, with nothing left to wait for.
func TestProcess_CrashWithGuard(t *testing.T) {
	all := startPrograms(t, nil)
	holder, next := all[0], all[2]
	holder.work()
	holder.says("began")
	next.work()
	awaitWaiter(t, next)
	pid, left := holder.theGuard()
	if err := errors.Join(holder.cmd.Process.Signal(syscall.SIGSTOP), unix.Kill(pid, unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	awaitExit(t, left)
	holder.kill()
	<-holder.done
	again := startProgram(t, programRole, holder.s)
	at := guard.BootTime()
	took(t, "program and guard killed, restarted", at, next.says("began"))
	again.says("ready")
}

// A graceful leave hands over and leaves no guard behind.
func TestProcess_Leave(t *testing.T) {
	all := startPrograms(t, nil)
	holder, next := all[0], all[1]
	holder.work()
	holder.says("began")
	next.work()
	awaitWaiter(t, next)
	pid, left := holder.theGuard()
	t.Logf("the guard at rest: %s", residentMemory(t, pid))
	if err := holder.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	next.says("began")
	if line := holder.says("left"); line.Err != "<nil>" {
		t.Errorf("Run returned %s", line.Err)
	}
	awaitExit(t, left)
	<-holder.done
	if code := holder.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("code %d, want 0", code)
	}
}

// The work is a command, spawned in the first moment of the first grant. It dies with its program, before anybody is granted the
// lease.
func TestProcess_Command(t *testing.T) {
	all := startPrograms(t, func(s *settings) { s.Command = true })
	holder, next := all[0], all[1]
	holder.work()
	holder.says("began")
	next.work()
	awaitWaiter(t, next)
	died := holder.kill()
	took(t, "program with a command killed", died, next.says("began"))
}

// A program that never called guard.Main works. It says what that costs, and refuses commands.
func TestProcess_Unguarded(t *testing.T) {
	s := settings{ID: "n1", Dir: t.TempDir(), Bind: "127.0.0.1:0", TTL: 10 * time.Second, Lock: filepath.Join(t.TempDir(), "observer")}
	p := startProgram(t, unguardedRole, s)
	p.says("ready")
	p.work()
	p.says("began")
	p.logs("no guard process: if this process crashes, what it holds is free only after the session's TTL or the restart, and commands are refused")
	p.logs("guard.Main")
	if pids := p.guards(); len(pids) != 0 {
		t.Errorf("there are guards: %v", pids)
	}
	p.kill()
	<-p.done

	s.Command = true
	p = startProgram(t, unguardedRole, s)
	p.says("ready")
	p.work()
	if line := p.refused(); !strings.Contains(line.Err, "commands are refused without a guard") || !strings.Contains(line.Err, "guard.Main") {
		t.Errorf("refused with %q", line.Err)
	}
}

// Several nodes in one process have a guard each.
func TestNode_Guards(t *testing.T) {
	dir := t.TempDir()
	binds := freePorts(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var nodes []*node.Node
	for i, bind := range binds {
		n, err := node.New(node.Config{DataDir: filepath.Join(dir, fmt.Sprint(i)), Bind: bind, Join: binds, BootstrapExpect: 2})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	limit, stop := context.WithTimeout(t.Context(), programPatience)
	defer stop()
	// Asked for before there is a guard, let alone a session.
	spawned := make(chan error, len(nodes))
	for _, n := range nodes {
		wg.Go(func() {
			p, err := n.Spawn(limit, guard.Spec{Argv: []string{"sh", "-c", "exit 3"}})
			if err == nil {
				var status guard.Status
				if status, err = p.Wait(limit); err == nil && status.Code != 3 {
					err = fmt.Errorf("the command ended: %v", status)
				}
			}
			spawned <- err
		})
		wg.Go(func() {
			if err := n.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	for range nodes {
		if err := <-spawned; err != nil {
			t.Error(err)
		}
	}
	self := &program{t: t, s: settings{ID: "the test"}}
	self.pid = os.Getpid()
	if pids := self.guards(); len(pids) != 2 {
		t.Errorf("guards %v, want two", pids)
	}
	cancel()
	wg.Wait()
	if pids := self.guards(); len(pids) != 0 {
		t.Errorf("guards %v are left", pids)
	}
	if _, err := nodes[0].Spawn(t.Context(), guard.Spec{Argv: []string{"true"}}); !errors.Is(err, guard.ErrClosed) {
		t.Errorf("a node that has left spawns: %v", err)
	}

	// Made anew on the same folders, in the same process.
	again, leave := context.WithCancel(t.Context())
	for i, bind := range binds {
		n, err := node.New(node.Config{DataDir: filepath.Join(dir, fmt.Sprint(i)), Bind: bind, Join: binds})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := n.Run(again); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := n.Spawn(limit, guard.Spec{Argv: []string{"true"}}); err != nil {
				t.Error(err)
			}
			spawned <- nil
		})
	}
	for range binds {
		<-spawned
	}
	leave()
	wg.Wait()
}

// awaitWaiter waits until the program's instance stands in the queue of the work.
func awaitWaiter(t *testing.T, p *program) {
	t.Helper()
	p.says("queued")
}

// residentMemory is a line of the process's status.
func residentMemory(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
