package coord

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// post is a workload that is here, or for which this instance prepares. The
// owner of the shift owns it.
type post struct {
	workload *Workload
	runner   *Runner
	ctx      context.Context // of Prepare
	cancel   context.CancelFunc

	token uint64 // of the grant that is dealt with, 0 for none
	last  uint64 // of the one before
	well  *time.Timer

	preparing bool
	ready     bool   // Prepare was called, and has returned
	fault     error  // what it returned
	answered  uint64 // token of the owner that was told of it
}

// busy tells whether a grant is dealt with.
func (p *post) busy() bool { return p.token != 0 }

// consider compares a workload with the copy, and does what follows.
func (s *shift) consider(v *fsm.View, workload string) {
	if s.session == nil {
		return
	}
	l, _ := v.Lease(fsm.WorkloadKey(s.group.Name, workload))
	if l != nil && (l.Group != s.group.Name || l.State == fsm.Barred) {
		l = nil
	}
	p := s.posts[workload]
	switch {
	case l != nil && l.SessionID == s.session.id:
		switch {
		case p != nil && (p.token != 0 || p.last == l.Token): // it is on the way in, or out
		case s.session.ending.Err() != nil: // lost: its end, or the node, gives it back
		case s.stopped:
			s.decline(l)
		default:
			if p = s.open(workload); p != nil {
				s.begin(p, l)
			} else if s.workloads == nil {
				s.decline(l) // it was wanted for a moment
			}
		}
	case p != nil && p.token != 0: // its lease is over; it will come back here
	case l != nil && l.Note.To == s.c.InstanceID() && !s.stopped && s.cfg.Prepare != nil:
		if p = s.open(workload); p != nil {
			s.prepare(p, l)
		}
	case p != nil:
		s.close(p)
	}
}

// open returns the post of a workload, nil if it is none of this instance's.
func (s *shift) open(workload string) *post {
	if p := s.posts[workload]; p != nil {
		return p
	}
	w := s.find(workload)
	if w == nil {
		if s.workloads != nil {
			s.log.Warn("granted a workload that this instance did not declare; the node gives it back", slog.String("workload", workload))
		}
		return nil
	}
	p := &post{workload: w}
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(s.runs))
	p.runner = s.newRunner(w)
	p.runner.standby.ctx = p.ctx
	s.mu.Lock()
	s.posts[workload] = p
	s.mu.Unlock()
	return p
}

// newRunner makes the Runner of a workload, which does not queue for its key.
func (c *Coordinator) newRunner(w *Workload) *Runner {
	cfg := RunnerConfig{
		Name: w.name(), RestartDelay: c.cfg.RestartDelay, Stuck: c.cfg.Stuck, Logger: c.log,
		Drain: DrainConfig{Timeout: c.cfg.DrainTimeout, KillTimeout: c.cfg.KillTimeout},
	}
	if cfg.RestartDelay == 0 {
		cfg.RestartDelay = -1
	}
	if c.cfg.Drainable != nil {
		cfg.Drain.Drainable = func() Drainable { return c.cfg.Drainable(*w) }
	}
	if c.cfg.Prepare != nil {
		cfg.Prepare = func(ctx context.Context) error { return c.getReady(ctx, *w) }
	}
	if c.cfg.Hooks != nil {
		cfg.Hooks = c.cfg.Hooks(*w)
	}
	key := fsm.WorkloadKey(c.group.Name, w.Key)
	r := newRunner(c.c, key, func(ctx context.Context, l *Lease) error { return c.run(ctx, *w, l) }, cfg.withDefaults(c.c, key))
	r.planned, r.graceful = true, c.graceful
	r.patient = func() bool { return c.handsOver(w.Key) }
	return r
}

// getReady is one Prepare, bounded.
func (c *Coordinator) getReady(ctx context.Context, w Workload) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.PrepareTimeout, fmt.Errorf("not ready within %v", c.cfg.PrepareTimeout))
	defer cancel()
	err := c.cfg.Prepare(ctx, w)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// close gives the post up. What it started ends by itself, and before Run returns.
