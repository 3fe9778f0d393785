package jepsen_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/jepsen"
	"github.com/miwnode/miwnode/node"
)

// How many seeds of the catalog a CI run has, without and with the race detector.
const (
	catalogSeeds = 64
	catalogRaced = 4
)

// catalogConfig is what the workers of a simulated cluster have in common. Their
// sources tell how they load, and how they run.
type catalogConfig struct {
	pool     *jepsen.CatalogPool
	mu       sync.Mutex
	catalogs map[*simLife]*worker.Catalog // guarded by mu; of lives
	marked   map[string]string            // guarded by mu; the worker that an operator means by a name
}

// simSources are what workers of the simulation are made of, the sound ones first.
var simSources = []string{"good", "slow", "flaky", "good", "slow", "flaky", "hung", "bad", "crash", "done"}

func newCatalogConfig() *catalogConfig {
	return &catalogConfig{pool: &jepsen.CatalogPool{Most: 26, Alive: 10}, catalogs: map[*simLife]*worker.Catalog{}, marked: map[string]string{}}
}

// script is the runtime of one life of a node: what it loads does as its source
// says.
type script struct {
	s  *simCluster
	sn *simNode
	l  *simLife

	mu    sync.Mutex
	rng   *rand.Rand     // guarded by mu
	tries map[string]int // guarded by mu; loads of a worker here
}

func (r *script) Name() string { return worker.RuntimeFunc }

func (r *script) Provides() (all []string) {
	for _, s := range slices.Compact(slices.Sorted(slices.Values(simSources))) {
		all = append(all, worker.RuntimeFunc+":"+s)
	}
	return all
}

func (r *script) Check(worker.Spec) error { return nil }

// Load implements worker.Runtime, in a bubble.
func (r *script) Load(ctx context.Context, p worker.Program) (_ worker.Unit, err error) {
	over := r.s.r.Load(jepsen.Loading{Proc: r.l.proc, Key: fsm.WorkerKey(p.WorkerID), Source: p.Source})
	defer func() { over(err == nil) }()
	r.mu.Lock()
	r.tries[p.WorkerID]++
	try, slow, deaf := r.tries[p.WorkerID], time.Duration(r.rng.Int64N(int64(2*time.Second))), r.rng.IntN(2) == 0
	r.mu.Unlock()
	unit := &scriptUnit{r, p}
	switch p.Source {
	case "slow":
		return unit, r.wait(ctx, slow)
	case "flaky": // twice on each node
		if try <= 2 {
			return nil, errors.New("not yet, as the seed says")
		}
	case "bad":
		return nil, worker.Errorf(worker.TypeInvalidModule, "never, as the seed says")
	case "hung":
		if deaf {
			ctx = context.Background()
		}
		return nil, r.wait(ctx, time.Hour)
	}
	return unit, r.wait(ctx, slow/100)
}

// wait waits for d, for the end of ctx, or of the process, whose loads tell nobody
// anything any more.
func (r *script) wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.l.dead:
		if ctx.Done() != nil {
			<-ctx.Done()
		}
		return context.Canceled
	}
}

type scriptUnit struct {
	r *script
	p worker.Program
}

func (u *scriptUnit) Unload() error { return nil }

// Run implements worker.Unit.
func (u *scriptUnit) Run(ctx context.Context, run worker.Run) error {
	g := jepsen.Grant{Proc: u.r.l.proc, Node: u.r.sn.name, Key: run.Key, Token: run.Token, Valid: run.Lease.Valid, Draining: run.Draining(), Dead: u.r.l.dead}
	if u.p.Source != "crash" && u.p.Source != "done" {
		return u.r.s.work.Do(ctx, g)
	}
	h := u.r.s.r.Start(jepsen.Run{Proc: g.Proc, Node: g.Node, Key: g.Key, Token: g.Token}, g.Valid)
	defer h.Stop()
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-t.C:
		if u.p.Source == "crash" {
			return worker.Errorf(worker.TypeExited, "it crashes, as the seed says")
		}
	case <-run.Draining():
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-g.Dead:
		return context.Canceled
	}
	return nil
}

