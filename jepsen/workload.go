package jepsen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// Load says what the clients of a run do.
type Load struct {
	// Keys are those that clients with sessions of their own fight for.
	Keys []string
	TTL  time.Duration
	// Renew is the interval of their keep-alives.
	Renew time.Duration
	// Hold is the longest that one of them holds a key.
	Hold time.Duration
	// CallTimeout is the longest deadline of a call.
	CallTimeout time.Duration
}

// Client is a client with a session of its own, as programs in other languages
// are: it acquires and releases, reads, repeats releases whose answer was lost
// (and some that were answered) long after, and now and then goes away without
// a word. It trusts its session as the contract says: from the sending of the
// last confirmed keep-alive, on its own clock.
type Client struct {
	Name string
	Load Load
	R    *Recorder
	Rng  *rand.Rand // owned by the client
	// Rate is that of the client's clock.
	Rate float64
	// Nodes and Endpoint are the ways in; an endpoint is nil while its node is down.
	Nodes    []string
	Endpoint func(node string) Endpoint

	stream *Stream
	life   int // sessions opened so far
	late   []releaseArgs
	// unsettled are releases without an answer. Their keys are not asked for:
	// the same holder would be given the same grant again if the release has not
	// been applied yet, and lose it under its feet when it is.
	unsettled map[string]releaseArgs
}

type releaseArgs struct {
	key     string
	token   uint64
	session string
}

// session is one session of a client.
type session struct {
	id    string
	mu    sync.Mutex
	until time.Duration            // trusted, by the observer's clock
	held  map[uint64]time.Duration // of a lease, by token, as answers listed it as held
	gone  chan struct{}            // closed when the cluster said that it is gone
	stop  func()                   // ends its keep-alives and waits for that
}

// confirmed is how long the lease of the token is trusted: from the sending of
// the last keep-alive whose answer listed it as held.
func (s *session) confirmed(token uint64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[token]
}

func (s *session) trusted() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until
}

func (s *session) lost() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

// Run works until ctx ends, then stops what it holds.
func (c *Client) Run(ctx context.Context) {
	var s *session
	defer func() {
		if s != nil {
			s.stop()
		}
	}()
	for ctx.Err() == nil {
		if s == nil || s.lost() || s.trusted() <= c.R.Now() {
			if s != nil {
				s.stop()
			}
			if s = c.open(ctx); s == nil {
				sleep(ctx, draw(c.Rng, 100*time.Millisecond, time.Second))
			}
			continue
		}
		switch d := c.Rng.IntN(100); {
		case d < 55:
			c.own(ctx, s, c.Load.Keys[c.Rng.IntN(len(c.Load.Keys))])
		case d < 85:
			c.read(ctx, c.Load.Keys[c.Rng.IntN(len(c.Load.Keys))])
		case d < 95:
			if len(c.late) > 0 {
				i := c.Rng.IntN(len(c.late))
				c.release(ctx, c.late[i])
				c.late = append(c.late[:i], c.late[i+1:]...)
			}
		case d < 97:
			c.close(ctx, s)
			s.stop()
			s = nil
		case d < 98:
			// It goes away without a word: the session runs out.
			s.stop()
			s = nil
		}
		sleep(ctx, draw(c.Rng, 10*time.Millisecond, 400*time.Millisecond))
	}
}

// via picks a node that is up; nil if none is.
func (c *Client) via() (node string, e Endpoint) {
	for _, i := range c.Rng.Perm(len(c.Nodes)) {
		if e = c.Endpoint(c.Nodes[i]); e != nil {
			return c.Nodes[i], e
		}
	}
	return "", nil
}

func (c *Client) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, draw(c.Rng, c.Load.CallTimeout/4, c.Load.CallTimeout))
}

// local turns a duration on the client's clock into the observer's.
func (c *Client) local(d time.Duration) time.Duration { return time.Duration(float64(d) / c.Rate) }

func (c *Client) open(ctx context.Context) *session {
	node, e := c.via()
	if e == nil {
		return nil
	}
	c.life++
	who := fmt.Sprintf("%s.%d", c.Name, c.life)
	if c.stream == nil {
		c.stream = c.R.Stream(who)
	}
	c.stream.who = who
	dctx, cancel := c.deadline(ctx)
	defer cancel()
	sent := c.R.Now()
	p := c.stream.Call(Op{Node: node, Kind: KindOpen})
	id, trusted, err := e.Open(dctx, who, c.Load.TTL, false)
	settle(p, err, 0, 0)
	if err != nil {
		return nil
	}
	s := &session{id: id, until: sent + c.local(trusted), held: map[uint64]time.Duration{}, gone: make(chan struct{})}
	kctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.keepAlive(kctx, s)
	}()
	s.stop = func() { stop(); <-done }
	return s
}

// keepAlive renews s until ctx ends or the session is gone. It draws nothing
// from the client's generator, which belongs to another goroutine.
func (c *Client) keepAlive(ctx context.Context, s *session) {
	for i := 0; ; i++ {
		if !sleep(ctx, c.local(c.Load.Renew)) {
			return
		}
		e := c.Endpoint(c.Nodes[i%len(c.Nodes)])
		if e == nil {
			continue
		}
		sent := c.R.Now()
		kctx, cancel := context.WithTimeout(ctx, c.Load.Renew)
		trusted, leases, err := e.KeepAlive(kctx, s.id)
		cancel()
		switch {
		case errors.Is(err, fsm.ErrSessionExpired):
			close(s.gone)
			return
		case err == nil:
			s.mu.Lock()
			until := sent + c.local(trusted)
			s.until = max(s.until, until)
			for _, l := range leases {
				if l.Held {
					s.held[l.Token] = max(s.held[l.Token], until)
				}
			}
			s.mu.Unlock()
		}
	}
}

