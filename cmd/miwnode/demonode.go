package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/node"
)

// demoNode is one node of the demo, through its lives.
type demoNode struct {
	name string
	dir  string
	demo *demo
	addr string // bound; kept over restarts

	node   *node.Node
	cancel context.CancelFunc
	die    chan struct{}
	dead   chan struct{} // closed when the killed node has ended
	wg     sync.WaitGroup
	failed error
}

// start makes and runs the node, its API on a unix socket, and the work.
func (n *demoNode) start(join []string, expect int) error {
	n.die, n.dead = make(chan struct{}), make(chan struct{})
	bind := "127.0.0.1:0"
	if n.addr != "" {
		bind = n.addr
	}
	cfg := node.Config{DataDir: n.dir, Bind: bind, Join: join, BootstrapExpect: expect, ID: n.name, Timing: demoTiming}
	node.SetSeams(&cfg, node.Seams{Kill: n.die}) // a demonstration of a death needs one
	var err error
	if n.node, err = node.New(cfg); err != nil {
		return fmt.Errorf("make %s: %w", n.name, err)
	}
	server, err := api.NewServer(n.node, api.ServerConfig{Socket: socketOf(startConfig{node: cfg})})
	if err != nil {
		return err
	}
	var coordinators []*coord.Coordinator
	for _, g := range demoGroups {
		c, err := coord.NewCoordinator(n.node, g.group(), n.work(g.name), func(c *coord.CoordinatorConfig) {
			// A killed node's work ends with it, by what work does below; the process
			// is the demo's and stays.
			c.Stuck.WhenLost = coord.PolicyReport
		})
		if err != nil {
			return errors.Join(err, server.Close())
		}
		coordinators = append(coordinators, c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	apiCtx, stopAPI := context.WithCancel(context.Background())
	n.wg.Go(func() { _ = server.Run(apiCtx) })
	n.wg.Go(func() {
		defer stopAPI()
		n.failed = n.node.Run(ctx)
		close(n.dead)
		cancel()
	})
	for _, c := range coordinators {
		n.wg.Go(func() { _ = c.Run(ctx) })
	}
	return nil
}

// work is the sample: it does nothing but stamp its start and its end with one
// observer, whose clock all nodes share.
func (n *demoNode) work(group string) coord.WorkloadFunc {
	return func(ctx context.Context, w coord.Workload, l *coord.Lease) error {
		run := n.demo.seen.begin(group+"/"+w.Key, n.name, l.Token())
		select {
		case <-l.Draining():
			run.end()
		case <-ctx.Done():
			run.end()
		case <-n.die:
			run.end() // the process is gone: what it did has ended, and nobody is told
			<-n.dead
		}
		return nil
	}
}

// bound waits until the node listens.
func (n *demoNode) bound(ctx context.Context) (string, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if n.addr = n.node.Addr(); n.addr != "" {
			return n.addr, nil
		}
		select {
		case <-tick.C:
		case <-n.dead:
			return "", fmt.Errorf("start %s: %w", n.name, n.failed)
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

func (n *demoNode) ready(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	select {
	case <-n.node.Ready():
		_, err := n.bound(ctx)
		return err
	case <-n.dead:
		return fmt.Errorf("start %s: %w", n.name, n.failed)
	case <-limit.Done():
		return fmt.Errorf("%s is not ready: %w", n.name, n.node.ReadyErr())
	}
}

// kill ends the node as a power cut would, and returns when it is gone.
func (n *demoNode) kill() {
	close(n.die)
	<-n.dead
	n.wg.Wait()
}

func (n *demoNode) stop() {
	if n.cancel != nil {
		n.cancel()
		n.wg.Wait()
	}
}
