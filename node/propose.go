package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/miwnode/miwnode/fsm"
)

const (
	// maxQueued and maxQueuedBytes bound the commands of this node that have no
	// answer yet; more are refused with fsm.ErrOverloaded.
	maxQueued      = 16 << 10
	maxQueuedBytes = 64 << 20
	// queueReserve is room beyond that for commands that give something back:
	// a queue that is full must not keep what would empty it from being said.
	queueReserve = 2 << 10
	// heldFor is how long a command whose caller gave up unanswered keeps its
	// request ID alive, so that a repeat is recognized.
	heldFor = time.Minute
	// maxSpan bounds the request IDs from the low-water mark up, and with them
	// the results that the replicated state remembers for this node.
	maxSpan = 32 << 10
)

// proposeFunc is proposer.propose.
type proposeFunc func(ctx context.Context, op fsm.Op, opts ...ProposeOption) (*fsm.Result, error)

// ProposeOption is an extra of one Propose.
type ProposeOption func(*proposeOptions)

type proposeOptions struct {
	key     string
	hash    []byte
	request RequestID
}

// WithIdempotency has the replicated state remember the answer under key for ten
// minutes: a repeat through any node gets the first answer, one whose hash
// differs is refused.
func WithIdempotency(key string, hash []byte) ProposeOption {
	return func(o *proposeOptions) { o.key, o.hash = key, hash }
}

// RequestID names a command of this node. An fsm.ErrUncertain has it as Detail.
type RequestID struct {
	Boot uint64 `json:"boot"`
	Seq  uint64 `json:"seq"`
}

// WithRequest repeats a command, which must be the same, under the ID of a try
// that ended with fsm.ErrUncertain: it is applied once at most, and answered as
// the first time if it was. IDs are kept for a minute.
func WithRequest(id RequestID) ProposeOption {
	return func(o *proposeOptions) { o.request = id }
}

// proposer brings commands into the log. Each has a request ID (boot, sequence)
// and is sent again under it until it is answered or its caller's ctx ends, so
// it is applied once at most whatever becomes of leaders and answers.
//
// Where this node leads, what waits is packed into one entry of the log, one in
// flight; elsewhere one request to the leader carries what waits, two in flight.
// No goroutine is made per command.
type proposer struct {
	self    holder
	lead    leadership
	call    caller
	machine *fsm.Machine
	clock   clock
	log     *slog.Logger
	timeout time.Duration // of a request to the leader
	tenure  *tenure
	limit   int  // maxQueued, less in tests
	early   bool // answer before commit: a planted defect
	seams   *Seams
	// granted is told of each answer, for Defects.AcquireTrusts only.
	granted func(op fsm.Op, sent time.Duration, r *fsm.Result)
	wake    chan struct{} // one slot: there is something to do

	mu       sync.Mutex
	queue    []*command // waits to be sent, in order
	open     int        // commands of this node without an answer, and their bytes
	bytes    int
	window   window
	held     []heldSeq
	peers    peerQueue
	forwards int           // requests to the leader under way
	notUntil time.Duration // after a failure: send nothing before
	failures int           // in a row
	stopped  bool
	wg       sync.WaitGroup
}

// commandState is where a command is.
type commandState uint8

const (
	queued commandState = iota
	flying
	answered
	abandoned // its caller has gone
)

// command is one command of this node. Its fields are under the proposer's mu
// but for the body, which never changes.
type command struct {
	seq   uint64
	body  []byte // serialized fsm.Command without its sequence
	needs uint32 // state version
	state commandState
	// sent: it may be in some leader's log.
	sent  bool
	reply chan commandReply // one slot
}

type commandReply struct {
	result *fsm.Result
	err    error
}

// heldSeq is a request ID kept for a repeat.
type heldSeq struct {
	seq   uint64
	until time.Duration
}

func newProposer(cfg leaseConfig) *proposer {
	return &proposer{
		self:    cfg.self,
		lead:    cfg.lead,
		call:    cfg.call,
		machine: cfg.machine,
		clock:   cfg.clock,
		log:     cfg.log,
		timeout: max(2*time.Second, 4*cfg.timing.RaftTimeout),
		tenure:  newTenure(cfg.lead),
		limit:   maxQueued,
		early:   cfg.defects.AckBeforeCommit,
		seams:   cfg.seams,
		wake:    make(chan struct{}, 1),
		window:  window{low: 1, next: 1},
	}
}

