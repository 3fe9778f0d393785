package jepsen_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/jepsen"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
	"github.com/miwnode/miwnode/transport/memnet"
)

// simConfig says what a simulated cluster is like.
type simConfig struct {
	seed    int64
	name    string
	defect  string
	defects node.Defects
	timing  node.Timing
	// rates of the nodes' clocks; nil: drawn within 2.5 % of the true one.
	rates []float64
	// singletons are run by every node; nil: none, a test runs its own work.
	singletons []string
	// handles are the keys that every node takes by hand, too.
	handles []string
	// operator: somebody drains, cordons, revokes and transfers.
	operator bool
	// stubborn, if not 0, is one in how many runs must be ended by force.
	stubborn int
	// late work always uses up its stop budget.
	late bool
	// restless, if not 0, is how many runs of a hundred end by themselves; -1 none.
	restless int
	// steps are carried out instead of what the seed draws.
	steps []jepsen.Step
	// lasts is the shortest time that a fault lasts.
	lasts time.Duration
}

// simTiming is what the simulation runs on: short enough for many faults a
// minute, within the rules of node.Config.
var simTiming = node.Timing{
	SessionTTL: 4 * time.Second, RenewInterval: 800 * time.Millisecond, Margin: 400 * time.Millisecond, StopBudget: 500 * time.Millisecond,
	DrainTimeout: 2 * time.Second, KillTimeout: time.Second, RaftTimeout: 300 * time.Millisecond,
}

// simCluster is a cluster in a bubble: real raft, real transport code, real
// files, on a network in memory and clocks that differ. It implements Cluster.
type simCluster struct {
	t    *testing.T
	cfg  simConfig
	c    *nodetest.Cluster
	net  *memnet.Net
	r    *jepsen.Recorder
	work *jepsen.Work
	ctx  context.Context // ends the work, the readers and the clients
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu    sync.Mutex
	names []string
	nodes map[string]*simNode
	last  map[string]fsm.EventID // of each reader
	slow  []string               // ends that took longer than they may

	parked atomic.Pointer[park]
}

// park holds a node's writes to its log up.
type park struct {
	node  string
	until chan struct{}
}

// simNode is one member, through all its lives.
type simNode struct {
	name   string
	index  int // in nodetest.Cluster
	rate   float64
	offset time.Duration
	life   *simLife // nil: down
	boots  int
	paused chan struct{} // open while paused; nil: not
}

// simLife is one boot of a node.
type simLife struct {
	proc string
	n    *node.Node
	dead chan struct{}   // closed once nothing of it acts any more
	done <-chan struct{} // Run has returned
	once sync.Once
	// killed: it did not end by itself. Guarded by simCluster.mu.
	killed bool
	// leaving: told to end gracefully. Guarded by simCluster.mu.
	leaving bool
}

var _ jepsen.Cluster = (*simCluster)(nil)

