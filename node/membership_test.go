package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// acquire takes a key on node i and returns the token.
func acquire(t *testing.T, c *nodetest.Cluster, i int, key string) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	session, err := c.Node(i).Session(ctx)
	if err != nil {
		t.Fatalf("session on node %d: %v\n%s", i, err, c.Describe())
	}
	drop := c.Node(i).Claim(key, "test")
	t.Cleanup(drop)
	r, err := c.Node(i).Submit(ctx, &fsm.Acquire{Key: key, SessionId: session, Holder: "test"})
	if err == nil {
		err = fsm.ResultErr(r)
	}
	if err != nil {
		t.Fatalf("acquire %s on node %d: %v\n%s", key, i, err, c.Describe())
	}
	return r.Token
}

// submit has node i commit op and fails the test unless it was done.
func submit(t *testing.T, c *nodetest.Cluster, i int, op fsm.Op) *fsm.Result {
	t.Helper()
	r, err := c.Node(i).Submit(c.Context(20*time.Second), op)
	if err == nil {
		err = fsm.ResultErr(r)
	}
	if err != nil {
		t.Fatalf("node %d: %T: %v\n%s", i, op, err, c.Describe())
	}
	return r
}

// holderOf is the node that holds the key in node i's copy, -1 for none.
func holderOf(c *nodetest.Cluster, i int, key string) int {
	l, ok := c.Node(i).View().Lease(key)
	if !ok || l.State == fsm.Barred {
		return -1
	}
	return c.Index(l.Who.NodeID)
}

// memberEvents lists what node i knows of a member's changes.
func memberEvents(c *nodetest.Cluster, i int, id string) (changes []fsm.EventType) {
	events, _ := c.Node(i).View().Events(fsm.EventID{})
	for e := range events {
		if e.Who.NodeID == id && e.Type >= fsm.EventMemberAdded && e.Type <= fsm.EventMemberRemoved {
			changes = append(changes, e.Type)
		}
	}
	return changes
}

// aside moves a data folder away, back puts it in its place again.
func aside(t *testing.T, dir string) {
	t.Helper()
	if err := os.Rename(dir, dir+".aside"); err != nil {
		t.Fatal(err)
	}
}

func back(t *testing.T, dir string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(dir), os.Rename(dir+".aside", dir)); err != nil {
		t.Fatal(err)
	}
}

// What one node alone acknowledges, and what three do, is there after all have
// been killed and started again.
func TestNode_FullRestart(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := nodetest.New(t, nodetest.Config{Nodes: nodes, Seed: 2})
				c.WaitReady()
				before := acquire(t, c, 0, "k")
				cluster := c.Node(0).ClusterID()
				boot := c.Node(0).Boot()
				for i := range nodes {
					c.Crash(i)
				}
				for i := range nodes {
					c.Start(i)
				}
				c.WaitReady()
				n := c.Node(0)
				if got := n.ClusterID(); got != cluster {
					t.Errorf("cluster %q after the restart, want %q", got, cluster)
				}
				if got := n.Boot(); got != boot+1 {
					t.Errorf("boot %d after the restart, want %d", got, boot+1)
				}
				if after := acquire(t, c, 0, "k"); after <= before {
					t.Errorf("token %d after the restart, want more than %d", after, before)
				}
				c.Converge()
			})
		})
	}
}

// All addresses may change at once: names are resolved anew.
func TestNode_AddressChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Nodes: 3, Seed: 3})
		c.WaitReady()
		token := acquire(t, c, 1, "k")
		for i := range 3 {
			c.Crash(i)
		}
		for i := range 3 {
			c.Move(i)
			c.Start(i)
		}
		c.WaitReady()
		if next := acquire(t, c, 1, "k"); next <= token {
			t.Errorf("token %d, want more than %d", next, token)
		}
		// One at a time, too, and without a restart of the others.
		c.Crash(2)
		c.Move(2)
		c.Start(2)
		c.WaitReady()
		c.Converge()
		for _, m := range c.Node(0).Members() {
			if want := c.Node(c.Index(m.NodeID)).Addr(); m.Addr != want {
				t.Errorf("node 0 has %s at %s, it is at %s", m.NodeID, m.Addr, want)
			}
		}
	})
}

// A joiner is a learner first and gets a vote once it has caught up; above the
// wanted number of voters it stays a learner, and is as useful as the others.
func TestNode_Join(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Nodes: 1, Seed: 4, Voters: 3})
		c.WaitReady()
		for i := range 3 {
			c.Add()
			c.WaitVoters(min(i+2, 3))
		}
		c.WaitReady()
		c.Converge()
		if got := c.Node(3).Status().Role; got != node.RoleLearner {
			t.Errorf("the fourth node is %s, want learner", got)
		}
		token := acquire(t, c, 3, "k")
		if token == 0 {
			t.Error("no token")
		}
		c.Until(5*time.Second, "events of the joiner", func() bool {
			return fmt.Sprint(memberEvents(c, 0, c.Node(1).ID())) == "[member.added member.promoted]"
		})
	})
}

