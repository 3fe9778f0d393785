package coord

import (
	"context"
	"errors"
	"fmt"
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

func newHolder(kind string) string { return fmt.Sprintf("%s-%d", kind, holders.Add(1)) }

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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	res, err := p.session.lo.c.Submit(ctx, &fsm.Release{Key: p.key, Token: p.token, SessionId: p.session.id})
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
	if cause := s.lo.refresh(); cause != nil {
		return nil, refusal(cause)
	}
	halt := s.lo.halted()

	bounded, stop := within(ctx, halt)
	id, err := c.Session(bounded)
	err = explain(bounded, err)
	stop()
	if err != nil {
		return nil, fmt.Errorf("wait for a session with trust: %w", err)
	}

	place := &seat{key: s.key, session: s.lo.session(id), holder: newHolder(s.kind)}
	place.unclaim = c.Claim(s.key, place.holder)
	bounded, stop = within(ctx, halt, place.session.ending)
	defer stop()
	// A grant wakes only the one that got it; who wants to know its rank
	// watches the queue as well.
	topics := []string{fsm.GrantTopic(s.key, id, place.holder)}
	if s.next != nil {
		topics = append(topics, fsm.QueueTopic(s.key))
	}
	wake, unwatch := c.Watch(topics...)
	defer unwatch()

	res, err := c.Submit(bounded, &fsm.Acquire{
		Key: s.key, SessionId: id, Holder: place.holder, Wait: s.wait, LockDelayMs: s.lockDelay.Milliseconds(),
	})
	if err == nil {
		err = fsm.ResultErr(res)
	}
	switch {
	case err == nil && !res.Queued:
		place.token = res.Token
		return place, nil
	case errors.Is(err, fsm.ErrSessionExpired):
		place.drop()
		return nil, ErrSessionLost
	case errors.Is(err, fsm.ErrStaleToken):
		place.drop() // granted under a former sending of this request, and gone again
		return nil, errPlaceLost
	case err != nil && res != nil, errors.Is(err, fsm.ErrNoQuorum):
		place.drop() // surely not applied
		return nil, explain(bounded, err)
	case err != nil:
		s.cleaning(func() { place.leave(ctx, c) })
		return nil, explain(bounded, err)
	}

	for {
		v := c.View()
		if l, ok := v.Lease(s.key); ok && l.SessionID == id && l.Holder == place.holder {
			place.token = l.Token
			return place, nil
		}
		switch {
		case v.Waiting(s.key, id, place.holder):
			if s.next != nil && firstInLine(v, place) {
				s.next()
			}
		default:
			place.drop()
			if _, live := v.Session(id); !live {
				return nil, ErrSessionLost
			}
			return nil, errPlaceLost
		}
		select {
		case <-wake:
		case <-bounded.Done():
			s.cleaning(func() { place.leave(ctx, c) })
			return nil, explain(bounded, nil)
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
