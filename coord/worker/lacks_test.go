package worker_test

import (
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// A worker that nobody can load or run says so at once, and who has what.
func TestLacks(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		plain := w.Join("plain") // it runs no workers
		made, err := worker.NewClient(plain).Create(t.Context(), worker.Spec{Name: "x", Runtime: worker.RuntimeFunc, Source: "f", Start: true})
		if err != nil {
			t.Fatal(err)
		}
		lacks := func(want string) {
			t.Helper()
			var got worker.Worker
			w.untilWithin(10*time.Second, want, func() bool { got, err = worker.NewClient(plain).Get(made.ID); return err == nil && got.Lacks == want })
		}
		lacks("no node runs workers: it waits for one that does and provides func:f")
		w.join("a", w.script(func(s *scripted) { s.names = []string{"g", "h"} })("a"))
		lacks("no node provides func:f, it waits for one that does: a has func:g and func:h")
		b := w.join("b", w.script(nil)("b"))
		lacks("")
		w.untilRuns(made.ID)
		if err := w.Cordon(b.InstanceID()); err != nil {
			t.Fatal(err)
		}
		lacks("") // it stays where it is
		if err := w.Drain(b.InstanceID()); err != nil {
			t.Fatal(err)
		}
		lacks("every node that provides func:f takes no work: b drains")
		w.do(&fsm.StopWorker{WorkerId: made.ID})
		lacks("")
	})
}
