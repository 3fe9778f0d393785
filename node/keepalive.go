package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
)

const (
	// maxRenewals bounds the sessions in one request.
	maxRenewals = 4096
	// renewalFlights is how many requests a node has under way.
	renewalFlights = 2
)

// KeepAliveAnswer is what a client's keep-alive brings.
type KeepAliveAnswer struct {
	// Revision is that of the local copy which Leases was read from.
	Revision uint64
	TTL      time.Duration
	// TrustedFor is TTL less the margin, counted from the moment at which the
	// client sent its request.
	TrustedFor time.Duration
	// Leases are those of the session. One is confirmed only if it is here as
	// held.
	Leases []*fsm.Lease
}

// renewals carries keep-alives to the leader: one request for all sessions of
// this node that wait, the node's own and its clients', and answers them where
// this node leads.
type renewals struct {
	self    holder
	lead    leadership
	call    caller
	clock   clock
	machine *fsm.Machine
	rounds  *rounds
	lessor  *lessor
	reader  *reader
	margin  time.Duration
	timeout time.Duration
	runs    *runLog  // whose reports travel along
	witness *witness // who takes them where this node leads

	tenure *tenure

	mu      sync.Mutex
	waiting []*renewalBatch
	flying  int
	stopped bool
	wg      sync.WaitGroup
}

// renewalBatch is one request.
type renewalBatch struct {
	ids   []string
	place map[string]int
	done  chan struct{}
	sent  time.Duration // just before the request was sent
	reply *nodepb.KeepAliveReply
	err   error
}

// confirmation is a proved answer to a keep-alive.
type confirmation struct {
	sent     time.Duration
	changed  uint64 // revision of the last change to the session's leases
	revision uint64 // of the leader, after the proof
	ttl      time.Duration
}

func newRenewals(cfg leaseConfig, r *rounds, l *lessor, rd *reader) *renewals {
	return &renewals{
		self:    cfg.self,
		lead:    cfg.lead,
		call:    cfg.call,
		clock:   cfg.clock,
		machine: cfg.machine,
		rounds:  r,
		lessor:  l,
		reader:  rd,
		margin:  cfg.timing.Margin,
		timeout: 2 * cfg.timing.RaftTimeout,
		tenure:  newTenure(cfg.lead),
	}
}

// run ends, with ctx, whatever is under way.
func (r *renewals) run(ctx context.Context) error {
	r.tenure.watch(ctx)
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.wg.Wait()
	return nil
}

// renew sends a keep-alive for the session, after the call, with all others
// that wait, and returns the proved answer. fsm.ErrSessionExpired: the leader
// knows no such session. Any other error says nothing about the session.
func (r *renewals) renew(ctx context.Context, id string) (confirmation, error) {
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return confirmation{}, fsm.Errorf(fsm.CodeClosing, "the node has stopped")
	}
	if n := len(r.waiting); n == 0 || len(r.waiting[n-1].ids) >= maxRenewals {
		r.waiting = append(r.waiting, &renewalBatch{place: map[string]int{}, done: make(chan struct{})})
	}
	b := r.waiting[len(r.waiting)-1]
	i, ok := b.place[id]
	if !ok {
		i = len(b.ids)
		b.ids = append(b.ids, id)
		b.place[id] = i
	}
	if r.flying < renewalFlights {
		r.flying++
		r.wg.Go(r.fly)
	}
	r.mu.Unlock()

	select {
	case <-b.done:
	case <-ctx.Done():
		return confirmation{}, context.Cause(ctx)
	}
	if b.err != nil {
		return confirmation{}, b.err
	}
	a := b.reply.Answers[i]
	if a.Code != 0 {
		return confirmation{}, unrenewed(fsm.Code(a.Code))
	}
	return confirmation{
		sent: b.sent, changed: a.ChangedRevision, revision: b.reply.Revision,
		ttl: time.Duration(a.TtlMs) * time.Millisecond,
	}, nil
}

// unrenewed is a refusal of the leader.
func unrenewed(code fsm.Code) error {
	switch code {
	case fsm.CodeSessionExpired:
		return fsm.Errorf(code, "the cluster knows no such session: it was closed or ran out; open a new one")
	case fsm.CodeNotReady:
		return fsm.Errorf(code, "the session is running out and its end not yet recorded; open a new one once it is")
	}
	return fsm.Errorf(code, "the leader does not renew the session")
}

func (r *renewals) fly() {
	for {
		r.mu.Lock()
		if len(r.waiting) == 0 {
			r.flying--
			r.mu.Unlock()
			return
		}
		b := r.waiting[0]
		r.waiting = append(r.waiting[:0], r.waiting[1:]...)
		r.mu.Unlock()

		ctx, cancel := context.WithTimeoutCause(r.tenure.context(), r.timeout, errSlowLeader)
		q := &nodepb.KeepAliveRequest{SessionIds: b.ids}
		report := r.runs.report()
		if report != nil {
			q.Report = report.msg
		}
		b.sent = r.clock.boot()
		b.reply, b.err = r.deliver(ctx, q)
		if report != nil {
			r.runs.answered(report, b.reply.GetReport())
		}
		cancel()
		if b.err == nil && len(b.reply.Answers) != len(b.ids) {
			b.err = fsm.Errorf(fsm.CodeInternal, "%d answers to %d keep-alives", len(b.reply.Answers), len(b.ids))
		}
		if b.err == nil {
			// All that was acknowledged before the sending is in this revision.
			r.reader.covers(b.sent, b.reply.Revision)
		}
		close(b.done)
	}
}

