package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miwnode/miwnode/artifact"
	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
)

// Catalog is one instance's part in the workers of the cluster: it loads them
// and runs those that the group of workers grants it. As a Client it changes and
// reads the catalog, too. It is safe for concurrent use.
type Catalog struct {
	*Client
	c        coord.Cluster
	cfg      Config
	log      *slog.Logger
	runtimes map[string]Runtime
	provides map[string]bool
	crew     *coord.Coordinator
	slots    chan struct{} // of loads under way that count
	suspects chan struct{} // one, of the load under way whose drivers died several times
	loads    atomic.Int64  // under way
	shelf    shelf
	running  atomic.Bool
	asked    chan string    // workers that this instance was asked to load
	strays   sync.WaitGroup // loads that were given up and have yet to return
}

// NewCatalog makes a Catalog of this instance; each option may change the
// configuration:
//
//	worker.NewCatalog(n, func(c *worker.Config) {
//		c.Runtimes = []worker.Runtime{worker.Funcs(map[string]func(context.Context, worker.Run) error{"mail": mail})}
//	})
//
// All faults are reported at once, as fsm.ErrInvalidArgument.
func NewCatalog(c coord.Cluster, options ...func(*Config)) (*Catalog, error) {
	var cfg Config
	for _, set := range options {
		set(&cfg)
	}
	err := cfg.Validate()
	if c == nil {
		err = errors.Join(err, errors.New("the cluster is nil"))
	}
	if err != nil {
		return nil, invalid("catalog of workers", err)
	}
	cfg = cfg.withDefaults(c)
	cat := &Catalog{
		Client: NewClient(c), c: c, cfg: cfg, log: cfg.Logger,
		runtimes: make(map[string]Runtime), provides: make(map[string]bool),
		slots: make(chan struct{}, cfg.MaxLoads), suspects: make(chan struct{}, 1), asked: make(chan string, 1024),
	}
	group := coord.Group{Name: fsm.WorkersGroup, Rebalance: coord.RebalanceGraceful}
	for _, r := range cfg.Runtimes {
		cat.runtimes[r.Name()] = r
		for _, p := range r.Provides() {
			cat.provides[p] = true
			group.Runtimes = append(group.Runtimes, p)
		}
	}
	cat.shelf.unload = cat.unload
	cat.crew, err = coord.NewCoordinator(c, group, cat.host, func(cc *coord.CoordinatorConfig) {
		cc.Prepare, cc.Forget = cat.prepare, cat.forget
		cc.PrepareTimeout = cfg.LoadTimeout
		cc.DrainTimeout, cc.KillTimeout, cc.Stuck = cfg.DrainTimeout, cfg.KillTimeout, cfg.Stuck
		cc.Planning, cc.Logger = cfg.Planning, cfg.Logger
	})
	if err != nil {
		return nil, fmt.Errorf("catalog of workers: %w", err)
	}
	return cat, nil
}

// Run loads and runs workers until ctx ends or the node closes. Then loads are
// given up, for others to take over, runs are asked to finish, for up to the
// drain timeout, and their workers pass on; then Run returns nil.
//
// Nothing that a worker does, or that is wrong with one, ends Run.
//
// Run returns coord.ErrRunning while it runs already, and fsm.ErrWrongState
// while another Catalog runs on the same node.
func (c *Catalog) Run(ctx context.Context) error {
	if !c.running.CompareAndSwap(false, true) {
		return coord.ErrRunning
	}
	defer c.running.Store(false)
	loads, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		newForeman(c).run(loads)
	}()
	err := c.crew.Run(ctx)
	end()
	<-done
	c.shelf.clear()
	c.awaitStrays()
	return err
}

