//go:build linux

package guard_test

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/guard"
)

// Ensure a killed node's commands are gone at once, and that its session is closed after that and not before.
func TestProcess_NodeKilled(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		name := "no folder"
		if dir != "" {
			name = "folder"
		}
		t.Run(name, func(t *testing.T) {
			var all []time.Duration
			for range pick(1, 5) {
				srv := newCloserServer(t, "closed")
				n := startNode(t, dir)
				n.tell(t, srv.feed(10*time.Second))
				child := n.child(t)

				killed := guard.BootTime()
				n.kill(t, syscall.SIGKILL)
				child.awaitGone(t, "command")
				c := srv.call(t)
				if c.ID != "s1" {
					t.Errorf("closed session %q, want s1", c.ID)
				}
				if c.PID != n.guard.pid {
					t.Errorf("process %d closed the session, want the guard %d", c.PID, n.guard.pid)
				}
				all = append(all, c.At-killed)
				n.guard.awaitGone(t, "guard")
				srv.none(t)
			}
			slices.Sort(all)
			t.Logf("kill -9 of the node to the closing of its session, command gone: median %v, slowest %v", all[len(all)/2], all[len(all)-1])
			if all[0] > time.Second {
				t.Errorf("the fastest took %v, want well below a second", all[0])
			}
		})
	}
}

// Ensure everything a command started goes with the node: in the group, out of it, orphaned, without its environment.
func TestProcess_NodeKilled_Descendants(t *testing.T) {
	srv := newCloserServer(t, "closed")
	n := startNode(t, t.TempDir())
	n.tell(t, srv.feed(10*time.Second))
	n.tell(t, order{Spawn: childArgv("ignore-term", "name=top",
		"+", "name=group", "ignore-term",
		"+", "name=session", "setsid", "ignore-term",
		"+", "name=orphan", "orphan", "setsid",
		"+", "name=bare", "orphan", "setsid", "wipe", "ignore-term")})
	all := n.out.ups(t, 5)
	n.kill(t, syscall.SIGKILL)
	srv.call(t)
	for name, p := range all {
		if !p.gone(0) {
			t.Errorf("%s lived when the session was closed", name)
		}
	}
	n.out.ended(t)
	n.guard.awaitGone(t, "guard")
}

// Ensure a guard that can't reach anybody gives up when the session has run out by itself; the command is gone anyway.
func TestProcess_NodeKilled_NoNetwork(t *testing.T) {
	srv := newCloserServer(t, "no quorum")
	n := startNode(t, "")
	n.tell(t, srv.feed(600*time.Millisecond))
	child := n.child(t)
	killed := guard.BootTime()
	n.kill(t, syscall.SIGKILL)
	child.awaitGone(t, "command")
	n.guard.awaitGone(t, "guard")
	took := guard.BootTime() - killed
	if took < 600*time.Millisecond {
		t.Errorf("gave up after %v, want the session's 600ms", took)
	}
	tries := len(srv.calls)
	if tries < 2 {
		t.Errorf("tried %d times, want more", tries)
	}
	t.Logf("gave up after %v and %d tries", took, tries)
}

// Ensure TERM does not end a guard whose node lives, and that it then has two seconds for what is left.
func TestProcess_GuardTerminated(t *testing.T) {
	srv := newCloserServer(t, "") // never answers
	n := startNode(t, "")
	n.tell(t, srv.feed(time.Minute))
	child := n.child(t)
	n.guard.kill(t, syscall.SIGTERM)
	n.guard.kill(t, syscall.SIGINT)
	n.guard.kill(t, syscall.SIGHUP)
	// It still serves.
	second := n.child(t)
	if n.guard.gone(0) || child.gone(0) {
		t.Fatal("TERM ended the guard or its command, though the node lives")
	}
	killed := guard.BootTime()
	n.kill(t, syscall.SIGKILL)
	child.awaitGone(t, "command")
	second.awaitGone(t, "second command")
	srv.call(t)
	n.guard.awaitGone(t, "guard")
	if took := guard.BootTime() - killed; took < time.Second || took > 10*time.Second {
		t.Errorf("the guard ended %v after the node, want about two seconds", took)
	}
}

// Ensure a stopped node loses its commands by KillAt, but not its session: it is not dead.
func TestProcess_NodeStopped(t *testing.T) {
	srv := newCloserServer(t, "closed")
	n := startNode(t, t.TempDir())
	n.tell(t, srv.feed(10*time.Second))
	n.tell(t, order{Spawn: childArgv("ignore-term", "+", "name=session", "setsid", "ignore-term")})
	all := n.out.ups(t, 2)
	child, grandchild := all["child"], all["session"]
	fed := n.lastFeed(t, srv, 300*time.Millisecond, 600*time.Millisecond)
	n.kill(t, syscall.SIGSTOP)
	child.awaitGone(t, "command")
	grandchild.awaitGone(t, "grandchild")
	t.Logf("gone %v after the feed, KillAt was 600ms after it", guard.BootTime()-fed)
	if took := guard.BootTime() - fed; took < 500*time.Millisecond || took > 5*time.Second {
		t.Errorf("killed %v after the feed, want about 600ms", took)
	}
	n.kill(t, syscall.SIGCONT)
	e := n.tell(t, order{Wait: child.pid})
	if want := (guard.Status{Code: -1, Signal: syscall.SIGKILL, Reason: guard.ReasonDeadline, Killed: true}); e.Status != want {
		t.Errorf("status %+v, want %+v", e.Status, want)
	}
	// A new lease, a new command.
	n.tell(t, srv.feed(10*time.Second))
	n.child(t)
	srv.none(t)
	if n.guard.gone(0) {
		t.Error("the guard is gone")
	}
}

