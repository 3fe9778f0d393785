package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

const (
	// closeTry bounds one try to close a session.
	closeTry = 2 * time.Second
)

// sessionKeeper keeps this node's session: it opens one, renews it, tells the
// work under it when trust ends, and opens the next once the last is gone from
// the replicated state.
type sessionKeeper struct {
	self     holder
	timing   Timing
	lead     leadership
	machine  *fsm.Machine
	clock    clock
	log      *slog.Logger
	propose  proposeFunc
	renewals *renewals
	slots    *slots
	proved   func(ctx context.Context) bool // of a restart
	rule     trustRule
	defects  Defects
	seams    *Seams
	sleep    *sleepDetector
	sleeps   *sleepLog
	observe  observer
	poked    chan struct{} // one slot: look again
	marks    ownMarks      // owned by run

	mu       sync.Mutex
	current  *heldSession            // what new work runs under; nil = none
	sessions map[string]*heldSession // current, and former ones that are not over
	moved    chan struct{}           // closed at every change that a waiter may wait for

	leaving context.Context // ends with close: open nothing any more
	leave   context.CancelCauseFunc
	left    chan struct{} // closed when the last session is closed
}

// heldSession is one session of this node. Its fields are under the keeper's mu.
type heldSession struct {
	id      string
	trust   *trust
	ending  chan struct{} // closed when work is told to stop
	over    chan struct{} // closed when work is made to stop
	said    bool          // ending is closed
	done    bool          // over is closed
	refused bool          // the leader knows no such session
	asked   time.Duration // somebody wants a keep-alive sent at or after this instant
}

func newSessionKeeper(cfg leaseConfig, propose proposeFunc, renewals *renewals, slots *slots) *sessionKeeper {
	k := &sessionKeeper{
		self:     cfg.self,
		timing:   cfg.timing,
		lead:     cfg.lead,
		machine:  cfg.machine,
		clock:    cfg.clock,
		log:      cfg.log,
		propose:  propose,
		renewals: renewals,
		slots:    slots,
		proved:   cfg.restartProved,
		rule:     newTrustRule(cfg.timing.SessionTTL, cfg.timing.Margin, cfg.timing.StopBudget),
		defects:  cfg.defects,
		seams:    cfg.seams,
		sleep:    newSleepDetector(cfg.clock),
		sleeps:   newSleepLog(cfg.self.instanceID, propose, cfg.log),
		observe:  cfg.observe,
		poked:    make(chan struct{}, 1),
		sessions: map[string]*heldSession{},
		moved:    make(chan struct{}),
		left:     make(chan struct{}),
	}
	k.leaving, k.leave = context.WithCancelCause(context.Background())
	if k.defects.NoMargin {
		k.rule = trustRule{ttl: cfg.timing.SessionTTL}
	}
	slots.onReturn = k.poke
	return k
}

func (k *sessionKeeper) poke() {
	select {
	case k.poked <- struct{}{}:
	default:
	}
}

// announce wakes those who wait for a session or a confirmation; k.mu is held.
func (k *sessionKeeper) announce() {
	close(k.moved)
	k.moved = make(chan struct{})
}

// session waits for an open session with trust left.
func (k *sessionKeeper) session(ctx context.Context) (string, error) {
	for {
		now := k.look()
		view := k.machine.View()
		k.mu.Lock()
		if s := k.current; s != nil {
			k.advance(s, now)
			// hold may not have seen yet that the session is gone.
			if _, live := view.Session(s.id); live && s.trust.left(now) > 0 {
				k.mu.Unlock()
				return s.id, nil
			}
		}
		moved := k.moved
		k.mu.Unlock()
		select {
		case <-moved:
		case <-k.leaving.Done():
			return "", context.Cause(k.leaving)
		case <-ctx.Done():
			return "", gaveUp(ctx, "no session is open and confirmed")
		}
	}
}

var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// endings returns the channels of a session; those of an unknown one, which is
// over for this process, are closed.
func (k *sessionKeeper) endings(id string) (ending, over <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.sessions[id]; s != nil {
		return s.ending, s.over
	}
	return closedChannel, closedChannel
}

func (k *sessionKeeper) ending(id string) <-chan struct{} { c, _ := k.endings(id); return c }
func (k *sessionKeeper) ended(id string) <-chan struct{}  { _, c := k.endings(id); return c }

// trusted is the time until the session is ending. It looks at the clocks
// first: after a sleep nothing is trusted before the next confirmed keep-alive,
// whoever asks first.
func (k *sessionKeeper) trusted(id string) time.Duration {
	now := k.look()
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.sessions[id]
	if s == nil {
		return 0
	}
	k.advance(s, now)
	return s.trust.left(now)
}

