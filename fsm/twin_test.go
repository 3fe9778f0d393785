package fsm_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// twin is the rules again, in plain maps and slices, with no thought of speed.
// It is compared with State over random histories.
type twin struct {
	index, term     uint64
	stamp, lastSeen int64
	elapsed         int64
	tokens          uint64
	sessions        map[string]*twinSession
	opened          int
	leases          map[string]*twinLease
	queues          map[string][]*twinWaiter
	clients         map[string]*twinClient
	keyed           []*twinKeyed
	events          []string
	ledger          []string
	version         uint32
	twinGroups
	workers map[string]*twinWorker
}

type twinSession struct {
	open    *fsm.OpenSession
	order   int
	changed uint64
	marks   map[string]uint64 // "drain", "cordon": revision
}

type twinLease struct {
	key, session, holder, instance, state, to string
	token, granted, changed                   uint64
	delay                                     bool
	asks                                      []uint64
	group, by                                 string // of a lease that a group granted
	stuck                                     bool
}

type twinWaiter struct {
	session, holder string
	delay           bool
	asks            []uint64
}

type twinClient struct {
	boot, low uint64
	answers   map[uint64]*twinAnswer
}

type twinAnswer struct {
	code, token uint64
	total       uint64
	queued      bool
	session     string       // that was opened
	acquire     *fsm.Acquire // that was granted or queued
}

type twinKeyed struct {
	key, hash string
	elapsed   int64
	answer    *twinAnswer
}

func newTwin() *twin {
	return &twin{
		tokens:   1 << 40,
		sessions: map[string]*twinSession{},
		leases:   map[string]*twinLease{},
		queues:   map[string][]*twinWaiter{},
		clients:  map[string]*twinClient{},

		twinGroups: newTwinGroups(),
		workers:    map[string]*twinWorker{},
	}
}

func refusal(c fsm.Code) *twinAnswer { return &twinAnswer{code: uint64(c)} }

var twinDone = &twinAnswer{}

func (t *twin) apply(index, term uint64, stamp int64, proposals []*fsm.Proposal) (out [][]*twinAnswer) {
	t.index, t.term, t.stamp = index, term, stamp
	if t.lastSeen != 0 && stamp > t.lastSeen {
		t.elapsed += stamp - t.lastSeen
	}
	t.lastSeen = stamp
	t.keyed = slices.DeleteFunc(t.keyed, func(k *twinKeyed) bool { return t.elapsed-k.elapsed >= int64(10*time.Minute) })
	for _, p := range proposals {
		out = append(out, t.proposal(p))
	}
	return out
}

func (t *twin) proposal(p *fsm.Proposal) (out []*twinAnswer) {
	c := t.clients[p.NodeId]
	if c == nil || p.Boot > c.boot {
		c = &twinClient{boot: p.Boot, answers: map[uint64]*twinAnswer{}}
		if p.NodeId != "" {
			t.clients[p.NodeId] = c
		}
	}
	closed := p.Boot < c.boot
	if !closed {
		c.low = max(c.low, p.LowWater)
		maps.DeleteFunc(c.answers, func(seq uint64, _ *twinAnswer) bool { return seq < c.low })
	}
	for _, cmd := range p.Commands {
		known, repeated := c.answers[cmd.Seq]
		switch {
		case closed:
			out = append(out, refusal(fsm.CodeWrongState))
		case cmd.Seq == 0:
			out = append(out, t.command(cmd))
		case cmd.Seq < c.low:
			out = append(out, refusal(fsm.CodeWrongState))
		case repeated:
			out = append(out, t.present(known))
		default:
			a := t.command(cmd)
			c.answers[cmd.Seq] = a
			out = append(out, a)
		}
	}
	return out
}

