package node

import (
	"cmp"
	"container/heap"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

const (
	// lessorLook is the longest time between two looks at the clock; one that
	// comes later by more than lessorSlack was held up.
	lessorLook  = 250 * time.Millisecond
	lessorSlack = 100 * time.Millisecond
	// dutyBatch bounds what the lessor proposes at once.
	dutyBatch = 1024
	dutyRetry = 50 * time.Millisecond
)

// dutyFunc commits commands of a leader's term in one entry.
type dutyFunc func(ctx context.Context, term uint64, ops ...fsm.Op) ([]*fsm.Result, error)

// lessor is the leader's memory of when sessions, revokes, lock delays and
// marks run out. Nothing of it is in the log and nothing of it outlives the
// term: a new leader gives everybody their full time again, so a deadline is
// only ever later than what its holder counts on.
//
// Its instants are lessor time: boot time less what was given back.
type lessor struct {
	lead    leadership
	machine *fsm.Machine
	duty    dutyFunc
	clock   clock
	log     *slog.Logger
	wake    chan struct{} // one slot: the queue has something earlier

	mu       sync.Mutex
	term     uint64        // that is served; 0 = none
	given    time.Duration // time given back so far
	lastLook time.Duration // boot time of the last look
	sessions map[string]*deadline
	timers   map[timerName]*deadline
	queue    deadlines
	former   map[string]*deadline // of sessions, in the last reign: for Defects.OldDeadlines only
	keeps    bool                 // them
}

// timerKind is what a timer ends.
type timerKind uint8

const (
	sessionTimer timerKind = iota
	revokeTimer
	barTimer
	drainTimer
	cordonTimer
	pinTimer
	pauseTimer
)

// timerName names what runs out: a grant by its key and token, a mark by its
// instance, or the key of its workload's lease, and its revision.
type timerName struct {
	kind   timerKind
	name   string
	number uint64
}

// deadline is one thing that runs out.
type deadline struct {
	timerName
	at time.Duration // lessor time
	// queued is its place in the queue: at or earlier, so that a keep-alive
	// moves at alone and a session is queued anew once per TTL, not per renewal.
	queued time.Duration
	ttl    time.Duration // sessions only
	whose  string        // sessions only: for people
	// proposed: the end was decided. A session's is renewed no more, whatever
	// comes of the proposal.
	proposed bool
}

type deadlines []*deadline

func (q deadlines) Len() int           { return len(q) }
func (q deadlines) Less(i, j int) bool { return q[i].queued < q[j].queued }
func (q deadlines) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *deadlines) Push(x any)        { *q = append(*q, x.(*deadline)) }
func (q *deadlines) Pop() any {
	old := *q
	d := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return d
}

func newLessor(cfg leaseConfig, duty dutyFunc) *lessor {
	return &lessor{
		lead:    cfg.lead,
		machine: cfg.machine,
		duty:    duty,
		clock:   cfg.clock,
		log:     cfg.log,
		wake:    make(chan struct{}, 1),
		keeps:   cfg.defects.OldDeadlines,
	}
}

// renewal is what the lessor says to one keep-alive.
type renewal uint8

const (
	renewed  renewal = iota // the deadline has been moved
	expiring                // its expiry is decided: no more renewals in this term
	unknown                 // no such session in the copy
)

// renew moves the deadlines of the sessions to arrived + TTL, never back. The
// answer goes out only after a proof of leadership that begins later. ok is
// false where this lessor does not serve the term.
func (l *lessor) renew(term uint64, ids []string, arrived time.Duration, out []renewal) (_ []renewal, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != term || term == 0 {
		return nil, false
	}
	var view *fsm.View
	for _, id := range ids {
		d := l.sessions[id]
		if d == nil {
			if view == nil {
				view = l.machine.View()
			}
			s, live := view.Session(id)
			if !live {
				out = append(out, unknown)
				continue
			}
			d = l.addSession(s, arrived)
		}
		if d.proposed {
			out = append(out, expiring)
			continue
		}
		d.at = max(d.at, arrived-l.given+d.ttl)
		out = append(out, renewed)
	}
	return out, true
}

// addSession gives a session a full TTL from now; l.mu is held.
func (l *lessor) addSession(s *fsm.Session, now time.Duration) *deadline {
	if d := l.sessions[s.ID]; d != nil {
		return d
	}
	d := &deadline{timerName: timerName{kind: sessionTimer, name: s.ID}, ttl: s.TTL, whose: cmp.Or(s.InstanceID, s.Name, "a client without a name")}
	l.sessions[s.ID] = d
	at := now - l.given + s.TTL
	if old := l.former[s.ID]; old != nil {
		at = old.at
	}
	l.push(d, at)
	return d
}

