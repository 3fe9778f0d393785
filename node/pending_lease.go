package node

import (
	"context"
	"errors"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
)

// Rough bodies; each goes when its file lands.

var errRough = errors.New("not built yet")

type proposeFunc = func(ctx context.Context, op fsm.Op, opts ...ProposeOption) (*fsm.Result, error)

type proposer struct{}

type ProposeOption func(*fsm.Command)

func newProposer(cfg leaseConfig) *proposer       { return &proposer{} }
func (p *proposer) run(ctx context.Context) error { <-ctx.Done(); return nil }
func (p *proposer) propose(ctx context.Context, op fsm.Op, opts ...ProposeOption) (*fsm.Result, error) {
	return nil, errRough
}

// duty commits commands of this leader's term in one entry, without request IDs.
func (p *proposer) duty(ctx context.Context, term uint64, ops ...fsm.Op) ([]*fsm.Result, error) {
	return nil, errRough
}
func (p *proposer) handle(ctx context.Context, q *nodepb.ProposeRequest) (*nodepb.ProposeReply, error) {
	return nil, errRough
}

type rounds struct{}

func newRounds(cfg leaseConfig) *rounds         { return &rounds{} }
func (r *rounds) run(ctx context.Context) error { <-ctx.Done(); return nil }
func (r *rounds) handle(ctx context.Context, q *nodepb.TermRequest) (*nodepb.TermReply, error) {
	return nil, errRough
}

type lessor struct{}

func newLessor(cfg leaseConfig, duty func(ctx context.Context, term uint64, ops ...fsm.Op) ([]*fsm.Result, error)) *lessor {
	return &lessor{}
}
func (l *lessor) applied(o *fsm.Outcome)                       {}
func (l *lessor) serve(ctx context.Context, term uint64) error { <-ctx.Done(); return nil }

type reader struct{}
type Consistency struct{ kind, max time.Duration }
type Freshness struct {
	Revision uint64
	Age      time.Duration
}

var Local, Linearizable Consistency

func newReader(cfg leaseConfig, r *rounds) *reader { return &reader{} }
func (r *reader) run(ctx context.Context) error    { <-ctx.Done(); return nil }
func (r *reader) read(ctx context.Context, c Consistency) (*fsm.View, Freshness, error) {
	return nil, Freshness{}, errRough
}
func (r *reader) handle(ctx context.Context, q *nodepb.ReadIndexRequest) (*nodepb.ReadIndexReply, error) {
	return nil, errRough
}

type renewals struct{}
type KeepAliveAnswer struct {
	Revision   uint64
	TTL        time.Duration
	TrustedFor time.Duration
	Leases     []*fsm.Lease
}

func newRenewals(cfg leaseConfig, r *rounds, l *lessor, rd *reader) *renewals { return &renewals{} }
func (r *renewals) run(ctx context.Context) error                             { <-ctx.Done(); return nil }
func (r *renewals) keepAlive(ctx context.Context, id string) (KeepAliveAnswer, error) {
	return KeepAliveAnswer{}, errRough
}
func (r *renewals) handle(ctx context.Context, q *nodepb.KeepAliveRequest) (*nodepb.KeepAliveReply, error) {
	return nil, errRough
}

type slots struct{}
type Run struct {
	ID              uint64
	Key             string
	Token           uint64
	Age             time.Duration
	Stopping, Stuck bool
	Stack           string
}

func newSlots(cfg leaseConfig, p proposeFunc) *slots { return &slots{} }
func (s *slots) run(ctx context.Context) error       { <-ctx.Done(); return nil }
func (s *slots) applied(o *fsm.Outcome)              {}
func (s *slots) claim(key, holder string) func()     { return func() {} }
func (s *slots) begin(ctx context.Context, key string, token uint64) (uint64, error) {
	return 0, errRough
}
func (s *slots) stopping(run uint64)            {}
func (s *slots) stuck(run uint64, stack string) {}
func (s *slots) returned(run uint64)            {}
func (s *slots) runs() []Run                    { return nil }

// idle is closed once no run is outstanding.
func (s *slots) idle() <-chan struct{} { c := make(chan struct{}); close(c); return c }

type sessionKeeper struct{}

func newSessionKeeper(cfg leaseConfig, p proposeFunc, r *renewals, s *slots) *sessionKeeper {
	return &sessionKeeper{}
}
func (k *sessionKeeper) run(ctx context.Context) error                { <-ctx.Done(); return nil }
func (k *sessionKeeper) close(ctx context.Context) error              { return errRough }
func (k *sessionKeeper) session(ctx context.Context) (string, error)  { return "", errRough }
func (k *sessionKeeper) ending(id string) <-chan struct{}             { return nil }
func (k *sessionKeeper) ended(id string) <-chan struct{}              { return nil }
func (k *sessionKeeper) trusted(id string) time.Duration              { return 0 }
func (k *sessionKeeper) confirm(ctx context.Context, id string) error { return errRough }

// current is the ID of the session that new work would run under, "" for none.
func (k *sessionKeeper) current() string { return "" }
