package worker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

var runRows = []row{
	{"108_changes_arrive_anywhere", func(t *testing.T, w *world) {
		a, b, c := w.three(w.script(nil))
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		where := w.untilRuns(id)
		others := slices.DeleteFunc([]*member{a, b, c}, func(m *member) bool { return m.InstanceID() == where })
		if _, err := others[0].Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		w.until("it stops", func() bool { return w.seen.where(id) == "" })
		if _, err := others[1].Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		w.untilRuns(id)
		if err := others[0].Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		w.until("it stops", func() bool { return w.seen.where(id) == "" && holder(w, id) == "" })
	}},
	{"109_owner_cannot_be_reached", func(t *testing.T, w *world) {
		a, b, c := w.three(w.script(nil))
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		owner := w.member(w.untilRuns(id))
		others := slices.DeleteFunc([]*member{a, b, c}, func(m *member) bool { return m == owner })
		owner.Cut()
		began := time.Now()
		w.until("another has it", func() bool { where := w.seen.where(id); return where != "" && where != owner.InstanceID() })
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("another runs it after %v", took)
		}
		equal(t, len(w.seen.of(id)), 2, "runs")
		if _, err := others[0].Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		w.until("it stops", func() bool { return w.seen.where(id) == "" })
		owner.Heal()
		time.Sleep(time.Minute)
		equal(t, len(w.seen.of(id)), 2, "runs, once it can be reached again")
	}},
	{"110_full_restart", func(t *testing.T, w *world) {
		a, b, c := w.three(w.stateful)
		states := make(map[string]fsm.WorkerState)
		for i := range 100 {
			states[w.in(allStates[i%len(allStates)], a)] = allStates[i%len(allStates)]
		}
		for _, m := range []*member{a, b, c} {
			m.kill()
		}
		runs := make(map[string]int)
		for id := range states {
			runs[id] = len(w.seen.of(id))
		}
		for _, m := range []*member{b, c} {
			w.back(m)
		}
		w.until("all that were to run do", func() bool {
			for id, state := range states {
				if state == fsm.WorkerRunning && w.seen.where(id) == "" || state == fsm.WorkerLoading && w.driver(id) == "" {
					return false
				}
			}
			return true
		})
		time.Sleep(time.Minute)
		for id, state := range states {
			equal(t, w.worker(id).State, state, "state")
			equal(t, w.seen.where(id) != "", state == fsm.WorkerRunning, fmt.Sprint("whether one runs that is ", state))
			if state != fsm.WorkerRunning { // those may have moved, too
				equal(t, len(w.seen.of(id)), runs[id], fmt.Sprint("runs of one that is ", state))
			}
		}
	}},
	// Recovery is what the group does anyway, so who recovers may die at any time,
	// and nothing is run twice or forgotten.
	{"112_who_recovers_may_die", func(t *testing.T, w *world) {
		a, b, c := w.three(w.stateful)
		states := make(map[string]fsm.WorkerState)
		for i := range 40 {
			states[w.in(allStates[i%len(allStates)], a)] = allStates[i%len(allStates)]
		}
		for _, m := range []*member{a, b, c} {
			m.kill()
		}
		runs := func() (n int) {
			for id := range states {
				if w.seen.where(id) != "" {
					n++
				}
			}
			return n
		}
		first := w.back(a)
		w.until("recovery is under way", func() bool { return runs() > 0 })
		first.kill()
		w.back(b)
		w.back(c)
		w.untilWithin(time.Minute, "all that were to run do", func() bool {
			for id, state := range states {
				if state == fsm.WorkerRunning && w.seen.where(id) == "" {
					return false
				}
			}
			return true
		})
		time.Sleep(time.Minute)
		for id, state := range states {
			equal(t, w.worker(id).State, state, "state")
			equal(t, w.seen.where(id) != "", state == fsm.WorkerRunning, fmt.Sprint("whether one runs that is ", state))
		}
	}},
	{"113_failing_runs", func(t *testing.T, w *world) {
		var starts []time.Duration
		var began time.Time
		a := w.joinWith("a", func(c *worker.Config) {
			c.Runtimes = []worker.Runtime{w.script(func(s *scripted) {
				s.run = func(ctx context.Context, p worker.Program, r worker.Run) error {
					if p.Source == "g" {
						return untilAsked(ctx, r)
					}
					if began.IsZero() {
						began = time.Now()
					}
					starts = append(starts, time.Since(began))
					return errors.New("no disk")
				}
			})("a")}
			c.RunRestarts, c.RunBackoff = 3, coord.Backoff{Initial: 200 * time.Millisecond, Jitter: -1}
		})
		other := a.create(worker.Spec{Source: "g", Start: true}).ID
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		w.untilState(id, fsm.WorkerFailed)
		time.Sleep(time.Hour)
		equal(t, fmt.Sprint(starts), "[0s 200ms 600ms 1.4s]", "runs")
		equal(t, *w.worker(id).Error, fsm.WorkerError{Type: "run_failed", Message: "no disk"}, "error")
		w.wantEvents(id, "created", "loaded", "started", "failed")
		equal(t, w.seen.where(other), a.InstanceID(), "where the other worker runs")
		equal(t, len(w.seen.of(other)), 1, "its runs")
	}},
	{"113_runs_that_end_well", func(t *testing.T, w *world) {
		a, _, _ := w.three(w.script(func(s *scripted) {
			s.run = func(ctx context.Context, p worker.Program, r worker.Run) error {
				if p.Source == "g" && r.Number == 3 {
					return untilAsked(ctx, r)
				}
				return nil
			}
		}))
		once := a.create(worker.Spec{Source: "f", Start: true}).ID
		never := a.create(worker.Spec{Source: "f", Start: true, Restart: worker.RestartNever}).ID
		always := a.create(worker.Spec{Source: "g", Start: true, Restart: worker.RestartAlways}).ID
		w.until("the third run of the last", func() bool { return len(w.seen.of(always)) == 3 })
		time.Sleep(time.Minute)
		for _, id := range []string{once, never} {
			equal(t, w.worker(id).State, fsm.WorkerStopped, "state")
			equal(t, len(w.seen.of(id)), 1, "runs")
			w.wantEvents(id, "created", "loaded", "started", "stopped")
		}
		equal(t, w.worker(always).State, fsm.WorkerRunning, "state")
		equal(t, len(w.seen.of(always)), 3, "runs")
	}},
	{"113_panics_and_ended_goroutines", func(t *testing.T, w *world) {
		a := w.joinWith("a", func(c *worker.Config) {
			c.Runtimes = []worker.Runtime{w.script(func(s *scripted) {
				s.run = func(_ context.Context, p worker.Program, _ worker.Run) error {
					if p.Source == "f" {
						panic("boom")
					}
					runtime.Goexit()
					return nil
				}
			})("a")}
			c.RunRestarts = 1
		})
		f, g := a.create(worker.Spec{Source: "f", Start: true}).ID, a.create(worker.Spec{Source: "g", Start: true}).ID
		w.untilState(f, fsm.WorkerFailed)
		w.untilState(g, fsm.WorkerFailed)
		equal(t, *w.worker(f).Error, fsm.WorkerError{Type: "panicked", Message: "panic: boom"}, "error")
		equal(t, w.worker(g).Error.Message, "the run ended its goroutine instead of returning", "error")
		equal(t, len(w.seen.of(f)), 2, "runs")
	}},
	{"113_code_that_one_instance_cannot_load", func(t *testing.T, w *world) {
		var broken sync.Map
		a, b, c := w.three(w.script(func(s *scripted) {
			s.load = func(context.Context, worker.Program) error {
				if _, is := broken.Load(s.instance); is {
					return worker.Errorf(worker.TypeFetchFailed, "no route")
				}
				return nil
			}
		}))
		id := a.create(worker.Spec{Source: "f"}).ID
		w.untilState(id, fsm.WorkerStopped)
		broken.Store(a.InstanceID(), true)
		broken.Store(b.InstanceID(), true)
		if _, err := a.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		equal(t, w.untilRuns(id), c.InstanceID(), "where it runs")
		w.wantEvents(id, "created", "loaded", "started")
	}},
	{"114_hooks", func(t *testing.T, w *world) {
		var mu sync.Mutex
		count := make(map[string]int)
		a := w.joinWith("a", func(c *worker.Config) {
			c.Runtimes = []worker.Runtime{w.stateful("a")}
			c.RunRestarts = 2
			c.Hooks.Loaded = func(_, runtime string, err *worker.Error, _ time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				count[fmt.Sprint(runtime, " loaded ", err == nil)]++
			}
			c.Hooks.Returned = func(_, runtime, outcome string, _ time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				count[runtime+" "+outcome]++
				panic("boom") // concerns nobody
			}
		})
		w.in(fsm.WorkerLoadFailed, a)
		w.in(fsm.WorkerFailed, a)
		id := w.in(fsm.WorkerRunning, a)
		if _, err := a.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		w.until("it stops", func() bool { return holder(w, id) == "" })
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		equal(t, fmt.Sprint(count), "map[func failed:1 func loaded false:1 func loaded true:4 func stopped:1]", "what hooks were told")
	}},
}
