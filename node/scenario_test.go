package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// bubble runs a scenario on a cluster in a bubble.
func bubble(t *testing.T, name string, cfg nodetest.Config, f func(t *testing.T, c *nodetest.Cluster)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := nodetest.New(t, cfg)
			f(t, c)
		})
	})
}

// TestScenario holds faults that users of such systems have reported.
func TestScenario(t *testing.T) {
	bubble(t, "B-21_no_quorum_ends_in_time", nodetest.Config{Seed: 21}, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		session, err := c.Node(0).Session(c.Context(5 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		c.Crash(1)
		c.Crash(2)
		start := time.Now()
		_, err = c.Node(0).Submit(c.Context(2*time.Second), &fsm.Acquire{Key: "k", SessionId: session, Wait: true})
		if took := time.Since(start); took > 2100*time.Millisecond {
			t.Errorf("the call returned after %v", took)
		}
		if !errors.Is(err, fsm.ErrNoQuorum) && !errors.Is(err, fsm.ErrUncertain) {
			t.Errorf("the call says %v", err)
		}
		// Once it is known that nobody leads, nothing is uncertain about it.
		time.Sleep(2 * time.Second)
		start = time.Now()
		_, err = c.Node(0).Submit(c.Context(2*time.Second), &fsm.Acquire{Key: "k2", SessionId: session, Wait: true})
		if took := time.Since(start); !errors.Is(err, fsm.ErrNoQuorum) || took > 2100*time.Millisecond {
			t.Errorf("the second call says %v after %v", err, took)
		}
		if c.Node(0).ReadyErr() == nil || c.Node(0).Status().Quorum.OK {
			t.Error("without a quorum the node claims to be ready")
		}
	})

	bubble(t, "B-31_no_loss_by_a_dead_peer", nodetest.Config{Seed: 31, Nodes: 5}, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		leader := c.WaitLeader()
		holder := (leader + 1) % 5
		token := acquire(t, c, holder, "k")
		session, err := c.Node(holder).Session(c.Context(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		ending := c.Node(holder).SessionEnding(session)
		c.Crash((leader + 2) % 5)
		time.Sleep(15 * time.Second)
		c.Crash(leader)
		time.Sleep(15 * time.Second)
		select {
		case <-ending:
			t.Error("the session ended")
		default:
		}
		l, ok := c.Node(holder).View().Lease("k")
		if !ok || l.Token != token || l.State != fsm.Held {
			t.Errorf("the lease is now %+v", l)
		}
		if err := c.Node(holder).Confirm(c.Context(time.Second), session); err != nil {
			t.Errorf("confirm: %v", err)
		}
	})

	bubble(t, "B-39_flips_with_a_slow_subscriber", nodetest.Config{Seed: 39}, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		// The subscriber takes five seconds over each change.
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			wake, stop := c.Node(0).Watch(fsm.AllTopic)
			defer stop()
			for ctx.Err() == nil {
				select {
				case <-wake:
					time.Sleep(5 * time.Second)
				case <-ctx.Done():
				}
			}
		}()
		var term uint64
		for range 200 {
			l := c.WaitLeader()
			if err := c.Node(l).StepDown(c.Context(2*time.Second), ""); err != nil && !errors.Is(err, fsm.ErrNoQuorum) {
				t.Fatalf("step down: %v", err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		l := c.WaitLeader()
		term = c.Node(l).Status().Term
		if term < 150 {
			t.Errorf("term %d after 200 flips", term)
		}
		// One set of duties, on the true leader: it expires what is dead, and
		// nobody else records itself as leader of the term.
		if got := c.Node(l).View().Cluster(); got.LeaderID != c.Node(l).ID() || got.LeaderTerm != term {
			t.Errorf("the state names leader %s of term %d, it is %s of term %d", got.LeaderID, got.LeaderTerm, c.Node(l).ID(), term)
		}
		victim := (l + 1) % 3
		acquire(t, c, victim, "k")
		c.Crash(victim)
		c.Until(12*time.Second, "the dead holder's lease to end", func() bool { return holderOf(c, l, "k") < 0 })
		acquire(t, c, l, "k")
	})

	bubble(t, "B-41_step_down_answers_in_time", nodetest.Config{Seed: 41}, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		step := func(i int, to string, want error, what string) {
			t.Helper()
			start := time.Now()
			err := c.Node(i).StepDown(context.Background(), to)
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("%s: answered after %v", what, took)
			}
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		leader := c.WaitLeader()
		step((leader+1)%3, "nobody", fsm.ErrNotFound, "to a stranger")
		step((leader+1)%3, c.Node((leader+1)%3).ID(), nil, "asked of a follower, to itself")
		c.Until(time.Second, "the named leader", func() bool { return c.Leader() == (leader+1)%3 })
		leader = c.WaitLeader()
		// To a node that can't catch up.
		lost := (leader + 1) % 3
		c.Isolate(lost)
		acquire(t, c, leader, "k")
		before := c.Node(leader).View().Cluster().LeaderTerm
		step(leader, c.Node(lost).ID(), fsm.ErrUncertain, "to one that is cut off")
		c.Until(10*time.Second, "a leader after the restart of raft that takes commands", func() bool {
			l := c.Leader()
			return l >= 0 && l != lost && c.Node(l).View().Cluster().LeaderTerm > before && c.Node(l).ReadyErr() == nil
		})
		acquire(t, c, c.Leader(), "k2")
		// On a candidate.
		c.Isolate(c.Leader())
		alone := 3 - lost - c.Leader()
		time.Sleep(3 * time.Second)
		step(alone, "", fsm.ErrNoQuorum, "on a candidate without a quorum")
	})

	bubble(t, "B-61_nothing_from_replayed_state", nodetest.Config{Seed: 61}, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		leader := c.WaitLeader()
		a, b := (leader+1)%3, leader
		acquire(t, c, a, "w")
		old, _ := c.Node(a).View().Lease("w")
		c.Crash(a)
		c.Until(15*time.Second, "the lease to run out", func() bool { return holderOf(c, b, "w") < 0 })
		acquire(t, c, b, "w")
		session, err := c.Node(b).Session(c.Context(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		entries := 3000
		if testing.Short() {
			entries = 500
		}
		for i := range entries {
			if _, err := c.Node(b).Submit(context.Background(), &fsm.Acquire{Key: fmt.Sprint("fill", i%50), SessionId: session}); err != nil {
				t.Fatal(err)
			}
		}
		// Alone it has nothing but what it can replay, by which w is its own.
		c.Isolate(a)
		c.Start(a)
		n := c.Node(a)
		for range 20 {
			time.Sleep(500 * time.Millisecond)
			if err := n.ReadyErr(); !errors.Is(err, fsm.ErrNotReady) || n.Status().Ready {
				t.Errorf("with nothing but its log the node says that it is ready: %v", err)
			}
			if n.Trusted(old.SessionID) > 0 {
				t.Error("it trusts a session of its former start")
			}
		}
		if err := n.Confirm(c.Context(time.Second), old.SessionID); err == nil {
			t.Error("a session of its former start was confirmed")
		}
		if _, err := n.Session(c.Context(time.Second)); err == nil {
			t.Error("it has a session")
		}
		if _, _, err := n.Read(c.Context(time.Second), node.Linearizable); err == nil {
			t.Error("a read was answered")
		}
		c.Rejoin(a)
		for n.ReadyErr() != nil {
			if n.Status().Ready {
				t.Fatal("ready and not ready")
			}
			time.Sleep(time.Millisecond)
		}
		if h := holderOf(c, a, "w"); h != b {
			t.Errorf("the node that is ready again sees holder %d, want %d", h, b)
		}
		c.Converge()
	})

	bubble(t, "B-65_a_command_whose_leader_died_before_the_answer", nodetest.Config{Seed: 65}, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		leader := c.WaitLeader()
		a, other := (leader+1)%3, (leader+2)%3
		create := &fsm.CreateWorker{WorkerId: "w" + strings.Repeat("a", 26), Name: "r1", Runtime: "exec", Source: "./r1"}
		key := node.WithIdempotency("r1", bytes.Repeat([]byte{1}, 32))
		acquire(t, c, a, "k")
		// No answer reaches a, and the other one acknowledges the entry.
		c.Net.CutOneWay(c.Host(leader), c.Host(a))
		type answer struct {
			res *fsm.Result
			err error
		}
		answered := make(chan answer, 1)
		go func() {
			res, err := c.Node(a).Propose(c.Context(time.Minute), create, key)
			answered <- answer{res, err}
		}()
		c.Until(2*time.Second, "the commit", func() bool { return c.Node(other).View().WorkerCount() == 1 })
		select {
		case got := <-answered:
			t.Fatalf("answered already: %+v", got)
		default:
		}
		c.Crash(leader)
		c.Net.HealAll()
		first := <-answered
		if first.err != nil || first.res.Code != 0 {
			t.Fatalf("the retry: %v, %v", first.res, first.err)
		}
		// Through another node, as a client would.
		again := &fsm.CreateWorker{WorkerId: "w" + strings.Repeat("b", 26), Name: "r1", Runtime: "exec", Source: "./r1"}
		second, err := c.Node(other).Propose(c.Context(10*time.Second), again, key)
		if err != nil || second.WorkerId != create.WorkerId || second.Total != first.res.Total {
			t.Errorf("the client's retry: %v, %v; want worker %s at etag %d", second, err, create.WorkerId, first.res.Total)
		}
		c.Converge()
		created := 0
		events, _ := c.Node(a).View().Events(fsm.EventID{})
		for e := range events {
			if e.Type == fsm.EventWorkerCreated {
				created++
			}
		}
		if n := c.Node(a).View().WorkerCount(); n != 1 || created != 1 {
			t.Errorf("%d workers by %d events, want one", n, created)
		}
		c.Start(leader)
		c.WaitReady()
	})

	bubble(t, "B-73_a_member_removed_while_down_comes_back", nodetest.Config{Seed: 73}, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		leader := c.WaitLeader()
		out := (leader + 1) % 3
		old := c.Node(out).ID()
		c.Crash(out)
		// Another node comes up at its address, so it is taken for gone.
		dir := c.Dir(out)
		aside(t, dir)
		time.Sleep(2 * time.Second)
		c.Start(out)
		c.WaitReady()
		c.Crash(out)
		c.WaitVoters(3)
		back(t, dir)
		term := c.Node(leader).Status().Term
		c.Start(out)
		c.WaitReady()
		if got := c.Node(out).ID(); got != old {
			t.Fatalf("node %s came back, want %s", got, old)
		}
		if got := c.Node(leader).Status().Term; got != term {
			t.Errorf("the term grew from %d to %d", term, got)
		}
		acquire(t, c, out, "k")
	})

	bubble(t, "B-89_leave_and_shutdown_in_time", nodetest.Config{Seed: 89}, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		rng := rand.New(rand.NewPCG(89, 0))
		joiner := c.Add()
		for range 200 {
			time.Sleep(time.Duration(rng.Int64N(int64(700 * time.Millisecond))))
			if rng.IntN(4) == 0 {
				c.Isolate(joiner)
			}
			start := time.Now()
			if err := c.Stop(joiner); err != nil {
				t.Fatalf("Run returned %v", err)
			}
			if took := time.Since(start); took > 3*time.Second {
				t.Fatalf("leaving took %v", took)
			}
			c.Rejoin(joiner)
			c.Start(joiner)
		}
	})

	bubble(t, "B-91a_a_follower_of_a_former_leader", nodetest.Config{Seed: 91}, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		a := c.WaitLeader()
		b, d := (a+1)%3, (a+2)%3
		c.Crash(d)
		acquire(t, c, a, "k")
		// A hears nothing any more, B still hears A.
		c.Net.CutOneWay(c.Host(b), c.Host(a))
		time.Sleep(3 * time.Second)
		c.Net.HealOneWay(c.Host(b), c.Host(a))
		start := time.Now()
		c.Until(5*time.Second, "a leader", func() bool { l := c.Leader(); return l >= 0 && c.Node(l).ReadyErr() == nil })
		t.Logf("a leader %v after the link was whole", time.Since(start))
	})

	bubble(t, "B-91b_four_voters", nodetest.Config{Seed: 92, Nodes: 4}, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		leader := c.WaitLeader()
		f := (leader + 1) % 4
		c.Crash(f)
		acquire(t, c, leader, "k")
		c.Crash(leader)
		c.Start(f)
		start := time.Now()
		c.Until(5*time.Second, "a leader", func() bool { l := c.Leader(); return l >= 0 && c.Node(l).ReadyErr() == nil })
		t.Logf("a leader %v after the restart", time.Since(start))
	})

	t.Run("B-91c_loopback_among_others_is_refused", func(t *testing.T) {
		cfg := node.Config{DataDir: t.TempDir(), Bind: "0.0.0.0:7400", Advertise: "127.0.0.1:7400", Insecure: true}
		if err := cfg.Validate(); err == nil {
			t.Error("a loopback address is advertised from an open bind")
		}
		cfg = node.Config{DataDir: t.TempDir(), Join: []string{"10.0.0.7:7400"}}
		if err := cfg.Validate(); err == nil {
			t.Error("a loopback address is advertised to a peer on another machine")
		}
	})

	bubble(t, "B-103_shutdown_ends", nodetest.Config{Seed: 103}, func(t *testing.T, c *nodetest.Cluster) {
		c.WaitReady()
		rng := rand.New(rand.NewPCG(103, 0))
		for range 100 {
			i := rng.IntN(3)
			switch rng.IntN(4) {
			case 0:
				c.Isolate(i)
			case 1:
				c.Net.CutOneWay(c.Host(i), c.Host((i+1)%3))
			case 2:
				c.Pause((i + 1) % 3)
			}
			start := time.Now()
			if err := c.Stop(i); err != nil {
				t.Fatalf("Run returned %v", err)
			}
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("stopping took %v", took)
			}
			c.Resume((i + 1) % 3)
			c.Net.HealAll()
			c.Rejoin(i)
			c.Start(i)
			c.WaitReady()
		}
	})
}

