package jepsen

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic reads the clock that all processes of a machine share.
func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("clock_gettime(CLOCK_MONOTONIC): " + err.Error()) // it can't fail on Linux
	}
	return time.Duration(ts.Nano())
}
