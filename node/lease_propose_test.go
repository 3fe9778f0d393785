package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

func timeoutIn(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// Concurrent commands of all nodes are applied once each, each caller sees its
// own write in its own copy, and they share entries of the log.
func TestPropose_Concurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		c.mu.Lock()
		c.delay = time.Millisecond
		c.onApply = func(*fakeNode, []byte) error { time.Sleep(time.Millisecond); return nil } // a disk
		c.mu.Unlock()
		before := len(c.log)
		var wg sync.WaitGroup
		for i, n := range c.nodes {
			id := n.openSession()
			for j := range 500 {
				wg.Go(func() {
					key := fmt.Sprintf("k/%d/%d", i, j)
					defer n.lease.slots.claim(key, "")()
					token := n.must(&fsm.Acquire{Key: key, SessionId: id}).Token
					if l, ok := n.machine.View().Lease(key); !ok || l.Token != token {
						t.Errorf("%s: own write of %s not in the local copy", n.id, key)
					}
				})
			}
		}
		wg.Wait()
		if got := c.nodes[0].machine.View().LeaseCount(); got != 1500 {
			t.Errorf("%d leases, want 1500", got)
		}
		if entries := len(c.log) - before; entries > 60 {
			t.Errorf("1500 commands took %d entries of the log", entries)
		}
	})
}

// Leadership fails in turn before the commit, after it, by a lost answer and by
// an answer that never comes: each command is applied exactly once, under one
// request ID, and its caller is told the outcome.
func TestPropose_LostLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		var fault atomic.Int32 // next: 1 before, 2 after, 3 lost answer, 4 answer never comes, 5 not sent
		c.mu.Lock()
		c.onApply = func(*fakeNode, []byte) error {
			if fault.CompareAndSwap(1, 0) {
				return fsm.Errorf(fsm.CodeUncertain, "leadership lost before the commit")
			}
			return nil
		}
		c.onCommit = func(*fakeNode, []byte) error {
			if fault.CompareAndSwap(2, 0) {
				return fsm.Errorf(fsm.CodeUncertain, "leadership lost after the commit")
			}
			return nil
		}
		c.after = func(_ *fakeNode, m transport.Method) error {
			switch {
			case m != methodPropose:
			case fault.CompareAndSwap(3, 0):
				return errors.New("connection reset")
			case fault.CompareAndSwap(4, 0):
				time.Sleep(3 * time.Second)
				return context.DeadlineExceeded
			}
			return nil
		}
		c.before = func(_ *fakeNode, m transport.Method) error {
			if m == methodPropose && fault.CompareAndSwap(5, 0) {
				return notSent{errors.New("connection refused")}
			}
			return nil
		}
		c.mu.Unlock()
		for round := range 1000 {
			key := fmt.Sprintf("k%d", round)
			drop := n.lease.slots.claim(key, "")
			want := int32(round%5 + 1)
			fault.Store(want)
			r := n.must(&fsm.Acquire{Key: key, SessionId: id})
			l, ok := n.machine.View().Lease(key)
			if !ok || l.Token != r.Token {
				t.Fatalf("round %d: told token %d, the copy has %+v", round, r.Token, l)
			}
			if fault.Load() != 0 {
				t.Fatalf("round %d: the fault %d did not happen", round, want)
			}
			n.must(&fsm.Release{Key: key, Token: r.Token, SessionId: id})
			drop()
		}
		var granted int
		for range c.nodes[0].machine.View().History(fsm.HistoryQuery{Limit: 5000}) {
			granted++
		}
		if granted != 1000 {
			t.Errorf("%d grants for 1000 acquires, want each applied once", granted)
		}
	})
}

