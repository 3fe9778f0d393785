package coord

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// WorkloadFunc is the work of a Coordinator: one call runs one workload. It runs
// while the lease is held, must return soon after ctx ends, and may ask
// context.Cause(ctx) why it ended.
type WorkloadFunc func(ctx context.Context, w Workload, l *Lease) error

// CoordinatorConfig sets a Coordinator up. Zero fields mean their defaults.
type CoordinatorConfig struct {
	// RestartDelay is the time between a run that returned nil and the next of
	// the same workload. Defaults to the node's renew interval; negative means
	// none.
	RestartDelay time.Duration
	// Prepare, if set, gets ready what a workload needs before this instance
	// takes it over: when it is named the successor, while the old owner goes
	// on, who is asked to stop only when Prepare has returned nil. One that
	// fails, or takes longer than PrepareTimeout, leaves the old owner running.
	// One that drains, or whose node closes, is asked to stop when half of its
	// drain timeout is over, whoever is ready, and at once where nobody else can
	// have the workload. What nobody runs is granted first and prepared under the
	// new lease. The context ends, too, when the workload is not to come here
	// after all.
	Prepare func(ctx context.Context, w Workload) error
	// PrepareTimeout bounds Prepare. Defaults to 5 min.
	PrepareTimeout time.Duration
	// Forget, if set, is called when a workload has gone from here, or is not to
	// come here after all: what Prepare got ready is of no use any more. No run
	// of it is under way then, but the workload may be coming here again.
	Forget func(w Workload)

	// DrainTimeout is how long a run may go on once it was asked to finish.
	// Defaults to the node's.
	DrainTimeout time.Duration
	// KillTimeout is how long a run may take to return once its context was
	// cancelled, before it counts as stuck. Defaults to the node's.
	KillTimeout time.Duration
	// Drainable is called before each run, on the run's goroutine, for what is
	// to be asked to finish that run: nothing is carried over from one run to
	// the next. It may return nil. Work may watch Lease.Draining instead.
	Drainable func(w Workload) Drainable
	// Stuck says what happens to a run that does not return when it must.
	Stuck StuckConfig

	// Planning is how the group is planned while this instance does it.
	Planning Planning
	// Hooks is called once for each workload that comes here, for what is to be
	// told of it. Of a run that failed, Hooks.Returned tells; Failed and Stopped
	// are not called.
	Hooks func(w Workload) Hooks
	// Logger takes the log; nil discards it.
	Logger *slog.Logger
}

// DefaultPrepareTimeout bounds a Prepare.
const DefaultPrepareTimeout = 5 * time.Minute

// Validate reports every fault of c at once.
func (c CoordinatorConfig) Validate() error {
	return errors.Join(notNegative("PrepareTimeout", c.PrepareTimeout),
		DrainConfig{Timeout: c.DrainTimeout, KillTimeout: c.KillTimeout}.Validate(), c.Stuck.Validate(), c.Planning.Validate())
}

func (c CoordinatorConfig) withDefaults(cl Cluster) CoordinatorConfig {
	c.RestartDelay = max(0, cmp.Or(c.RestartDelay, cl.RenewInterval()))
	c.PrepareTimeout = cmp.Or(c.PrepareTimeout, DefaultPrepareTimeout)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, cl.DrainTimeout())
	c.KillTimeout = cmp.Or(c.KillTimeout, cl.KillTimeout())
	c.Stuck = c.Stuck.withDefaults(cl, PolicyExit)
	if c.Logger == nil {
		c.Logger = discard
	}
	return c
}

// Coordinator is one instance's part in a group: it declares what this instance
// can run, runs what the group grants it, and takes its turn at planning. It is
// safe for concurrent use.
type Coordinator struct {
	c         Cluster
	group     Group
	run       WorkloadFunc
	cfg       CoordinatorConfig
	log       *slog.Logger
	workloads map[string]*Workload // nil where the state has them
	catalog   string               // its hash
	parts     []*fsm.PutCatalog
	planner   *planner
	running   atomic.Bool
	stopping  atomic.Bool // Run is to return: runs may finish

	mu     sync.Mutex
	posts  map[string]*post // by workload
	joined bool
	fault  string // why it has not joined
}

