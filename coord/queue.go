package coord

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/miwnode/miwnode/fsm"
)

// leaveTimeout bounds how long a seeker that gave up tries to leave the queue.
// What it can't undo, the node does: a grant that nobody claims is given back.
const leaveTimeout = 2 * time.Second

// errPlaceLost: the copy shows neither the place in the queue nor the grant.
var errPlaceLost = errors.New("place in the queue lost")

// holders numbers the holders of this process, so that no two share a name and
// a late retry of one can't touch what another got.
var holders atomic.Uint64

func newHolder(kind string) string { return kind + "-" + strconv.FormatUint(holders.Add(1), 10) }

// seeker asks for one key.
type seeker struct {
	lo        *lookout
	key       string
	kind      string // first part of the holder's name
	wait      bool
	lockDelay time.Duration
	// next, if set, is called whenever the copy shows the seeker first in line.
	next func()
	// cleaning runs the leaving of the queue; it may do so in the background.
	cleaning func(leave func())
}

// seat is a grant to a holder of this process.
type seat struct {
	key, holder string
	session     *session
	token       uint64
	unclaim     func()
	// asked ends when the asking must: with its ctx, a halt of the instance,
	// the session. Who got the seat ends it.
	asked *scope
}

// drop ends the claim and gives the session up. It must be called once.
func (p *seat) drop() {
	p.unclaim()
	p.session.leave()
}

// look reads the standing of the grant from the copy.
func (p *seat) look(v *fsm.View) (standing, *fsm.Lease) {
	return look(v, p.key, p.session.id, p.token)
}

// free releases the grant by its token, whatever becomes of ctx. nil means that
// it was released by this call. A refusal (fsm.ErrStaleToken, of a dead session
// fsm.ErrSessionExpired) means that it had ended before; everything else that
// it may still be there.
func (p *seat) free(ctx context.Context, timeout time.Duration) error {
	return p.freeAfter(ctx, timeout, nil)
}

// freeAfter is free after a run that failed, which the release says.
func (p *seat) freeAfter(ctx context.Context, timeout time.Duration, failure error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	release := &fsm.Release{Key: p.key, Token: p.token, SessionId: p.session.id}
	if failure != nil && p.session.lo.knowsGroups() {
		release.Failure = fsm.Clip(cmp.Or(failure.Error(), "failed"), fsm.MaxFailureBytes)
	}
	res, err := p.session.lo.c.Submit(ctx, release)
	if err == nil {
		err = fsm.ResultErr(res)
	}
	return err
}

