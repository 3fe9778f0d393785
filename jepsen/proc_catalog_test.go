package jepsen_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/jepsen"
)

var catalogFlag = flag.Duration("catalog", 0, "how long TestProcessCatalog goes on as the seed says (0: as long as in a CI run)")

// catalogRig is a cluster of real processes that load and run workers.
type catalogRig struct {
	*rig
	pool    *jepsen.CatalogPool
	sources []string
	digests map[string]string
	good    string
	late    map[string]*lateCode // by its name
}

// lateCode is code that an https server gives out only when it is let.
type lateCode struct {
	source, text string
	asked        chan struct{} // one for each time that somebody asks for it
	gate         chan struct{} // closed: it comes
}

// newCatalogRig starts the nodes and what watches them. Workers are commands: one
// that tells the observer what it does, one that is done at once, one that is none.
func newCatalogRig(t *testing.T, name string) *catalogRig {
	t.Helper()
	c := &catalogRig{rig: bareRig(t), pool: &jepsen.CatalogPool{Most: 30, Alive: 12}, digests: map[string]string{}, late: map[string]*lateCode{}}
	write := func(name, text string) string {
		path := filepath.Join(c.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	text := fmt.Sprintf("#!/bin/sh\nd=${MIW_ADDR%%/*}\nexec '%s' worker '%s' \"${d##*/}\" 100ms\n", c.self, c.sock())
	c.good = write("good.sh", text)
	done, bad := write("done.sh", "#!/bin/sh\nexit 0\n"), write("bad", "no program\n")
	c.sources = []string{c.good, c.good, c.good, done, bad}
	c.serve(text, "left", "back", "late")
	c.wire(jepsen.Settings{
		Nodes: 3, TTL: procSettings.TTL, Renew: procSettings.Renew, Margin: procSettings.Margin, StopBudget: procSettings.StopBudget,
		DrainTimeout: procSettings.DrainTimeout, KillTimeout: procSettings.KillTimeout, RaftTimeout: procSettings.RaftTimeout,
		Args: []string{"--allow-private-sources"},
	}, name, jepsen.Bounds{Sound: []string{c.good, c.late["left"].source, c.late["back"].source, c.late["late"].source}})
	return c
}

// serve gives code out from an https server that the nodes trust.
func (c *catalogRig) serve(text string, names ...string) {
	origin := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code := c.late[r.URL.Path[1:]]
		code.asked <- struct{}{}
		select {
		case <-code.gate:
			_, _ = w.Write([]byte(code.text))
		case <-r.Context().Done():
		}
	}))
	c.t.Cleanup(origin.Close)
	ca := filepath.Join(c.dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: origin.Certificate().Raw}), 0o644); err != nil {
		c.t.Fatal(err)
	}
	c.t.Setenv("SSL_CERT_FILE", ca)
	for _, name := range names {
		code := &lateCode{source: origin.URL + "/" + name, text: text + "# " + name + "\n", asked: make(chan struct{}, 100), gate: make(chan struct{})}
		c.late[name] = code
		c.digests[code.source] = fmt.Sprintf("%x", sha256.Sum256([]byte(code.text)))
	}
}

func (c *catalogRig) at(node string) *jepsen.HTTPCatalog {
	return &jepsen.HTTPCatalog{HTTPEndpoint: c.API(node), Runtime: "exec", Digests: c.digests}
}

func (c *catalogRig) endpoint(node string) jepsen.CatalogEndpoint {
	if !c.Up(node) {
		return nil
	}
	return c.at(node)
}

// operator asks for changes through any node.
func (c *catalogRig) operator(i int) *jepsen.CatalogOperator {
	return &jepsen.CatalogOperator{
		Name: fmt.Sprintf("o%d", i+1), R: c.r, Rng: rand.New(rand.NewPCG(uint64(cmp.Or(*seedFlag, 1)), uint64(200+i))), Nodes: c.Nodes(),
		Endpoint: c.endpoint, Pool: c.pool, Sources: c.sources, CallTimeout: 2 * time.Second, Pause: 500 * time.Millisecond,
	}
}

// driver waits until somebody loads the worker, and says who: "" = anybody just now.
func (c *catalogRig) driver(id, via string, within time.Duration) (node string) {
	for deadline := c.r.Now() + within; ; {
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		node = c.API(via).Driver(ctx, id)
		cancel()
		if node != "" || c.r.Now() > deadline {
			return node
		}
		c.pause(10 * time.Millisecond)
	}
}

// lateLoad has a worker created and started whose code does not come, and returns
// who loads it.
func (c *catalogRig) lateLoad(name string) (code *lateCode, id, driver string) {
	c.t.Helper()
	code = c.late[name]
	o := c.operator(9)
	o.Name, o.Pool = "director-"+name, &jepsen.CatalogPool{} // nobody else touches it
	id, err := o.CreateStarted(c.t.Context(), jepsen.NewWorker{Name: name, Source: code.source})
	if err != nil {
		c.t.Fatal(err)
	}
	<-code.asked
	if driver = c.driver(id, c.up(), 5*time.Second); driver == "" {
		c.t.Fatal("nobody loads the worker")
	}
	return code, id, driver
}

// up is a node that is there.
func (c *catalogRig) up() string {
	return cmp.Or(c.Leader(), c.Nodes()[0])
}