// confirm has a keep-alive sent and waits until it is confirmed and the local
// copy covers its answer.
func (k *sessionKeeper) confirm(ctx context.Context, id string) error {
	after := k.look()
	for first := true; ; first = false {
		k.mu.Lock()
		s := k.sessions[id]
		if s == nil || s.trust.ending {
			k.mu.Unlock()
			return fsm.Errorf(fsm.CodeSessionExpired, "the session has ended")
		}
		if s.trust.sent >= after && !s.trust.asleep {
			k.mu.Unlock()
			return nil
		}
		if first {
			s.asked = max(s.asked, after)
		}
		moved := k.moved
		k.mu.Unlock()
		if first {
			k.poke()
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return gaveUp(ctx, "the session was not confirmed")
		}
	}
}

// look compares the clocks. After a sleep no session is trusted until it is
// confirmed anew; a wall clock that was set costs one keep-alive and nothing
// else.
func (k *sessionKeeper) look() (now time.Duration) {
	now, slept, stepped := k.sleep.look()
	if slept == 0 && stepped == 0 {
		return now
	}
	k.mu.Lock()
	for _, s := range k.sessions {
		if slept > 0 {
			s.trust.slept(now)
		}
		s.asked = now
		k.advance(s, now)
	}
	k.mu.Unlock()
	if slept > 0 {
		k.sleeps.slept(slept, k.grants())
		k.log.Warn("the machine slept: no lease is trusted until it is confirmed", "slept", slept)
	}
	if stepped != 0 {
		k.log.Info("the wall clock was set", "by", stepped)
	}
	k.poke()
	return now
}

// grants are the tokens by key that this process has: leases of its sessions, and
// runs that have not returned.
func (k *sessionKeeper) grants() map[string]uint64 {
	grants := map[string]uint64{}
	view := k.machine.View()
	k.mu.Lock()
	for id := range k.sessions {
		for l := range view.SessionLeases(id) {
			grants[l.Key] = l.Token
		}
	}
	k.mu.Unlock()
	for _, r := range k.slots.runs() {
		grants[r.Key] = r.Token
	}
	return grants
}

// advance moves a session's trust to now and tells the work; k.mu is held.
func (k *sessionKeeper) advance(s *heldSession, now time.Duration) {
	ending, over := s.trust.at(now)
	if ending && !s.said {
		s.said = true
		if k.current == s {
			k.current = nil
		}
		close(s.ending)
		k.announce()
	}
	if over && !s.done {
		s.done = true
		close(s.over)
	}
}

// finish ends a session that is gone from the state.
func (k *sessionKeeper) finish(s *heldSession) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s.trust.end()
	k.advance(s, k.clock.boot())
	delete(k.sessions, s.id)
	k.announce()
}

// run opens sessions, one after the other, until ctx ends or close is called.
func (k *sessionKeeper) run(ctx context.Context) error {
	defer k.finishAll()
	octx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(k.leaving, func() { cancel(context.Cause(k.leaving)) })()
	for octx.Err() == nil {
		s, err := k.open(octx)
		if err != nil {
			break
		}
		k.hold(ctx, s)
	}
	close(k.left)
	<-ctx.Done()
	return nil
}

// finishAll: a node that stops has no keeper any more, so nothing is trusted.
func (k *sessionKeeper) finishAll() {
	k.mu.Lock()
	all := make([]*heldSession, 0, len(k.sessions))
	for _, s := range k.sessions {
		all = append(all, s)
	}
	k.mu.Unlock()
	for _, s := range all {
		k.finish(s)
	}
}

// sending is the outcome of one keep-alive.
type sending struct {
	confirmation
	err error
}

