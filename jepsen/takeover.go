package jepsen

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// checkTakeOver: once a majority of the nodes is undisturbed, a wanted key runs
// again within an election, a TTL and a commit. A gap without a run is judged by
// its longest calm stretch: a fault that begins or ends starts the bound anew,
// and faults that hit a majority, or keep the key from everybody, suspend it.
func checkTakeOver(h *History) Verdict {
	var faults []string
	checked, bound := 0, h.Meta.Bounds.takeOver()
	calm := h.calmStretch()
	for _, key := range h.Meta.Bounds.Wanted {
		free := time.Duration(0) // since when nothing runs
		judge := func(until time.Duration, what string) {
			checked++
			if from, d := calm(key, free, until); d > bound {
				faults = append(faults, fmt.Sprintf("%s: %s at %v, free since %v, undisturbed for %v from %v on; the bound is %v", key, what, until, free, d, from, bound))
			}
		}
		for _, r := range h.runsOf(key) {
			if r.Start > free {
				judge(r.Start, fmt.Sprintf("token %d started in %s", r.Token, r.Proc))
			}
			free = max(free, r.Stop)
		}
		if free < h.Meta.Length {
			judge(h.Meta.Length, "nothing runs")
		}
	}
	return verdict(CheckTakeOver, checked, faults)
}

// calmStretch returns a function that finds the longest part of a span in which
// no fault begins or ends, and those under way hit no majority of the nodes and
// not the key.
func (h *History) calmStretch() func(key string, from, until time.Duration) (at, d time.Duration) {
	type edge struct {
		at    time.Duration
		w     *Window
		delta int
	}
	var edges []edge
	for i := range h.Windows {
		w := &h.Windows[i]
		edges = append(edges, edge{w.From, w, 1}, edge{min(w.To, h.Meta.Length), w, -1})
	}
	slices.SortStableFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	minority := (len(h.Meta.Nodes) - 1) / 2
	return func(key string, from, until time.Duration) (at, longest time.Duration) {
		faults := map[string]int{} // under way, by node
		kept := 0                  // that keep the key from everybody
		begin, calm := from, true
		close := func(end time.Duration) {
			if calm && end-begin > longest {
				at, longest = begin, end-begin
			}
			begin = max(begin, end)
		}
		for _, e := range edges {
			if e.at > until {
				break
			}
			close(max(from, e.at))
			hit := 0
			for _, n := range e.w.Nodes {
				faults[n] += e.delta
			}
			if slices.Contains(e.w.Keys, key) {
				kept += e.delta
			}
			for _, n := range faults {
				if n > 0 {
					hit++
				}
			}
			calm = hit <= minority && kept == 0
		}
		close(until)
		return at, longest
	}
}
