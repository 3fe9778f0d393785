package coord

import (
	"context"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// lookout is what all leases and runners of one Cluster share, so that ten
// thousand of them cost one goroutine here, and one for each session in use:
// it sees the instance drain and the node close, and remembers the trust of
// the sessions.
type lookout struct {
	c    Cluster
	refs int // guarded by lookouts.Mutex
	quit chan struct{}
	work sync.WaitGroup
	kick chan struct{} // the set of sessions began or ceased to be empty

	mu       sync.Mutex
	halt     context.Context // ends, with the cause, when the instance drains or the node closes
	end      context.CancelCauseFunc
	sessions map[string]*session
	groups   map[string]bool // whose Coordinators run
}

// session is one that leases of this process hang on.
type session struct {
	lo     *lookout
	id     string
	ending context.Context // ends with ErrSessionLost when the work is told to stop
	ended  <-chan struct{} // closed when the work is made to stop
	quit   chan struct{}

	refs    int // guarded, like samples, by the lookout's mutex
	samples []sample
}

// keptSamples times the renew interval is how far back readings of trust
// reach: more than any TTL whose session survives.
const keptSamples = 32

// lookouts are those in use. It exists because a Lease and a Runner know only
// the Cluster they were given.
var lookouts = struct {
	sync.Mutex
	of map[Cluster]*lookout
}{of: make(map[Cluster]*lookout)}

// lookoutFor returns the lookout of c; leave must be called once.
func lookoutFor(c Cluster) *lookout {
	lookouts.Lock()
	defer lookouts.Unlock()
	lo := lookouts.of[c]
	if lo == nil {
		lo = &lookout{c: c, quit: make(chan struct{}), kick: make(chan struct{}, 1), sessions: make(map[string]*session), groups: make(map[string]bool)}
		lo.halt, lo.end = context.WithCancelCause(context.Background())
		wake, unwatch := c.Watch(fsm.InstanceTopic(c.InstanceID()))
		lo.work.Go(func() { lo.run(wake, unwatch) })
		lookouts.of[c] = lo
	}
	lo.refs++
	return lo
}

// leave gives the lookout up; the last one ends it.
func (lo *lookout) leave() {
	lookouts.Lock()
	defer lookouts.Unlock()
	if lo.refs--; lo.refs > 0 {
		return
	}
	delete(lookouts.of, lo.c)
	close(lo.quit)
	lo.work.Wait()
	lo.end(context.Canceled)
}

func (lo *lookout) run(wake <-chan struct{}, unwatch func()) {
	defer unwatch()
	closing := lo.c.Closing()
	var ticker *time.Ticker
	var tick <-chan time.Time
	defer func() {
		if ticker != nil {
			ticker.Stop()
		}
	}()
	for {
		lo.refresh()
		select {
		case <-lo.quit:
			return
		case <-wake:
		case <-closing:
			closing = nil // once is enough
		case <-tick:
			lo.sample()
		case <-lo.kick:
			switch want := lo.inUse(); {
			case want && ticker == nil:
				ticker = time.NewTicker(max(lo.c.RenewInterval(), 10*time.Millisecond))
				tick = ticker.C
			case !want && ticker != nil:
				ticker.Stop()
				ticker, tick = nil, nil
			}
		}
	}
}

// refresh compares the halt with what the cluster says now, and returns why
// work must not begin, nil if it may.
func (lo *lookout) refresh() (cause error) {
	select {
	case <-lo.c.Closing():
		cause = ErrShutDown
	default:
		if lo.c.Draining() {
			cause = ErrDrained
		}
	}
	lo.mu.Lock()
	defer lo.mu.Unlock()
	switch {
	case cause != nil:
		lo.end(cause)
	case lo.halt.Err() != nil: // undrained
		lo.halt, lo.end = context.WithCancelCause(context.Background())
	}
	return cause
}

// halted returns a context that ends, with ErrDrained or ErrShutDown, once the
// instance drains or the node closes. An undrain shows in the next call only.
func (lo *lookout) halted() context.Context {
	lo.refresh()
	lo.mu.Lock()
	defer lo.mu.Unlock()
	return lo.halt
}

// session returns what is known of one that is to be used; leave must be called once.
func (lo *lookout) session(id string) *session {
	lo.mu.Lock()
	s := lo.sessions[id]
	if s == nil {
		ending, tell := context.WithCancelCause(context.Background())
		s = &session{lo: lo, id: id, ending: ending, ended: lo.c.SessionEnded(id), quit: make(chan struct{})}
		told := lo.c.SessionEnding(id)
		lo.work.Go(func() {
			select {
			case <-told:
				tell(ErrSessionLost)
			case <-s.quit:
				tell(context.Canceled)
			}
		})
		lo.sessions[id] = s
	}
	s.refs++
	first := s.refs == 1
	lo.mu.Unlock()
	if first {
		lo.sample()
		lo.poke()
	}
	return s
}

func (s *session) leave() {
	s.lo.mu.Lock()
	s.refs--
	last := s.refs == 0
	if last {
		delete(s.lo.sessions, s.id)
		close(s.quit)
	}
	s.lo.mu.Unlock()
	if last {
		s.lo.poke()
	}
}

func (lo *lookout) poke() {
	select {
	case lo.kick <- struct{}{}:
	default:
	}
}

func (lo *lookout) inUse() bool {
	lo.mu.Lock()
	defer lo.mu.Unlock()
	return len(lo.sessions) > 0
}

// sample reads the trust of every session in use, and the revision after it.
func (lo *lookout) sample() {
	lo.mu.Lock()
	defer lo.mu.Unlock()
	for id, s := range lo.sessions {
		until := time.Now().Add(lo.c.Trusted(id))
		s.samples = append(s.samples, sample{until: until, revision: lo.c.View().Revision()})
		if n := len(s.samples) - keptSamples; n > 0 {
			s.samples = append(s.samples[:0], s.samples[n:]...)
		}
	}
}

// revokedUntil is revokedUntil of the readings of the session.
func (s *session) revokedUntil(revision uint64) time.Time {
	s.lo.mu.Lock()
	defer s.lo.mu.Unlock()
	return revokedUntil(s.samples, revision)
}

// enlist tells whether no other Coordinator of the group runs, and that one does.
func (lo *lookout) enlist(group string) bool {
	lo.mu.Lock()
	defer lo.mu.Unlock()
	if lo.groups[group] {
		return false
	}
	lo.groups[group] = true
	return true
}

func (lo *lookout) discharge(group string) {
	lo.mu.Lock()
	defer lo.mu.Unlock()
	delete(lo.groups, group)
}

// knowsGroups tells whether the cluster has been raised to the version that
// brought groups, and with them failures and stuck runs in the state.
func (lo *lookout) knowsGroups() bool { return lo.c.View().Cluster().Version >= groupsVersion }

const groupsVersion = 2

// scope is a context that ends, with their causes, when any of several does.
type scope struct {
	context.Context
	cancel context.CancelCauseFunc
	stops  []func() bool
}

// within returns a child of ctx that also ends when any of the others does; end
// must be called.
func within(ctx context.Context, others ...context.Context) *scope {
	s := &scope{}
	s.Context, s.cancel = context.WithCancelCause(ctx)
	for _, other := range others {
		s.also(other)
	}
	return s
}

// also makes the end of other one of s.
func (s *scope) also(other context.Context) {
	s.stops = append(s.stops, context.AfterFunc(other, func() { s.cancel(context.Cause(other)) }))
}

func (s *scope) end() {
	for _, stop := range s.stops {
		stop()
	}
	s.cancel(context.Canceled)
}

// secure returns nil once the session has trust enough to begin work under it.
// Where little is left it proves more first; what hinders the proof is tried
// again until ctx ends.
func (s *session) secure(ctx context.Context) error {
	c := s.lo.c
	for {
		if c.Trusted(s.id) >= enough(s.ttl()) {
			return nil
		}
		err := c.Confirm(ctx, s.id)
		if err == nil && c.Trusted(s.id) > 0 {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if fsm.CodeOf(err) == fsm.CodeSessionExpired {
			return ErrSessionLost
		}
		if err := pause(ctx, max(c.RenewInterval()/4, 10*time.Millisecond)); err != nil {
			return err
		}
	}
}

// ttl is the session's, by the copy. Where the copy does not have it, no trust
// is enough.
func (s *session) ttl() time.Duration {
	if r, ok := s.lo.c.View().Session(s.id); ok && r.TTL > 0 {
		return r.TTL
	}
	return MaxSessionTTL
}

// pause waits for d; it returns the cause when ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
