package jepsen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// Member is a program in another language that takes part in a group: an
// instance with a session of its own, which is granted workloads by its
// keep-alives. It runs each from the answer that lists it, for as long as the
// contract lets it, and gives back what has ended. As the seed says it joins,
// leaves, closes its session, and goes away without a word.
type Member struct {
	Name, Group string
	// TTL is that of its sessions, Renew the interval of its keep-alives.
	TTL, Renew time.Duration
	// Stop is the longest that its work takes to stop when it is told to.
	Stop time.Duration
	R    *Recorder
	Rng  *rand.Rand // owned by the member
	Rate float64    // of its clock
	// Nodes and Endpoint are the ways in; an endpoint is nil while its node is down.
	Nodes    []string
	Endpoint func(node string) Endpoint
	// Calm tells whether it is to stay as it is; nil: never.
	Calm func() bool

	lives int // sessions opened so far
}

// duty is one workload that a member has.
type duty struct {
	token uint64
	stop  func()        // tells the work to end
	done  chan struct{} // closed when it has
	gone  atomic.Bool   // the cluster was told that it has
}

// attendance is one session of a member.
type attendance struct {
	m     *Member
	who   string
	id    string
	talks context.Context // ends when it says nothing any more

	mu     sync.Mutex
	until  map[uint64]time.Duration // guarded by mu; of a grant, by the observer's clock
	duties map[string]*duty         // owned by tend
	last   map[string]uint64        // owned by tend: the newest token that was dealt with
	wg     sync.WaitGroup
}

// Run takes part until ctx ends; what runs then has ended when it returns.
func (m *Member) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if a := m.open(ctx); a != nil {
			a.attend(ctx)
		}
		sleep(ctx, draw(m.Rng, 300*time.Millisecond, 4*time.Second))
	}
}

func (m *Member) via() Endpoint {
	for _, i := range m.Rng.Perm(len(m.Nodes)) {
		if e := m.Endpoint(m.Nodes[i]); e != nil {
			return e
		}
	}
	return nil
}

func (m *Member) local(d time.Duration) time.Duration { return time.Duration(float64(d) / m.Rate) }

// open opens a session and joins the group with it; nil if that fails.
func (m *Member) open(ctx context.Context) *attendance {
	e := m.via()
	if e == nil {
		return nil
	}
	m.lives++
	a := &attendance{m: m, who: fmt.Sprintf("%s.%d", m.Name, m.lives), until: map[uint64]time.Duration{}, duties: map[string]*duty{}, last: map[string]uint64{}}
	octx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var err error
	if a.id, _, err = e.Open(octx, a.who, m.TTL, true); err != nil {
		return nil
	}
	for try := range 5 {
		if e = m.via(); e == nil {
			continue
		}
		jctx, cancel := context.WithTimeout(ctx, time.Second)
		err = e.Join(jctx, m.Group, a.id)
		cancel()
		if err == nil || errors.Is(err, fsm.ErrSessionExpired) || ctx.Err() != nil {
			break
		}
		m.R.Notef(a.who, "join %s, try %d: %v", m.Group, try+1, err)
	}
	// An answer that was lost may have been a yes: it tends what it is granted.
	return a
}

// Ways in which an attendance ends.
const (
	leavesGroup  = iota // it leaves the group, gives back what it has, and closes its session
	closes              // it stops what it has and closes its session
	goesSilently        // it says nothing any more, and stops what it has when its trust is used up
)

// attend keeps the session alive until the seed says otherwise, or it is lost.
func (a *attendance) attend(ctx context.Context) {
	m := a.m
	talks, fallSilent := context.WithCancel(ctx)
	defer fallSilent()
	defer a.wg.Wait() // for what is to be given back
	a.talks = talks
	how := [...]int{leavesGroup, leavesGroup, leavesGroup, closes, goesSilently}[m.Rng.IntN(5)]
	leaveAt := m.R.Now() + draw(m.Rng, 5*time.Second, 40*time.Second)
	m.R.Notef(a.who, "joins %s", m.Group)
	left := false
	for a.tend(ctx) {
		switch now := m.R.Now(); {
		case now < leaveAt || m.Calm != nil && m.Calm():
		case how == goesSilently:
			m.R.Notef(a.who, "says nothing any more")
			fallSilent()
			return
		case how == closes:
			a.close(ctx)
			return
		case !left:
			if e := m.via(); e != nil {
				lctx, cancel := context.WithTimeout(ctx, m.Renew)
				left = e.LeaveGroup(lctx, m.Group, a.id) == nil
				cancel()
			}
		case len(a.duties) == 0:
			a.close(ctx)
			return
		}
		sleep(ctx, m.local(m.Renew))
	}
	a.stopAll()
}

