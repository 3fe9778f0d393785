package coordtest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// trusted is one session of an instance. Guarded by keeper.mu.
type trusted struct {
	until  time.Time // when it is ending
	ending chan struct{}
	ended  chan struct{}
	timer  *time.Timer // closes ending, then ended
	doubt  bool        // not trusted until the next confirmation
}

// keeper is the holder's side of the sessions of an instance.
type keeper struct {
	mu      sync.Mutex
	byID    map[string]*trusted
	current string
	changed chan struct{} // closed and replaced at each change
	fault   func() Fault  // decides the fate of each keep-alive
}

func (k *keeper) init() {
	k.byID = make(map[string]*trusted)
	k.changed = make(chan struct{})
}

// change notes a change. k.mu is held.
func (k *keeper) change() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// FaultKeepAlives decides the fate of each keep-alive; nil means none.
func (i *Instance) FaultKeepAlives(f func() Fault) {
	i.keeper.mu.Lock()
	i.keeper.fault = f
	i.keeper.mu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.retry()
}

// Doubt makes the session untrusted until the next confirmed keep-alive, as the
// end of a sleep does.
func (i *Instance) Doubt() {
	k := &i.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.byID[k.current]; t != nil {
		t.doubt = true
	}
}

// Session waits for an open session with trust.
func (i *Instance) Session(ctx context.Context) (string, error) {
	k := &i.keeper
	for {
		k.mu.Lock()
		id, changed := k.current, k.changed
		k.mu.Unlock()
		if id != "" && i.Trusted(id) > 0 {
			return id, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-i.life.Done():
			return "", fsm.Errorf(fsm.CodeClosing, "the process is dead")
		}
	}
}

// SessionEnding is closed at sent+T-M-S of the last confirmed keep-alive.
func (i *Instance) SessionEnding(id string) <-chan struct{} {
	i.keeper.mu.Lock()
	defer i.keeper.mu.Unlock()
	return i.keeper.of(id).ending
}

// SessionEnded is closed at sent+T-M of the last confirmed keep-alive.
func (i *Instance) SessionEnded(id string) <-chan struct{} {
	i.keeper.mu.Lock()
	defer i.keeper.mu.Unlock()
	return i.keeper.of(id).ended
}

// of returns the session, an ended one if it is not known. k.mu is held.
func (k *keeper) of(id string) *trusted {
	if t := k.byID[id]; t != nil {
		return t
	}
	t := &trusted{ending: make(chan struct{}), ended: make(chan struct{})}
	close(t.ending)
	close(t.ended)
	k.byID[id] = t
	return t
}

// Trusted is the time left until the session is ending.
func (i *Instance) Trusted(id string) time.Duration {
	i.keeper.mu.Lock()
	defer i.keeper.mu.Unlock()
	t := i.keeper.of(id)
	if t.doubt || isClosed(t.ending) {
		return 0
	}
	return time.Until(t.until)
}

// Confirm returns after a keep-alive sent after the call was confirmed.
func (i *Instance) Confirm(ctx context.Context, id string) error { return i.keepAlive(ctx, id) }

// keepAlive sends one and counts its answer.
func (i *Instance) keepAlive(ctx context.Context, id string) error {
	sent := time.Now()
	i.keeper.mu.Lock()
	fault := i.keeper.fault
	i.keeper.mu.Unlock()
	fate := None
	if fault != nil {
		fate = fault()
	}
	switch fate {
	case Drop:
		return i.silence(ctx, fsm.CodeNoQuorum)
	case Refuse, Doubt:
		return fsm.Errorf(fsm.CodeNoQuorum, "refused by the test")
	}
	if err := i.reach(ctx); err != nil {
		return err
	}
	changed, ok := i.w.renew(id)
	switch fate {
	case LoseReply:
		return i.silence(ctx, fsm.CodeUncertain)
	case DoubtDone:
		return fsm.Errorf(fsm.CodeUncertain, "answered with rubbish, by the test")
	}
	if i.travel(ctx) != nil {
		return fsm.Errorf(fsm.CodeNoQuorum, "no answer in time")
	}
	if !ok {
		i.endAt(id, time.Now(), true)
		return fsm.Errorf(fsm.CodeSessionExpired, "the session is not live")
	}
	if err := i.machine.Wait(ctx, changed); err != nil {
		return fsm.Errorf(fsm.CodeNoQuorum, "the copy is late")
	}
	i.endAt(id, sent.Add(i.w.timing.TTL-i.w.timing.Margin-i.w.timing.StopBudget), false)
	return nil
}

