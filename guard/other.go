//go:build !linux

package guard

import (
	"context"
	"syscall"
	"time"
)

// Main does nothing on this system.
func Main() {}

// Available returns ErrUnsupported on this system.
func Available() error { return ErrUnsupported }

// Guard is the owner's handle of its guard process.
type Guard struct{}

// Process is one command.
type Process struct{}

// Start returns ErrUnsupported on this system.
func Start(Config) (*Guard, error) { return nil, ErrUnsupported }

// Leftovers returns ErrUnsupported on this system.
func Leftovers(string, time.Duration) ([]Leftover, error) { return nil, ErrUnsupported }

// BootTime returns 0 on this system.
func BootTime() time.Duration { return 0 }

// Spawn returns ErrUnsupported on this system.
func (*Guard) Spawn(context.Context, Spec) (*Process, error) { return nil, ErrUnsupported }

// Feed returns ErrUnsupported on this system.
func (*Guard) Feed(Feed) error { return ErrUnsupported }

// Close does nothing on this system.
func (*Guard) Close(context.Context) error { return nil }

// PID returns 0 on this system.
func (*Guard) PID() int { return 0 }

// PID returns 0 on this system.
func (*Process) PID() int { return 0 }

// Done returns nil on this system.
func (*Process) Done() <-chan struct{} { return nil }

// Wait returns ErrUnsupported on this system.
func (*Process) Wait(context.Context) (Status, error) { return Status{}, ErrUnsupported }

// Signal returns ErrUnsupported on this system.
func (*Process) Signal(syscall.Signal) error { return ErrUnsupported }

// Stop returns ErrUnsupported on this system.
func (*Process) Stop(time.Duration) error { return ErrUnsupported }
