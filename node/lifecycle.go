package node

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/guard"
)

var (
	// errNoLeader stands for the reason, which changes by the second.
	errNoLeader   = errors.New("no leader")
	errNotStarted = fsm.Errorf(fsm.CodeNotReady, "the node has not been started")
	errStopped    = fsm.Errorf(fsm.CodeClosing, "the node has stopped")
)

const (
	drainMarkPatience = 500 * time.Millisecond // to mark the instance draining before its runs are waited for
	leaveLimit        = 2 * time.Second        // to hand over leadership and close the session
	leftoverLimit     = 5 * time.Second        // to kill and await what an earlier start left
	runsSayAfter      = 10 * time.Second
)

// background runs the node's long goroutines.
type background struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	fail   func(error)
	wg     sync.WaitGroup
}

func newBackground(ctx context.Context, fail func(error)) *background {
	b := &background{fail: fail}
	b.ctx, b.cancel = context.WithCancelCause(ctx)
	return b
}

// run starts f; that it ends before it is told to, stops the node.
func (b *background) run(name string, f func(context.Context) error) {
	b.wg.Go(func() {
		err := f(b.ctx)
		if b.ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("ended by itself")
		}
		b.fail(&partError{name, err})
	})
}

func (b *background) stop() error {
	b.cancel(errStopped)
	b.wg.Wait()
	return nil
}

type partError struct {
	part string
	err  error
}

func (e *partError) Error() string { return e.part + ": " + e.err.Error() }
func (e *partError) Unwrap() error { return e.err }

// Ready is closed once the node knows a leader and its copy has caught up.
func (n *Node) Ready() <-chan struct{} { return n.life.ready }

// ReadyErr is nil when the node knows a leader and its copy is caught up, else
// it says what is missing. It never depends on leadership or ownership.
func (n *Node) ReadyErr() error {
	n.life.mu.Lock()
	err := n.life.unready
	n.life.mu.Unlock()
	if errors.Is(err, errNoLeader) {
		return fsm.Errorf(fsm.CodeNotReady, "%s", n.whyNoLeader())
	}
	return err
}

// setReady reports whether the node is ready for the first time.
func (n *Node) setReady(err error) (first bool) {
	n.life.mu.Lock()
	n.life.unready = err
	n.life.mu.Unlock()
	if err == nil {
		n.life.readyOnce.Do(func() {
			close(n.life.ready)
			first = true
		})
	}
	return first
}

// watchReady keeps ReadyErr true: each time a leader comes up the copy must
// have caught up with it before the node is ready again.
func (n *Node) watchReady(ctx context.Context) error {
	following := "" // the leader with which the copy has caught up
	for {
		changed := n.raft.changed()
		leader := n.raft.leader()
		switch {
		case n.ident.clusterID() == "":
			n.setReady(errNoLeader)
		case leader == "":
			following = ""
			n.setReady(errNoLeader)
		case leader != following:
			limit, cancel := context.WithTimeout(ctx, n.cfg.Timing.RaftTimeout)
			err := n.Barrier(limit)
			cancel()
			if err != nil {
				n.setReady(fsm.Errorf(fsm.CodeNotReady, "catching up with leader %s: %v", leader, err))
				if pause(ctx, 20*time.Millisecond) != nil {
					return nil
				}
				continue
			}
			if got, want := n.View().Cluster().ID, n.ident.clusterID(); got != want {
				return &folderError{dir: n.cfg.DataDir, kind: ErrOtherCluster, text: "is of cluster " + want + " but its log of cluster " + got}
			}
			following = leader
			if n.setReady(nil) {
				n.log.Info("node is ready", "cluster", n.ident.clusterID(), "leader", leader)
			}
		}
		select {
		case <-changed:
		case <-n.members.changed():
		case <-ctx.Done():
			return nil
		}
	}
}

// closeNow tells all that the node leaves.
func (n *Node) closeNow() { n.life.closeOnce.Do(func() { close(n.life.closing) }) }

// Closing is closed when the node begins to leave.
func (n *Node) Closing() <-chan struct{} { return n.life.closing }

