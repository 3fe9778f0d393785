package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// reignOf is a raft that leads in a term and has committed up to an index.
type reignOf struct {
	commit, term uint64
	state        raft.RaftState
}

func (r *reignOf) CommitIndex() uint64   { return r.commit }
func (r *reignOf) CurrentTerm() uint64   { return r.term }
func (r *reignOf) State() raft.RaftState { return r.state }

func (r *reignOf) GetConfiguration() raft.ConfigurationFuture { return nil }

// ack lets peer b acknowledge everything up to index in a term.
func ack(p *peers, term, index, told uint64) {
	q := &raft.AppendEntriesRequest{
		Term: term, PrevLogEntry: index - 1, PrevLogTerm: term, LeaderCommitIndex: told,
		Entries: []*raft.Log{{Index: index, Term: term}},
	}
	p.sending("b", q)
	p.answered("b", "b", q, &raft.AppendEntriesResponse{Term: term, Success: true}, false)
}

// A leads term 1 and b acknowledges entry 10 there. B overwrites b's log as
// leader of term 2. A leads term 3: what it remembers of term 1 must not make
// it tell b a commit index, for b would commit B's suffix.
func TestNudge_NotWithStateOfAnEarlierReign(t *testing.T) {
	r := &reignOf{commit: 10, term: 1, state: raft.Leader}
	p := newPeers("a", nil, nil)
	p.bind(r)
	ack(p, 1, 10, 5)
	r.term = 3
	if due := p.due(); len(due) != 0 {
		t.Fatalf("told %v in term 3 by what b acknowledged in term 1", due)
	}
	if _, ok := p.acked("b"); ok {
		t.Error("b counts as caught up in term 3 by what it acknowledged in term 1")
	}
	// The same state in the same reign is told: the test is no tautology.
	r.term = 1
	due := p.due()
	if q := due["b"].q; q == nil || q.Term != 1 || q.PrevLogEntry != 10 || q.PrevLogTerm != 1 || q.LeaderCommitIndex != 10 || len(q.Entries) != 0 {
		t.Fatalf("nudge in the same term: %+v", q)
	}
	// An acknowledgement of term 3 drops all that was known before.
	r.term, r.commit = 3, 12
	p2 := newPeers("a", nil, nil)
	p2.bind(r)
	ack(p2, 1, 20, 5)
	q := &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 11, PrevLogTerm: 2, Entries: []*raft.Log{{Index: 12, Term: 3}}}
	p2.answered("c", "c", q, &raft.AppendEntriesResponse{Term: 3, Success: true}, false)
	if due := p2.due(); len(due) != 1 || due["c"].q == nil {
		t.Fatalf("after c's answer in term 3, due are %v, want c only", due)
	}
}

// Nobody is told more than it has acknowledged, twice, by one that does not
// lead, or while a nudge to it is under way.
func TestNudge_OnlyWhenDue(t *testing.T) {
	r := &reignOf{commit: 10, term: 1, state: raft.Leader}
	p := newPeers("a", nil, nil)
	p.bind(r)
	for _, c := range []struct {
		name string
		do   func()
		want int
	}{
		{"nothing acknowledged", func() {}, 0},
		{"behind the commit index", func() { ack(p, 1, 9, 0) }, 0},
		{"reached it as a follower", func() { ack(p, 1, 10, 0); r.state = raft.Follower }, 0},
		{"reached it as leader", func() { r.state = raft.Leader }, 1},
		{"told already", func() {}, 0},
		{"one is under way", func() { r.commit = 11; ack(p, 1, 11, 0) }, 0},
		{"free again", func() { p.known["b"].busy = false }, 1},
		{"an append of raft's own tells", func() { p.known["b"].busy = false; r.commit = 12; ack(p, 1, 12, 12) }, 0},
		{"refused append", func() {
			r.commit = 13
			q := &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 13, PrevLogTerm: 1}
			p.answered("b", "b", q, &raft.AppendEntriesResponse{Term: 1}, false)
		}, 0},
		{"answer of a newer term", func() {
			q := &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 13, PrevLogTerm: 1}
			p.answered("b", "b", q, &raft.AppendEntriesResponse{Term: 2, Success: true}, false)
		}, 0},
	} {
		c.do()
		if got := len(p.due()); got != c.want {
			t.Errorf("%s: %d due, want %d", c.name, got, c.want)
		}
	}
}

// Ensures that heartbeats to a peer that answers are spaced out, that one that
// has not answered is asked at once, and that nothing is held when raft is to stop.
func TestPeers_Pace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers("a", nil, nil)
		p.space = 125 * time.Millisecond
		took := func() time.Duration {
			start := time.Now()
			p.pace("b")
			return time.Since(start)
		}
		if d := took(); d != 0 {
			t.Errorf("the first heartbeat was held for %v", d)
		}
		c := &contact{answered: time.Now()}
		p.contact["b"] = c
		time.Sleep(50 * time.Millisecond)
		if d := took(); d != 75*time.Millisecond {
			t.Errorf("50 ms after an answer a heartbeat was held for %v, want 75ms", d)
		}
		if d := took(); d != 0 {
			t.Errorf("125 ms after an answer a heartbeat was held for %v", d)
		}
		c.answered, c.failed = time.Now(), time.Now()
		if d := took(); d != 0 {
			t.Errorf("after a failure a heartbeat was held for %v", d)
		}
		c.failed = time.Time{}
		close(p.closing)
		if d := took(); d != 0 {
			t.Errorf("a heartbeat was held for %v though raft is to stop", d)
		}
	})
}
