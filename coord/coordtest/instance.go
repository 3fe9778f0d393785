package coordtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
)

type fsmMark = fsmpb.Mark

// Fault is what happens to one command on its way.
type Fault uint8

// Faults.
const (
	None      Fault = iota
	Drop            // it does not reach the leader; sent again when the faults change, until ctx ends: fsm.ErrNoQuorum
	LoseReply       // it is applied, and answered when the faults change, or not before ctx ends: fsm.ErrUncertain
	Refuse          // it is not applied; its caller hears fsm.ErrNoQuorum at once
	Doubt           // it is not applied; its caller hears fsm.ErrUncertain at once
	DoubtDone       // it is applied; its caller hears fsm.ErrUncertain at once
)

// Run is an outstanding run.
type Run struct {
	ID       uint64
	Key      string
	Token    uint64
	Working  bool // between Started and Finished
	Stopping bool
	Stuck    bool
	Stack    string
}

// Instance is the node of one process; it is a coord.Cluster.
type Instance struct {
	w       *World
	name    string
	boot    uint64
	proved  bool // its start proves the end of the one before
	machine *fsm.Machine
	life    context.Context // ends with Crash or World.Close
	end     context.CancelFunc
	closing chan struct{}
	work    sync.WaitGroup

	mu      sync.Mutex
	applied int // entries of the log
	lag     time.Duration
	linked  chan struct{} // closed while the link is up
	fault   func(Op) Fault
	changed chan struct{} // closed and replaced when the faults change
	calls   map[string]int
	keeper  keeper
	slots   slots
}

// Op is one command.
type Op = fsm.Op

var _ coord.Cluster = (*Instance)(nil)

func newInstance(w *World, name string, boot uint64, proved bool) *Instance {
	i := &Instance{w: w, name: name, boot: boot, proved: proved, closing: make(chan struct{}), linked: make(chan struct{}), changed: make(chan struct{}), calls: make(map[string]int)}
	i.machine = fsm.NewMachine(fsm.MachineOptions{OnApplied: i.onApplied})
	i.life, i.end = context.WithCancel(context.Background())
	close(i.linked)
	i.keeper.init()
	i.slots.init()
	return i
}

// Cut severs the instance from the leader, both ways; Heal mends that.
func (i *Instance) Cut() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if isClosed(i.linked) {
		i.linked = make(chan struct{})
	}
}

// Heal mends the link and lets the copy catch up.
func (i *Instance) Heal() {
	i.mu.Lock()
	if !isClosed(i.linked) {
		close(i.linked)
	}
	i.mu.Unlock()
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	i.follow(len(i.w.log))
}

// Lag makes the copy of the instance apply entries d after the leader.
func (i *Instance) Lag(d time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.lag = d
}

// Fault decides the fate of each command; nil means none.
func (i *Instance) Fault(f func(op Op) Fault) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.fault = f
	i.retry()
}

// retry has sent again what was lost. i.mu is held.
func (i *Instance) retry() {
	close(i.changed)
	i.changed = make(chan struct{})
}

// Crash ends the instance as kill -9 would: it renews and answers nothing more.
func (i *Instance) Crash() {
	i.Cut()
	i.end()
}

// Leave begins to close the node: Closing is closed and the instance marked.
func (i *Instance) Leave() {
	i.mu.Lock()
	first := !isClosed(i.closing)
	if first {
		close(i.closing)
	}
	i.mu.Unlock()
	if first {
		_ = i.w.Drain(i.InstanceID())
	}
}

// Calls counts the commands of a kind that were submitted: "Acquire", "Release".
func (i *Instance) Calls(kind string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.calls[kind]
}

// InstanceID names the instance.
func (i *Instance) InstanceID() string { return fmt.Sprintf("%s:%d:coordtest", i.name, i.boot) }

// View is the copy of the instance.
func (i *Instance) View() *fsm.View { return i.machine.View() }

// Watch wakes after changes of any of the topics.
func (i *Instance) Watch(topics ...string) (wake <-chan struct{}, stop func()) {
	return i.machine.Watch(topics...)
}