// propose commits op and returns its result once the local copy covers it.
func (p *proposer) propose(ctx context.Context, op fsm.Op, opts ...ProposeOption) (*fsm.Result, error) {
	var o proposeOptions
	for _, opt := range opts {
		opt(&o)
	}
	// What the replicated version does not know yet must not get into the log:
	// members that can't apply it would halt.
	cmd := fsm.NewCommand(op)
	cmd.IdempotencyKey, cmd.IdempotencyHash = o.key, o.hash
	needs := fsm.Needs(op)
	if needs > 1 { // an empty copy does not tell
		if err := p.machine.Wait(ctx, 1); err != nil {
			if ctx.Err() == nil {
				return nil, fsm.Errorf(fsm.CodeNotReady, "the local copy is empty: %v", err)
			}
			return nil, gaveUp(ctx, "the command was not sent: the local copy is empty")
		}
	}
	if err := fsm.CheckCommand(cmd, p.version()); err != nil {
		return nil, err
	}
	body, err := proto.Marshal(cmd)
	if err != nil {
		return nil, fsm.Errorf(fsm.CodeInvalidArgument, "encode command: %v", err)
	}
	if ctx.Err() != nil {
		return nil, gaveUp(ctx, "the command was not sent")
	}
	c := &command{body: body, needs: needs, reply: make(chan commandReply, 1)}
	var sent time.Duration
	if p.granted != nil {
		sent = p.clock.boot()
	}
	if err := p.enqueue(c, o.request, givesBack(op)); err != nil {
		return nil, err
	}
	if p.early && answersWithoutData(op) {
		return &fsm.Result{Revision: p.machine.View().Revision()}, nil
	}
	select {
	case r := <-c.reply:
		if p.granted != nil {
			p.granted(op, sent, r.result)
		}
		if step, ok := stepOf(op); ok && p.seams.step(step) != nil {
			return nil, p.uncertain(c.seq, "the answer was not given")
		}
		return r.result, r.err
	case <-ctx.Done():
		return p.abandon(ctx, c)
	}
}

// version is the newest state version that may be proposed, as far as the copy
// tells: while it is empty, what every binary knows.
func (p *proposer) version() uint32 { return max(1, p.machine.View().Cluster().Version) }

// answersWithoutData are the commands whose success can be said before it is
// known, for the planted defect.
func answersWithoutData(op fsm.Op) bool {
	switch op.(type) {
	case *fsm.Release, *fsm.CloseSession, *fsm.MarkInstance, *fsm.Transfer, *fsm.Revoke:
		return true
	}
	return false
}

// givesBack tells whether op frees something.
func givesBack(op fsm.Op) bool {
	switch op.(type) {
	case *fsm.Release, *fsm.CancelWait, *fsm.CloseSession:
		return true
	}
	return false
}

func (p *proposer) enqueue(c *command, repeat RequestID, reserved bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	room := p.limit
	if reserved {
		room += queueReserve
	}
	switch {
	case p.stopped:
		return fsm.Errorf(fsm.CodeClosing, "the node has stopped")
	case p.open >= room || p.bytes+len(c.body) > maxQueuedBytes:
		return fsm.Errorf(fsm.CodeOverloaded, "%d commands wait for an answer", p.open)
	case repeat == RequestID{}:
		c.seq = p.window.take()
	case repeat.Boot != p.self.boot || !p.window.open(repeat.Seq):
		return p.uncertain(repeat.Seq, "the request ID is too old to be asked for")
	default:
		c.seq, c.sent = repeat.Seq, true
	}
	p.open++
	p.bytes += len(c.body)
	p.queue = append(p.queue, c)
	p.poke()
	return nil
}

func (p *proposer) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *proposer) uncertain(seq uint64, format string, args ...any) error {
	err := fsm.Errorf(fsm.CodeUncertain, format, args...)
	if e, ok := errors.AsType[*fsm.Error](err); ok {
		e.Detail = RequestID{p.self.boot, seq}
	}
	return err
}

// abandon takes back a command whose caller's ctx has ended. Never sent means
// surely not applied; else nobody knows, and its request ID stays open for a
// while so that a repeat is recognized.
func (p *proposer) abandon(ctx context.Context, c *command) (*fsm.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.state == answered {
		r := <-c.reply
		return r.result, r.err
	}
	unsent := c.state == queued && !c.sent
	p.close(c, abandoned)
	if unsent {
		p.window.finish(c.seq)
		why := "no leader took the command"
		if p.lead.leader() == "" {
			why = "no leader is known; the command was not sent"
		}
		return nil, gaveUp(ctx, why)
	}
	p.held = append(p.held, heldSeq{c.seq, p.clock.boot() + heldFor})
	return nil, &endedError{p.uncertain(c.seq, "no answer; the command may have been applied"), context.Cause(ctx)}
}

