package worker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// gate holds loads up until it opens.
type gate chan struct{}

func (g gate) load(ctx context.Context, _ worker.Program) error {
	select {
	case <-g:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// driver is the instance that has the lease of a load, "" for none.
func (w *world) driver(id string) string {
	l, ok := w.View().Lease(fsm.LoadKey(id))
	if !ok {
		return ""
	}
	return l.Who.InstanceID
}

// untilDriven waits until an attempt to load has begun.
func (w *world) untilDriven(id string) *member {
	w.t.Helper()
	w.until("somebody drives the load", func() bool { return w.driver(id) != "" && w.worker(id).DriverToken != 0 })
	return w.member(w.driver(id))
}

var loadRows = []row{
	{"083_create_does_not_wait_for_the_load", func(t *testing.T, w *world) {
		open := make(gate)
		a, _, _ := w.three(w.script(func(s *scripted) { s.load = open.load }))
		began := time.Now()
		x := a.create(worker.Spec{Source: "f"})
		equal(t, time.Since(began), 0, "time that create took")
		equal(t, x.State, fsm.WorkerLoading, "state")
		time.Sleep(time.Minute)
		equal(t, w.worker(x.ID).State, fsm.WorkerLoading, "state after a minute")
		close(open)
		w.untilState(x.ID, fsm.WorkerStopped)
	}},
	{"084_loaded_once_with_one_event", func(t *testing.T, w *world) {
		a, _, _ := w.three(w.script(nil))
		x := a.create(worker.Spec{Name: "mail", Source: "f"})
		time.Sleep(time.Minute)
		w.wantEvents(x.ID, "created", "loaded")
		events, _ := w.View().Events(fsm.EventID{})
		for e := range events {
			if e.Type == fsm.EventWorkerLoaded {
				equal(t, e.Key, fsm.WorkerKey(x.ID), "key of the event")
				equal(t, e.Worker.Name, "mail", "name in the event")
				equal(t, e.Worker.State, fsm.WorkerStopped, "state in the event")
				equal(t, e.Who.InstanceID, a.InstanceID(), "who loaded it")
			}
		}
	}},
	{"085_load_failed", func(t *testing.T, w *world) {
		var broken sync.Map
		broken.Store("f", true)
		a, b, _ := w.three(w.script(func(s *scripted) {
			s.load = func(_ context.Context, p worker.Program) error {
				if _, is := broken.Load(p.Source); is {
					return worker.Errorf(worker.TypeInvalidModule, "no magic number")
				}
				return nil
			}
		}))
		x := a.create(worker.Spec{Source: "f", Start: true})
		w.untilState(x.ID, fsm.WorkerLoadFailed)
		rec := w.worker(x.ID)
		equal(t, *rec.Error, fsm.WorkerError{Type: "invalid_module", Message: "no magic number"}, "error")
		equal(t, rec.Tries, 1, "tries")
		equal(t, rec.StartRequested, true, "start requested")
		time.Sleep(time.Minute)
		equal(t, len(w.seen.of(x.ID)), 0, "runs")
		w.wantEvents(x.ID, "created", "load_failed")

		_, err := b.Start(t.Context(), x.ID)
		wantErr(t, err, fsm.ErrWrongState)
		if err == nil || !strings.Contains(err.Error(), "reload") {
			t.Errorf("error %v does not name reload", err)
		}
		broken.Clear()
		if _, err := b.Reload(t.Context(), x.ID, worker.Source{}); err != nil {
			t.Fatal(err)
		}
		w.untilRuns(x.ID)
		w.wantEvents(x.ID, "created", "load_failed", "reloading", "loaded", "started")
	}},
	{"085_a_load_is_tried_again_where_that_is_of_use", func(t *testing.T, w *world) {
		tries := 0
		a := w.join("a", w.script(func(s *scripted) {
			s.load = func(context.Context, worker.Program) error {
				if tries++; tries < 3 {
					return errors.New("not now")
				}
				return nil
			}
		})("a"))
		began := time.Now()
		x := a.create(worker.Spec{Source: "f"})
		w.untilState(x.ID, fsm.WorkerStopped)
		equal(t, time.Since(began).Round(time.Millisecond), 600*time.Millisecond, "time for three tries")
		equal(t, w.worker(x.ID).Tries, 3, "tries")
		w.wantEvents(x.ID, "created", "loaded")
	}},
	{"085_tries_end", func(t *testing.T, w *world) {
		a := w.join("a", w.script(func(s *scripted) {
			s.load = func(context.Context, worker.Program) error { return errors.New("never") }
		})("a"))
		x := a.create(worker.Spec{Source: "f"})
		w.untilState(x.ID, fsm.WorkerLoadFailed)
		equal(t, w.worker(x.ID).Tries, 3, "tries")
		equal(t, *w.worker(x.ID).Error, fsm.WorkerError{Type: "load_failed", Message: "never"}, "error")
	}},
	{"085_a_load_that_panics_fails", func(t *testing.T, w *world) {
		a := w.join("a", w.script(func(s *scripted) {
			s.load = func(_ context.Context, p worker.Program) error {
				if p.Source == "f" {
					panic("boom")
				}
				return nil
			}
		})("a"))
		x, y := a.create(worker.Spec{Source: "f"}), a.create(worker.Spec{Source: "g", Start: true})
		w.untilState(x.ID, fsm.WorkerLoadFailed)
		equal(t, *w.worker(x.ID).Error, fsm.WorkerError{Type: "panicked", Message: "panic: boom"}, "error")
		w.untilRuns(y.ID)
	}},
	{"085_a_load_that_hangs_fails_in_time", func(t *testing.T, w *world) {
		open := make(gate)
		defer close(open)
		a := w.join("a", w.script(func(s *scripted) {
			s.load = func(_ context.Context, p worker.Program) error {
				if p.Source == "f" {
					<-open // whatever becomes of its context
				}
				return nil
			}
		})("a"))
		var hung []string
		began := time.Now()
		for range worker.DefaultMaxLoads {
			hung = append(hung, a.create(worker.Spec{Source: "f"}).ID)
		}
		w.untilWithin(6*time.Minute, "the loads are given up", func() bool { return w.worker(hung[0]).State == fsm.WorkerLoadFailed })
		equal(t, time.Since(began).Round(time.Second), 5*time.Minute, "time until then")
		equal(t, *w.worker(hung[0]).Error, fsm.WorkerError{Type: "load_timeout", Message: "not loaded within 5m0s"}, "error")
		w.untilRuns(a.create(worker.Spec{Source: "g", Start: true}).ID)
	}},
	{"086_start_while_loading", func(t *testing.T, w *world) {
		open := make(gate)
		a, b, _ := w.three(w.script(func(s *scripted) { s.load = open.load }))
		x := a.create(worker.Spec{Source: "f"})
		w.untilDriven(x.ID)
		if _, err := b.Start(t.Context(), x.ID); err != nil {
			t.Fatal(err)
		}
		equal(t, w.worker(x.ID).State, fsm.WorkerLoading, "state")
		close(open)
		w.untilRuns(x.ID)
		w.wantEvents(x.ID, "created", "start_requested", "loaded", "started")
	}},
	{"089_start_withdrawn_while_loading", func(t *testing.T, w *world) {
		open := make(gate)
		a, b, _ := w.three(w.script(func(s *scripted) { s.load = open.load }))
		x := a.create(worker.Spec{Source: "f", Start: true})
		w.untilDriven(x.ID)
		if _, err := b.Stop(t.Context(), x.ID); err != nil {
			t.Fatal(err)
		}
		close(open)
		w.untilState(x.ID, fsm.WorkerStopped)
		time.Sleep(time.Minute)
		equal(t, len(w.seen.of(x.ID)), 0, "runs")
		w.wantEvents(x.ID, "created", "start_withdrawn", "loaded")
	}},
	{"092_driver_dies", func(t *testing.T, w *world) {
		open := make(gate)
		a, b, _ := w.three(w.script(func(s *scripted) { s.load = open.load }))
		x := a.create(worker.Spec{Source: "f"})
		w.untilDriven(x.ID)
		if _, err := b.Start(t.Context(), x.ID); err != nil {
			t.Fatal(err)
		}
		w.untilDriven(x.ID).kill()
		close(open)
		w.untilRuns(x.ID)
		w.wantEvents(x.ID, "created", "start_requested", "loaded", "started")
	}},
	{"092_everybody_dies", func(t *testing.T, w *world) {
		open := make(gate)
		a, b, c := w.three(w.script(func(s *scripted) { s.load = open.load }))
		x := a.create(worker.Spec{Source: "f", Start: true})
		w.untilDriven(x.ID)
		for _, m := range []*member{a, b, c} {
			m.kill()
		}
		close(open)
		again := w.host(w.Restart(b.Instance, false), func(cfg *worker.Config) { cfg.Runtimes = []worker.Runtime{w.script(nil)("b2")} })
		w.untilRuns(x.ID)
		equal(t, w.View().WorkerCount(), 1, "workers")
		again.stop()
	}},
	{"093_of_several_that_load_one_counts", func(t *testing.T, w *world) {
		open := make(gate)
		var later atomic.Bool
		a, _, _ := w.three(w.script(func(s *scripted) {
			s.load = func(context.Context, worker.Program) error {
				if !later.Swap(true) {
					<-open // it does not hear that it is too late
				}
				return nil
			}
		}))
		x := a.create(worker.Spec{Source: "f", Start: true})
		equal(t, w.untilDriven(x.ID), a, "driver")
		// Its lease ends, and it goes on.
		w.do(&fsm.Revoke{Key: fsm.LoadKey(x.ID), Token: w.worker(x.ID).DriverToken, By: "test"})
		w.untilRuns(x.ID)
		etag := w.worker(x.ID).Etag
		close(open)
		time.Sleep(time.Minute)
		equal(t, w.worker(x.ID).Etag, etag, "etag, once the first has finished, too")
		w.wantEvents(x.ID, "created", "loaded", "started")
	}},
	{"094_driver_dies_another_takes_over_at_once", func(t *testing.T, w *world) {
		loads := make(chan string, 10)
		a, _, _ := w.three(w.script(func(s *scripted) {
			s.load = func(ctx context.Context, _ worker.Program) error {
				loads <- s.instance
				if s.instance == "a:1:coordtest" {
					<-ctx.Done()
				}
				return ctx.Err()
			}
		}))
		x := a.create(worker.Spec{Source: "f"})
		equal(t, <-loads, a.InstanceID(), "first driver")
		time.Sleep(100 * time.Millisecond) // a keep-alive is out
		began := time.Now()
		a.Crash()
		second := <-loads
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("another drives after %v, the session lasts 10 s", took)
		}
		w.untilState(x.ID, fsm.WorkerStopped)
		if second == a.InstanceID() {
			t.Error("the dead one drives")
		}
		a.kill()
	}},
	{"095_failures_are_logged_and_recorded", func(t *testing.T, w *world) {
		var log bytes.Buffer
		a := w.joinWith("a", func(c *worker.Config) {
			c.Runtimes = []worker.Runtime{w.script(func(s *scripted) {
				s.load = func(context.Context, worker.Program) error { return worker.Errorf(worker.TypeTooLarge, "17 MiB") }
			})("a")}
			c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		})
		x := a.create(worker.Spec{Name: "mail", Source: "f"})
		w.untilState(x.ID, fsm.WorkerLoadFailed)
		equal(t, w.worker(x.ID).Error.Type, "too_large", "type of the error")
		a.stop()
		if !strings.Contains(log.String(), x.ID) || !strings.Contains(log.String(), "17 MiB") {
			t.Errorf("log: %s", log.String())
		}
	}},
	{"096_shutdown_gives_loads_up", func(t *testing.T, w *world) {
		open := make(gate)
		var ended sync.Map
		a, _, _ := w.three(w.script(func(s *scripted) {
			s.load = func(ctx context.Context, p worker.Program) error {
				err := open.load(ctx, p)
				ended.Store(s.instance, err != nil)
				return err
			}
		}))
		x := a.create(worker.Spec{Source: "f", Start: true})
		first := w.untilDriven(x.ID)
		began := time.Now()
		first.stop()
		equal(t, time.Since(began), 0, "time that stopping took")
		cancelled, _ := ended.Load(first.InstanceID())
		equal(t, cancelled, any(true), "the load was cancelled")
		equal(t, w.worker(x.ID).State, fsm.WorkerLoading, "state")
		second := w.untilDriven(x.ID)
		if second == first {
			t.Error("the stopped one drives")
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("another drives after %v", took)
		}
		close(open)
		w.untilRuns(x.ID)
	}},
	{"111_one_bad_worker_hinders_nobody", func(t *testing.T, w *world) {
		a, b, c := w.three(w.script(func(s *scripted) {
			s.load = func(ctx context.Context, p worker.Program) error {
				if p.Source == "f" {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}
		}))
		bad := a.create(worker.Spec{Source: "f", Start: true})
		w.untilDriven(bad.ID)
		for _, m := range []*member{a, b, c} {
			w.untilRuns(m.create(worker.Spec{Source: "g", Start: true}).ID)
			equal(t, m.Status().Joined, true, "joined")
		}
		if err := b.Delete(t.Context(), bad.ID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		equal(t, a.Status().Loads+b.Status().Loads+c.Status().Loads, 0, "loads under way")
		equal(t, w.View().WorkerCount(), 3, "workers")
	}},
	{"111_no_instance_has_the_runtime", func(t *testing.T, w *world) {
		a, b, _ := w.three(w.script(nil))
		began := time.Now()
		x := a.create(worker.Spec{Runtime: worker.RuntimeWasm, Source: "sha256:" + strings.Repeat("ab", 32), Start: true})
		w.untilState(x.ID, fsm.WorkerLoadFailed)
		equal(t, time.Since(began).Round(time.Second), 30*time.Second, "time until it is given up")
		equal(t, w.worker(x.ID).Error.Type, "runtime_missing", "type of the error")
		w.wantEvents(x.ID, "created", "load_failed")

		y := b.create(worker.Spec{Source: "elsewhere", Start: true})
		time.Sleep(20 * time.Second)
		w.join("d", worker.Funcs(map[string]func(context.Context, worker.Run) error{"elsewhere": untilAsked}))
		w.untilState(y.ID, fsm.WorkerRunning)
		w.until("it is there", func() bool { return holder(w, y.ID) == "d:1:coordtest" })
	}},
	// Events are part of the transition, so none can fail to be published; and who
	// reads them slowly, or never, holds up nobody.
	{"106_readers_of_events_hold_up_nobody", func(t *testing.T, w *world) {
		a, b, _ := w.three(w.script(nil))
		wake, stop := a.Watch(fsm.AllTopic) // never read
		defer stop()
		asleep, sleeper := context.WithCancel(t.Context())
		var read sync.WaitGroup
		slow, stopSlow := b.Watch(fsm.AllTopic)
		read.Go(func() {
			defer stopSlow()
			for asleep.Err() == nil {
				select {
				case <-slow:
					time.Sleep(time.Minute)
				case <-asleep.Done():
				}
			}
		})
		for range 50 {
			began := time.Now()
			id := b.create(worker.Spec{Source: "f", Start: true}).ID
			w.untilRuns(id)
			if _, err := b.Stop(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			w.until("it stops", func() bool { return w.seen.where(id) == "" })
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("create, load, start and stop took %v", took)
			}
			w.wantEvents(id, "created", "loaded", "started", "stopped")
		}
		<-wake // there was news all the time
		sleeper()
		read.Wait()
	}},
	{"107_the_event_is_there_though_its_author_dies", func(t *testing.T, w *world) {
		a, _, _ := w.three(w.script(nil))
		committed := make(chan struct{})
		once := sync.OnceFunc(func() { close(committed) })
		a.Fault(func(op fsm.Op) coordtest.Fault {
			if _, is := op.(*fsm.FinishLoad); is {
				once()
				return coordtest.LoseReply
			}
			return coordtest.None
		})
		x := a.create(worker.Spec{Source: "f", Start: true})
		<-committed
		a.kill()
		w.untilRuns(x.ID)
		w.wantEvents(x.ID, "created", "loaded", "started")
	}},
}

// holder is the instance that has the worker, "" for none.
func holder(w *world, id string) string {
	l, ok := w.View().Lease(fsm.WorkerKey(id))
	if !ok {
		return ""
	}
	return l.Who.InstanceID
}