// NewCoordinator makes a Coordinator of g for this instance; each option may
// change the configuration:
//
//	coord.NewCoordinator(n, coord.Group{Name: "shards", Workloads: shards}, run, func(c *coord.CoordinatorConfig) {
//		c.Prepare = warmUp
//	})
//
// Everything is checked here, and all faults are reported at once, as
// fsm.ErrInvalidArgument.
func NewCoordinator(c Cluster, g Group, run WorkloadFunc, options ...func(*CoordinatorConfig)) (*Coordinator, error) {
	var cfg CoordinatorConfig
	for _, set := range options {
		set(&cfg)
	}
	errs := []error{g.Validate(), cfg.Validate()}
	if c == nil {
		errs = append(errs, errors.New("the cluster is nil"))
	}
	if run == nil {
		errs = append(errs, errors.New("the function is nil"))
	}
	err := errors.Join(errs...)
	var hash string
	var parts []*fsm.PutCatalog
	if err == nil && len(g.Runtimes) == 0 {
		hash, parts, err = fsm.NewCatalog(g.specs())
	}
	if err != nil {
		return nil, &fsm.Error{Code: fsm.CodeInvalidArgument, Message: fmt.Sprintf("group %q: %v", g.Name, err)}
	}
	co := &Coordinator{
		c: c, group: g, run: run, cfg: cfg.withDefaults(c), catalog: hash, parts: parts, posts: make(map[string]*post),
	}
	co.group.Workloads, co.group.Runtimes = slices.Clone(g.Workloads), slices.Compact(slices.Sorted(slices.Values(g.Runtimes)))
	if len(g.Runtimes) == 0 {
		co.workloads = make(map[string]*Workload, len(g.Workloads))
	}
	for i := range co.group.Workloads {
		w := &co.group.Workloads[i]
		co.workloads[w.Key] = w
	}
	co.log = co.cfg.Logger.With(slog.String("group", g.Name))
	co.planner = newPlanner(c, g.Name, g.Assigner, co.cfg.Planning, co.log)
	return co, nil
}

// Run joins the group and runs what it grants this instance, until ctx ends or
// the node closes. It joins again with each new session. An instance that
// drains stays a member and gets nothing; undrained, it gets its share again.
//
// The end of ctx is a drain of this Coordinator: all runs are asked to finish,
// at once and for up to the drain timeout; the group learns that they are to
// go elsewhere; each lease passes on as its run returns; then Run returns nil.
// Under PolicyHold it waits for a stuck run for ever, and says so.
//
// Nothing that a workload does ends Run: one that fails or panics is released,
// with its error, and given to another instance.
//
// Run returns ErrRunning while it runs already, and fsm.ErrWrongState while
// another Coordinator of the same group runs on the same node.
func (c *Coordinator) Run(ctx context.Context) error {
	if !c.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer c.running.Store(false)
	lo := lookoutFor(c.c)
	defer lo.leave()
	if !lo.enlist(c.group.Name) {
		return fsm.Errorf(fsm.CodeWrongState, "a coordinator of the group %q runs on this node already", c.group.Name)
	}
	defer lo.discharge(c.group.Name)
	newShift(c, lo).run(ctx)
	return nil
}

// find returns a workload that this instance can run, nil if it is none.
func (c *Coordinator) find(key string) *Workload {
	if c.workloads != nil {
		return c.workloads[key]
	}
	g, ok := c.c.View().Group(c.group.Name)
	if !ok {
		return nil
	}
	spec, ok := g.Wanted(key)
	if !ok {
		return nil
	}
	return workloadFrom(spec)
}

// graceful tells whether what moves may finish first: the group's settings say
// so, or this Coordinator is being stopped.
func (c *Coordinator) graceful() bool {
	if c.stopping.Load() {
		return true
	}
	if c.workloads == nil { // nobody sets up a group of the state's own
		return c.group.Rebalance == RebalanceGraceful
	}
	g, ok := c.c.View().Group(c.group.Name)
	return ok && g.Settings.Rebalance == fsm.RebalanceGraceful
}

// handsOver tells whether a workload of this instance is not to be drained before
// somebody else is ready for it: somebody else can have it.
func (c *Coordinator) handsOver(workload string) bool {
	if c.cfg.Prepare == nil {
		return false
	}
	g, known := c.c.View().Group(c.group.Name)
	if !known {
		return false
	}
	for _, s := range g.Members() {
		if s.InstanceID != c.c.InstanceID() && g.CanRun(s.InstanceID, workload) {
			return true
		}
	}
	return false
}

// CoordinatorStatus is a snapshot of a Coordinator.
type CoordinatorStatus struct {
	Group  string
	Joined bool
	// Error says why it has not joined; "" if nothing hinders it.
	Error string
	// Runs are the workloads that are here, or are prepared for, in key order.
	Runs    []Status
	Planner PlannerStatus
}

// Status tells what the Coordinator is doing.
func (c *Coordinator) Status() CoordinatorStatus {
	c.mu.Lock()
	s := CoordinatorStatus{Group: c.group.Name, Joined: c.joined, Error: c.fault}
	for _, p := range c.posts {
		s.Runs = append(s.Runs, p.runner.Status())
	}
	c.mu.Unlock()
	slices.SortFunc(s.Runs, func(a, b Status) int { return cmp.Compare(a.Key, b.Key) })
	s.Planner = c.planner.state()
	return s
}

// Why explains where a workload of the group is, and why. It is the package's
// Why, with this Coordinator's Assigner.
func (c *Coordinator) Why(workload string) (*Explanation, error) {
	return Why(c.c.View(), c.group.Name, workload, c.group.Assigner)
}

// WhatIf returns what would move after a change. It is the package's WhatIf,
// with this Coordinator's Assigner.
func (c *Coordinator) WhatIf(change Change) ([]PlannedMove, error) {
	return WhatIf(c.c.View(), c.group.Name, change, c.group.Assigner)
}
