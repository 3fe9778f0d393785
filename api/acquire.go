package api

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// acquire gets a lease, at once or after a wait in the key's queue.
func (c *call) acquire() (any, int, error) {
	var req AcquireRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	if req.Key != "" && strings.TrimSpace(req.Key) == "" {
		return nil, 0, invalid("key must not be blank")
	}
	if strings.HasPrefix(req.Key, "miw/") {
		return nil, 0, invalid("key %q: names that begin with miw/ are the product's own", req.Key)
	}
	if req.Wait < 0 || time.Duration(req.Wait) > maxTimeout {
		return nil, 0, invalid("wait is %v: it must lie between 0s and %v", req.Wait, maxTimeout)
	}
	delay, err := millis("lock_delay", req.LockDelay, maxTimeout)
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	caller, hangUp := context.WithCancel(c.r.Context())
	defer hangUp()
	c.r = c.r.WithContext(caller)
	ctx, cancel := context.WithTimeout(c.r.Context(), c.within(time.Duration(req.Wait)+defaultTimeout))
	defer cancel()
	c.ctx = ctx

	// Watch before asking: a grant in between must not be missed.
	wake, stop := c.node.Watch(fsm.GrantTopic(req.Key, req.SessionID, req.Holder), fsm.SessionTopic(req.SessionID))
	defer stop()
	w := waiting{c: c, req: req, ask: rand.Uint64() | 1, hangUp: hangUp}
	res, err := c.propose(&fsm.Acquire{
		Key: req.Key, SessionId: req.SessionID, Holder: req.Holder, Wait: req.Wait > 0, LockDelayMs: delay, Ask: w.ask,
	})
	if err != nil {
		w.forget(err)
		return nil, 0, heldBy(c.node.View(), err)
	}
	token := res.GetToken()
	if res.GetQueued() {
		if token, err = w.wait(wake, time.Until(began.Add(time.Duration(req.Wait)))); err != nil {
			return nil, 0, err
		}
	}
	return w.deliver(token)
}

// waiting is an acquire that has been asked for and not yet answered.
type waiting struct {
	c   *call
	req AcquireRequest
	ask uint64 // the number by which it can be taken back
	// hangUp ends the context of the caller.
	hangUp context.CancelFunc
}

// wait returns the token once the local copy shows the grant.
func (w *waiting) wait(wake <-chan struct{}, left time.Duration) (uint64, error) {
	timer := time.NewTimer(left)
	defer timer.Stop()
	there := time.NewTicker(hangUpLook)
	defer there.Stop()
	for {
		if token, over, err := w.look(); over || err != nil {
			return token, err
		}
		select {
		case <-wake:
		case <-there.C:
			if hungUp(w.c.r.Context()) {
				w.c.w.Header().Set("Connection", "close") // what it sent behind this is not wanted either
				w.hangUp()
			}
		case <-timer.C:
			return 0, w.leave(fsm.Errorf(fsm.CodeWaitTimeout, "%q was not free within %v", w.req.Key, w.req.Wait))
		case <-w.c.node.Closing():
			return 0, w.leave(fsm.Errorf(fsm.CodeClosing, "this node is leaving; ask another one"))
		case <-w.c.ctx.Done():
			if w.c.r.Context().Err() != nil {
				w.giveBack()
				return 0, w.c.r.Context().Err()
			}
			return 0, w.leave(fsm.Errorf(fsm.CodeWaitTimeout, "%q was not free within the call's timeout", w.req.Key))
		}
	}
}

// look tells what the local copy says of the wait.
func (w *waiting) look() (token uint64, over bool, err error) {
	view := w.c.node.View()
	l, held := view.Lease(w.req.Key)
	if held && l.SessionID == w.req.SessionID && l.Holder == w.req.Holder && (l.State == fsm.Held || l.State == fsm.Transferring) {
		return l.Token, true, nil
	}
	if view.Waiting(w.req.Key, w.req.SessionID, w.req.Holder) {
		return 0, false, nil
	}
	if _, live := view.Session(w.req.SessionID); !live {
		return 0, true, fsm.Errorf(fsm.CodeSessionExpired, "the session ended while it waited for %q", w.req.Key)
	}
	return 0, true, fsm.Errorf(fsm.CodeStaleToken, "the wait for %q is over: its grant came and went, or another call of the same holder left the queue", w.req.Key)
}

// deliver answers with the token; a caller that is gone by then can't have seen it.
func (w *waiting) deliver(token uint64) (any, int, error) {
	if w.c.r.Context().Err() != nil {
		w.giveBack()
		return nil, 0, w.c.r.Context().Err()
	}
	w.c.h.answer(w.c.w, http.StatusOK, Acquired{Revision: w.c.node.View().Revision(), Key: w.req.Key, Token: token})
	// The caller may hang up as soon as it has read the answer, so from here on
	// only a failed write says that it has not.
	if err := http.NewResponseController(w.c.w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		w.giveBack()
	}
	return nil, 0, nil
}

// leave ends the wait before answering why. If the queue can't be left for
// certain, that is the answer: the place, or a grant, may be there still.
func (w *waiting) leave(why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.c.ctx), w.left())
	defer cancel()
	if err := w.cancel(ctx); err != nil {
		uncertain := fsm.Errorf(fsm.CodeUncertain, "%v; the queue could not be left: %v", why, err)
		w.forget(uncertain)
		return uncertain
	}
	return why
}

// forget goes on giving back, behind an answer of uncertain, what the call may
// have got: its caller will ask anew. One that named an Idempotency-Key asks
// for the same again, and finds it.
func (w *waiting) forget(err error) {
	if fsm.CodeOf(err) == fsm.CodeUncertain && (w.c.r.Header.Get("Idempotency-Key") == "" || w.c.r.Context().Err() != nil) {
		go w.giveBack()
	}
}

// left is what remains of the call's time, and a second where nothing does.
func (w *waiting) left() time.Duration {
	deadline, _ := w.c.ctx.Deadline()
	return max(time.Until(deadline), time.Second)
}

// giveBack leaves the queue and returns a grant that nobody has seen, in the
// background of a caller that is gone.
func (w *waiting) giveBack() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.c.ctx), giveBackTimeout)
	defer cancel()
	if err := w.cancel(ctx); err != nil {
		w.c.h.log.Warn("place in a queue not given back; the session's end will", "key", w.req.Key, "error", err)
	}
}

// cancel takes back the call's own asking: neither a grant from before it nor
// one that another call of the holder waits for or was answered with.
func (w *waiting) cancel(ctx context.Context) error {
	_, err := w.c.h.propose(ctx, &fsm.CancelWait{
		Key: w.req.Key, SessionId: w.req.SessionID, Holder: w.req.Holder, Ask: w.ask,
	})
	switch fsm.CodeOf(err) {
	case fsm.CodeSessionExpired, fsm.CodeNotFound:
		return nil
	}
	return err
}
