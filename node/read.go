package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
)

// Consistency says how fresh a read must be. The zero value is Local.
type Consistency struct {
	kind readKind
	max  time.Duration
}

type readKind uint8

const (
	readLocal readKind = iota
	readBounded
	readLinearizable
)

var (
	// Local reads the copy as it is, without waiting.
	Local = Consistency{}
	// Linearizable reads a copy that covers everything acknowledged anywhere
	// before the call.
	Linearizable = Consistency{kind: readLinearizable}
)

// Bounded reads a copy that covers everything acknowledged longer than d ago.
func Bounded(d time.Duration) Consistency { return Consistency{kind: readBounded, max: max(0, d)} }

// Freshness says how old a copy may be.
type Freshness struct {
	// Revision is that of the copy.
	Revision uint64
	// Age: the copy covers everything that was acknowledged longer ago than
	// this. Negative: nothing is known, the node has not heard from a leader.
	Age time.Duration
}

// reader waits until the local copy is as fresh as asked.
type reader struct {
	self    string
	lead    leadership
	call    caller
	clock   clock
	machine *fsm.Machine
	rounds  *rounds
	timeout time.Duration
	index   *flights[uint64]
	tenure  *tenure

	mu      sync.Mutex
	known   bool
	fresh   time.Duration // the copy covers all that was acknowledged before
	pending []coverage    // by revision: covers once the copy has it
}

// coverage: a copy of the revision covers all acknowledged before the instant.
type coverage struct {
	at       time.Duration
	revision uint64
}

func newReader(cfg leaseConfig, r *rounds) *reader {
	rd := &reader{
		self:    cfg.self.nodeID,
		lead:    cfg.lead,
		call:    cfg.call,
		clock:   cfg.clock,
		machine: cfg.machine,
		rounds:  r,
		timeout: 2 * cfg.timing.RaftTimeout,
		tenure:  newTenure(cfg.lead),
	}
	rd.index = newFlights(rd.ask)
	return rd
}

// run ends, with ctx, whatever is under way.
func (r *reader) run(ctx context.Context) error {
	r.tenure.watch(ctx)
	r.index.stop(fsm.Errorf(fsm.CodeClosing, "the node has stopped"))
	return nil
}

// read returns the copy once it is as fresh as c says.
func (r *reader) read(ctx context.Context, c Consistency) (*fsm.View, Freshness, error) {
	if c.kind == readLocal {
		v := r.machine.View()
		return v, Freshness{Revision: v.Revision(), Age: r.age(v)}, nil
	}
	if c.kind == readBounded {
		v := r.machine.View()
		if age := r.age(v); age >= 0 && age <= c.max {
			return v, Freshness{Revision: v.Revision(), Age: age}, nil
		}
	}
	for try := 0; ; try++ {
		began := r.clock.boot()
		revision, err := r.index.do(ctx)
		switch {
		case err == nil:
			if err := r.machine.Wait(ctx, revision); err != nil {
				return nil, Freshness{}, gaveUp(ctx, "the local copy lags behind")
			}
			r.covers(began, revision)
			v := r.machine.View()
			return v, Freshness{Revision: v.Revision(), Age: max(0, r.clock.boot()-began)}, nil
		case errors.Is(err, fsm.ErrClosing):
			return nil, Freshness{}, err
		case ctx.Err() != nil:
			return nil, Freshness{}, gaveUp(ctx, "no leader confirmed the read")
		}
		if retryPause(ctx, r.clock, r.lead, try) != nil {
			return nil, Freshness{}, gaveUp(ctx, "no leader confirmed the read: "+err.Error())
		}
	}
}

// ask is one question to the leader for all reads that wait.
func (r *reader) ask() (uint64, error) {
	ctx, cancel := context.WithTimeoutCause(r.tenure.context(), r.timeout, errSlowLeader)
	defer cancel()
	switch leader := r.lead.leader(); leader {
	case "":
		return 0, fsm.Errorf(fsm.CodeNotReady, "no leader is known")
	case r.self:
		return r.proved(ctx)
	default:
		var reply nodepb.ReadIndexReply
		if err := r.call.call(ctx, leader, methodReadIndex, &nodepb.ReadIndexRequest{}, &reply); err != nil {
			return 0, err
		}
		return reply.Revision, nil
	}
}

// handle answers a peer where this node leads.
func (r *reader) handle(ctx context.Context, _ *nodepb.ReadIndexRequest) (*nodepb.ReadIndexReply, error) {
	revision, err := r.proved(ctx)
	if err != nil {
		return nil, err
	}
	return &nodepb.ReadIndexReply{Revision: revision}, nil
}

// proved is the leader's revision at the arrival of the question, once it is
// proved that it led then. What it has acknowledged it has applied, and what
// earlier leaders have acknowledged came with its barrier.
func (r *reader) proved(ctx context.Context) (uint64, error) {
	term, ok := r.lead.serving()
	if !ok {
		return 0, errNotLeader()
	}
	revision := r.machine.View().Revision()
	return revision, r.rounds.prove(ctx, term)
}

// covers notes that a copy of the revision has everything that was acknowledged
// before the instant.
func (r *reader) covers(at time.Duration, revision uint64) {
	have := r.machine.View().Revision()
	r.mu.Lock()
	defer r.mu.Unlock()
	if have >= revision {
		r.freshen(at)
		return
	}
	// Keep the one that will count first and the newest.
	if len(r.pending) == 2 {
		r.pending = r.pending[:1]
	}
	r.pending = append(r.pending, coverage{at, revision})
}

func (r *reader) freshen(at time.Duration) {
	if !r.known || at > r.fresh {
		r.known, r.fresh = true, at
	}
}

// age tells how old v may be, negative when nothing is known.
func (r *reader) age(v *fsm.View) time.Duration {
	now := r.clock.boot()
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.pending) > 0 && r.pending[0].revision <= v.Revision() {
		r.freshen(r.pending[0].at)
		r.pending = r.pending[1:]
	}
	if !r.known {
		return -1
	}
	return max(0, now-r.fresh)
}
