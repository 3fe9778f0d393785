package node_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// heldDisk holds the writes of one node's log back while it is held.
type heldDisk struct {
	node atomic.Int32 // -1 = none
	held atomic.Int32 // writes that wait
	over chan error   // what becomes of them
}

func (d *heldDisk) seams(i int, s *node.Seams) {
	s.LogStore = func(int) error {
		if int(d.node.Load()) != i {
			return nil
		}
		d.held.Add(1)
		return <-d.over
	}
}

// A leader hands entries out before its own disk has them, and counts itself at
// once. What the followers have acknowledged is not committed before it has.
func TestLeader_CommitsNothingThatItsDiskHasNot(t *testing.T) {
	for name, fate := range map[string]error{"the disk goes on": nil, "the leader crashes and loses it": errors.New("the power is off")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := &heldDisk{over: make(chan error)}
				disk.node.Store(-1)
				c := nodetest.New(t, nodetest.Config{Seed: 5, Seams: disk.seams})
				c.WaitReady()
				leader := c.WaitLeader()
				other := (leader + 1) % 3
				const session = "0123456789abcdef0123456789abcdef" // a client's: it outlives the node
				open, err := c.Node(leader).Submit(c.Context(time.Second), &fsm.OpenSession{SessionId: session, TtlMs: 60_000})
				if err := errors.Join(err, fsm.ResultErr(open)); err != nil {
					t.Fatal(err)
				}
				disk.node.Store(int32(leader))
				_, err = c.Node(leader).Submit(c.Context(3*time.Second), &fsm.Acquire{Key: "k", SessionId: session})
				if !errors.Is(err, fsm.ErrUncertain) {
					t.Fatalf("with a disk that hangs the acquire ended with %v, want uncertain", err)
				}
				if disk.held.Load() == 0 {
					t.Fatal("no write was held")
				}
				for i := range 3 {
					if _, granted := c.Node(i).View().Lease("k"); granted {
						t.Fatalf("node %d has applied what the leader's disk has not", i)
					}
				}
				if c.Leader() != leader {
					t.Fatal("the leader has changed: the test shows nothing")
				}

				disk.node.Store(-1)
				settleWrites(disk.over, fate)
				if fate != nil {
					<-c.Done(leader)
					c.Until(10*time.Second, "another leader", func() bool { l := c.Leader(); return l >= 0 && l != leader })
					c.Start(leader)
					c.WaitReady()
				}
				// One follower at least had the entry, so it is committed in the end.
				c.Until(10*time.Second, "the grant", func() bool {
					_, granted := c.Node(other).View().Lease("k")
					return granted
				})
				c.Converge()
			})
		})
	}
}

// settleWrites answers the writes that wait with err.
func settleWrites(over chan error, err error) {
	go func() {
		for {
			select {
			case over <- err:
			case <-time.After(time.Second):
				close(over)
				return
			}
		}
	}()
}
