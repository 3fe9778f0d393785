package node

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// bootNow reads the clock that runs through a suspend.
func bootNow() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Since(started)
	}
	return time.Duration(ts.Nano())
}

var started = time.Now()

// bootTicks ticks on the boot clock: the kernel lets a tick that fell into a
// suspend go as soon as the machine is awake.
func bootTicks(d time.Duration) (<-chan struct{}, func()) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return goTicks(d)
	}
	ts := unix.NsecToTimespec(int64(d))
	if err := unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Interval: ts, Value: ts}, nil); err != nil {
		unix.Close(fd)
		return goTicks(d)
	}
	f := os.NewFile(uintptr(fd), "timerfd")
	c := make(chan struct{}, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		var buf [8]byte
		for {
			if _, err := f.Read(buf[:]); err != nil {
				return // closed
			}
			select {
			case c <- struct{}{}:
			default:
			}
		}
	})
	return c, sync.OnceFunc(func() { f.Close(); wg.Wait() })
}
