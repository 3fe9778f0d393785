package node

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

// fakeVoters answers Term as the test says, voter by voter.
type fakeVoters struct {
	*fakeNode
	mu    sync.Mutex
	asked map[string]int
	ask   func(ctx context.Context, voter string, nth int) (term uint64, err error)
}

func (f *fakeVoters) call(ctx context.Context, voter string, m transport.Method, _, resp proto.Message) error {
	f.mu.Lock()
	f.asked[voter]++
	nth := f.asked[voter]
	f.mu.Unlock()
	term, err := f.ask(ctx, voter, nth)
	if err != nil {
		return err
	}
	resp.(*nodepb.TermReply).Term = term
	return nil
}

func (f *fakeVoters) count(voter string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[voter]
}

// newRoundBench is a leader n0 of term 1 among n voters, asked through ask.
func newRoundBench(t *testing.T, n int, ask func(ctx context.Context, voter string, nth int) (uint64, error)) (*rounds, *fakeCluster, *fakeVoters) {
	c := &fakeCluster{t: t, cut: map[[2]string]bool{}}
	for i := range n {
		c.addNode(i, 1)
	}
	v := &fakeVoters{fakeNode: c.nodes[0], asked: map[string]int{}, ask: ask}
	r := newRounds(leaseConfig{self: holder{nodeID: "n0"}, timing: testTiming, clock: c.nodes[0].clock, lead: c.nodes[0], call: v})
	c.nodes[0].leads, c.nodes[0].serves, c.nodes[0].now = 1, true, 1
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r, c, v
}

func agreed(context.Context, string, int) (uint64, error) { return 1, nil }

func hang(ctx context.Context) (uint64, error) { <-ctx.Done(); return 0, context.Cause(ctx) }

// One voter needs nobody.
func TestRound_SingleVoter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, v := newRoundBench(t, 1, agreed)
		if err := r.prove(t.Context(), 1); err != nil {
			t.Errorf("prove: %v", err)
		}
		if n := v.count("n0"); n != 0 {
			t.Errorf("the only voter asked itself over the network %d times", n)
		}
	})
}

// A voter that hangs costs nothing while a majority answers.
func TestRound_HungVoterCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, v := newRoundBench(t, 3, func(ctx context.Context, voter string, _ int) (uint64, error) {
			if voter == "n2" {
				return hang(ctx)
			}
			return 1, nil
		})
		began := time.Now()
		for range 1000 {
			if err := r.prove(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("1000 proofs took %v, want no time", d)
		}
		if n := v.count("n2"); n != 1 {
			t.Errorf("the hung voter was asked %d times at once, want 1", n)
		}
	})
}

// Without a majority the round ends by its own limit.
func TestRound_NoMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, _ := newRoundBench(t, 5, func(ctx context.Context, voter string, _ int) (uint64, error) {
			if voter == "n1" {
				return 1, nil
			}
			return hang(ctx)
		})
		began := time.Now()
		if err := r.prove(t.Context(), 1); !errors.Is(err, fsm.ErrNoQuorum) {
			t.Errorf("prove: %v, want ErrNoQuorum", err)
		}
		if d := time.Since(began); d != 300*time.Millisecond {
			t.Errorf("took %v, want the raft timeout, 300ms", d)
		}
	})
}

// A higher term anywhere ends it at once, though others hang.
func TestRound_HigherTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, _ := newRoundBench(t, 5, func(ctx context.Context, voter string, _ int) (uint64, error) {
			if voter == "n4" {
				return 2, nil
			}
			return hang(ctx)
		})
		began := time.Now()
		if err := r.prove(t.Context(), 1); !errors.Is(err, fsm.ErrNotReady) {
			t.Errorf("prove: %v, want ErrNotReady", err)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("took %v, want no time", d)
		}
	})
}

// Voters that are still at an older term have not heard of this leader: they are
// no witnesses.
func TestRound_OlderTermDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, _ := newRoundBench(t, 3, func(context.Context, string, int) (uint64, error) { return 0, nil })
		if err := r.prove(t.Context(), 1); !errors.Is(err, fsm.ErrNoQuorum) {
			t.Errorf("prove: %v, want ErrNoQuorum", err)
		}
	})
}

