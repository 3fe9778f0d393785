package fsm

import (
	"io"
	"iter"
	"time"
)

// Cluster is what the state knows of the cluster as a whole.
type Cluster struct {
	ID            string // "" before InitCluster
	Generation    uint64
	Version       uint32 // what may be proposed
	LeaderID      string // of the last RecordLeader
	LeaderTerm    uint64
	MaxSessionTTL time.Duration
}

// View is the state at one revision. It never changes and may be read by any
// number of goroutines; holding one keeps its memory alive.
type View struct{}

func (v *View) Revision() uint64                                        { return 0 }
func (v *View) Cluster() Cluster                                        { return Cluster{} }
func (v *View) Session(id string) (*Session, bool)                      { return nil, false }
func (v *View) Sessions() iter.Seq[*Session]                            { return nil }
func (v *View) SessionChanged(id string) (revision uint64, ok bool)     { return 0, false }
func (v *View) NodeSession(nodeID string) (*Session, bool)              { return nil, false }
func (v *View) Instance(id string) (*Session, bool)                     { return nil, false }
func (v *View) Instances() iter.Seq[*Session]                           { return nil }
func (v *View) Lease(key string) (*Lease, bool)                         { return nil, false }
func (v *View) Leases(prefix, after string) iter.Seq[*Lease]            { return nil }
func (v *View) LeaseCount() int                                         { return 0 }
func (v *View) SessionLeases(sessionID string) iter.Seq[*Lease]         { return nil }
func (v *View) Waiters(key string) iter.Seq[*Waiter]                    { return nil }
func (v *View) WaiterCount(key string) int                              { return 0 }
func (v *View) Waiting(key, sessionID, holder string) bool              { return false }
func (v *View) PendingLeases() iter.Seq[*Lease]                         { return nil }
func (v *View) ClientBoot(nodeID string) uint64                         { return 0 }
func (v *View) History(q HistoryQuery) []*LedgerEntry                   { return nil }
func (v *View) Events(since EventID) (events iter.Seq[*Event], ok bool) { return nil, false }
func (v *View) OldestEvent() EventID                                    { return EventID{} }
func (v *View) Hash() [32]byte                                          { return [32]byte{} }
func (v *View) Snapshot(w io.Writer) error                              { return nil }

// ReadSnapshot reads what View.Snapshot wrote: all of it or an error.
func ReadSnapshot(r io.Reader, opts ...Option) (*State, error) { return nil, nil }

func leaseRecord(l *Lease) *LeaseRecord { return nil }
func leaseOf(r *LeaseRecord) *Lease     { return nil }
