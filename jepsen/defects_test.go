package jepsen_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/jepsen"
	"github.com/miwnode/miwnode/node"
)

// The judge proves its worth: each bug below is switched on in the product, and
// the suite must catch it, by the name of the check that it violates.

// only returns the named faults.
func only(names ...string) []jepsen.Fault {
	return slices.DeleteFunc(jepsen.AllFaults(), func(f jepsen.Fault) bool { return !slices.Contains(names, f.Name) })
}

// hunt runs seeds until one of the wanted checks fails, and says how many it
// took; the seed that did it must pass without the bug.
func hunt(t *testing.T, cfg simConfig, faults []jepsen.Fault, most int, want ...string) {
	t.Helper()
	huntBy(t, simulate, cfg, faults, most, want...)
}

// firstOf is the first thing that a check found wrong.
func firstOf(vs []jepsen.Verdict, check string) string {
	for _, v := range vs {
		if v.Check == check && len(v.Faults) > 0 {
			return check + ": " + v.Faults[0]
		}
	}
	return ""
}

// simulation runs one seed.
type simulation func(*testing.T, simConfig, []jepsen.Fault) (*jepsen.History, []jepsen.Step, []jepsen.Verdict)

func huntBy(t *testing.T, simulate simulation, cfg simConfig, faults []jepsen.Fault, most int, want ...string) {
	t.Helper()
	for i := range most {
		cfg.seed = *fromFlag + int64(i)
		h, steps, extra := simulate(t, cfg, faults)
		r := &jepsen.Report{History: h, Schedule: steps, Verdicts: append(jepsen.Check(h), extra...)}
		failed := jepsen.FailedChecks(r.Verdicts)
		for _, w := range want {
			if slices.Contains(failed, w) {
				t.Logf("%s: caught by %v after %d seeds, the last of %v of cluster time: %s", cfg.defect, failed, i+1, h.Meta.Length.Round(time.Second), firstOf(r.Verdicts, w))
				// The same torment without the bug must pass.
				cfg.defect, cfg.defects = "", node.Defects{}
				h, steps, extra := simulate(t, cfg, faults)
				judge(t, h, steps, extra...)
				return
			}
		}
	}
	t.Errorf("%s was not caught by any of %v in %d seeds", cfg.defect, want, most)
}

// longTiming has a TTL long enough for clocks to drift apart in it.
var longTiming = node.Timing{
	SessionTTL: 10 * time.Second, RenewInterval: 800 * time.Millisecond, Margin: time.Second, StopBudget: 500 * time.Millisecond,
	DrainTimeout: 2 * time.Second, KillTimeout: time.Second, RaftTimeout: 300 * time.Millisecond,
}

// TestDefect switches planted bugs on, one by one.
func TestDefect(t *testing.T) {
	plainOnly(t)
	solo := []string{"solo1", "solo2", "solo3"}

	t.Run("no_margin", func(t *testing.T) {
		t.Parallel()
		// Clocks at the ends of what is promised; cuts long enough for a session to expire.
		hunt(t, simConfig{name: "no margin", rates: []float64{0.975, 1.025, 1.025}, defect: "no margin", defects: node.Defects{NoMargin: true}, singletons: solo, timing: longTiming, late: true, restless: 30, lasts: 12 * time.Second},
			only("cut", "cut-outgoing", "step-down"), 30, jepsen.CheckOverlap)
	})
	t.Run("release_by_key", func(t *testing.T) {
		t.Parallel()
		hunt(t, simConfig{name: "release by key", defect: "release by key", defects: node.Defects{FSM: fsm.Defects{ReleaseByKey: true}}, singletons: solo},
			jepsen.AllFaults(), 20, jepsen.CheckRegister, jepsen.CheckOverlap)
	})
	t.Run("answer_before_commit", func(t *testing.T) {
		t.Parallel()
		hunt(t, simConfig{name: "answer before commit", defect: "answer before commit", defects: node.Defects{AckBeforeCommit: true}, singletons: solo},
			only("isolate-leader", "cut", "cut-outgoing", "crash"), 30, jepsen.CheckAcks)
	})
	t.Run("expiry_without_term", func(t *testing.T) {
		t.Parallel()
		directed(t, drill{name: "expiry without term", defects: node.Defects{FSM: fsm.Defects{ExpiryWithoutTerm: true}}, schedule: staleExpiry, want: jepsen.CheckOverlap})
	})
	t.Run("verify_leader_as_proof", func(t *testing.T) {
		t.Parallel()
		directed(t, drill{name: "VerifyLeader as proof", defects: node.Defects{VerifyLeaderProof: true}, schedule: frozenLeader, want: jepsen.CheckOverlap})
	})
}

