package coord_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
)

var seeds = flag.Int("seeds", 60, "seeds of TestTorture")

// Ensures that whatever goes wrong, in whatever order, no two runs of a key
// overlap, tokens grow, and somebody runs when all is well again.
func TestTorture(t *testing.T) {
	for seed := range uint64(*seeds / scale) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			bubble(t, coordtest.Timing{Latency: time.Millisecond}, func(t *testing.T, w *coordtest.World) {
				(&torment{t: t, w: w, rng: rand.New(rand.NewPCG(seed, 1))}).run()
			})
		})
	}
}

// torment is one seed. Its own goroutine uses rng; the work draws from luck.
type torment struct {
	t   *testing.T
	w   *coordtest.World
	rng *rand.Rand
	o   observer
	all sync.WaitGroup

	mu    sync.Mutex
	calm  bool
	lives int
	slots [3]*life
}

// life is one process.
type life struct {
	name   string
	c      *coordtest.Instance
	cancel context.CancelFunc
	dead   chan struct{}
	once   sync.Once
	runs   []*coord.Runner
}

// kill ends the process, as kill -9 does.
func (tm *torment) kill(l *life) {
	l.once.Do(func() {
		tm.o.kill(l.name)
		close(l.dead)
		l.c.Crash()
		l.cancel()
	})
}

func (tm *torment) start(slot int) {
	tm.mu.Lock()
	tm.lives++
	l := &life{name: fmt.Sprint("i", tm.lives), dead: make(chan struct{})}
	tm.mu.Unlock()
	l.c = tm.w.Join(l.name)
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	tm.slots[slot] = l
	for _, key := range []string{"x", "y"} {
		luck := rand.New(rand.NewPCG(tm.rng.Uint64(), 2))
		r := coord.NewRunner(l.c, key, func(ctx context.Context, lease *coord.Lease) error { return tm.work(ctx, l, lease, luck) },
			func(c *coord.RunnerConfig) {
				c.Backoff = coord.Backoff{Initial: 200 * time.Millisecond, Max: 2 * time.Second}
				c.Drain.Timeout, c.Drain.KillTimeout, c.Drain.Resume = 3*time.Second, 2*time.Second, true
				c.LockDelay = time.Duration(luck.IntN(2)) * time.Second
				c.Rebalance = coord.Rebalance(luck.IntN(2))
				if luck.IntN(2) == 0 {
					c.Prepare = func(ctx context.Context) error {
						select {
						case <-time.After(time.Duration(luck.IntN(3000)) * time.Millisecond):
							return nil
						case <-ctx.Done():
							return ctx.Err()
						}
					}
				}
				c.Stuck.Exit = func(int) { tm.kill(l) }
			})
		l.runs = append(l.runs, r)
		tm.all.Go(func() { _ = r.Run(ctx) })
	}
}

// work is one run: it ends by itself, fails, obeys, dawdles or hangs.
func (tm *torment) work(ctx context.Context, l *life, lease *coord.Lease, luck *rand.Rand) error {
	defer tm.o.enter(l.name, lease)()
	tm.mu.Lock()
	calm := tm.calm
	tm.mu.Unlock()
	fate := luck.IntN(10)
	if calm {
		fate = 9
	}
	switch fate {
	case 0:
		return errWork
	case 1:
		panic(errWork)
	case 2, 3:
		select {
		case <-time.After(time.Duration(luck.IntN(5000)) * time.Millisecond):
		case <-ctx.Done():
		case <-l.dead:
		}
		return nil
	case 4: // hangs, for ever or a while
		select {
		case <-time.After(time.Duration(luck.IntN(60)) * time.Second):
		case <-l.dead:
		}
		return nil
	case 5: // dawdles
		select {
		case <-ctx.Done():
		case <-l.dead:
			return nil
		}
		select {
		case <-time.After(time.Duration(luck.IntN(1500)) * time.Millisecond):
		case <-l.dead:
		}
		return errors.New("late")
	}
	select {
	case <-ctx.Done():
	case <-lease.Draining():
	case <-l.dead:
	}
	return nil
}