// call calls a hook.
func (c *Catalog) call(hook func()) {
	defer func() {
		if v := recover(); v != nil {
			c.log.Error("a hook panicked", slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		}
	}()
	hook()
}

// awaitStrays waits for loads that were given up and ignore that, for a while.
func (c *Catalog) awaitStrays() {
	done := make(chan struct{})
	go func() {
		c.strays.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(c.cfg.KillTimeout):
		c.log.Error("loads that were given up have not returned; leaving them behind", slog.Duration("after", c.cfg.KillTimeout))
	}
}

// Create records a worker as Client.Create does, and has this instance load it
// first. Before that its runtime has checked the worker, if this instance has
// it, and a Source that is a path was read: the record names its digest, so that
// other instances know what they are to get.
func (c *Catalog) Create(ctx context.Context, s Spec, options ...Option) (Worker, error) {
	err := c.Check(s)
	if err != nil {
		return Worker{}, err
	}
	if s.SHA256, err = c.digest(ctx, s.Runtime, s.Source, s.SHA256); err != nil {
		return Worker{}, invalid(fmt.Sprintf("create worker %q", s.Name), err)
	}
	w, err := c.Client.Create(ctx, s, options...)
	if err == nil {
		c.load(w.ID)
	}
	return w, err
}

// Reload is to Client.Reload what Create is to Client.Create.
func (c *Catalog) Reload(ctx context.Context, id string, s Source, options ...Option) (etag uint64, err error) {
	if w, err := c.Get(id); err == nil {
		if s.SHA256, err = c.digest(ctx, w.Runtime, s.Text, s.SHA256); err != nil {
			return 0, invalid("reload worker "+id, err)
		}
	}
	etag, err = c.Client.Reload(ctx, id, s, options...)
	if err == nil {
		c.load(id)
	}
	return etag, err
}

// load has this instance load the worker, if its Catalog runs.
func (c *Catalog) load(id string) {
	select {
	case c.asked <- id:
	default: // it will hear of it from the state
	}
}

// Check refuses what Client.Check does, and what no instance could run or this
// one's runtime sees to be wrong.
func (c *Catalog) Check(s Spec) error {
	if err := c.Client.Check(s); err != nil {
		return err
	}
	return invalid(fmt.Sprintf("create worker %q", s.Name), c.fits(s))
}

func (c *Catalog) fits(s Spec) error {
	r, known := c.runtimes[s.Runtime]
	switch {
	case known && c.provides[needs(s.Runtime, s.Source)]:
		return r.Check(s)
	case known, s.Runtime == RuntimeFunc, s.Runtime == RuntimeExec, s.Runtime == RuntimeWasm:
		return nil // others may have it
	}
	return fmt.Errorf("no runtime %q: there are %s, %s and %s", s.Runtime, RuntimeFunc, RuntimeExec, RuntimeWasm)
}

// digest is that of the code, which is read now if it is a file of this node.
// Where there is none, loading will say so.
func (c *Catalog) digest(ctx context.Context, runtime, source, sha256 string) (string, error) {
	if sha256 != "" || source == "" || runtime == RuntimeFunc || c.cfg.Artifacts == nil || strings.HasPrefix(source, artifact.Scheme) || artifact.IsURL(source) {
		return sha256, nil
	}
	code, err := c.cfg.Artifacts.Fetch(ctx, source, "")
	switch {
	case errors.Is(err, ErrSourceNotFound):
		return "", nil
	case errors.Is(err, ErrFetchFailed): // it may be the disk of this node
		return "", fsm.Errorf(fsm.CodeInternal, "read and keep %s on this node: %v", source, err)
	case err != nil:
		return "", fmt.Errorf("read %s on this node: %w", source, err)
	}
	return code.SHA256(), nil
}

// needs is what an instance must provide to run a source of a runtime.
func needs(runtime, source string) string {
	return (&fsm.Worker{Runtime: runtime}).Needs(&fsm.Source{Text: source})
}

// Status is a snapshot of a Catalog.
type Status struct {
	coord.CoordinatorStatus
	// Loads are how many loads are under way here.
	Loads int
}

// Status tells what the Catalog is doing.
func (c *Catalog) Status() Status {
	return Status{CoordinatorStatus: c.crew.Status(), Loads: int(c.loads.Load())}
}