// The three outcomes at the end of a caller's context.
func TestPropose_Outcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		lead, n := c.nodes[0], c.nodes[1]
		id := n.openSession()
		acquire := func(key string) error {
			_, err := n.lease.proposer.propose(timeoutIn(t, time.Second), &fsm.Acquire{Key: key, SessionId: id})
			return err
		}
		// Nobody leads: surely not applied.
		c.depose(lead)
		began := time.Now()
		err := acquire("never-sent")
		if !errors.Is(err, fsm.ErrNoQuorum) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a leader: %v, want ErrNoQuorum and the cause", err)
		}
		if d := time.Since(began); d != time.Second {
			t.Errorf("took %v, want the 1s it was given", d)
		}
		// The leader takes it and can't commit: nobody knows.
		c.elect(0)
		c.setCut(true, lead, c.nodes[2])
		c.setCut(true, c.nodes[2], lead)
		c.mu.Lock()
		n.now = lead.now + 1 // n has voted for somebody else: no majority
		c.mu.Unlock()
		err = acquire("unknown")
		if !errors.Is(err, fsm.ErrUncertain) {
			t.Errorf("sent and not answered: %v, want ErrUncertain", err)
		}
		var detail *fsm.Error
		if !errors.As(err, &detail) {
			t.Fatal("no *fsm.Error")
		}
		// Asked again under its request ID when there is a leader: applied once.
		c.heal(lead)
		c.elect(2)
		request, ok := detail.Detail.(RequestID)
		if !ok {
			t.Fatalf("detail %v, want a RequestID", detail.Detail)
		}
		defer n.lease.slots.claim("unknown", "")()
		op := &fsm.Acquire{Key: "unknown", SessionId: id}
		first, err := n.lease.proposer.propose(timeoutIn(t, 2*time.Second), op, WithRequest(request))
		if err != nil {
			t.Fatal(err)
		}
		again, err := n.lease.proposer.propose(timeoutIn(t, 2*time.Second), op, WithRequest(request))
		if !errors.Is(err, fsm.ErrUncertain) {
			t.Errorf("a request ID whose answer was given: %+v, %v; want ErrUncertain", again, err)
		}
		if l, ok := n.machine.View().Lease("unknown"); !ok || l.Token != first.Token {
			t.Errorf("lease %+v, want token %d", l, first.Token)
		}
		// A command that is out of bounds is refused before it is sent.
		if _, err := n.lease.proposer.propose(t.Context(), &fsm.Acquire{Key: "", SessionId: id}); !errors.Is(err, fsm.ErrInvalidArgument) {
			t.Errorf("empty key: %v, want ErrInvalidArgument", err)
		}
		// A refusal is a result.
		defer c.nodes[2].lease.slots.claim("taken", "")()
		c.nodes[2].must(&fsm.Acquire{Key: "taken", SessionId: c.nodes[2].openSession()})
		r, err := n.lease.proposer.propose(t.Context(), &fsm.Acquire{Key: "taken", SessionId: id})
		if err != nil || fsm.Code(r.GetCode()) != fsm.CodeLeaseHeld {
			t.Errorf("a held lease: %v, %v; want the result lease_held and no error", r, err)
		}
	})
}

// An uncertain command that was applied is answered as the first time when it is
// asked for again, though many others came in between.
func TestPropose_RepeatOfAnAppliedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		c.mu.Lock()
		c.onCommit = func(*fakeNode, []byte) error {
			return fsm.Errorf(fsm.CodeUncertain, "leadership lost after the commit")
		}
		c.mu.Unlock()
		defer n.lease.slots.claim("k", "")()
		op := &fsm.Acquire{Key: "k", SessionId: id}
		_, err := n.lease.proposer.propose(timeoutIn(t, time.Second), op)
		e, ok := errors.AsType[*fsm.Error](err)
		if !ok || e.Code != fsm.CodeUncertain {
			t.Fatalf("%v, want ErrUncertain", err)
		}
		c.mu.Lock()
		c.onCommit = nil
		c.mu.Unlock()
		for i := range 100 {
			defer n.lease.slots.claim(fmt.Sprint(i), "")()
			n.must(&fsm.Acquire{Key: fmt.Sprint(i), SessionId: id})
		}
		l, _ := n.machine.View().Lease("k")
		r, err := n.lease.proposer.propose(timeoutIn(t, time.Second), op, WithRequest(e.Detail.(RequestID)))
		if err != nil || r.Token != l.Token {
			t.Errorf("%v, %v; want the first answer, token %d", r, err, l.Token)
		}
		// After its minute the ID is let go, and nothing holds the mark down.
		time.Sleep(2 * heldFor)
		n.must(&fsm.Release{Key: "0", Token: mustLease(t, n, "0").Token, SessionId: id})
		p := n.lease.proposer
		p.mu.Lock()
		defer p.mu.Unlock()
		if span := p.window.span(); span > 1 || len(p.held) != 0 {
			t.Errorf("%d request IDs open, %d held; want none", span, len(p.held))
		}
	})
}

func mustLease(t *testing.T, n *fakeNode, key string) *fsm.Lease {
	t.Helper()
	l, ok := n.machine.View().Lease(key)
	if !ok {
		t.Fatalf("%s: no lease %s", n.id, key)
	}
	return l
}

