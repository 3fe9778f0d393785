package node_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/node/nodetest"
)

// Ensures that a node that comes back has its session within a second, however
// long it was away: the leader does not wait out the pause that raft has after
// calls that failed.
func TestReturn_AtOnce(t *testing.T) {
	for _, away := range []time.Duration{3 * time.Second, 18 * time.Second, 2 * time.Minute} {
		t.Run(away.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := nodetest.New(t, nodetest.Config{Seed: 7})
				c.WaitReady()
				victim := (c.WaitLeader() + 1) % 3
				c.Crash(victim)
				time.Sleep(away)
				start := time.Now()
				c.Start(victim)
				if _, err := c.Node(victim).Session(c.Context(30 * time.Second)); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took > time.Second {
					t.Errorf("it has a session after %v", took)
				}
			})
		})
	}
}
