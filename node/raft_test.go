package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// Raft may be restarted under a running node at any time: the copy never goes
// back, nothing acknowledged is lost, and the session lives on.
func TestNode_RaftRestartsInProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Seed: 14})
		c.WaitReady()
		leader := c.WaitLeader()
		holder := (leader + 1) % 3
		token := acquire(t, c, holder, "k")
		session, err := c.Node(holder).Session(c.Context(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		var back atomic.Bool
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for i := range 3 {
			go func() {
				for last := uint64(0); ctx.Err() == nil; time.Sleep(time.Millisecond) {
					now := c.Node(i).View().Revision()
					if now < last {
						back.Store(true)
					}
					last = now
				}
			}()
		}
		for k := range 30 {
			i := k % 3
			if i == c.Leader() {
				c.Node(i).Wedge("test")
			} else if err := c.Node(i).RestartRaft("test"); err != nil {
				t.Fatal(err)
			}
			for w := range 5 {
				t.Cleanup(c.Node(holder).Claim(fmt.Sprint("w", k, w), ""))
				if _, err := c.Node((k+w)%3).Submit(c.Context(10*time.Second), &fsm.Acquire{Key: fmt.Sprint("w", k, w), SessionId: session}); err != nil {
					t.Fatalf("round %d: %v", k, err)
				}
			}
		}
		c.WaitReady()
		c.Converge()
		if back.Load() {
			t.Error("a copy went back")
		}
		for i := range 3 {
			if l, ok := c.Node(i).View().Lease("k"); !ok || l.Token != token {
				t.Errorf("node %d has lease %+v", i, l)
			}
			for k := range 30 {
				for w := range 5 {
					if _, ok := c.Node(i).View().Lease(fmt.Sprint("w", k, w)); !ok {
						t.Errorf("node %d lost w%d%d", i, k, w)
					}
				}
			}
		}
	})
}

// A committed entry that this version does not know halts every node that
// meets it, with an error that says what to do; the process lives.
func TestNode_UnknownEntryHalts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Seed: 15})
		c.WaitReady()
		leader := c.WaitLeader()
		token := acquire(t, c, leader, "k")
		revision := c.Node(leader).View().Revision()
		// Field 99 of a batch: nobody knows it yet.
		_ = c.Node(leader).ApplyRaw(c.Context(time.Second), []byte{0x9a, 0x06, 0x01, 0x00})
		// The last one may not have heard that the entry is committed.
		c.Until(30*time.Second, "a halted majority", func() bool {
			halted := 0
			for i := range 3 {
				if !c.Running(i) {
					halted++
				}
			}
			return halted >= 2
		})
		for i := range 3 {
			if c.Running(i) {
				continue
			}
			err := c.Err(i)
			if _, ok := errors.AsType[*fsm.VersionError](err); !ok || !strings.Contains(err.Error(), "newer") {
				t.Errorf("Run of node %d returned %v", i, err)
			}
			v := c.Node(i).View()
			if l, ok := v.Lease("k"); v.Revision() < revision || !ok || l.Token != token {
				t.Errorf("the frozen copy of node %d is at revision %d with lease %+v", i, v.Revision(), l)
			}
		}
		// And again at the next start: it is in the log.
		for i := range 3 {
			if !c.Running(i) {
				c.Start(i)
			}
		}
		c.Until(time.Minute, "a node that halts again", func() bool { return !c.Running(0) || !c.Running(1) || !c.Running(2) })
	})
}

// A folder whose log is of another cluster than its identity is refused.
func TestNode_LogOfAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Nodes: 1, Seed: 16})
		c.WaitReady()
		c.Crash(0)
		file := c.Dir(0) + "/node.json"
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var record map[string]any
		if err := json.Unmarshal(b, &record); err != nil {
			t.Fatal(err)
		}
		record["cluster_id"] = "another"
		if b, err = json.Marshal(record); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c.Start(0)
		select {
		case <-c.Done(0):
		case <-time.After(time.Minute):
			t.Fatalf("the node goes on\n%s", c.Describe())
		}
		if err := c.Err(0); !errors.Is(err, node.ErrOtherCluster) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// A guard closes the session of its own node's boot and no other.
func TestNode_CloseCrashed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Seed: 17})
		c.WaitReady()
		leader := c.WaitLeader()
		victim, through := (leader+1)%3, (leader+2)%3
		acquire(t, c, victim, "k")
		session, err := c.Node(victim).Session(c.Context(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		c.Converge()
		id, boot := c.Node(victim).ID(), c.Node(victim).Boot()
		c.Crash(victim)
		ctx := c.Context(5 * time.Second)
		if err := c.Node(through).CloseCrashed(ctx, session, id, boot+1); !errors.Is(err, fsm.ErrPermissionDenied) {
			t.Errorf("another boot: %v", err)
		}
		if err := c.Node(through).CloseCrashed(ctx, session, c.Node(leader).ID(), boot); !errors.Is(err, fsm.ErrPermissionDenied) {
			t.Errorf("another node: %v", err)
		}
		if holderOf(c, through, "k") != victim {
			t.Fatal("a refused call closed the session")
		}
		if err := c.Node(through).CloseCrashed(ctx, session, id, boot); err != nil {
			t.Fatal(err)
		}
		if holderOf(c, through, "k") >= 0 {
			t.Error("the lease is still held")
		}
		if h := c.Node(through).View().History(fsm.HistoryQuery{Key: "k"}); len(h) != 1 || h[0].EndReason.String() != "crashed" {
			t.Errorf("history %+v", h)
		}
		if err := c.Node(leader).CloseCrashed(ctx, session, id, boot); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}