// killDriver kills the node that loads a worker whose code does not come, with
// its guard; the code comes, and another node finishes the load. again: the killed
// node is started at once. It returns how long it took from the death until the
// worker runs.
func (c *catalogRig) killDriver(name string, again bool) time.Duration {
	c.t.Helper()
	code, id, driver := c.lateLoad(name)
	healed := c.r.Fault("kill-driver", []string{driver}, "kill -9 "+driver+" with its guard, which loads "+name)
	at := c.r.Now()
	c.crashAll(driver)
	close(code.gate)
	if again {
		c.again(driver)
	}
	return c.finishedAfter(at, id, driver, c.again, healed)
}

// pauseDriver stops the node that loads a worker for longer than its lease lasts:
// another loads it, and what the first has to say when it goes on comes too late.
func (c *catalogRig) pauseDriver(name string) time.Duration {
	c.t.Helper()
	code, id, driver := c.lateLoad(name)
	healed := c.r.Fault("stop", []string{driver}, "SIGSTOP "+driver+", which loads "+name)
	at := c.r.Now()
	c.Pause(driver)
	close(code.gate)
	return c.finishedAfter(at, id, driver, c.Resume, healed)
}

// finishedAfter waits until a worker runs whose driver was struck, has the driver
// come back, and returns how long the first took; 0 if it was not to be seen.
func (c *catalogRig) finishedAfter(at time.Duration, id, driver string, back func(node string), healed func()) time.Duration {
	c.t.Helper()
	run, ok := c.owner(fsm.WorkerKey(id), at, procSettings.TTL+8*time.Second)
	back(driver)
	c.ready(15*time.Second, driver)
	healed()
	if !ok {
		return 0
	}
	return run.Start - at
}

// crashAll kills a node and all that belongs to it, its guard first of all.
func (c *catalogRig) crashAll(node string) {
	kids := descendants(c.Pid(node))
	c.Crash(node)
	for _, pid := range kids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func (c *catalogRig) again(node string) {
	c.t.Helper()
	if err := c.Start(node, false); err != nil {
		c.t.Fatal(err)
	}
}

// withGuards is a fault: the death of a node with its guard and all that it runs.
func (c *catalogRig) withGuards() jepsen.Fault {
	return jepsen.Fault{
		Name: "kill-all", Needs: []jepsen.Verb{jepsen.VerbCrash}, Weight: 14,
		Inject: func(_ context.Context, _ *jepsen.Nemesis, s jepsen.Step) error { c.crashAll(s.Node); return nil },
		Heal:   func(_ context.Context, n *jepsen.Nemesis, s jepsen.Step) error { return n.C.Start(s.Node, false) },
	}
}

// rested waits until no worker loads and what is to run has somebody who runs it,
// and names all workers.
func (c *catalogRig) rested(within time.Duration) (ids []string) {
	for deadline := c.r.Now() + within; c.r.Now() < deadline; c.pause(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Second)
		all, err := c.API("n1").Workers(ctx)
		cancel()
		rests := err == nil
		ids = nil
		for _, w := range all {
			ids = append(ids, w.WorkerID)
			runs := c.obs.Running(fsm.WorkerKey(w.WorkerID)) > 0
			rests = rests && w.State != "loading" && !(w.State == "running" && !runs)
		}
		if rests {
			break
		}
	}
	return ids
}

// TestProcessCatalog has operators change the workers of three real nodes, over
// HTTP, while drivers of loads are killed and stopped in the middle of them, and
// whatever else the seed says.
func TestProcessCatalog(t *testing.T) {
	processTier(t)
	c := newCatalogRig(t, "workers of processes on loopback")
	octx, stop := context.WithCancel(c.ctx)
	var operating sync.WaitGroup
	for i := range 3 {
		o := c.operator(i)
		operating.Go(func() { o.Run(octx) })
	}
	t.Logf("driver killed, its node stays down: the worker runs after %v", c.killDriver("left", false))
	t.Logf("driver killed, its node starts at once: the worker runs after %v", c.killDriver("back", true))
	t.Logf("driver stopped for longer than the TTL: the worker runs after %v", c.pauseDriver("late"))

	faults := append(catalogFaults(func() string { return c.driver("", c.up(), 0) }), c.withGuards())
	can := slices.DeleteFunc(slices.Clone(faults), func(f jepsen.Fault) bool { return f.Available(c) != nil })
	steps := jepsen.Schedule(cmp.Or(*seedFlag, 1), can, c.Nodes(), cmp.Or(*catalogFlag, 5*time.Second))
	for i := range steps {
		steps[i].For = min(steps[i].For, 4*time.Second)
	}
	(&jepsen.Nemesis{C: c, R: c.r, Faults: faults}).Run(t.Context(), steps)
	stop()
	operating.Wait()
	c.ready(20*time.Second, c.Nodes()...)
	if err := jepsen.CatalogAtRest(t.Context(), c.r, c.at("n2"), c.pool, c.rested(20*time.Second)); err != nil {
		t.Error(err)
	}
	rep := c.finish(steps)
	n := jepsen.CountCatalog(rep.History)
	t.Logf("%+v", n)
	if n.Workers < 8 || n.Changes < 40 || n.Starts < 10 {
		t.Errorf("too little happened to judge by: %+v", n)
	}
}
