package worker_test

import (
	"testing"

	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// A worker is loaded, started, stopped, reloaded and deleted.
func TestCatalog_Life(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b, c := w.three(w.script(nil))
		x := a.create(worker.Spec{Name: "mail", Source: "f"})
		equal(t, x.State, fsm.WorkerLoading, "state as made")
		equal(t, x.Etag, 1, "etag as made")
		w.untilState(x.ID, fsm.WorkerStopped)
		w.wantEvents(x.ID, "created", "loaded")

		if _, err := b.Start(t.Context(), x.ID); err != nil {
			t.Fatal(err)
		}
		w.untilRuns(x.ID)
		if _, err := c.Stop(t.Context(), x.ID); err != nil {
			t.Fatal(err)
		}
		w.until("it stops", func() bool { return w.seen.where(x.ID) == "" })
		equal(t, w.worker(x.ID).State, fsm.WorkerStopped, "state after stop")

		if _, err := a.Start(t.Context(), x.ID); err != nil {
			t.Fatal(err)
		}
		where := w.untilRuns(x.ID)
		got, err := c.Get(x.ID)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, got.InstanceID, where, "instance")

		if _, err := b.Reload(t.Context(), x.ID, worker.Source{Text: "g"}); err != nil {
			t.Fatal(err)
		}
		w.until("the new code runs", func() bool {
			runs := w.seen.of(x.ID)
			return runs[len(runs)-1].source == "g"
		})
		runs := w.seen.of(x.ID)
		equal(t, runs[len(runs)-1].token, got.Token, "token after the reload")
		equal(t, runs[len(runs)-1].instance, where, "instance after the reload")

		if err := a.Delete(t.Context(), x.ID); err != nil {
			t.Fatal(err)
		}
		w.until("it stops", func() bool { return w.seen.where(x.ID) == "" })
		_, err = a.Get(x.ID)
		wantErr(t, err, fsm.ErrNotFound)
		w.wantEvents(x.ID, "created", "loaded", "started", "stopped", "started", "reloading", "loaded", "deleted")
	})
}
