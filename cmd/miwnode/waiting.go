package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

const (
	// waitGrace is what the calls of an exec may take beyond --wait.
	waitGrace = 1500 * time.Millisecond
	// partingGrace is what giving a session back may take after a wait in vain.
	partingGrace = 300 * time.Millisecond
	// quietWait is how long an exec waits before it says what for.
	quietWait = 500 * time.Millisecond
)

// waiting is the time of an exec until it has its lease. It goes through
// outages: nobody answers, no quorum, a session that is lost. Each kind of
// obstacle is told once, and again when another was between.
type waiting struct {
	e     *execution
	began time.Time

	mu      sync.Mutex
	told    string // the obstacle that was told last
	reached bool   // a quorum has answered
	blocked error  // why the last call failed, nil if it did not
	holder  string // who holds the lease, as far as was seen
}

// acquire opens a session and waits for the lease. A session that is lost while
// it waits is replaced; the time to wait goes on.
func (e *execution) acquire(ctx context.Context) (*execSession, uint64, error) {
	w := &waiting{e: e, began: time.Now()}
	if e.limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, w.began.Add(e.wait+waitGrace), errWaitedEnough)
		defer cancel()
	}
	for {
		s, token, err := w.try(ctx)
		switch {
		case err == nil:
			return s, token, nil
		case errors.Is(context.Cause(ctx), errInterrupted):
			return nil, 0, e.interrupted(ctx, err)
		case !mends(err) && !errors.Is(err, errSessionLost) && !errors.Is(err, errNotFree):
			return nil, 0, err
		case errors.Is(err, errNotFree), w.over(), ctx.Err() != nil:
			return nil, 0, w.inVain(ctx)
		}
		w.pause(ctx)
	}
}

// errNotFree says that the lease was held by another for as long as it was waited for.
var errNotFree = errors.New("the lease was not free in time")

// try goes through one session.
func (w *waiting) try(ctx context.Context) (*execSession, uint64, error) {
	s, err := w.e.open(ctx)
	w.note(err)
	if err != nil {
		return nil, 0, err
	}
	token, err := s.acquire(ctx, w)
	lease := heldLease{key: w.e.key, token: token}
	if err == nil {
		err = s.confirm(ctx, lease)
		if errors.Is(err, errRevoked) {
			err = &exitError{exitLeaseLost, fmt.Errorf("the lease of %q was lost before the command began: %w", w.e.key, err)}
		}
	}
	if err != nil {
		s.close(lease, w.parting())
		return nil, 0, err
	}
	return s, token, nil
}

// left is how long the lease may still be waited for.
func (w *waiting) left() time.Duration {
	if !w.e.limited {
		return waitForever
	}
	return max(0, w.e.wait-time.Since(w.began))
}

func (w *waiting) over() bool { return w.left() == 0 }

// parting is how long a session may take to be given back.
func (w *waiting) parting() time.Duration {
	if !w.e.limited {
		return time.Second
	}
	return partingGrace + max(0, time.Until(w.began.Add(w.e.wait+waitGrace)))
}

func (w *waiting) pause(ctx context.Context) {
	t := time.NewTimer(min(250*time.Millisecond, w.left()))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// note takes the outcome of a call to the cluster.
func (w *waiting) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.reached, w.blocked = true, nil
		return
	}
	if w.blocked != nil && errors.Is(err, context.DeadlineExceeded) {
		return // what a deadline cut short says less than the failure before
	}
	w.blocked = err
	if mends(err) && !w.over() && w.told != "outage" {
		w.told = "outage"
		w.say("%v; waiting until that is over", words(err))
	}
}

func (w *waiting) say(format string, args ...any) {
	fmt.Fprintf(w.e.a.stderr, "miwnode exec: waiting for %q: %s\n", w.e.key, fmt.Sprintf(format, args...))
}

// tellHolder says who holds the lease when the wait is not over soon.
func (w *waiting) tellHolder(ctx context.Context, own string) {
	t := time.NewTimer(min(quietWait, w.left()))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return
	}
	holder := w.look(ctx, own)
	w.mu.Lock()
	defer w.mu.Unlock()
	if holder == "" || w.over() || ctx.Err() != nil || w.told == holder {
		return
	}
	w.told = holder
	w.say("%s", holder)
}

// look tells who holds the lease, "" if that is not known or nobody does.
func (w *waiting) look(ctx context.Context, own string) string {
	ctx, cancel := context.WithTimeout(ctx, min(w.e.a.timeout, time.Second))
	defer cancel()
	var page api.Leases
	req := api.Request{Method: "GET", Path: "/v1/leases", Query: url.Values{"key": {w.e.key}}}
	if _, err := w.e.client.Do(ctx, req, &page); err != nil || len(page.Leases) == 0 {
		return ""
	}
	text := ""
	switch l := page.Leases[0]; {
	case l.Holder == nil:
		text = fmt.Sprintf("it is barred (token %d): whoever held it may not have stopped yet", l.Token)
	case l.Holder.Name == own:
		return ""
	default:
		text = fmt.Sprintf("%s holds it (token %d, %s ago by node %s)", holderName(l.Holder), l.Token, age(l.AcquiredAt), l.Holder.NodeID)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holder = text
	return text
}

// inVain is the error of a wait that is over.
func (w *waiting) inVain(ctx context.Context) error {
	w.mu.Lock()
	reached, blocked := w.reached, w.blocked
	w.mu.Unlock()
	switch {
	case !reached && blocked != nil:
		return &exitError{exitUnreachable, fmt.Errorf("waited %v for %q: %w", w.e.wait, w.e.key, blocked)}
	case blocked != nil:
		return &exitError{exitWaitTimeout, fmt.Errorf("%q could not be had within %v: %s", w.e.key, w.e.wait, words(blocked))}
	}
	holder := w.look(ctx, "")
	if holder == "" {
		w.mu.Lock()
		holder = w.holder
		w.mu.Unlock()
	}
	if holder == "" {
		holder = "miwnode leases --key shows who holds it"
	}
	return &exitError{exitWaitTimeout, fmt.Errorf("%q was not free within %v: %s", w.e.key, w.e.wait, holder)}
}

// mends tells whether a failure may pass without a hand: no node, no quorum, a
// node that has too much to do.
func mends(err error) bool {
	if _, is := errors.AsType[*tls.CertificateVerificationError](err); is || errors.Is(err, http.ErrSchemeMismatch) {
		return false
	}
	return codeOf(err) == exitUnreachable || fsm.CodeOf(err) == fsm.CodeOverloaded
}
