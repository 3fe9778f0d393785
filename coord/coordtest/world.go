package coordtest

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/miwnode/miwnode/fsm"
)

// Timing holds the durations of a World. Zero means the default in brackets.
type Timing struct {
	TTL          time.Duration // of sessions [10s]
	Renew        time.Duration // between keep-alives [2s]
	Margin       time.Duration // [1s]
	StopBudget   time.Duration // [1s]
	DrainTimeout time.Duration // [30s]
	KillTimeout  time.Duration // [5s]
	Latency      time.Duration // of every message, one way [none]
}

func (t Timing) withDefaults() Timing {
	return Timing{
		TTL: cmp.Or(t.TTL, 10*time.Second), Renew: cmp.Or(t.Renew, 2*time.Second),
		Margin: cmp.Or(t.Margin, time.Second), StopBudget: cmp.Or(t.StopBudget, time.Second),
		DrainTimeout: cmp.Or(t.DrainTimeout, 30*time.Second), KillTimeout: cmp.Or(t.KillTimeout, 5*time.Second),
		Latency: t.Latency,
	}
}

// entry is one of the log.
type entry struct {
	term uint64
	data []byte
}

// World is the cluster: its log, its leader, its instances.
type World struct {
	timing Timing

	mu        sync.Mutex // guards everything below; held while an entry is applied
	machine   *fsm.Machine
	log       []entry
	term      uint64
	quorum    chan struct{} // closed while there is one
	closed    bool
	instances []*Instance
	clients   []*Client
	deadlines map[string]*time.Timer // of sessions, by ID
	timers    map[*time.Timer]struct{}
	sessions  int
}

// New makes a cluster with a quorum and nobody in it. Close it.
func New(t Timing) *World {
	w := &World{
		timing: t.withDefaults(), machine: fsm.NewMachine(fsm.MachineOptions{}), term: 1, quorum: make(chan struct{}),
		deadlines: make(map[string]*time.Timer), timers: make(map[*time.Timer]struct{}),
	}
	close(w.quorum)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.commit(&fsm.InitCluster{ClusterId: "coordtest", Version: fsm.Version})
	return w
}

// Close ends every instance and every timer.
func (w *World) Close() {
	w.mu.Lock()
	w.closed = true
	for t := range w.timers {
		t.Stop()
	}
	for _, t := range w.deadlines {
		t.Stop()
	}
	instances, clients := w.instances, w.clients
	w.mu.Unlock()
	for _, c := range clients {
		c.Stop()
	}
	for _, i := range instances {
		i.end()
		i.work.Wait()
	}
}

// View is the leader's copy of the state.
func (w *World) View() *fsm.View { return w.machine.View() }

// LoseQuorum stops all commits, proofs and expiries.
func (w *World) LoseQuorum() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hasQuorum() {
		w.quorum = make(chan struct{})
	}
}

// RestoreQuorum makes a new leader in a new term, which gives every session a
// full TTL.
func (w *World) RestoreQuorum() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hasQuorum() {
		return
	}
	close(w.quorum)
	w.term++
	for id := range w.deadlines {
		w.setDeadline(id)
	}
}

func (w *World) hasQuorum() bool {
	select {
	case <-w.quorum:
		return true
	default:
		return false
	}
}

// Propose commits one command at the leader, as an operator's would be.
func (w *World) Propose(op fsm.Op) (*fsm.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.hasQuorum() {
		return nil, fsm.ErrNoQuorum
	}
	return w.commit(op), nil
}

// commit applies one command everywhere it reaches. w.mu is held.
func (w *World) commit(op fsm.Op) *fsm.Result {
	if err := fsm.Check(op, fsm.Version); err != nil {
		return &fsm.Result{Code: uint32(fsm.CodeOf(err)), Message: err.Error()}
	}
	data, err := fsm.EncodeBatch(&fsm.Batch{
		Proposals: []*fsm.Proposal{{NodeId: "coordtest", Boot: 1, Commands: []*fsm.Command{fsm.NewCommand(op)}}},
	})
	if err != nil {
		panic(fmt.Sprintf("coordtest: a checked command can't be encoded: %v", err))
	}
	data = fsm.AppendStamp(data, time.Now().UnixNano())
	w.log = append(w.log, entry{term: w.term, data: data})
	out := apply(w.machine, w.log, len(w.log))
	if out.Err != nil {
		panic(fmt.Sprintf("coordtest: the state halted: %v", out.Err))
	}
	w.deadlinesAfter(out)
	for _, i := range w.instances {
		i.follow(len(w.log))
	}
	return out.Proposals[0].Results[0]
}