// own tries to get key, works under it for a while, and gives it back.
func (c *Client) own(ctx context.Context, s *session, key string) {
	if r, ok := c.unsettled[key]; ok && r.session == s.id {
		c.release(ctx, r)
		return
	}
	node, e := c.via()
	if e == nil {
		return
	}
	dctx, cancel := c.deadline(ctx)
	defer cancel()
	p := c.stream.Call(Op{Node: node, Kind: KindAcquire, Key: key})
	token, heldBy, err := e.Acquire(dctx, key, s.id, c.stream.who)
	settle(p, err, token, heldBy)
	if err != nil {
		return
	}
	// A grant adds no trust: what the session has left must do until an answer
	// lists the lease.
	first := s.trusted()
	if s.lost() || first <= c.R.Now() {
		return
	}
	trusted := func() time.Duration { return max(first, s.confirmed(token)) }
	run := c.R.Start(Run{Proc: c.stream.who, Key: key, Token: token, Own: true}, nil)
	until := c.R.Now() + draw(c.Rng, 0, c.Load.Hold)
	repeated := c.repeatLate(ctx, key, token, s.id)
	defer repeated()
	for now := c.R.Now(); now < until && now < trusted() && !s.lost() && ctx.Err() == nil; now = c.R.Now() {
		hctx, cancel := context.WithTimeout(ctx, min(until, trusted())-now)
		select {
		case <-s.gone:
		case <-hctx.Done():
		}
		cancel()
	}
	run.Stop()
	c.release(ctx, releaseArgs{key, token, s.id})
}

// repeatLate sends an old release of key once more, while the client holds it
// anew, as a retry that was under way all the time would come. The returned
// function waits for its answer.
func (c *Client) repeatLate(ctx context.Context, key string, token uint64, session string) (wait func()) {
	// Not of the present grant, which a release that failed leaves to it.
	i := slices.IndexFunc(c.late, func(r releaseArgs) bool { return r.key == key && r.session == session && r.token != token })
	if i < 0 || c.Rng.IntN(3) > 0 {
		return func() {}
	}
	r := c.late[i]
	c.late = slices.Delete(c.late, i, i+1)
	node, e := c.via()
	if e == nil {
		return func() {}
	}
	dctx, cancel := c.deadline(ctx)
	p := c.R.Stream(c.stream.who).Call(Op{Node: node, Kind: KindRelease, Key: r.key, Token: r.token})
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		settle(p, e.Release(dctx, r.key, r.token, r.session), 0, 0)
	}()
	return func() { <-done }
}

func (c *Client) release(ctx context.Context, r releaseArgs) {
	node, e := c.via()
	if e == nil {
		return
	}
	dctx, cancel := c.deadline(ctx)
	defer cancel()
	p := c.stream.Call(Op{Node: node, Kind: KindRelease, Key: r.key, Token: r.token})
	err := e.Release(dctx, r.key, r.token, r.session)
	switch settle(p, err, 0, 0) {
	case Uncertain:
		if c.unsettled == nil {
			c.unsettled = map[string]releaseArgs{}
		}
		c.unsettled[r.key] = r
		c.late = append(c.late, r)
		return
	case Failed:
		return // as it was before
	case OK:
		if c.Rng.IntN(4) == 0 {
			c.late = append(c.late, r)
		}
	}
	if c.unsettled[r.key] == r {
		delete(c.unsettled, r.key)
	}
}

func (c *Client) read(ctx context.Context, key string) {
	node, e := c.via()
	if e == nil {
		return
	}
	dctx, cancel := c.deadline(ctx)
	defer cancel()
	p := c.stream.Call(Op{Node: node, Kind: KindRead, Key: key})
	token, err := e.Read(dctx, key)
	settle(p, err, token, 0)
}

func (c *Client) close(ctx context.Context, s *session) {
	node, e := c.via()
	if e == nil {
		return
	}
	dctx, cancel := c.deadline(ctx)
	defer cancel()
	p := c.stream.Call(Op{Node: node, Kind: KindClose})
	settle(p, e.Close(dctx, s.id), 0, 0)
}

// settled is the outcome that err tells of: done, refused, surely not applied, or
// uncertain.
func settled(err error) Outcome {
	switch fsm.CodeOf(err) {
	case fsm.CodeDone:
		return OK
	case fsm.CodeNoQuorum, fsm.CodeNotReady, fsm.CodeClosing, fsm.CodeOverloaded:
		return Failed
	case fsm.CodeUncertain, fsm.CodeInternal: // a bare context error has no code
		return Uncertain
	}
	return Refused
}

// settle ends p as err says.
func settle(p *Pending, err error, got, heldBy uint64) Outcome {
	code, outcome := fsm.CodeOf(err).String(), settled(err)
	switch outcome {
	case OK:
		p.OK(got)
	case Failed:
		p.Failed(code)
	case Uncertain:
		p.Uncertain(code)
	case Refused:
		p.Refused(code, heldBy)
	}
	return outcome
}

// sleep waits for d and tells whether ctx still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
