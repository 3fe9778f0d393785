package node

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/miwnode/miwnode/fsm"
)

// lessorBench is a lessor over a real state, whose proposals the test may fail.
type lessorBench struct {
	t        *testing.T
	l        *lessor
	clock    *TestClock
	machine  *fsm.Machine
	mu       sync.Mutex
	index    uint64
	term     uint64 // entries are applied in
	fail     error  // of the next proposals
	tried    int
	proposed []fsm.Op
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

func newLessorBench(t *testing.T) *lessorBench {
	b := &lessorBench{t: t, clock: NewTestClock(1, 0), term: 1}
	b.machine = fsm.NewMachine(fsm.MachineOptions{OnApplied: func(o *fsm.Outcome) { b.l.applied(o) }})
	b.l = newLessor(leaseConfig{clock: b.clock, machine: b.machine, log: discardLog}, b.duty)
	b.apply(&fsm.InitCluster{ClusterId: "test", Version: fsm.Version})
	t.Cleanup(b.depose)
	return b
}

// apply applies one command at once, in an entry of its own.
func (b *lessorBench) apply(ops ...fsm.Op) []*fsm.Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &fsm.Proposal{NodeId: "n0", Boot: 1}
	for _, op := range ops {
		p.Commands = append(p.Commands, fsm.NewCommand(op))
	}
	data, err := fsm.EncodeBatch(&fsm.Batch{Proposals: []*fsm.Proposal{p}, Stamp: 1})
	if err != nil {
		b.t.Fatal(err)
	}
	b.index++
	out := b.machine.Apply(&raft.Log{Index: b.index, Term: b.term, Type: raft.LogCommand, Data: data}).(*fsm.Outcome)
	if out.Err != nil {
		b.t.Fatal(out.Err)
	}
	return out.Proposals[0].Results
}

func (b *lessorBench) duty(_ context.Context, _ uint64, ops ...fsm.Op) ([]*fsm.Result, error) {
	b.mu.Lock()
	b.tried++
	b.proposed = append(b.proposed, ops...)
	err := b.fail
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return b.apply(ops...), nil
}

func (b *lessorBench) setFail(err error) { b.mu.Lock(); b.fail = err; b.mu.Unlock() }

func (b *lessorBench) entries() uint64 { b.mu.Lock(); defer b.mu.Unlock(); return b.index }
func (b *lessorBench) tries() int      { b.mu.Lock(); defer b.mu.Unlock(); return b.tried }

// sizes are those of the lessor's memory.
func (b *lessorBench) sizes() (sessions, places int) {
	b.l.mu.Lock()
	defer b.l.mu.Unlock()
	return len(b.l.sessions), len(b.l.queue)
}

// elect starts a reign.
func (b *lessorBench) elect(term uint64) {
	b.depose()
	b.mu.Lock()
	b.term = term
	b.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	b.wg.Go(func() { _ = b.l.serve(ctx, term) })
	synctest.Wait()
}

func (b *lessorBench) depose() {
	if b.cancel != nil {
		b.cancel()
		b.wg.Wait()
	}
}

func (b *lessorBench) open(id string, ttl time.Duration) {
	b.t.Helper()
	b.ok(&fsm.OpenSession{SessionId: id, TtlMs: ttl.Milliseconds(), InstanceId: "i-" + id})
}

func (b *lessorBench) ok(op fsm.Op) *fsm.Result {
	b.t.Helper()
	r := b.apply(op)[0]
	if err := fsm.ResultErr(r); err != nil {
		b.t.Fatalf("%T: %v", op, err)
	}
	return r
}

func (b *lessorBench) renew(term uint64, id string) renewal {
	b.t.Helper()
	out, ok := b.l.renew(term, []string{id}, b.clock.boot(), nil)
	if !ok {
		b.t.Fatalf("the lessor does not serve term %d", term)
	}
	return out[0]
}

func (b *lessorBench) live(id string) bool { _, ok := b.machine.View().Session(id); return ok }

// lives tells how long from now on a session is there; at most max.
func (b *lessorBench) lives(id string, max time.Duration) time.Duration {
	began := time.Now()
	for b.live(id) && time.Since(began) < max {
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

func near(got, want time.Duration) bool { return got >= want && got <= want+20*time.Millisecond }

// A session that is silent for its TTL is expired, and not before; one that is
// renewed is not.
func TestLessor_Expiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLessorBench(t)
		b.elect(1)
		b.open("s", 6*time.Second)
		time.Sleep(4 * time.Second)
		if got := b.renew(1, "s"); got != renewed {
			t.Fatalf("renewal: %v", got)
		}
		if got := b.lives("s", time.Minute); !near(got, 6*time.Second) {
			t.Errorf("lived %v after its last renewal, want 6s", got)
		}
		synctest.Wait() // the lessor has heard of it
		if got := b.renew(1, "s"); got != unknown {
			t.Errorf("renewal of a session that is gone: %v, want unknown", got)
		}
	})
}

