package worker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// interleaved is, in a bubble, a worker whose load meets requests from all instances.
type interleaved struct {
	id   string
	what string

	mu   sync.Mutex
	last uint64 // revision of the last request that was not refused
	want fsm.WorkerState
	gone bool
	etag uint64 // the last that it had, of one that is gone
}

func (x *interleaved) did(revision uint64, want fsm.WorkerState) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if revision > x.last {
		x.last, x.want = revision, want
	}
}

// Ten thousand loads meet starts, stops and deletes from three instances at
// every distance: the last request that was recorded counts, whichever of it
// and the outcome of the load came first, what is deleted stays so, and every
// transition has exactly one event.
func TestCatalog_Interleavings(t *testing.T) {
	const waves, wave = 100, 100
	bubbleWith(t, coordtest.Timing{Latency: time.Millisecond}, func(t *testing.T, w *world) {
		rng := rand.New(rand.NewPCG(1, 2))
		a, b, c := w.three(w.script(func(s *scripted) {
			s.load = func(ctx context.Context, p worker.Program) error {
				time.Sleep(time.Duration(p.Name[0]-'0') * time.Millisecond)
				return nil
			}
		}))
		members := []*member{a, b, c}
		for n := range waves / scale {
			for _, m := range members {
				m.Lag(time.Duration(rng.IntN(4)) * time.Millisecond)
			}
			begin := fsm.AfterRevision(w.View().Revision())
			var all sync.WaitGroup
			workers := make([]*interleaved, wave)
			for i := range workers {
				x := &interleaved{what: []string{"start", "start", "stop start", "start stop", "start start stop", "start delete"}[rng.IntN(6)]}
				workers[i] = x
				s := worker.Spec{Name: fmt.Sprint(rng.IntN(8)), Runtime: worker.RuntimeFunc, Source: "f"}
				creator := members[rng.IntN(3)]
				type request struct {
					m     *member
					after time.Duration
				}
				var requests [3]request
				for k := range requests {
					requests[k] = request{members[rng.IntN(3)], time.Duration(rng.IntN(20)) * time.Millisecond}
				}
				all.Go(func() {
					made := creator.create(s)
					x.id = made.ID
					var asked sync.WaitGroup
					k := 0
					for what := range strings.FieldsSeq(x.what) {
						r := requests[k]
						k++
						asked.Go(func() {
							time.Sleep(r.after)
							x.request(t, r.m, what)
						})
					}
					asked.Wait()
				})
			}
			all.Wait()
			w.until(fmt.Sprintf("wave %d settles", n), func() bool {
				for _, x := range workers {
					if !x.settled(w) {
						return false
					}
				}
				return true
			})
			told := w.eventsSince(begin)
			for _, x := range workers {
				x.wantOneEach(t, w, told)
				if !x.gone {
					w.do(&fsm.DeleteWorker{WorkerId: x.id})
				}
			}
			w.until("all are gone", func() bool {
				for _, x := range workers {
					if holder(w, x.id) != "" || w.seen.where(x.id) != "" {
						return false
					}
				}
				return true
			})
			equal(t, w.View().WorkerCount(), 0, "workers")
		}
	})
}

func (x *interleaved) request(t *testing.T, m *member, what string) {
	var op fsm.Op
	want := fsm.WorkerRunning
	switch what {
	case "start":
		op = &fsm.StartWorker{WorkerId: x.id}
	case "stop":
		op, want = &fsm.StopWorker{WorkerId: x.id}, fsm.WorkerStopped
	case "delete":
		op = &fsm.DeleteWorker{WorkerId: x.id}
	}
	res, err := m.Submit(context.Background(), op)
	if err == nil {
		err = fsm.ResultErr(res)
	}
	if fsm.CodeOf(err) == fsm.CodeNotFound && x.what == "start delete" {
		return
	}
	if err != nil {
		t.Errorf("%s of %s: %v", what, x.what, err)
		return
	}
	if what == "delete" {
		x.mu.Lock()
		x.gone, x.etag = true, res.Total
		x.mu.Unlock()
		return
	}
	x.did(res.Revision, want)
}

// settled tells whether the worker is what the last request asked for.
func (x *interleaved) settled(w *world) bool {
	running := w.seen.where(x.id) != ""
	if x.gone {
		return !running && holder(w, x.id) == ""
	}
	return w.worker(x.id).State == x.want && running == (x.want == fsm.WorkerRunning)
}

// eventsSince are the events since then, by key.
func (w *world) eventsSince(since fsm.EventID) map[string][]*fsm.Event {
	events, whole := w.View().Events(since)
	if !whole {
		w.t.Fatal("events are missing")
	}
	all := map[string][]*fsm.Event{}
	for e := range events {
		all[e.Key] = append(all[e.Key], e)
	}
	return all
}

// transitions are those of a worker that is loaded once, from a state to the next
// by what the event of each is to be. A load that ends in a start is two.
var transitions = map[[2]string]string{
	{"", "worker.created"}:                 "loading",
	{"loading", "worker.start_requested"}:  "to start",
	{"to start", "worker.start_withdrawn"}: "loading",
	{"loading", "worker.loaded"}:           "stopped",
	{"to start", "worker.loaded"}:          "loaded, to start",
	{"loaded, to start", "worker.started"}: "running",
	{"stopped", "worker.started"}:          "running",
	{"running", "worker.stopped"}:          "stopped",
	{"loading", "worker.deleted"}:          "gone",
	{"to start", "worker.deleted"}:         "gone",
	{"stopped", "worker.deleted"}:          "gone",
	{"running", "worker.deleted"}:          "gone",
}

// wantOneEach holds the events of the worker against its record: they lead from
// nothing to what it is, and are as many as its etag counts changes. Those that
// have no event are the beginnings of attempts to load.
func (x *interleaved) wantOneEach(t *testing.T, w *world, told map[string][]*fsm.Event) {
	t.Helper()
	state, changes := "", uint64(0)
	var names []string
	for _, e := range told[fsm.WorkerKey(x.id)] {
		name := e.Type.String()
		if e.Worker == nil {
			continue // of its lease
		}
		names = append(names, name)
		next, legal := transitions[[2]string{state, name}]
		if !legal {
			t.Fatalf("%s: %s can't follow in %q", x.what, name, names)
		}
		if state != "loaded, to start" && next != "gone" {
			changes++
		}
		state = next
	}
	etag, least, most := x.etag, uint64(0), uint64(len(told[fsm.LoadKey(x.id)]))
	want := "gone"
	if !x.gone {
		rec := w.worker(x.id)
		etag, least, most, want = rec.Etag, rec.Attempt-1, rec.Attempt-1, rec.State.String()
	}
	equal(t, state, want, "the state that the events of "+x.what+" lead to")
	if changes+least > etag || changes+most < etag {
		t.Errorf("%s: etag %d, so that many changes, of which from %d to %d have no event; events are %q", x.what, etag, least, most, names)
	}
}
