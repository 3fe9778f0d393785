package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
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

// observer sees every start and end of the work on one clock: two runs of one
// workload at once can't escape it.
type observer struct {
	say     *narrator
	changed chan struct{} // one slot: somebody began or ended
	moved   chan string   // names of nodes that began the work of demoMail

	mu       sync.Mutex
	tracks   map[string]*track // by group/workload
	runs     int
	overlaps int
	fresh    []takeOver // since the last board
	longest  time.Duration
	gaps     int
}

// track is what was seen of one workload.
type track struct {
	running []*observedRun // now
	last    *observedRun   // that ended last
}

// takeOver is a run that began where another had ended.
type takeOver struct {
	workload string
	gap      time.Duration
}

type observedRun struct {
	o        *observer
	workload string
	node     string
	token    uint64
	ended    time.Time
}

func newObserver(say *narrator, workloads []string) *observer {
	o := &observer{say: say, changed: make(chan struct{}, 1), moved: make(chan string, 64), tracks: map[string]*track{}}
	for _, w := range workloads {
		o.tracks[w] = &track{}
	}
	return o
}

// begin notes a start.
func (o *observer) begin(workload, node string, token uint64) *observedRun {
	o.mu.Lock()
	defer o.mu.Unlock()
	began := time.Now()
	t, r := o.tracks[workload], &observedRun{o: o, workload: workload, node: node, token: token}
	o.runs++
	switch {
	case len(t.running) > 0:
		o.overlaps++
		o.say.line("OVERLAP: %s runs %s while %s does", node, workload, t.running[0].node)
	case t.last != nil:
		gap := began.Sub(t.last.ended)
		o.fresh = append(o.fresh, takeOver{workload, gap})
		o.longest, o.gaps = max(o.longest, gap), o.gaps+1
	}
	if t.last != nil && token <= t.last.token && node != t.last.node {
		o.overlaps++
		o.say.line("TOKEN WENT BACK: %s has %d after %d", workload, token, t.last.token)
	}
	t.running = append(t.running, r)
	if workload == demoMail {
		select {
		case o.moved <- node:
		default: // nobody counts them any more
		}
	}
	o.wake()
	return r
}

// end notes an end.
func (r *observedRun) end() {
	o := r.o
	o.mu.Lock()
	defer o.mu.Unlock()
	r.ended = time.Now()
	t := o.tracks[r.workload]
	t.running = slices.DeleteFunc(t.running, func(x *observedRun) bool { return x == r })
	t.last = r
	o.wake()
}

func (o *observer) wake() {
	select {
	case o.changed <- struct{}{}:
	default: // it has yet to look
	}
}

// owner is the node that runs the workload now, "" if none does.
func (o *observer) owner(workload string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.tracks[workload]; len(t.running) > 0 {
		return t.running[0].node
	}
	return ""
}

// board says who runs what, and what was taken over since it last did.
func (o *observer) board() (lines []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, g := range demoGroups {
		has := map[string][]string{}
		for _, w := range g.workloads {
			node := "nobody"
			if t := o.tracks[g.name+"/"+w]; len(t.running) > 0 {
				node = t.running[0].node
			}
			has[node] = append(has[node], w)
		}
		var parts []string
		for _, node := range slices.Sorted(maps.Keys(has)) {
			parts = append(parts, node+": "+strings.Join(has[node], " "))
		}
		lines = append(lines, fmt.Sprintf("  %-6s  %s", g.name, strings.Join(parts, "   ")))
	}
	if len(o.fresh) > 0 {
		longest := time.Duration(0)
		for _, t := range o.fresh {
			longest = max(longest, t.gap)
		}
		lines = append(lines, fmt.Sprintf("  %d taken over; the longest that nobody ran one of them: %s", len(o.fresh), short(longest)))
		o.fresh = nil
	}
	return lines
}

func (o *observer) sums() (runs int, gaps string, overlaps int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	gaps = "no gap to measure"
	if o.longest > 0 {
		gaps = fmt.Sprintf("%d of them take-overs, the longest gap %s", o.gaps, short(o.longest))
	}
	return o.runs, gaps, o.overlaps
}

// close counts what nobody runs at the end: a gap that is not over is one, too.
func (o *observer) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range slices.Sorted(maps.Keys(o.tracks)) {
		t := o.tracks[w]
		if t.last == nil || len(t.running) > 0 {
			continue
		}
		gap := time.Since(t.last.ended)
		o.longest = max(o.longest, gap)
		o.say.line("Nobody has run %s for %s.", w, short(gap))
	}
}

// idle names the workloads that never ran.
func (o *observer) idle() (names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range slices.Sorted(maps.Keys(o.tracks)) {
		if t := o.tracks[w]; t.last == nil && len(t.running) == 0 {
			names = append(names, w)
		}
	}
	return names
}
