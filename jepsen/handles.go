package jepsen

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// Handles takes leases by hand on one node, as an embedding program does with
// coord.Acquire: it waits for a while, works, and gives the lease back or drops
// it when told. It returns when ctx or the process (dead) ends.
func (w *Work) Handles(ctx context.Context, c coord.Cluster, proc, node string, keys []string, dead <-chan struct{}, exit func()) {
	w.mu.Lock()
	rng := rand.New(rand.NewPCG(w.rng.Uint64(), w.rng.Uint64()))
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-dead:
			cancel()
		case <-ctx.Done():
		}
	}()
	for ctx.Err() == nil {
		if !sleep(ctx, draw(rng, 50*time.Millisecond, 2*time.Second)) {
			return
		}
		how := coord.WaitAtMost(draw(rng, 100*time.Millisecond, 5*time.Second))
		if rng.IntN(3) == 0 {
			how = coord.Try()
		}
		key := keys[rng.IntN(len(keys))]
		l, err := coord.Acquire(ctx, c, key, how, coord.WithStuck(coord.StuckConfig{Exit: func(int) { exit() }}))
		if err != nil {
			continue
		}
		run := w.R.Start(Run{Proc: proc, Node: node, Key: key, Token: l.Token()}, l.Valid)
		t := time.NewTimer(draw(rng, 0, 3*time.Second))
		select {
		case <-t.C:
		case <-l.Context().Done():
			if !errors.Is(context.Cause(l.Context()), coord.ErrLost) {
				break
			}
			sleep(ctx, draw(rng, 0, w.Budget*9/10)) // it takes its time, but no more than it has
		case <-ctx.Done():
		}
		t.Stop()
		run.Stop()
		// Giving back is not hindered by the end of the program; a release whose
		// answer is lost is repeated by the node.
		rctx, done := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		_ = l.Release(rctx)
		done()
	}
}

// Operator does what operators do, as the seed says: it revokes leases, has
// them handed over, drains and cordons instances and takes that back. It asks
// through whichever node answers.
type Operator struct {
	R    *Recorder
	Rng  *rand.Rand
	Keys []string
	// Nodes are those that may be drained; Submit and View ask one of the others.
	Nodes  []string
	Submit func(ctx context.Context, op fsm.Op) error
	View   func() *fsm.View
	// InstanceOf names the present instance of a node.
	InstanceOf func(node string) string
}

// Run works until ctx ends and leaves nothing drained or cordoned.
func (o *Operator) Run(ctx context.Context) {
	for sleep(ctx, draw(o.Rng, 4*time.Second, 15*time.Second)) {
		node := o.Nodes[o.Rng.IntN(len(o.Nodes))]
		key := o.Keys[o.Rng.IntN(len(o.Keys))]
		lasts := draw(o.Rng, time.Second, 8*time.Second)
		switch o.Rng.IntN(4) {
		case 0:
			if v := o.View(); v != nil {
				if l, ok := v.Lease(key); ok && l.State == fsm.Held {
					o.say(node, "revoke "+key, o.submit(ctx, &fsm.Revoke{Key: key, Token: l.Token, By: "operator", Reason: "as the seed says"}))
				}
			}
		case 1:
			if v := o.View(); v != nil {
				if l, ok := v.Lease(key); ok && l.State == fsm.Held {
					o.say(node, "transfer "+key, o.submit(ctx, &fsm.Transfer{Key: key, Token: l.Token, ToInstance: o.InstanceOf(node), By: "operator"}))
				}
			}
		case 2:
			o.mark(ctx, node, lasts, fsm.MarkDrain, fsm.MarkUndrain, "drain")
		case 3:
			o.mark(ctx, node, lasts, fsm.MarkCordon, fsm.MarkUncordon, "cordon")
		}
	}
}

func (o *Operator) submit(ctx context.Context, op fsm.Op) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	return o.Submit(ctx, op)
}

func (o *Operator) say(node, what string, err error) {
	if err != nil {
		what += ": " + err.Error()
	}
	o.R.Notef(node, "operator: %s", what)
}

// mark sets a mark for a while. The node takes nothing new meanwhile, which the
// judge of take-overs must know.
func (o *Operator) mark(ctx context.Context, node string, lasts time.Duration, set, clear fsmpb.Mark, what string) {
	id := o.InstanceOf(node)
	if id == "" {
		return
	}
	healed := o.R.Fault(what, []string{node}, what+" "+node)
	defer healed()
	o.say(node, what, o.submit(ctx, &fsm.MarkInstance{InstanceId: id, Mark: set, By: "operator", Reason: "as the seed says"}))
	sleep(ctx, lasts)
	for try := 0; try < 20; try++ {
		err := o.submit(ctx, &fsm.MarkInstance{InstanceId: id, Mark: clear, By: "operator"})
		o.say(node, "un"+what, err)
		if err == nil || errors.Is(err, fsm.ErrNotFound) || !sleep(context.WithoutCancel(ctx), 200*time.Millisecond) {
			return
		}
	}
}
