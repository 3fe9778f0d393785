package node

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

// TestScenario_LeaseRules holds scenarios whose schedules only a directed test
// can make.
func TestScenario_LeaseRules(t *testing.T) {
	t.Run("B-07_belief_comes_only_from_confirmed_answers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newFakeCluster(t, 3)
			n, rival := c.nodes[1], c.nodes[2]
			id, rid := n.openSession(), rival.openSession()
			defer n.lease.slots.claim("w", "")()
			defer rival.lease.slots.claim("w", "")()
			n.must(&fsm.Acquire{Key: "w", SessionId: id})
			rival.must(&fsm.Acquire{Key: "w", SessionId: rid, Wait: true})

			// Every answer to n's keep-alives fails, in turn each in another way,
			// while the rival's get through.
			var kind atomic.Int64
			c.mu.Lock()
			c.before = func(from *fakeNode, m transport.Method) error {
				if from != n || m != methodKeepAlive {
					return nil
				}
				switch kind.Add(1) % 4 {
				case 0:
					return fsm.Errorf(fsm.CodeNotReady, "lost leadership before")
				case 1:
					return notSent{errors.New("refused")}
				}
				return nil
			}
			c.after = func(from *fakeNode, m transport.Method) error {
				if from != n || m != methodKeepAlive {
					return nil
				}
				if kind.Load()%4 == 2 {
					return errors.New("timed out")
				}
				return errors.New("malformed reply")
			}
			c.mu.Unlock()
			stop := make(chan struct{})
			overlap := make(chan struct{}, 1)
			go func() { // the common observer
				for {
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
					}
					l, ok := rival.machine.View().Lease("w")
					if ok && l.SessionID != id && n.lease.keeper.trusted(id) > 0 {
						select {
						case overlap <- struct{}{}:
						default:
						}
					}
				}
			}()
			<-n.lease.keeper.ended(id)
			// n's requests reached the leader all the time, so its deadline moved
			// on there; n does not know, so it does not believe.
			if _, live := c.nodes[0].machine.View().Session(id); !live && kind.Load() < 4 {
				t.Error("n sent too few keep-alives for the test to show anything")
			}
			for round := kind.Load(); kind.Load() < 1000; {
				time.Sleep(time.Second)
				if kind.Load() == round {
					break // n has no session any more: nothing to renew
				}
				round = kind.Load()
			}
			close(stop)
			synctest.Wait()
			if len(overlap) > 0 {
				t.Error("n trusted a lease that the rival had")
			}
			if n.lease.keeper.trusted(id) > 0 {
				t.Error("unknown is not owner")
			}
		})
	})

	t.Run("B-13_a_leader_that_was_stopped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newFakeCluster(t, 3)
			old := c.nodes[0]
			ids := []string{old.openSession()}
			for _, n := range c.nodes[1:] {
				n.openSession()
				for i := range 50 {
					n.must(&fsm.Acquire{Key: fmt.Sprintf("%s/%d", n.id, i), SessionId: n.openSession()})
					defer n.lease.slots.claim(fmt.Sprintf("%s/%d", n.id, i), "")()
				}
				ids = append(ids, n.openSession())
			}
			time.Sleep(2 * time.Second)
			// SIGSTOP: nothing rings on the leader, nothing comes or goes, and it
			// does not know that it was replaced.
			old.clock.Freeze()
			c.isolate(old)
			time.Sleep(2 * time.Second)
			c.elect(1)
			time.Sleep(8 * time.Second)
			if _, ok := old.serving(); !ok {
				t.Fatal("the old leader knows: the test shows nothing")
			}
			index := len(c.log)
			// SIGCONT: what waits in its sockets is handled first.
			old.clock.Thaw()
			c.heal(old)
			for _, id := range ids[1:] {
				reply, err := old.lease.handleKeepAlive(timeoutIn(t, 2*time.Second), transport.Identity{NodeID: old.id, Boot: old.boot}, &nodepb.KeepAliveRequest{SessionIds: []string{id}})
				if err == nil {
					t.Errorf("a keep-alive was confirmed by a leader that was replaced 8s ago: %v", reply)
				}
			}
			time.Sleep(10 * time.Second)
			for i := index; i < len(c.log); i++ {
				b, err := fsm.DecodeBatch(c.log[i].Data)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range b.Proposals {
					for _, cmd := range p.Commands {
						if e, ok := fsm.OpOf(cmd).(*fsm.ExpireSession); ok && e.Term == 1 {
							t.Errorf("the old leader expired a session in term %d", e.Term)
						}
					}
				}
			}
			for i, n := range c.nodes[1:] {
				if n.openSession() != ids[i+1] {
					t.Errorf("%s lost its session", n.id)
				}
			}
		})
	})

	// A queued expiry of an earlier reign, committed in a later one, meets a
	// session that was renewed meanwhile.
	t.Run("expiry_of_an_earlier_reign", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newFakeCluster(t, 3)
			n := c.nodes[1]
			id := n.openSession()
			n.must(&fsm.Acquire{Key: "k", SessionId: id})
			defer n.lease.slots.claim("k", "")()
			out := c.commit(fsm.NewCommand(&fsm.ExpireSession{SessionId: id, Term: 1}))
			if code := fsm.Code(out.Proposals[0].Results[0].Code); code != fsm.CodeDone {
				t.Fatalf("in its own term: %v", code)
			}
			id = n.openSession()
			c.elect(2)
			out = c.commit(fsm.NewCommand(&fsm.ExpireSession{SessionId: id, Term: 1}))
			if code := fsm.Code(out.Proposals[0].Results[0].Code); code != fsm.CodeWrongState {
				t.Errorf("in a later term: %v, want wrong_state", code)
			}
			if n.openSession() != id {
				t.Error("the session ended")
			}
		})
	})
}