// close counts c as no longer open; p.mu is held.
func (p *proposer) close(c *command, s commandState) {
	p.open--
	p.bytes -= len(c.body)
	c.state = s
}

// answer hands a caller its reply; p.mu is held.
func (p *proposer) answer(c *command, r commandReply) {
	if c.state == answered || c.state == abandoned {
		return // its ID is held, whatever came of it
	}
	p.close(c, answered)
	if errors.Is(r.err, fsm.ErrUncertain) {
		p.held = append(p.held, heldSeq{c.seq, p.clock.boot() + heldFor})
	} else {
		p.window.finish(c.seq)
	}
	c.reply <- r
}

// lowWater lets go of request IDs that were held long enough and returns the
// mark: every command below it has been answered; p.mu is held.
func (p *proposer) lowWater() uint64 {
	now := p.clock.boot()
	for len(p.held) > 0 && (p.held[0].until <= now || p.window.span() > maxSpan) {
		p.window.finish(p.held[0].seq)
		p.held = p.held[1:]
	}
	return p.window.low
}

// take removes commands from the queue, up to n of them and about size bytes;
// p.mu is held.
func (p *proposer) take(n, size int) []*command {
	var taken []*command
	i := 0
	for ; i < len(p.queue) && len(taken) < n; i++ {
		c := p.queue[i]
		if c.state != queued {
			continue // abandoned
		}
		if size -= commandSize(c); size < 0 && len(taken) > 0 {
			break
		} else if size < 0 {
			return nil // not even one: leave it for a fuller try
		}
		c.state = flying
		taken = append(taken, c)
	}
	p.queue = p.queue[i:]
	if len(p.queue) == 0 {
		p.queue = nil
	}
	return taken
}

// putBack queues commands that were not answered, before all others. sent tells
// that they may have got into a log; p.mu is held.
func (p *proposer) putBack(commands []*command, sent bool) {
	var again []*command
	for _, c := range commands {
		if c.state == flying {
			c.state = queued
			c.sent = c.sent || sent
			again = append(again, c)
		}
	}
	p.queue = append(again, p.queue...)
}

// delay keeps from hammering a leader that is not there; p.mu is held.
func (p *proposer) delay() {
	p.notUntil = p.clock.boot() + backOff(p.failures)
	p.failures++
}

// run sends what is queued until ctx ends.
func (p *proposer) run(ctx context.Context) error {
	p.wg.Go(func() { p.tenure.watch(ctx) })
	defer p.stop()
	a := p.clock.alarm()
	defer a.stop()
	for ctx.Err() == nil {
		changed := p.lead.changed()
		if term, ok := p.lead.serving(); ok {
			if e := p.pack(term); e != nil {
				p.commit(ctx, e)
				continue
			}
		} else {
			if _, leads := p.lead.leading(); !leads {
				p.refusePeers()
			}
			p.forward(ctx)
		}
		p.mu.Lock()
		if p.notUntil > p.clock.boot() {
			a.setAt(p.notUntil)
		} else {
			a.stop()
		}
		p.mu.Unlock()
		select {
		case <-p.wake:
		case <-a.ring():
		case <-changed:
			p.mu.Lock()
			p.notUntil, p.failures = 0, 0
			p.mu.Unlock()
		case <-ctx.Done():
		}
	}
	return nil
}

// stop answers everybody.
func (p *proposer) stop() {
	p.refusePeers()
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.queue {
		if c.state != queued {
			continue
		}
		if c.sent {
			p.answer(c, commandReply{err: p.uncertain(c.seq, "the node stopped; the command may have been applied")})
		} else {
			p.answer(c, commandReply{err: fsm.Errorf(fsm.CodeClosing, "the node has stopped; the command was not sent")})
		}
	}
	p.queue = nil
}

// window is the set of request IDs in use: all of [low, next) but those that
// are finished.
type window struct {
	low, next uint64
	finished  map[uint64]struct{}
}

func (w *window) take() uint64 {
	w.next++
	return w.next - 1
}

// open tells whether the ID is in use.
func (w *window) open(seq uint64) bool {
	_, done := w.finished[seq]
	return seq >= w.low && seq < w.next && !done
}

func (w *window) finish(seq uint64) {
	if !w.open(seq) {
		return
	}
	if seq != w.low {
		if w.finished == nil {
			w.finished = map[uint64]struct{}{}
		}
		w.finished[seq] = struct{}{}
		return
	}
	for w.low++; w.low < w.next; w.low++ {
		if _, ok := w.finished[w.low]; !ok {
			return
		}
		delete(w.finished, w.low)
	}
}

func (w *window) span() uint64 { return w.next - w.low }