// Submit proposes one command.
func (i *Instance) Submit(ctx context.Context, op fsm.Op) (*fsm.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(i.life, cancel)()
	i.mu.Lock()
	i.calls[Kind(op)]++
	i.mu.Unlock()
	fate, changed := i.fateOf(op)
	for fate == Drop {
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fsm.Errorf(fsm.CodeNoQuorum, "no answer in time")
		}
		fate, changed = i.fateOf(op)
	}
	switch fate {
	case Refuse:
		return nil, fsm.Errorf(fsm.CodeNoQuorum, "refused by the test")
	case Doubt:
		return nil, fsm.Errorf(fsm.CodeUncertain, "not applied, by the test")
	}
	if err := i.reach(ctx); err != nil {
		return nil, err
	}
	i.w.mu.Lock()
	res := i.w.commit(op)
	i.w.mu.Unlock()
	if fate == LoseReply {
		select {
		case <-changed: // the retry is answered with what was remembered
		case <-ctx.Done():
			return nil, fsm.Errorf(fsm.CodeUncertain, "no answer in time")
		}
	}
	if fate == DoubtDone {
		return nil, fsm.Errorf(fsm.CodeUncertain, "applied, by the test")
	}
	if err := i.travel(ctx); err != nil {
		return nil, fsm.Errorf(fsm.CodeUncertain, "no answer in time")
	}
	if err := i.machine.Wait(ctx, res.Revision); err != nil {
		return nil, fsm.Errorf(fsm.CodeUncertain, "the copy is late")
	}
	return res, nil
}

// Kind names the command as its type does.
func Kind(op fsm.Op) string {
	switch op.(type) {
	case *fsm.Acquire:
		return "Acquire"
	case *fsm.Release:
		return "Release"
	case *fsm.CancelWait:
		return "CancelWait"
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", op), "*fsmpb.")
}

func (i *Instance) fateOf(op Op) (fate Fault, changed <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.fault != nil {
		fate = i.fault(op)
	}
	return fate, i.changed
}

// silence waits until the faults change, or ctx ends, or the process.
func (i *Instance) silence(ctx context.Context, code fsm.Code) error {
	i.mu.Lock()
	changed := i.changed
	i.mu.Unlock()
	select {
	case <-changed:
	case <-ctx.Done():
	case <-i.life.Done():
	}
	return fsm.Errorf(code, "no answer in time")
}

// reach waits until the leader can be reached and has a quorum.
func (i *Instance) reach(ctx context.Context) error {
	for {
		i.mu.Lock()
		linked := i.linked
		i.mu.Unlock()
		i.w.mu.Lock()
		quorum := i.w.quorum
		i.w.mu.Unlock()
		if isClosed(linked) && isClosed(quorum) {
			if i.travel(ctx) != nil {
				return fsm.Errorf(fsm.CodeNoQuorum, "not sent in time")
			}
			i.mu.Lock()
			still := isClosed(i.linked)
			i.mu.Unlock()
			if still {
				return nil
			}
			continue
		}
		for _, c := range []<-chan struct{}{linked, quorum} {
			select {
			case <-c:
			case <-ctx.Done():
				return fsm.Errorf(fsm.CodeNoQuorum, "no leader was reached in time")
			case <-i.life.Done():
				return fsm.Errorf(fsm.CodeNoQuorum, "the process is dead")
			}
		}
	}
}

// travel takes the latency of one way.
func (i *Instance) travel(ctx context.Context) error {
	if i.w.timing.Latency <= 0 {
		return nil
	}
	return sleep(ctx, i.w.timing.Latency)
}

// Barrier waits until the copy has all that the leader has now.
func (i *Instance) Barrier(ctx context.Context) error {
	if err := i.reach(ctx); err != nil {
		return err
	}
	return i.machine.Wait(ctx, i.w.View().Revision())
}

// Draining tells whether the instance is marked draining or the node is closing.
func (i *Instance) Draining() bool {
	if isClosed(i.closing) {
		return true
	}
	s, ok := i.View().Instance(i.InstanceID())
	return ok && s.Draining()
}

// Closing is closed when the node begins to leave.
func (i *Instance) Closing() <-chan struct{} { return i.closing }

// DrainTimeout, KillTimeout and RenewInterval are those of the World.
func (i *Instance) DrainTimeout() time.Duration  { return i.w.timing.DrainTimeout }
func (i *Instance) KillTimeout() time.Duration   { return i.w.timing.KillTimeout }
func (i *Instance) RenewInterval() time.Duration { return i.w.timing.Renew }

// follow lets the copy apply the log up to entry n, now or after its lag; not
// while the link is down. World.mu is held.
func (i *Instance) follow(n int) {
	i.mu.Lock()
	lag, linked := i.lag, isClosed(i.linked)
	i.mu.Unlock()
	switch {
	case !linked || i.life.Err() != nil:
	case lag <= 0:
		i.catchUp(n)
	default:
		var t *time.Timer
		t = time.AfterFunc(lag, func() {
			i.w.mu.Lock()
			defer i.w.mu.Unlock()
			delete(i.w.timers, t)
			if !i.w.closed {
				i.catchUp(n)
			}
		})
		i.w.timers[t] = struct{}{}
	}
}

// catchUp applies up to entry n. World.mu is held.
func (i *Instance) catchUp(n int) {
	for i.applied < n {
		i.applied++
		apply(i.machine, i.w.log, i.applied)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