// works has a life of a node load and run workers, as `miwnode start` does. Its
// Catalog leaves now and then, and comes back. It runs in a bubble.
func (s *simCluster) works(sn *simNode, l *simLife, cfg *catalogConfig) {
	ctx := s.during(l)
	rng := rand.New(rand.NewPCG(uint64(s.cfg.seed), uint64(7000+sn.index*1000+sn.boots)))
	r := &script{s: s, sn: sn, l: l, rng: rand.New(rand.NewPCG(rng.Uint64(), 1)), tries: map[string]int{}}
	cat, err := worker.NewCatalog(l.n, func(c *worker.Config) {
		c.Runtimes = []worker.Runtime{r}
		c.LoadTimeout = 15 * time.Second
		c.RunRestarts, c.RunBackoff = 2, coord.Backoff{Initial: 200 * time.Millisecond, Max: time.Second}
		c.Planning.Backoff = coord.Backoff{Initial: 200 * time.Millisecond, Max: time.Second}
		c.Stuck.Exit = func(int) { s.exit(sn, l, "a worker") }
		c.Logger = s.c.Config(sn.index).Logger
	})
	if err != nil {
		s.t.Error(err)
		return
	}
	cfg.mu.Lock()
	cfg.catalogs[l] = cat
	cfg.mu.Unlock()
	s.wg.Go(func() { s.stays(ctx, sn, rng, cat.Run) })
}

// stays has what a node runs leave now and then, and come back.
func (s *simCluster) stays(ctx context.Context, sn *simNode, rng *rand.Rand, run func(context.Context) error) {
	for ctx.Err() == nil {
		stay := 10*time.Second + time.Duration(rng.Int64N(int64(50*time.Second)))
		away := 500*time.Millisecond + time.Duration(rng.Int64N(int64(5*time.Second)))
		there, leave := context.WithCancel(ctx)
		back := func() {}
		timer := time.AfterFunc(stay, func() {
			if s.calm.Load() {
				return
			}
			back = s.r.Fault(jepsen.FaultAway, []string{sn.name}, sn.name+" runs no workers for "+away.Round(time.Millisecond).String())
			leave()
		})
		_ = run(there)
		left := there.Err() != nil
		timer.Stop()
		leave()
		if left || ctx.Err() == nil {
			time.Sleep(away)
		}
		back()
	}
}

// simCatalog is one life of a node to an operator of workers.
type simCatalog struct {
	simEndpoint
	cat *worker.Catalog
}

// catalogEndpoint returns the way in through a node, nil while it is down.
func (s *simCluster) catalogEndpoint(name string) jepsen.CatalogEndpoint {
	l := s.lifeOf(name)
	if l == nil {
		return nil
	}
	s.cfg.catalog.mu.Lock()
	cat := s.cfg.catalog.catalogs[l]
	s.cfg.catalog.mu.Unlock()
	if cat == nil {
		return nil
	}
	return &simCatalog{simEndpoint{s: s, name: name, l: l}, cat}
}

// keyed proposes under an idempotency key, as the HTTP API does.
type keyed struct {
	n   *node.Node
	key string
}

func (k keyed) View() *fsm.View { return k.n.View() }

func (k keyed) Submit(ctx context.Context, op fsm.Op) (*fsm.Result, error) {
	if k.key == "" {
		return k.n.Propose(ctx, op)
	}
	hash := sha256.Sum256([]byte(k.key)) // the same request each time
	return k.n.Propose(ctx, op, node.WithIdempotency(k.key, hash[:]))
}

// Create implements jepsen.CatalogEndpoint.
func (e *simCatalog) Create(ctx context.Context, key, by string, w jepsen.NewWorker) (id string, etag uint64, err error) {
	err = e.through(ctx, func(ctx context.Context) error {
		got, err := e.cat.Create(ctx, worker.Spec{Name: w.Name, Runtime: worker.RuntimeFunc, Source: w.Source, Tags: w.Tags, Start: w.Start}, worker.By(by), worker.Via(keyed{e.l.n, key}))
		if err == nil {
			id, etag = got.ID, got.Etag
		}
		return err
	})
	return id, etag, err
}

// Change implements jepsen.CatalogEndpoint.
func (e *simCatalog) Change(ctx context.Context, key, by string, c jepsen.WorkerChange) (etag uint64, err error) {
	options := []worker.Option{worker.IfEtag(c.Etag), worker.By(by), worker.Via(keyed{e.l.n, key})}
	err = e.through(ctx, func(ctx context.Context) (err error) {
		switch c.Kind {
		case jepsen.KindStart:
			etag, err = e.cat.Start(ctx, c.ID, options...)
		case jepsen.KindStop:
			etag, err = e.cat.Stop(ctx, c.ID, options...)
		case jepsen.KindReload:
			etag, err = e.cat.Reload(ctx, c.ID, worker.Source{Text: c.Source}, options...)
		case jepsen.KindTag:
			etag, err = e.cat.SetTags(ctx, c.ID, c.Tags, options...)
		case jepsen.KindDelete:
			err = e.cat.Delete(ctx, c.ID, options...)
		}
		return err
	})
	return etag, err
}

