package main

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// narrator writes the commentary, each line with the time since the beginning.
type narrator struct {
	out   io.Writer
	began time.Time

	mu sync.Mutex
}

func (n *narrator) line(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(n.out, "%7.3fs  %s\n", time.Since(n.began).Seconds(), fmt.Sprintf(format, args...))
}

// observer sees every start and end of the work on one clock: two runs at once
// can't escape it.
type observer struct {
	say     *narrator
	started chan string // names of nodes that began

	mu       sync.Mutex
	running  []*observedRun // now
	last     *observedRun   // that ended last
	runs     int
	overlaps int
	gaps     []time.Duration
}

type observedRun struct {
	o     *observer
	node  string
	token uint64
	began time.Time
	ended time.Time
}

func newObserver(say *narrator) *observer {
	return &observer{say: say, started: make(chan string, 64)}
}

// begin notes a start.
func (o *observer) begin(node string, token uint64) *observedRun {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := &observedRun{o: o, node: node, token: token, began: time.Now()}
	o.runs++
	switch {
	case len(o.running) > 0:
		o.overlaps++
		o.say.line("OVERLAP: %s works while %s does", node, o.running[0].node)
	case o.last == nil:
		o.say.line("%s works (token %d).", node, token)
	default:
		gap := r.began.Sub(o.last.ended)
		o.gaps = append(o.gaps, gap)
		o.say.line("%s works (token %d): nobody did for %s.", node, token, short(gap))
	}
	if o.last != nil && token <= o.last.token && node != o.last.node {
		o.overlaps++
		o.say.line("TOKEN WENT BACK: %d after %d", token, o.last.token)
	}
	o.running = append(o.running, r)
	select {
	case o.started <- node:
	default: // nobody counts them any more
	}
	return r
}

// end notes an end.
func (r *observedRun) end(why string) {
	o := r.o
	o.mu.Lock()
	defer o.mu.Unlock()
	r.ended = time.Now()
	o.running = slices.DeleteFunc(o.running, func(x *observedRun) bool { return x == r })
	o.last = r
	o.say.line("%s stopped working after %s: %s.", r.node, short(r.ended.Sub(r.began)), why)
}

// owner is the node that works now, "" if none does.
func (o *observer) owner() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.running) == 0 {
		return ""
	}
	return o.running[0].node
}

func (o *observer) sums() (runs int, gaps string, overlaps int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	gaps = "no gap to measure"
	if len(o.gaps) > 0 {
		longest := slices.Max(o.gaps)
		gaps = fmt.Sprintf("longest gap between two %s", short(longest))
	}
	return o.runs, gaps, o.overlaps
}
