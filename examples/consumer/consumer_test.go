package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/examples/consumer"
	"github.com/miwnode/miwnode/miwtest"
)

var partitions = []string{"p0", "p1", "p2", "p3", "p4", "p5"}

func TestConsumer(t *testing.T) {
	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
		q := newQueue()
		c.Deploy(func(ctx context.Context, n *miwtest.Node) error {
			return consumer.Run(ctx, n, partitions, q, func(_ context.Context, l *coord.Lease, partition, message string) error {
				defer c.Observe(partition).Begin(l)()
				return q.note(message)
			})
		})
		c.WaitOwned("queue/p0", "queue/p1", "queue/p2", "queue/p3", "queue/p4", "queue/p5")
		c.Until(time.Minute, "two on each", func() bool { return len(c.Keys(0)) == 2 && len(c.Keys(1)) == 2 && len(c.Keys(2)) == 2 })
		c.Crash(1)
		c.Until(time.Minute, "all on two", func() bool { return len(c.Keys(0))+len(c.Keys(2)) == 6 })
		c.Start(1)
		c.Chaos(2 * time.Minute)
		q.check(t, 90)
	})
}

// queue has a message every second in each partition.
type queue struct {
	start time.Time

	mu     sync.Mutex
	offset map[string]int
	token  map[string]uint64
	done   map[string]int // how often each message was handled
}

func newQueue() *queue {
	return &queue{start: time.Now(), offset: map[string]int{}, token: map[string]uint64{}, done: map[string]int{}}
}

func (q *queue) Next(ctx context.Context, partition string, offset int) (string, error) {
	t := time.NewTimer(time.Until(q.start.Add(time.Duration(offset) * time.Second)))
	defer t.Stop()
	select {
	case <-t.C:
		return message(partition, offset), nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func message(partition string, offset int) string { return fmt.Sprintf("%s/%d", partition, offset) }

func (q *queue) Offset(_ context.Context, partition string) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.offset[partition], nil
}

var errOvertaken = errors.New("a newer owner has committed")

func (q *queue) Commit(_ context.Context, partition string, offset int, token uint64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if token < q.token[partition] {
		return errOvertaken
	}
	q.token[partition], q.offset[partition] = token, offset
	return nil
}

func (q *queue) note(message string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.done[message]++
	return nil
}

// check holds that every message below the offsets was handled, and that at
// least so many were in each partition.
func (q *queue) check(t *testing.T, least int) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range partitions {
		if q.offset[p] < least {
			t.Errorf("%d messages of partition %s are done, want %d", q.offset[p], p, least)
		}
		for i := range q.offset[p] {
			if m := message(p, i); q.done[m] == 0 {
				t.Errorf("message %s was committed and never handled", m)
			}
		}
	}
}
