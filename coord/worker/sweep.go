package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/miwnode/miwnode/artifact"
	"github.com/miwnode/miwnode/fsm"
)

// Times of a Sweeper.
const (
	// ArtifactGrace is how long an artifact that no worker names is kept from
	// when it was stored: the time between an upload and the worker that is
	// created from it.
	ArtifactGrace = time.Hour
	// sweepEvery is how often a node looks for artifacts to remove.
	sweepEvery = 10 * time.Minute
)

// Named is what a Sweeper needs of a node; *node.Node satisfies it.
type Named interface {
	// View is the local copy of the replicated state.
	View() *fsm.View
	// Barrier waits until the copy covers whatever was answered before.
	Barrier(ctx context.Context) error
}

// Sweeper removes artifacts that no worker names any more from the store of one
// node: neither as what it runs or loads nor in its history, which it may be
// reloaded from. Each node sweeps its own store.
type Sweeper struct {
	State Named
	Store *artifact.Store
	// Grace is how long an artifact is kept that no worker names, from when it
	// was stored by the wall clock. Defaults to ArtifactGrace.
	Grace  time.Duration
	Logger *slog.Logger // nil discards

	_ struct{}
}

// Run sweeps every ten minutes until ctx ends.
func (s *Sweeper) Run(ctx context.Context) {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.sweep(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// sweep removes nothing unless the copy is known to be of now: that of a node
// that has just started names no workers yet.
func (s *Sweeper) sweep(ctx context.Context) {
	limit, cancel := context.WithTimeout(ctx, submitTimeout)
	defer cancel()
	before := time.Now().Add(-s.grace())
	if s.State.Barrier(limit) != nil {
		return // without a quorum nobody knows what is named
	}
	names := named(s.State.View())
	removed, err := s.Store.Sweep(before, func(d artifact.Digest) bool { return names[d.String()] })
	switch {
	case s.Logger == nil:
	case err != nil:
		s.Logger.Warn("artifacts that no worker names could not be removed", slog.Any("error", err))
	case removed > 0:
		s.Logger.Info("artifacts that no worker names were removed", slog.Int("artifacts", removed))
	}
}

func (s *Sweeper) grace() time.Duration {
	if s.Grace > 0 {
		return s.Grace
	}
	return ArtifactGrace
}

// named are the digests that workers name.
func named(v *fsm.View) map[string]bool {
	names := make(map[string]bool)
	for w := range v.Workers("") {
		for _, src := range []*fsm.Source{w.Current, w.Next} {
			if src != nil {
				names[src.SHA256] = true
			}
		}
		for i := range w.History {
			names[w.History[i].SHA256] = true
		}
	}
	return names
}
