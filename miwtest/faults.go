package miwtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// Crash ends the process of node i as kill -9 does; nothing if it does not run.
// Its folder stays.
func (c *Cluster) Crash(i int) {
	if n := c.Node(i); n != nil && !n.isDead() {
		c.notef("node %d crashes", i)
		c.kill(n, errCrashed)
	}
}

// Start starts node i on its folder, with its programs; nothing if it runs.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	if c.Running(i) {
		return
	}
	if err := c.boot(i); err != nil {
		c.t.Fatalf("start node %d: %v", i, err)
	}
}

// Stop has node i leave as a deploy does: the contexts of its programs end, it
// hands everything over and is gone when Stop returns. A node that does not
// leave in its time (drain and kill time-out, a TTL, ten seconds) is ended by
// force, as by a second signal.
func (c *Cluster) Stop(i int) {
	n := c.Node(i)
	if n == nil || n.isDead() {
		return
	}
	c.notef("node %d is told to leave", i)
	n.cancel(errStopped)
	left := make(chan struct{})
	go func() {
		defer close(left)
		if err := c.inner.Stop(i); err != nil && !n.isDead() {
			c.t.Errorf("node %d left with an error: %v", i, err)
		}
	}()
	limit := time.NewTimer(c.timing.DrainTimeout + c.timing.KillTimeout + c.timing.SessionTTL + 10*time.Second)
	defer limit.Stop()
	select {
	case <-left:
		c.notef("node %d has left", i)
		c.bury(n, errStopped)
	case <-limit.C:
		c.notef("node %d has not left in time and is ended", i)
		c.kill(n, errStopped)
		<-left
	}
}

// Restart is Stop and Start: a deploy of node i. After a Crash, use Start.
func (c *Cluster) Restart(i int) {
	c.t.Helper()
	c.Stop(i)
	c.Start(i)
}

// Pause stops the process of node i as SIGSTOP does, or a VM that is migrated,
// until Resume. Its goroutines go on in the bubble, but what they do is not
// counted: not the runs, nor what an Observer is told.
func (c *Cluster) Pause(i int) {
	n := c.Node(i)
	if !c.awake(i) {
		return
	}
	c.notef("node %d stands still", i)
	n.mu.Lock()
	n.paused = true
	n.mu.Unlock()
	c.runs.pause(n)
	c.works.pause(n)
	c.inner.Pause(i)
}

// Resume ends Pause. Work whose lease was lost meanwhile has the stop budget
// (Config.Timing) to end in; a process whose run should have ended before that
// ends itself, and is started again.
func (c *Cluster) Resume(i int) {
	n := c.Node(i)
	if n == nil || c.awake(i) || n.isDead() {
		return
	}
	c.notef("node %d goes on", i)
	n.mu.Lock()
	n.paused, n.woke = false, time.Now()
	n.mu.Unlock()
	c.inner.Resume(i)
	valid := func(e *entry) bool {
		l, ok := n.View().Lease(e.lease)
		return n.Trusted(e.session) > 0 && ok && l.Token == e.Token && l.State != fsm.Revoked
	}
	now := c.Elapsed()
	c.report(c.runs.resume(n, now, valid)...)
	c.report(c.works.resume(n, now, valid)...)
	go func() {
		time.Sleep(c.timing.StopBudget)
		if paused, _ := n.standsStill(); !paused {
			c.report(c.works.overdue(c.Elapsed(), func(e *entry) bool { return e.proc == n && e.unheard })...)
		}
	}()
}

// Isolate cuts node i off from all others until Rejoin.
func (c *Cluster) Isolate(i int) {
	c.notef("node %d is cut off", i)
	c.inner.Isolate(i)
}

// Rejoin ends Isolate.
func (c *Cluster) Rejoin(i int) {
	c.notef("node %d is no longer cut off", i)
	c.inner.Rejoin(i)
}

// Cut cuts the link between two nodes, both ways, until Heal.
func (c *Cluster) Cut(i, j int) {
	c.notef("the link between nodes %d and %d is cut", i, j)
	c.inner.Cut(i, j)
}

// Heal ends Cut.
func (c *Cluster) Heal(i, j int) {
	c.notef("the link between nodes %d and %d is healed", i, j)
	c.inner.Heal(i, j)
}

// LoseSession cuts node i off until its session is over by its own clock, and
// its work must have ended: T - M after its last confirmed keep-alive. Then it
// is there again, before the cluster has missed it.
func (c *Cluster) LoseSession(i int) {
	c.t.Helper()
	n, session := c.session(i)
	c.Isolate(i)
	defer c.Rejoin(i)
	select {
	case <-n.Node.SessionEnded(session):
		c.notef("node %d has lost its session", i)
	case <-n.dead: // its work would not end
	}
}

// Expire cuts node i off until the cluster has expired its session and
// granted what it held to others.
func (c *Cluster) Expire(i int) {
	c.t.Helper()
	_, session := c.session(i)
	c.Isolate(i)
	defer c.Rejoin(i)
	c.Until(2*DefaultWait, "the end of the session", func() bool {
		for j := range c.Len() {
			if j == i || !c.awake(j) {
				continue
			}
			if _, ok := c.Node(j).View().Session(session); !ok {
				return true
			}
		}
		return false
	})
	c.notef("the session of node %d has expired", i)
}

