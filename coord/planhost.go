package coord

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/miwnode/miwnode/fsm"
)

// PlannerConfig sets a Planner up. Zero fields mean their defaults.
type PlannerConfig struct {
	// Planning is how groups are planned while this node does it.
	Planning Planning
	// Logger takes the log; nil discards it.
	Logger *slog.Logger
}

// Planner plans for the groups that no Coordinator has joined: all their members
// came over the API. One node at a time plans for each of them, with the
// built-in assigners; every node should run a Planner. Where a Coordinator joins,
// the Planner leaves the group to it. It is safe for concurrent use.
type Planner struct {
	c       Cluster
	cfg     PlannerConfig
	running atomic.Bool

	mu     sync.Mutex
	groups map[string]*hosted
}

// hosted is a group for which this node queues.
type hosted struct {
	planner *planner
	cancel  context.CancelFunc
	done    chan struct{}
}

// NewPlanner makes a Planner. Faults of the configuration are fsm.ErrInvalidArgument.
func NewPlanner(c Cluster, options ...func(*PlannerConfig)) (*Planner, error) {
	var cfg PlannerConfig
	for _, set := range options {
		set(&cfg)
	}
	errs := []error{cfg.Planning.Validate()}
	if c == nil {
		errs = append(errs, errors.New("the cluster is nil"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, &fsm.Error{Code: fsm.CodeInvalidArgument, Message: fmt.Sprintf("planner: %v", err)}
	}
	if cfg.Logger == nil {
		cfg.Logger = discard
	}
	return &Planner{c: c, cfg: cfg, groups: make(map[string]*hosted)}, nil
}

// Run plans until ctx ends or the node closes. It costs nothing while no group
// changes. It returns ErrRunning while it runs already, else nil.
func (p *Planner) Run(ctx context.Context) error {
	if !p.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer p.running.Store(false)
	wake, unwatch := p.c.Watch(fsm.GroupsTopic)
	defer unwatch()
	defer p.end()
	since := p.survey()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.c.Closing():
			return nil
		case <-wake:
		}
		v := p.c.View()
		events, whole := v.Events(since)
		if !whole {
			since = p.survey()
			continue
		}
		since = fsm.AfterRevision(v.Revision())
		for e := range events {
			if e.Type == fsm.EventGroupUpdated {
				p.consider(v, e.Key)
			}
		}
	}
}

// survey looks at all groups, and returns up to where the events are dealt with.
func (p *Planner) survey() fsm.EventID {
	v := p.c.View()
	for _, name := range p.names() {
		p.consider(v, name)
	}
	for g := range v.Groups() {
		p.consider(v, g.Name)
	}
	return fsm.AfterRevision(v.Revision())
}

// consider begins, or ceases, to queue for planning a group.
func (p *Planner) consider(v *fsm.View, group string) {
	g, known := v.Group(group)
	self, live := v.Instance(p.c.InstanceID())
	mine := known && !g.Embedded() && g.MemberCount() > 0 && g.Settings.Assigner != fsm.AssignCustom
	if live {
		mine = mine && g.MayPlan(self)
	}
	h := p.hosted(group)
	switch {
	case mine && h == nil:
		ctx, cancel := context.WithCancel(context.Background())
		h = &hosted{planner: newPlanner(p.c, group, nil, p.cfg.Planning, p.cfg.Logger.With(slog.String("group", group))), cancel: cancel, done: make(chan struct{})}
		p.mu.Lock()
		p.groups[group] = h
		p.mu.Unlock()
		go func() {
			defer close(h.done)
			_ = h.planner.runner().Run(ctx) // it ends with ctx only
		}()
	case !mine && h != nil:
		p.mu.Lock()
		delete(p.groups, group)
		p.mu.Unlock()
		h.cancel()
		<-h.done
	}
}

func (p *Planner) hosted(group string) *hosted {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.groups[group]
}

func (p *Planner) names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for name := range p.groups {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// end gives all groups up, at once.
func (p *Planner) end() {
	p.mu.Lock()
	all := p.groups
	p.groups = make(map[string]*hosted)
	p.mu.Unlock()
	for _, h := range all {
		h.cancel()
	}
	for _, h := range all {
		<-h.done
	}
}

// Status tells, for each group that is this node's to plan for, how it does.
func (p *Planner) Status() []PlannerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []PlannerStatus
	for _, h := range p.groups {
		all = append(all, h.planner.state())
	}
	slices.SortFunc(all, func(a, b PlannerStatus) int { return strings.Compare(a.Group, b.Group) })
	return all
}