// hold renews the session until it is gone from the state. It goes on after
// trust has ended while runs are outstanding, so that nothing starts elsewhere
// while they stop, and closes the session when the last has returned.
func (k *sessionKeeper) hold(ctx context.Context, s *heldSession) {
	defer k.finish(s)
	var wg sync.WaitGroup
	defer wg.Wait()
	hctx, cancel := context.WithCancel(ctx)
	defer cancel()

	woken, unwatch := k.machine.Watch(fsm.InstanceTopic(k.self.instanceID))
	defer unwatch()
	ticks, stopTicks := k.clock.ticks(sleepTick)
	defer stopTicks()
	a := k.clock.alarm()
	defer a.stop()

	var (
		sent     = make(chan sending, 1)
		closing  = make(chan error, 1)
		leading  = k.lead.changed()
		covering = make(chan struct{}, 1)
		busy     sendState
	)
	for {
		now := k.look()
		view := k.machine.View()
		k.marks.look(view, k.self.instanceID)
		if _, ok := view.Session(s.id); !ok {
			return
		}
		k.mu.Lock()
		before := s.trust.sent
		s.trust.covered(view.Revision())
		if s.trust.sent != before {
			k.announce()
		}
		k.advance(s, now)
		ending := s.said
		wants, waits := s.trust.waitsFor()
		asked := s.asked
		alarmAt := now + k.timing.RenewInterval
		if at, ok := s.trust.next(); ok {
			alarmAt = min(alarmAt, at)
		}
		refused := s.refused
		k.mu.Unlock()

		if waits && !busy.covering {
			busy.covering = true
			wg.Go(func() {
				_ = k.machine.Wait(hctx, wants)
				covering <- struct{}{}
			})
		}
		if !busy.sending && !refused && (now >= busy.next || asked > busy.last && now >= busy.retry) {
			busy.sending, busy.last = true, now
			wg.Go(func() {
				c, err := k.renewals.renew(hctx, s.id)
				sent <- sending{c, err}
			})
		}
		if !busy.closing && now >= busy.closeAfter && (ending || k.leaving.Err() != nil) && k.outstanding(s.id) == 0 {
			busy.closing = true
			wg.Go(func() { closing <- k.closeOne(hctx, s.id) })
		}
		if !busy.sending && !refused {
			at := busy.next
			if asked > busy.last {
				at = min(at, busy.retry)
			}
			alarmAt = min(alarmAt, at)
		}
		a.setAt(alarmAt)

		select {
		case <-a.ring():
		case <-ticks:
		case <-woken:
		case <-k.poked:
		case <-leading:
			leading = k.lead.changed()
			busy.retry = 0
			if busy.tries > 0 {
				busy.next = 0
			}
		case got := <-sent:
			k.received(s, got, &busy)
		case <-covering:
			busy.covering = false
		case <-closing:
			busy.closing = false
			busy.closeAfter = k.clock.boot() + openRetry
		case <-ctx.Done():
			return
		}
	}
}

// outstanding counts the runs under the session.
func (k *sessionKeeper) outstanding(id string) int {
	n := k.slots.outstanding(id)
	if n == 1 && k.defects.DrainForgets && k.leaving.Err() != nil {
		return 0
	}
	return n
}

// granted is the planted defect that counts trust from the sending of an acquire.
func (k *sessionKeeper) granted(op fsm.Op, sent time.Duration, r *fsm.Result) {
	a, ok := op.(*fsm.Acquire)
	if !ok || r.GetToken() == 0 {
		return
	}
	k.mu.Lock()
	if s := k.sessions[a.SessionId]; s != nil {
		s.trust.extend(sent)
	}
	k.mu.Unlock()
	k.poke()
}

// sendState is what hold has under way.
type sendState struct {
	sending    bool
	last       time.Duration // when the newest keep-alive was handed over
	next       time.Duration // when the next is due; 0 = now
	retry      time.Duration // no keep-alive that was asked for before this
	tries      int           // failed ones in a row
	covering   bool
	closing    bool
	closeAfter time.Duration
}

// received takes the outcome of a keep-alive.
func (k *sessionKeeper) received(s *heldSession, got sending, b *sendState) {
	b.sending = false
	now := k.clock.boot()
	if got.err != nil {
		b.tries++
		b.next = now + backOff(b.tries)
		b.retry = b.next
		if errors.Is(got.err, fsm.ErrSessionExpired) {
			// Proved: the leader's state has no such session, so it will be gone
			// from this copy in a moment. No other is opened before.
			k.mu.Lock()
			s.refused = true
			s.trust.end()
			k.advance(s, now)
			k.mu.Unlock()
			return
		}
		if b.tries > 1 {
			k.log.Debug("keep-alive failed, trying again", "tries", b.tries, "error", got.err)
		}
		return
	}
	b.tries, b.retry = 0, 0
	k.observe.sawRenewed(now - got.sent)
	b.next = got.sent + k.timing.RenewInterval
	sent := got.sent
	if k.defects.NoMargin {
		sent = now
	}
	applied := k.machine.View().Revision()
	if k.defects.UncoveredAnswers {
		applied = max(applied, got.changed)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s.trust.confirmed(answer{sent: sent, changed: got.changed}, applied)
	k.advance(s, now)
	k.announce()
}

// renewAge is the time since the sending of the newest confirmed keep-alive;
// false without a session.
func (k *sessionKeeper) renewAge() (time.Duration, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == nil {
		return 0, false
	}
	return k.clock.boot() - k.current.trust.sent, true
}

// closeOne ends the session by a log entry.
func (k *sessionKeeper) closeOne(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, closeTry)
	defer cancel()
	_, err := k.propose(ctx, &fsm.CloseSession{SessionId: id, Reason: fsm.CloseClosed})
	return err
}

// close ends the session once no run is outstanding and opens no other. It says
// what it could not do by the end of ctx; the session then runs out by its TTL.
func (k *sessionKeeper) close(ctx context.Context) error {
	k.leave(fsm.Errorf(fsm.CodeClosing, "the node is leaving"))
	k.poke()
	select {
	case <-k.left:
		return nil
	case <-ctx.Done():
		what := "the session could not be closed and ends by its TTL"
		if n := len(k.slots.runs()); n > 0 {
			what = "the session is kept: runs have not returned"
		}
		return gaveUp(ctx, what)
	}
}
