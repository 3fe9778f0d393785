package jepsen_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
	"github.com/miwnode/miwnode/jepsen"
	"github.com/miwnode/miwnode/node"
)

// simEndpoint is one life of a simulated node to clients with a session of
// their own, doing what the HTTP API does. What it was asked when its process
// died is uncertain; what it is asked while it is paused waits.
type simEndpoint struct {
	s    *simCluster
	name string
	l    *simLife
	rng  *rand.Rand
}

// endpoint returns the way in through a node for one client.
func (s *simCluster) endpoint(name string, rng *rand.Rand) jepsen.Endpoint {
	if l := s.lifeOf(name); l != nil {
		return &simEndpoint{s: s, name: name, l: l, rng: rng}
	}
	return nil
}

// through runs call as a request to the process: it waits while the process is
// paused, before and after, and hears nothing from a dead one.
func (e *simEndpoint) through(ctx context.Context, call func(ctx context.Context) error) error {
	awake := func() bool {
		e.s.mu.Lock()
		paused := e.s.nodes[e.name].paused
		if e.s.nodes[e.name].life != e.l {
			paused = nil
		}
		e.s.mu.Unlock()
		if paused == nil {
			return true
		}
		select {
		case <-paused:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if !awake() {
		return fsm.Errorf(fsm.CodeNotReady, "never sent: the process stands still")
	}
	select {
	case <-e.l.dead:
		return fsm.Errorf(fsm.CodeNotReady, "connection refused")
	default:
	}
	cctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := make(chan struct{})
	defer close(gone)
	go func() {
		select {
		case <-e.l.dead:
			cancel()
		case <-gone:
		}
	}()
	err := call(cctx)
	select {
	case <-e.l.dead:
		return fsm.Errorf(fsm.CodeUncertain, "connection reset")
	default:
	}
	if !awake() {
		return fsm.Errorf(fsm.CodeUncertain, "no answer: the process stands still")
	}
	return err
}

func (e *simEndpoint) submit(ctx context.Context, op fsm.Op) (r *fsm.Result, err error) {
	err = e.through(ctx, func(ctx context.Context) error {
		if r, err = e.l.n.Submit(ctx, op); err != nil {
			return err
		}
		return fsm.ResultErr(r)
	})
	return r, err
}

// Open implements jepsen.Endpoint.
func (e *simEndpoint) Open(ctx context.Context, name string, ttl time.Duration, instance bool) (string, time.Duration, error) {
	id := fmt.Sprintf("%016x%016x", e.rng.Uint64(), e.rng.Uint64())
	op := &fsm.OpenSession{SessionId: id, TtlMs: ttl.Milliseconds(), Name: name, ViaNodeId: e.name}
	if instance {
		op.InstanceId = name
	}
	_, err := e.submit(ctx, op)
	return id, ttl - max(e.s.cfg.timing.Margin, ttl/10), err
}

// KeepAlive implements jepsen.Endpoint.
func (e *simEndpoint) KeepAlive(ctx context.Context, session string) (trusted time.Duration, leases []jepsen.Kept, err error) {
	err = e.through(ctx, func(ctx context.Context) error {
		a, err := e.l.n.KeepAlive(ctx, session)
		trusted = a.TrustedFor
		for _, l := range a.Leases {
			leases = append(leases, jepsen.Kept{Key: l.Key, Token: l.Token, Group: l.Group, Held: l.State == fsm.Held})
		}
		return err
	})
	return trusted, leases, err
}

// Close implements jepsen.Endpoint.
func (e *simEndpoint) Close(ctx context.Context, session string) error {
	_, err := e.submit(ctx, &fsm.CloseSession{SessionId: session, Reason: fsmpb.EndReason_END_REASON_CLOSED})
	return err
}

// Acquire implements jepsen.Endpoint.
func (e *simEndpoint) Acquire(ctx context.Context, key, session, holder string) (token, heldBy uint64, err error) {
	r, err := e.submit(ctx, &fsm.Acquire{Key: key, SessionId: session, Holder: holder})
	return r.GetToken(), r.GetHeldBy().GetToken(), err
}

// Release implements jepsen.Endpoint.
func (e *simEndpoint) Release(ctx context.Context, key string, token uint64, session string) error {
	_, err := e.submit(ctx, &fsm.Release{Key: key, Token: token, SessionId: session})
	return err
}

// Read implements jepsen.Endpoint.
func (e *simEndpoint) Read(ctx context.Context, key string) (token uint64, err error) {
	err = e.through(ctx, func(ctx context.Context) error {
		v, _, err := e.l.n.Read(ctx, node.Linearizable)
		if err != nil {
			return err
		}
		if l, ok := v.Lease(key); ok && l.State != fsm.Barred {
			token = l.Token
		}
		return nil
	})
	return token, err
}

// Join implements jepsen.Endpoint.
func (e *simEndpoint) Join(ctx context.Context, group, session string) error {
	_, err := e.submit(ctx, &fsm.JoinGroup{Group: group, SessionId: session, All: true})
	return err
}

// LeaveGroup implements jepsen.Endpoint.
func (e *simEndpoint) LeaveGroup(ctx context.Context, group, session string) error {
	_, err := e.submit(ctx, &fsm.LeaveGroup{Group: group, SessionId: session})
	return err
}

// logger is silent unless MIW_SIM_LOG names a file to append to.
func (s *simCluster) logger() *slog.Logger {
	path := os.Getenv("MIW_SIM_LOG")
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil
	}
	return slog.New(slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Duration("t", s.r.Now())
		}
		return a
	}}))
}
