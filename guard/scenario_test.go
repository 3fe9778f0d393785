//go:build linux

package guard_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/guard"
)

func TestScenario(t *testing.T) {
	// Losing must be enforced, not only signalled: work that ignores its end is ended.
	t.Run("B-03_a_command_that_ignores_its_end_is_gone_before_the_deadline", func(t *testing.T) {
		g := start(t, guard.Config{})
		out := newOutput(t)
		p := spawn(t, g, guard.Spec{Argv: childArgv("ignore-term", "+", "name=a", "ignore-term"), Stdout: out.w})
		out.ups(t, 2)
		feed(t, g, 100*time.Millisecond, 300*time.Millisecond) // the last one: the node is cut off
		cut := guard.BootTime()
		s := wait(t, p)
		t.Logf("gone %v after the last feed, KillAt was 300ms after it", guard.BootTime()-cut)
		if want := (guard.Status{Code: -1, Signal: syscall.SIGKILL, Reason: guard.ReasonDeadline, Killed: true}); s != want {
			t.Errorf("status %+v, want %+v", s, want)
		}
		out.ended(t)
	})

	// A restart frees what the crashed boot held at once, which is safe only if no command of it lives.
	t.Run("B-23_a_crash_leaves_no_orphan", func(t *testing.T) {
		dir := t.TempDir()
		n := startNode(t, dir)
		n.tell(t, order{Feed: &feedOrder{Stop: time.Minute, Kill: time.Minute}})
		n.tell(t, order{Spawn: []string{"sh", "-c", "sleep 1000 & setsid sleep 1000 & echo up sh $$; wait"}})
		n.out.up(t)
		n.kill(t, syscall.SIGKILL)
		left, err := guard.Leftovers(dir, patience)
		if err != nil || len(left) > 0 {
			t.Errorf("Leftovers: %v, %v; want the proof that nothing is left", left, err)
		}
		n.out.ended(t)
		n.guard.awaitGone(t, "guard")
	})

	// consul lock: the signal went to the shell only, and its children lived on.
	t.Run("B-33_nothing_of_a_shell_outlives_the_lease", func(t *testing.T) {
		for _, script := range []string{
			"sleep 1000 & echo up sh $$; wait",
			"trap '' TERM; sleep 1000 & sleep 1000 & echo up sh $$; wait; wait; wait",
			"setsid sleep 1000 & echo up sh $$; wait",
			"(setsid sh -c 'trap \"\" TERM; sleep 1000' &); (env -i setsid sleep 1000 &); sleep 1000 & echo up sh $$; wait",
		} {
			g := start(t, guard.Config{StopBudget: 100 * time.Millisecond})
			out := newOutput(t)
			p := spawn(t, g, guard.Spec{Argv: []string{"sh", "-c", script}, Stdout: out.w})
			out.up(t)
			feed(t, g, 50*time.Millisecond, 250*time.Millisecond)
			if s := wait(t, p); s.Reason != guard.ReasonDeadline {
				t.Errorf("%s: status %+v, want the deadline", script, s)
			}
			out.ended(t)
		}
	})

	// The same, with the whole of exec killed instead of cut off.
	t.Run("B-33_nothing_of_a_shell_outlives_exec", func(t *testing.T) {
		srv := newCloserServer(t, "closed")
		n := startNode(t, "")
		n.tell(t, srv.feed(10*time.Second))
		n.tell(t, order{Spawn: []string{"sh", "-c", "trap '' TERM; (env -i setsid sleep 1000 &); sleep 1000 & echo up sh $$; wait"}})
		n.out.up(t)
		n.kill(t, syscall.SIGKILL)
		srv.call(t)
		n.out.ended(t)
		n.guard.awaitGone(t, "guard")
	})
}

// Ensure a guard inside a command of another guard hides nothing from it.
func TestProcess_Nested(t *testing.T) {
	g := start(t, guard.Config{Dir: t.TempDir()})
	out := newOutput(t)
	// nested starts a guard of its own, and under it a command in a session of its own, then kills its guard.
	p := spawn(t, g, guard.Spec{Argv: []string{"/proc/self/exe", "stand-in", "nested"}, Stdout: out.w, Stderr: logWriter(t)})
	inner := out.ups(t, 2)
	p.Stop(-1)
	wait(t, p)
	for name, c := range inner {
		if !c.gone(0) {
			t.Errorf("%s of the inner guard lives", name)
		}
	}
	out.ended(t)
}