func (t *twin) command(cmd *fsm.Command) *twinAnswer {
	op := fsm.OpOf(cmd)
	if cmd.IdempotencyKey == "" {
		return t.run(op)
	}
	for _, k := range t.keyed {
		if k.key != cmd.IdempotencyKey {
			continue
		}
		if k.hash != string(cmd.IdempotencyHash) {
			return refusal(fsm.CodeInvalidArgument)
		}
		a := t.present(k.answer)
		if op, ok := op.(*fsm.Acquire); ok && a.acquire != nil && a.code == 0 {
			t.askAgain(a.acquire, op.Ask)
		}
		return a
	}
	a := t.run(op)
	if a.code != uint64(fsm.CodeInvalidArgument) {
		t.keyed = append(t.keyed, &twinKeyed{cmd.IdempotencyKey, string(cmd.IdempotencyHash), t.elapsed, a})
	}
	return a
}

// present is a former answer checked against the present.
func (t *twin) present(a *twinAnswer) *twinAnswer {
	if a.session != "" && t.sessions[a.session] == nil {
		return refusal(fsm.CodeSessionExpired)
	}
	if a.acquire == nil || a.code != 0 {
		return a
	}
	if t.sessions[a.acquire.SessionId] == nil {
		return &twinAnswer{code: uint64(fsm.CodeSessionExpired), acquire: a.acquire}
	}
	l := t.leases[a.acquire.Key]
	if l != nil && l.session == a.acquire.SessionId && l.holder == a.acquire.Holder &&
		(l.state == "held" || l.state == "transferring") && (a.queued || a.token == l.token) {
		return &twinAnswer{token: l.token, acquire: a.acquire}
	}
	if a.queued && t.waits(a.acquire.Key, a.acquire.SessionId, a.acquire.Holder) != nil {
		return &twinAnswer{queued: true, acquire: a.acquire}
	}
	return &twinAnswer{code: uint64(fsm.CodeStaleToken), acquire: a.acquire}
}

func (t *twin) waits(key, session, holder string) *twinWaiter {
	for _, w := range t.queues[key] {
		if w.session == session && w.holder == holder {
			return w
		}
	}
	return nil
}

