package node

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

const (
	// sleepWorthNote is the shortest sleep that goes into the ledger: shorter ones
	// cost no lease, and some machines have many.
	sleepWorthNote = time.Second
	// maxSleepNotes bounds the grants beside which one sleep is noted: the ledger
	// has to hold what else happened.
	maxSleepNotes = 100
	sleepNoteTry  = 30 * time.Second
)

// sleepLog has the ledger note that this machine slept, beside the grants that
// this process had when it fell asleep. Nothing depends on it: a note that can't
// be committed soon is dropped.
type sleepLog struct {
	instanceID string
	propose    proposeFunc
	log        *slog.Logger
	poked      chan struct{} // one slot

	mu    sync.Mutex
	notes []*fsm.RecordSleep
}

func newSleepLog(instanceID string, propose proposeFunc, log *slog.Logger) *sleepLog {
	return &sleepLog{instanceID: instanceID, propose: propose, log: log, poked: make(chan struct{}, 1)}
}

// slept notes a sleep beside grants: tokens by key.
func (l *sleepLog) slept(d time.Duration, grants map[string]uint64) {
	if d < sleepWorthNote || len(grants) == 0 {
		return
	}
	keys := slices.Sorted(maps.Keys(grants))
	keys = keys[:min(len(keys), maxSleepNotes)]
	l.mu.Lock()
	for _, key := range keys {
		if len(l.notes) < maxSleepNotes {
			l.notes = append(l.notes, &fsm.RecordSleep{Key: key, Token: grants[key], InstanceId: l.instanceID, SleptNs: int64(d)})
		}
	}
	l.mu.Unlock()
	select {
	case l.poked <- struct{}{}:
	default:
	}
}

// run proposes the notes until ctx ends.
func (l *sleepLog) run(ctx context.Context) error {
	for {
		select {
		case <-l.poked:
		case <-ctx.Done():
			return nil
		}
		l.mu.Lock()
		notes := l.notes
		l.notes = nil
		l.mu.Unlock()
		limit, cancel := context.WithTimeout(ctx, sleepNoteTry)
		for _, note := range notes {
			r, err := l.propose(limit, note)
			if err == nil {
				err = fsm.ResultErr(r)
			}
			if err != nil {
				l.log.Debug("a sleep is not in the ledger", "key", note.Key, "error", err)
			}
		}
		cancel()
	}
}
