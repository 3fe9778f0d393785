package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// trace collects what happened, in order.
type trace struct {
	mu    sync.Mutex
	lines []string
}

func (tr *trace) add(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.lines = append(tr.lines, fmt.Sprintf(format, args...))
}

func (tr *trace) take() (lines []string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	lines, tr.lines = tr.lines, nil
	return lines
}

// traced are runtimes, in a bubble, that tell what they do. A run takes as long
// to finish as lasts says, once it was asked to.
func (w *world) traced(tr *trace, lasts time.Duration) func(name string) worker.Runtime {
	return w.script(func(s *scripted) {
		s.load = func(_ context.Context, p worker.Program) error {
			tr.add("%s loads %s", s.instance[:1], p.Source)
			return nil
		}
		s.run = func(ctx context.Context, p worker.Program, r worker.Run) error {
			tr.add("%s runs %s", s.instance[:1], p.Source)
			select {
			case <-r.Draining():
			case <-ctx.Done():
				tr.add("%s is cut", s.instance[:1])
				return ctx.Err()
			}
			tr.add("%s is asked to finish", s.instance[:1])
			select {
			case <-time.After(lasts):
				tr.add("%s finishes", s.instance[:1])
			case <-ctx.Done():
				tr.add("%s is cut", s.instance[:1])
			}
			return nil
		}
	})
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%q\nwant\n\t%q", got, want)
	}
}

// A worker that moves is loaded where it goes while it runs where it is, and
// finishes there what it has begun.
func TestTenant_Moves(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var tr trace
		a := w.join("a", w.traced(&tr, 3*time.Second)("a"))
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		w.untilRuns(id)
		w.join("b", w.traced(&tr, 0)("b"))
		time.Sleep(10 * time.Second)
		wantLines(t, tr.take(), "a loads f", "a loads f", "a runs f")
		if err := w.Drain(a.InstanceID()); err != nil {
			t.Fatal(err)
		}
		w.until("it moves", func() bool { return w.seen.where(id) == "b:1:coordtest" })
		got := tr.take()
		slices.Sort(got[:2]) // they happen at the same time
		wantLines(t, got, "a is asked to finish", "b loads f", "a finishes", "b runs f")
		w.wantEvents(id, "created", "loaded", "started")
	})
}

// A run that does not finish is cut when the drain timeout has passed.
func TestTenant_StopIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var tr trace
		a := w.joinWith("a", func(c *worker.Config) {
			c.Runtimes = []worker.Runtime{w.traced(&tr, time.Hour)("a")}
			c.DrainTimeout = 20 * time.Second
		})
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		w.untilRuns(id)
		tr.take()
		began := time.Now()
		if _, err := a.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		w.until("it stops", func() bool { return holder(w, id) == "" })
		equal(t, time.Since(began).Round(time.Second), 20*time.Second, "time to stop")
		wantLines(t, tr.take(), "a is asked to finish", "a is cut")
	})
}

// New code is loaded before the run is asked to finish, and runs under the same
// grant; a run that does not finish is cut.
func TestTenant_Reload(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var tr trace
		a := w.joinWith("a", func(c *worker.Config) {
			c.Runtimes = []worker.Runtime{w.traced(&tr, time.Hour)("a")}
			c.DrainTimeout = 20 * time.Second
		})
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		w.untilRuns(id)
		tr.take()
		began := time.Now()
		if _, err := a.Reload(t.Context(), id, worker.Source{Text: "g"}); err != nil {
			t.Fatal(err)
		}
		w.until("the new code runs", func() bool { return len(w.seen.of(id)) == 2 })
		equal(t, time.Since(began).Round(time.Second), 20*time.Second, "time to exchange")
		// Once to see whether it is good, once to run it.
		wantLines(t, tr.take(), "a loads g", "a loads g", "a is asked to finish", "a is cut", "a runs g")
		equal(t, w.seen.of(id)[1].token, w.seen.of(id)[0].token, "token")

		// A stop while new code waits for the old run ends both.
		if _, err := a.Reload(t.Context(), id, worker.Source{Text: "f"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if _, err := a.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		w.until("it stops", func() bool { return holder(w, id) == "" })
		wantLines(t, tr.take(), "a loads f", "a loads f", "a is asked to finish", "a is cut")
	})
}

