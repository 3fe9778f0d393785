package fsm

import (
	"context"
	"io"

	"github.com/hashicorp/raft"
)

// MachineOptions sets up a Machine. All fields are optional.
type MachineOptions struct {
	OnHalt    func(error)
	OnApplied func(*Outcome)
	Defects   Defects
}

// Machine is the raft.FSM.
type Machine struct{}

var _ raft.FSM = (*Machine)(nil)

// NewMachine returns a machine with an empty state.
func NewMachine(o MachineOptions) *Machine { return &Machine{} }

// Apply applies one entry; it returns an *Outcome always.
func (m *Machine) Apply(l *raft.Log) any               { return &Outcome{} }
func (m *Machine) Snapshot() (raft.FSMSnapshot, error) { return nil, nil }
func (m *Machine) Restore(r io.ReadCloser) error       { return nil }

// View returns the newest state.
func (m *Machine) View() *View { return &View{} }

// Wait returns once the copy has revision.
func (m *Machine) Wait(ctx context.Context, revision uint64) error { return nil }

// Watch returns a channel that holds a value when one of topics changed since it was last drained.
func (m *Machine) Watch(topics ...string) (wake <-chan struct{}, stop func()) { return nil, func() {} }

// Halted returns why the machine halted, nil while it runs.
func (m *Machine) Halted() error { return nil }

// HaltedCh is closed when the machine halts.
func (m *Machine) HaltedCh() <-chan struct{} { return nil }

// AllTopic is woken by every applied entry with an effect.
const AllTopic = "*"

// LeaseTopic is woken by every event of the key.
func LeaseTopic(key string) string { return "lease/" + key }

// SessionTopic is woken when the session opens or ends and when its leases change.
func SessionTopic(id string) string { return "session/" + id }

// InstanceTopic is woken when the instance joins, leaves or is marked.
func InstanceTopic(id string) string { return "instance/" + id }
