package fsm

import "time"

// Waiter is a place in the queue of a key.
type Waiter struct {
	Key       string
	SessionID string // a secret
	Holder    string
	LockDelay time.Duration
	Revision  uint64 // order: (Revision, Position)
	Position  uint32
}
