package jepsen

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/miwnode/miwnode/fsm"
)

// TestRegister_AgreesWithState ensures that the register of the judge and the
// replicated state say the same of random histories of one key, so that neither
// forbids what the other allows.
func TestRegister_AgreesWithState(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		s, index := fsm.NewState(), uint64(0)
		apply := func(op fsm.Op) *fsm.Result {
			index++
			out := s.Apply(index, 1, &fsm.Batch{Stamp: int64(index), Proposals: []*fsm.Proposal{{NodeId: "n1", Boot: 1, LowWater: index, Commands: []*fsm.Command{withSeq(op, index)}}}})
			return out.Proposals[0].Results[0]
		}
		if err := fsm.ResultErr(apply(&fsm.InitCluster{ClusterId: "c", Version: fsm.Version})); err != nil {
			t.Fatal(err)
		}
		sessions := make([]string, 3)
		for i := range sessions {
			sessions[i] = fmt.Sprintf("%032x", i+1)
			if err := fsm.ResultErr(apply(&fsm.OpenSession{SessionId: sessions[i], TtlMs: 10000, Name: "c"})); err != nil {
				t.Fatal(err)
			}
		}
		var (
			reg    register
			tokens []uint64
		)
		for i := range 60 {
			who := rng.IntN(len(sessions))
			var st step
			switch rng.IntN(3) {
			case 0:
				r := apply(&fsm.Acquire{Key: "k", SessionId: sessions[who]})
				st = step{kind: KindAcquire, who: sessions[who], outcome: OK, got: r.GetToken()}
				if err := fsm.ResultErr(r); err != nil {
					st.outcome, st.got = Refused, r.GetHeldBy().GetToken()
				} else {
					tokens = append(tokens, st.got)
				}
			case 1:
				if len(tokens) == 0 {
					continue
				}
				st = step{kind: KindRelease, who: sessions[who], token: tokens[rng.IntN(len(tokens))], outcome: OK}
				if l, ok := s.View().Lease("k"); ok && l.Token == st.token && l.SessionID != sessions[who] {
					continue // the register asks for no session: others don't know the token
				}
				if err := fsm.ResultErr(apply(&fsm.Release{Key: "k", Token: st.token, SessionId: sessions[who]})); err != nil {
					st.outcome = Refused
				}
			case 2:
				st = step{kind: KindRead, outcome: OK}
				if l, ok := s.View().Lease("k"); ok {
					st.got = l.Token
				}
			}
			next := reg.next(st)
			if len(next) != 1 {
				t.Fatalf("seed %d, step %d: %v after %+v: got %d registers, want 1", seed, i, st, reg, len(next))
			}
			reg = next[0]
		}
	}
}

func withSeq(op fsm.Op, seq uint64) *fsm.Command {
	c := fsm.NewCommand(op)
	c.Seq = seq
	return c
}