// A follower's copy has what was committed within a round trip, not after the
// commit timeout.
func TestNode_NudgeLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Seed: 7})
		c.Net.SetDefault(time.Millisecond, 0, 0) // one way
		c.WaitReady()
		leader := c.WaitLeader()
		session, err := c.Node(leader).Session(c.Context(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		var worst time.Duration
		for i := range 50 {
			time.Sleep(100 * time.Millisecond)
			r, err := c.Node(leader).Submit(context.Background(), &fsm.Acquire{Key: fmt.Sprint("k", i), SessionId: session})
			if err != nil {
				t.Fatal(err)
			}
			committed := time.Now()
			for f := range 3 {
				for c.Node(f).View().Revision() < r.Revision {
					time.Sleep(100 * time.Microsecond)
				}
			}
			worst = max(worst, time.Since(committed))
		}
		if worst > 3*time.Millisecond {
			t.Errorf("a follower had a commit after %v, want within a round trip of 2ms", worst)
		}
	})
}

// A failing term or vote stops the node, not the process; the others go on.
func TestNode_StorageFails(t *testing.T) {
	for _, what := range []string{"stable", "log"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var broken [3]atomic.Bool
				c := nodetest.New(t, nodetest.Config{Seed: 8, Seams: func(i int, s *node.Seams) {
					before := node.StepLogWrite
					if what == "stable" {
						before = node.StepTermSave
					}
					s.Step = func(step node.Step) error {
						if step == before && broken[i].Load() {
							return errors.New("input/output error")
						}
						return nil
					}
				}})
				c.WaitReady()
				leader := c.WaitLeader()
				victim := (leader + 1) % 3
				if what == "log" {
					victim = leader
				}
				token := acquire(t, c, (victim+1)%3, "before")
				broken[victim].Store(true)
				if what == "stable" {
					if err := c.Node(leader).StepDown(c.Context(2*time.Second), c.Node((leader+2)%3).ID()); err != nil {
						t.Fatal(err)
					}
				} else {
					session, err := c.Node(victim).Session(c.Context(time.Second))
					if err != nil {
						t.Fatal(err)
					}
					_, _ = c.Node(victim).Submit(c.Context(100*time.Millisecond), &fsm.Acquire{Key: "k", SessionId: session})
				}
				select {
				case <-c.Done(victim):
				case <-time.After(20 * time.Second):
					t.Fatalf("the node goes on\n%s", c.Describe())
				}
				if err := c.Err(victim); !errors.Is(err, node.ErrStorage) {
					t.Errorf("Run returned %v", err)
				}
				if err := c.Node(victim).Healthy(); !errors.Is(err, node.ErrStorage) {
					t.Errorf("Healthy says %v", err)
				}
				c.Until(5*time.Second, "a leader among the others", func() bool {
					l := c.Leader()
					return l >= 0 && l != victim && c.Node(l).ReadyErr() == nil
				})
				broken[victim].Store(false)
				c.Start(victim)
				c.WaitReady()
				if l, ok := c.Node(victim).View().Lease("before"); !ok || l.Token != token {
					t.Errorf("the lease from before is %+v", l)
				}
				c.Converge()
			})
		})
	}
}
