package jepsen_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
	"github.com/miwnode/miwnode/node"
)

// TestDefect_Raft switches on bugs in what the node does around raft.
func TestDefect_Raft(t *testing.T) {
	if raceEnabled {
		t.Skip("planted bugs are hunted without the race detector")
	}
	var (
		d1, d2 = &disks{}, &disks{}
		g      = &gate{}
	)
	for _, d := range []drill{
		{name: "a new leader serves before its barrier", defects: node.Defects{NoBarrier: true}, want: jepsen.CheckRegister, edit: d1.install, schedule: d1.unheardCommit},
		{name: "acknowledged before the leader's disk has it", defects: node.Defects{AckBeforeDisk: true}, want: jepsen.CheckRegister, edit: d2.install, schedule: d2.hangingLeader},
		{name: "a nudge with the state of an earlier term", defects: node.Defects{FormerNudge: true}, want: jepsen.CheckHash, edit: g.install, schedule: g.wrongSuffix},
	} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			directed(t, d)
		})
	}
}

// disks holds up what nodes write to their logs.
type disks struct {
	mu    sync.Mutex
	hangs map[string]chan struct{} // by node; a write fails once its channel is closed
}

func (d *disks) install(cfg *simConfig) {
	d.hangs = map[string]chan struct{}{}
	cfg.singletons = nil
	cfg.seams = func(name string, s *node.Seams) {
		s.LogStore = func(int) error {
			d.mu.Lock()
			c := d.hangs[name]
			d.mu.Unlock()
			if c == nil {
				return nil
			}
			<-c
			return errDied
		}
	}
}

var errDied = errors.New("the process died in the middle of a write")

func (d *disks) hang(name string) (die func()) {
	c := make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hangs[name] = c
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.hangs, name)
		close(c)
	}
}

// asker is a client whose calls a schedule makes one by one, in a bubble.
type asker struct {
	s   *simCluster
	st  *jepsen.Stream
	rng *rand.Rand
}

func (s *simCluster) asker(name string) *asker {
	return &asker{s: s, st: s.r.Stream(name), rng: rand.New(rand.NewPCG(uint64(s.cfg.seed), 0x61736b))}
}

// open opens a session through a node.
func (a *asker) open(ctx context.Context, via string) string {
	p := a.st.Call(jepsen.Op{Node: via, Kind: jepsen.KindOpen})
	id, _, err := a.s.endpoint(via, a.rng).Open(ctx, "asker", 60*time.Second, false)
	a.ends(p, 0, err)
	return id
}

// acquire asks for a key, and tells whether it was granted.
func (a *asker) acquire(ctx context.Context, via, key, session string) bool {
	p := a.st.Call(jepsen.Op{Node: via, Kind: jepsen.KindAcquire, Key: key})
	token, _, err := a.s.endpoint(via, a.rng).Acquire(ctx, key, session, "asker")
	a.ends(p, token, err)
	return err == nil
}

// read reads who holds a key.
func (a *asker) read(ctx context.Context, via, key string) error {
	p := a.st.Call(jepsen.Op{Node: via, Kind: jepsen.KindRead, Key: key})
	token, err := a.s.endpoint(via, a.rng).Read(ctx, key)
	a.ends(p, token, err)
	return err
}

func (a *asker) ends(p *jepsen.Pending, got uint64, err error) {
	if err != nil {
		p.Uncertain(err.Error())
		return
	}
	p.OK(got)
}

