package node_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
	"github.com/miwnode/miwnode/transport"
)

// peersOf reads the addresses that a node keeps in its folder.
func peersOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "peers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rec struct {
		Peers map[string]struct {
			Addr string `json:"addr"`
		} `json:"peers"`
	}
	if err := json.Unmarshal(b, &rec); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for id, p := range rec.Peers {
		all[id] = p.Addr
	}
	return all
}

// TestScenario_Seeds holds faults of stale addresses that users of such systems
// have reported.
func TestScenario_Seeds(t *testing.T) {
	// Four nodes of one cluster, the last of which has a list of dead addresses, one of
	// another cluster and a single live one; and that other cluster.
	t.Run("B-85_dead_and_foreign_addresses", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			const foreign, joiner = 3, 4
			ours, theirs := transport.NewGossipKey(), transport.NewGossipKey()
			var dead []string
			for k := range 30 {
				dead = append(dead, fmt.Sprintf("10.77.0.%d:7400", k+1))
			}
			var c *nodetest.Cluster
			live := true
			c = nodetest.New(t, nodetest.Config{Seed: 85, Nodes: 5, Idle: true, Unchecked: true, Edit: func(i int, cfg *node.Config) {
				cfg.GossipKey, cfg.BootstrapExpect, cfg.Join = ours, 3, nil
				switch i {
				case foreign:
					cfg.GossipKey, cfg.BootstrapExpect = theirs, 1
				case joiner:
					cfg.BootstrapExpect = 0
					cfg.Join = append([]string{c.Host(foreign) + ":7400"}, dead...)
					if live {
						cfg.Join = append(cfg.Join, c.Host(1)+":7400")
					}
				default:
					for j := range 3 {
						if j != i {
							cfg.Join = append(cfg.Join, c.Host(j)+":7400")
						}
					}
				}
			}})
			for i := range foreign + 1 {
				c.Start(i)
			}
			c.WaitReady(0, 1, 2, foreign)
			cluster := c.Node(0).ClusterID()
			if c.Node(foreign).ClusterID() == cluster {
				t.Fatal("there is no other cluster")
			}
			start := time.Now()
			c.Start(joiner)
			c.WaitReady(joiner)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("joining through the one live address took %v", took)
			}
			if got := c.Node(joiner).ClusterID(); got != cluster {
				t.Errorf("the node joined %q, want %q", got, cluster)
			}

			// What it remembers is as bad, and its list has nobody alive any more.
			time.Sleep(5 * time.Second) // what it heard is saved
			c.Crash(joiner)
			book := peersOf(t, c.Dir(joiner))
			if len(book) < 4 {
				t.Errorf("it remembers %v, want the four members", book)
			}
			stale := map[string]any{"format": 1}
			entries := make(map[string]any)
			for id, addr := range book {
				entries[id] = map[string]any{"addr": addr}
			}
			entries[c.Node(foreign).ID()] = map[string]any{"addr": c.Host(foreign) + ":7400"}
			for k, addr := range dead {
				entries[fmt.Sprint("dead-", k)] = map[string]any{"addr": addr, "boot": 7}
			}
			stale["peers"] = entries
			b, err := json.Marshal(stale)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(c.Dir(joiner), "peers.json"), b, 0o600); err != nil {
				t.Fatal(err)
			}
			live = false
			start = time.Now()
			c.Start(joiner)
			c.WaitReady(joiner)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("coming back through what it remembers took %v", took)
			}
			acquire(t, c, joiner, "k")
			for _, i := range []int{0, 1, 2, joiner} {
				for _, m := range c.Node(i).Members() {
					if m.NodeID == c.Node(foreign).ID() {
						t.Errorf("node %d has the foreign one as a member: %+v", i, m)
					}
				}
			}
			if l := c.Node(foreign).Status(); l.Role != node.RoleLeader || len(c.Node(foreign).Members()) != 1 {
				t.Errorf("the foreign one was disturbed: %+v, members %+v", l, c.Node(foreign).Members())
			}
		})
	})
}