// session returns node i, which must run, and its open session.
func (c *Cluster) session(i int) (*Node, string) {
	c.t.Helper()
	if c.Len() < 3 || !c.awake(i) {
		c.t.Fatalf("a session of node %d can't be lost: it needs a running node and a majority of others", i)
	}
	n, session := c.Node(i), ""
	c.Until(DefaultWait, "an open session", func() bool {
		s, ok := n.View().Instance(n.InstanceID())
		if ok && n.Trusted(s.ID) > 0 {
			session = s.ID
		}
		return session != ""
	})
	return n, session
}

// Drain marks node i as draining, as an operator does: it takes nothing new, and
// what it runs is asked to finish. It returns at once; see WaitIdle.
func (c *Cluster) Drain(i int) {
	c.t.Helper()
	c.mark(i, &fsm.MarkInstance{Mark: fsm.MarkDrain})
	c.notef("node %d drains", i)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drained[i] = true
}

// Undrain takes Drain back. A Runner goes on only if its DrainConfig.Resume
// says so, a Coordinator always does.
func (c *Cluster) Undrain(i int) {
	c.t.Helper()
	c.mark(i, &fsm.MarkInstance{Mark: fsm.MarkUndrain})
	c.notef("node %d drains no more", i)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.drained, i)
}

func (c *Cluster) mark(i int, op *fsm.MarkInstance) {
	c.t.Helper()
	if !c.Running(i) {
		c.t.Fatalf("node %d can't be drained or undrained: it does not run", i)
	}
	op.InstanceId, op.By = c.Node(i).InstanceID(), "miwtest"
	c.submit(op, fsm.ErrNotFound) // between two sessions there is no instance to mark
}

// StepDown has raft's leader hand over to another node, and returns that. No
// lease moves because of it.
func (c *Cluster) StepDown() (leader int) {
	c.t.Helper()
	old := c.inner.WaitLeader()
	c.Until(DefaultWait, "another leader", func() bool {
		if leader = c.inner.WaitLeader(); leader != old {
			return true
		}
		_ = c.Node(old).StepDown(c.t.Context(), "")
		return false
	})
	c.notef("node %d leads instead of node %d", leader, old)
	return leader
}

// Revoke takes the lease of a key away from who holds it, as an operator does:
// its context ends with coord.ErrRevoked, and the key passes on when it was
// released, or a TTL later.
func (c *Cluster) Revoke(key string) {
	c.t.Helper()
	l := c.lease(key)
	c.submit(&fsm.Revoke{Key: key, Token: l.Token, By: "miwtest"})
	c.notef("%q is revoked (token %d)", key, l.Token)
}

// Move asks that a key pass to node i, which must wait for it, or have declared
// the workload. It returns at once; see WaitOwner. Nothing if the node has it.
func (c *Cluster) Move(key string, i int) {
	c.t.Helper()
	l, to := c.lease(key), c.Node(i).InstanceID()
	if l.Who.InstanceID == to {
		return
	}
	if l.Group != "" {
		c.submit(&fsm.MoveWorkload{Group: l.Group, Workload: strings.TrimPrefix(key, l.Group+"/"), ToInstance: to, By: "miwtest"})
	} else {
		c.Until(DefaultWait, "its place in the queue", func() bool {
			v := c.Node(i).View()
			s, ok := v.Instance(to)
			return ok && slices.ContainsFunc(slices.Collect(v.Waiters(key)), func(w *fsm.Waiter) bool { return w.SessionID == s.ID })
		})
		c.submit(&fsm.Transfer{Key: key, Token: l.Token, ToInstance: to, By: "miwtest"})
	}
	c.notef("%q is to pass to node %d", key, i)
}

func (c *Cluster) lease(key string) (l *fsm.Lease) {
	c.t.Helper()
	c.Until(DefaultWait, "a holder of "+key, func() (ok bool) {
		leader := c.inner.Leader()
		if leader < 0 {
			return false
		}
		l, ok = c.Node(leader).View().Lease(key)
		return ok && l.State != fsm.Barred
	})
	return l
}

// submit proposes a command through whichever node can, again after errors that
// say nothing of it and those given.
func (c *Cluster) submit(op fsm.Op, again ...error) {
	c.t.Helper()
	again = append(again, fsm.ErrNoQuorum, fsm.ErrUncertain, fsm.ErrNotReady, fsm.ErrClosing)
	var last error
	for end := time.Now().Add(DefaultWait); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for i := range c.Len() {
			if !c.awake(i) || c.Node(i).ReadyErr() != nil {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			r, err := c.Node(i).Submit(ctx, op)
			cancel()
			if err == nil {
				err = fsm.ResultErr(r)
			}
			if err == nil {
				return
			}
			last = err
			if !slices.ContainsFunc(again, func(e error) bool { return errors.Is(err, e) }) {
				c.t.Fatalf("%s: %v", op, err)
			}
		}
	}
	c.t.Fatalf("%s: no node could do it within %v: %v", op, DefaultWait, last)
}

// mend takes the faults of network and processes back.
func (c *Cluster) mend() {
	c.inner.Net.HealAll()
	for i := range c.Len() {
		c.inner.Rejoin(i)
		c.Resume(i)
	}
}

// Calm takes every fault back: what is cut is healed, what is paused goes on,
// what is down is started, what is drained is not. It returns when all nodes are
// ready.
func (c *Cluster) Calm() {
	c.t.Helper()
	c.mend()
	for i := range c.Len() {
		c.Start(i)
	}
	c.WaitReady()
	for i := range c.Len() {
		c.mu.Lock()
		drained := c.drained[i]
		c.mu.Unlock()
		if drained {
			c.Undrain(i)
		}
	}
	c.notef("all is calm")
}
