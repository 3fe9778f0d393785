package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/load"
	"github.com/miwnode/miwnode/node"
)

// benchCluster is three nodes in this process, on loopback and on disk.
type benchCluster struct {
	nodes  []*node.Node
	stop   context.CancelFunc
	ended  sync.WaitGroup
	leader int
	dir    string
	addrs  []string
}

// startCluster returns three ready nodes that share one view of who leads.
func (b *bench) startCluster(ctx context.Context) (*benchCluster, error) {
	dir, err := os.MkdirTemp(b.dir, "cluster-")
	if err != nil {
		return nil, err
	}
	c := &benchCluster{stop: func() {}, dir: dir}
	if c.addrs, err = freeAddrs(3); err == nil {
		err = c.boot(ctx)
	}
	if err == nil {
		err = c.ready(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// boot starts the nodes, again if they have ended, and doesn't wait for them.
func (c *benchCluster) boot(ctx context.Context) error {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.stop, c.nodes = stop, nil
	for i, addr := range c.addrs {
		n, err := node.New(node.Config{DataDir: filepath.Join(c.dir, strconv.Itoa(i)), Bind: addr, Join: c.addrs, BootstrapExpect: 3})
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, n)
		c.ended.Go(func() { _ = n.Run(life) })
	}
	return nil
}

// ready waits until all nodes are, with their sessions.
func (c *benchCluster) ready(ctx context.Context) error {
	for _, n := range c.nodes {
		select {
		case <-n.Ready():
		case <-ctx.Done():
			return ctx.Err()
		}
		if _, err := n.Session(ctx); err != nil {
			return err
		}
	}
	for i, n := range c.nodes {
		if n.Status().Role == node.RoleLeader {
			c.leader = i
		}
	}
	return nil
}

// end ends the nodes gracefully; their folders stay.
func (c *benchCluster) end() {
	c.stop()
	c.ended.Wait()
}

func (c *benchCluster) close() error {
	c.end()
	return os.RemoveAll(c.dir)
}

func (c *benchCluster) follower(i int) *node.Node { return c.nodes[(c.leader+1+i)%3] }

// inCluster runs one cell in a cluster of its own.
func (b *bench) inCluster(ctx context.Context, cell func(c *benchCluster) (load.Row, error)) (load.Row, error) {
	c, err := b.startCluster(ctx)
	if err != nil {
		return load.Row{}, err
	}
	row, err := cell(c)
	return row, errors.Join(err, c.close())
}

func benchStart(ctx context.Context, b *bench) (load.Row, error) {
	begin := time.Now()
	return b.inCluster(ctx, func(c *benchCluster) (load.Row, error) {
		l, err := coord.Acquire(ctx, c.nodes[0], "bench/start")
		if err != nil {
			return load.Row{}, err
		}
		took := time.Since(begin)
		return load.Row{P50: load.MS(took)}, l.Release(ctx)
	})
}

func benchPairsLeader(ctx context.Context, b *bench) (load.Row, error) {
	return b.inCluster(ctx, func(c *benchCluster) (load.Row, error) {
		return b.pairs(ctx, 1, func(int) *node.Node { return c.nodes[c.leader] })
	})
}

func benchPairsFollower(ctx context.Context, b *bench) (load.Row, error) {
	return b.inCluster(ctx, func(c *benchCluster) (load.Row, error) {
		return b.pairs(ctx, 1, func(int) *node.Node { return c.follower(0) })
	})
}

func benchPairsSpread(ctx context.Context, b *bench) (load.Row, error) {
	return b.inCluster(ctx, func(c *benchCluster) (load.Row, error) {
		return b.pairs(ctx, 128, func(caller int) *node.Node { return c.nodes[caller%3] })
	})
}

func (b *bench) pairs(ctx context.Context, callers int, at func(caller int) *node.Node) (load.Row, error) {
	return load.Repeat(ctx, b.duration, callers, func(ctx context.Context, caller int) error {
		l, err := coord.Acquire(ctx, at(caller), "bench/pairs/"+strconv.Itoa(caller))
		if err != nil {
			return err
		}
		return l.Release(ctx)
	})
}

// benchRenewals has 128 client sessions renewed through the two followers, so
// that every keep-alive travels to the leader and is proved there.
func benchRenewals(ctx context.Context, b *bench) (load.Row, error) {
	return b.inCluster(ctx, func(c *benchCluster) (load.Row, error) {
		const callers = 128
		ids := make([]string, callers)
		for i := range ids {
			ids[i] = fmt.Sprintf("%032x", i+1)
			r, err := c.nodes[c.leader].Submit(ctx, &fsm.OpenSession{SessionId: ids[i], TtlMs: 10_000})
			if err == nil {
				err = fsm.ResultErr(r)
			}
			if err != nil {
				return load.Row{}, err
			}
		}
		return load.Repeat(ctx, b.duration, callers, func(ctx context.Context, caller int) error {
			_, err := c.follower(caller%2).KeepAlive(ctx, ids[caller])
			return err
		})
	})
}

// benchHandover: released on one follower until the other's copy shows its waiter granted.
func benchHandover(ctx context.Context, b *bench) (load.Row, error) {
	return b.inCluster(ctx, func(c *benchCluster) (load.Row, error) {
		var gaps []time.Duration
		for i := range 300 {
			from, to := c.follower(i%2), c.follower(1-i%2)
			key := "bench/handover/" + strconv.Itoa(i)
			held, err := coord.Acquire(ctx, from, key)
			if err != nil {
				return load.Row{}, err
			}
			granted, stop := grantSeen(ctx, to, key)
			got := make(chan error, 1)
			var next *coord.Lease
			go func() {
				var err error
				next, err = coord.Acquire(ctx, to, key)
				got <- err
			}()
			if err := waitFor(ctx, to, fsm.QueueTopic(key), func(v *fsm.View) bool { return v.WaiterCount(key) == 1 }); err != nil {
				return load.Row{}, err
			}
			begin := time.Now()
			if err := held.Release(ctx); err != nil {
				return load.Row{}, err
			}
			gaps = append(gaps, (<-granted).Sub(begin))
			stop()
			if err := <-got; err != nil {
				return load.Row{}, err
			}
			if err := next.Release(ctx); err != nil {
				return load.Row{}, err
			}
		}
		return load.Row{P50: load.MS(load.Quantile(gaps, 0.5)), P99: load.MS(load.Quantile(gaps, 0.99))}, nil
	})
}

// grantSeen tells when n's copy shows the key held by n's own instance.
func grantSeen(ctx context.Context, n *node.Node, key string) (at <-chan time.Time, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	seen := make(chan time.Time, 1)
	go func() {
		err := waitFor(ctx, n, fsm.LeaseTopic(key), func(v *fsm.View) bool {
			l, ok := v.Lease(key)
			return ok && l.Who.InstanceID == n.InstanceID()
		})
		if err == nil {
			seen <- time.Now()
		}
	}()
	return seen, cancel
}

// waitFor returns once n's copy satisfies until.
func waitFor(ctx context.Context, n *node.Node, topic string, until func(*fsm.View) bool) error {
	wake, stop := n.Watch(topic)
	defer stop()
	for !until(n.View()) {
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func benchReadsLocal(ctx context.Context, b *bench) (load.Row, error) {
	return b.inCluster(ctx, func(c *benchCluster) (load.Row, error) {
		n := c.follower(0)
		l, err := coord.Acquire(ctx, n, "bench/reads")
		if err != nil {
			return load.Row{}, err
		}
		defer l.Release(ctx)
		const reads = 1_000_000
		begin := time.Now()
		for range reads {
			if _, ok := n.View().Lease("bench/reads"); !ok {
				return load.Row{}, errors.New("the copy lost a lease that is held")
			}
		}
		took := time.Since(begin)
		return load.Row{Callers: 1, PerS: reads / took.Seconds(), P50: float64(took.Nanoseconds()) / reads / 1e6}, nil
	})
}

func benchReadsLinearizable(ctx context.Context, b *bench) (load.Row, error) {
	return b.inCluster(ctx, func(c *benchCluster) (load.Row, error) {
		n := c.follower(0)
		return load.Repeat(ctx, b.duration, 1, func(ctx context.Context, _ int) error {
			_, _, err := n.Read(ctx, node.Linearizable)
			return err
		})
	})
}

// benchDrain: 100 runners of one node stand by on the others; every run stamps
// its start and end with one observer.
func benchDrain(ctx context.Context, b *bench) (load.Row, error) {
	return b.inCluster(ctx, func(c *benchCluster) (load.Row, error) {
		const singletons = 100
		life, stop := context.WithCancel(ctx)
		watch := newStamps()
		var runners sync.WaitGroup
		defer runners.Wait()
		defer stop()
		victim := c.follower(0)
		for _, n := range []*node.Node{victim, c.follower(1), c.nodes[c.leader]} {
			for i := range singletons {
				key := "bench/drain/" + strconv.Itoa(i)
				r := coord.NewRunner(n, key, func(ctx context.Context, l *coord.Lease) error {
					defer watch.begin(key, n.ID())()
					select {
					case <-l.Draining():
					case <-ctx.Done():
					}
					return nil
				})
				runners.Go(func() { _ = r.Run(life) })
			}
			if n == victim {
				if err := watch.wait(ctx, func(by map[string]int) bool { return by[victim.ID()] == singletons }); err != nil {
					return load.Row{}, err
				}
			}
		}
		queued := func(v *fsm.View) bool {
			for i := range singletons {
				if v.WaiterCount("bench/drain/"+strconv.Itoa(i)) < 2 {
					return false
				}
			}
			return true
		}
		if err := waitFor(ctx, victim, fsm.AllTopic, queued); err != nil {
			return load.Row{}, err
		}
		begin := time.Now()
		r, err := victim.Submit(ctx, &fsm.MarkInstance{InstanceId: victim.InstanceID(), Mark: fsm.MarkDrain, By: "bench"})
		if err == nil {
			err = fsm.ResultErr(r)
		}
		if err != nil {
			return load.Row{}, err
		}
		err = watch.wait(ctx, func(by map[string]int) bool {
			return by[victim.ID()] == 0 && by[c.follower(1).ID()]+by[c.nodes[c.leader].ID()] == singletons
		})
		row := load.Row{P50: load.MS(time.Since(begin)), Overlap: watch.overlaps}
		return row, err
	})
}

// stamps is one observer of many runs: it knows who runs what, and whether two
// ever ran one key at once.
type stamps struct {
	mu       sync.Mutex
	owner    map[string]string    // by key
	by       map[string]int       // runs by owner
	ended    map[string]time.Time // the last run, by key
	gaps     []time.Duration      // from the end of a run to the start of the next of its key
	overlaps int
	changed  chan struct{}
}

func newStamps() *stamps {
	return &stamps{owner: map[string]string{}, by: map[string]int{}, ended: map[string]time.Time{}, changed: make(chan struct{}, 1)}
}

// begin notes a start; what it returns notes the end.
func (s *stamps) begin(key, owner string) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner[key] != "" {
		s.overlaps++
	}
	if ended, before := s.ended[key]; before {
		s.gaps = append(s.gaps, time.Since(ended))
	}
	s.owner[key] = owner
	s.by[owner]++
	s.poke()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.owner[key] == owner {
			s.owner[key] = ""
		}
		s.ended[key] = time.Now()
		s.by[owner]--
		s.poke()
	}
}

func (s *stamps) gapsSoFar() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.gaps)
}

func (s *stamps) poke() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// wait returns once until is true of the numbers of runs by owner.
func (s *stamps) wait(ctx context.Context, until func(by map[string]int) bool) error {
	for {
		s.mu.Lock()
		done := until(s.by)
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
