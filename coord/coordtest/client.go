package coordtest

import (
	"context"
	"fmt"

	"github.com/miwnode/miwnode/fsm"
)

// Client is an instance that came over the API: a session that its own process
// renews, and nothing else. What it is granted, it learns from a View.
type Client struct {
	w       *World
	session string
	id      string
	end     context.CancelFunc
	done    chan struct{}
}

// Client opens a session with an instance of that name. Without a quorum, or
// where the name is taken, it returns nil.
func (w *World) Client(name string) *Client {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || !w.hasQuorum() {
		return nil
	}
	w.sessions++
	c := &Client{w: w, session: fmt.Sprintf("%032x", w.sessions), id: name + ":client", done: make(chan struct{})}
	res := w.commit(&fsm.OpenSession{SessionId: c.session, TtlMs: w.timing.TTL.Milliseconds(), Name: name, InstanceId: c.id, ViaNodeId: "coordtest"})
	if fsm.ResultErr(res) != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	w.clients = append(w.clients, c)
	go c.renewals(ctx)
	return c
}

func (c *Client) renewals(ctx context.Context) {
	defer close(c.done)
	for sleep(ctx, c.w.timing.Renew) == nil {
		c.w.mu.Lock()
		quorum := c.w.hasQuorum()
		c.w.mu.Unlock()
		if quorum {
			c.w.renew(c.session)
		}
	}
}

// SessionID and InstanceID name its session and its instance.
func (c *Client) SessionID() string  { return c.session }
func (c *Client) InstanceID() string { return c.id }

// Stop ends the renewals, as the end of the process does.
func (c *Client) Stop() {
	c.end()
	<-c.done
}

// Leases are the grants of its session.
func (c *Client) Leases() (all []*fsm.Lease) {
	for l := range c.w.View().SessionLeases(c.session) {
		all = append(all, l)
	}
	return all
}

// Entries is the length of the log.
func (w *World) Entries() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.log)
}

// Cordon marks the instance cordoned, as an operator would, Uncordon takes the
// mark away.
func (w *World) Cordon(instanceID string) error   { return w.mark(instanceID, fsm.MarkCordon) }
func (w *World) Uncordon(instanceID string) error { return w.mark(instanceID, fsm.MarkUncordon) }

// marked does the leader's duty for pins and pauses that run out. w.mu is held.
func (w *World) marked(m fsm.WorkloadMark) {
	if m.Mark == nil || m.ExpiresIn <= 0 {
		return
	}
	w.duty(m.ExpiresIn, func(term uint64) fsm.Op {
		if m.Kind == fsm.PinMark {
			return &fsm.SetPin{Group: m.Group, Workload: m.Workload, MarkedRevision: m.Revision, Term: term}
		}
		return &fsm.SetPause{Group: m.Group, Workload: m.Workload, MarkedRevision: m.Revision, Term: term}
	})
}

// Restart is a new start of the process of a, which is dead, on the same node.
// proved says that the start proves that death: the former session ends in the
// entry that opens the new one.
func (w *World) Restart(a *Instance, proved bool) *Instance {
	a.Crash()
	return w.start(newInstance(w, a.name, a.boot+1, proved))
}
