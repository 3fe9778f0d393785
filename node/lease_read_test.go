package node

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/transport"
)

// A linearizable read sees everything that was acknowledged anywhere before it,
// on a follower whose copy lags too: it waits.
func TestRead_Linearizable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		lead, n := c.nodes[0], c.nodes[1]
		id := lead.openSession()
		n.openSession()
		defer lead.lease.slots.claim("k", "")()
		n.setLag(true)
		token := lead.must(&fsm.Acquire{Key: "k", SessionId: id}).Token
		if v, fresh, err := n.lease.reader.read(t.Context(), Local); err != nil || fresh.Revision != v.Revision() {
			t.Errorf("local: %+v, %v", fresh, err)
		} else if _, ok := v.Lease("k"); ok {
			t.Error("the lagging copy has the write already: the test shows nothing")
		}
		if _, _, err := n.lease.reader.read(timeoutIn(t, time.Second), Linearizable); !errors.Is(err, fsm.ErrNoQuorum) {
			t.Errorf("a copy that does not catch up: %v, want ErrNoQuorum at the deadline", err)
		}
		go func() { time.Sleep(time.Second); n.setLag(false) }()
		v, fresh, err := n.lease.reader.read(timeoutIn(t, 5*time.Second), Linearizable)
		if err != nil {
			t.Fatal(err)
		}
		if l, ok := v.Lease("k"); !ok || l.Token != token {
			t.Errorf("lease %+v, want token %d", l, token)
		}
		if fresh.Age < time.Second || fresh.Age > 1100*time.Millisecond || fresh.Revision != v.Revision() {
			t.Errorf("freshness %+v, want an age of the 1s that it waited", fresh)
		}
	})
}

// A former leader that has not heard of the next answers no linearizable read.
func TestRead_DeposedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		old := c.nodes[0]
		old.openSession()
		c.isolate(old)
		c.elect(1)
		if _, ok := old.serving(); !ok {
			t.Fatal("the old leader knows: the test shows nothing")
		}
		began := time.Now()
		if _, _, err := old.lease.reader.read(timeoutIn(t, 2*time.Second), Linearizable); !errors.Is(err, fsm.ErrNoQuorum) {
			t.Errorf("%v, want ErrNoQuorum", err)
		}
		if d := time.Since(began); d != 2*time.Second {
			t.Errorf("took %v, want the 2s it was given", d)
		}
		if _, _, err := c.nodes[2].lease.reader.read(timeoutIn(t, 2*time.Second), Linearizable); err != nil {
			t.Errorf("through the new leader: %v", err)
		}
	})
}

// A bounded read asks the leader only when the copy may be too old; keep-alives
// keep it fresh.
func TestRead_Bounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		n.openSession()
		time.Sleep(10*time.Second + 600*time.Millisecond)
		var asked atomic.Int32
		c.mu.Lock()
		c.before = func(_ *fakeNode, m transport.Method) error {
			if m == methodReadIndex {
				asked.Add(1)
			}
			return nil
		}
		c.mu.Unlock()
		if _, fresh, err := n.lease.reader.read(t.Context(), Bounded(time.Second)); err != nil || fresh.Age > time.Second || asked.Load() != 0 {
			t.Errorf("bounded by 1s: %+v, %v, asked %d times; want the copy as it is", fresh, err, asked.Load())
		}
		if _, fresh, err := n.lease.reader.read(t.Context(), Bounded(100*time.Millisecond)); err != nil || fresh.Age > 100*time.Millisecond || asked.Load() != 1 {
			t.Errorf("bounded by 100ms: %+v, %v, asked %d times; want one question", fresh, err, asked.Load())
		}
		c.isolate(n)
		time.Sleep(5 * time.Second)
		if _, fresh, err := n.lease.reader.read(t.Context(), Local); err != nil || fresh.Age < 5*time.Second {
			t.Errorf("local while cut off: %+v, %v; want an age of 5s and more", fresh, err)
		}
		if _, _, err := n.lease.reader.read(timeoutIn(t, time.Second), Bounded(time.Second)); !errors.Is(err, fsm.ErrNoQuorum) {
			t.Errorf("bounded while cut off: %v, want ErrNoQuorum", err)
		}
	})
}