func (s *shift) close(p *post) {
	s.mu.Lock()
	delete(s.posts, p.workload.Key)
	s.mu.Unlock()
	p.cancel()
	s.crew.Go(func() {
		p.runner.standby.work.Wait()
		if s.cfg.Forget != nil {
			p.runner.events.post(func() { s.cfg.Forget(*p.workload) })
		}
		p.runner.aside.Wait()
		p.runner.events.drained()
	})
}

// begin runs the workload under the grant.
func (s *shift) begin(p *post, l *fsm.Lease) {
	p.token = l.Token
	seat := &seat{key: l.Key, holder: l.Holder, token: l.Token, session: s.lo.session(l.SessionID), unclaim: s.c.Claim(l.Key, l.Holder)}
	s.crew.Go(func() {
		p.runner.hold(s.runs, s.lo, seat)
		s.tell(func() { s.ended(p) })
	})
	if g, ok := s.c.View().Group(s.group.Name); ok {
		if w, ok := g.Workload(p.workload.Key); ok && w.Failure != nil {
			s.watchRecovery(p)
		}
	}
}

// ended is called when the lease was given up.
func (s *shift) ended(p *post) {
	p.last, p.token = p.token, 0
	p.ready, p.answered = false, 0
	p.runner.set(func(st *Status) { st.State, st.Token = StateWaiting, 0 })
	if p.well != nil {
		p.well.Stop()
		p.well = nil
	}
	if s.session == nil {
		s.close(p)
		return
	}
	s.consider(s.c.View(), p.workload.Key)
	if s.stopped && s.posts[p.workload.Key] == p && p.token == 0 {
		s.close(p) // what could not be released, the node gives back
	}
}

// decline gives back what was granted to an instance that leaves, or is not to
// run any more.
func (s *shift) decline(l *fsm.Lease) {
	s.crew.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.runs), releaseTimeout)
		defer cancel()
		_, _ = s.c.Submit(ctx, &fsm.Release{Key: l.Key, Token: l.Token, SessionId: l.SessionID}) // else the node gives it back
	})
}

// prepare gets ready for a workload that is to come here, and says so.
func (s *shift) prepare(p *post, l *fsm.Lease) {
	switch {
	case p.preparing:
	case !p.ready:
		p.preparing = true
		p.runner.set(func(st *Status) { st.State = StatePreparing })
		s.crew.Go(func() {
			err := p.runner.standby.await(p.ctx)
			s.tell(func() { s.prepared(p, err) })
		})
	case l.State == fsm.Held && p.answered != l.Token:
		p.answered = l.Token
		op := &fsm.Prepared{Group: s.group.Name, Workload: p.workload.Key, Token: l.Token, SessionId: s.session.id, Ok: p.fault == nil}
		if p.fault != nil {
			op.Message = fsm.Clip(p.fault.Error(), fsm.MaxFailureBytes)
		}
		s.crew.Go(func() { _, _ = s.c.Submit(p.ctx, op) }) // a refusal means that the copy is about to say something else
	}
}

func (s *shift) prepared(p *post, err error) {
	if s.posts[p.workload.Key] != p {
		return
	}
	p.preparing, p.ready, p.fault = false, true, err
	s.consider(s.c.View(), p.workload.Key)
}

// watchRecovery has the failure of a workload forgotten once it has run here
// for as long as the longest wait for another try.
func (s *shift) watchRecovery(p *post) {
	if p.well != nil {
		return
	}
	token, session := p.token, s.session.id
	p.well = time.AfterFunc(s.planner.cfg.Backoff.Max, func() { s.tell(func() { s.recovered(p, token, session) }) })
}

func (s *shift) recovered(p *post, token uint64, session string) {
	if p.token != token {
		return
	}
	p.well = nil
	s.crew.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.runs), releaseTimeout)
		defer cancel()
		_, _ = s.c.Submit(ctx, &fsm.ForgetFailure{Group: s.group.Name, Workload: p.workload.Key, Token: token, SessionId: session})
	})
}
