package coord

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// shift is one Run of a Coordinator. The goroutine of Run owns it; the others
// send it what happened, as a func.
type shift struct {
	*Coordinator
	lo     *lookout
	runs   context.Context // ends when the runs are to finish
	finish func()          // ends runs
	resign func()          // ends the membership
	news   chan func()
	done   chan struct{}  // closed when nobody listens to news any more
	crew   sync.WaitGroup // goroutines that must end before Run returns

	session *session // under which the instance is a member, nil before it is
	wake    <-chan struct{}
	unwatch func()
	since   fsm.EventID      // up to there the events are dealt with
	planned bool             // the planner was started
	late    <-chan time.Time // Run is to return, but until then the next owners may get ready
	stopped bool             // Run is to return
	left    bool             // and the group was told
}

func newShift(c *Coordinator, lo *lookout) *shift {
	return &shift{Coordinator: c, lo: lo, news: make(chan func()), done: make(chan struct{}), unwatch: func() {}}
}

// tell has f run by the owner.
func (s *shift) tell(f func()) {
	select {
	case s.news <- f:
	case <-s.done:
	}
}

func (s *shift) run(ctx context.Context) {
	base := context.WithoutCancel(ctx)
	member, resign := context.WithCancel(base)
	runs, finish := context.WithCancel(base)
	defer resign()
	defer finish()
	s.runs, s.finish, s.resign = runs, finish, resign
	s.stopping.Store(false)
	s.log.Info("coordinator starts", slog.String("instance", s.c.InstanceID()), slog.Int("workloads", len(s.workloads)), slog.Any("runtimes", s.group.Runtimes))
	s.crew.Go(func() {
		s.keepJoined(member)
		s.tell(func() { s.left = true })
	})

	stop, closing := ctx.Done(), s.c.Closing()
	for !s.stopped || !s.left || len(s.posts) > 0 {
		select {
		case <-stop:
			stop = nil
			s.halt()
		case <-closing:
			closing = nil
			s.halt()
		case <-s.late:
			s.stop()
		case <-s.wake:
			s.follow()
		case f := <-s.news:
			f()
		}
		if s.late != nil && !s.any((*post).busy) {
			s.stop()
		}
		if s.stopped && len(s.posts) == 0 {
			s.resign()
		}
	}
	close(s.done)
	s.attend(nil)
	s.crew.Wait()
	s.log.Info("coordinator stopped")
}

// halt is the beginning of the end. Where the node closes, its instance drains,
// and what is here may first wait for its next owners to get ready.
func (s *shift) halt() {
	if s.stopped || s.late != nil {
		return
	}
	if s.any(func(p *post) bool { return p.busy() && s.handsOver(p.workload.Key) }) && s.nodeCloses() {
		s.late = time.After(s.cfg.DrainTimeout / 2)
		return
	}
	s.stop()
}

func (s *shift) any(is func(*post) bool) bool {
	for _, p := range s.posts {
		if is(p) {
			return true
		}
	}
	return false
}

// together is how far apart a program may end its Coordinators and their node.
const together = 100 * time.Millisecond

func (s *shift) nodeCloses() bool {
	select {
	case <-s.c.Closing():
		return true
	case <-time.After(together):
		return false
	}
}

// stop asks the runs to finish, and then leaves the group. Who leaves names no
// successor, and what one has got ready meanwhile would be lost: where the node
// closes, and so takes nothing new, the runs are released first.
func (s *shift) stop() {
	handsOver := s.late != nil
	s.late, s.stopped = nil, true
	s.stopping.Store(true)
	for _, p := range s.posts {
		if !p.busy() {
			s.close(p)
		}
	}
	s.finish()
	if !handsOver {
		s.resign()
	}
}

// keepJoined is a member of the group, with one session after the other, until
// ctx ends; then it leaves.
func (s *shift) keepJoined(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		id, err := s.c.Session(ctx)
		if err == nil {
			sess := s.lo.session(id)
			asked := within(ctx, sess.ending)
			if err = s.join(asked, id); err == nil {
				failures = 0
				s.tell(func() { s.attend(sess) })
				<-asked.Done()
				s.setJoined(false, "")
			}
			asked.end()
			if ctx.Err() != nil {
				s.leave(ctx, id, sess.ending)
			} else if sess.ending.Err() != nil {
				s.crew.Go(func() { s.disown(ctx, id) })
			}
			if err != nil {
				sess.leave()
			}
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		failures++
		s.setJoined(false, err.Error())
		s.log.Warn("can't join the group; trying again", slog.Any("error", err))
		_ = pause(ctx, Backoff{Initial: s.c.RenewInterval() / 2, Max: 10 * time.Second}.Delay(failures, 0))
	}
}

func (s *shift) setJoined(joined bool, fault string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joined, s.fault = joined, fault
}