// newSim makes a cluster of three nodes and starts them. Call it in a bubble.
func newSim(t *testing.T, cfg simConfig) *simCluster {
	if cfg.timing == (node.Timing{}) {
		cfg.timing = simTiming
	}
	s := &simCluster{t: t, cfg: cfg, nodes: map[string]*simNode{}, last: map[string]fsm.EventID{}}
	rng := rand.New(rand.NewPCG(uint64(cfg.seed), 0x636c6f636b))
	for i := range 3 {
		name := fmt.Sprintf("n%d", i+1)
		rate := jepsen.ClockRate(rng)
		if cfg.rates != nil {
			rate = cfg.rates[i]
		}
		s.names = append(s.names, name)
		s.nodes[name] = &simNode{name: name, index: i, rate: rate, offset: time.Duration(rng.Int64N(int64(240 * time.Hour)))}
	}
	s.r = jepsen.NewRecorder(jepsen.Meta{Tier: "simulation", Name: cfg.name, Seed: cfg.seed, Nodes: s.names, Defect: cfg.defect, Bounds: jepsen.Bounds{
		TTL: cfg.timing.SessionTTL, Election: 8 * cfg.timing.RaftTimeout, Slack: 1500 * time.Millisecond, Wanted: cfg.singletons,
	}})
	s.c = nodetest.New(t, nodetest.Config{
		Nodes: len(s.names), Seed: uint64(cfg.seed), Timing: cfg.timing, Idle: true, Log: s.logger(), Unchecked: cfg.defect != "",
		Clock: func(i int) (float64, time.Duration) { sn := s.nodes[s.names[i]]; return sn.rate, sn.offset },
		Edit:  func(i int, c *node.Config) { c.ID = s.names[i] },
		Seams: func(i int, seams *node.Seams) {
			seams.Defects = cfg.defects
			seams.LogStore = func(int) error {
				if p := s.parked.Load(); p != nil && p.node == s.names[i] {
					<-p.until
				}
				return nil
			}
		},
	})
	s.net = s.c.Net
	s.net.SetDefault(time.Millisecond, time.Millisecond, 0)
	s.work = jepsen.NewWork(s.r, cfg.seed, cfg.timing.StopBudget)
	s.work.Stubborn, s.work.Late = cfg.stubborn, cfg.late
	if cfg.restless != 0 {
		s.work.Restless = cfg.restless
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	for _, name := range s.names {
		sn := s.nodes[name]
		s.r.Notef(name, "clock at rate %.4f, offset %v", sn.rate, sn.offset.Round(time.Second))
		if err := s.Start(name, false); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// Nodes implements jepsen.Cluster.
func (s *simCluster) Nodes() []string { return s.names }

func (s *simCluster) node(name string) *simNode { return s.nodes[name] }

func (s *simCluster) clock(name string) *node.TestClock { return s.c.Clock(s.nodes[name].index) }

// lifeOf returns the running life of a node, nil if it is down.
func (s *simCluster) lifeOf(name string) *simLife {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[name].life
}

// Up implements jepsen.Cluster.
func (s *simCluster) Up(name string) bool { return s.lifeOf(name) != nil }

// Leader implements jepsen.Cluster: the one that leads in the highest term.
func (s *simCluster) Leader() string {
	best, term := "", uint64(0)
	for _, name := range s.names {
		if l := s.lifeOf(name); l != nil {
			if st := l.n.Status(); st.Role == "leader" && st.Term > term {
				best, term = name, st.Term
			}
		}
	}
	return best
}

// Can implements jepsen.Cluster.
func (s *simCluster) Can(jepsen.Verb) error { return nil }

// Start implements jepsen.Cluster.
func (s *simCluster) Start(name string, newAddress bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sn := s.nodes[name]
	if l := sn.life; l != nil && l.leaving && s.ctx.Err() == nil {
		s.wg.Go(func() { // as a supervisor does: once the process has ended
			<-l.done
			if err := s.Start(name, newAddress); err != nil {
				s.r.Notef(name, "%v", err)
			}
		})
		return nil
	}
	if sn.life != nil || s.ctx.Err() != nil {
		return nil
	}
	if newAddress {
		s.c.Move(sn.index)
	}
	if err := s.c.TryStart(sn.index); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	sn.boots++
	l := &simLife{proc: fmt.Sprintf("%s/%d", name, sn.boots), n: s.c.Node(sn.index), done: s.c.Done(sn.index), dead: make(chan struct{})}
	sn.life = l
	s.r.Notef(name, "boot %d", sn.boots)
	s.wg.Go(func() {
		<-l.done
		s.ended(sn, l)
	})
	for _, key := range s.cfg.singletons {
		s.singleton(sn, l, key)
	}
	if len(s.cfg.handles) > 0 {
		s.handles(sn, l, s.cfg.handles)
	}
	s.wg.Go(func() { s.follow(sn, l) })
	s.wg.Go(func() { s.sampleEvery(sn, l, 2*time.Second) })
	return nil
}

// ended notes that a life is over, however it ended.
func (s *simCluster) ended(sn *simNode, l *simLife) {
	s.mu.Lock()
	if sn.life == l {
		sn.life = nil
	}
	killed := l.killed
	s.mu.Unlock()
	if !killed {
		s.r.Notef(sn.name, "left: %v", cmp.Or(s.c.Err(sn.index), errors.New("well")))
	}
	l.over(s.r, "left")
}

// over ends everything that the process does, as far as anybody can see.
func (l *simLife) over(r *jepsen.Recorder, how string) {
	l.once.Do(func() {
		r.Kill(l.proc, how)
		close(l.dead)
	})
}

// exit is the end of a process whose work would not stop; as a supervisor
// would, the cluster starts it again soon.
func (s *simCluster) exit(sn *simNode, l *simLife, key string) {
	healed := s.r.Fault("exit", []string{sn.name}, sn.name+" ends itself: "+key+" would not stop")
	s.end(sn, l, "exit")
	s.wg.Go(func() {
		defer healed()
		t := time.NewTimer(2 * time.Second)
		defer t.Stop()
		select {
		case <-t.C:
			if err := s.Start(sn.name, false); err != nil {
				s.r.Notef(sn.name, "%v", err)
			}
		case <-s.ctx.Done():
		}
	})
}

// Crash implements jepsen.Cluster.
func (s *simCluster) Crash(name string) {
	sn := s.node(name)
	if l := s.lifeOf(name); l != nil {
		s.end(sn, l, "crash")
		<-l.done // its files are closed; nothing of it was told to anybody
	}
}

// end is kill -9 of one life.
func (s *simCluster) end(sn *simNode, l *simLife, how string) {
	s.mu.Lock()
	if sn.life != l {
		s.mu.Unlock()
		return
	}
	sn.life, l.killed = nil, true
	s.mu.Unlock()
	s.resume(sn)
	l.over(s.r, how)
	s.wg.Go(func() { s.c.Crash(sn.index) }) // not waited for: it may be the node's own goroutine that ends here
}

// Pause implements jepsen.Cluster: nothing goes in or out, its clock rings no
// alarm, its work stands still, and what clients ask it waits.
func (s *simCluster) Pause(name string) {
	s.mu.Lock()
	sn := s.nodes[name]
	if sn.life == nil || sn.paused != nil {
		s.mu.Unlock()
		return
	}
	l := sn.life
	sn.paused = make(chan struct{})
	s.mu.Unlock()
	s.r.Pause(l.proc)
	s.c.Pause(sn.index)
}

func (s *simCluster) paused(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[name].paused != nil
}

// Resume implements jepsen.Cluster.
func (s *simCluster) Resume(name string) { s.resume(s.node(name)) }

func (s *simCluster) resume(sn *simNode) {
	s.mu.Lock()
	paused, l := sn.paused, sn.life
	sn.paused = nil
	s.mu.Unlock()
	if paused == nil {
		return
	}
	s.c.Resume(sn.index)
	close(paused)
	if l != nil {
		s.r.Resume(l.proc)
	}
}

// Leave implements jepsen.Cluster. It returns at once: the node ends by itself,
// and must do so within bounds.
func (s *simCluster) Leave(_ context.Context, name string) error {
	s.resume(s.node(name))
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.nodes[name].life
	if l == nil || l.leaving {
		return nil
	}
	l.leaving = true
	healed := s.r.Fault("leaving", []string{name}, "leaving "+name)
	s.wg.Go(func() {
		defer healed()
		s.leaves(s.nodes[name], l)
	})
	return nil
}

// leaves ends a life gracefully and holds that to its bound: drain and kill
// time-outs, a TTL for work that can't be handed over, and what the calls may take.
func (s *simCluster) leaves(sn *simNode, l *simLife) {
	s.wg.Go(func() { _ = s.c.Stop(sn.index) }) // noted by ended
	bound := s.cfg.timing.DrainTimeout + s.cfg.timing.KillTimeout + s.cfg.timing.SessionTTL + 10*time.Second
	t := time.NewTimer(bound)
	defer t.Stop()
	select {
	case <-l.done:
	case <-t.C:
		s.mu.Lock()
		s.slow = append(s.slow, fmt.Sprintf("%s has not left %v after it was told to; runs: %+v", l.proc, bound, l.n.Runs()))
		s.mu.Unlock()
		s.end(sn, l, "crash")
	}
}

// StepDown implements jepsen.Cluster.
func (s *simCluster) StepDown(ctx context.Context) error {
	name := s.Leader()
	if name == "" {
		return errors.New("nobody leads")
	}
	l := s.lifeOf(name)
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return l.n.StepDown(ctx, "")
}

// Cut implements jepsen.Cluster.
func (s *simCluster) Cut(from, to string) { s.net.CutOneWay(from, to) }

// Mend implements jepsen.Cluster.
func (s *simCluster) Mend(from, to string) { s.net.HealOneWay(from, to) }

// Shape implements jepsen.Cluster.
func (s *simCluster) Shape(from, to string, delay, jitter time.Duration, loss float64) {
	s.net.SetDelay(from, to, max(delay, time.Millisecond), max(jitter, time.Millisecond))
	s.net.SetLoss(from, to, loss)
}

// SetRate implements jepsen.Cluster.
func (s *simCluster) SetRate(name string, rate float64) { s.clock(name).SetRate(rate) }

// Suspend implements jepsen.Cluster.
func (s *simCluster) Suspend(name string, d time.Duration) { s.clock(name).Suspend(d) }

// StepWall implements jepsen.Cluster.
func (s *simCluster) StepWall(name string, d time.Duration) { s.clock(name).StepWall(d) }

// ready waits until every node is ready; false: not within d.
func (s *simCluster) ready(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for _, name := range s.names {
		l := s.lifeOf(name)
		if l == nil {
			return false
		}
		select {
		case <-l.n.Ready():
		case <-l.done:
			s.t.Logf("%s ended: %v", name, s.c.Err(s.nodes[name].index))
			return false
		case <-t.C:
			s.t.Logf("%s: %v", name, l.n.ReadyErr())
			return false
		}
	}
	return true
}

// finish heals everything, lets the cluster come to rest, compares the copies,
// ends the nodes gracefully and returns what was seen.
func (s *simCluster) finish() (*jepsen.History, []jepsen.Verdict) {
	s.net.HealAll()
	for _, name := range s.names {
		s.Resume(name)
		if err := s.Start(name, false); err != nil {
			s.t.Error(err)
		}
	}
	rest := s.cfg.timing.SessionTTL + 8*s.cfg.timing.RaftTimeout + 4*time.Second
	time.Sleep(rest)
	for range 40 { // until no entry is under way
		revisions := map[uint64]bool{}
		for _, name := range s.names {
			if l := s.lifeOf(name); l != nil {
				revisions[s.sample(name, l, l.n.View())] = true
			}
		}
		if len(revisions) == 1 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	h := s.r.Finish()
	s.stop()
	var lives []*simLife
	for _, name := range s.names {
		if l := s.lifeOf(name); l != nil {
			lives = append(lives, l)
			s.wg.Go(func() { s.leaves(s.nodes[name], l) })
		}
	}
	for _, l := range lives {
		<-l.done
	}
	s.wg.Wait()
	return h, []jepsen.Verdict{{Check: "bounded-leave", OK: len(s.slow) == 0, Checked: len(lives), Faults: s.slow}}
}
