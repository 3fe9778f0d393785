package worker_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// ofLoad tells which step of the drive of a load a command is, "" for none.
func ofLoad(op fsm.Op) string {
	switch op := op.(type) {
	case *fsm.Acquire:
		if len(op.Key) > 11 && op.Key[:11] == "miw/worker/" {
			return "acquire"
		}
	case *fsm.BeginLoad:
		return "begin"
	case *fsm.FinishLoad:
		return "finish"
	case *fsm.Release:
		if len(op.Key) > 11 && op.Key[:11] == "miw/worker/" {
			return "release"
		}
	}
	return ""
}

// All of these tests run in a bubble.

// Whatever step the driver of a load dies at, before the cluster has taken what
// it proposed or after, the worker is loaded once, and started.
func TestCatalog_DriverDies(t *testing.T) {
	for _, step := range []string{"acquire", "begin", "load", "finish", "release"} {
		for fault, when := range map[coordtest.Fault]string{coordtest.Drop: "before", coordtest.LoseReply: "after"} {
			t.Run(when+"_"+step, func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					there := make(chan struct{})
					reached := sync.OnceFunc(func() { close(there) })
					a, b, _ := w.three(w.script(func(s *scripted) {
						s.load = func(ctx context.Context, _ worker.Program) error {
							if s.instance == "a:1:coordtest" && step == "load" {
								reached()
								if when == "before" {
									<-ctx.Done()
								}
							}
							return ctx.Err()
						}
					}))
					a.Fault(func(op fsm.Op) coordtest.Fault {
						if ofLoad(op) == step {
							reached()
							return fault
						}
						return coordtest.None
					})
					id := a.create(worker.Spec{Source: "f"}).ID
					if _, err := b.Start(t.Context(), id); err != nil {
						t.Fatal(err)
					}
					<-there
					a.kill()
					w.untilRuns(id)
					time.Sleep(time.Minute)
					count := make(map[string]int)
					for _, e := range w.events(id) {
						count[e]++
					}
					equal(t, count["loaded"], 1, "times it was loaded")
					equal(t, count["started"], 1, "times it was started")
					equal(t, w.worker(id).State, fsm.WorkerRunning, "state")
					if _, driven := w.View().Lease(fsm.LoadKey(id)); driven {
						t.Error("the lease of the load is left over")
					}
				})
			})
		}
	}
}

// The same faults without a death: answers that are lost or late change nothing.
func TestCatalog_DriverDoubts(t *testing.T) {
	for _, step := range []string{"acquire", "begin", "finish", "release"} {
		for fault, what := range map[coordtest.Fault]string{coordtest.Refuse: "refused", coordtest.Doubt: "doubtful", coordtest.DoubtDone: "done_in_doubt"} {
			t.Run(step+"_"+what, func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					a := w.join("a", w.script(nil)("a"))
					left := 3
					a.Fault(func(op fsm.Op) coordtest.Fault {
						if ofLoad(op) == step && left > 0 {
							left--
							return fault
						}
						return coordtest.None
					})
					id := a.create(worker.Spec{Source: "f", Start: true}).ID
					w.untilRuns(id)
					time.Sleep(time.Minute)
					w.wantEvents(id, "created", "loaded", "started")
					if _, driven := w.View().Lease(fsm.LoadKey(id)); driven {
						t.Error("the lease of the load is left over")
					}
				})
			})
		}
	}
}

// A cluster without a quorum loads nothing, and goes on where it was.
func TestCatalog_NoQuorum(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		open := make(gate)
		a, _, _ := w.three(w.script(func(s *scripted) { s.load = open.load }))
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		w.untilDriven(id)
		w.LoseQuorum()
		close(open)
		time.Sleep(time.Minute)
		equal(t, w.worker(id).State, fsm.WorkerLoading, "state")
		w.RestoreQuorum()
		w.untilRuns(id)
		w.wantEvents(id, "created", "loaded", "started")
	})
}

// poison is a load that never returns, and tells where it began.
func (w *world) poison(began chan<- string) func(name string) worker.Runtime {
	return w.script(func(s *scripted) {
		s.load = func(ctx context.Context, p worker.Program) error {
			if p.Source != "f" {
				return ctx.Err()
			}
			select {
			case began <- s.instance:
			case <-ctx.Done():
			}
			<-ctx.Done()
			return ctx.Err()
		}
	})
}

// restarted has a member that was killed come back; its runtimes are those of three.
func (w *world) restarted(m *member, r func(name string) worker.Runtime) {
	w.t.Helper()
	w.host(w.Restart(m.Instance, true), func(c *worker.Config) { c.Runtimes = []worker.Runtime{r("again")} })
}

