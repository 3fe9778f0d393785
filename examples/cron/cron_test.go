package cron_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/examples/cron"
	"github.com/miwnode/miwnode/miwtest"
)

func TestReport(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		obs := c.Observe("report")
		c.Deploy(func(ctx context.Context, n *miwtest.Node) error {
			return cron.Run(ctx, n, "report", time.Minute, func(ctx context.Context, l *coord.Lease, due time.Time) error {
				defer obs.Begin(l)()
				return nil // send it
			})
		})
		obs.WaitCount(1)
		c.Crash(c.WaitOwner("cron:report"))
		obs.WaitCount(2) // somebody else sends the next one
		c.Restart(c.WaitOwner("cron:report"))
		obs.WaitCount(3)
	})
}

// outbox is where reports go.
type outbox struct {
	mu   sync.Mutex
	sent []time.Time
}

func (o *outbox) send(_ context.Context, _ *coord.Lease, due time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent = append(o.sent, due)
	return nil
}

// Through five minutes of faults every report is sent at its time or
// left out, and none is sent twice.
func TestReport_Chaos(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		var o outbox
		c.Deploy(func(ctx context.Context, n *miwtest.Node) error {
			return cron.Run(ctx, n, "report", 5*time.Second, o.send)
		})
		c.Chaos(5 * time.Minute)
		o.mu.Lock()
		defer o.mu.Unlock()
		for i, due := range o.sent[1:] {
			if !due.After(o.sent[i]) {
				t.Errorf("the report of %v was sent after that of %v", due, o.sent[i])
			}
		}
		if n := len(o.sent); n < 30 {
			t.Errorf("%d of 60 reports were sent", n)
		}
	})
}
