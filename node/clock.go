package node

import (
	"context"
	"math"
	"sync"
	"time"
)

// clock is the one source of time of a node; nothing that a lease rests on
// reads another. Instants are durations since a fixed moment on a clock that
// also runs while the machine sleeps: Go's monotonic clock stands still then
// (golang/go#24595), so a lease measured on it would outlive its TTL.
type clock interface {
	// boot is the present instant.
	boot() time.Duration
	// mono runs with boot but for the time the machine sleeps.
	mono() time.Duration
	// wall is only shown, stamped or compared with itself.
	wall() time.Time
	// alarm returns an alarm that is not set.
	alarm() *alarm
	// ticks sends about every d and at once after a sleep; stop ends it.
	ticks(d time.Duration) (c <-chan struct{}, stop func())
	// jumped has all alarms look at the clock again.
	jumped()
}

// alarms keeps the alarms of one clock, so that they can be set anew when the
// clock jumps.
type alarms struct {
	boot func() time.Duration
	// toGo turns a duration of this clock into one of Go's timers.
	toGo func(time.Duration) time.Duration

	mu     sync.Mutex
	set    map[*alarm]struct{} // those that are to ring
	frozen bool
}

// alarm rings once, at an instant of its clock or soon after. It may be set
// again at any time; setting or stopping takes back a ring not yet received.
type alarm struct {
	of    *alarms
	c     chan struct{}
	timer *time.Timer
	at    time.Duration
	armed bool // all under of.mu
}

func newAlarms(boot func() time.Duration, toGo func(time.Duration) time.Duration) *alarms {
	return &alarms{boot: boot, toGo: toGo, set: map[*alarm]struct{}{}}
}

func (s *alarms) alarm() *alarm { return &alarm{of: s, c: make(chan struct{}, 1)} }

// jumped sets every alarm anew by what the clock says now.
func (s *alarms) jumped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.set {
		a.arm()
	}
}

// ring is where the alarm is heard.
func (a *alarm) ring() <-chan struct{} { return a.c }

// setAt has the alarm ring at the instant, now if it has passed.
func (a *alarm) setAt(at time.Duration) {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	a.drain()
	a.at, a.armed = at, true
	a.of.set[a] = struct{}{}
	a.arm()
}

func (a *alarm) stop() {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	a.drain()
	a.armed = false
	delete(a.of.set, a)
	if a.timer != nil {
		a.timer.Stop()
	}
}

func (a *alarm) drain() {
	select {
	case <-a.c:
	default:
	}
}

// arm is called with of.mu held.
func (a *alarm) arm() {
	if a.of.frozen {
		return
	}
	d := a.of.toGo(max(0, a.at-a.of.boot()))
	if a.timer == nil {
		a.timer = time.AfterFunc(d, a.fire)
	} else {
		a.timer.Reset(d)
	}
}

// fire trusts only the clock: a timer of an earlier setting, or one that the
// rounding let go early, finds the instant not reached and waits on.
func (a *alarm) fire() {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	switch {
	case !a.armed || a.of.frozen:
	case a.of.boot() < a.at:
		a.arm()
	default:
		a.armed = false
		delete(a.of.set, a)
		select {
		case a.c <- struct{}{}:
		default:
		}
	}
}

// sleepOn waits for d on the clock, or for ctx.
func sleepOn(ctx context.Context, c clock, d time.Duration) error {
	a := c.alarm()
	defer a.stop()
	a.setAt(c.boot() + d)
	select {
	case <-a.ring():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// machineClock is the clock of the machine.
type machineClock struct {
	*alarms
	base time.Time
}

func newMachineClock() *machineClock {
	return &machineClock{
		alarms: newAlarms(bootNow, func(d time.Duration) time.Duration { return d }),
		base:   time.Now(),
	}
}

func (c *machineClock) boot() time.Duration { return bootNow() }
func (c *machineClock) mono() time.Duration { return time.Since(c.base) }
func (c *machineClock) wall() time.Time     { return time.Now() }

func (c *machineClock) ticks(d time.Duration) (<-chan struct{}, func()) { return bootTicks(d) }

// goTicks is ticks on Go's own timers: after a sleep the next one comes up to
// d late.
func goTicks(d time.Duration) (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(d)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				select {
				case c <- struct{}{}:
				default:
				}
			case <-done:
				return
			}
		}
	})
	return c, sync.OnceFunc(func() { close(done); wg.Wait() })
}