// apply gives entry number n of the log, counted from 1, to m.
func apply(m *fsm.Machine, log []entry, n int) *fsm.Outcome {
	return m.Apply(&raft.Log{Index: uint64(n), Term: log[n-1].term, Type: raft.LogCommand, Data: log[n-1].data}).(*fsm.Outcome)
}

// deadlinesAfter does the leader's duties that an entry brings. w.mu is held.
func (w *World) deadlinesAfter(out *fsm.Outcome) {
	view := w.machine.View()
	for _, e := range out.Events {
		l, there := view.Lease(e.Key)
		switch {
		case e.Type == fsm.EventLeaseRevoked && there && l.State == fsm.Revoked:
			ttl := w.timing.TTL
			if s, ok := view.Session(l.SessionID); ok {
				ttl = s.TTL
			}
			w.duty(ttl, func(term uint64) fsm.Op { return &fsm.FreeRevoked{Key: l.Key, Token: l.Token, Term: term} })
		case e.Type == fsm.EventLeaseEnded && there && l.State == fsm.Barred:
			w.duty(l.LockDelay, func(term uint64) fsm.Op { return &fsm.LiftBar{Key: l.Key, Token: l.Token, Term: term} })
		}
	}
	for _, m := range out.MarkedWorkloads {
		w.marked(m)
	}
	for s := range view.Sessions() {
		if w.deadlines[s.ID] == nil {
			w.setDeadline(s.ID)
		}
	}
	for id, t := range w.deadlines {
		if _, live := view.Session(id); !live {
			t.Stop()
			delete(w.deadlines, id)
		}
	}
}

// setDeadline gives the session a full TTL from now. w.mu is held.
func (w *World) setDeadline(id string) {
	ttl := w.timing.TTL
	if s, ok := w.machine.View().Session(id); ok {
		ttl = s.TTL
	}
	if t := w.deadlines[id]; t != nil {
		t.Reset(ttl)
		return
	}
	w.deadlines[id] = time.AfterFunc(ttl, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.closed && w.hasQuorum() { // else the next leader sets a new deadline
			w.commit(&fsm.ExpireSession{SessionId: id, Term: w.term})
		}
	})
}

// duty commits what op returns, once d has passed with a quorum. w.mu is held.
func (w *World) duty(d time.Duration, op func(term uint64) fsm.Op) {
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.timers, t)
		switch {
		case w.closed:
		case !w.hasQuorum():
			w.duty(w.timing.Renew, op)
		default:
			w.commit(op(w.term))
		}
	})
	w.timers[t] = struct{}{}
}

// renew is the leader's side of a keep-alive; ok is false when the session is
// not live. The answer covers changed.
func (w *World) renew(id string) (changed uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed, ok = w.machine.View().SessionChanged(id)
	if ok {
		w.setDeadline(id)
	}
	return changed, ok
}

// Join adds an instance and waits for its session, unless there is no quorum.
func (w *World) Join(name string) *Instance { return w.start(newInstance(w, name, 1, false)) }

func (w *World) start(i *Instance) *Instance {
	w.mu.Lock()
	w.instances = append(w.instances, i)
	i.catchUp(len(w.log))
	quorum := w.hasQuorum()
	w.mu.Unlock()
	i.work.Go(i.renewals)
	if quorum {
		_, _ = i.Session(i.life)
	}
	return i
}

// Drain marks the instance draining, as an operator would, Undrain takes the
// mark away.
func (w *World) Drain(instanceID string) error   { return w.mark(instanceID, fsm.MarkDrain) }
func (w *World) Undrain(instanceID string) error { return w.mark(instanceID, fsm.MarkUndrain) }

func (w *World) mark(instanceID string, m fsmMark) error {
	res, err := w.Propose(&fsm.MarkInstance{InstanceId: instanceID, Mark: m, By: "test"})
	if err == nil {
		err = fsm.ResultErr(res)
	}
	return err
}

// Revoke takes the key from whoever holds it.
func (w *World) Revoke(key string) error {
	l, ok := w.View().Lease(key)
	if !ok {
		return fsm.ErrNotFound
	}
	res, err := w.Propose(&fsm.Revoke{Key: key, Token: l.Token, By: "test", Reason: "test"})
	if err == nil {
		err = fsm.ResultErr(res)
	}
	return err
}
