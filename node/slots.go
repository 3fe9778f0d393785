package node

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

const (
	// unclaimedAfter is how long a grant may be without a holder in the process.
	unclaimedAfter = time.Second
	// sweepEvery is how often all leases of this node are held against the
	// claims: a copy that came as a snapshot has had no events.
	sweepEvery = 30 * time.Second
)

// Run is an outstanding run of work in this process: it holds the slot of its
// key until it has returned.
type Run struct {
	ID    uint64
	Key   string
	Token uint64
	// Age is the time since it began, StoppingFor since it was told to stop,
	// StuckFor since it was found stuck; zero for not.
	Age         time.Duration
	StoppingFor time.Duration
	StuckFor    time.Duration
	Stack       string // where it is stuck
}

// slots keeps what happens in this process apart, key by key: who waits for or
// holds a lease here, and which run has not returned yet. A key has one slot
// for the whole process and across sessions: a lease that was lost and won
// again does not start while the old run goes on.
type slots struct {
	self    holder
	propose proposeFunc
	machine *fsm.Machine
	clock   clock
	log     *slog.Logger
	wake    chan struct{}
	observe observer
	runLog  *runLog
	double  bool // a planted defect
	// onReturn is called after each return, without a lock.
	onReturn func()

	mu     sync.Mutex
	claims map[string]map[string]int // key → holder → claims
	taken  map[string]*slot          // by key
	runsOf map[uint64]*slot          // by run
	last   uint64                    // run handed out last
	strays map[string]stray          // by key: grants that nobody here claims
	empty  chan struct{}             // closed while no run is outstanding
}

type slot struct {
	run      uint64
	key      string
	token    uint64
	session  string // of the grant, "" if the copy does not know it
	began    time.Duration
	stopping time.Duration // 0 = not told
	stuck    time.Duration // 0 = not
	stack    string
	free     chan struct{} // closed by returned
}

type stray struct {
	token uint64
	due   time.Duration
}

func newSlots(cfg leaseConfig, propose proposeFunc) *slots {
	s := &slots{
		self:    cfg.self,
		propose: propose,
		machine: cfg.machine,
		clock:   cfg.clock,
		log:     cfg.log,
		wake:    make(chan struct{}, 1),
		observe: cfg.observe,
		double:  cfg.defects.DoubleRun,
		claims:  map[string]map[string]int{},
		taken:   map[string]*slot{},
		runsOf:  map[uint64]*slot{},
		strays:  map[string]stray{},
		empty:   make(chan struct{}),
	}
	close(s.empty)
	return s
}

// claim says that a holder here waits for or holds the key.
func (s *slots) claim(key, holder string) (drop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.claims[key]
	if of == nil {
		of = map[string]int{}
		s.claims[key] = of
	}
	of[holder]++
	return sync.OnceFunc(func() { s.drop(key, holder) })
}

func (s *slots) drop(key, holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.claims[key]
	if of[holder]--; of[holder] <= 0 {
		delete(of, holder)
	}
	if len(of) == 0 {
		delete(s.claims, key)
	}
	if lease, ok := s.machine.View().Lease(key); ok {
		s.check(lease)
	}
}