// close closes the session after its work.
func (a *attendance) close(ctx context.Context) {
	a.stopAll()
	a.m.R.Notef(a.who, "closes its session")
	if e := a.m.via(); e != nil {
		cctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = e.Close(cctx, a.id) // else it runs out
	}
}

func (a *attendance) stopAll() {
	for _, d := range a.duties {
		d.stop()
	}
	for _, d := range a.duties {
		<-d.done
	}
}

// tend is one keep-alive and what follows from it; false when the session is
// lost or ctx has ended.
func (a *attendance) tend(ctx context.Context) bool {
	e := a.m.via()
	if e == nil {
		return ctx.Err() == nil
	}
	sent := a.m.R.Now() // trust counts from here, however late the answer comes
	kctx, cancel := context.WithTimeout(ctx, a.m.Renew)
	trusted, leases, err := e.KeepAlive(kctx, a.id)
	cancel()
	if errors.Is(err, fsm.ErrSessionExpired) || ctx.Err() != nil {
		return false
	}
	if err != nil {
		return true // what it has ends by itself when its trust does
	}
	held := map[string]uint64{}
	a.mu.Lock()
	for _, l := range leases {
		if l.Held && l.Group == a.m.Group {
			held[l.Key] = l.Token
			a.until[l.Token] = max(a.until[l.Token], sent+a.m.local(trusted))
		}
	}
	a.mu.Unlock()
	for key, d := range a.duties {
		if held[key] != d.token {
			d.stop()
		}
		if d.gone.Load() {
			delete(a.duties, key)
		}
	}
	for _, l := range leases {
		switch {
		case l.Group != a.m.Group || a.duties[l.Key] != nil || l.Token <= a.last[l.Key]:
			// An answer that is older than the end of a duty still lists it.
		case l.Held:
			a.last[l.Key] = l.Token
			a.begin(ctx, l.Key, l.Token)
		default:
			a.last[l.Key] = l.Token
			a.wg.Go(func() { a.giveBack(&duty{token: l.Token}, l.Key) })
		}
	}
	return true
}

// begin runs a workload and gives it back when it has ended.
func (a *attendance) begin(ctx context.Context, key string, token uint64) {
	m := a.m
	told, stop := context.WithCancel(ctx)
	d := &duty{token: token, stop: stop, done: make(chan struct{})}
	a.duties[key] = d
	var ends time.Duration // by itself
	if m.Rng.IntN(8) == 0 {
		ends = m.R.Now() + draw(m.Rng, 0, 20*time.Second)
	}
	stops := draw(m.Rng, 0, m.Stop)
	a.wg.Go(func() {
		defer stop()
		run := m.R.Start(Run{Proc: a.who, Key: key, Token: token, Own: true}, nil)
		a.work(told, token, ends, stops)
		run.Stop()
		close(d.done)
		a.giveBack(d, key)
	})
}

// work returns when it is told to and has taken its time, when it ends by
// itself, or when its trust is used up, whatever comes first.
func (a *attendance) work(told context.Context, token uint64, ends, stops time.Duration) {
	now := a.m.R.Now
	trusted := func() time.Duration {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.until[token]
	}
	for told.Err() == nil && now() < trusted() && (ends == 0 || now() < ends) {
		next := trusted()
		if ends > 0 {
			next = min(next, ends)
		}
		sleep(told, next-now())
	}
	if told.Err() != nil {
		sleep(context.WithoutCancel(told), min(stops, trusted()-now()))
	}
}

// giveBack releases a grant whose work has ended, until that is answered.
func (a *attendance) giveBack(d *duty, key string) {
	for i := 0; a.talks.Err() == nil; i++ {
		if e := a.m.Endpoint(a.m.Nodes[i%len(a.m.Nodes)]); e != nil {
			rctx, cancel := context.WithTimeout(a.talks, a.m.Renew)
			err := e.Release(rctx, key, d.token, a.id)
			cancel()
			switch fsm.CodeOf(err) {
			case fsm.CodeDone, fsm.CodeStaleToken, fsm.CodeSessionExpired, fsm.CodeNotFound:
				d.gone.Store(true)
				return
			}
		}
		sleep(a.talks, a.m.local(a.m.Renew)/2)
	}
}