// unheardCommit has a leader commit and answer what a follower has in its log
// but has not heard to be committed, and makes that one lead: it may not be
// asked before its first entry is committed, for which a disk lets it wait.
//
//	a leads; c is cut off; answers of b take 100 ms
//	 0 ms  the grant reaches b
//	50 ms  b does not hear from a any more
//	100 ms a has b's answer: committed, and answered to the client
//	  …    a is gone, c is back, and gives b its vote, but its disk hangs
func (d *disks) unheardCommit(t *testing.T, s *simCluster) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	a := s.leads("")
	b, c := s.others(a)[0], s.others(a)[1]
	client := s.asker("c1")
	session := client.open(ctx, a)
	time.Sleep(time.Second)

	healed := s.r.Fault("cut", []string{a, b, c}, a+" is cut off from "+c+", then from all")
	s.net.Isolate(c)
	s.net.SetDelay(b, a, 100*time.Millisecond, 0)
	time.AfterFunc(50*time.Millisecond, func() { s.net.CutOneWay(a, b) })
	if !client.acquire(ctx, a, "raw1", session) {
		t.Errorf("%s did not grant the key", a)
	}
	s.net.Isolate(a)
	die := d.hang(c)
	s.net.Rejoin(c)
	for range 400 {
		if s.leaderAmong([]string{b}) != "" {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	rctx, stop := context.WithTimeout(ctx, time.Second)
	err := client.read(rctx, b, "raw1")
	stop()
	s.r.Notef(b, "leads, and was asked: %v", err)
	go s.Crash(c)
	time.Sleep(100 * time.Millisecond)
	die()
	time.Sleep(5 * time.Second)
	s.mend()
	healed()
	time.Sleep(5 * time.Second)
	if err := client.read(ctx, b, "raw1"); err != nil {
		t.Errorf("read at the end: %v", err)
	}
}

// hangingLeader has one follower write what the leader's disk does not, and
// takes both away: what the leader died with is on the disk of the follower that
// does not come back.
func (d *disks) hangingLeader(t *testing.T, s *simCluster) {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	a := s.leads("")
	b, c := s.others(a)[0], s.others(a)[1]
	client := s.asker("c1")
	session := client.open(ctx, a)
	time.Sleep(time.Second)

	healed := s.r.Fault("slow-disk", []string{a, b, c}, "the disk of "+a+" hangs; then it dies, and "+b+" with it")
	s.net.Isolate(c)
	die := d.hang(a)
	actx, stop := context.WithTimeout(ctx, time.Second)
	answered := client.acquire(actx, a, "raw1", session)
	stop()
	s.r.Notef(a, "its disk hangs; the acquire was answered: %v", answered)
	go s.Crash(a)
	s.net.Isolate(b)
	time.Sleep(100 * time.Millisecond)
	die()
	time.Sleep(5 * time.Second)
	s.net.Rejoin(c)
	if err := s.Start(a, false); err != nil {
		t.Error(err)
	}
	for s.leaderAmong([]string{a, c}) == "" && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
	if err := client.read(ctx, c, "raw1"); err != nil {
		t.Errorf("read: %v", err)
	}
	s.net.Rejoin(b)
	healed()
}

// gate holds up a node that has just been elected, before the first entry of
// its term goes out.
type gate struct {
	held atomic.Pointer[heldLeader]
}

type heldLeader struct {
	sim     *simCluster
	name    string
	reached chan struct{}
	until   chan struct{}
	once    sync.Once
}

func (g *gate) install(cfg *simConfig) {
	cfg.nodes, cfg.rates = 5, []float64{1, 1, 1, 1, 1}
	// Nobody may lose a session meanwhile: what a leader writes is counted.
	cfg.timing.SessionTTL, cfg.timing.Margin = 20*time.Second, 2*time.Second
	cfg.singletons = nil
	cfg.seams = func(name string, seams *node.Seams) {
		seams.Dispatch = func() {
			h := g.held.Load()
			if h == nil || h.name != name {
				return
			}
			if l := h.sim.lifeOf(name); l == nil || l.n.Status().Role != node.RoleLeader {
				return
			}
			h.once.Do(func() { close(h.reached) })
			<-h.until
		}
	}
}

// elect has only the links of a left, so that nobody else can win, and returns
// once it has, but before its first entry has gone out; pass lets that go.
func (g *gate) elect(t *testing.T, s *simCluster, a string) (pass func()) {
	h := &heldLeader{sim: s, name: a, reached: make(chan struct{}), until: make(chan struct{})}
	g.held.Store(h)
	s.star(a)
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	select {
	case <-h.reached:
	case <-limit.C:
		t.Errorf("%s was not elected", a)
	}
	g.held.Store(nil)
	return func() { close(h.until) }
}

// star cuts all links but those of a.
func (s *simCluster) star(a string) {
	s.net.HealAll()
	others := s.others(a)
	for i, x := range others {
		for _, y := range others[i+1:] {
			s.net.Cut(x, y)
		}
	}
}

// apart cuts the nodes off from the others.
func (s *simCluster) apart(nodes ...string) {
	for _, x := range nodes {
		for _, y := range s.others(nodes...) {
			s.net.Cut(x, y)
		}
	}
}

// wrongSuffix has a follower keep entries of a reign that was overwritten, and
// makes the leader of that reign lead again:
//
//	a is elected three times, and each time reaches nobody but c
//	the others elect one of themselves; a follows it and loses what it wrote, c does not
//	a leads again: it commits less than c once acknowledged, of the reign before
func (g *gate) wrongSuffix(t *testing.T, s *simCluster) {
	first := s.leads("")
	a, c := s.others(first)[0], s.others(first)[1]
	rest := s.others(a, c)
	time.Sleep(2 * time.Second)
	healed := s.r.Fault("cut", slices.Clone(s.names), "nobody but "+a+" can be elected, and reaches nobody but "+c)
	for range 3 {
		pass := g.elect(t, s, a)
		s.apart(a, c)
		pass()
		for range 100 { // until it has missed the majority; c has what it wrote
			time.Sleep(10 * time.Millisecond)
			if s.lifeOf(a).n.Status().Role != node.RoleLeader {
				break
			}
		}
	}
	s.net.HealAll()
	s.apart(a)
	s.apart(c)
	s.r.Notef("", "%v are among themselves", rest)
	var second string
	for range 500 {
		if second = s.leaderAmong(rest); second != "" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if second == "" {
		t.Errorf("none of %v leads", rest)
		return
	}
	time.Sleep(20 * time.Millisecond) // its first entries are committed
	for _, x := range rest {
		s.net.Heal(a, x)
	}
	for range 1000 {
		if s.lifeOf(a).n.View().Revision() >= s.lifeOf(second).n.View().Revision() && s.lifeOf(a).n.Status().LeaderID == second {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.r.Notef(a, "follows %s: revision %d", second, s.lifeOf(a).n.View().Revision())
	s.net.Heal(a, c)
	s.net.SetDelay(a, c, 50*time.Millisecond, 0)
	s.net.SetDelay(c, a, 50*time.Millisecond, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := s.lifeOf(second).n.StepDown(ctx, a); err != nil {
		t.Errorf("hand over to %s: %v", a, err)
	}
	time.Sleep(2 * time.Second)
	s.net.HealAll()
	healed()
}
