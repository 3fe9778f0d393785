package coord

import (
	"context"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// Cluster is what this package needs of a node; *node.Node satisfies it
// structurally. An application may put a double of its own in its place
// (package coordtest has one that keeps a real replicated state in memory).
//
// Every method is safe for concurrent use. The value must be comparable, as a
// pointer is: what shares a Cluster shares its watches.
type Cluster interface {
	// InstanceID names the instance that work is assigned to: host:pid:uuid.
	InstanceID() string

	// Submit proposes one command and returns its result once the local copy
	// covers it. A refusal is a result with a code, not an error. It retries
	// under one request ID until ctx ends: fsm.ErrNoQuorum means that the
	// command was surely not applied, fsm.ErrUncertain that it may have been.
	Submit(ctx context.Context, op fsm.Op) (*fsm.Result, error)
	// View is the local copy of the replicated state.
	View() *fsm.View
	// Watch wakes (level, one slot) after changes of any of the topics.
	Watch(topics ...string) (wake <-chan struct{}, stop func())
	// Barrier returns once the local copy covers everything that was
	// acknowledged anywhere before the call.
	Barrier(ctx context.Context) error

	// Session waits for an open session of this instance with trust left and
	// returns its ID.
	Session(ctx context.Context) (id string, err error)
	// SessionEnding is closed when the work under the session is told to stop
	// (sent + T - M - S of the last confirmed keep-alive). One way: a session
	// that is ending is lost for good.
	SessionEnding(id string) <-chan struct{}
	// SessionEnded is closed when the work is made to stop (sent + T - M).
	SessionEnded(id string) <-chan struct{}
	// Trusted is the time left until the session is ending; not positive when
	// it is not trusted.
	Trusted(id string) time.Duration
	// Confirm returns once a keep-alive that was sent after the call is
	// confirmed and the local copy covers its answer.
	Confirm(ctx context.Context, id string) error

	// Claim says that a local holder waits for or holds (key, holder); a grant
	// that nobody claims is given back after a second. drop ends the claim.
	Claim(key, holder string) (drop func())
	// Begin waits until the process's slot of the key is free, then takes it
	// and marks a run as outstanding: the session is kept alive and the folder
	// stays locked until Returned.
	Begin(ctx context.Context, key string, token uint64) (run uint64, err error)
	// Started says that the work of the run begins, Finished that it is over:
	// before its lease is released, so that no other run can have begun yet.
	// Between the two the work may do something, and may not elsewhere.
	Started(run uint64)
	Finished(run uint64)
	// Stopping says that the run was told to stop.
	Stopping(run uint64)
	// Stuck says that the run did not return in time; stack is where it hangs.
	Stuck(run uint64, stack string)
	// Returned says that the run has returned; the slot of its key is free.
	Returned(run uint64)

	// Draining tells whether the instance is marked draining or the node is
	// closing. Changes wake watchers of fsm.InstanceTopic(InstanceID()).
	Draining() bool
	// Closing is closed when the node begins to leave.
	Closing() <-chan struct{}

	// DrainTimeout, KillTimeout and RenewInterval are the node's settings and
	// the defaults of this package's.
	DrainTimeout() time.Duration
	KillTimeout() time.Duration
	RenewInterval() time.Duration
}
