package fsm

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// MachineOptions sets up a Machine. All fields are optional.
type MachineOptions struct {
	// OnHalt is called once, with the reason, when the Machine meets an entry
	// that it can't apply. It is called by raft's apply goroutine.
	OnHalt func(error)
	// OnApplied is called for every entry once its View is published, by raft's
	// apply goroutine, and must not block. The Outcome must not be changed.
	OnApplied func(*Outcome)
	// Version, if set, is the newest state version that the Machine knows, for
	// tests of older binaries; 0 is Version, that of this one.
	Version uint32
	// Defects are planted bugs, none in production.
	Defects Defects
}

// Machine makes a State the finite state machine of raft. Apply, Snapshot and
// Restore are raft's to call, from one goroutine; the rest is for everybody.
type Machine struct {
	options MachineOptions
	state   *State // owned by raft's apply goroutine
	view    atomic.Pointer[View]
	watch   watchers
	waits   waits

	haltOnce sync.Once
	halted   chan struct{}
	haltErr  error // written once, before halted is closed
}

var _ raft.FSM = (*Machine)(nil)

// NewMachine returns a machine with an empty state.
func NewMachine(o MachineOptions) *Machine {
	m := &Machine{options: o, halted: make(chan struct{})}
	m.state = NewState(WithDefects(o.Defects))
	m.view.Store(m.state.View())
	return m
}

// Apply applies one entry. It always returns an *Outcome; its Err is set when
// the Machine has halted, and then the entry was not applied.
func (m *Machine) Apply(l *raft.Log) any {
	if err := m.Halted(); err != nil {
		return &Outcome{Revision: m.View().Revision(), Err: err}
	}
	out, err := m.apply(l)
	if err != nil {
		m.halt(fmt.Errorf("apply entry %d of term %d: %w", l.Index, l.Term, err))
		return &Outcome{Revision: m.View().Revision(), Err: m.Halted()}
	}
	m.view.Store(m.state.View())
	m.waits.reach(l.Index)
	m.watch.wake(m.state.touched, len(out.Events) > 0)
	if m.options.OnApplied != nil {
		m.options.OnApplied(out)
	}
	return out
}

func (m *Machine) apply(l *raft.Log) (out *Outcome, err error) {
	defer contain(&err)
	b, err := DecodeBatch(l.Data)
	if err == nil && m.options.Version != 0 {
		err = knownTo(m.options.Version, b)
	}
	if err != nil {
		return nil, err
	}
	if l.Index <= m.state.cluster.revision {
		return nil, fmt.Errorf("the copy is at revision %d already", m.state.cluster.revision)
	}
	return m.state.Apply(l.Index, l.Term, b), nil
}

// contain turns a panic into an error: raft would meet the same entry at every
// start, and the process around us is not ours to end. What the panic left half
// done is never published.
func contain(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("broken invariant: %v\n%s", r, debug.Stack())
	}
}

func (m *Machine) halt(err error) {
	m.haltOnce.Do(func() {
		m.haltErr = err
		close(m.halted)
		if m.options.OnHalt != nil {
			m.options.OnHalt(err)
		}
	})
}

// Halted returns why the machine halted, nil while it runs. A halted machine
// keeps its copy as it was and neither applies, restores nor snapshots.
func (m *Machine) Halted() error {
	select {
	case <-m.halted:
		return m.haltErr
	default:
		return nil
	}
}

// HaltedCh is closed when the machine halts.
func (m *Machine) HaltedCh() <-chan struct{} { return m.halted }

// Snapshot returns the present View for raft to write, in constant time.
func (m *Machine) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.Halted(); err != nil {
		return nil, fmt.Errorf("snapshot: the machine has halted: %w", err)
	}
	return persister{m.View()}, nil
}

type persister struct{ view *View }

func (p persister) Persist(sink raft.SnapshotSink) error {
	w := bufio.NewWriterSize(sink, 1<<16)
	err := p.view.Snapshot(w)
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		return fmt.Errorf("write snapshot: %w", cancelled(sink, err))
	}
	return sink.Close()
}

func cancelled(sink raft.SnapshotSink, err error) error {
	if e := sink.Cancel(); e != nil {
		return fmt.Errorf("%w (and cancel: %v)", err, e)
	}
	return err
}

func (p persister) Release() {}

// Restore replaces the state by a snapshot, all of it or nothing.
func (m *Machine) Restore(r io.ReadCloser) (err error) {
	defer r.Close()
	defer contain(&err)
	if err := m.Halted(); err != nil {
		return fmt.Errorf("restore: the machine has halted: %w", err)
	}
	s, err := ReadSnapshot(bufio.NewReaderSize(r, 1<<16), WithDefects(m.options.Defects))
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if known := m.options.Version; known != 0 && s.cluster.version > known {
		return fmt.Errorf("restore: %w", &VersionError{Need: s.cluster.version, What: "snapshot of a cluster raised to it", known: known})
	}
	m.state = s
	m.view.Store(s.View())
	m.waits.reach(s.cluster.revision)
	m.watch.wakeAll()
	return nil
}

// View returns the newest state.
func (m *Machine) View() *View { return m.view.Load() }

// Wait returns nil once the copy has revision, else ctx's cause, or why the
// machine has halted.
func (m *Machine) Wait(ctx context.Context, revision uint64) error {
	reached := func() bool { return m.View().Revision() >= revision }
	if reached() {
		return nil
	}
	if err := m.waits.wait(ctx, revision, reached, m.halted); err != nil {
		return err
	}
	if reached() {
		return nil
	}
	return m.Halted()
}

// Watch returns a channel of size 1 that holds a value whenever one of topics
// has changed since it was last drained: read the View after each value, and
// once after Watch. A Restore wakes everybody. stop ends it and may be called
// more than once.
func (m *Machine) Watch(topics ...string) (wake <-chan struct{}, stop func()) {
	return m.watch.watch(topics)
}
