//go:build !linux

package node

import "time"

var started = time.Now()

// bootNow is Go's monotonic clock. Where that stands still while the machine
// sleeps, a sleep shortens nothing and only the leader's word ends a lease.
func bootNow() time.Duration { return time.Since(started) }

func bootTicks(d time.Duration) (<-chan struct{}, func()) { return goTicks(d) }