// drill is a schedule that chance would hardly ever draw, and the bug that it
// brings to light.
type drill struct {
	name     string
	defects  node.Defects
	schedule func(t *testing.T, s *simCluster)
	want     string // the check that must notice
	// edit, if set, changes what the cluster is like.
	edit func(*simConfig)
}

// directed runs a drill on the product as it is, which must pass, and with the
// bug, which must be caught. Elections take their own time, so the interleaving
// may be missed now and then.
func directed(t *testing.T, d drill) {
	t.Helper()
	const tries = 5
	for try := range tries {
		cfg := drillConfig(int64(2*try + 2)) // even: no snapshots but where a drill wants them
		cfg.name = d.name
		if d.edit != nil {
			d.edit(&cfg)
		}
		r := direct(t, cfg, d.schedule)
		if failed := jepsen.FailedChecks(r.Verdicts); len(failed) > 0 {
			_ = r.Write(reportDir(t))
			t.Fatalf("%s: the product without the bug failed %v: %v", d.name, failed, r.Faults())
		}
		cfg.defect, cfg.defects = d.name, d.defects
		r = direct(t, cfg, d.schedule)
		if failed := jepsen.FailedChecks(r.Verdicts); slices.Contains(failed, d.want) {
			t.Logf("%s: caught by %v, %d runs of a directed schedule: %s", d.name, failed, try+1, firstOf(r.Verdicts, d.want))
			return
		}
		_ = r.Write(reportDir(t))
	}
	t.Errorf("%s was not caught by %s in %d runs of its directed schedule", d.name, d.want, tries)
}

func direct(t *testing.T, cfg simConfig, schedule func(t *testing.T, s *simCluster)) *jepsen.Report {
	h := &jepsen.History{}
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, cfg)
		if s.ready(30 * time.Second) {
			schedule(t, s)
		} else {
			t.Error("the cluster was not ready within 30 s")
		}
		h, _ = s.finish()
	})
	return &jepsen.Report{History: h, Verdicts: jepsen.Check(h)}
}

// drillConfig is a quiet cluster of equal clocks, whose work always uses up its
// stop budget.
func drillConfig(seed int64) simConfig {
	return simConfig{
		seed: seed, singletons: []string{"solo1"}, rates: []float64{1, 1, 1}, late: true, restless: -1,
		timing: node.Timing{
			SessionTTL: 4 * time.Second, RenewInterval: 300 * time.Millisecond, Margin: 400 * time.Millisecond, StopBudget: 300 * time.Millisecond,
			DrainTimeout: 2 * time.Second, KillTimeout: time.Second, RaftTimeout: 300 * time.Millisecond,
		},
	}
}