// The survivors elect a leader and go on; the crashed one comes back as a follower.
func TestNode_LeaderCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Nodes: 3, Seed: 5})
		c.WaitReady()
		old := c.WaitLeader()
		start := time.Now()
		c.Crash(old)
		c.Until(5*time.Second, "another leader", func() bool {
			l := c.Leader()
			return l >= 0 && l != old && c.Node(l).ReadyErr() == nil
		})
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("no leader for %v", took)
		}
		acquire(t, c, c.Leader(), "k")
		c.Start(old)
		c.WaitReady()
		c.Converge()
	})
}

// A graceful stop hands leadership over: the others are never without a leader
// for an election timeout.
func TestNode_Leave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Nodes: 3, Seed: 6})
		c.WaitReady()
		old := c.WaitLeader()
		instance := c.Node(old).InstanceID()
		if _, err := c.Node(old).Session(c.Context(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := c.Stop(old); err != nil {
			t.Errorf("Run returned %v after a graceful stop", err)
		}
		if took := time.Since(start); took > 400*time.Millisecond {
			t.Errorf("leaving took %v", took)
		}
		now := c.Leader()
		if now < 0 || now == old {
			t.Fatalf("no other leader right after the leave\n%s", c.Describe())
		}
		c.Converge()
		if _, ok := c.Node(now).View().Instance(instance); ok {
			t.Error("the instance of the node that left is still registered")
		}
		var state string
		for _, m := range c.Node(now).Members() {
			if m.NodeID == c.Node(old).ID() {
				state = m.Gossip
			}
		}
		if state != "left" {
			t.Errorf("gossip says %q of the node that left", state)
		}
	})
}

// A wiped node comes back as a new one, or under its old ID as a learner whose
// former vote does not count.
func TestScenario_Membership(t *testing.T) {
	t.Run("B-75_a_wiped_node_never_founds_again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := nodetest.New(t, nodetest.Config{Nodes: 3, Seed: 75})
			c.WaitReady()
			cluster := c.Node(0).ClusterID()
			c.Crash(0)
			c.Wipe(0)
			c.Start(0)
			c.WaitReady()
			if got := c.Node(0).ClusterID(); got != cluster {
				t.Errorf("the wiped node is of cluster %q, want %q", got, cluster)
			}
			// With the others out of reach it waits for ever and says so.
			c.Crash(0)
			c.Wipe(0)
			c.Isolate(0)
			c.Start(0)
			time.Sleep(10 * time.Minute)
			if got := c.Node(0).ClusterID(); got != "" {
				t.Errorf("alone the wiped node is of cluster %q", got)
			}
			if err := c.Node(0).ReadyErr(); !errors.Is(err, fsm.ErrNotReady) {
				t.Errorf("ReadyErr is %v", err)
			}
			c.Rejoin(0)
			c.WaitReady()
			if got := c.Node(0).ClusterID(); got != cluster {
				t.Errorf("the wiped node is of cluster %q, want %q", got, cluster)
			}
		})
	})
	t.Run("B-77_a_wiped_node_keeps_no_vote", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := nodetest.New(t, nodetest.Config{Nodes: 3, Seed: 77, Edit: func(i int, cfg *node.Config) {
				cfg.ID = fmt.Sprintf("n%d", i)
			}})
			c.WaitReady()
			leader := c.WaitLeader()
			victim := (leader + 1) % 3
			c.Crash(victim)
			c.Wipe(victim)
			c.Start(victim)
			c.WaitReady()
			c.WaitVoters(3)
			c.Until(time.Second, "the events", func() bool {
				return fmt.Sprint(memberEvents(c, leader, c.Node(victim).ID())) == "[member.added member.demoted member.promoted]"
			})
			c.Converge()
		})
	})
	t.Run("B-79_a_new_node_at_an_old_address", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := nodetest.New(t, nodetest.Config{Nodes: 3, Seed: 79})
			c.WaitReady()
			leader := c.WaitLeader()
			victim := (leader + 1) % 3
			old := c.Node(victim).ID()
			c.Crash(victim)
			c.Wipe(victim)
			c.Start(victim) // same host and address, another ID
			c.WaitReady()
			if id := c.Node(victim).ID(); id == old {
				t.Fatalf("the new node has the old ID %s", id)
			}
			c.WaitVoters(3)
			c.Until(time.Second, "the events", func() bool {
				return fmt.Sprint(memberEvents(c, leader, c.Node(victim).ID())) == "[member.added member.promoted]"
			})
			if got := fmt.Sprint(memberEvents(c, leader, old)); got != "[member.added member.removed]" {
				t.Errorf("events of the node that had the address: %s", got)
			}
			if got := fmt.Sprint(memberEvents(c, leader, c.Node(3-leader-victim).ID())); got != "[member.added]" {
				t.Errorf("events of the third node: %s", got)
			}
			acquire(t, c, victim, "k")
		})
	})
}
