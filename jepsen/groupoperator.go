package jepsen

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Steering is how an operator steers a group.
type Steering interface {
	// Members are the instances that have joined, in join order; node is "" for
	// one that is no node.
	Members() []GroupInstance
	// Mark does one of drain, undrain, cordon and uncordon to an instance.
	Mark(ctx context.Context, mark, instance string) error
	// Steer does one of move, pin, unpin, pause, resume and revoke to a workload.
	Steer(ctx context.Context, verb, workload, to string) error
}

// GroupInstance is an instance that has joined a group.
type GroupInstance struct {
	ID, Node           string
	Draining, Cordoned bool
}

// GroupOperator does to a group what operators do, as the seed says: it drains
// and cordons instances and takes that back, moves, pins, pauses and revokes
// workloads.
type GroupOperator struct {
	R         *Recorder
	Rng       *rand.Rand // owned by Run
	Group     string
	Workloads []string
	S         Steering
}

// Run works until ctx ends. Marks and pins may be left: Relieve takes them back.
func (o *GroupOperator) Run(ctx context.Context) {
	var marks sync.WaitGroup
	defer marks.Wait()
	marking := make(chan struct{}, 1) // one at a time
	pausing := make(chan struct{}, 1) // likewise
	for sleep(ctx, draw(o.Rng, 500*time.Millisecond, 5*time.Second)) {
		all := o.S.Members()
		if len(all) == 0 {
			continue
		}
		who, workload := all[o.Rng.IntN(len(all))], o.Workloads[o.Rng.IntN(len(o.Workloads))]
		lasts, what := draw(o.Rng, time.Second, 10*time.Second), o.Rng.IntN(10)
		once := func(busy chan struct{}, f func()) {
			select {
			case busy <- struct{}{}:
				marks.Go(func() { defer func() { <-busy }(); f() })
			default:
			}
		}
		switch {
		case what < 4:
			once(marking, func() { o.mark(ctx, who, []string{faultDrain, faultCordon}[what%2], lasts) })
		case what < 6:
			o.steer(ctx, "move", workload, who.ID)
		case what < 7:
			o.steer(ctx, "pin", workload, who.ID)
		case what < 8:
			o.steer(ctx, "unpin", workload, "")
		case what < 9:
			o.steer(ctx, "revoke", workload, "")
		default:
			once(pausing, func() { o.pause(ctx, workload, lasts) })
		}
	}
}

// mark sets a mark for a while. A node that has one takes nothing, which the
// judge of take-overs must know.
func (o *GroupOperator) mark(ctx context.Context, who GroupInstance, mark string, lasts time.Duration) {
	var hits []string
	if who.Node != "" {
		hits = []string{who.Node}
	}
	healed := o.R.Fault(mark, hits, mark+" "+who.ID)
	defer healed()
	o.say(mark+" "+who.ID, o.within(ctx, func(ctx context.Context) error { return o.S.Mark(ctx, mark, who.ID) }))
	sleep(ctx, lasts)
	o.say("un"+mark+" "+who.ID, o.within(ctx, func(ctx context.Context) error { return o.S.Mark(ctx, "un"+mark, who.ID) }))
}

// pause pauses a workload for a while.
func (o *GroupOperator) pause(ctx context.Context, workload string, lasts time.Duration) {
	over := o.R.Kept(faultKept, o.Group+"/"+workload, "pause of "+workload)
	defer over()
	o.steer(ctx, "pause", workload, "")
	sleep(ctx, lasts)
	o.repeat(context.WithoutCancel(ctx), "resume "+workload, func(ctx context.Context) error { return o.S.Steer(ctx, "resume", workload, "") })
}

func (o *GroupOperator) steer(ctx context.Context, verb, workload, to string) {
	o.say(verb+" "+workload+" "+to, o.within(ctx, func(ctx context.Context) error { return o.S.Steer(ctx, verb, workload, to) }))
}

func (o *GroupOperator) within(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	return call(ctx)
}

func (o *GroupOperator) say(what string, err error) {
	if err != nil {
		what += ": " + err.Error()
	}
	o.R.Notef("", "operator: %s", what)
}

// Relieve takes back every mark of an instance, every pin and every pause, and has the group
// planned anew, as an operator's moves may have left it uneven. It may be called
// on a cluster that is whole only.
func (o *GroupOperator) Relieve(ctx context.Context) {
	for _, i := range o.S.Members() {
		if i.Draining {
			o.repeat(ctx, "undrain "+i.ID, func(ctx context.Context) error { return o.S.Mark(ctx, "undrain", i.ID) })
		}
		if i.Cordoned {
			o.repeat(ctx, "uncordon "+i.ID, func(ctx context.Context) error { return o.S.Mark(ctx, "uncordon", i.ID) })
		}
	}
	for _, w := range o.Workloads {
		for _, verb := range []string{"unpin", "resume"} {
			o.repeat(ctx, verb+" "+w, func(ctx context.Context) error { return o.S.Steer(ctx, verb, w, "") })
		}
	}
	if all := o.S.Members(); len(all) > 0 { // a pin and its end change what is planned for
		i := all[slices.IndexFunc(all, func(i GroupInstance) bool { return i.Node != "" })]
		o.repeat(ctx, "pin", func(ctx context.Context) error { return o.S.Steer(ctx, "pin", o.Workloads[0], i.ID) })
		o.repeat(ctx, "unpin", func(ctx context.Context) error { return o.S.Steer(ctx, "unpin", o.Workloads[0], "") })
	}
}

func (o *GroupOperator) repeat(ctx context.Context, what string, call func(context.Context) error) {
	for range 10 {
		err := o.within(ctx, call)
		if err == nil {
			return
		}
		o.say(what, err)
		sleep(ctx, 200*time.Millisecond)
	}
}