// holder waits until key is held and returns the name of the node that runs it.
func (s *simCluster) holder(key string) string {
	for range 500 {
		for _, name := range s.names {
			if l := s.lifeOf(name); l != nil {
				if lease, ok := l.n.View().Lease(key); ok && lease.State == fsm.Held {
					return lease.Who.NodeID
				}
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return ""
}

// leads waits until another node than not leads, and serves.
func (s *simCluster) leads(not string) string {
	for range 500 {
		if l := s.Leader(); l != "" && l != not {
			return l
		}
		time.Sleep(20 * time.Millisecond)
	}
	return ""
}

// staleExpiry delivers, late, a decision to expire that an earlier reign made:
// since then another leader has renewed the session, and its holder rightly
// works on.
func staleExpiry(t *testing.T, s *simCluster) {
	holder := s.holder("solo1")
	first := s.Leader()
	st := s.lifeOf(first).n.Status()
	sess, ok := s.lifeOf(holder).n.View().NodeSession(holder)
	if !ok {
		t.Errorf("%s has no session", holder)
		return
	}
	late := &fsm.ExpireSession{SessionId: sess.ID, Term: st.Term}
	s.r.Notef(first, "decides in term %d to expire the session of %s; the proposal is held up", st.Term, holder)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.lifeOf(first).n.StepDown(ctx, ""); err != nil {
		t.Errorf("step down: %v", err)
		return
	}
	second := s.leads(first)
	time.Sleep(time.Second) // the new leader renews the session, again and again
	// The holder is cut off for a moment, so that it does not hear of the entry at
	// once; its trust is good for seconds yet.
	s.net.Isolate(holder)
	healed := s.r.Fault("cut", []string{holder}, "cut "+holder)
	via := second
	if via == holder {
		via = s.leads(holder)
	}
	s.r.Notef(via, "the proposal of term %d arrives", st.Term)
	_, err := s.lifeOf(via).n.Submit(ctx, late)
	s.r.Notef(via, "and is answered: %v", err)
	time.Sleep(2 * time.Second)
	s.net.Rejoin(holder)
	healed()
}

// frozenLeader stops the leader with answers to its heartbeats under way to it,
// lets another be elected, and thaws it for the moment in which it may take the
// old answers for new ones:
//
//	 0 ms  answers of both followers are held up, one 80 ms longer than the other
//	70 ms  the leader stops: its main loop in a write to the log, its clock, what it sends
//	  …    a follower is elected and gives every session a full TTL
//	1700+  the first old answer is read: raft's own lease looks fresh
//	1775   the leader goes on and asks for a proof for its keep-alive, sent now
//	1780+  the second old answer is read after that question, and counts
//	1850   the leader is cut off, before it hears of its successor
func frozenLeader(t *testing.T, s *simCluster) {
	a := s.holder("solo1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if l := s.Leader(); l != a {
		if err := s.lifeOf(l).n.StepDown(ctx, a); err != nil {
			t.Errorf("step down: %v", err)
			return
		}
	}
	for s.Leader() != a && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(2 * time.Second)
	var others []string
	for _, n := range s.names {
		if n != a {
			others = append(others, n)
		}
	}
	begin := s.r.Now()
	at := func(d time.Duration) { time.Sleep(max(0, begin+d-s.r.Now())) }
	ms := time.Millisecond

	healed := s.r.Fault("freeze", []string{a}, "freeze leader "+a)
	s.net.SetDelay(others[0], a, 1700*ms, 0)
	s.net.SetDelay(others[1], a, 1780*ms, 0)
	at(70 * ms)
	s.parked.Store(&park{node: a, until: make(chan struct{})})
	go func() { // any write parks raft's main loop
		_, _ = s.lifeOf(a).n.Submit(ctx, &fsm.OpenSession{SessionId: "0123456789abcdef0123456789abcdef", TtlMs: 5000, Name: "any write"})
	}()
	s.clock(a).Freeze()
	s.net.SetDelay(a, others[0], 30*time.Second, 0)
	s.net.SetDelay(a, others[1], 30*time.Second, 0)
	for s.leaderAmong(others) == "" && s.r.Now() < begin+1700*ms {
		time.Sleep(10 * ms)
	}
	s.r.Notef(a, "%q leads since %v", s.leaderAmong(others), s.r.Now()-begin)
	at(1775 * ms)
	close(s.parked.Swap(nil).until)
	s.clock(a).Thaw()
	at(1850 * ms)
	s.net.Isolate(a)
	at(9 * time.Second)
	s.net.HealAll()
	healed()
}

// leaderAmong returns the node of these that leads and serves.
func (s *simCluster) leaderAmong(names []string) string {
	for _, n := range names {
		if l := s.lifeOf(n); l != nil && l.n.Status().Role == "leader" {
			return n
		}
	}
	return ""
}
