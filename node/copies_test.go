package node_test

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// A copy in the place of the original is refused. Said to be moved, it starts and
// proves nothing: the former session runs out by itself.
func TestCopies_Moved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		moved := false
		c := nodetest.New(t, nodetest.Config{Seed: 51, Edit: func(_ int, cfg *node.Config) { cfg.Moved = moved }})
		c.WaitReady()
		victim, other := (c.WaitLeader()+1)%3, (c.WaitLeader()+2)%3
		acquire(t, c, victim, "k")
		c.Crash(victim)
		dir := c.Dir(victim)
		must(t, os.Rename(dir, dir+".original"))
		must(t, os.CopyFS(dir, os.DirFS(dir+".original")))
		if err := c.TryStart(victim); !errors.Is(err, node.ErrFolderCopied) {
			t.Fatalf("a start on a copy: %v", err)
		}
		moved = true
		c.Start(victim)
		time.Sleep(3 * time.Second)
		if holderOf(c, other, "k") != victim {
			t.Error("a start on a moved folder closed the former session")
		}
		c.Until(12*time.Second, "the lease to run out", func() bool { return holderOf(c, other, "k") < 0 })
		c.WaitReady()
		moved = false
		c.Restart(victim)
		c.WaitReady()
	})
}

// A copy that starts beside the original, said to be moved, is kept out while it
// has the same boot number, and shuts the original out once it has a larger one.
// Who is out says why.
func TestCopies_Rival(t *testing.T) {
	for name, leads := range map[string]bool{"leader": true, "follower": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := &logBook{}
				c := nodetest.New(t, nodetest.Config{Seed: 52, Log: slog.New(slog.NewTextHandler(log, nil)), Edit: func(i int, cfg *node.Config) {
					cfg.Moved = i == 3
				}})
				c.WaitReady()
				original, copied := 0, c.AddIdle()
				c.Crash(original)
				must(t, os.CopyFS(c.Dir(copied), os.DirFS(c.Dir(original))))
				c.Start(original) // boot 2
				c.WaitReady()
				if leader := c.WaitLeader(); leads && leader != original {
					must(t, c.Node(leader).StepDown(t.Context(), c.Node(original).ID()))
					c.Until(nodetest.DefaultWait, "the original to lead", func() bool { return c.Leader() == original })
				} else if !leads && leader == original {
					must(t, c.Node(leader).StepDown(t.Context(), ""))
				}
				c.WaitReady()
				says := func(i int, want string) {
					t.Helper()
					c.Until(30*time.Second, "node to say: "+want, func() bool { return strings.Contains(c.Node(i).Status().ReadyReason, want) })
					if len(log.with(strings.TrimPrefix(want, "no leader is known: "))) == 0 {
						t.Errorf("the log does not say %q", want)
					}
				}

				c.Start(copied) // boot 2
				says(copied, "no leader is known: another process with boot 2 of this node ID is at "+c.Node(original).Addr()+": there is a copy of this data folder; stop both")
				c.WaitReady(original)

				c.Restart(copied) // boot 3
				want := "no leader is known: a newer start of this node ID is at " + c.Net.Host(c.Host(copied)).IP() + ":7400, boot 3 > 2; if you started it, stop this one; if you did not, there is a copy of this data folder: stop both"
				says(original, want)
				if _, err := c.Node(original).Submit(c.Context(5*time.Second), &fsm.MarkInstance{InstanceId: "x", Mark: fsm.MarkCordon, By: "op"}); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("a command fails with %v", err)
				}
				c.WaitReady(copied)
				time.Sleep(time.Minute)
				if got := len(log.with(`msg="another process has this node's ID"`)); got > 4 {
					t.Errorf("the log says %d times that there is another process; each of the two knows of two lives of the other", got)
				}
			})
		})
	}
}

// A namesake of another cluster is no copy of anything: the refusals say that the
// clusters differ, and nobody is told to remove a folder. One that has no cluster
// yet learns that its ID is taken.
func TestCopies_Namesake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logBook{}
		var join []string
		expect := 1
		c := nodetest.New(t, nodetest.Config{
			Nodes: 3, Idle: true, Seed: 53, Unchecked: true, Log: slog.New(slog.NewTextHandler(log, nil)),
			Edit: func(_ int, cfg *node.Config) { cfg.ID, cfg.Join, cfg.BootstrapExpect = "n1", join, expect },
		})
		for i := range 2 {
			c.Start(i)
			c.WaitReady(i)
		}
		join = []string{c.Node(0).Addr()}
		c.Restart(1)
		c.Until(nodetest.DefaultWait, "the clusters to refuse each other", func() bool { return len(log.with(`refusal="other cluster"`)) > 1 })
		c.WaitReady(0, 1)
		if lines := append(log.with("another process has this node's ID"), log.with("folder")...); len(lines) > 0 {
			t.Errorf("told of a copy: %q", lines)
		}

		expect = 0
		c.Start(2)
		want := "a node of cluster " + c.Node(0).ClusterID() + ", which runs at " + c.Node(0).Addr() + ", has this node ID: start this one with another"
		c.Until(nodetest.DefaultWait, "the newcomer to say that its ID is taken", func() bool { return strings.Contains(c.Node(2).Status().ReadyReason, want) })
		if lines := append(log.with("copy"), log.with("remove both")...); len(lines) > 0 {
			t.Errorf("told of a copy: %q", lines)
		}
	})
}
