package jepsen

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/miwnode/miwnode/coord"
)

// Work makes the bodies of runs: they stamp start and stop, and end as the seed
// says: mostly when told to, sometimes by themselves, well, by an error or a
// panic, sometimes only when nearly all of the stop budget is used up.
type Work struct {
	R *Recorder
	// Budget is the time that work has to stop once it is told to.
	Budget time.Duration
	// Stubborn, if not 0, is one in how many runs ignores that its lease is lost,
	// so that the process must end.
	Stubborn int
	// Late work always uses nearly all of the budget.
	Late bool
	// Restless is how many runs of a hundred end by themselves; half of them fail,
	// which passes the key on.
	Restless int

	mu  sync.Mutex // guards Restless and Stubborn too, once there are runs
	rng *rand.Rand // guarded by mu: runs of all nodes draw
}

// Calm has later runs go on until they are told to stop.
func (w *Work) Calm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Restless, w.Stubborn = 0, 0
}

// NewWork returns work whose behaviour follows from seed.
func NewWork(r *Recorder, seed int64, budget time.Duration) *Work {
	return &Work{R: r, Budget: budget, Restless: 15, rng: rand.New(rand.NewPCG(uint64(seed), 0x776f726b))}
}

// errWork is how a run ends that fails.
var errWork = errors.New("work failed, as the seed says")

// Grant is what a run is under.
type Grant struct {
	Proc, Node, Key string
	Token           uint64
	Valid           func() bool     // the lease is
	Draining        <-chan struct{} // closed when the run is asked to finish; nil: it is not asked
	Dead            <-chan struct{} // closed when the process is
}

// Do is one run.
func (w *Work) Do(ctx context.Context, g Grant) error {
	w.mu.Lock()
	var (
		how   = w.rng.IntN(100)
		lasts = draw(w.rng, time.Second, 15*time.Second)
		stops = draw(w.rng, 0, w.Budget*9/10)
		late  = w.rng.IntN(3) == 0
		deaf  = w.Stubborn > 0 && w.rng.IntN(w.Stubborn) == 0
		most  = w.Restless
		obeys = g.Draining != nil && w.rng.IntN(3) > 0
	)
	w.mu.Unlock()
	if late || w.Late {
		stops = w.Budget * 9 / 10
	}
	run := w.R.Start(Run{Proc: g.Proc, Node: g.Node, Key: g.Key, Token: g.Token}, g.Valid)
	defer run.Stop()

	ends := make(<-chan time.Time)
	if how < most {
		t := time.NewTimer(lasts)
		defer t.Stop()
		ends = t.C
	}
	finish := g.Draining
	if !obeys {
		finish = nil // it goes on until it must stop
	}
	select {
	case <-ends:
		switch how % 4 {
		case 0, 1:
			return nil
		case 2:
			return errWork
		}
		panic(errWork)
	case <-finish:
	case <-ctx.Done():
	case <-g.Dead:
		return context.Canceled
	}
	// Work that won't stop is held for ever while its lease is kept, and must be
	// ended by force once the lease is lost.
	if deaf && errors.Is(context.Cause(ctx), coord.ErrLost) {
		<-g.Dead
		return context.Canceled
	}
	t := time.NewTimer(stops)
	defer t.Stop()
	select {
	case <-t.C:
	case <-g.Dead:
	}
	if ctx.Err() == nil {
		return nil // it was asked to finish, and has
	}
	return context.Cause(ctx)
}
