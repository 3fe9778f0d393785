//go:build linux

package guard_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/guard"
)

// watcher finds the watcher of the node's guard.
func (n *node) watcher(t *testing.T) process {
	t.Helper()
	pids := childrenOf(n.guard.pid, "miw-watch")
	if len(pids) != 1 {
		t.Fatalf("the guard has the watchers %v, want one", pids)
	}
	return watch(t, pids[0])
}

// childrenOf lists the children of a process that have the title.
func childrenOf(parent int, title string) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // gone meanwhile
		}
		p, err := guard.ParseStat(b)
		if err != nil || p.PPID != parent || p.State == 'Z' {
			continue
		}
		line, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
		if err == nil && strings.TrimRight(string(line), "\x00") == title {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// ignores tells whether a process ignores a signal.
func ignores(pid int, sig syscall.Signal) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), "SigIgn:")
	mask, err := strconv.ParseUint(strings.Fields(rest)[0], 16, 64)
	return err == nil && mask&(1<<(sig-1)) != 0
}

// Ensure that what commands have started is gone when node and guard are killed together, without a start on the folder, and whichever
// dies first.
func TestProcess_BothKilled_Watched(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		for _, first := range []string{"node", "guard", "stopped node"} {
			name := first + " first"
			if dir != "" {
				name += ", folder"
			}
			t.Run(name, func(t *testing.T) {
				srv := newCloserServer(t, "closed")
				n := startNode(t, dir)
				n.tell(t, srv.feed(time.Minute))
				binary, err := os.Executable()
				if err != nil {
					t.Fatal(err)
				}
				// A shell that does not exec what it wraps.
				n.tell(t, order{Spawn: []string{"sh", "-c", `"$0" stand-in child name=wrapped ignore-term; echo over`, binary}})
				n.tell(t, order{Spawn: childArgv("ignore-term", "+", "name=group", "ignore-term", "+", "name=session", "setsid", "ignore-term", "+", "name=orphan", "orphan", "setsid")})
				all := n.out.ups(t, 5)
				watcher := n.watcher(t)
				killed := guard.BootTime()
				switch first {
				case "node":
					n.kill(t, syscall.SIGKILL)
					n.guard.kill(t, syscall.SIGKILL)
				case "guard":
					n.guard.kill(t, syscall.SIGKILL)
					n.kill(t, syscall.SIGKILL)
				default:
					killBoth(t, n)
				}
				for name, p := range all {
					p.awaitGone(t, name)
				}
				watcher.awaitGone(t, "watcher")
				n.out.ended(t)
				t.Logf("all gone %v after the kill", guard.BootTime()-killed)
			})
		}
	}
}

// Ensure that commands are killed at KillAt, with all they have started, although node and guard are stopped; and that both go on.
func TestProcess_BothStopped(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		srv := newCloserServer(t, "closed")
		n := startNode(t, dir)
		n.tell(t, srv.feed(10*time.Second))
		n.tell(t, order{Spawn: childArgv("ignore-term", "say-term", "+", "name=group", "ignore-term", "+", "name=orphan", "orphan", "setsid", "ignore-term", "+", "name=wiped", "orphan", "setsid", "wipe")})
		all := n.out.ups(t, 4)
		fed := n.lastFeed(t, srv, time.Second, time.Second)
		n.guard.kill(t, syscall.SIGSTOP)
		n.kill(t, syscall.SIGSTOP)
		for name, p := range all {
			p.awaitGone(t, name)
		}
		took := guard.BootTime() - fed
		t.Logf("gone %v after the feed, KillAt was 1s after it", took)
		if took < time.Second {
			t.Errorf("gone %v after the feed, want 1s", took)
		}
		n.guard.kill(t, syscall.SIGCONT)
		n.kill(t, syscall.SIGCONT)
		e := n.tell(t, order{Wait: all["child"].pid})
		if want := (guard.Status{Code: -1, Signal: syscall.SIGKILL, Reason: guard.ReasonDeadline, Killed: true}); e.Status != want && e.Status.Reason != guard.ReasonGuardDied {
			t.Errorf("status %+v, want %+v", e.Status, want)
		}
		// A new lease, a new command, under the same watcher.
		n.tell(t, srv.feed(10*time.Second))
		next := nextChild(t, n)
		srv.none(t)
		n.tell(t, order{Close: true})
		next.awaitGone(t, "command")
		n.endsUntold(t)
	}
}

// Ensure a watcher that is killed is replaced, and that the next one knows what runs.
func TestProcess_WatcherKilled(t *testing.T) {
	srv := newCloserServer(t, "closed")
	n := startNode(t, t.TempDir())
	n.tell(t, srv.feed(time.Minute))
	n.tell(t, order{Spawn: childArgv("+", "name=wiped", "wipe")}) // which is found by its group alone
	all := n.out.ups(t, 2)
	first := n.watcher(t)
	first.kill(t, syscall.SIGKILL)
	first.awaitGone(t, "watcher")
	var pids []int
	for end := time.Now().Add(patience); len(pids) == 0 || pids[0] == first.pid; pids = childrenOf(n.guard.pid, "miw-watch") {
		if time.Now().After(end) {
			t.Fatal("no other watcher")
		}
		n.ask(t, order{Spawn: []string{"true"}})
	}
	second := watch(t, pids[0])
	killBoth(t, n)
	for name, p := range all {
		p.awaitGone(t, name)
	}
	second.awaitGone(t, "second watcher")
	n.out.ended(t)
}

// Ensure the watcher of a guard that was killed spares what the next guard of the folder runs, and is no child of it.
func TestProcess_WatcherOfTheGuardBefore(t *testing.T) {
	srv := newCloserServer(t, "closed")
	dir := t.TempDir()
	n := startNode(t, dir)
	n.tell(t, srv.feed(time.Minute))
	n.child(t)
	old := n.watcher(t)
	old.kill(t, syscall.SIGSTOP) // it comes late
	n.guard.kill(t, syscall.SIGKILL)
	next := nextChild(t, n)
	old.kill(t, syscall.SIGCONT)
	old.awaitGone(t, "watcher of the first guard")
	if next.gone(0) {
		t.Error("the first guard's watcher killed a command of the second guard")
	}
	n.tell(t, order{Close: true})
	n.closeStdin()
	n.awaitGone(t, "node")
	n.out.ended(t)
}

// Ensure a guard that ends in order takes its watcher with it, and that TERM to all of them does not end the watcher.
func TestProcess_WatcherEnds(t *testing.T) {
	srv := newCloserServer(t, "closed")
	n := startNode(t, t.TempDir())
	n.tell(t, srv.feed(time.Minute))
	child := n.child(t)
	w := n.watcher(t)
	for end := time.Now().Add(patience); !ignores(w.pid, syscall.SIGTERM); {
		if time.Now().After(end) {
			t.Fatal("the watcher does not stand")
		}
		n.ask(t, order{Spawn: []string{"true"}})
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		w.kill(t, sig)
	}
	second := n.child(t)
	if w.gone(0) {
		t.Error("TERM ended the watcher")
	}
	n.tell(t, order{Close: true})
	if !w.gone(0) {
		t.Error("the watcher lives after Close")
	}
	child.awaitGone(t, "command")
	second.awaitGone(t, "second command")
}
