package coord_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// A group of workloads, of which each instance that declares them gets its
// share. The Cluster is a node in production (node.New) and a double here.
func ExampleNewCoordinator() {
	world := coordtest.New(coordtest.Timing{})
	defer world.Close()
	n := world.Join("a")

	shards := []coord.Workload{{Key: "shard-1"}, {Key: "shard-2", Weight: 2}, {Key: "shard-3"}}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var all sync.WaitGroup
	all.Add(len(shards))
	c, err := coord.NewCoordinator(n, coord.Group{Name: "shards", Workloads: shards, Rebalance: coord.RebalanceGraceful},
		func(ctx context.Context, w coord.Workload, l *coord.Lease) error {
			all.Done() // serving w.Key, alone, with l.Token() for what it writes
			<-l.Draining()
			return nil // what was begun is finished
		})
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		all.Wait()
		fmt.Println("running:", len(c.Status().Runs))
		stop() // as SIGTERM would
	}()
	fmt.Println("ended:", c.Run(ctx))
	fmt.Println("leases left:", n.View().LeaseCount())
	// Output:
	// running: 3
	// ended: <nil>
	// leases left: 0
}

// An instance that takes its time to get ready does so while the old owner goes
// on: the hand-over waits for nothing but the stop of the old run.
func ExampleNewCoordinator_prepare() {
	world := coordtest.New(coordtest.Timing{})
	defer world.Close()

	group := coord.Group{Name: "models", Workloads: []coord.Workload{{Key: "m"}}, Assigner: coord.Primary{}}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	began := make(chan string, 2)
	start := func(name string) (*coordtest.Instance, chan struct{}) {
		n, done := world.Join(name), make(chan struct{})
		c, err := coord.NewCoordinator(n, group, func(ctx context.Context, w coord.Workload, l *coord.Lease) error {
			fmt.Println(name, "serves", w.Key)
			began <- name
			<-l.Draining()
			fmt.Println(name, "stops")
			return nil
		}, func(c *coord.CoordinatorConfig) {
			c.Prepare = func(ctx context.Context, w coord.Workload) error {
				fmt.Println(name, "loads", w.Key)
				return nil
			}
		})
		if err != nil {
			fmt.Println(err)
			return nil, nil
		}
		go func() {
			defer close(done)
			_ = c.Run(ctx)
		}()
		return n, done
	}
	_, first := start("a")
	<-began
	b, second := start("b")

	// An operator moves it, as soon as b has joined.
	wake, unwatch := b.Watch(fsm.GroupTopic("models"))
	defer unwatch()
	move := &fsm.MoveWorkload{Group: "models", Workload: "m", ToInstance: b.InstanceID(), By: "op"}
	for {
		res, err := world.Propose(move)
		if err == nil && fsm.ResultErr(res) == nil {
			break
		}
		<-wake
	}
	<-began
	fmt.Println("moved")
	stop()
	<-first
	<-second
	// Output:
	// a loads m
	// a serves m
	// b loads m
	// a stops
	// b serves m
	// moved
	// b stops
}

// What would move if an instance went and another came: nothing is changed.
func ExampleWhatIf() {
	world := coordtest.New(coordtest.Timing{})
	defer world.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var runs, over sync.WaitGroup
	runs.Add(4)
	n := world.Join("a")
	c, err := coord.NewCoordinator(n, coord.Group{Name: "g", Workloads: []coord.Workload{{Key: "w1"}, {Key: "w2"}, {Key: "w3"}, {Key: "w4"}}, MaxMoves: 1},
		func(_ context.Context, _ coord.Workload, l *coord.Lease) error {
			runs.Done()
			<-l.Draining()
			return nil
		})
	if err != nil {
		fmt.Println(err)
		return
	}
	over.Go(func() { _ = c.Run(ctx) })
	runs.Wait()

	moves, err := coord.WhatIf(n.View(), "g", coord.Change{Add: 1}, nil)
	if err != nil {
		fmt.Println(err)
	}
	for _, m := range moves {
		fmt.Printf("%s to %s (later: %v): %s\n", m.Workload, m.To, m.Later, m.Because)
	}
	stop()
	over.Wait()
	// Output:
	// w3 to new-1 (later: false): a:1:coordtest has 4 workloads, new-1 has none
	// w4 to new-1 (later: true): a:1:coordtest has 3 workloads, new-1 has 1 workload
}

// Executions of a job are counted under the lease they ran under: who was
// overtaken is not.
func ExampleRecord() {
	world := coordtest.New(coordtest.Timing{})
	defer world.Close()
	n := world.Join("a")
	ctx := context.Background()

	lease, err := coord.Acquire(ctx, n, "report")
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		total, err := coord.Record(ctx, n, coord.Execution{Key: "report:daily", Lease: lease, Outcome: "sent"})
		fmt.Println(total, err)
	}
	_ = lease.Release(ctx)
	_, err = coord.Record(ctx, n, coord.Execution{Key: "report:daily", Lease: lease})
	fmt.Println(fsm.CodeOf(err))

	job, _ := n.View().Job("report:daily")
	fmt.Println("total:", job.Total, "by", job.Owner.InstanceID)
	// Output:
	// 1 <nil>
	// 2 <nil>
	// stale_token
	// total: 2 by a:1:coordtest
}