// Show implements jepsen.CatalogEndpoint.
func (e *simCatalog) Show(ctx context.Context, id string) (w jepsen.WorkerSeen, etag uint64, err error) {
	err = e.through(ctx, func(ctx context.Context) error {
		v, _, err := e.l.n.Read(ctx, node.Linearizable)
		if err != nil {
			return err
		}
		rec, there := v.Worker(id)
		if !there {
			return fsm.ErrNotFound
		}
		tags := map[string]string{}
		for _, l := range rec.Tags {
			tags[l.Key] = l.Value
		}
		w = jepsen.WorkerSeen{
			Name: rec.Name, Source: rec.History[len(rec.History)-1].Text, State: rec.State.String(), StartRequested: rec.StartRequested,
			KeepsRunning: rec.KeepsRunning, Tags: jepsen.TagText(tags),
		}
		if rec.Error != nil {
			w.Error = rec.Error.Type
		}
		etag = rec.Etag
		return nil
	})
	return w, etag, err
}

// driver is the node that loads a worker just now, "" for none.
func (s *simCluster) driver() string {
	l := s.any()
	if l == nil {
		return ""
	}
	for w := range l.n.View().LoadingWorkers() {
		if lease, driven := l.n.View().Lease(fsm.LoadKey(w.ID)); driven {
			return lease.Who.NodeID
		}
	}
	return ""
}

// workerSteering steers the group of the workers. The names of its workloads
// stand for whichever worker was meant first.
type workerSteering struct{ simSteering }

func (g workerSteering) Members() (all []jepsen.GroupInstance) {
	v := g.view()
	if v == nil {
		return nil
	}
	group, ok := v.Group(fsm.WorkersGroup)
	if !ok {
		return nil
	}
	for _, sess := range group.Members() {
		all = append(all, jepsen.GroupInstance{ID: sess.InstanceID, Node: sess.NodeID, Draining: sess.Draining(), Cordoned: sess.Cordoned()})
	}
	return all
}

// Steer implements jepsen.Steering.
func (g workerSteering) Steer(ctx context.Context, verb, name, to string) error {
	v := g.view()
	if v == nil {
		return fsm.ErrNotReady
	}
	cfg := g.s.cfg.catalog
	cfg.mu.Lock()
	id := cfg.marked[name]
	if _, there := v.Worker(id); !there || verb == "move" || verb == "revoke" {
		var wanted []string
		for w := range v.Workers("") {
			if w.Wanted() {
				wanted = append(wanted, w.ID)
			}
		}
		if len(wanted) > 0 {
			id = wanted[int(v.Revision()+uint64(name[0]))%len(wanted)]
		}
		cfg.marked[name] = id
	}
	cfg.mu.Unlock()
	if id == "" {
		return fsm.ErrNotFound
	}
	switch verb {
	case "move":
		return g.s.submit(ctx, &fsm.MoveWorkload{Group: fsm.WorkersGroup, Workload: id, ToInstance: to, By: "operator"})
	case "pause", "resume":
		return g.s.submit(ctx, &fsm.SetPause{Group: fsm.WorkersGroup, Workload: id, Paused: verb == "pause", By: "operator"})
	case "revoke":
		l, held := v.Lease(fsm.WorkerKey(id))
		if !held {
			return fsm.ErrNotFound
		}
		return g.s.submit(ctx, &fsm.Revoke{Key: l.Key, Token: l.Token, By: "operator"})
	}
	return g.s.submit(ctx, &fsm.SetPin{Group: fsm.WorkersGroup, Workload: id, InstanceId: to, By: "operator"})
}

// relieved takes back what operators have left of pins and pauses.
func (s *simCluster) relieved() {
	l := s.any()
	if l == nil {
		return
	}
	for w := range l.n.View().Workers("") {
		_ = s.submit(s.ctx, &fsm.SetPin{Group: fsm.WorkersGroup, Workload: w.ID, By: "operator"})
		_ = s.submit(s.ctx, &fsm.SetPause{Group: fsm.WorkersGroup, Workload: w.ID, By: "operator"})
	}
}

// workersRest notes how every worker is at rest, and who has how many.
func (s *simCluster) workersRest() {
	l := s.any()
	if l == nil {
		s.t.Error("no node is ready though nothing hinders it")
		return
	}
	v := l.n.View()
	var ids []string
	for w := range v.Workers("") {
		ids = append(ids, w.ID)
	}
	if err := jepsen.CatalogAtRest(s.ctx, s.r, s.catalogEndpoint(l.n.ID()), s.cfg.catalog.pool, ids); err != nil {
		s.t.Error(err)
	}
	g, ok := v.Group(fsm.WorkersGroup)
	if !ok {
		return
	}
	s.r.Rest(s.restOf(l, v, g))
}

// catalogFaults are those of the other workloads but a wall clock that jumps,
// which makes the cluster forget idempotency keys early; and the death of drivers.
func catalogFaults(driver func() string) []jepsen.Fault {
	var faults []jepsen.Fault
	for _, f := range jepsen.AllFaults() {
		if f.Name != "wall-jump" {
			faults = append(faults, f)
		}
	}
	return append(faults, jepsen.CrashDriver(driver))
}