// leave is the graceful end, up to where the parts are stopped.
func (n *Node) leave(ctx context.Context) {
	n.log.Info("node leaving")
	n.closeNow()
	base := context.WithoutCancel(ctx)
	if n.ident.clusterID() == "" {
		return
	}
	marking, marked := context.WithCancel(base)
	done := n.markDraining(marking)
	returned := n.awaitRuns()
	marked()
	<-done
	if !returned {
		return
	}
	limit, cancel := context.WithTimeout(base, leaveLimit)
	defer cancel()
	if _, leads := n.raft.leading(); leads {
		if err := n.raft.transfer(limit, ""); err != nil {
			n.log.Info("leadership not handed over", "why", err)
		}
	}
	if err := n.lease.closeSession(limit); err != nil {
		n.log.Warn("session not closed; it runs out by itself", "err", err)
	}
	n.members.leaveGossip()
}

// markDraining has everybody see that the instance takes nothing new. It waits
// a little for that; without a leader it goes on trying until ctx ends, and
// closes done then.
func (n *Node) markDraining(ctx context.Context) (done <-chan struct{}) {
	ended := make(chan struct{})
	if _, ok := n.View().Instance(n.ident.instanceID); !ok {
		close(ended)
		return ended
	}
	go func() {
		defer close(ended)
		_, err := n.Submit(ctx, &fsm.MarkInstance{InstanceId: n.ident.instanceID, Mark: fsm.MarkDrain, Reason: "node is leaving", By: n.ident.id})
		if err != nil {
			n.log.Info("not marked as draining", "err", err)
		}
	}()
	patience := time.NewTimer(drainMarkPatience)
	defer patience.Stop()
	select {
	case <-ended:
	case <-patience.C:
	}
	return ended
}

// awaitRuns waits until all runs have returned, for as long as that takes. It
// returns false if the node was killed meanwhile.
func (n *Node) awaitRuns() bool {
	idle := n.lease.slots.idle()
	if n.cfg.seams.Defects.DrainForgets && len(n.Runs()) == 1 {
		return true
	}
	tick := time.NewTicker(runsSayAfter)
	defer tick.Stop()
	for {
		select {
		case <-idle:
			return true
		case <-tick.C:
			for _, r := range n.Runs() {
				n.log.Warn("waiting for a run to return", "key", r.Key, "token", r.Token, "stuck_for", r.StuckFor)
			}
		case <-n.cfg.seams.Kill:
			return false
		}
	}
}

// quit is the end of a node that can't go on: it is cut off from the others, so
// that its session ends by the clock and its work with it.
func (n *Node) quit() {
	n.closeNow()
	n.setReady(n.Healthy())
	_ = n.raft.stop()
	_ = n.unbind()
	n.awaitRuns()
}

// leftovers is whether anything of earlier starts may still run.
type leftovers struct {
	mu    sync.Mutex // held while that is found out
	asked bool
	none  bool
}

// restartProved tells whether every process of the node's earlier starts is
// gone: the same kernel, the same folder, and nothing left of what they spawned.
func (n *Node) restartProved(context.Context) bool {
	ok, why := n.ident.sameHost()
	ok = ok || n.cfg.seams.Defects.CopyProof
	l := &n.life.leftover
	l.mu.Lock()
	defer l.mu.Unlock()
	if !ok {
		if s, live := n.View().NodeSession(n.ident.id); live && s.Boot < n.ident.boot() && !l.asked {
			l.asked = true
			n.log.Info("this start does not prove that the former one is over: its session runs out by itself", "why", why)
		}
		return false
	}
	if !l.asked {
		l.asked = true
		left, err := n.cfg.seams.leftovers(n.cfg.DataDir, leftoverLimit)
		l.none = err == nil && len(left) == 0
		if !l.none {
			n.log.Warn("commands of an earlier start may still run: its session runs out by itself", "left", len(left), "err", err)
		}
	}
	return l.none
}

// leftovers kills and awaits what earlier starts have left.
func (s *Seams) leftovers(dir string, limit time.Duration) ([]guard.Leftover, error) {
	left, err := guard.Leftovers(dir, limit)
	if errors.Is(err, guard.ErrUnsupported) {
		return nil, nil // no guard, so nothing was spawned through one
	}
	return left, err
}

// retryBind tells whether binding may work later: the port is taken, or the
// address not there yet.
func retryBind(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL)
}
