package transport

import (
	"fmt"
	"time"
)

// silentLooks is how often in a row a peer that owes an answer may be found silent; after the first it is asked with a ping.
const silentLooks = 3

// watch is what a calling end knows of the life of its peer. It runs a short timer while calls are under way and a long one otherwise. Guarded by the
// connection's lock.
type watch struct {
	tick     time.Duration
	timer    *time.Timer
	ticking  bool // the short timer runs
	sent     bool // something was sent since something was read
	read     bool // something was read since the last look
	used     bool // a call began since the last look
	silent   int  // looks in a row
	idleFrom time.Time
}

// called notes that a request goes out.
func (w *watch) called() {
	w.sent, w.used = true, true
	if !w.ticking {
		w.ticking = true
		w.read, w.silent = false, 0
		w.timer.Reset(w.tick)
	}
}

// heard notes that the peer said something.
func (w *watch) heard() { w.sent, w.read = false, true }

// look is the timer: it asks a silent peer for life, gives it up, and closes an idle connection.
func (c *clientConn) look() {
	c.out.mu.Lock()
	if c.out.err != nil {
		c.out.mu.Unlock()
		return
	}
	w := &c.watch
	var cause error
	switch active := c.slots.active > 0; {
	case (active || w.sent) && !w.read:
		if w.silent++; w.silent >= silentLooks {
			cause = fmt.Errorf("%w: nothing came for %v", ErrPeerSilent, c.t.cfg.PeerTimeout)
			break
		}
		c.out.buf = appendSignal(c.out.buf, 0, framePing)
		w.sent = true
		w.timer.Reset(w.tick)
	case active || w.used:
		w.silent = 0
		w.timer.Reset(w.tick)
	default:
		w.silent, w.ticking = 0, false
		if c.retired || time.Since(w.idleFrom) >= clientIdle {
			cause = errIdle
			break
		}
		w.timer.Reset(clientIdle)
	}
	w.read, w.used = false, false
	c.out.mu.Unlock()
	if cause != nil {
		c.end(cause)
		return
	}
	c.out.wakeWriter()
}