// Ensure a node that is killed while stopped is buried like any other.
func TestProcess_NodeStoppedThenKilled(t *testing.T) {
	srv := newCloserServer(t, "closed")
	n := startNode(t, "")
	n.tell(t, srv.feed(10*time.Second))
	child := n.child(t)
	n.kill(t, syscall.SIGSTOP)
	n.kill(t, syscall.SIGKILL)
	srv.call(t)
	child.awaitGone(t, "command")
	n.guard.awaitGone(t, "guard")
}

// Ensure a killed guard's commands are stopped by the node, grandchildren too, reported, and the guard replaced.
func TestProcess_GuardKilled(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		srv := newCloserServer(t, "closed")
		n := startNode(t, dir)
		n.tell(t, srv.feed(10*time.Second))
		n.tell(t, order{Spawn: childArgv("ignore-term", "+", "name=group", "ignore-term", "+", "name=session", "setsid", "+", "name=orphan", "orphan", "setsid")})
		all := n.out.ups(t, 4)
		n.send(t, order{Wait: all["child"].pid})
		killed := guard.BootTime()
		n.guard.kill(t, syscall.SIGKILL)
		e := n.event(t)
		t.Logf("reported %v after the guard's death", guard.BootTime()-killed)
		if want := (guard.Status{Code: -1, Signal: syscall.SIGKILL, Reason: guard.ReasonGuardDied, Killed: true}); e.Status != want {
			t.Errorf("status %+v, want %+v", e.Status, want)
		}
		for name, p := range all {
			if !p.gone(0) {
				t.Errorf("%s lived when its end was reported", name)
			}
		}
		srv.none(t)
		// The next guard knows the lease, and buries.
		next := nextChild(t, n)
		n.kill(t, syscall.SIGKILL)
		c := srv.call(t)
		watchIfAlive(t, c.PID)
		next.awaitGone(t, "command of the second guard")
	}
}

// nextChild spawns as soon as the guard is replaced.
func nextChild(t *testing.T, n *node) process {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		e := n.ask(t, order{Spawn: childArgv()})
		if e.Err == "" {
			return n.out.up(t)
		}
		if e.Err != guard.ErrGuardDied.Error() || time.Now().After(end) {
			t.Fatalf("spawn under the second guard: %s", e.Err)
		}
	}
}

func watchIfAlive(t *testing.T, pid int) {
	t.Helper()
	if syscall.Kill(pid, 0) == nil {
		watch(t, pid).awaitGone(t, "guard")
	}
}

// Ensure a stopped guard does not leave commands running when the node is cut off: the node sees that it does not answer.
func TestProcess_GuardStopped(t *testing.T) {
	n := startNode(t, "")
	srv := newCloserServer(t, "closed")
	n.tell(t, srv.feed(10*time.Second))
	n.tell(t, order{Spawn: childArgv("ignore-term", "+", "name=session", "setsid")})
	all := n.out.ups(t, 2)
	child, grandchild := all["child"], all["session"]
	n.lastFeed(t, srv, 1500*time.Millisecond, 1600*time.Millisecond)
	n.guard.kill(t, syscall.SIGSTOP)
	n.send(t, order{Wait: child.pid})
	if e := n.event(t); e.Status.Reason != guard.ReasonGuardDied {
		t.Errorf("status %+v, want that the guard died", e.Status)
	}
	child.awaitGone(t, "command")
	grandchild.awaitGone(t, "grandchild")
	n.guard.awaitGone(t, "guard")
}

// Ensure a pipe that ends without a death proves nothing: the commands have until their deadlines, and the session stays.
func TestProcess_PipeEndsNodeLives(t *testing.T) {
	srv := newCloserServer(t, "closed")
	n := startNode(t, t.TempDir())
	n.tell(t, srv.feed(10*time.Second))
	child := n.child(t, "ignore-term")
	fed := n.lastFeed(t, srv, 400*time.Millisecond, 500*time.Millisecond)
	n.tell(t, order{Become: []string{"/bin/sh", "-c", "while :; do read x </dev/zero; done"}})
	child.awaitGone(t, "command")
	if took := guard.BootTime() - fed; took < 400*time.Millisecond {
		t.Errorf("the command was killed after %v, want its 500ms", took)
	}
	srv.none(t)
	if n.gone(0) || n.guard.gone(0) {
		t.Fatal("the node or its guard is gone")
	}
	// It is the same process still, so its end is proof.
	n.kill(t, syscall.SIGKILL)
	srv.call(t)
	n.guard.awaitGone(t, "guard")
}

// Ensure a node that ends without a farewell is a dead one.
func TestProcess_NodeEndsWithoutClose(t *testing.T) {
	srv := newCloserServer(t, "closed")
	n := startNode(t, "")
	n.tell(t, srv.feed(10*time.Second))
	child := n.child(t)
	n.closeStdin() // its main returns
	srv.call(t)
	child.awaitGone(t, "command")
	n.guard.awaitGone(t, "guard")
}

// Ensure a node that said farewell is none: its guard ends quietly.
func TestProcess_NodeCloses(t *testing.T) {
	srv := newCloserServer(t, "closed")
	n := startNode(t, t.TempDir())
	n.tell(t, srv.feed(10*time.Second))
	child := n.child(t)
	n.send(t, order{Close: true})
	n.closeStdin()
	child.awaitGone(t, "command")
	n.guard.awaitGone(t, "guard")
	n.awaitGone(t, "node")
	srv.none(t)
}
