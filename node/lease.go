package node

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

// sender is who has sent a message, by its greeting.
type sender struct {
	nodeID string
	boot   uint64
}

func senderOf(peer transport.Identity) sender { return sender{peer.NodeID, peer.Boot} }

// holder is who opens this node's session.
type holder struct {
	nodeID     string
	boot       uint64
	nonce      string
	instanceID string
	zone       string
	labels     map[string]string
}

func (h holder) sender() sender { return sender{h.nodeID, h.boot} }

// leaseConfig is what the lease side is made of.
type leaseConfig struct {
	self    holder
	timing  Timing
	clock   clock
	log     *slog.Logger
	machine *fsm.Machine
	lead    leadership
	call    caller
	// restartProved tells whether every process of the node's earlier boots is
	// gone; asked before each try to open a session. nil means no.
	restartProved func(ctx context.Context) bool
	// verify is raft.VerifyLeader, for Defects.VerifyLeaderProof only.
	verify  func() error
	defects Defects
	seams   *Seams // nil: none
	observe observer
}

// observer is told what is worth measuring. Its fields may be nil and must not block.
type observer struct {
	renewed    func(took time.Duration) // a keep-alive, from its sending to its confirmation
	stopped    func(took time.Duration) // a run, from being told to stop to its return
	overlapped func()                   // two runs of one key, by the leader
	gap        func(took time.Duration) // between two runs of one key, by the leader
}

func (o observer) sawRenewed(took time.Duration) {
	if o.renewed != nil {
		o.renewed(took)
	}
}

func (o observer) sawStopped(took time.Duration) {
	if o.stopped != nil {
		o.stopped(took)
	}
}

func (o observer) sawGap(took time.Duration) {
	if o.gap != nil {
		o.gap(took)
	}
}

func (o observer) sawOverlap() {
	if o.overlapped != nil {
		o.overlapped()
	}
}

// leaseSide is the part of a node that proposes, proves, renews and reads.
type leaseSide struct {
	proposer *proposer
	rounds   *rounds
	lessor   *lessor
	renewals *renewals
	keeper   *sessionKeeper
	slots    *slots
	reader   *reader
	witness  *witness
	runs     *runLog
}

func newLeaseSide(cfg leaseConfig) leaseSide {
	if cfg.log == nil {
		cfg.log = slog.New(slog.DiscardHandler)
	}
	var l leaseSide
	l.proposer = newProposer(cfg)
	l.rounds = newRounds(cfg)
	l.lessor = newLessor(cfg, l.proposer.duty)
	l.reader = newReader(cfg, l.rounds)
	l.witness = newWitness(cfg, l.proposer.duty)
	l.runs = newRunLog(cfg, l.witness)
	l.renewals = newRenewals(cfg, l.rounds, l.lessor, l.reader)
	l.renewals.runs, l.renewals.witness = l.runs, l.witness
	l.slots = newSlots(cfg, l.proposer.propose)
	l.slots.runLog = l.runs
	l.keeper = newSessionKeeper(cfg, l.proposer.propose, l.renewals, l.slots)
	if cfg.defects.AcquireTrusts {
		l.proposer.granted = l.keeper.granted
	}
	return l
}

// run owns the goroutines of the lease side until ctx ends. It must run while
// the node leaves, too: the session is renewed until its last run has returned.
func (l leaseSide) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		l.proposer.run, l.rounds.run, l.renewals.run, l.reader.run, l.slots.run, l.keeper.run, l.keeper.sleeps.run, l.runs.run,
	} {
		g.Go(func() error { return run(ctx) })
	}
	return g.Wait()
}

// applied is the machine's OnApplied: it is called on the apply goroutine and
// blocks for no longer than a map insert.
func (l leaseSide) applied(o *fsm.Outcome) {
	l.lessor.applied(o)
	l.slots.applied(o)
	l.witness.applied(o)
}

// serve is the leader's duty of one term, from its barrier until ctx ends.
func (l leaseSide) serve(ctx context.Context, term uint64) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.lessor.serve(ctx, term) })
	g.Go(func() error { return l.witness.serve(ctx, term) })
	return g.Wait()
}

// closeSession ends the node's session by a log entry and opens no other. The
// node calls it when no run is outstanding.
func (l leaseSide) closeSession(ctx context.Context) error { return l.keeper.close(ctx) }

// The handlers answer peers; what a peer says of itself must fit its greeting.
func (l leaseSide) handlePropose(ctx context.Context, peer transport.Identity, q *nodepb.ProposeRequest) (*nodepb.ProposeReply, error) {
	return l.proposer.handle(ctx, senderOf(peer), q)
}

func (l leaseSide) handleKeepAlive(ctx context.Context, peer transport.Identity, q *nodepb.KeepAliveRequest) (*nodepb.KeepAliveReply, error) {
	return l.renewals.handle(ctx, senderOf(peer), q)
}

func (l leaseSide) handleReportRuns(_ context.Context, peer transport.Identity, q *nodepb.RunReport) (*nodepb.RunReply, error) {
	return l.witness.handle(senderOf(peer), q)
}

func (l leaseSide) handleTerm(ctx context.Context, q *nodepb.TermRequest) (*nodepb.TermReply, error) {
	return l.rounds.handle(ctx, q)
}

func (l leaseSide) handleReadIndex(ctx context.Context, q *nodepb.ReadIndexRequest) (*nodepb.ReadIndexReply, error) {
	return l.reader.handle(ctx, q)
}

// errNotLeader is the refusal of a node that does not lead, or not yet.
func errNotLeader() error {
	return fsm.Errorf(fsm.CodeNotReady, "this node does not lead, or has not applied its barrier yet")
}
