package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// versions are those that the nodes of a cluster know, each as of its next start.
type versions [4]atomic.Uint32

func (v *versions) seams(i int, s *node.Seams) { s.Version = v[i].Load() }

func (v *versions) set(version uint32, nodes ...int) {
	for _, i := range nodes {
		v[i].Store(version)
	}
}

// healthy fails the test if a node can't go on.
func healthy(t *testing.T, c *nodetest.Cluster, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		if err := c.Node(i).Healthy(); err != nil {
			t.Fatalf("node %d, which knows an older version: %v", i, err)
		}
	}
}

// While nodes are upgraded one after the other, those that are not yet must be
// able to apply all that gets into the log, from the first command of a new
// binary on, when its copy is still empty. Only when all know the new version
// it counts.
func TestUpgrade_OneNodeAfterTheOther(t *testing.T) {
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			var v versions
			v.set(2, 0, 1, 2)
			c := nodetest.New(t, nodetest.Config{Seed: seed + 1, Seams: v.seams})
			c.WaitReady()
			for i := range 3 {
				if got := c.Node(i).View().Cluster().Version; got != 2 {
					t.Fatalf("node %d: state version %d at the beginning, want 2", i, got)
				}
				if _, err := c.Node(i).Session(c.Context(5 * time.Second)); err != nil {
					t.Fatal(err)
				}
			}
			for k := range 3 {
				i := c.WaitLeader()
				for range 2 {
					if next := (i + 1) % 3; v[i].Load() == 3 || v[next].Load() == 2 {
						i = next
					}
				}
				c.Crash(i)
				v.set(3, i)
				c.Start(i)
				// Asked for at once, whatever the copy knows by then.
				session := fmt.Sprintf("%032d", k+1)
				if _, err := c.Node(i).Submit(c.Context(10*time.Second), &fsm.OpenSession{SessionId: session, TtlMs: 60000, Name: "c"}); err != nil {
					t.Fatalf("open a session at upgraded node %d: %v", i, err)
				}
				var old []int
				for j := range 3 {
					if v[j].Load() == 2 {
						old = append(old, j)
					}
				}
				healthy(t, c, old...)
				res, err := c.Node(i).Submit(c.Context(2*time.Second), &fsm.RecordSleep{Key: "k", Token: 1, InstanceId: "i", SleptNs: 1})
				if len(old) > 0 && fsm.CodeOf(err) != fsm.CodeWrongState {
					t.Fatalf("a command of version 3 while nodes %v know 2: %v, %v, want ErrWrongState", old, res, err)
				}
				time.Sleep(time.Second)
				healthy(t, c, old...)
			}
			c.Until(10*time.Second, "state version 3 everywhere", func() bool {
				for i := range 3 {
					if c.Node(i).View().Cluster().Version != 3 {
						return false
					}
				}
				return true
			})
			// There is no way back.
			i := (c.Leader() + 1) % 3
			c.Crash(i)
			v.set(2, i)
			c.Start(i)
			err := c.Err(i)
			if e, ok := errors.AsType[*fsm.VersionError](err); !ok || e.Need != 3 || !strings.Contains(err.Error(), "knows up to version 2, version 3 is needed: start a newer miwnode") {
				t.Fatalf("downgrade of node %d: %v, want a VersionError", i, err)
			}
			v.set(3, i)
			c.Start(i)
			c.WaitReady()
		})
	}
}

// A node whose copy is empty does not know what its cluster can apply. What it
// is asked to propose waits until it does; a leader takes nothing beyond that.
func TestUpgrade_CommandsAtAnEmptyCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v versions
		v.set(2, 0, 1, 2)
		c := nodetest.New(t, nodetest.Config{Seed: 7, Seams: v.seams})
		c.WaitReady()
		v.set(3, 3)
		i := c.AddIdle()
		c.Start(i)
		_, err := c.Node(i).Submit(c.Context(20*time.Second), &fsm.RecordSleep{Key: "k", Token: 1, InstanceId: "i", SleptNs: 1})
		if fsm.CodeOf(err) != fsm.CodeWrongState {
			t.Errorf("a command of version 3 to a cluster of version 2: %v, want ErrWrongState", err)
		}
		healthy(t, c, 0, 1, 2)
	})
}

// A cluster that nodes of two versions found begins with the smaller one.
func TestUpgrade_FoundedByTwoVersions(t *testing.T) {
	for newest := range 3 {
		synctest.Test(t, func(t *testing.T) {
			var v versions
			v.set(2, 0, 1, 2)
			v.set(3, newest)
			c := nodetest.New(t, nodetest.Config{Seed: 9, Seams: v.seams, Edit: func(i int, cfg *node.Config) { cfg.ID = fmt.Sprint("n", i) }})
			c.WaitReady()
			time.Sleep(5 * time.Second)
			healthy(t, c, 0, 1, 2)
			if got := c.Node(newest).View().Cluster().Version; got != 2 {
				t.Errorf("state version %d, want 2", got)
			}
		})
	}
}

// Who knows less than the cluster needs is told so when it joins.
func TestUpgrade_JoinOfAnOldNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v versions
		v.set(3, 0, 1, 2)
		v.set(2, 3)
		c := nodetest.New(t, nodetest.Config{Seed: 8, Seams: v.seams})
		c.WaitReady()
		i := c.AddIdle()
		c.Start(i)
		time.Sleep(10 * time.Second)
		if id := c.Node(i).ClusterID(); id != "" {
			t.Errorf("a node that knows version 2 has joined cluster %s, which is at 3", id)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := c.Node(i).Session(ctx); err == nil {
			t.Error("it has a session")
		}
	})
}
