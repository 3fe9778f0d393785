package coord

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// overseer takes a grant through the steps by which it ends:
//
//	told   the work is asked to finish (Lease.Draining); the drain timeout runs
//	cut    the context is cancelled; the kill timeout runs
//	stuck  the work has not returned: reported, or the process ends
//	forced the lease may pass on now: the process ends, or that is reported
//
// A loss skips the first step. One goroutine owns it and calls next.
type overseer struct {
	lo    *lookout
	lease *Lease
	stuck StuckConfig

	drainTimeout, killTimeout time.Duration
	graceful                  func() bool // a transfer tells first, instead of cutting
	// patient tells whether a drain is to wait for the next owner to get ready;
	// nil: none is.
	patient func() bool

	wake  <-chan struct{} // of the grant
	halt  context.Context // of the instance
	lost  <-chan struct{} // the session is ending
	ended <-chan struct{} // the session has ended
	drain <-chan time.Time
	kill  <-chan time.Time
	force <-chan time.Time
	handing
	status overseen
	on     overseerEvents
}

// overseen is how far the grant has come.
type overseen struct {
	cause   error // why it ends, nil while it does not
	told    time.Time
	isCut   bool
	isStuck bool
	isLost  bool // somebody else may get the key without this process releasing it
	forced  bool
}

// handing is a drain that waits for the next owner to get ready. The drain
// timeout runs meanwhile.
type handing struct {
	because  error            // nil: none waits
	nominate <-chan time.Time // until then nobody need be named
	ask      <-chan time.Time // the work is told then, whoever is ready
}

// nomination is how long a drain waits for the planner to name who is next.
const nomination = time.Second

// overseerEvents are called by next; all must be set and none may block.
type overseerEvents struct {
	told  func(cause error) // once, when the work is first told, by whichever step
	cut   func(cause error) // once, when the context ends
	lost  func(cause error) // once, when the grant ends whatever this process does
	stuck func(StuckRun)    // once a minute from the kill timeout on, and when forced
	// stack returns a func that says where the work of now hangs; it may be
	// called by another goroutine.
	stack func() func() string
	runID func() uint64 // the node's number of the run, 0 for none
	busy  func() bool   // work may be running
}

// stuckAgain is how often stuck work is reported.
const stuckAgain = time.Minute

// begin prepares the overseer; unwatch must be called.
func (o *overseer) begin() (unwatch func()) {
	p := o.lease.seat
	o.wake, unwatch = o.lo.c.Watch(fsm.GrantTopic(p.key, p.session.id, p.holder))
	o.halt = o.lo.halted()
	o.lost, o.ended = p.session.ending.Done(), p.session.ended
	return unwatch
}

// happening is what next returned for.
type happening uint8

const (
	nothing happening = iota // one of the overseer's own steps
	workDone
	stopAsked
	restDone
)

// next waits for one thing to happen and deals with what is its own.
func (o *overseer) next(done, stop <-chan struct{}, rest <-chan time.Time) happening {
	// What ends the lease outranks whatever else is ready.
	select {
	case <-o.ended:
		o.mustStop()
		return nothing
	case <-o.lost:
		o.lose(ErrLost)
		return nothing
	default:
	}
	// A stop comes next: what the group makes of it is no news.
	select {
	case <-stop:
		return stopAsked
	default:
	}
	select {
	case <-done:
		return workDone
	case <-stop:
		return stopAsked
	case <-rest:
		return restDone
	case <-o.wake:
		o.check()
	case <-o.lost:
		o.lose(ErrLost)
	case <-o.ended:
		o.mustStop()
	case <-haltOf(o.halt):
		o.drained(context.Cause(o.halt))
	case <-o.nominate:
		o.nominate = nil
		o.check()
	case <-o.ask:
		if o.drains() {
			o.tell(o.because)
		}
	case <-o.drain:
		o.drain = nil
		switch {
		case o.status.cause != nil:
			o.cut(o.status.cause)
		case o.drains(): // it was to be told before, and this goroutine did not run
			o.cut(o.because)
		}
	case <-o.kill:
		o.reportStuck()
	case <-o.force:
		o.force = nil
		o.mustStop()
	}
	return nothing
}

func haltOf(ctx context.Context) <-chan struct{} {
	if ctx == nil {
		return nil
	}
	return ctx.Done()
}

// check compares the grant with the copy.
func (o *overseer) check() {
	p := o.lease.seat
	st, record := p.look(o.lo.c.View())
	switch st {
	case held:
		if record.Note.To == "" && o.nominate == nil && o.drains() {
			o.tell(o.because) // nobody gets ready
		}
	case moving:
		// What was told already has its time, and so has what leaves an
		// instance that drains.
		switch cause := movedBy(record); {
		case o.status.cause != nil:
		case o.drains():
			o.tell(o.because)
		case o.graceful != nil && o.graceful():
			o.tell(cause)
		default:
			if halt := o.lo.refresh(); halt != nil {
				o.tell(halt)
			} else {
				o.cut(cause)
			}
		}
	case revoked:
		// The leader frees the key T after the revoke was applied there. The
		// session lives on, so nothing but this timer ends the work.
		by := p.session.revokedUntil(record.ChangedRevision)
		o.forceAt(max(time.Until(by), grace(p.session.ttl())))
		o.lose(ErrRevoked)
	case gone:
		o.forceAt(grace(p.session.ttl()))
		o.lose(ErrLost)
	}
}