var errSlowLeader = errors.New("the leader did not answer in time")

func (r *renewals) deliver(ctx context.Context, q *nodepb.KeepAliveRequest) (*nodepb.KeepAliveReply, error) {
	switch leader := r.lead.leader(); leader {
	case "":
		return nil, fsm.Errorf(fsm.CodeNotReady, "no leader is known")
	case r.self.nodeID:
		return r.handle(ctx, r.self.sender(), q)
	default:
		reply := new(nodepb.KeepAliveReply)
		if err := r.call.call(ctx, leader, methodKeepAlive, q, reply); err != nil {
			return nil, err
		}
		return reply, nil
	}
}

// handle answers keep-alives where this node leads. The deadlines are moved
// first and the proof begins after that, so it covers the arrival: had a newer
// leader existed then, it might have given the leases away while this node, who
// has not heard of it, confirms them.
func (r *renewals) handle(ctx context.Context, from sender, q *nodepb.KeepAliveRequest) (*nodepb.KeepAliveReply, error) {
	if len(q.SessionIds) == 0 || len(q.SessionIds) > maxRenewals {
		return nil, fsm.Errorf(fsm.CodeInvalidArgument, "%d sessions in a keep-alive: 1 to %d are allowed", len(q.SessionIds), maxRenewals)
	}
	arrived := r.clock.boot()
	term, ok := r.lead.serving()
	if !ok {
		return nil, errNotLeader()
	}
	said, ok := r.lessor.renew(term, q.SessionIds, arrived, make([]renewal, 0, len(q.SessionIds)))
	if !ok {
		return nil, errNotLeader()
	}
	if err := r.rounds.prove(ctx, term); err != nil {
		return nil, err
	}
	// Read after the proof: an answer carries the newest change that this
	// leader knows, and a holder counts it only once its copy has that, too.
	view := r.machine.View()
	reply := &nodepb.KeepAliveReply{Revision: view.Revision(), Answers: make([]*nodepb.SessionAnswer, len(said))}
	answers := make([]nodepb.SessionAnswer, len(said))
	for i, id := range q.SessionIds {
		a := &answers[i]
		reply.Answers[i] = a
		s, live := view.Session(id)
		switch {
		case !live:
			a.Code = uint32(fsm.CodeSessionExpired)
		case said[i] != renewed:
			// Its expiry is decided but not committed, and may never be: the
			// session may live on under the next leader. So no word of its end.
			a.Code = uint32(fsm.CodeNotReady)
		default:
			a.ChangedRevision = s.ChangedRevision
			a.TtlMs = s.TTL.Milliseconds()
		}
	}
	reply.Report = r.witness.take(from, term, q.Report, arrived)
	return reply, nil
}

// keepAlive renews a client's session and waits for the local copy to cover the
// answer, so that the leases it lists are those that were confirmed.
func (r *renewals) keepAlive(ctx context.Context, id string) (KeepAliveAnswer, error) {
	for try := 0; ; try++ {
		c, err := r.renew(ctx, id)
		switch {
		case err == nil:
			return r.covered(ctx, id, c)
		case errors.Is(err, fsm.ErrSessionExpired), errors.Is(err, fsm.ErrClosing), errors.Is(err, fsm.ErrInvalidArgument):
			return KeepAliveAnswer{}, err
		case ctx.Err() != nil:
			return KeepAliveAnswer{}, gaveUp(ctx, "the keep-alive was not confirmed")
		}
		if retryPause(ctx, r.clock, r.lead, try) != nil {
			return KeepAliveAnswer{}, gaveUp(ctx, "the keep-alive was not confirmed: "+err.Error())
		}
	}
}

func (r *renewals) covered(ctx context.Context, id string, c confirmation) (KeepAliveAnswer, error) {
	for _, revision := range []uint64{c.changed, c.revision} {
		if err := r.machine.Wait(ctx, revision); err != nil {
			return KeepAliveAnswer{}, gaveUp(ctx, "the local copy lags behind the answer")
		}
		view := r.machine.View()
		if _, ok := view.Session(id); !ok {
			continue // this copy may not have its opening yet
		}
		a := KeepAliveAnswer{Revision: view.Revision(), TTL: c.ttl, TrustedFor: c.ttl - max(r.margin, c.ttl/10)}
		for l := range view.SessionLeases(id) {
			a.Leases = append(a.Leases, l)
		}
		return a, nil
	}
	return KeepAliveAnswer{}, unrenewed(fsm.CodeSessionExpired)
}