// seek returns with the grant, or with the reason why there is none; then the
// place in the queue has been, or is being, given up.
func (s *seeker) seek(ctx context.Context) (*seat, error) {
	for {
		seat, err := s.try(ctx)
		if !errors.Is(err, errPlaceLost) {
			return seat, err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// try seeks under one session, as one holder.
func (s *seeker) try(ctx context.Context) (*seat, error) {
	c := s.lo.c
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if cause := s.lo.refresh(); cause != nil {
		return nil, refusal(cause)
	}
	asked := within(ctx, s.lo.halted())
	id, err := c.Session(asked)
	if err = explain(asked, err); err != nil {
		asked.end()
		return nil, fmt.Errorf("wait for a session with trust: %w", err)
	}
	place := &seat{key: s.key, session: s.lo.session(id), holder: newHolder(s.kind), asked: asked}
	asked.also(place.session.ending)
	place.unclaim = c.Claim(s.key, place.holder)

	res, err := c.Submit(asked, &fsm.Acquire{
		Key: s.key, SessionId: id, Holder: place.holder, Wait: s.wait, LockDelayMs: s.lockDelay.Milliseconds(),
	})
	applied := true // perhaps
	if err == nil {
		err, applied = fsm.ResultErr(res), res.Code == 0
	}
	switch {
	case err == nil && !res.Queued:
		place.token = res.Token
		return place, nil
	case err == nil:
		if err = s.queued(place); err == nil {
			return place, nil
		}
		_, applied = c.View().Session(id) // else everything of it is gone
		applied = applied && !errors.Is(err, errPlaceLost)
	case errors.Is(err, fsm.ErrSessionExpired):
		err, applied = ErrSessionLost, false
	case errors.Is(err, fsm.ErrStaleToken): // granted under a former sending of this request, and gone again
		err, applied = errPlaceLost, false
	default:
		applied = applied && !errors.Is(err, fsm.ErrNoQuorum)
		err = explain(asked, err)
	}
	asked.end()
	if applied {
		s.cleaning(func() { place.leave(ctx, c) })
	} else {
		place.drop()
	}
	return nil, err
}

// queued waits in the queue until the key is granted.
func (s *seeker) queued(p *seat) error {
	c := s.lo.c
	// A grant wakes only the one that got it; who wants to know its rank
	// watches the queue as well.
	topics := []string{fsm.GrantTopic(p.key, p.session.id, p.holder)}
	if s.next != nil {
		topics = append(topics, fsm.QueueTopic(p.key))
	}
	wake, unwatch := c.Watch(topics...)
	defer unwatch()
	for {
		v := c.View()
		if l, ok := v.Lease(p.key); ok && l.SessionID == p.session.id && l.Holder == p.holder {
			p.token = l.Token
			return nil
		}
		if !v.Waiting(p.key, p.session.id, p.holder) {
			if _, live := v.Session(p.session.id); !live {
				return ErrSessionLost
			}
			return errPlaceLost
		}
		if s.next != nil && firstInLine(v, p) {
			s.next()
		}
		select {
		case <-wake:
		case <-p.asked.Done():
			return explain(p.asked, nil)
		}
	}
}

// leave gives up the place in the queue, and the grant that may have come of it.
func (p *seat) leave(ctx context.Context, c Cluster) {
	defer p.drop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	// The node gives back what this could not: nobody claims it any more.
	_, _ = c.Submit(ctx, &fsm.CancelWait{Key: p.key, SessionId: p.session.id, Holder: p.holder})
}

// firstInLine tells whether the next grant of the key would go to p.
func firstInLine(v *fsm.View, p *seat) bool {
	for w := range v.Waiters(p.key) {
		if w.SessionID == p.session.id {
			return w.Holder == p.holder
		}
		if s, ok := v.Session(w.SessionID); ok && !s.Draining() && !s.Cordoned() {
			return false
		}
	}
	return false
}

// explain says why a call under ctx failed. The end of ctx outranks what the
// call made of it, but keeps the word on whether the command was applied.
func explain(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, ErrDrained), errors.Is(cause, ErrShutDown):
		return refusal(cause)
	case errors.Is(cause, ErrSessionLost), err == nil, errors.Is(err, cause):
		return cause
	}
	return fmt.Errorf("%w (%w)", err, cause)
}

// refusal is what an acquire answers on an instance that takes nothing new.
func refusal(cause error) error {
	if errors.Is(cause, ErrShutDown) {
		return fsm.Errorf(fsm.CodeClosing, "the node is leaving: it takes nothing new")
	}
	return fsm.Errorf(fsm.CodeDraining, "the instance drains: it takes nothing new")
}

// checkKey refuses what can't be a key, and the product's own names.
func checkKey(key string) error {
	switch {
	case strings.TrimSpace(key) == "":
		return fsm.Errorf(fsm.CodeInvalidArgument, "key is empty")
	case len(key) > 512:
		return fsm.Errorf(fsm.CodeInvalidArgument, "key has %d bytes: at most 512", len(key))
	case !utf8.ValidString(key):
		return fsm.Errorf(fsm.CodeInvalidArgument, "key is not valid UTF-8")
	case strings.ContainsFunc(key, unicode.IsControl):
		return fsm.Errorf(fsm.CodeInvalidArgument, "key %q has control characters", key)
	case strings.HasPrefix(key, "miw/"):
		return fsm.Errorf(fsm.CodeInvalidArgument, "key %q: names that begin with miw/ are the product's own", key)
	}
	return nil
}
