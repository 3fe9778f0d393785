package coord_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// Ensures, for many histories of joins, leaves, drains, crashes, cuts, failures,
// moves, pins and pauses, that no workload ever runs twice at once, and that once
// things calm down each has one owner and the load is even; in a bubble.
func TestCoordinator_Torture(t *testing.T) {
	for seed := range 60 / scale {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			bubble(t, coordtest.Timing{Latency: time.Millisecond}, func(t *testing.T, w *coordtest.World) {
				tortureGroup(t, w, rand.New(rand.NewPCG(uint64(seed), 3)))
			})
		})
	}
}

func tortureGroup(t *testing.T, w *coordtest.World, rng *rand.Rand) {
	const workloads = 24
	m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(workloads), Rebalance: coord.Rebalance(rng.IntN(2)), MaxMoves: rng.IntN(6)},
		planning(coord.Planning{RestartGrace: time.Duration(rng.IntN(2)) * 5 * time.Second, Backoff: coord.Backoff{Max: 5 * time.Second}}))
	if rng.IntN(2) == 0 {
		m.options = append(m.options, func(c *coord.CoordinatorConfig) {
			c.Prepare = func(ctx context.Context, x coord.Workload) error {
				if len(x.Key)%2 == 0 {
					return nil
				}
				select {
				case <-time.After(300 * time.Millisecond):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
	}
	var calm atomic.Bool
	m.work = func(ctx context.Context, _ string, _ coord.Workload, l *coord.Lease) error {
		n := l.Token() * 7919
		fails := time.After(time.Duration(n%40_000) * time.Millisecond)
		if n%5 != 0 || calm.Load() {
			fails = nil
		}
		select {
		case <-l.Draining():
			time.Sleep(min(time.Duration(n%700)*time.Millisecond, time.Second/2)) // within the stop budget
			return nil
		case <-ctx.Done():
			return nil
		case <-fails:
			return errBroken
		}
	}
	var live []*mate
	next := 0
	join := func() {
		live = append(live, m.join(fmt.Sprintf("i%02d", next)))
		next++
	}
	take := func() *mate {
		n := rng.IntN(len(live))
		a := live[n]
		live = append(live[:n], live[n+1:]...)
		return a
	}
	one := func() *mate { return live[rng.IntN(len(live))] }
	workload := func() string { return fmt.Sprintf("w%05d", rng.IntN(workloads)) }
	try := func(op fsm.Op) { _, _ = w.Propose(op) } // refusals are among the histories
	for range 3 {
		join()
	}
	for range 60 {
		switch rng.IntN(14) {
		case 0, 1:
			if len(live) < 7 {
				join()
			}
		case 2:
			if len(live) > 2 {
				a := take()
				a.stop()
			}
		case 3:
			if len(live) > 2 {
				m.crash(take())
			}
		case 4:
			if len(live) > 2 {
				a := take()
				m.crash(a)
				live = append(live, m.coordinate(w.Restart(a.Instance, rng.IntN(2) == 0), a.name, m.group))
			}
		case 5:
			_ = w.Drain(one().InstanceID())
		case 6, 7:
			_ = w.Undrain(one().InstanceID())
		case 8:
			a := one()
			a.Cut()
			time.AfterFunc(time.Duration(rng.IntN(15_000))*time.Millisecond, a.Heal)
		case 9, 10:
			try(&fsm.MoveWorkload{Group: "g", Workload: workload(), ToInstance: one().InstanceID(), By: "op"})
		case 11:
			try(pinOf(workload(), one().InstanceID()))
		case 12:
			try(&fsm.SetPause{Group: "g", Workload: workload(), Paused: rng.IntN(2) == 0, By: "op"})
		case 13:
			one().Lag(time.Duration(rng.IntN(500)) * time.Millisecond)
		}
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
	}

	calm.Store(true)
	for _, x := range many(workloads) {
		try(&fsm.SetPause{Group: "g", Workload: x.Key, By: "op"})
		try(pinOf(x.Key, ""))
	}
	time.Sleep(30 * time.Second)
	for _, a := range live {
		a.Heal()
		a.Lag(0)
		_ = w.Undrain(a.InstanceID())
	}
	time.Sleep(3 * time.Minute)
	m.watch.check(t)
	equal(t, total(&m.watch), workloads, "runs")
	least, most := workloads, 0
	for _, a := range live {
		n := len(m.watch.byOwner()[a.name])
		least, most = min(least, n), max(most, n)
	}
	if most-least > 1 {
		t.Errorf("loads: %s", m.watch.count())
	}
	entries := w.Entries()
	time.Sleep(10 * time.Minute)
	equal(t, w.Entries()-entries, 0, "entries while nothing changes")
}
