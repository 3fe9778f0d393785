package memnet

import "time"

// waiter lets operations wait, without a goroutine of its own and with a timer only while something is due. Guarded by Net.mu.
type waiter struct {
	waiting int
	wake    chan struct{} // size 1
	timer   *time.Timer
	at      instant // when the timer goes off; never = not running
}

// wait blocks until it is poked or the time has come; the caller looks at the state again. n.mu is released meanwhile.
func (w *waiter) wait(n *Net, now, until instant) {
	if w.wake == nil {
		w.wake = make(chan struct{}, 1)
		w.timer = time.NewTimer(time.Hour)
		w.timer.Stop()
		w.at = never
	}
	if w.waiting == 0 {
		select { // a poke for one that waits no more
		case <-w.wake:
		default:
		}
		w.at = never
	}
	w.waiting++
	w.arm(n, now, until)
	n.mu.Unlock()
	select {
	case <-w.wake:
	case <-w.timer.C:
	}
	n.mu.Lock()
	w.waiting--
	w.timer.Stop()
	w.at = never
	if w.waiting > 0 { // they share one channel and one timer
		w.poke()
	}
}

// poke makes a waiting operation look again.
func (w *waiter) poke() {
	if w.waiting == 0 {
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// arm makes a waiting operation look again at the given time, if it would not do so earlier.
func (w *waiter) arm(n *Net, now, at instant) {
	if w.waiting == 0 || at >= w.at {
		return
	}
	if at <= now {
		w.poke()
		return
	}
	w.at = at
	w.timer.Reset(time.Duration(at - now))
}
