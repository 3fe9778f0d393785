package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/guard"
)

// waitForever is the wait of an acquire without a limit.
const waitForever = 365 * 24 * time.Hour

var (
	errSessionLost = errors.New("the session is lost")
	errRevoked     = errors.New("it was revoked")
	errHandOver    = errors.New("it was asked for by another instance")
)

// execSession is the session of one exec. Trust in it counts from the sending
// of the newest confirmed keep-alive, on a clock that runs while the machine
// sleeps. It is used by one goroutine, but for keepAlive.
type execSession struct {
	a      *app
	client *api.Client
	id     string
	ttl    time.Duration
	until  time.Duration // instant of guard.BootTime at which trust ends
}

// heldLease is what an answer to a keep-alive must list.
type heldLease struct {
	key   string
	token uint64
}

// renewEvery is the time between keep-alives.
func renewEvery(ttl time.Duration) time.Duration { return min(2*time.Second, ttl/5) }

// stopBudget is the time between TERM and KILL when the trust runs out.
func stopBudget(ttl time.Duration) time.Duration { return min(time.Second, ttl/8) }

// sessionName is what lists call the session of this exec.
func (e *execution) sessionName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return fmt.Sprintf("exec:%s:%s:%d", strings.ToValidUTF8(filepath.Base(e.argv[0]), "?"), host, os.Getpid())
}

// open opens a session within --timeout. Its trust counts from the sending.
func (e *execution) open(ctx context.Context) (*execSession, error) {
	req := api.Request{
		Method: "POST", Path: "/v1/sessions",
		Body: api.OpenSessionRequest{TTL: api.Duration(e.ttl), Name: e.sessionName()},
	}
	sent := guard.BootTime()
	var s api.Session
	if _, err := e.a.call(ctx, e.client, req, &s); err != nil {
		return nil, err
	}
	return &execSession{a: e.a, client: e.client, id: s.SessionID, ttl: time.Duration(s.TTL), until: sent + time.Duration(s.TrustedFor)}, nil
}

// retry repeats try, with a pause, while it fails with what again says may
// pass; it returns the last failure when ctx ends.
func retry(ctx context.Context, again func(error) bool, try func() error) error {
	var failed error
	for {
		err := try()
		if err == nil {
			return nil
		}
		// What ctx itself cut short says less than the failure before.
		if failed == nil || ctx.Err() == nil {
			failed = err
		}
		if ctx.Err() != nil || !again(err) {
			return failed
		}
		pause := time.NewTimer(200 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return failed
		}
	}
}

// acquire waits for the lease while the session is kept alive, and returns
// errSessionLost when it is not any more, errNotFree when the wait is over.
func (s *execSession) acquire(ctx context.Context, w *waiting) (uint64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.keep(ctx, cancel) })
	wg.Go(func() { w.tellHolder(ctx, w.e.sessionName()) })
	defer func() {
		cancel(nil)
		wg.Wait()
	}()

	req := api.AcquireRequest{Key: w.e.key, SessionID: s.id, Holder: newHolder()}
	var got api.Acquired
	again := func(err error) bool { return mends(err) && !w.over() }
	err := retry(ctx, again, func() error {
		// Asking again keeps the place in the queue.
		left := w.left()
		req.Wait = api.Duration(left)
		query := url.Values{"timeout": {(left + min(s.a.timeout, waitGrace)).String()}}
		ctx, cancel := context.WithTimeout(ctx, left+s.a.timeout+time.Second)
		defer cancel()
		_, err := s.client.Do(ctx, api.Request{Method: "POST", Path: "/v1/leases/acquire", Query: query, Body: req}, &got)
		if err == nil || mends(err) && !errors.Is(ctx.Err(), context.Canceled) {
			w.note(err)
		}
		return err
	})
	switch {
	case err == nil:
		return got.Token, nil
	case errors.Is(context.Cause(ctx), errSessionLost), errors.Is(err, fsm.ErrSessionExpired):
		return 0, errSessionLost
	case errors.Is(err, fsm.ErrLeaseHeld), errors.Is(err, fsm.ErrWaitTimeout):
		return 0, errNotFree
	}
	return 0, err
}

// keep sends keep-alives until ctx ends; a session that is lost cancels it.
func (s *execSession) keep(ctx context.Context, cancel context.CancelCauseFunc) {
	beat := time.NewTicker(renewEvery(s.ttl))
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
		case <-ctx.Done():
			return
		}
		if err := s.apply(s.keepAlive(ctx), heldLease{}); err != nil {
			cancel(err)
			return
		}
	}
}

// keptAlive is the outcome of one keep-alive.
type keptAlive struct {
	sent   time.Duration
	answer api.KeptAlive
	err    error
}

func (s *execSession) keepAlive(ctx context.Context) keptAlive {
	ctx, cancel := context.WithTimeout(ctx, s.ttl)
	defer cancel()
	ka := keptAlive{sent: guard.BootTime()}
	path := "/v1/sessions/" + api.PathEscape(s.id) + "/keepalive"
	_, ka.err = s.client.Do(ctx, api.Request{Method: "POST", Path: path, Query: url.Values{"timeout": {s.ttl.String()}}}, &ka.answer)
	return ka
}

// apply counts a keep-alive and tells what is lost by it: the session, or the
// lease where one is given.
func (s *execSession) apply(ka keptAlive, lease heldLease) error {
	if errors.Is(ka.err, fsm.ErrSessionExpired) || guard.BootTime() >= s.until {
		return errSessionLost
	}
	if ka.err != nil {
		return nil // the next one may do better, until trust ends
	}
	state := ""
	for _, l := range ka.answer.Leases {
		if l.Key == lease.key && l.Token == lease.token {
			state = l.State
		}
	}
	switch {
	case lease.key == "", state == "held":
	case state == "transferring":
		s.until = max(s.until, ka.sent+time.Duration(ka.answer.TrustedFor))
		return errHandOver
	default:
		return errRevoked
	}
	s.until = max(s.until, ka.sent+time.Duration(ka.answer.TrustedFor))
	return nil
}

// confirm returns once a keep-alive that lists the lease has been answered.
func (s *execSession) confirm(ctx context.Context, lease heldLease) error {
	left := s.until - guard.BootTime()
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	return retry(ctx, mends, func() error {
		ka := s.keepAlive(ctx)
		if err := s.apply(ka, lease); err != nil {
			return err
		}
		return ka.err
	})
}

// feed is what the guard is told of the trust.
func (s *execSession) feed() guard.Feed {
	return guard.Feed{
		StopAt: s.until - stopBudget(s.ttl), KillAt: s.until,
		Session: &guard.Session{ID: s.id, TTL: s.ttl, HTTP: &guard.HTTP{Addr: absolute(s.client.Addr()), Token: s.client.Token(), CAFile: s.a.tlsCA}},
	}
}

// close gives the lease back by its token (none if that is 0), once nothing
// runs under it, and ends the session, all within the limit. What it can't do
// the TTL will; a session that is lost needs nothing.
func (s *execSession) close(lease heldLease, limit time.Duration) {
	if guard.BootTime() >= s.until {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if lease.token != 0 {
		req := api.ReleaseRequest{Key: lease.key, Token: lease.token, SessionID: s.id}
		_, _ = s.a.call(ctx, s.client, api.Request{Method: "POST", Path: "/v1/leases/release", Body: req}, nil) // the session's end does it, too
	}
	_, _ = s.a.call(ctx, s.client, api.Request{Method: "DELETE", Path: "/v1/sessions/" + api.PathEscape(s.id)}, nil)
}

func isURL(addr string) bool { return strings.Contains(addr, "://") }
