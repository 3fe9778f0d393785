package coord_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// works makes workloads of those keys.
func works(keys ...string) (all []coord.Workload) {
	for _, k := range keys {
		all = append(all, coord.Workload{Key: k})
	}
	return all
}

// many makes n workloads.
func many(n int) (all []coord.Workload) {
	for i := range n {
		all = append(all, coord.Workload{Key: fmt.Sprintf("w%05d", i)})
	}
	return all
}

// team runs Coordinators of one group, and sees their runs.
type team struct {
	t     *testing.T
	w     *coordtest.World
	group coord.Group
	watch observer
	// work is what a run does when it was noted; nil: it waits for its end.
	work    func(ctx context.Context, who string, w coord.Workload, l *coord.Lease) error
	options []func(*coord.CoordinatorConfig)
}

func newTeam(t *testing.T, w *coordtest.World, g coord.Group, options ...func(*coord.CoordinatorConfig)) *team {
	return &team{t: t, w: w, group: g, options: options}
}

// mate is one of them.
type mate struct {
	*coordtest.Instance
	name string
	co   *coord.Coordinator
	stop context.CancelFunc
	done chan struct{}
	err  error
	dead atomic.Bool
}

// join adds an instance with a Coordinator of the team's group.
func (m *team) join(name string) *mate {
	m.t.Helper()
	return m.joinWith(name, m.group)
}

func (m *team) joinWith(name string, g coord.Group, options ...func(*coord.CoordinatorConfig)) *mate {
	m.t.Helper()
	return m.coordinate(m.w.Join(name), name, g, options...)
}

func (m *team) coordinate(i *coordtest.Instance, name string, g coord.Group, options ...func(*coord.CoordinatorConfig)) *mate {
	m.t.Helper()
	a := &mate{Instance: i, name: name, done: make(chan struct{})}
	co, err := coord.NewCoordinator(i, g, func(ctx context.Context, w coord.Workload, l *coord.Lease) error {
		if a.dead.Load() { // nothing runs there any more, but for the test's own sake
			<-ctx.Done()
			return nil
		}
		defer m.watch.enter(name, l)()
		if m.work != nil {
			return m.work(ctx, name, w, l)
		}
		<-ctx.Done()
		return nil
	}, slices.Concat([]func(*coord.CoordinatorConfig){func(c *coord.CoordinatorConfig) {
		c.Stuck.Exit = func(int) { m.t.Errorf("the process of %s was to end", name) }
	}}, m.options, options)...)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	a.co, a.stop = co, cancel
	go func() {
		defer close(a.done)
		a.err = co.Run(ctx)
	}()
	m.t.Cleanup(func() { _ = a.leave() })
	return a
}

// leave stops the Coordinator and waits for it.
func (a *mate) leave() error {
	a.stop()
	<-a.done
	return a.err
}

// crash ends the process.
func (m *team) crash(a *mate) {
	a.dead.Store(true)
	a.Crash()
	m.watch.kill(a.name)
}

// settle gives the group a while.
func settle() {
	time.Sleep(5 * time.Second)
	synctest.Wait()
}

// running says who runs what now: "a: w1 w2 | b: w3".
func (o *observer) running() string {
	by := o.byOwner()
	var out []string
	for _, who := range slices.Sorted(maps.Keys(by)) {
		out = append(out, who+": "+strings.Join(by[who], " "))
	}
	return strings.Join(out, " | ")
}

// byOwner lists the workloads that run, by who runs them.
func (o *observer) byOwner() map[string][]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	by := make(map[string][]string)
	for key, runs := range o.runs {
		for _, r := range runs {
			if r.end.IsZero() {
				_, workload, _ := strings.Cut(key, "/")
				by[r.who] = append(by[r.who], workload)
			}
		}
	}
	for _, keys := range by {
		slices.Sort(keys)
	}
	return by
}

// count is how many runs each has now: "a 3, b 4".
func (o *observer) count() string {
	by := o.byOwner()
	var out []string
	for _, who := range slices.Sorted(maps.Keys(by)) {
		out = append(out, fmt.Sprint(who, " ", len(by[who])))
	}
	return strings.Join(out, ", ")
}

// starts counts the runs of a workload so far.
func (m *team) starts(workload string) int {
	return len(m.watch.of(fsm.WorkloadKey(m.group.Name, workload)))
}

// Ensures that instances that declare a group share its workloads, that one that
// joins gets its part, and that one that leaves leaves nothing behind.
func TestCoordinator_SharesOut(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		m := newTeam(t, w, coord.Group{Name: "g", Workloads: many(12)})
		a, b := m.join("a"), m.join("b")
		settle()
		equal(t, m.watch.count(), "a 6, b 6", "runs")
		c := m.join("c")
		time.Sleep(time.Minute)
		equal(t, m.watch.count(), "a 4, b 4, c 4", "runs with a third")

		equal(t, c.leave(), nil, "Run of c")
		equal(t, len(c.Runs())+c.Claims(), 0, "runs and claims left with c")
		settle()
		equal(t, m.watch.count(), "a 6, b 6", "runs without it")
		equal(t, a.leave(), nil, "Run of a")
		settle()
		equal(t, m.watch.count(), "b 12", "runs of the last")
		equal(t, b.leave(), nil, "Run of b")
		equal(t, w.View().LeaseCount(), 0, "leases left")
		m.watch.check(t)
	})
}
