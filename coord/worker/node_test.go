package worker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

var _ worker.State = (*node.Node)(nil)

// Workers on real nodes: created anywhere, followed when a node is cut off, and
// there again, each in its state, when all nodes were started anew.
func TestNode_Workers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 60
		c := nodetest.New(t, nodetest.Config{Nodes: 3, Seed: 1})
		c.WaitReady()
		w := &world{t: t, seen: &observer{}}
		catalogs := make([]*worker.Catalog, c.Len())
		stops := make([]func(), c.Len())
		start := func(i int) {
			id := c.Node(i).InstanceID()
			cat, err := worker.NewCatalog(c.Node(i), func(cfg *worker.Config) {
				cfg.Runtimes = []worker.Runtime{w.script(func(s *scripted) { s.instance = id })("")}
				cfg.Stuck.WhenLost = coord.PolicyReport
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			var done sync.WaitGroup
			done.Go(func() { _ = cat.Run(ctx) })
			catalogs[i], stops[i] = cat, func() { cancel(); done.Wait() }
		}
		for i := range c.Len() {
			start(i)
		}
		began := time.Now()
		var ids []string
		for i := range n {
			x, err := catalogs[i%3].Create(t.Context(), worker.Spec{Name: fmt.Sprint("worker ", i), Runtime: worker.RuntimeFunc, Source: "f", Start: i%2 == 0})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, x.ID)
		}
		settled := func(not string) func() bool {
			return func() bool {
				for i, id := range ids {
					x, err := catalogs[0].Get(id)
					want := fsm.WorkerStopped
					if i%2 == 0 {
						want = fsm.WorkerRunning
					}
					where := w.seen.where(id)
					if err != nil || x.State != want || (where != "") != (i%2 == 0) || where != "" && where == not {
						return false
					}
				}
				return true
			}
		}
		c.Until(10*time.Second, "all are what they are to be", settled(""))
		t.Logf("%d workers are loaded, and half of them run, after %v", n, time.Since(began))

		cut := time.Now()
		lost := c.Node(2).InstanceID()
		c.Isolate(2)
		c.Until(time.Minute, "the others run all", settled(lost))
		if d := time.Since(cut); d < 7*time.Second || d > 12*time.Second {
			t.Errorf("followed after %v", d)
		}
		c.Rejoin(2)

		for i := range c.Len() {
			c.Crash(i)
			w.seen.kill(c.Node(i).InstanceID())
			stops[i]()
		}
		for i := range c.Len() {
			c.Start(i)
		}
		c.WaitReady()
		for i := range c.Len() {
			start(i)
		}
		c.Until(time.Minute, "all are again what they were", settled(""))
		for i := range c.Len() {
			stops[i]()
		}
		w.seen.check(t)
	})
}