// movedBy is why a lease is to be given up that stays held until it is.
func movedBy(l *fsm.Lease) error {
	switch {
	case l.Group == "":
	case l.Note.By == fsm.ByPause:
		return ErrPaused
	case l.Note.By == fsm.ByGroup && l.Note.To == "":
		return ErrUnassigned
	}
	return ErrMoved
}

func (o *overseer) forceAt(d time.Duration) {
	if o.force == nil && !o.status.forced {
		o.force = time.After(d)
	}
}

// drained is the beginning of a drain: the work is told, unless somebody else is
// to get ready first.
func (o *overseer) drained(cause error) {
	if o.drainTimeout <= 0 || o.patient == nil || !o.patient() {
		o.tell(cause)
		return
	}
	o.halt = nil
	o.handing = handing{because: cause, nominate: time.After(nomination), ask: time.After(o.drainTimeout / 2)}
	o.drain = time.After(o.drainTimeout)
	o.check()
}

// drains tells whether a drain waits, and forgets one that was taken back.
func (o *overseer) drains() bool {
	if o.because == nil {
		return false
	}
	if o.lo.refresh() != nil {
		return true
	}
	o.handing, o.drain = handing{}, nil
	o.halt = o.lo.halted()
	return false
}

// tell asks the work to finish; the drain timeout is on the monotonic clock, as
// every timer here.
func (o *overseer) tell(cause error) {
	o.halt, o.handing = nil, handing{}
	if o.status.cause != nil {
		return
	}
	o.first(cause)
	if o.drainTimeout <= 0 {
		o.cut(cause)
		return
	}
	if o.drain == nil { // else it runs since the drain began
		o.drain = time.After(o.drainTimeout)
	}
}

func (o *overseer) first(cause error) {
	o.status.cause, o.status.told = cause, time.Now()
	close(o.lease.draining)
	if run := o.on.runID(); run != 0 {
		o.lo.c.Stopping(run)
	}
	o.on.told(cause)
}

// cut cancels the context.
func (o *overseer) cut(cause error) {
	if o.status.isCut {
		return
	}
	o.status.isCut = true
	if o.status.cause == nil {
		o.first(cause)
	}
	o.drain, o.halt, o.handing = nil, nil, handing{}
	o.lease.cancel(cause)
	o.kill = time.After(o.killTimeout)
	o.on.cut(cause)
}

// lose is cut for a grant that ends whatever this process does.
func (o *overseer) lose(cause error) {
	o.lost = nil
	if !o.status.isLost {
		o.status.isLost = true
		o.cut(cause)
		o.on.lost(cause)
	}
}

// mustStop: the key may pass on from now on.
func (o *overseer) mustStop() {
	o.ended = nil
	o.lose(ErrLost)
	if o.status.forced || !o.on.busy() {
		return
	}
	o.status.forced, o.status.isStuck = true, true
	o.enforce(o.stuck.WhenLost)
}

// reportStuck: the work was told, has had its time, and has not returned.
func (o *overseer) reportStuck() {
	o.kill = time.After(stuckAgain)
	if !o.on.busy() {
		return
	}
	o.status.isStuck = true
	if o.status.isLost {
		o.enforce(PolicyReport) // the end of the session decides
		return
	}
	o.enforce(o.stuck.WhileHeld)
}

// reportPatience is how long the end of the process waits for the report that
// says why: a log that blocks must not keep the process alive.
const reportPatience = 50 * time.Millisecond

func (o *overseer) enforce(p Policy) {
	run := StuckRun{
		Key: o.lease.Key(), Token: o.lease.Token(), Cause: o.status.cause,
		Age: time.Since(o.status.told), Lost: o.status.isLost,
	}
	if c, ok := o.lo.c.(holdUps); ok {
		run.HeldUp = c.HeldUp()
	}
	id, stack := o.on.runID(), o.on.stack()
	report := func() {
		run.Stack = stack()
		if id != 0 {
			o.lo.c.Stuck(id, run.Stack)
		}
		o.on.stuck(run)
	}
	if p != PolicyExit {
		report()
		return
	}
	said := make(chan struct{})
	go func() {
		defer close(said)
		report()
	}()
	select {
	case <-said:
	case <-time.After(reportPatience):
	}
	if o.stuck.farewell != nil { // not the log: whoever gave none would see the process vanish
		fmt.Fprintln(o.stuck.farewell, run.farewell())
	}
	o.stuck.Exit(ExitCode)
}

// keep watches over a lease of Acquire until it is released.
func (l *Lease) keep(o acquireOptions) {
	h := l.handle
	key, token := slog.String("key", l.Key()), slog.Uint64("token", l.Token())
	w := &overseer{
		lo: h.lo, lease: l, stuck: o.stuck.withDefaults(l.c, PolicyReport),
		drainTimeout: o.drainTimeout, killTimeout: l.c.KillTimeout(),
		on: overseerEvents{
			told: func(cause error) { o.log.Info("lease is to be released", key, token, slog.Any("cause", cause)) },
			cut: func(cause error) {
				o.log.Warn("lease is over: its context has ended", key, token, slog.Any("cause", cause))
			},
			lost: func(error) {},
			stuck: func(s StuckRun) {
				o.log.LogAttrs(context.Background(), slog.LevelError, "lease has not been released in time", append(s.attrs(), key, slog.Bool("lost", s.Lost))...)
			},
			stack: func() func() string { return func() string { return callers(h.acquiredAt) } },
			runID: func() uint64 { return h.run },
			busy:  func() bool { return true },
		},
	}
	defer w.begin()()
	w.check()
	for w.next(h.over, nil, nil) != workDone {
	}
}
