package worker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// createMany creates n workers that start, by 16 callers of the catalogs in
// turn, and returns their IDs.
func createMany(ctx context.Context, n int, create func(caller int, s worker.Spec) (worker.Worker, error)) ([]string, error) {
	const callers = 16
	ids := make([]string, n)
	errs := make(chan error, callers)
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := c; i < n; i += callers {
				x, err := create(c, worker.Spec{Name: fmt.Sprint("worker ", i), Runtime: worker.RuntimeFunc, Source: "f", Start: true})
				if err != nil {
					errs <- err
					return
				}
				ids[i] = x.ID
			}
		})
	}
	all.Wait()
	close(errs)
	return ids, <-errs
}

// A thousand workers that sixteen callers create all run, spread over the
// instances, and cost few entries each, and none at rest. All in a bubble.
func TestCatalog_Thousand(t *testing.T) {
	bubbleWith(t, coordtest.Timing{Latency: time.Millisecond}, func(t *testing.T, w *world) {
		a, b, c := w.three(w.script(nil))
		members := []*member{a, b, c}
		before, began := w.Entries(), time.Now()
		ids, err := createMany(t.Context(), 1000, func(n int, s worker.Spec) (worker.Worker, error) {
			return members[n%3].Create(t.Context(), s)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("created after %v", time.Since(began))
		w.until("all run", func() bool {
			for _, id := range ids {
				if w.seen.where(id) == "" {
					return false
				}
			}
			return true
		})
		took, entries := time.Since(began), w.Entries()-before
		t.Logf("all run after %v of the bubble's time, with %d entries", took, entries)
		if entries > 6500 {
			t.Errorf("%d entries for 1000 workers", entries)
		}
		count := make(map[string]int)
		for _, id := range ids {
			count[w.seen.where(id)]++
			equal(t, w.worker(id).State, fsm.WorkerRunning, "state")
		}
		for name, n := range count {
			if n < 333 || n > 334 {
				t.Errorf("%s runs %d of 1000", name, n)
			}
		}
		entries = w.Entries()
		time.Sleep(time.Hour)
		equal(t, w.Entries(), entries, "entries after an hour in which nothing changes")
	})
}

// broken are Artifacts that can get hold of nothing.
type broken struct{ fault *worker.Error }

func (b broken) Fetch(context.Context, string, string) (worker.Code, error) { return nil, b.fault }

// That this node can't keep code is no fault of who creates a worker of it.
func TestCatalog_CreateWithoutRoom(t *testing.T) {
	for fault, want := range map[*worker.Error]error{
		worker.Errorf(worker.TypeFetchFailed, "no space left on device"): fsm.ErrInternal,
		worker.Errorf(worker.TypeTooLarge, "it has 1 GiB"):               fsm.ErrInvalidArgument,
	} {
		bubble(t, func(t *testing.T, w *world) {
			a := w.joinWith("a", func(c *worker.Config) {
				c.Runtimes, c.Artifacts = []worker.Runtime{w.script(nil)("a")}, broken{fault}
			})
			_, err := a.Create(t.Context(), worker.Spec{Name: "x", Runtime: worker.RuntimeExec, Source: "./x"})
			wantErr(t, err, want)
		})
	}
}