// untilLoads waits until the poison is being loaded, and says by whom.
func (w *world) untilLoads(id string, began <-chan string) *member {
	w.t.Helper()
	select {
	case <-began:
	case <-time.After(time.Minute):
		w.t.Fatalf("nobody loads it: %v, driven by %q, error %v", w.worker(id).State, w.driver(id), w.worker(id).Error)
	}
	return w.member(w.driver(id))
}

// What ends every process that loads it is given up after five of them. The others
// that these were loading are loaded.
func TestCatalog_Poison(t *testing.T) {
	for _, returns := range []bool{true, false} {
		t.Run(map[bool]string{true: "restarts", false: "expires"}[returns], func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				began := make(chan string)
				r := w.poison(began)
				a, _, _ := w.three(r)
				for _, name := range []string{"d", "e", "f", "g"} {
					w.join(name, r(name))
				}
				bad := a.create(worker.Spec{Name: "bad", Source: "f", Start: true})
				var good []string
				lives := func() *member { // the last that does
					return w.all[len(w.all)-1]
				}
				for range 5 {
					m := w.untilLoads(bad.ID, began)
					m.kill()
					w.all = slices.DeleteFunc(w.all, func(x *member) bool { return x == m })
					good = append(good, lives().create(worker.Spec{Source: "g", Start: true}).ID)
					if returns {
						w.restarted(m, r)
					}
				}
				w.untilState(bad.ID, fsm.WorkerLoadFailed)
				rec := w.worker(bad.ID)
				equal(t, *rec.Error, fsm.WorkerError{
					Type: "driver_died", Message: "the nodes that loaded it died, 5 in a row: it may be what ended them; reload it to try again",
				}, "error")
				equal(t, rec.Tries, 5, "tries")
				_, err := lives().Start(t.Context(), bad.ID)
				wantErr(t, err, fsm.ErrWrongState)
				for _, id := range good {
					w.untilRuns(id)
				}
				w.wantEvents(bad.ID, "created", "load_failed")

				// A reload tries again, from the beginning.
				if _, err := lives().Reload(t.Context(), bad.ID, worker.Source{}); err != nil {
					t.Fatal(err)
				}
				w.untilLoads(bad.ID, began)
				equal(t, w.worker(bad.ID).State, fsm.WorkerLoading, "state")
			})
		})
	}
}

// A driver that closes, or is cut off for a while, has not died of what it loaded.
func TestCatalog_NoPoison(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		began := make(chan string)
		r := w.poison(began)
		a, _, _ := w.three(r)
		for _, name := range []string{"d", "e", "f"} {
			w.join(name, r(name))
		}
		id := a.create(worker.Spec{Source: "f"}).ID
		w.untilLoads(id, began).kill()
		w.untilLoads(id, began).stop()
		for range 6 {
			m := w.untilLoads(id, began)
			m.Cut()
			w.until("the lease passes on", func() bool { return w.driver(id) != m.InstanceID() })
			m.Heal()
			w.until("it is back", func() bool { _, lives := w.View().Instance(m.InstanceID()); return lives })
		}
		w.untilLoads(id, began)
		equal(t, w.worker(id).State, fsm.WorkerLoading, "state")
	})
}

// Who was loaded beside what ended a process is not held to have ended it.
func TestCatalog_BesidePoison(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		began := make(chan string)
		slow := w.script(func(s *scripted) {
			s.load = func(ctx context.Context, p worker.Program) error {
				if p.Source == "f" {
					began <- s.instance
					<-ctx.Done()
					return ctx.Err()
				}
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
				return ctx.Err()
			}
		})
		m := w.join("a", slow("a"))
		bad := m.create(worker.Spec{Source: "f"}).ID
		var good []string
		for range 5 {
			good = append(good, m.create(worker.Spec{Source: "g"}).ID)
		}
		for range 5 {
			w.untilLoads(bad, began)
			for range 5 { // all that will begin has begun
				time.Sleep(10 * time.Millisecond)
			}
			m.kill()
			w.restarted(m, slow)
			m = w.all[len(w.all)-1]
		}
		w.untilState(bad, fsm.WorkerLoadFailed)
		equal(t, w.worker(bad).Error.Type, "driver_died", "type of the error")
		for _, id := range good {
			w.untilState(id, fsm.WorkerStopped)
			w.wantEvents(id, "created", "loaded")
		}
	})
}