// Where the owner can't load new code yet, the old goes on.
func TestTenant_ReloadHindered(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		loads := 0
		a := w.join("a", w.script(func(s *scripted) {
			s.load = func(_ context.Context, p worker.Program) error {
				if p.Source != "g" {
					return nil
				}
				if loads++; loads > 1 && loads < 4 { // the first one is the drive
					return worker.Errorf(worker.TypeNotExecutable, "text file busy")
				}
				return nil
			}
		})("a"))
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		w.untilRuns(id)
		began := time.Now()
		if _, err := a.Reload(t.Context(), id, worker.Source{Text: "g"}); err != nil {
			t.Fatal(err)
		}
		w.until("the new code runs", func() bool { return len(w.seen.of(id)) == 2 })
		equal(t, time.Since(began).Round(10*time.Millisecond), 750*time.Millisecond, "time until then")
		equal(t, loads, 4, "loads")
		equal(t, w.worker(id).State, fsm.WorkerRunning, "state")
	})
}

// A reload mends what fails, without waiting for its next try.
func TestTenant_ReloadOfWhatFails(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.joinWith("a", func(c *worker.Config) {
			c.Runtimes = []worker.Runtime{w.script(func(s *scripted) {
				s.run = func(ctx context.Context, p worker.Program, r worker.Run) error {
					if p.Source == "f" {
						return errors.New("a bug")
					}
					return untilAsked(ctx, r)
				}
			})("a")}
			c.RunBackoff = coord.Backoff{Initial: time.Hour, Max: time.Hour, Jitter: -1}
		})
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		w.until("it has failed", func() bool { runs := w.seen.of(id); return len(runs) == 1 && runs[0].over })
		began := time.Now()
		if _, err := a.Reload(t.Context(), id, worker.Source{Text: "g"}); err != nil {
			t.Fatal(err)
		}
		w.untilRuns(id)
		if took := time.Since(began); took > time.Second {
			t.Errorf("runs after %v", took)
		}
	})
}

// A run that fails in the instant at which a reload has brought other code ends
// nothing: the worker goes on with that.
func TestTenant_FailsAsItIsReloaded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.joinWith("a", func(c *worker.Config) {
			c.Runtimes = []worker.Runtime{w.script(func(s *scripted) {
				s.run = func(ctx context.Context, p worker.Program, r worker.Run) error {
					if p.Source == "f" {
						return errors.New("a bug")
					}
					return untilAsked(ctx, r)
				}
			})("a")}
			c.RunRestarts = -1
		})
		var late atomic.Bool
		late.Store(true)
		told := make(chan struct{}, 100)
		a.Fault(func(op fsm.Op) coordtest.Fault {
			if _, ends := op.(*fsm.FinishRun); ends && late.Load() {
				told <- struct{}{}
				return coordtest.Refuse
			}
			return coordtest.None
		})
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		<-told
		if _, err := a.Reload(t.Context(), id, worker.Source{Text: "g"}); err != nil {
			t.Fatal(err)
		}
		w.until("the new code is ready", func() bool { return w.worker(id).Current.Text == "g" })
		late.Store(false)
		w.until("the new code runs", func() bool { runs := w.seen.of(id); return len(runs) == 2 && runs[1].source == "g" && !runs[1].over })
		time.Sleep(time.Minute)
		equal(t, w.worker(id).State, fsm.WorkerRunning, "state")
		w.wantEvents(id, "created", "loaded", "started", "reloading", "loaded")
	})
}

// A worker goes where the function is that it was reloaded with.
func TestTenant_ReloadElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join("a", w.script(func(s *scripted) { s.names = []string{"f"} })("a"))
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		w.untilRuns(id)
		w.join("b", w.script(func(s *scripted) { s.names = []string{"g"} })("b"))
		if _, err := a.Reload(t.Context(), id, worker.Source{Text: "g"}); err != nil {
			t.Fatal(err)
		}
		w.until("it runs there", func() bool { return w.seen.where(id) == "b:1:coordtest" })
		equal(t, w.worker(id).State, fsm.WorkerRunning, "state")
	})
}