// The queue is bounded; what was refused was not sent, and it drains.
func TestPropose_Overload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		c.depose(c.nodes[0])
		var full, done atomic.Int32
		var wg sync.WaitGroup
		const limit = 1000
		n.lease.proposer.mu.Lock()
		n.lease.proposer.limit = limit
		n.lease.proposer.mu.Unlock()
		for i := range limit + 1000 {
			wg.Go(func() {
				_, err := n.lease.proposer.propose(context.Background(), &fsm.Acquire{Key: fmt.Sprint(i), SessionId: id})
				switch {
				case err == nil:
					done.Add(1)
				case errors.Is(err, fsm.ErrOverloaded):
					full.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if full.Load() < 1000 || full.Load() > 1100 {
			t.Errorf("%d refused, want 1000 and a few for the session's own", full.Load())
		}
		back := make(chan error, 1) // what gives something back still gets in
		go func() {
			_, err := n.lease.proposer.propose(context.Background(), &fsm.Release{Key: "k", Token: 1, SessionId: id})
			back <- err
		}()
		c.elect(2)
		wg.Wait()
		if err := <-back; err != nil {
			t.Errorf("release while the queue was full: %v", err)
		}
		if got := done.Load(); got != limit+1000-full.Load() {
			t.Errorf("%d done of %d", got, limit+1000-full.Load())
		}
	})
}

// A caller that gives up while its command waits takes it back.
func TestPropose_Cancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		c.depose(c.nodes[0])
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan error, 1)
		go func() {
			_, err := n.lease.proposer.propose(ctx, &fsm.Acquire{Key: "k", SessionId: id})
			got <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-got; !errors.Is(err, fsm.ErrNoQuorum) || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want ErrNoQuorum and context.Canceled", err)
		}
		c.elect(0)
		time.Sleep(5 * time.Second)
		if _, ok := n.machine.View().Lease("k"); ok {
			t.Error("a command that its caller took back was applied")
		}
	})
}

// A node that stops answers everybody.
func TestPropose_Stop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.nodes[1]
		id := n.openSession()
		c.isolate(c.nodes[0])
		got := make(chan error, 1)
		go func() {
			_, err := n.lease.proposer.propose(context.Background(), &fsm.Acquire{Key: "sent", SessionId: id})
			got <- err
		}()
		synctest.Wait()
		n.stop()
		if err := <-got; !errors.Is(err, fsm.ErrUncertain) {
			t.Errorf("sent: %v, want ErrUncertain", err)
		}
		if _, err := n.lease.proposer.propose(context.Background(), &fsm.Acquire{Key: "k", SessionId: id}); !errors.Is(err, fsm.ErrClosing) {
			t.Errorf("after the stop: %v, want ErrClosing", err)
		}
	})
}

// What a peer sends goes into the log as it is, so its frame must be right.
func TestPropose_MalformedProposal(t *testing.T) {
	p := &proposer{self: holder{nodeID: "n1", boot: 3}, clock: NewTestClock(1, 0), window: window{low: 1, next: 5}}
	good := p.appendProposal(nil, []*command{{seq: 2, body: []byte{1, 2}}, {seq: 300, body: nil}})
	me := sender{"n1", 3}
	if _, err := checkProposal(good, 2, me); err != nil {
		t.Errorf("a good one: %v", err)
	}
	for name, bad := range map[string][]byte{
		"empty":        {},
		"cut":          good[:len(good)-1],
		"trailing":     append(append([]byte{}, good...), 0x10, 1),
		"two":          append(append([]byte{}, good...), good...),
		"not a record": {0x10, 1},
		"field 6":      {0x0a, 2, 0x30, 1},
	} {
		if _, err := checkProposal(bad, 2, me); !errors.Is(err, fsm.ErrInvalidArgument) {
			t.Errorf("%s: %v, want ErrInvalidArgument", name, err)
		}
	}
	if _, err := checkProposal(good, 3, me); !errors.Is(err, fsm.ErrInvalidArgument) {
		t.Errorf("3 commands announced, 2 there: %v, want ErrInvalidArgument", err)
	}
	// A peer proposes in its own name only: request IDs are of a node's boot.
	for _, other := range []sender{{"n2", 3}, {"n1", 2}, {"n1", 4}, {}} {
		if _, err := checkProposal(good, 2, other); !errors.Is(err, fsm.ErrPermissionDenied) {
			t.Errorf("from %+v: %v, want ErrPermissionDenied", other, err)
		}
	}
	// A field that is given twice counts as it is decoded: the last.
	twice := append([]byte{}, good...)
	twice = append(twice, 0x0a, 2, 'n', '2') // node_id again, inside the proposal
	twice[1] += 4
	if _, err := checkProposal(twice, 2, me); !errors.Is(err, fsm.ErrPermissionDenied) {
		t.Errorf("another name hidden behind the right one: %v, want ErrPermissionDenied", err)
	}
}

