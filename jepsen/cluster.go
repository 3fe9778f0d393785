package jepsen

import (
	"context"
	"time"
)

// Verb is one thing that can be done to a cluster.
type Verb string

const (
	VerbCut      Verb = "cut"       // drop everything of one direction
	VerbShape    Verb = "shape"     // loss and delay of one direction
	VerbPause    Verb = "pause"     // SIGSTOP, or what comes nearest
	VerbCrash    Verb = "crash"     // kill -9
	VerbAddress  Verb = "address"   // restart at another address
	VerbLeave    Verb = "leave"     // graceful end
	VerbStepDown Verb = "step-down" // planned change of leader
	VerbRate     Verb = "rate"      // of a node's clock
	VerbSuspend  Verb = "suspend"   // boot time jumps, the monotonic clock doesn't
	VerbWall     Verb = "wall"      // the wall clock jumps
)

// Cluster is a cluster under torment: what the two tiers have in common.
// Methods that do something to a node that is down do nothing.
type Cluster interface {
	// Nodes names all members, up or down.
	Nodes() []string
	// Leader names the node that leads, as far as the tier knows; "" if none.
	Leader() string
	// Up tells whether the node's process lives.
	Up(node string) bool
	// Can returns nil, or why this tier can't do it.
	Can(Verb) error

	Cut(from, to string)
	Mend(from, to string)
	Shape(from, to string, delay, jitter time.Duration, loss float64)
	Pause(node string)
	Resume(node string)
	// Crash kills the node's process; Start starts it again on its data folder,
	// at a new address if asked.
	Crash(node string)
	Start(node string, newAddress bool) error
	// Leave ends the node gracefully and returns when its process is gone.
	Leave(ctx context.Context, node string) error
	StepDown(ctx context.Context) error
	SetRate(node string, rate float64)
	Suspend(node string, d time.Duration)
	StepWall(node string, d time.Duration)
}

// Endpoint is how a client with a session of its own talks to one node. Errors
// carry codes of package fsm; what ends with a context is uncertain.
type Endpoint interface {
	// Open opens a session, which registers an instance if asked to, and tells for
	// how long it is trusted from the sending on.
	Open(ctx context.Context, name string, ttl time.Duration, instance bool) (session string, trusted time.Duration, err error)
	// KeepAlive renews it; leases are those that the answer lists.
	KeepAlive(ctx context.Context, session string) (trusted time.Duration, leases []Kept, err error)
	Close(ctx context.Context, session string) error
	// Acquire doesn't wait; heldBy is the token of the holder that was in the way, if told.
	Acquire(ctx context.Context, key, session, holder string) (token, heldBy uint64, err error)
	Release(ctx context.Context, key string, token uint64, session string) error
	// Read returns the token of the grant that holds key, 0 if free; linearizable.
	Read(ctx context.Context, key string) (token uint64, err error)
	// Join makes the session's instance a member of the group for all that it
	// wants; LeaveGroup takes that back.
	Join(ctx context.Context, group, session string) error
	LeaveGroup(ctx context.Context, group, session string) error
}

// Kept is a lease as the answer to a keep-alive lists it.
type Kept struct {
	Key   string
	Token uint64
	Group string // that granted it, "" for none
	Held  bool   // it is confirmed; else its holder is to stop and release it
}