// All reads that wait share one question.
func TestRead_Shared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		n.openSession()
		var asked atomic.Int32
		c.mu.Lock()
		c.delay = 10 * time.Millisecond
		c.before = func(from *fakeNode, m transport.Method) error {
			if m == methodReadIndex {
				asked.Add(1)
			}
			return nil
		}
		c.mu.Unlock()
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if _, _, err := n.lease.reader.read(t.Context(), Linearizable); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := asked.Load(); got > 2 {
			t.Errorf("%d questions for 1000 reads, want 2 at most", got)
		}
	})
}

// A client's keep-alive goes with the node's own, waits for the local copy, and
// lists the leases; those of a session that is gone are refused.
func TestKeepAlive_Client(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		n.openSession()
		n.must(&fsm.OpenSession{SessionId: "client", TtlMs: 3000, Name: "a client", ViaNodeId: n.id})
		token := n.must(&fsm.Acquire{Key: "k", SessionId: "client"}).Token
		for range 10 {
			time.Sleep(2 * time.Second)
			a, err := n.lease.renewals.keepAlive(timeoutIn(t, time.Second), "client")
			if err != nil {
				t.Fatal(err)
			}
			if a.TTL != 3*time.Second || a.TrustedFor != 2*time.Second || len(a.Leases) != 1 || a.Leases[0].Token != token || a.Leases[0].State != fsm.Held {
				t.Fatalf("answer %+v", a)
			}
		}
		// Revoked while this copy lags: the answer waits for the copy.
		n.setLag(true)
		c.nodes[0].must(&fsm.Revoke{Key: "k", Token: token})
		if _, err := n.lease.renewals.keepAlive(timeoutIn(t, time.Second), "client"); !errors.Is(err, fsm.ErrNoQuorum) {
			t.Errorf("answer of a copy that has not seen the revoke: %v, want none", err)
		}
		n.setLag(false)
		a, err := n.lease.renewals.keepAlive(timeoutIn(t, time.Second), "client")
		if err != nil || len(a.Leases) != 1 || a.Leases[0].State != fsm.Revoked {
			t.Errorf("answer %+v, %v; want the lease as revoked", a, err)
		}
		// Through another node, too, and across an election.
		c.elect(2)
		if _, err := c.nodes[0].lease.renewals.keepAlive(timeoutIn(t, time.Second), "client"); err != nil {
			t.Errorf("through another node: %v", err)
		}
		time.Sleep(4 * time.Second)
		if _, err := n.lease.renewals.keepAlive(timeoutIn(t, time.Second), "client"); !errors.Is(err, fsm.ErrSessionExpired) {
			t.Errorf("after its TTL: %v, want ErrSessionExpired", err)
		}
	})
}

// One request carries the keep-alives of all sessions of a node that wait.
func TestKeepAlive_OneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		n.openSession()
		var ids []string
		for i := range 100 {
			ids = append(ids, newSessionID())
			n.must(&fsm.OpenSession{SessionId: ids[i], TtlMs: 3000})
		}
		var requests atomic.Int32
		c.mu.Lock()
		c.delay = 10 * time.Millisecond
		c.before = func(_ *fakeNode, m transport.Method) error {
			if m == methodKeepAlive {
				requests.Add(1)
			}
			return nil
		}
		c.mu.Unlock()
		var wg sync.WaitGroup
		for _, id := range ids {
			wg.Go(func() {
				if _, err := n.lease.renewals.keepAlive(timeoutIn(t, time.Second), id); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := requests.Load(); got > 4 {
			t.Errorf("%d requests for 100 sessions, want the first few and one for the rest", got)
		}
	})
}
