package node

import (
	"testing"
	"testing/synctest"
	"time"
)

// The machine's clock runs, and its alarms and ticks are heard.
func TestClock_Machine(t *testing.T) {
	c := newMachineClock()
	before := c.boot()
	a := c.alarm()
	a.setAt(before + 2*time.Millisecond)
	<-a.ring()
	if got := c.boot() - before; got < 2*time.Millisecond {
		t.Errorf("rang after %v, want 2ms or later", got)
	}
	ticks, stop := c.ticks(time.Millisecond)
	<-ticks
	<-ticks
	stop()
	a.setAt(c.boot() + time.Hour)
	a.stop()
	if n := len(c.alarms.set); n != 0 {
		t.Errorf("%d alarms are set after stop", n)
	}
}

// A clock with a rate: its alarms ring by it, not by the bubble's.
func TestClock_Rate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewTestClock(1.25, time.Hour)
		if got := c.boot(); got != time.Hour {
			t.Errorf("starts at %v, want 1h", got)
		}
		began := time.Now()
		a := c.alarm()
		a.setAt(time.Hour + 10*time.Second)
		<-a.ring()
		if got := time.Since(began); got != 8*time.Second {
			t.Errorf("10s of a clock that gains a quarter took %v, want 8s", got)
		}
		c.SetRate(0.5)
		a.setAt(c.boot() + time.Second)
		<-a.ring()
		if got := time.Since(began); got != 10*time.Second {
			t.Errorf("at half rate 1s took %v, want 2s", got-8*time.Second)
		}
	})
}

// A suspend moves boot and wall time and lets alarms ring that fell into it; a
// step of the wall clock moves nothing else.
func TestClock_Jumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewTestClock(1, 0)
		boot, mono, wall := c.boot(), c.mono(), c.wall()
		a := c.alarm()
		a.setAt(boot + 20*time.Second)
		c.Suspend(30 * time.Second)
		<-a.ring()
		if got := c.boot() - boot; got != 30*time.Second {
			t.Errorf("boot moved by %v, want 30s", got)
		}
		if got := c.mono() - mono; got != 0 {
			t.Errorf("mono moved by %v, want 0", got)
		}
		if got := c.wall().Sub(wall); got != 30*time.Second {
			t.Errorf("wall moved by %v, want 30s", got)
		}
		c.StepWall(-time.Hour)
		if got := c.wall().Sub(wall); got != 30*time.Second-time.Hour {
			t.Errorf("wall moved by %v after a step of -1h", got)
		}
		if got := c.boot() - boot; got != 30*time.Second {
			t.Errorf("boot moved with the wall clock, by %v", got)
		}
	})
}

// Frozen alarms wait for the thaw, as those of a stopped process do.
func TestClock_Freeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewTestClock(1, 0)
		a := c.alarm()
		a.setAt(time.Second)
		c.Freeze()
		time.Sleep(5 * time.Second)
		if isClosed(a.ring()) {
			t.Fatal("rang while frozen")
		}
		c.Thaw()
		<-a.ring()
		if got := c.boot(); got != 5*time.Second {
			t.Errorf("rang at %v, want 5s", got)
		}
	})
}

// The detector tells a sleep from a set wall clock, each once.
func TestSleepDetector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewTestClock(1, 0)
		d := newSleepDetector(c)
		look := func(wantSlept, wantStepped time.Duration) {
			t.Helper()
			time.Sleep(sleepTick)
			if _, slept, stepped := d.look(); slept != wantSlept || stepped != wantStepped {
				t.Errorf("slept %v, stepped %v; want %v and %v", slept, stepped, wantSlept, wantStepped)
			}
		}
		look(0, 0)
		time.Sleep(time.Hour)
		look(0, 0)
		c.Suspend(30 * time.Second)
		look(30*time.Second, 0)
		look(0, 0)
		c.StepWall(time.Hour)
		look(0, time.Hour)
		look(0, 0)
		c.StepWall(-2 * time.Hour)
		look(0, -2*time.Hour)
		c.StepWall(300 * time.Millisecond) // an adjustment, not a step
		look(0, 0)
	})
}