func (t *twin) emit(format string, args ...any) {
	t.events = append(t.events, strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
}

func (t *twin) run(op fsm.Op) *twinAnswer {
	if a := t.gate(op); a != nil {
		return a
	}
	switch op := op.(type) {
	case *fsm.SetVersion:
		return t.setVersion(op)
	case *fsm.OpenSession:
		return t.open(op)
	case *fsm.CloseSession:
		if t.sessions[op.SessionId] == nil {
			return refusal(fsm.CodeSessionExpired)
		}
		t.end(op.SessionId, map[bool]string{true: "crashed", false: "closed"}[op.Reason == fsm.CloseCrashed])
		return twinDone
	case *fsm.ExpireSession:
		if op.Term != t.term {
			return refusal(fsm.CodeWrongState)
		}
		if t.sessions[op.SessionId] == nil {
			return refusal(fsm.CodeSessionExpired)
		}
		t.end(op.SessionId, "expired")
		return twinDone
	case *fsm.Acquire:
		return t.acquire(op)
	case *fsm.CancelWait:
		return t.cancel(op)
	case *fsm.Release:
		l := t.leases[op.Key]
		if t.sessions[op.SessionId] == nil {
			return refusal(fsm.CodeSessionExpired)
		}
		if l == nil || l.session != op.SessionId || l.token != op.Token {
			return refusal(fsm.CodeStaleToken)
		}
		if op.Failure != "" {
			t.emit("workload.failed %s %d %s", l.key, l.token, l.instance)
			if l.group != "" {
				t.failed(t.groups[l.group], l.workload(), l.instance)
			}
		}
		t.giveUp(l)
		return twinDone
	case *fsm.Transfer:
		return t.transfer(op)
	case *fsm.Revoke:
		l := t.leases[op.Key]
		switch {
		case l == nil || l.state == "barred":
			return refusal(fsm.CodeNotFound)
		case l.token != op.Token:
			return refusal(fsm.CodeStaleToken)
		case l.state != "revoked":
			l.state, l.by, l.changed, t.sessions[l.session].changed = "revoked", "", t.index, t.index
			t.emit("lease.revoked %s %d %s", l.key, l.token, l.instance)
		}
		return twinDone
	case *fsm.FreeRevoked:
		l := t.leases[op.Key]
		switch {
		case op.Term != t.term:
			return refusal(fsm.CodeWrongState)
		case l == nil || l.state == "barred":
			return refusal(fsm.CodeNotFound)
		case l.token != op.Token:
			return refusal(fsm.CodeStaleToken)
		case l.state != "revoked":
			return refusal(fsm.CodeWrongState)
		}
		t.endLease(l, "revoked", true)
		return twinDone
	case *fsm.LiftBar:
		l := t.leases[op.Key]
		switch {
		case op.Term != t.term:
			return refusal(fsm.CodeWrongState)
		case l == nil || l.state != "barred":
			return refusal(fsm.CodeNotFound)
		case l.token != op.Token:
			return refusal(fsm.CodeStaleToken)
		}
		t.emit("lease.unbarred %s %d %s", l.key, l.token, l.instance)
		delete(t.leases, l.key)
		t.serve(l.key, l.to)
		return twinDone
	case *fsm.MarkInstance:
		return t.mark(op)
	}
	return t.runGroup(op)
}

func (t *twin) acquire(op *fsm.Acquire) *twinAnswer {
	s, l := t.sessions[op.SessionId], t.leases[op.Key]
	switch {
	case s == nil:
		return refusal(fsm.CodeSessionExpired)
	case l != nil && l.session == op.SessionId && l.holder == op.Holder && (l.state == "held" || l.state == "transferring"):
		t.askAgain(op, op.Ask)
		return &twinAnswer{token: l.token, acquire: op}
	case s.marks["drain"] != 0:
		return refusal(fsm.CodeDraining)
	case s.marks["cordon"] != 0 && !op.Wait:
		return refusal(fsm.CodeWrongState)
	case l != nil && !op.Wait:
		return refusal(fsm.CodeLeaseHeld)
	case l == nil && s.marks["cordon"] == 0:
		l := t.grant(op.Key, &twinWaiter{op.SessionId, op.Holder, op.LockDelayMs > 0, twinAsks(op.Ask)})
		return &twinAnswer{token: l.token, acquire: op}
	}
	if t.waits(op.Key, op.SessionId, op.Holder) != nil {
		t.askAgain(op, op.Ask)
	} else {
		t.queues[op.Key] = append(t.queues[op.Key], &twinWaiter{op.SessionId, op.Holder, op.LockDelayMs > 0, twinAsks(op.Ask)})
	}
	return &twinAnswer{queued: true, acquire: op}
}

func twinAsks(ask uint64) []uint64 {
	if ask == 0 {
		return nil
	}
	return []uint64{ask}
}

// asks finds the askings of a place in the queue, else of a grant.
func (t *twin) asks(key, session, holder string) *[]uint64 {
	if w := t.waits(key, session, holder); w != nil {
		return &w.asks
	}
	if l := t.leases[key]; l != nil && l.session == session && l.holder == holder {
		return &l.asks
	}
	return nil
}

func (t *twin) askAgain(op *fsm.Acquire, ask uint64) {
	asks := t.asks(op.Key, op.SessionId, op.Holder)
	switch {
	case asks == nil, len(*asks) == 0, slices.Contains(*asks, ask):
	case ask == 0, len(*asks) == 8:
		*asks = nil
	default:
		*asks = append(slices.Clone(*asks), ask)
	}
}

func (t *twin) cancel(op *fsm.CancelWait) *twinAnswer {
	if t.sessions[op.SessionId] == nil {
		return refusal(fsm.CodeSessionExpired)
	}
	if op.Ask != 0 {
		asks := t.asks(op.Key, op.SessionId, op.Holder)
		if asks == nil || !slices.Contains(*asks, op.Ask) {
			return twinDone
		}
		if len(*asks) > 1 {
			*asks = slices.DeleteFunc(slices.Clone(*asks), func(a uint64) bool { return a == op.Ask })
			return twinDone
		}
	}
	if w := t.waits(op.Key, op.SessionId, op.Holder); w != nil {
		t.queues[op.Key] = slices.DeleteFunc(t.queues[op.Key], func(o *twinWaiter) bool { return o == w })
	} else if l := t.leases[op.Key]; l != nil && l.session == op.SessionId && l.holder == op.Holder {
		t.giveUp(l)
	}
	return twinDone
}

func (t *twin) transfer(op *fsm.Transfer) *twinAnswer {
	l := t.leases[op.Key]
	switch {
	case l == nil || l.state == "barred":
		return refusal(fsm.CodeNotFound)
	case l.token != op.Token:
		return refusal(fsm.CodeStaleToken)
	case l.state == "revoked":
		return refusal(fsm.CodeWrongState)
	}
	to := t.sessions[t.instance(op.ToInstance)]
	switch {
	case to == nil:
		return refusal(fsm.CodeNotFound)
	case !t.mayRun(to.open.SessionId):
		return refusal(fsm.CodeWrongState)
	case !slices.ContainsFunc(t.queues[op.Key], func(w *twinWaiter) bool { return w.session == to.open.SessionId }):
		return refusal(fsm.CodeWrongState)
	case l.state == "transferring" && l.to == op.ToInstance:
		return twinDone
	}
	l.state, l.by, l.to, l.changed, t.sessions[l.session].changed = "transferring", op.By, op.ToInstance, t.index, t.index
	t.emit("lease.transferring %s %d %s", l.key, l.token, l.instance)
	return twinDone
}

func (t *twin) mayRun(session string) bool { return len(t.sessions[session].marks) == 0 }

func (t *twin) grant(key string, w *twinWaiter) *twinLease {
	t.tokens++
	s := t.sessions[w.session]
	s.changed = t.index
	l := &twinLease{
		key: key, session: w.session, holder: w.holder, instance: s.open.InstanceId, state: "held",
		token: t.tokens, granted: t.index, changed: t.index, delay: w.delay, asks: w.asks,
	}
	t.leases[key] = l
	t.emit("lease.granted %s %d %s", key, l.token, l.instance)
	return l
}

func (t *twin) serve(key, successor string) {
	next := -1
	for i, w := range t.queues[key] {
		if t.mayRun(w.session) && successor != "" && t.sessions[w.session].open.InstanceId == successor {
			next = i
			break
		}
	}
	for i, w := range t.queues[key] {
		if next < 0 && t.mayRun(w.session) {
			next = i
		}
	}
	if next >= 0 {
		w := t.queues[key][next]
		t.queues[key] = slices.Delete(slices.Clone(t.queues[key]), next, next+1)
		t.grant(key, w)
	}
}

func (t *twin) giveUp(l *twinLease) {
	t.endLease(l, map[string]string{"held": "released", "transferring": "moved", "revoked": "revoked"}[l.state], false)
}

func (t *twin) endLease(l *twinLease, reason string, lost bool) {
	t.ledger = append(t.ledger, fmt.Sprintf("%s %d %s %d-%d %s", l.key, l.token, l.instance, l.granted, t.index, reason))
	t.emit("lease.ended %s %d %s %s", l.key, l.token, l.instance, reason)
	if s := t.sessions[l.session]; s != nil {
		s.changed = t.index
	}
	t.loseRuns(l)
	if l.delay && lost {
		l.stuck = false
		l.state, l.session, l.holder, l.asks, l.changed = "barred", "", "", nil, t.index
		return
	}
	delete(t.leases, l.key)
	if !t.passOn(l, reason) {
		t.serve(l.key, l.to)
	}
}