// simulateCatalog runs one seed of the catalog and returns what was seen, to be
// judged. Its faults are catalogFaults.
func simulateCatalog(t *testing.T, cfg simConfig, _ []jepsen.Fault) (*jepsen.History, []jepsen.Step, []jepsen.Verdict) {
	var (
		h     *jepsen.History
		extra []jepsen.Verdict
		steps []jepsen.Step
	)
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(uint64(cfg.seed), 0x6c6f6164))
		length := 30*time.Second + time.Duration(rng.Int64N(int64(40*time.Second)))
		cfg.catalog = newCatalogConfig()
		cfg.restless = -1 // what ends by itself says so by its source
		s := newSim(t, cfg)
		faults := catalogFaults(s.driver)
		if steps = cfg.steps; steps == nil {
			steps = jepsen.Schedule(cfg.seed, faults, s.names, length)
		}
		if !s.ready(30 * time.Second) {
			t.Error("the cluster was not ready within 30 s")
		}
		octx, stop := context.WithCancel(s.ctx)
		var operating sync.WaitGroup
		for i := range 4 {
			o := &jepsen.CatalogOperator{
				Name: fmt.Sprintf("o%d", i+1), R: s.r, Rng: rand.New(rand.NewPCG(uint64(cfg.seed), uint64(200+i))), Nodes: s.names,
				Endpoint: s.catalogEndpoint, Pool: cfg.catalog.pool, Sources: simSources, CallTimeout: 2 * time.Second, Pause: 2 * time.Second,
			}
			operating.Go(func() { o.Run(octx) })
		}
		marks := &jepsen.GroupOperator{R: s.r, Rng: rand.New(rand.NewPCG(uint64(cfg.seed), 0x6f70)), Group: fsm.WorkersGroup, Workloads: []string{"1", "2", "3"}, S: workerSteering{simSteering{s}}}
		operating.Go(func() { marks.Run(octx) })
		(&jepsen.Nemesis{C: s, R: s.r, Faults: faults}).Run(s.ctx, steps)
		stop()
		operating.Wait()

		s.calm.Store(true)
		s.work.Calm()
		s.mend()
		time.Sleep(s.cfg.timing.SessionTTL + 8*s.cfg.timing.RaftTimeout) // whoever has died is gone
		marks.Relieve(s.ctx)
		s.relieved()
		s.settled(50*time.Second, func(l *simLife, v *fsm.View) bool { // loads that hang, one after the other on a node, are given up
			for range v.LoadingWorkers() {
				return false
			}
			return s.even(l, v, fsm.WorkersGroup)
		})
		s.workersRest()
		h, extra = s.finish()
		h.Meta.Bounds.Sound = []string{"good", "slow", "flaky"}
	})
	return h, steps, extra
}

// TestSimCatalog torments the workers of a simulated cluster, one seed after the
// other: operators on all nodes create, start, stop, reload, tag and delete them
// while nodes, the drivers of loads first, die, stand still, restart and are cut
// off.
func TestSimCatalog(t *testing.T) {
	var mu sync.Mutex
	var all jepsen.CatalogCounts
	seeds, runs := 0, 0
	run := func(t *testing.T, cfg simConfig, faults []jepsen.Fault) (*jepsen.History, []jepsen.Step, []jepsen.Verdict) {
		h, steps, extra := simulateCatalog(t, cfg, faults)
		c := jepsen.CountCatalog(h)
		t.Logf("%+v", c)
		if cfg.steps == nil && (c.Workers < 3 || c.Changes < 10 || c.Starts < 3 || c.Loads < 2) {
			t.Errorf("too little happened to judge by: %+v", c)
		}
		mu.Lock()
		defer mu.Unlock()
		all.Add(c)
		seeds++
		runs += len(h.Runs)
		return h, steps, extra
	}
	t.Cleanup(func() {
		t.Logf("all: %+v, %d runs", all, runs)
		// One seed may have few: its workers are stopped and deleted as it says.
		if seeds >= 12 && (runs < 40*seeds || all.Changes < 60*seeds || all.Starts < 25*seeds || all.Loads < 18*seeds) {
			t.Errorf("too little happened to judge by in %d seeds", seeds)
		}
	})
	torments(t, catalogSeeds, catalogRaced, func(seed int64) torment {
		return torment{run: run, cfg: simConfig{seed: seed, name: "workers under random faults", stubborn: 60}}
	}, func(c jepsen.Counts) bool {
		return c.Grants >= 8 && c.Runs >= 2 && c.Faults >= 2 && c.Rests == 1
	})
}
