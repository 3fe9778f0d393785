//go:build linux

package guard_test

import (
	"syscall"
	"testing"
	"time"
)

// Ensure a machine that was frozen past KillAt kills the command at once, whoever of all of them goes on first: its handler of TERM
// never runs beside a successor.
func TestProcess_Frozen(t *testing.T) {
	for _, first := range []string{"command", "node", "guard", "watcher"} {
		t.Run(first+" goes on first", func(t *testing.T) {
			srv := newCloserServer(t, "closed")
			n := startNode(t, t.TempDir())
			n.tell(t, srv.feed(10*time.Second))
			child := n.child(t, "say-term")
			all := map[string]process{"command": child, "node": n.process, "guard": n.guard, "watcher": n.watcher(t)}
			fed := n.lastFeed(t, srv, time.Second, 1200*time.Millisecond)
			for _, name := range []string{"node", "guard", "watcher", "command"} {
				all[name].kill(t, syscall.SIGSTOP)
			}
			awaitBoot(t, fed+1500*time.Millisecond)
			all[first].kill(t, syscall.SIGCONT)
			for name, p := range all {
				// Who went on first may have ended the command by now.
				if err := syscall.Kill(p.pid, syscall.SIGCONT); err != nil && (name != "command" || err != syscall.ESRCH) {
					t.Fatalf("signal continued to the %s: %v", name, err)
				}
			}
			child.awaitGone(t, "command")
			n.tell(t, order{Close: true})
			n.endsUntold(t)
			srv.none(t)
		})
	}
}

// Ensure a guard that goes on after KillAt kills before it does anything that waited for it: a Stop that leaves time, a signal, and a
// feed that was made too late for what ran.
func TestProcess_GuardStopped_MuchWaits(t *testing.T) {
	srv := newCloserServer(t, "closed")
	n := startNode(t, t.TempDir())
	n.tell(t, srv.feed(10*time.Second))
	child := n.child(t, "say-term")
	fed := n.lastFeed(t, srv, time.Second, time.Second)
	n.watcher(t).kill(t, syscall.SIGSTOP) // or it would have killed by then
	n.guard.kill(t, syscall.SIGSTOP)
	awaitBoot(t, fed+1100*time.Millisecond)
	n.tell(t, order{Signal: &signalOrder{PID: child.pid, Signal: int(syscall.SIGTERM)}})
	n.tell(t, order{Signal: &signalOrder{PID: child.pid, Stop: time.Minute}})
	n.tell(t, srv.feed(10*time.Second))
	n.guard.kill(t, syscall.SIGCONT)
	child.awaitGone(t, "command")
	n.tell(t, order{Close: true})
	n.endsUntold(t)
}

// Ensure a feed that was made in time prolongs what runs, although a stopped guard reads it late.
func TestProcess_GuardStopped_FedInTime(t *testing.T) {
	srv := newCloserServer(t, "closed")
	n := startNode(t, t.TempDir())
	n.tell(t, srv.feed(10*time.Second))
	child := n.child(t, "say-term")
	fed := n.lastFeed(t, srv, 3*time.Second, 3*time.Second)
	watcher := n.watcher(t)
	watcher.kill(t, syscall.SIGSTOP)
	n.guard.kill(t, syscall.SIGSTOP)
	n.tell(t, srv.feed(10*time.Second))
	awaitBoot(t, fed+2*time.Second) // the node writes it on a goroutine of its own
	n.kill(t, syscall.SIGSTOP)      // or it would take the guard for hung
	awaitBoot(t, fed+3100*time.Millisecond)
	n.guard.kill(t, syscall.SIGCONT)
	n.kill(t, syscall.SIGCONT)
	n.child(t) // the guard answers in order, and has told its watcher
	watcher.kill(t, syscall.SIGCONT)
	n.child(t)
	if child.gone(0) {
		t.Error("the command is gone")
	}
}
