package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// Every node sees that the runs of a worker fail, how often in a row, why, and when
// the next one begins; and that it is over once one goes well.
func TestFailing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		until := time.Now().Add(21 * time.Second)
		r := w.script(func(s *scripted) {
			s.run = func(ctx context.Context, _ worker.Program, r worker.Run) error {
				if time.Now().After(until) {
					return untilAsked(ctx, r)
				}
				return worker.Errorf(worker.TypeExited, "code 3:\nsorry")
			}
		})
		member := func(name string) *member {
			return w.joinWith(name, func(c *worker.Config) {
				c.Runtimes = []worker.Runtime{r(name)}
				c.RunBackoff = coord.Backoff{Initial: 10 * time.Second, Max: 10 * time.Second, Jitter: -1}
			})
		}
		a, b := member("a"), member("b")
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		get := func() worker.Worker {
			got, err := b.Get(id)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		first := time.Now()
		w.until("the second failure is known", func() bool { f := get().Failing; return f != nil && f.Count == 2 })
		got := get()
		f := got.Failing
		equal(t, got.State, fsm.WorkerRunning, "state")
		equal(t, f.Error, fsm.WorkerError{Type: "exited", Message: "code 3:\nsorry"}, "error")
		equal(t, f.Instance.InstanceID, got.InstanceID, "where")
		equal(t, time.Unix(0, f.At).Sub(first).Round(time.Second), 10*time.Second, "when")
		equal(t, time.Duration(f.Next-f.At), 10*time.Second, "time until the next run")

		w.until("it goes well", func() bool { return w.seen.where(id) != "" })
		equal(t, get().Failing.Count, 3, "failures while it has just begun to go well")
		w.untilWithin(5*time.Minute, "that is forgotten", func() bool { return get().Failing == nil })
		equal(t, time.Since(until).Round(time.Minute), 2*time.Minute, "time until it is forgotten")
	})
}

// Failures are not those of the code that a reload brings, nor of a run that was
// begun anew.
func TestFailing_Over(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join("a", w.script(func(s *scripted) {
			s.run = func(ctx context.Context, p worker.Program, r worker.Run) error {
				if p.Source == "f" {
					return errors.New("no good")
				}
				return untilAsked(ctx, r)
			}
		})("a"))
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		is := func(failing bool) {
			t.Helper()
			w.until("it is, or is not, failing", func() bool { got, err := a.Get(id); return err == nil && (got.Failing != nil) == failing })
		}
		is(true)
		got, _ := a.Get(id)
		equal(t, got.Failing.Error, fsm.WorkerError{Type: "run_failed", Message: "no good"}, "error")
		if _, err := a.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		is(false)
		if _, err := a.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		is(true)
		if _, err := a.Reload(t.Context(), id, worker.Source{Text: "g"}); err != nil {
			t.Fatal(err)
		}
		is(false)
	})
}

// One that no instance can load where it is to run says so, too.
func TestFailing_Load(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		loads := 0
		a := w.join("a", w.script(func(s *scripted) {
			s.load = func(context.Context, worker.Program) error {
				if loads++; loads == 1 {
					return nil // it is good, but when it is to be run
				}
				return worker.Errorf(worker.TypeInvalidModule, "no room")
			}
		})("a"))
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		w.until("it fails", func() bool { got, err := a.Get(id); return err == nil && got.Failing != nil })
		got, _ := a.Get(id)
		equal(t, got.Failing.Error.Type, "load_failed", "type")
		equal(t, got.Failing.Instance.InstanceID, "a:1:coordtest", "where")
	})
}
