package node_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// Real nodes whose clocks differ by hours and by 5 %: a planted bug that starts
// work twice is found and recorded; without it nothing is.
func TestNode_DoubleRun(t *testing.T) {
	for name, tc := range map[string]struct{ bug, leaderHolds bool }{
		"no bug": {}, "a follower holds": {bug: true}, "the leader holds": {bug: true, leaderHolds: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := nodetest.New(t, nodetest.Config{
					Seed: 60, Unchecked: tc.bug,
					Seams: func(_ int, s *node.Seams) { s.Defects.DoubleRun = tc.bug },
					Clock: func(i int) (float64, time.Duration) {
						return []float64{1, 0.975, 1.025}[i], time.Duration(i) * 100 * time.Hour
					},
				})
				c.WaitReady()
				leader := c.WaitLeader()
				i := (leader + 1) % 3 // who has the lease; the others run, too
				if tc.leaderHolds {
					i = leader
				}
				token := acquire(t, c, i, "k")
				n := c.Node(i)
				run, err := n.Begin(c.Context(time.Second), "k", token)
				if err != nil {
					t.Fatal(err)
				}
				n.Started(run)
				time.Sleep(10 * time.Second)
				n.Finished(run)
				n.Returned(run)
				want := 3.0 // pairs of three runs
				if !tc.bug {
					want = 0
				}
				if got := c.Overlaps(leader); got != want {
					t.Errorf("%v overlaps, want %v", got, want)
				}
				for j := range 3 {
					recorded := 0.0
					events, _ := c.Node(j).View().Events(fsm.EventID{})
					for e := range events {
						if e.Type == fsm.EventLeaseOverlap && e.Key == "k" {
							recorded++
						}
					}
					if recorded != want {
						t.Errorf("node %d has %v overlaps in its copy, want %v", j, recorded, want)
					}
				}
			})
		})
	}
}

// A node that is stopped while it works and follows later makes no overlap.
func TestNode_PausedWhileItWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Seed: 61})
		c.WaitReady()
		i := (c.WaitLeader() + 1) % 3
		next := (i + 1) % 3
		begin := func(i int, token uint64) uint64 {
			run, err := c.Node(i).Begin(c.Context(time.Second), "k", token)
			if err != nil {
				t.Fatal(err)
			}
			c.Node(i).Started(run)
			return run
		}
		run := begin(i, acquire(t, c, i, "k"))
		time.Sleep(5 * time.Second)
		c.Pause(i)
		time.Sleep(20 * time.Second)
		begin(next, acquire(t, c, next, "k"))
		time.Sleep(5 * time.Second)
		c.Resume(i)
		time.Sleep(10 * time.Millisecond)
		c.Node(i).Finished(run)
		c.Node(i).Returned(run)
		time.Sleep(20 * time.Second)
		c.Converge()
	})
}
