package memnet

import (
	"hash/fnv"
	"math/rand/v2"
	"time"
)

type linkKey struct{ from, to *place }

// quality is what a direction does to what passes.
type quality struct {
	delay, jitter time.Duration
	loss          float64
}

// link is one direction between two hosts. Guarded by Net.mu.
type link struct {
	from, to *place
	cut      bool     // by Cut or CutOneWay
	cutSince instant  // 0 = open; counts isolation too
	own      *quality // nil: the network's default
	rng      *rand.Rand
	stats    Stats
}

// link finds or makes the direction from → to. Called with n.mu held.
func (n *Net) link(from, to *place) *link {
	k := linkKey{from, to}
	if l := n.links[k]; l != nil {
		return l
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(from.name + "\x00" + to.name)) // a hash writer never fails
	l := &link{from: from, to: to, rng: rand.New(rand.NewPCG(n.seed, h.Sum64()))}
	if from == to {
		l.own = &quality{}
	}
	n.links[k] = l
	l.refresh(n.now())
	return l
}

// refresh brings cutSince in line with the faults. Called with n.mu held.
func (l *link) refresh(now instant) {
	switch closed := l.from != l.to && (l.cut || l.from.isolated || l.to.isolated); {
	case !closed:
		l.cutSince = 0
	case l.cutSince == 0:
		l.cutSince = now
	}
}

func (l *link) open() bool { return l.cutSince == 0 }

func (n *Net) quality(l *link) quality {
	if l.own != nil {
		return *l.own
	}
	return n.def
}

// travel draws the time that something takes over the link. Called with n.mu held.
func (n *Net) travel(l *link) instant {
	q := n.quality(l)
	d := q.delay
	if q.jitter > 0 {
		d += time.Duration(l.rng.Int64N(int64(q.jitter) + 1))
	}
	return instant(d)
}

// lost draws whether a packet is lost. Called with n.mu held.
func (n *Net) lost(l *link) bool {
	q := n.quality(l)
	return q.loss > 0 && l.rng.Float64() < q.loss
}

const maxBackoff = instant(time.Second)

// retransmission draws how much later than a first try a segment gets through. Called with n.mu held.
func (n *Net) retransmission(l *link) instant {
	var late instant
	for rto := instant(n.opts.Retransmit); late < 30*maxBackoff && n.lost(l); rto = min(2*rto, maxBackoff) {
		late += rto
		n.count(l, Stats{Retransmits: 1})
	}
	return late
}

// nextTry returns when the retransmission timer of data that got stuck at since goes off next.
func (n *Net) nextTry(since, now instant) instant {
	t := since
	for rto := instant(n.opts.Retransmit); t < now; rto = min(2*rto, maxBackoff) {
		if rto == maxBackoff {
			t += (now - t + rto - 1) / rto * rto
			break
		}
		t += rto
	}
	return t
}

// change applies f to the network and then brings everything under way in line with it.
func (n *Net) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.now()
	// Connections that had to die before this change die of it no more.
	n.eachEnd(func(e *end) { e.settle(now) })
	f()
	for _, l := range n.links {
		l.refresh(now)
	}
	n.eachEnd(func(e *end) {
		e.in.update(now)
		e.peer.in.update(now)
	})
	n.eachEnd(func(e *end) {
		e.reader.poke()
		e.writer.poke()
	})
}

func (n *Net) eachEnd(f func(*end)) {
	for _, p := range n.hosts {
		if p.life == nil {
			continue
		}
		for e := range p.life.ends {
			f(e)
		}
	}
}

// Cut stops everything between a and b, both ways.
func (n *Net) Cut(a, b string) {
	n.change(func() {
		n.link(n.place(a), n.place(b)).cut = true
		n.link(n.place(b), n.place(a)).cut = true
	})
}

// CutOneWay stops everything from one host to the other. Packets the other way pass. So does what a connection sends the other way
// at first; without acknowledgements it stalls after the first retransmission time-out.
func (n *Net) CutOneWay(from, to string) {
	n.change(func() { n.link(n.place(from), n.place(to)).cut = true })
}

// Isolate cuts host off from all others, also from those that come later, until Rejoin or HealAll.
func (n *Net) Isolate(host string) { n.change(func() { n.place(host).isolated = true }) }

// Rejoin ends Isolate.
func (n *Net) Rejoin(host string) { n.change(func() { n.place(host).isolated = false }) }

// Heal ends the cuts between a and b, both ways. Delay, loss and isolation stay.
func (n *Net) Heal(a, b string) {
	n.change(func() {
		n.link(n.place(a), n.place(b)).cut = false
		n.link(n.place(b), n.place(a)).cut = false
	})
}

// HealAll ends all cuts and isolations, and all delays and losses set on single links. Paused hosts stay paused.
func (n *Net) HealAll() {
	n.change(func() {
		for _, p := range n.hosts {
			p.isolated = false
		}
		for _, l := range n.links {
			l.cut = false
			if l.from != l.to {
				l.own = nil
			}
		}
	})
}

// SetDelay sets the delay of one direction: d plus up to jitter. Unequal delays reorder packets, never streams.
func (n *Net) SetDelay(from, to string, d, jitter time.Duration) {
	n.set(from, to, func(q *quality) { q.delay, q.jitter = max(d, 0), max(jitter, 0) })
}

// SetLoss sets the part (0 … 1) of packets that is lost in one direction. Segments of streams are delayed by their
// retransmission instead.
func (n *Net) SetLoss(from, to string, p float64) {
	n.set(from, to, func(q *quality) { q.loss = p })
}

func (n *Net) set(from, to string, f func(*quality)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.link(n.place(from), n.place(to))
	q := n.quality(l)
	f(&q)
	l.own = &q
}

// SetDefault sets delay, jitter and loss of all links that were not set by themselves.
func (n *Net) SetDefault(d, jitter time.Duration, loss float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.def = quality{delay: max(d, 0), jitter: max(jitter, 0), loss: loss}
}

// Pause holds everything into and out of host until Resume, as if its process were stopped: what is sent to it waits in its
// buffers (packets beyond Options.PacketQueue are dropped), what it sends does not leave, it accepts nothing. No connection dies of it.
func (n *Net) Pause(host string) { n.change(func() { n.place(host).paused = true }) }

// Resume ends Pause.
func (n *Net) Resume(host string) {
	n.change(func() {
		p := n.place(host)
		p.paused = false
		if h := p.life; h != nil {
			h.resume()
		}
	})
}

// HealOneWay ends what CutOneWay began, or one direction of Cut.
func (n *Net) HealOneWay(from, to string) {
	n.change(func() { n.link(n.place(from), n.place(to)).cut = false })
}