// TestClock is a clock with a rate and an offset of its own, for tests whose
// nodes must disagree about time. It runs on Go's timers, so in a synctest
// bubble it runs on the bubble's time. A product never uses one.
type TestClock struct {
	*alarms
	base time.Time

	mu     sync.Mutex
	rate   float64
	offset time.Duration // of the boot clock at base
	since  time.Time     // when rate was last set
	ran    time.Duration // by the boot clock until since, without sleeps
	slept  time.Duration
	step   time.Duration // of the wall clock
}

// NewTestClock returns a clock that starts at offset and runs at rate: 1.02
// gains two percent.
func NewTestClock(rate float64, offset time.Duration) *TestClock {
	now := time.Now()
	c := &TestClock{base: now, rate: rate, offset: offset, since: now}
	c.alarms = newAlarms(c.boot, func(d time.Duration) time.Duration {
		c.mu.Lock()
		defer c.mu.Unlock()
		return time.Duration(math.Ceil(float64(d) / c.rate))
	})
	return c
}

// elapsed is the time run by the clock's own measure; c.mu is held.
func (c *TestClock) elapsed() time.Duration {
	return c.ran + time.Duration(float64(time.Since(c.since))*c.rate)
}

func (c *TestClock) boot() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offset + c.elapsed() + c.slept
}

func (c *TestClock) mono() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offset + c.elapsed()
}

func (c *TestClock) wall() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.base.Add(c.offset + c.elapsed() + c.slept + c.step)
}

func (c *TestClock) ticks(d time.Duration) (<-chan struct{}, func()) {
	all, stopAll := goTicks(d)
	ticks, done := make(chan struct{}, 1), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-all:
				if c.stopped() {
					continue // a stopped process hears no tick
				}
				select {
				case ticks <- struct{}{}:
				default:
				}
			case <-done:
				return
			}
		}
	})
	return ticks, sync.OnceFunc(func() { stopAll(); close(done); wg.Wait() })
}

// Now is the present instant.
func (c *TestClock) Now() time.Duration { return c.boot() }

// SetRate changes the rate from now on.
func (c *TestClock) SetRate(rate float64) {
	c.mu.Lock()
	c.ran, c.since, c.rate = c.elapsed(), time.Now(), rate
	c.mu.Unlock()
	c.jumped()
}

// Suspend lets the machine sleep for d in no time: boot and wall time jump, the
// monotonic clock doesn't.
func (c *TestClock) Suspend(d time.Duration) {
	c.mu.Lock()
	c.slept += d
	c.mu.Unlock()
	c.jumped()
}

// StepWall moves the wall clock alone.
func (c *TestClock) StepWall(d time.Duration) {
	c.mu.Lock()
	c.step += d
	c.mu.Unlock()
}

// Freeze holds back every alarm and tick, as a stopped process would; Thaw lets
// those alarms ring that are due.
func (c *TestClock) Freeze() { c.setFrozen(true) }

func (c *TestClock) stopped() bool {
	c.alarms.mu.Lock()
	defer c.alarms.mu.Unlock()
	return c.frozen
}

// Thaw ends Freeze.
func (c *TestClock) Thaw() { c.setFrozen(false) }

func (c *TestClock) setFrozen(frozen bool) {
	c.alarms.mu.Lock()
	c.alarms.frozen = frozen
	c.alarms.mu.Unlock()
	if !frozen {
		c.jumped()
	}
}