// A keep-alive never takes time away, in whatever order they are handled.
func TestLessor_RenewalNeverMovesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLessorBench(t)
		b.elect(1)
		b.open("s", 6*time.Second)
		time.Sleep(2 * time.Second)
		b.renew(1, "s")
		if _, ok := b.l.renew(1, []string{"s"}, b.clock.boot()-2*time.Second, nil); !ok {
			t.Fatal("not served")
		}
		if got := b.lives("s", time.Minute); !near(got, 6*time.Second) {
			t.Errorf("lived %v, want 6s", got)
		}
	})
}

// A new leader does not know what the former has confirmed: every session has a
// full TTL from its barrier on.
func TestLessor_NewTermGivesFreshTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLessorBench(t)
		b.elect(1)
		b.open("s", 6*time.Second)
		time.Sleep(5 * time.Second)
		b.elect(2)
		if _, ok := b.l.renew(1, []string{"s"}, b.clock.boot(), nil); ok {
			t.Error("a keep-alive of the former term was taken")
		}
		if got := b.lives("s", time.Minute); !near(got, 6*time.Second) {
			t.Errorf("lived %v in the new term, want 6s", got)
		}
	})
}

// Once an expiry is proposed this leader renews the session no more, whatever
// comes of the proposal: it may still be committed.
func TestLessor_NoRenewalWhileExpiring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLessorBench(t)
		b.elect(1)
		b.open("s", 6*time.Second)
		b.setFail(fsm.ErrUncertain)
		time.Sleep(7 * time.Second)
		if !b.live("s") {
			t.Fatal("expired though no proposal got through")
		}
		if got := b.renew(1, "s"); got != expiring {
			t.Errorf("renewal: %v, want expiring", got)
		}
		before := b.tries()
		time.Sleep(time.Second)
		if n := b.tries() - before; n < 5 {
			t.Errorf("proposed %d times in a second, want again and again", n)
		}
		b.setFail(nil)
		time.Sleep(time.Second)
		if b.live("s") {
			t.Error("not expired once proposals get through")
		}
	})
}

// A decision that is left over from an earlier reign does not hit a session that
// a leader in between has renewed.
func TestLessor_DecisionOfAnEarlierTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLessorBench(t)
		b.elect(1)
		b.open("s", 6*time.Second)
		b.setFail(fsm.ErrUncertain) // the proposal hangs somewhere
		time.Sleep(6500 * time.Millisecond)
		b.depose()
		b.setFail(nil)
		b.elect(2)
		if got := b.renew(2, "s"); got != renewed {
			t.Fatalf("renewal in the next term: %v, want renewed", got)
		}
		late := b.proposed[0].(*fsm.ExpireSession)
		if late.Term != 1 {
			t.Fatalf("the decision carries term %d, want 1", late.Term)
		}
		if r := b.apply(late)[0]; fsm.Code(r.Code) != fsm.CodeWrongState || !b.live("s") {
			t.Errorf("the old decision in term 2: %v, session live %v; want wrong_state and live", fsm.Code(r.Code), b.live("s"))
		}
	})
}

// A leader that was stopped gives everybody that time back before it expires
// anybody; stopped by a pause (nothing rings) or a suspend (the clock jumps).
func TestLessor_PauseGivesTimeBack(t *testing.T) {
	for name, stop := range map[string]func(c *TestClock){
		"pause":   func(c *TestClock) { c.Freeze(); time.Sleep(10 * time.Second); c.Thaw() },
		"suspend": func(c *TestClock) { c.Suspend(10 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newLessorBench(t)
				b.elect(1)
				b.open("s", 6*time.Second)
				token := b.ok(&fsm.Acquire{Key: "k", SessionId: "s"}).Token
				b.ok(&fsm.Revoke{Key: "k", Token: token})
				time.Sleep(2 * time.Second)
				stop(b.clock)
				synctest.Wait()
				if !b.live("s") {
					t.Fatal("expired at once after the pause")
				}
				if got := b.lives("s", time.Minute); got < 3800*time.Millisecond || got > 4300*time.Millisecond {
					t.Errorf("lived %v after the pause, want the 4s that it had left", got)
				}
				if _, ok := b.machine.View().Lease("k"); ok {
					t.Error("the revoked lease outlived the session")
				}
			})
		})
	}
}