// join declares what this instance can run.
func (s *shift) join(ctx context.Context, session string) error {
	submit := func(op fsm.Op) error {
		res, err := s.c.Submit(ctx, op)
		if err == nil {
			err = fsm.ResultErr(res)
		}
		return err
	}
	for tries := 1; ; tries++ {
		if _, known := s.c.View().Catalog(s.catalog); !known {
			for _, part := range s.parts {
				if err := submit(part); err != nil {
					return err
				}
			}
		}
		err := submit(&fsm.JoinGroup{
			Group: s.group.Name, SessionId: session, CatalogHash: s.catalog, Runtimes: s.group.Runtimes, Capacity: s.group.Capacity,
			Embedded: true, Prepares: s.cfg.Prepare != nil, Settings: s.group.settings(),
		})
		// A catalog that nobody refers to is forgotten before long.
		if !errors.Is(err, fsm.ErrNotFound) || tries == 3 {
			return err
		}
	}
}

// leave tells the group that this instance is no member any more, whatever the
// copy says: an answer to the joining may have been lost. A member that runs
// nothing would be granted its share again and again. So it goes on until that
// gets through or the session is over; while the node closes, which ends the
// session, not for long.
func (s *shift) leave(ctx context.Context, session string, ending context.Context) {
	asked := within(context.WithoutCancel(ctx), ending)
	defer asked.end()
	for first := true; asked.Err() == nil && (first || s.c.Trusted(session) > 0); first = false {
		limit, cancel := context.WithTimeout(asked, releaseTimeout)
		res, err := s.c.Submit(limit, &fsm.LeaveGroup{Group: s.group.Name, SessionId: session})
		cancel()
		if err == nil {
			err = fsm.ResultErr(res)
		}
		switch fsm.CodeOf(err) {
		case 0, fsm.CodeNotFound, fsm.CodeSessionExpired:
			return
		}
		s.log.Warn("the group does not know yet that this instance leaves", slog.Any("error", err))
		select {
		case <-s.c.Closing():
			return
		default:
			_ = pause(asked, s.c.RenewInterval()/4)
		}
	}
}

// disown tells the group that a session of this instance takes nothing more: it
// is lost, but lives on while runs under it return, and what the group granted
// it would be given up at once.
func (s *shift) disown(ctx context.Context, session string) {
	ctx, cancel := context.WithTimeout(ctx, MaxSessionTTL)
	defer cancel()
	_, _ = s.c.Submit(ctx, &fsm.LeaveGroup{Group: s.group.Name, SessionId: session}) // else its end says so
}

// attend serves the grants of a session from now on, nil: of none.
func (s *shift) attend(sess *session) {
	s.unwatch()
	if s.session != nil {
		s.session.leave()
	}
	s.session, s.wake, s.unwatch = sess, nil, func() {}
	if sess == nil {
		return
	}
	s.wake, s.unwatch = s.c.Watch(fsm.SessionTopic(sess.id))
	s.setJoined(true, "")
	s.log.Info("joined the group")
	if !s.planned && !s.stopped {
		s.planned = true
		s.startPlanner()
	}
	s.survey()
}

// startPlanner queues for planning, until the Run ends.
func (s *shift) startPlanner() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.runs))
	context.AfterFunc(s.runs, cancel)
	s.crew.Go(func() {
		defer cancel()
		if err := s.planner.runner().Run(ctx); err != nil {
			s.log.Error("planner ended", slog.Any("error", err))
		}
	})
}

// survey looks at everything that the session has or is to get. It is for a
// session that is new here, and for a copy that came as a whole.
func (s *shift) survey() {
	v := s.c.View()
	s.since = fsm.AfterRevision(v.Revision())
	for key := range s.posts {
		s.consider(v, key)
	}
	for l := range v.SessionLeases(s.session.id) {
		if l.Group == s.group.Name {
			s.consider(v, s.workloadOf(l.Key))
		}
	}
	for l := range v.Successions(s.session.id) {
		if l.Group == s.group.Name {
			s.consider(v, s.workloadOf(l.Key))
		}
	}
}

func (s *shift) workloadOf(key string) string { return key[len(s.group.Name)+1:] }

// follow looks at what the events since the last time concern.
func (s *shift) follow() {
	v := s.c.View()
	events, whole := v.Events(s.since)
	if !whole {
		s.survey()
		return
	}
	s.since = fsm.AfterRevision(v.Revision())
	self, prefix := s.c.InstanceID(), fsm.WorkloadKey(s.group.Name, "")
	for e := range events {
		if !strings.HasPrefix(e.Key, prefix) {
			continue
		}
		workload := s.workloadOf(e.Key)
		p := s.posts[workload]
		switch e.Type {
		case fsm.EventLeaseGranted, fsm.EventLeaseEnded, fsm.EventLeaseTransferring, fsm.EventWorkloadPreparing, fsm.EventWorkloadKept:
			if p != nil || e.Who.InstanceID == self || e.Note.To == self {
				s.consider(v, workload)
			}
		case fsm.EventWorkloadFailed:
			if p != nil && p.token == e.Token {
				s.watchRecovery(p) // its next owner could not prepare
			}
		}
	}
}