// addTimer has name run out in d; l.mu is held. One that is there already is
// kept: an event and the look through the state may both find it.
func (l *lessor) addTimer(name timerName, now, d time.Duration) {
	if l.timers[name] != nil {
		return
	}
	t := &deadline{timerName: name}
	l.timers[name] = t
	l.push(t, now-l.given+d)
}

func (l *lessor) push(d *deadline, at time.Duration) {
	d.at, d.queued = at, at
	heap.Push(&l.queue, d)
	if l.queue[0] == d {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// serve is the duty of one term: it starts after the term's barrier has been
// applied and returns when ctx ends.
func (l *lessor) serve(ctx context.Context, term uint64) error {
	l.begin(term)
	defer l.end()

	a := l.clock.alarm()
	defer a.stop()
	var (
		under []*deadline // what is being proposed
		done  = make(chan dutyAnswer, 1)
		again time.Duration // not before this instant, after a failed proposal
		wg    sync.WaitGroup
	)
	defer wg.Wait()
	for {
		now := l.clock.boot()
		l.look(now)
		if under == nil && now >= again {
			var ops []fsm.Op
			if under, ops = l.due(now, term); under != nil {
				wg.Go(func() {
					results, err := l.duty(ctx, term, ops...)
					done <- dutyAnswer{results, err}
				})
			}
		}
		next := min(l.next(under != nil), now+lessorLook)
		if next < again {
			next = min(again, now+lessorLook)
		}
		a.setAt(next)
		select {
		case <-a.ring():
		case <-l.wake:
		case got := <-done:
			if !l.settle(under, got) {
				again = l.clock.boot() + dutyRetry
			}
			under = nil
		case <-ctx.Done():
			return nil
		}
	}
}

type dutyAnswer struct {
	results []*fsm.Result
	err     error
}

// begin gives every session a full fresh TTL, every revoke and lock delay and
// every mark their full time: what an earlier leader has counted is unknown,
// and whoever it has just confirmed may trust that long.
func (l *lessor) begin(term uint64) {
	l.mu.Lock()
	l.term, l.given = term, 0
	l.sessions, l.timers, l.queue = map[string]*deadline{}, map[timerName]*deadline{}, nil
	l.lastLook = l.clock.boot()
	l.mu.Unlock()
	// From here on applied reports what is new; what follows finds the rest.
	view := l.machine.View()
	now := l.clock.boot()
	for s := range view.Sessions() {
		l.mu.Lock()
		l.addSession(s, now)
		l.addMarks(s, now)
		l.mu.Unlock()
	}
	for m := range view.PendingMarks() {
		l.mu.Lock()
		l.addWorkloadMark(m, now)
		l.mu.Unlock()
	}
	for lease := range view.PendingLeases() {
		l.mu.Lock()
		l.addLease(view, lease, now)
		l.mu.Unlock()
	}
}

func (l *lessor) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term = 0
	if l.keeps {
		l.former = l.sessions
	}
	l.sessions, l.timers, l.queue = nil, nil, nil
}

// addLease starts the timer of a revoked or barred lease; l.mu is held.
func (l *lessor) addLease(view *fsm.View, lease *fsm.Lease, now time.Duration) {
	switch lease.State {
	case fsm.Revoked:
		// T is the TTL of the holder's session: no answer from before the
		// revoke can make it trust for longer, and none from after counts
		// before it has seen the revoke.
		if s, ok := view.Session(lease.SessionID); ok {
			l.addTimer(timerName{revokeTimer, lease.Key, lease.Token}, now, s.TTL)
		}
	case fsm.Barred:
		l.addTimer(timerName{barTimer, lease.Key, lease.Token}, now, lease.LockDelay)
	}
}

// applied takes what an entry did. It is called on the apply goroutine.
func (l *lessor) applied(o *fsm.Outcome) {
	if len(o.Events) == 0 && len(o.Marked) == 0 && len(o.MarkedWorkloads) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == 0 {
		return
	}
	var (
		view   *fsm.View
		now    time.Duration
		opened bool
	)
	for _, e := range o.Events {
		switch e.Type {
		case fsm.EventSessionOpened, fsm.EventLeaseRevoked, fsm.EventLeaseEnded:
		default:
			continue
		}
		if e.Type == fsm.EventLeaseEnded && e.EndReason != fsm.EndExpired && e.EndReason != fsm.EndRevoked {
			continue // no lock delay
		}
		if view == nil {
			view, now = l.machine.View(), l.clock.boot()
		}
		switch e.Type {
		case fsm.EventSessionOpened:
			opened = true
		case fsm.EventLeaseRevoked, fsm.EventLeaseEnded:
			if lease, ok := view.Lease(e.Key); ok {
				l.addLease(view, lease, now)
			}
		}
	}
	for _, id := range o.Marked {
		if view == nil {
			view, now = l.machine.View(), l.clock.boot()
		}
		if s, ok := view.Instance(id); ok {
			l.addMarks(s, now)
		}
	}
	for _, m := range o.MarkedWorkloads {
		l.addWorkloadMark(m, l.clock.boot())
	}
	if !opened {
		return
	}
	// Events name no session (its ID is a secret), the results do.
	for _, p := range o.Proposals {
		for _, r := range p.Results {
			if r.GetSessionId() == "" {
				continue
			}
			if s, ok := view.Session(r.SessionId); ok {
				l.addSession(s, now)
			}
		}
	}
}

// look gives back the time for which this process was held up (stopped,
// suspended, starved): keep-alives that came meanwhile wait in its sockets, and
// nobody may lose a session for that.
func (l *lessor) look(now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if pause := now - l.lastLook; pause > lessorLook+lessorSlack {
		l.given += pause
		l.log.Warn("this leader was held up; every session gets the time back", "for", pause)
	}
	l.lastLook = now
}

// next is the boot instant at which something may be due. What is being
// proposed leaves no room for more.
func (l *lessor) next(busy bool) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if busy || len(l.queue) == 0 {
		return l.lastLook + lessorLook
	}
	return l.queue[0].queued + l.given
}

