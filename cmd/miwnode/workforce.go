package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/artifact"
	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/coord/worker/execrt"
	"github.com/miwnode/miwnode/coord/worker/wasmrt"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/guard"
	"github.com/miwnode/miwnode/node"
)

// workerConfig is what start is told of workers.
type workerConfig struct {
	run     bool // those of the catalog
	private bool // URLs of private addresses are good sources
}

// Folders of workers in the data folder.
const (
	artifactFolder = "artifacts"
	runFolder      = "run"
)

// workforce is a node's part in the workers of the cluster. One that runs none
// keeps their code all the same.
type workforce struct {
	node    *node.Node
	store   *artifact.Store
	catalog *worker.Catalog // nil: it runs none
	wasm    *wasmrt.Runtime // of the catalog
	metrics *workerMetrics
	log     *slog.Logger
}

func newWorkforce(n *node.Node, cfg startConfig) (*workforce, error) {
	w := &workforce{node: n, metrics: newWorkerMetrics(), log: cfg.log.With("node", n.ID())}
	var err error
	if w.store, err = artifact.Open(filepath.Join(cfg.node.DataDir, artifactFolder)); err != nil {
		return nil, err
	}
	n.ServeArtifacts(w.store)
	if !cfg.workers.run {
		return w, nil
	}
	if w.wasm, err = wasmrt.New(wasmrt.Config{}); err != nil {
		return nil, err
	}
	if err := w.open(cfg); err != nil {
		return nil, errors.Join(err, w.wasm.Close())
	}
	return w, nil
}

// open makes the catalog. Without a guard there are no commands.
func (w *workforce) open(cfg startConfig) error {
	runtimes := []worker.Runtime{w.wasm}
	if err := guard.Available(); err != nil {
		w.log.Warn("workers that are commands don't run on this node", "error", fmt.Errorf("%w: %w", node.ErrNoGuard, err))
	} else {
		timing := cfg.node.Timing.WithDefaults()
		exec, err := execrt.New(execrt.Config{
			Spawner: w.node, Dir: filepath.Join(cfg.node.DataDir, runFolder), Addr: socketOf(cfg), StopBudget: timing.StopBudget, KillTimeout: timing.KillTimeout,
		})
		if err != nil {
			return err
		}
		runtimes = append(runtimes, exec)
	}
	var err error
	w.catalog, err = worker.NewCatalog(w.node, func(c *worker.Config) {
		c.Runtimes = runtimes
		c.Artifacts = &worker.Depot{Store: w.store, Peers: w.node, Web: artifact.NewWeb(artifact.WebConfig{AllowPrivate: cfg.workers.private})}
		c.Hooks = w.metrics.hooks()
		c.Logger = cfg.log
		// The guard kills a command by the instant at which this would have to end
		// the process, and a module ends with its context.
		c.Stuck.WhenLost = coord.PolicyReport
	})
	return err
}

// options give the API what it needs of the workforce.
func (w *workforce) options() []api.Option {
	opts := []api.Option{api.WithArtifacts(w.store), api.WithMetrics(w.metrics.registry)}
	if w.catalog != nil {
		opts = append(opts, api.WithCatalog(w.catalog))
	}
	return opts
}

// run takes part in the group of the workers once there are any, and ends with
// ctx, when all that run here have. Meanwhile code that no worker names any more
// is removed from the node.
func (w *workforce) run(ctx context.Context) {
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	sweeping.Go(func() { (&worker.Sweeper{State: w.node, Store: w.store, Logger: w.log}).Run(ctx) })
	if w.catalog == nil || !w.wanted(ctx) {
		return
	}
	if err := w.catalog.Run(ctx); err != nil {
		w.log.Error("running workers ended", "error", err)
	}
}

// wanted waits until the catalog has a worker: until then there is no group to
// be in, and nobody has to plan for it.
func (w *workforce) wanted(ctx context.Context) bool {
	wake, stop := w.node.Watch(fsm.WorkersTopic)
	defer stop()
	for w.node.View().WorkerCount() == 0 {
		select {
		case <-wake:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (w *workforce) close() {
	if w.wasm != nil {
		_ = w.wasm.Close() // nothing runs any more
	}
}