// The leader takes proposals under the name of the greeting only.
func TestPropose_InAnothersName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		leader, victim := c.nodes[0], c.nodes[1]
		cmd := &command{seq: 1, body: mustMarshal(t, fsm.NewCommand(&fsm.OpenSession{SessionId: "forged", TtlMs: 6000}))}
		victim.lease.proposer.mu.Lock()
		q := &nodepb.ProposeRequest{Batch: victim.lease.proposer.appendProposal(nil, []*command{cmd}), Commands: 1}
		victim.lease.proposer.mu.Unlock()
		for _, peer := range []transport.Identity{{NodeID: "n2", Boot: 1}, {NodeID: "n1", Boot: 2}} {
			if _, err := leader.lease.handlePropose(t.Context(), peer, q); !errors.Is(err, fsm.ErrPermissionDenied) {
				t.Errorf("boot %d of %s in the name of n1: %v, want ErrPermissionDenied", peer.Boot, peer.NodeID, err)
			}
		}
		if _, ok := leader.machine.View().Session("forged"); ok {
			t.Error("a forged proposal was applied")
		}
		if _, err := leader.lease.handlePropose(t.Context(), transport.Identity{NodeID: "n1", Boot: 1}, q); err != nil {
			t.Errorf("in its own name: %v", err)
		}
	})
}

func mustMarshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Proposals that are written by hand and put end to end are the batch that the
// state decodes.
func TestPropose_Encoding(t *testing.T) {
	p := &proposer{self: holder{nodeID: "n1", boot: 3}, clock: NewTestClock(1, 0), window: window{low: 7, next: 9}}
	body := []byte{0x52, 0} // an InitCluster without content
	data := p.appendProposal(nil, []*command{{seq: 7, body: body}, {seq: 1 << 40, body: body}})
	p.self.nodeID = "another"
	data = p.appendProposal(data, []*command{{seq: 8, body: body}})
	data = fsm.AppendStamp(data, 12345)
	b, err := fsm.DecodeBatch(data)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(b.Stamp)
	for _, p := range b.Proposals {
		got += fmt.Sprintf(" %s/%d low %d v%d:", p.NodeId, p.Boot, p.LowWater, p.Version)
		for _, c := range p.Commands {
			got += fmt.Sprintf(" %d %T", c.Seq, fsm.OpOf(c))
		}
	}
	want := "12345 n1/3 low 7 v1: 7 *fsmpb.InitCluster 1099511627776 *fsmpb.InitCluster another/3 low 7 v1: 8 *fsmpb.InitCluster"
	if got != want {
		t.Errorf("decoded %s\nwant    %s", got, want)
	}
}

// The low-water mark follows the answers, in whatever order they come.
func TestPropose_Window(t *testing.T) {
	w := window{low: 1, next: 1}
	for range 5 {
		w.take()
	}
	for _, step := range []struct{ finish, low uint64 }{{2, 1}, {4, 1}, {1, 3}, {1, 3}, {9, 3}, {3, 5}, {5, 6}} {
		if w.finish(step.finish); w.low != step.low {
			t.Errorf("after %d: low %d, want %d", step.finish, w.low, step.low)
		}
	}
	if len(w.finished) != 0 {
		t.Errorf("%d IDs left above the mark", len(w.finished))
	}
}

// The planted defect tells of a release that may never be committed.
func TestPropose_AckBeforeCommitDefect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3, func(_ int, cfg *leaseConfig) { cfg.defects.AckBeforeCommit = true })
		n := c.nodes[1]
		id := n.openSession()
		defer n.lease.slots.claim("k", "")()
		token := n.must(&fsm.Acquire{Key: "k", SessionId: id}).Token
		c.depose(c.nodes[0])
		if r := n.must(&fsm.Release{Key: "k", Token: token, SessionId: id}); r.GetCode() != 0 {
			t.Errorf("%v, want an early yes", r)
		}
		if _, ok := n.machine.View().Lease("k"); !ok {
			t.Error("the release was committed without a leader")
		}
	})
}
