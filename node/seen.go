package node

import (
	"sync"
	"time"
)

// maxPassed bounds the grants of which it is known whom they came from.
const maxPassed = 16 << 10

// seenNode is a node in one epoch of its clock.
type seenNode struct {
	sender
	instance string
	epoch    uint64
	clock    clockMap
	last     seenReport
	// alive is an instant of the node's clock at which everything still ran that
	// reports up to aliveSeq had brought and no later one said to be over.
	alive    time.Duration
	aliveSeq uint64
	running  map[*seenRun]struct{}
	vague    []*seenRun // an instant of theirs is not mapped yet
	suspects map[*seenKey]struct{}
	heard    time.Duration
}

// seenReport is the newest report of a node.
type seenReport struct {
	seq      uint64
	sent     time.Duration // the node's clock
	arrived  time.Duration // the leader's, as answered
	answered time.Duration
	whole    bool
}

// seenRun is one run. Its instants are of its node's clock, its spans of the leader's.
type seenRun struct {
	node           *seenNode
	key            *seenKey
	id, token, seq uint64 // seq: of the report that brought it
	began, ended   time.Duration
	start, end     span
	startKnown     bool
	endKnown       bool
	over           bool
	gapSeen        bool // the gap before it was measured
	lost           bool // no more will be known; end is an instant at which it still ran
	moved          bool // it was lost once: its instants may be of different epochs
}

type agedRun struct {
	*seenRun
	at time.Duration
}

// seenKey holds the recent runs of a key, oldest report first.
type seenKey struct {
	name  string
	runs  []*seenRun
	pairs [][2]*seenRun // that are not judged yet
}

// stretch is what is known of r on the leader's clock; its start must be.
func (r *seenRun) stretch() stretch {
	s := stretch{start: r.start, until: r.start}
	switch n := r.node; {
	case r.lost:
		s.until, s.final = r.end, true
	case r.endKnown:
		s.until, s.over, s.final = r.end, true, true
	case n.aliveSeq >= r.seq && n.alive > r.began:
		s.until = n.clock.at(n.alive)
	}
	return s
}

// own is what is known of r on its node's clock.
func (r *seenRun) own() stretch {
	s := stretch{start: exactly(r.began), until: exactly(r.began)}
	switch n := r.node; {
	case r.over:
		s.until, s.over, s.final = exactly(r.ended), true, true
	case n.aliveSeq >= r.seq && n.alive > r.began:
		s.until = exactly(n.alive)
	}
	return s
}

// passedGrants remembers from which grant a grant was passed on, by token, in
// the entry that ended the former. Tokens are never given twice.
type passedGrants struct {
	mu   sync.Mutex
	by   map[uint64]uint64 // nil: nothing is remembered
	ring []uint64
	next int
}

// reset forgets everything, and remembers from now on or not.
func (p *passedGrants) reset(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by, p.ring, p.next = nil, nil, 0; on {
		p.by = map[uint64]uint64{}
	}
}

func (p *passedGrants) add(from, to uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.by == nil:
		return
	case len(p.ring) < maxPassed:
		p.ring = append(p.ring, to)
	default:
		delete(p.by, p.ring[p.next])
		p.ring[p.next] = to
		p.next = (p.next + 1) % maxPassed
	}
	p.by[to] = from
}

// from is 0 if it is not known.
func (p *passedGrants) from(to uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.by[to]
}
