package coordtest

import (
	"context"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// unclaimedFor is how long a grant may go unclaimed before it is given back.
const unclaimedFor = time.Second

type claimKey struct{ key, holder string }

// slots are the claims and runs of one process.
type slots struct {
	mu      sync.Mutex
	claims  map[claimKey]int
	runs    map[uint64]*Run
	busy    map[string]uint64 // run that has the slot of the key
	last    uint64
	changed chan struct{} // closed and replaced at each change
}

func (s *slots) init() {
	s.claims, s.runs, s.busy = make(map[claimKey]int), make(map[uint64]*Run), make(map[string]uint64)
	s.changed = make(chan struct{})
}

func (s *slots) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Claim says that a local holder waits for or holds (key, holder).
func (i *Instance) Claim(key, holder string) (drop func()) {
	k := claimKey{key, holder}
	s := &i.slots
	s.mu.Lock()
	s.claims[k]++
	s.mu.Unlock()
	return sync.OnceFunc(func() {
		s.mu.Lock()
		if s.claims[k]--; s.claims[k] == 0 {
			delete(s.claims, k)
		}
		s.mu.Unlock()
		i.giveBack(k)
	})
}

// onApplied looks for grants that nobody claims. World.mu is held.
func (i *Instance) onApplied(out *fsm.Outcome) {
	for _, e := range out.Events {
		if e.Type == fsm.EventLeaseGranted && e.Who.InstanceID == i.InstanceID() {
			if l, ok := i.machine.View().Lease(e.Key); ok {
				i.giveBackLocked(claimKey{l.Key, l.Holder})
			}
		}
	}
}

func (i *Instance) giveBack(k claimKey) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	i.giveBackLocked(k)
}

// giveBackLocked releases the grant to k, if there is one that nobody claims
// for a second. World.mu is held.
func (i *Instance) giveBackLocked(k claimKey) {
	granted, there := i.machine.View().Lease(k.key)
	if !there || granted.Holder != k.holder || granted.Who.InstanceID != i.InstanceID() || i.slots.claimed(k) || i.w.closed || i.life.Err() != nil {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(unclaimedFor, func() {
		i.w.mu.Lock()
		delete(i.w.timers, t)
		i.w.mu.Unlock()
		l, there := i.View().Lease(k.key)
		if i.slots.claimed(k) || !there || l.Token != granted.Token || l.State == fsm.Barred {
			return
		}
		ctx, cancel := context.WithTimeout(i.life, i.w.timing.Renew)
		defer cancel()
		if _, err := i.Submit(ctx, &fsm.Release{Key: l.Key, Token: l.Token, SessionId: l.SessionID}); err != nil {
			i.giveBack(k)
		}
	})
	i.w.timers[t] = struct{}{}
}

func (s *slots) claimed(k claimKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims[k] > 0
}

// Begin waits for the slot of the key and marks a run outstanding.
func (i *Instance) Begin(ctx context.Context, key string, token uint64) (uint64, error) {
	s := &i.slots
	for {
		s.mu.Lock()
		changed := s.changed
		if ctx.Err() == nil && s.busy[key] == 0 {
			s.last++
			s.busy[key] = s.last
			s.runs[s.last] = &Run{ID: s.last, Key: key, Token: token}
			run := s.last
			s.mu.Unlock()
			return run, nil
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// Started says that the work of the run begins, Finished that it is over.
func (i *Instance) Started(run uint64) { i.slots.note(run, func(r *Run) { r.Working = true }) }

// Finished says that the work of the run is over.
func (i *Instance) Finished(run uint64) { i.slots.note(run, func(r *Run) { r.Working = false }) }

// Stopping says that the run was told to stop.
func (i *Instance) Stopping(run uint64) { i.slots.note(run, func(r *Run) { r.Stopping = true }) }

// Stuck says that the run did not return in time.
func (i *Instance) Stuck(run uint64, stack string) {
	i.slots.note(run, func(r *Run) { r.Stuck, r.Stack = true, stack })
}

func (s *slots) note(run uint64, change func(*Run)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[run]; r != nil {
		change(r)
	}
}

// Returned says that the run has returned.
func (i *Instance) Returned(run uint64) {
	s := &i.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.runs[run]
	if r == nil {
		return
	}
	delete(s.runs, run)
	delete(s.busy, r.Key)
	s.change()
}

// Runs lists the outstanding runs.
func (i *Instance) Runs() []Run {
	s := &i.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Run
	for n := range s.last {
		if r := s.runs[n+1]; r != nil {
			all = append(all, *r)
		}
	}
	return all
}

// Claims counts the claims.
func (i *Instance) Claims() int {
	s := &i.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.claims)
}

func (s *slots) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs) == 0
}

func (s *slots) whenIdle(ctx context.Context) {
	for {
		s.mu.Lock()
		changed, idle := s.changed, len(s.runs) == 0
		s.mu.Unlock()
		if idle {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