// endAt moves the end of the session's trust: later, unless gone says that the
// session is over.
func (i *Instance) endAt(id string, until time.Time, gone bool) {
	k := &i.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.of(id)
	if isClosed(t.ending) {
		return
	}
	t.doubt = false
	if !gone && !until.After(t.until) {
		k.change()
		return
	}
	t.until = until
	if t.timer != nil {
		t.timer.Stop()
	}
	t.timer = time.AfterFunc(time.Until(until), func() { i.ending(id, t) })
	k.change()
}

func (i *Instance) ending(id string, t *trusted) {
	k := &i.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Now().Before(t.until) || isClosed(t.ending) {
		return // renewed at the last moment
	}
	close(t.ending)
	if k.current == id {
		k.current = ""
	}
	k.change()
	t.timer = time.AfterFunc(i.w.timing.StopBudget, func() { close(t.ended) })
}

// renewals opens sessions, one after the other, and renews the present one.
func (i *Instance) renewals() {
	defer i.stopTimers()
	for i.life.Err() == nil {
		id := i.open()
		if id == "" {
			return
		}
		ending := i.SessionEnding(id)
		for lost := false; ; {
			if sleep(i.life, i.w.timing.Renew) != nil {
				return
			}
			ctx, cancel := context.WithTimeout(i.life, i.w.timing.Renew)
			err := i.keepAlive(ctx, id)
			cancel()
			lost = lost || isClosed(ending)
			if fsm.CodeOf(err) == fsm.CodeSessionExpired {
				break
			}
			// A session that is lost lives on while work under it may.
			if lost && i.slots.idle() {
				ctx, cancel = context.WithTimeout(i.life, i.w.timing.Renew)
				_, err := i.Submit(ctx, &fsm.CloseSession{SessionId: id, Reason: fsm.CloseClosed})
				cancel()
				if err == nil {
					break
				}
			}
		}
		i.slots.whenIdle(i.life)
	}
}

// open opens a session; "" when the process ends first.
func (i *Instance) open() string {
	i.w.mu.Lock()
	i.w.sessions++
	id := fmt.Sprintf("%032x", i.w.sessions)
	i.w.mu.Unlock()
	sent := time.Now()
	for i.life.Err() == nil {
		ctx, cancel := context.WithTimeout(i.life, i.w.timing.TTL)
		res, err := i.Submit(ctx, &fsm.OpenSession{
			SessionId: id, TtlMs: i.w.timing.TTL.Milliseconds(), Name: i.name,
			NodeId: i.name, Boot: i.boot, Nonce: i.name, InstanceId: i.InstanceID(), RestartProved: i.proved,
		})
		cancel()
		if err == nil && fsm.ResultErr(res) == nil {
			k := &i.keeper
			k.mu.Lock()
			k.byID[id] = &trusted{ending: make(chan struct{}), ended: make(chan struct{})}
			k.current = id
			k.mu.Unlock()
			i.endAt(id, sent.Add(i.w.timing.TTL-i.w.timing.Margin-i.w.timing.StopBudget), false)
			return id
		}
		if err == nil {
			sent = time.Now() // refused, so nothing was counted; the former session still lives
			_ = sleep(i.life, i.w.timing.Renew)
		}
	}
	return ""
}

func (i *Instance) stopTimers() {
	i.keeper.mu.Lock()
	defer i.keeper.mu.Unlock()
	for _, t := range i.keeper.byID {
		if t.timer != nil {
			t.timer.Stop()
		}
	}
}
