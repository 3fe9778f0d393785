package coord_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// Ensures that a drain, and a node that closes, keep work going until its next
// owner is ready, within bounds, and stop it at once where there is none. All in a bubble.
func TestCoordinator_DrainWaitsForPrepare(t *testing.T) {
	takes := func(d time.Duration) func(*coord.CoordinatorConfig) {
		return func(c *coord.CoordinatorConfig) {
			c.Prepare = func(ctx context.Context, _ coord.Workload) error {
				select {
				case <-time.After(d):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
	}
	drain := func(w *coordtest.World, a *mate) { _ = w.Drain(a.InstanceID()) }
	leave := func(_ *coordtest.World, a *mate) { a.Leave() }
	leaveWhole := func(_ *coordtest.World, a *mate) { // the program's context is that of node and Coordinator
		a.stop()
		a.Leave()
	}
	for _, tc := range []struct {
		name  string
		ends  func(w *coordtest.World, a *mate)
		takes time.Duration // Prepare does
		alone bool          // there is nobody else
		asked time.Duration // after the beginning of the end, the run is
		gap   time.Duration // until the next run begins
	}{
		{name: "drained", ends: drain, takes: 2 * time.Second, asked: 2 * time.Second},
		{name: "node closes", ends: leave, takes: 2 * time.Second, asked: 2 * time.Second},
		{name: "node and Coordinator end together", ends: leaveWhole, takes: 2 * time.Second, asked: 2 * time.Second},
		{name: "drained, and nobody gets ready in time", ends: drain, takes: time.Minute, asked: 15 * time.Second, gap: 45 * time.Second},
		{name: "node closes, and nobody gets ready in time", ends: leave, takes: time.Minute, asked: 15 * time.Second, gap: 45 * time.Second},
		{name: "node and Coordinator end together, and nobody gets ready in time", ends: leaveWhole, takes: time.Minute, asked: 15 * time.Second, gap: 45 * time.Second},
		{name: "drained alone", ends: drain, takes: 2 * time.Second, alone: true},
		{name: "node closes alone", ends: leave, takes: 2 * time.Second, alone: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
				m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1"), Assigner: coord.Primary{}}, takes(tc.takes))
				var asked atomic.Int64
				var start time.Time
				m.work = func(ctx context.Context, who string, _ coord.Workload, l *coord.Lease) error {
					select {
					case <-l.Draining():
						if who == "a" {
							asked.Store(int64(time.Since(start)))
						}
					case <-ctx.Done():
					}
					return nil
				}
				a := m.join("a")
				if !tc.alone {
					m.join("b")
				}
				time.Sleep(2 * time.Minute) // prepared, and running
				start = time.Now()
				tc.ends(w, a)
				time.Sleep(2 * time.Minute)
				equal(t, time.Duration(asked.Load()), tc.asked, "asked to finish")
				runs := m.watch.of("g/w1")
				if tc.alone {
					equal(t, len(runs), 1, "runs")
					return
				}
				equal(t, len(runs), 2, "runs")
				equal(t, runs[1].start.Sub(runs[0].end), tc.gap, "gap")
				m.watch.check(t)
			})
		})
	}

	t.Run("taken back", func(t *testing.T) {
		bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
			m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1"), Assigner: coord.Primary{}, MaxMoves: 2}, takes(10*time.Second))
			var cause atomic.Value
			m.work = func(ctx context.Context, _ string, _ coord.Workload, l *coord.Lease) error {
				<-l.Draining()
				select {
				case <-ctx.Done(): // what moves at once is told first, and cut at the same instant
					cause.Store(context.Cause(ctx))
				case <-time.After(1):
				}
				return nil
			}
			a, b := m.join("a"), m.join("b")
			time.Sleep(time.Minute)
			for range 2 {
				drain(w, a)
				time.Sleep(5 * time.Second) // b gets ready
				if err := w.Undrain(a.InstanceID()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				equal(t, m.watch.running(), "a: w1", "who runs it")
				equal(t, len(m.watch.of("g/w1")), 1, "runs")
			}
			// A move that comes later is a move, not a drain.
			do(t, w, &fsm.MoveWorkload{Group: "g", Workload: "w1", ToInstance: b.InstanceID(), By: "op"})
			time.Sleep(time.Minute)
			equal(t, m.watch.running(), "b: w1", "who runs it")
			if err, _ := cause.Load().(error); !errors.Is(err, coord.ErrMoved) {
				t.Errorf("the run ended by %v", err)
			}
			m.watch.check(t)
		})
	})
}