// check makes the grant a stray if it is this node's and nobody here claims it;
// s.mu is held. An acquire that was cancelled, or whose answer was lost, may be
// granted at any later time; without this the key would stay with a session
// that lives on and a holder that does not know of it.
func (s *slots) check(lease *fsm.Lease) {
	if !s.ours(lease) {
		return
	}
	if old, ok := s.strays[lease.Key]; ok && old.token == lease.Token {
		return
	}
	s.strays[lease.Key] = stray{token: lease.Token, due: s.clock.boot() + unclaimedAfter}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// ours tells whether the grant is this node's and without a claim; s.mu is held.
func (s *slots) ours(lease *fsm.Lease) bool {
	if lease.State == fsm.Barred || lease.Who == nil || lease.Who.InstanceID != s.self.instanceID {
		return false
	}
	if s.claims[lease.Key][lease.Holder] > 0 {
		return false
	}
	run := s.taken[lease.Key]
	return run == nil || run.token != lease.Token
}

// applied looks at the grants of an entry. It is called on the apply goroutine.
func (s *slots) applied(o *fsm.Outcome) {
	for _, e := range o.Events {
		if s.double {
			s.runToo(e)
		}
		if e.Type != fsm.EventLeaseGranted || e.Who == nil || e.Who.InstanceID != s.self.instanceID {
			continue
		}
		if lease, ok := s.machine.View().Lease(e.Key); ok {
			s.mu.Lock()
			s.check(lease)
			s.mu.Unlock()
		}
	}
}

// runToo is the planted defect: it has a run of its own wherever another
// instance has one. The runs' numbers are far from those of begin.
func (s *slots) runToo(e *fsm.Event) {
	switch {
	case e.Who == nil || e.Who.InstanceID == s.self.instanceID:
	case e.Type == fsm.EventLeaseGranted:
		s.runLog.started(1<<63|e.Token, e.Key, e.Token)
	case e.Type == fsm.EventLeaseEnded:
		s.runLog.finished(1<<63 | e.Token)
	}
}

// run gives strays back until ctx ends.
func (s *slots) run(ctx context.Context) error {
	a := s.clock.alarm()
	defer a.stop()
	sweep := s.clock.boot() + sweepEvery
	for {
		now := s.clock.boot()
		if now >= sweep {
			sweep = now + sweepEvery
			s.sweep()
		}
		due, next := s.due(now)
		for _, lease := range due {
			s.giveBack(ctx, lease)
		}
		if len(due) > 0 {
			continue
		}
		a.setAt(min(next, sweep))
		select {
		case <-a.ring():
		case <-s.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// sweep holds every lease of this node's session against the claims.
func (s *slots) sweep() {
	view := s.machine.View()
	session, ok := view.NodeSession(s.self.nodeID)
	if !ok {
		return
	}
	for lease := range view.SessionLeases(session.ID) {
		s.mu.Lock()
		s.check(lease)
		s.mu.Unlock()
	}
}

// due returns the grants that have been strays for long enough.
func (s *slots) due(now time.Duration) (due []*fsm.Lease, next time.Duration) {
	next = now + sweepEvery
	s.mu.Lock()
	defer s.mu.Unlock()
	var view *fsm.View
	for key, x := range s.strays {
		if x.due > now {
			next = min(next, x.due)
			continue
		}
		delete(s.strays, key)
		if view == nil {
			view = s.machine.View()
		}
		if lease, ok := view.Lease(key); ok && lease.Token == x.token && s.ours(lease) {
			due = append(due, lease)
		}
	}
	return due, next
}

// giveBack releases the grant by its token, never by the key: whoever holds the
// key by the time the release is applied is not hit. If it does not get
// through it is a stray again.
func (s *slots) giveBack(ctx context.Context, lease *fsm.Lease) {
	ctx, cancel := context.WithTimeout(ctx, unclaimedAfter)
	defer cancel()
	res, err := s.propose(ctx, &fsm.Release{Key: lease.Key, Token: lease.Token, SessionId: lease.SessionID})
	if err == nil {
		s.log.Info("gave back a grant that nobody here asked for any more", "key", lease.Key, "token", lease.Token, "code", fsm.Code(res.GetCode()))
		return
	}
	s.mu.Lock()
	s.check(lease)
	s.mu.Unlock()
}

// begin waits until the slot of the key is free and takes it.
func (s *slots) begin(ctx context.Context, key string, token uint64) (run uint64, err error) {
	for {
		s.mu.Lock()
		old := s.taken[key]
		if old == nil {
			break
		}
		s.mu.Unlock()
		select {
		case <-old.free:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	s.last++
	x := &slot{run: s.last, key: key, token: token, began: s.clock.boot(), free: make(chan struct{})}
	if lease, ok := s.machine.View().Lease(key); ok && lease.Token == token {
		x.session = lease.SessionID
	}
	if len(s.runsOf) == 0 {
		s.empty = make(chan struct{})
	}
	s.taken[key] = x
	s.runsOf[x.run] = x
	return x.run, nil
}

// started says that the work of the run begins now, finished that it is over.
// Between the two the work may run; the slot is taken for longer.
func (s *slots) started(run uint64) {
	s.mu.Lock()
	x := s.runsOf[run]
	s.mu.Unlock()
	if x != nil {
		s.runLog.started(run, x.key, x.token)
	}
}

func (s *slots) finished(run uint64) { s.runLog.finished(run) }

func (s *slots) stopping(run uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.runsOf[run]; x != nil && x.stopping == 0 {
		x.stopping = s.clock.boot()
	}
}

func (s *slots) stuck(run uint64, stack string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.runsOf[run]; x != nil {
		x.stuck, x.stack = cmp.Or(x.stuck, s.clock.boot()), stack
		s.log.Error("a run does not return; its key stays with this process", "key", x.key, "token", x.token)
	}
}

func (s *slots) returned(run uint64) {
	s.mu.Lock()
	x := s.runsOf[run]
	if x != nil {
		delete(s.runsOf, run)
		delete(s.taken, x.key)
		close(x.free)
		if len(s.runsOf) == 0 {
			close(s.empty)
		}
		if lease, ok := s.machine.View().Lease(x.key); ok {
			s.check(lease)
		}
		s.runLog.dropped(run)
		if x.stopping != 0 {
			s.observe.sawStopped(s.clock.boot() - x.stopping)
		}
	}
	s.mu.Unlock()
	if x != nil && s.onReturn != nil {
		s.onReturn()
	}
}

// idle is closed while no run is outstanding.
func (s *slots) idle() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.empty
}

// outstanding counts the runs under the session, and those of no known one.
func (s *slots) outstanding(session string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.runsOf {
		if x.session == session || x.session == "" {
			n++
		}
	}
	return n
}

// runs lists the outstanding runs, oldest first.
func (s *slots) runs() []Run {
	now := s.clock.boot()
	since := func(at time.Duration) time.Duration {
		if at == 0 {
			return 0
		}
		return max(1, now-at)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Run, 0, len(s.runsOf))
	for _, x := range s.runsOf {
		all = append(all, Run{
			ID: x.run, Key: x.key, Token: x.token, Age: now - x.began,
			StoppingFor: since(x.stopping), StuckFor: since(x.stuck), Stack: x.stack,
		})
	}
	slices.SortFunc(all, func(a, b Run) int { return cmp.Compare(a.ID, b.ID) })
	return all
}