// What hangs holds up others for ten seconds, no more.
func TestCatalog_HungLoads(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join("a", w.stateful("a"))
		for range 3 * worker.DefaultMaxLoads {
			a.create(worker.Spec{Source: "hangs"})
		}
		began := time.Now()
		w.untilRuns(a.create(worker.Spec{Source: "f", Start: true}).ID)
		equal(t, time.Since(began).Round(time.Second), 30*time.Second, "time until another is loaded")
		equal(t, a.Status().Loads, 3*worker.DefaultMaxLoads, "loads under way")
	})
}

// A Catalog runs once at a time, and there is one on a node.
func TestCatalog_RunsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join("a", w.script(nil)("a"))
		wantErr(t, a.Run(t.Context()), coord.ErrRunning)
		second, err := worker.NewCatalog(a.Instance, func(c *worker.Config) { c.Runtimes = []worker.Runtime{w.script(nil)("a")} })
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, second.Run(t.Context()), fsm.ErrWrongState)
		a.stop()
		equal(t, a.err, nil, "what Run returned")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		equal(t, second.Run(ctx), nil, "what Run returned")
	})
}

// shelves is a store of code in memory.
type shelves map[string]worker.Code

func (s shelves) Fetch(_ context.Context, source, sha256 string) (worker.Code, error) {
	if source == "/opt/large" {
		return nil, worker.Errorf(worker.TypeTooLarge, "%s is too large", source)
	}
	code, there := s[source]
	if !there {
		return nil, worker.Errorf(worker.TypeSourceNotFound, "no %s", source)
	}
	if sha256 != "" && code.SHA256() != sha256 {
		return nil, worker.Errorf(worker.TypeDigestMismatch, "%s is %s", source, code.SHA256())
	}
	return code, nil
}

type text struct{ worker.Code }

func (text) SHA256() string { return fmt.Sprintf("%064x", 7) }
func (text) Size() int64    { return 42 }

// Code is fetched, and what was fetched is in the record.
func TestCatalog_Code(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var got []worker.Program
		a := w.joinWith("a", func(c *worker.Config) {
			c.Artifacts = shelves{"/opt/mail": text{}}
			c.Runtimes = []worker.Runtime{coded{w.script(func(s *scripted) {
				s.load = func(_ context.Context, p worker.Program) error {
					got = append(got, p)
					return nil
				}
			})("a")}}
		})
		digest := fmt.Sprintf("%064x", 7)
		good := a.create(worker.Spec{Name: "mail", Runtime: worker.RuntimeExec, Source: "/opt/mail", Start: true}).ID
		w.untilRuns(good)
		equal(t, w.worker(good).History[0].SHA256, digest, "digest")
		equal(t, w.worker(good).Current.Size, 42, "size")
		for _, p := range got {
			equal(t, p.Name+" "+p.Source+" "+p.Code.SHA256(), "mail /opt/mail "+digest, "what was loaded")
		}
		other := a.create(worker.Spec{Runtime: worker.RuntimeExec, Source: "/opt/mail", SHA256: fmt.Sprintf("%064x", 8)}).ID
		none := a.create(worker.Spec{Runtime: worker.RuntimeExec, Source: "/opt/none"}).ID
		_, err := a.Create(t.Context(), worker.Spec{Name: "mail", Runtime: worker.RuntimeExec, Source: "/opt/large"})
		wantErr(t, err, fsm.ErrInvalidArgument)
		w.untilState(other, fsm.WorkerLoadFailed)
		w.untilState(none, fsm.WorkerLoadFailed)
		equal(t, w.worker(other).Error.Type, "digest_mismatch", "type of the error")
		equal(t, w.worker(other).Tries, 1, "tries")
		equal(t, w.worker(none).Error.Type, "source_not_found", "type of the error")
	})
}

// coded is a runtime whose workers have code.
type coded struct{ worker.Runtime }

func (coded) Name() string       { return worker.RuntimeExec }
func (coded) Provides() []string { return []string{worker.RuntimeExec} }
