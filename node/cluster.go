package node

import (
	"context"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// View is the local copy of the replicated state as of now.
func (n *Node) View() *fsm.View { return n.machine.View() }

// Watch wakes (level, one slot) after changes of any of the topics; stop ends it.
func (n *Node) Watch(topics ...string) (wake <-chan struct{}, stop func()) {
	return n.machine.Watch(topics...)
}

// Submit is Propose without options.
func (n *Node) Submit(ctx context.Context, op fsm.Op) (*fsm.Result, error) { return n.Propose(ctx, op) }

// Propose commits one command, through whichever node leads, and returns its
// result once the local copy covers it. A refusal is a result with a code and
// no error. Propose retries under one request ID until ctx ends; then
// fsm.ErrNoQuorum means that the command was surely not applied, fsm.ErrUncertain
// that it may have been, now or later. fsm.ErrOverloaded means that too many
// commands wait, fsm.ErrInvalidArgument that the command was never proposed.
func (n *Node) Propose(ctx context.Context, op fsm.Op, opts ...ProposeOption) (*fsm.Result, error) {
	res, err := n.lease.proposer.propose(ctx, op, opts...)
	return res, n.unled(err)
}

// KeepAlive renews a session on behalf of a client and returns once the local
// copy covers the answer. The client counts TrustedFor from the moment it sent
// its request. fsm.ErrSessionExpired: the session is gone.
func (n *Node) KeepAlive(ctx context.Context, sessionID string) (KeepAliveAnswer, error) {
	a, err := n.lease.renewals.keepAlive(ctx, sessionID)
	return a, n.unled(err)
}

// TrustedFor is how long a client may believe in a session of that TTL, from the
// moment it sent what the leader confirmed: the TTL less the session's margin.
func (n *Node) TrustedFor(ttl time.Duration) time.Duration {
	return ttl - max(n.cfg.Timing.Margin, ttl/10)
}

// Read returns the local copy once it is as fresh as asked.
func (n *Node) Read(ctx context.Context, c Consistency) (*fsm.View, Freshness, error) {
	view, fresh, err := n.lease.reader.read(ctx, c)
	return view, fresh, n.unled(err)
}

// Barrier returns once the local copy covers everything that was acknowledged
// anywhere before the call.
func (n *Node) Barrier(ctx context.Context) error {
	_, _, err := n.lease.reader.read(ctx, Linearizable)
	return err
}

// Session waits for an open session of this node with trust left.
func (n *Node) Session(ctx context.Context) (id string, err error) {
	id, err = n.lease.keeper.session(ctx)
	return id, n.unled(err)
}

// SessionEnding is closed when the work under the session is told to stop. One
// way: a session that is ending is lost for good.
func (n *Node) SessionEnding(id string) <-chan struct{} { return n.lease.keeper.ending(id) }

// SessionEnded is closed when the work under the session is made to stop.
func (n *Node) SessionEnded(id string) <-chan struct{} { return n.lease.keeper.ended(id) }

// Trusted is the time left until the session is ending; not positive when it is
// not trusted.
func (n *Node) Trusted(id string) time.Duration { return n.lease.keeper.trusted(id) }

// Confirm returns nil once a keep-alive that was sent after the call has been
// confirmed and the local copy covers its answer.
func (n *Node) Confirm(ctx context.Context, id string) error { return n.lease.keeper.confirm(ctx, id) }

// Claim says that a local holder waits for or holds (key, holder). A grant to
// this node's session that nobody claims is given back after a second.
func (n *Node) Claim(key, holder string) (drop func()) { return n.lease.slots.claim(key, holder) }

// Begin waits until the slot of the key in this process is free, takes it and
// marks a run as outstanding until Returned.
func (n *Node) Begin(ctx context.Context, key string, token uint64) (run uint64, err error) {
	return n.lease.slots.begin(ctx, key, token)
}

// Started says that the work of the run begins now.
func (n *Node) Started(run uint64) { n.lease.slots.started(run) }

// Finished says that the work of the run is over; its lease is released only
// after that.
func (n *Node) Finished(run uint64) { n.lease.slots.finished(run) }

// Stopping says that the run was told to stop.
func (n *Node) Stopping(run uint64) { n.lease.slots.stopping(run) }

// Stuck says that the run did not return in time; stack is where it hangs.
func (n *Node) Stuck(run uint64, stack string) { n.lease.slots.stuck(run, stack) }

// HeldUp is for how long this process did not run (it was stopped, suspended or
// starved), if it has gone on only just now; 0 where it was not, or is not known.
func (n *Node) HeldUp() time.Duration { return n.lease.runs.heldUpFor() }

// Returned says that the run has returned; the slot of its key is free.
func (n *Node) Returned(run uint64) { n.lease.slots.returned(run) }

// Runs lists the outstanding runs of this process, oldest first.
func (n *Node) Runs() []Run { return n.lease.slots.runs() }

// Draining tells whether the instance is marked draining or the node is leaving.
func (n *Node) Draining() bool {
	select {
	case <-n.life.closing:
		return true
	default:
	}
	s, ok := n.View().Instance(n.InstanceID())
	return ok && s.Drain != nil
}

// DrainTimeout, KillTimeout and RenewInterval are the node's settings.
func (n *Node) DrainTimeout() time.Duration  { return n.cfg.Timing.DrainTimeout }
func (n *Node) KillTimeout() time.Duration   { return n.cfg.Timing.KillTimeout }
func (n *Node) RenewInterval() time.Duration { return n.cfg.Timing.RenewInterval }
