package node

import (
	"sync"
	"time"
)

const (
	// sleepTick is how often the clocks are compared without being asked.
	sleepTick = 250 * time.Millisecond
	// shortestSleep is what the comparison takes for a sleep; shorter ones are
	// in the boot clock's reading anyway.
	shortestSleep = 20 * time.Millisecond
	// wallStep is the jump of the wall clock that is worth a keep-alive.
	wallStep = time.Second
)

// sleepDetector compares the three clocks. Boot time ahead of monotonic time
// means that the machine slept; the wall clock alone means that somebody set it.
type sleepDetector struct {
	clock clock

	mu sync.Mutex
	// ahead is the least that boot time was seen ahead of monotonic time. The
	// clocks can't be read at once, so each look gives a range; only a look
	// whose whole range lies above what was known proves a sleep.
	ahead  time.Duration
	wall   time.Duration // wall time less boot time
	wallAt time.Duration // when that was last looked at
}

func newSleepDetector(c clock) *sleepDetector {
	d := &sleepDetector{clock: c}
	before := c.mono()
	boot := c.boot()
	d.ahead = boot - before
	d.wall = time.Duration(c.wall().UnixNano()) - boot
	return d
}

// look tells how long the machine slept since the last look and by how much the
// wall clock was set, and when it is now.
func (d *sleepDetector) look() (now, slept, stepped time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.clock.mono()
	now = d.clock.boot()
	after := d.clock.mono()
	if least := now - after; least-d.ahead >= shortestSleep {
		slept = least - d.ahead
		d.ahead = now - before
		d.clock.jumped()
	} else {
		d.ahead = min(d.ahead, now-before)
	}
	if now-d.wallAt < sleepTick/2 {
		return now, slept, 0 // it is asked by every piece of work that wants to go on
	}
	d.wallAt = now
	wall := time.Duration(d.clock.wall().UnixNano()) - now
	if step := wall - d.wall; step >= wallStep || step <= -wallStep {
		stepped = step
		d.wall = wall
	}
	return now, slept, stepped
}
