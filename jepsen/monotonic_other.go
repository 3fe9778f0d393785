//go:build !linux

package jepsen

import "time"

var started = time.Now()

// monotonic is good within one process only: the process tier needs Linux.
func monotonic() time.Duration { return time.Since(started) }
