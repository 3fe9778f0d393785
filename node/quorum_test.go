package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// A start on a log that has not been snapshotted begins with an empty copy:
// whoever leads first then does not found the cluster again.
func TestNode_RestartOfAllFoundsNothingAnew(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := nodetest.New(t, nodetest.Config{Nodes: nodes, Seed: 71})
				c.WaitReady()
				for range 3 {
					for i := range nodes {
						c.Crash(i)
					}
					for i := range nodes {
						c.Start(i)
					}
					c.WaitReady()
				}
				events, ok := c.Node(0).View().Events(fsm.EventID{})
				if !ok {
					t.Fatal("events are missing")
				}
				added := 0
				for e := range events {
					if e.Type == fsm.EventMemberAdded {
						added++
					}
				}
				if added != nodes {
					t.Errorf("%d members were added, want %d", added, nodes)
				}
			})
		})
	}
}

// Whoever is left of a cluster whose majority has gone never says that all
// voters live while there is no quorum.
func TestStatus_QuorumOfTheLastOne(t *testing.T) {
	for _, leads := range []bool{true, false} {
		for _, how := range []string{"crashed", "cut off"} {
			t.Run(fmt.Sprintf("leads_%t/%s", leads, how), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := nodetest.New(t, nodetest.Config{Seed: 72})
					c.WaitReady()
					c.WaitVoters(3)
					time.Sleep(2 * time.Second)
					last := c.WaitLeader()
					if !leads {
						last = (last + 1) % 3
					}
					for i := 1; i < 3; i++ {
						if how == "crashed" {
							c.Crash((last + i) % 3)
						} else {
							c.Isolate((last + i) % 3)
						}
					}
					gone := time.Now()
					for time.Since(gone) < 15*time.Second {
						s := c.Node(last).Status()
						if s.Quorum.Voters != 3 || s.Quorum.OK && s.Quorum.Alive < 2 {
							t.Fatalf("after %v: %+v", time.Since(gone), s.Quorum)
						}
						if !s.Quorum.OK && s.Quorum.Alive == 3 {
							t.Fatalf("after %v all are alive and there is no quorum", time.Since(gone))
						}
						// An election, with its calls that nobody answers, takes so long.
						if since := time.Since(gone); since > 4*time.Second {
							if s.Quorum != (node.Quorum{Voters: 3, Alive: 1}) {
								t.Fatalf("after %v: %+v", since, s.Quorum)
							}
							if want := "no leader is known: 1 of 3 voters answer, it takes 2"; !strings.Contains(s.ReadyReason, want) {
								t.Fatalf("ready: %q, want %q", s.ReadyReason, want)
							}
						}
						time.Sleep(50 * time.Millisecond)
					}
					_, err := c.Node(last).Submit(c.Context(time.Second), &fsm.CloseSession{SessionId: "s", Reason: fsm.CloseClosed})
					if !errors.Is(err, fsm.ErrNoQuorum) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 of 3 voters answer") {
						t.Errorf("a command: %v", err)
					}
					for i := 1; i < 3; i++ {
						if how == "crashed" {
							c.Start((last + i) % 3)
						} else {
							c.Rejoin((last + i) % 3)
						}
					}
					c.WaitReady()
					c.Until(10*time.Second, "all to be seen", func() bool {
						return c.Node(last).Status().Quorum == node.Quorum{Voters: 3, Alive: 3, OK: true}
					})
				})
			})
		}
	}
}

func TestStatus_BeforeTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Seed: 73, Idle: true})
		for i, want := range []string{"1 of 3 founding nodes seen", "2 of 3 founding nodes seen"} {
			c.Start(i)
			time.Sleep(3 * time.Second)
			if got := c.Node(0).Status().ReadyReason; !strings.Contains(got, want) {
				t.Errorf("ready: %q, want %q", got, want)
			}
			_, err := c.Node(0).Submit(c.Context(time.Second), &fsm.CloseSession{SessionId: "s", Reason: fsm.CloseClosed})
			if !errors.Is(err, fsm.ErrNoQuorum) || fsm.CodeOf(err) != fsm.CodeNotReady || !strings.Contains(err.Error(), want) {
				t.Errorf("a command: %v, want %q", err, want)
			}
		}
		c.Start(2)
		c.WaitReady()
		leader := c.WaitLeader()
		id := c.Node(leader).ID()
		for i := range 3 {
			err := c.Node(i).StepDown(c.Context(time.Second), id)
			if !errors.Is(err, fsm.ErrWrongState) || !strings.Contains(err.Error(), "leads already") {
				t.Errorf("step down to the leader itself, asked of node %d: %v", i, err)
			}
		}
		if c.Leader() != leader {
			t.Error("the leader has changed")
		}
	})
}