// due takes what has run out from the queue and marks it as decided.
func (l *lessor) due(now time.Duration, term uint64) (due []*deadline, ops []fsm.Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var view *fsm.View
	for len(l.queue) > 0 && len(due) < dutyBatch {
		d := l.queue[0]
		if d.queued > now-l.given {
			break
		}
		if d.at > d.queued && !d.proposed { // renewed since it was queued
			d.queued = d.at
			heap.Fix(&l.queue, 0)
			continue
		}
		heap.Pop(&l.queue)
		if view == nil {
			view = l.machine.View()
		}
		op := l.decide(view, d, term)
		if op == nil {
			l.forget(d)
			continue
		}
		d.proposed = true
		due, ops = append(due, d), append(ops, op)
	}
	return due, ops
}

// decide returns the command that ends d, nil if there is nothing left to end.
// Every such command carries the term of the decision: an entry that is left
// over from an earlier reign must not hit what a leader in between has renewed.
func (l *lessor) decide(view *fsm.View, d *deadline, term uint64) fsm.Op {
	switch d.kind {
	case sessionTimer:
		if _, ok := view.Session(d.name); ok {
			return &fsm.ExpireSession{SessionId: d.name, Term: term}
		}
	case revokeTimer:
		if x, ok := view.Lease(d.name); ok && x.State == fsm.Revoked && x.Token == d.number {
			return &fsm.FreeRevoked{Key: d.name, Token: d.number, Term: term}
		}
	case barTimer:
		if x, ok := view.Lease(d.name); ok && x.State == fsm.Barred && x.Token == d.number {
			return &fsm.LiftBar{Key: d.name, Token: d.number, Term: term}
		}
	case drainTimer:
		if s, ok := view.Instance(d.name); ok && s.Drain != nil && s.Drain.Revision == d.number {
			return &fsm.MarkInstance{InstanceId: d.name, Mark: fsm.MarkUndrain, MarkedRevision: d.number, Term: term, Reason: "expired"}
		}
	case cordonTimer:
		if s, ok := view.Instance(d.name); ok && s.Cordon != nil && s.Cordon.Revision == d.number {
			return &fsm.MarkInstance{InstanceId: d.name, Mark: fsm.MarkUncordon, MarkedRevision: d.number, Term: term, Reason: "expired"}
		}
	case pinTimer, pauseTimer:
		return decideWorkload(view, d, term)
	}
	return nil
}

// forget drops d from memory; l.mu is held.
func (l *lessor) forget(d *deadline) {
	if d.kind == sessionTimer {
		delete(l.sessions, d.name)
	} else {
		delete(l.timers, d.timerName)
	}
}

// settle takes the answer to a proposal. What was not applied for certain stays
// decided and is proposed again until it is applied or the term ends.
func (l *lessor) settle(under []*deadline, got dutyAnswer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == 0 {
		return true
	}
	if got.err == nil {
		for i, d := range under {
			if d.kind == sessionTimer && got.results[i].GetCode() == 0 {
				l.log.Info("session expired", "whose", d.whose, "ttl", d.ttl)
			}
			l.forget(d)
		}
		return true
	}
	l.log.Debug("expiry not committed, trying again", "count", len(under), "error", got.err)
	for _, d := range under {
		d.queued = d.at
		heap.Push(&l.queue, d)
	}
	return false
}
