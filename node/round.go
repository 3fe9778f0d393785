package node

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
)

// rounds proves leadership. A proof is a round that BEGAN after the question
// arrived: every other voter is asked for its current term, and a majority of
// the voters, this node included, must still be at the leader's. A voter raises
// its term before it votes, so such a majority means that no newer leader
// existed when the round began.
//
// raft.VerifyLeader is no such proof: it counts answers to heartbeats that were
// under way before the question, so a leader that was stopped and replaced, and
// then goes on, is told that it leads. An answer that old must not count here,
// nor may one be counted for two rounds.
//
// All who wait when a round begins share it; who comes while one is under way
// waits for the next.
type rounds struct {
	self    string
	lead    leadership
	call    caller
	clock   clock
	timeout time.Duration
	verify  func() error // instead of the round: a planted defect

	flights *flights[uint64]

	mu     sync.Mutex
	ctx    context.Context // of run
	asking map[string]*asker
	wg     sync.WaitGroup
}

// asker asks one voter, for one round at a time. One that hangs misses rounds
// and costs nothing else.
type asker struct {
	want *round // that it shall ask for next; nil = idle is enough
	busy bool
}

// round is one question to all voters.
type round struct {
	term    uint64
	answers chan verdict // one slot per voter
}

type verdict struct {
	voter string
	term  uint64
	err   error
}

func newRounds(cfg leaseConfig) *rounds {
	r := &rounds{
		self:    cfg.self.nodeID,
		lead:    cfg.lead,
		call:    cfg.call,
		clock:   cfg.clock,
		timeout: cfg.timing.RaftTimeout,
		ctx:     context.Background(),
		asking:  map[string]*asker{},
	}
	if cfg.defects.VerifyLeaderProof {
		r.verify = cfg.verify
	}
	r.flights = newFlights(r.fly)
	return r
}

// run ends, with ctx, whatever is under way.
func (r *rounds) run(ctx context.Context) error {
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	<-ctx.Done()
	r.flights.stop(fsm.Errorf(fsm.CodeClosing, "the node has stopped"))
	r.wg.Wait()
	return nil
}

// handle tells a leader the term of this node.
func (r *rounds) handle(context.Context, *nodepb.TermRequest) (*nodepb.TermReply, error) {
	term := r.lead.term()
	if term == 0 {
		return nil, fsm.Errorf(fsm.CodeNotReady, "raft has not started")
	}
	return &nodepb.TermReply{Term: term}, nil
}

// prove returns once it is certain that this node led in the term at some
// moment after the call. It fails with fsm.ErrNotReady where the node does not
// lead (any more) and with fsm.ErrNoQuorum where no majority answered in time.
func (r *rounds) prove(ctx context.Context, term uint64) error {
	proved, err := r.flights.do(ctx)
	switch {
	case err != nil:
		return err
	case proved != term:
		// What was promised in one term is not proved by another.
		return errNotLeader()
	}
	return nil
}

// fly is one round.
func (r *rounds) fly() (uint64, error) {
	term, ok := r.lead.serving()
	if !ok {
		return 0, errNotLeader()
	}
	if r.verify != nil {
		if err := r.verify(); err != nil {
			return 0, errNotLeader()
		}
		return term, nil
	}
	changed := r.lead.changed()
	voters := r.lead.voters()
	need, agree := len(voters)/2+1, 0
	if slices.Contains(voters, r.self) {
		agree++
	}
	if agree < need {
		if err := r.ask(term, voters, need-agree, changed); err != nil {
			return 0, err
		}
	}
	// The answers are worth nothing if this node has moved on meanwhile.
	if now, ok := r.lead.serving(); !ok || now != term || r.lead.term() != term {
		return 0, errNotLeader()
	}
	return term, nil
}

// ask waits until need of the other voters have answered with the term.
func (r *rounds) ask(term uint64, voters []string, need int, changed <-chan struct{}) error {
	q := &round{term: term, answers: make(chan verdict, len(voters))}
	left := 0
	r.mu.Lock()
	ctx := r.ctx
	for _, v := range voters {
		if v != r.self {
			left++
			r.dispatch(ctx, v, q)
		}
	}
	r.mu.Unlock()

	late := r.clock.alarm()
	defer late.stop()
	late.setAt(r.clock.boot() + r.timeout)
	for {
		select {
		case v := <-q.answers:
			left--
			switch {
			case v.err != nil:
			case v.term > term:
				return errNotLeader()
			case v.term == term:
				need--
			}
			if need <= 0 {
				return nil
			}
			if left < need {
				return fsm.Errorf(fsm.CodeNoQuorum, "no majority of the voters answered")
			}
		case <-changed:
			changed = r.lead.changed()
			if now, ok := r.lead.serving(); !ok || now != term {
				return errNotLeader()
			}
		case <-late.ring():
			return fsm.Errorf(fsm.CodeNoQuorum, "no majority of the voters answered within %v", r.timeout)
		case <-ctx.Done():
			return fsm.Errorf(fsm.CodeClosing, "the node has stopped")
		}
	}
}

// dispatch has the voter asked for q, now or once its asker is free; r.mu is held.
func (r *rounds) dispatch(ctx context.Context, voter string, q *round) {
	a := r.asking[voter]
	if a == nil {
		a = &asker{}
		r.asking[voter] = a
	}
	a.want = q
	if a.busy {
		return
	}
	a.busy = true
	r.wg.Go(func() { r.askOne(ctx, voter, a) })
}

// askOne asks on while newer rounds come in.
func (r *rounds) askOne(ctx context.Context, voter string, a *asker) {
	for {
		r.mu.Lock()
		q := a.want
		a.want = nil
		if q == nil {
			a.busy = false
			delete(r.asking, voter)
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		var reply nodepb.TermReply
		cctx, cancel := context.WithTimeoutCause(ctx, r.timeout, errSlowVoter)
		err := r.call.call(cctx, voter, methodTerm, &nodepb.TermRequest{}, &reply)
		cancel()
		q.answers <- verdict{voter: voter, term: reply.GetTerm(), err: err}
	}
}

var errSlowVoter = errors.New("voter did not answer in time")