func (tm *torment) run() {
	for slot := range tm.slots {
		tm.start(slot)
	}
	rng, w := tm.rng, tm.w
	for range 150 {
		l := tm.slots[rng.IntN(len(tm.slots))]
		select {
		case <-l.dead:
			tm.revive()
			continue
		default:
		}
		switch rng.IntN(13) {
		case 0, 1:
			l.c.Cut()
		case 2, 3:
			l.c.Heal()
		case 4:
			w.LoseQuorum()
		case 5:
			w.RestoreQuorum()
		case 6:
			l.c.Lag(time.Duration(rng.IntN(4)) * 2 * time.Second)
		case 7:
			_ = w.Drain(l.c.InstanceID())
		case 8:
			_ = w.Undrain(l.c.InstanceID())
		case 9:
			_ = w.Revoke([]string{"x", "y"}[rng.IntN(2)])
		case 10:
			fates := rand.New(rand.NewPCG(rng.Uint64(), 3))
			var mu sync.Mutex
			fate := func() coordtest.Fault {
				mu.Lock()
				defer mu.Unlock()
				if fates.IntN(2) == 0 {
					return coordtest.None
				}
				return coordtest.Fault(fates.IntN(6))
			}
			l.c.FaultKeepAlives(fate)
			l.c.Fault(func(coordtest.Op) coordtest.Fault { return fate() })
		case 11:
			l.c.Fault(nil)
			l.c.FaultKeepAlives(nil)
		case 12:
			switch rng.IntN(3) {
			case 0:
				tm.kill(l)
			case 1:
				l.c.Doubt()
			}
		}
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
	}

	tm.mu.Lock()
	tm.calm = true
	tm.mu.Unlock()
	w.RestoreQuorum()
	tm.revive()
	for _, l := range tm.slots {
		l.c.Lag(0)
		l.c.Fault(nil)
		l.c.FaultKeepAlives(nil)
		l.c.Heal()
		_ = w.Undrain(l.c.InstanceID())
	}
	time.Sleep(3 * time.Minute) // hanging runs, lock delays, TTLs, back-offs
	tm.revive()
	time.Sleep(time.Minute)
	synctest.Wait()
	for _, key := range []string{"x", "y"} {
		running := 0
		for _, r := range tm.o.of(key) {
			if r.end.IsZero() {
				running++
			}
		}
		if running != 1 {
			tm.t.Errorf("%d runs of %s in the end\n%s", running, key, tm.describe(key))
		}
	}
	for _, l := range tm.slots {
		l.cancel()
	}
	tm.all.Wait()
	tm.o.check(tm.t)
	for _, l := range tm.slots {
		equal(tm.t, len(l.c.Runs())+l.c.Claims(), 0, "runs and claims left of "+l.name)
	}
}

// describe says who holds and who waits for the key, and what the Runners do.
func (tm *torment) describe(key string) string {
	var b strings.Builder
	v := tm.w.View()
	if l, ok := v.Lease(key); ok {
		fmt.Fprintf(&b, "lease %v token %d of %v as %s in %s\n", l.State, l.Token, l.Who, l.Holder, l.SessionID)
	}
	for q := range v.Waiters(key) {
		fmt.Fprintf(&b, "waiter %s in %s\n", q.Holder, q.SessionID)
	}
	for s := range v.Sessions() {
		fmt.Fprintf(&b, "session %s of %s draining %v\n", s.ID, s.InstanceID, s.Draining())
	}
	for _, l := range tm.slots {
		fmt.Fprintf(&b, "%s: %d claims, runs %+v\n", l.name, l.c.Claims(), l.c.Runs())
		for _, r := range l.runs {
			fmt.Fprintf(&b, "%s: %+v\n", l.name, r.Status())
		}
	}
	return b.String()
}

// revive starts a new process for each that has ended.
func (tm *torment) revive() {
	for slot, l := range tm.slots {
		select {
		case <-l.dead:
			tm.start(slot)
		default:
		}
	}
}
