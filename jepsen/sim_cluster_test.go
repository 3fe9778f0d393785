package jepsen_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	// group is shared out over the nodes and others; nil: there is none.
	group *groupConfig
	// catalog: every node loads and runs workers; nil: there are none.
	catalog *catalogConfig
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
	// snapshots are taken every few entries, and few entries kept; so it is with
	// every other seed anyway.
	snapshots bool
	// nodes is how many there are; 0: three.
	nodes int
	// dooms are where nodes die in their first start, by name.
	dooms map[string]jepsen.Doom
	// seams, if set, changes those of a node before each of its starts.
	seams func(name string, s *node.Seams)
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

	copies copies

	parked atomic.Pointer[park]
	calm   atomic.Bool // who takes part in a group is to stay as it is
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
	last   *simLife // or the one before; nil: none yet
	boots  int
	paused chan struct{} // open while paused; nil: not

	boot    *boot                  // the newest; guarded by simCluster.mu
	doom    atomic.Pointer[doom]   // where it is to die
	disk    atomic.Pointer[ailing] // in trouble; nil: it is well
	revived atomic.Pointer[func()] // notes that it lives again after it died of a step
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

var _ jepsen.Insides = (*simCluster)(nil)

// newSim makes a cluster of three nodes and starts them. Call it in a bubble.
func newSim(t *testing.T, cfg simConfig) *simCluster {
	if cfg.timing == (node.Timing{}) {
		cfg.timing = simTiming
	}
	s := &simCluster{t: t, cfg: cfg, nodes: map[string]*simNode{}, last: map[string]fsm.EventID{}}
	rng := rand.New(rand.NewPCG(uint64(cfg.seed), 0x636c6f636b))
	for i := range cmp.Or(cfg.nodes, 3) {
		name := fmt.Sprintf("n%d", i+1)
		rate := jepsen.ClockRate(rng)
		if cfg.rates != nil {
			rate = cfg.rates[i]
		}
		s.names = append(s.names, name)
		offset := time.Duration(rng.Int64N(int64(240 * time.Hour)))
		if cfg.catalog != nil { // the wall clock has it too, and would jump with each change of leader
			offset %= time.Second
		}
		s.nodes[name] = &simNode{name: name, index: i, rate: rate, offset: offset}
	}
	wanted, slack := cfg.singletons, 1500*time.Millisecond
	if cfg.group != nil {
		if cfg.group.prepares {
			slack += time.Second // what the work itself takes to get ready
		}
		wanted = append(slices.Clone(wanted), cfg.group.wanted()...)
	}
	s.r = jepsen.NewRecorder(jepsen.Meta{Tier: "simulation", Name: cfg.name, Seed: cfg.seed, Nodes: s.names, Defect: cfg.defect, Bounds: jepsen.Bounds{
		TTL: cfg.timing.SessionTTL, Election: 8 * cfg.timing.RaftTimeout, Slack: slack, Wanted: wanted,
	}})
	s.c = nodetest.New(t, nodetest.Config{
		Nodes: len(s.names), Seed: uint64(cfg.seed), Timing: cfg.timing, Idle: true, Log: s.logger(), Unchecked: cfg.defect != "",
		Clock: func(i int) (float64, time.Duration) { sn := s.nodes[s.names[i]]; return sn.rate, sn.offset },
		Edit:  func(i int, c *node.Config) { c.ID = s.names[i] },
		Seams: func(i int, seams *node.Seams) {
			seams.Defects = cfg.defects
			sn := s.nodes[s.names[i]]
			sn.boot = &boot{s: s, sn: sn, proc: sn.proc()}
			seams.Step, seams.LogStore = sn.boot.step, sn.boot.delay
			if cfg.snapshots || cfg.seed%2 == 1 {
				seams.SnapshotEntries = 50
			}
			seams.Dispatch = func() {
				if p := s.parked.Load(); p != nil && p.node == s.names[i] {
					<-p.until
				}
			}
			if cfg.seams != nil {
				cfg.seams(s.names[i], seams)
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
		if d, ok := cfg.dooms[name]; ok {
			s.Doom(name, d)
		}
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
	return s.start(name, newAddress, func() {})
}

// start starts a node that is down and calls then once it has done so. A node
// that is leaving or about to be gone is waited for, as a supervisor does it.
func (s *simCluster) start(name string, newAddress bool, then func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sn := s.nodes[name]
	if s.ctx.Err() != nil {
		return nil
	}
	if l := sn.last; l != nil && (sn.life == nil || l.leaving) && !l.gone() {
		s.wg.Go(func() {
			<-l.done
			<-l.dead // and so it is no longer the node's life
			if err := s.start(name, newAddress, then); err != nil {
				s.r.Notef(name, "%v", err)
			}
		})
		return nil
	}
	defer then()
	if sn.life != nil {
		return nil
	}
	if newAddress {
		s.c.Move(sn.index)
	}
	err := s.c.TryStart(sn.index)
	sn.boots++
	if err != nil && (sn.boot.dead.Load() || sn.boot.ails.Load()) {
		s.r.Notef(name, "boot %d did not come up: %v", sn.boots, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	l := &simLife{proc: sn.boot.proc, n: s.c.Node(sn.index), done: s.c.Done(sn.index), dead: make(chan struct{})}
	sn.life, sn.last = l, l
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
	if s.cfg.group != nil {
		s.shares(sn, l, s.cfg.group)
	}
	if s.cfg.catalog != nil {
		s.works(sn, l, s.cfg.catalog)
	}
	s.wg.Go(func() { s.follow(sn, l) })
	s.wg.Go(func() { s.sampleEvery(sn, l, 4*time.Second) })
	return nil
}

// proc names the process of the next boot.
func (sn *simNode) proc() string { return fmt.Sprintf("%s/%d", sn.name, sn.boots+1) }

// during returns a context that ends with the life.
func (s *simCluster) during(l *simLife) context.Context {
	ctx, cancel := context.WithCancel(s.ctx)
	s.wg.Go(func() {
		select {
		case <-l.dead:
		case <-ctx.Done():
		}
		cancel()
	})
	return ctx
}

// gone tells whether the life is over and its folder free.
func (l *simLife) gone() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
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

// mend takes back everything that was done to the network and the nodes.
func (s *simCluster) mend() {
	s.net.HealAll()
	for _, name := range s.names {
		s.Resume(name)
		if err := errors.Join(s.Cure(name), s.Revive(name)); err != nil {
			s.t.Error(err)
		}
	}
}

// finish heals everything, lets the cluster come to rest, compares the copies,
// ends the nodes gracefully and returns what was seen.
func (s *simCluster) finish() (*jepsen.History, []jepsen.Verdict) {
	s.mend()
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
