package jepsen_test

import (
	"context"
	"testing"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/jepsen"
	"github.com/miwnode/miwnode/node"
)

// TestDefect_Catalog switches on bugs in how the outcome of a load meets the
// record of its worker.
func TestDefect_Catalog(t *testing.T) {
	plainOnly(t)
	t.Run("lost_start", func(t *testing.T) {
		t.Parallel()
		huntBy(t, simulateCatalog, simConfig{name: "lost start", defect: "lost start", defects: node.Defects{FSM: fsm.Defects{LostStart: true}}, stubborn: 60},
			nil, 40, jepsen.CheckLostStart)
	})
	t.Run("late_load_commit", func(t *testing.T) {
		t.Parallel()
		directed(t, drill{
			name: "late load commit", defects: node.Defects{FSM: fsm.Defects{LateLoad: true}}, want: jepsen.CheckLoadedSource,
			edit:     func(cfg *simConfig) { cfg.singletons, cfg.catalog = nil, newCatalogConfig() },
			schedule: lateOutcome,
		})
	})
}

// lateOutcome, in a bubble, delivers late how the load of a driver ended that has died since:
// another has loaded the worker, and it is being reloaded with what never loads.
func lateOutcome(t *testing.T, s *simCluster) {
	s.calm.Store(true) // nobody leaves
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	o := &jepsen.CatalogOperator{Name: "o", R: s.r, Nodes: s.names, Endpoint: s.catalogEndpoint, Pool: s.cfg.catalog.pool}
	id, err := o.CreateStarted(ctx, jepsen.NewWorker{Name: "w", Source: "flaky"})
	if err != nil {
		t.Errorf("create and start: %v", err)
		return
	}
	first := s.attempt(ctx, t, id, func(w *fsm.Worker) bool { return w.DriverToken != 0 })
	late := &fsm.FinishLoad{WorkerId: id, Attempt: first.Attempt, Ok: true, Tries: 3}
	driver := s.driver()
	s.r.Notef(driver, "has loaded the worker by attempt %d; the proposal that says so is held up", first.Attempt)
	healed := s.r.Fault("crash", []string{driver}, "crash "+driver)
	s.Crash(driver)
	via := s.others(driver)[0]
	s.attempt(ctx, t, id, func(w *fsm.Worker) bool { return w.State == fsm.WorkerRunning })
	if err := s.Start(driver, false); err != nil {
		t.Error(err)
	}
	healed()
	if err := o.Do(ctx, via, jepsen.WorkerChange{Kind: jepsen.KindReload, ID: id, Source: "hung"}); err != nil {
		t.Errorf("reload: %v", err)
		return
	}
	s.attempt(ctx, t, id, func(w *fsm.Worker) bool { return w.State == fsm.WorkerLoading && w.DriverToken != 0 })
	s.r.Notef(via, "the proposal of attempt %d arrives", first.Attempt)
	_, err = s.lifeOf(via).n.Submit(ctx, late)
	s.r.Notef(via, "and is answered: %v", err)
	time.Sleep(3 * time.Second)
}

// attempt waits until the record of a worker is as it is to be.
func (s *simCluster) attempt(ctx context.Context, t *testing.T, id string, is func(w *fsm.Worker) bool) *fsm.Worker {
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		if l := s.any(); l != nil {
			if w, there := l.n.View().Worker(id); there && is(w) {
				return w
			}
		}
	}
	t.Errorf("worker %s never came to be as it was to", id)
	return &fsm.Worker{}
}
