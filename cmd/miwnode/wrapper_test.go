package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// Ensure that what a wrapper has started is gone before another node's run starts,
// when node and guard are killed together and nothing starts on that folder.
func TestProcess_BothKilledWrapped(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("starts three processes, with guards; runs without -short on Linux")
	}
	c := newCLI(t)
	// A shell that does not exec what it wraps, which stays when the shell is told
	// to end. Each run looks for the one before.
	script := c.write("run.sh", `
if test -e child && kill -0 "$(cat child)" 2>/dev/null; then echo "overlaps"; fi
sh -c 'trap "" TERM; echo $$ > child.new; mv child.new child; while :; do sleep 0.05; done' &
while ! test -e child || test "$(cat child)" != $!; do sleep 0.01; done
echo "run under $MIW_TOKEN has $!"
wait
`)
	nodes := c.startCluster(3, "--singleton", fmt.Sprintf("job=sh %q", script), "--session-ttl", "5s", "--renew-interval", "500ms")
	var victim *nodeProcess
	var token uint64
	eventually(t, "somebody runs job", func() bool {
		for _, n := range nodes {
			if name, tok := n.holder("job"); name == id(n) && strings.Contains(n.text(), fmt.Sprintf("run under %d has ", tok)) {
				victim, token = n, tok
			}
		}
		return victim != nil
	})
	child := c.pidIn("child")
	guards := guardsOf(victim.cmd.Process.Pid)
	if len(guards) != 1 {
		t.Fatalf("the node has the guards %v, want one", guards)
	}
	// Neither finds out about the other's death.
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		victim.signal(sig)
		if err := syscall.Kill(guards[0], sig); err != nil {
			t.Fatal(err)
		}
	}
	<-victim.done
	eventually(t, "another node runs job", func() bool {
		for _, n := range nodes {
			if n != victim && strings.Contains(n.text(), "run under ") {
				return true
			}
		}
		return false
	})
	if !gone(child) {
		t.Errorf("process %d of the run under %d lives", child, token)
		_ = syscall.Kill(child, syscall.SIGKILL) // it may have ended since
	}
	for _, n := range nodes {
		if strings.Contains(n.text(), "overlaps") {
			t.Errorf("%s began while the wrapped process lived", id(n))
		}
	}
}

// guardsOf are the guards among a node's children.
func guardsOf(node int) (pids []int) {
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", node))
	for _, file := range children {
		b, _ := os.ReadFile(file) // a thread that has ended has none
		for f := range bytes.FieldsSeq(b) {
			var pid int
			_, _ = fmt.Sscan(string(f), &pid)
			if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.HasSuffix(strings.TrimRight(string(line), "\x00"), ": guard") {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