// A revoked lease is freed T after the revoke, T being the TTL of its holder's
// session, and a new leader waits a full T again.
func TestLessor_Revoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLessorBench(t)
		b.elect(1)
		b.open("s", 6*time.Second)
		b.open("long", 20*time.Second)
		freedAfter := func(key, session string) time.Duration {
			began := time.Now()
			for time.Since(began) < time.Minute {
				if _, ok := b.machine.View().Lease(key); !ok {
					return time.Since(began)
				}
				time.Sleep(10 * time.Millisecond)
				b.renew(b.term, session)
			}
			return time.Minute
		}
		revoke := func(key, session string) {
			token := b.ok(&fsm.Acquire{Key: key, SessionId: session}).Token
			b.ok(&fsm.Revoke{Key: key, Token: token})
		}
		revoke("k", "s")
		if got := freedAfter("k", "s"); !near(got, 6*time.Second) {
			t.Errorf("freed after %v, want T = 6s", got)
		}
		revoke("l", "long")
		if got := freedAfter("l", "long"); !near(got, 20*time.Second) {
			t.Errorf("freed after %v, want T = 20s, the holder's", got)
		}
		if !b.live("long") {
			t.Fatal("a revoke ended the session")
		}
		revoke("m", "long")
		time.Sleep(15 * time.Second)
		b.elect(2)
		if got := freedAfter("m", "long"); !near(got, 20*time.Second) {
			t.Errorf("in a new term freed after %v, want a full T = 20s", got)
		}
	})
}

// Lock delays and marks run out by the leader's clock, in full in a new term.
func TestLessor_BarsAndMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLessorBench(t)
		b.elect(1)
		b.open("s", 6*time.Second)
		b.ok(&fsm.Acquire{Key: "k", SessionId: "s", LockDelayMs: 3000})
		time.Sleep(6100 * time.Millisecond)
		if l, ok := b.machine.View().Lease("k"); !ok || l.State != fsm.Barred {
			t.Fatalf("after the expiry: %+v, want barred", l)
		}
		time.Sleep(2 * time.Second)
		b.elect(2)
		time.Sleep(2900 * time.Millisecond)
		if _, ok := b.machine.View().Lease("k"); !ok {
			t.Error("the bar ended before its full time in the new term")
		}
		time.Sleep(200 * time.Millisecond)
		if _, ok := b.machine.View().Lease("k"); ok {
			t.Error("the bar did not end")
		}

		b.open("d", 60*time.Second)
		b.ok(&fsm.MarkInstance{InstanceId: "i-d", Mark: fsm.MarkCordon, ExpiresInMs: 5000})
		time.Sleep(3 * time.Second)
		b.ok(&fsm.MarkInstance{InstanceId: "i-d", Mark: fsm.MarkCordon, ExpiresInMs: 5000}) // set anew
		time.Sleep(3 * time.Second)
		if s, _ := b.machine.View().Instance("i-d"); s.Cordon == nil {
			t.Error("the first mark's end cleared the second")
		}
		time.Sleep(2100 * time.Millisecond)
		if s, _ := b.machine.View().Instance("i-d"); s.Cordon != nil {
			t.Error("the mark did not run out")
		}
	})
}

// Ten thousand sessions that end together are ended in a few entries, and those
// that are renewed cost no place in the queue.
func TestLessor_ManySessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLessorBench(t)
		b.elect(1)
		var ids []string
		for i := range 10000 {
			id := fmt.Sprintf("s%d", i)
			ids = append(ids, id)
			if len(ids)%1000 == 0 {
				var ops []fsm.Op
				for _, id := range ids[i-999:] {
					ops = append(ops, &fsm.OpenSession{SessionId: id, TtlMs: 6000})
				}
				b.apply(ops...)
			}
		}
		for range 20 {
			time.Sleep(time.Second)
			for i := 0; i < len(ids); i += 1000 {
				if _, ok := b.l.renew(1, ids[i:i+1000], b.clock.boot(), nil); !ok {
					t.Fatal("not served")
				}
			}
		}
		if _, n := b.sizes(); n != 10000 {
			t.Errorf("%d places in the queue for 10000 sessions", n)
		}
		index := b.entries()
		time.Sleep(7 * time.Second)
		if n := b.entries() - index; n != 10 {
			t.Errorf("%d entries to expire 10000 sessions, want 10 of %d", n, dutyBatch)
		}
		for range b.machine.View().Sessions() {
			t.Fatal("sessions are left")
		}
		if sessions, places := b.sizes(); sessions != 0 || places != 0 {
			t.Errorf("%d sessions and %d places are left in memory", sessions, places)
		}
	})
}