// An answer that was asked for in an earlier round proves nothing for a later
// one, though it comes in while that is under way. (This is where
// raft.VerifyLeader goes wrong.)
func TestRound_OldAnswersDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		r, c, _ := newRoundBench(t, 3, func(ctx context.Context, voter string, nth int) (uint64, error) {
			switch {
			case voter == "n1" && nth == 1:
				return 1, nil // the first round's majority
			case voter == "n2" && nth == 1:
				<-release // asked in the first round, answers in the second
				return 1, nil
			}
			return hang(ctx)
		})
		if err := r.prove(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() { got <- r.prove(t.Context(), 1) }()
		synctest.Wait()
		close(release)
		if err := <-got; !errors.Is(err, fsm.ErrNoQuorum) {
			t.Errorf("second proof: %v, want ErrNoQuorum: n2's answer is of the first round", err)
		}
		_ = c
	})
}

// Who arrives during a round waits for the next; all who wait share it.
func TestRound_ArrivalDuringARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, v := newRoundBench(t, 3, func(ctx context.Context, _ string, _ int) (uint64, error) {
			select {
			case <-time.After(100 * time.Millisecond):
				return 1, nil
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		})
		began := time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		took := map[time.Duration]int{}
		one := func() {
			if err := r.prove(t.Context(), 1); err != nil {
				t.Error(err)
			}
			mu.Lock()
			took[time.Since(began)]++
			mu.Unlock()
		}
		wg.Go(one)
		synctest.Wait()
		for range 99 {
			wg.Go(one)
		}
		wg.Wait()
		if took[100*time.Millisecond] != 1 || took[200*time.Millisecond] != 99 {
			t.Errorf("proofs by time: %v, want 1 at 100ms and 99 at 200ms", took)
		}
		if n := v.count("n1"); n != 2 {
			t.Errorf("n1 was asked %d times for 100 proofs, want 2", n)
		}
	})
}

// A node that stops leading while it asks has no proof, whatever it hears.
func TestRound_DeposedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c *fakeCluster
		r, c, _ := newRoundBench(t, 3, func(ctx context.Context, _ string, _ int) (uint64, error) {
			time.Sleep(50 * time.Millisecond)
			return 1, nil
		})
		got := make(chan error, 1)
		go func() { got <- r.prove(t.Context(), 1) }()
		synctest.Wait()
		c.depose(c.nodes[0])
		if err := <-got; !errors.Is(err, fsm.ErrNotReady) {
			t.Errorf("prove: %v, want ErrNotReady", err)
		}
	})
}

// What was promised in one term is not proved by the next.
func TestRound_OtherTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, _ := newRoundBench(t, 1, agreed)
		if err := r.prove(t.Context(), 7); !errors.Is(err, fsm.ErrNotReady) {
			t.Errorf("prove of term 7 in term 1: %v, want ErrNotReady", err)
		}
	})
}

// The planted defect asks raft.VerifyLeader and nobody else.
func TestRound_VerifyLeaderDefect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &fakeCluster{t: t, cut: map[[2]string]bool{}}
		c.addNode(0, 1)
		c.addNode(1, 1)
		c.nodes[0].leads, c.nodes[0].serves, c.nodes[0].now = 1, true, 1
		r := newRounds(leaseConfig{
			self: holder{nodeID: "n0"}, timing: testTiming, clock: c.nodes[0].clock, lead: c.nodes[0], call: c.nodes[0],
			verify: func() error { return nil }, defects: Defects{VerifyLeaderProof: true},
		})
		c.isolate(c.nodes[0])
		if err := r.prove(t.Context(), 1); err != nil {
			t.Errorf("the defect should believe VerifyLeader: %v", err)
		}
	})
}

// The same where the last answer and the end of the reign come at one instant:
// the answers are looked at last.
func TestRound_DeposedWithTheLastAnswer(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			var c *fakeCluster
			r, c, _ := newRoundBench(t, 3, func(context.Context, string, int) (uint64, error) {
				c.depose(c.nodes[0])
				return 1, nil
			})
			if err := r.prove(t.Context(), 1); !errors.Is(err, fsm.ErrNotReady) {
				t.Errorf("prove: %v, want ErrNotReady", err)
			}
		})
	}
}
