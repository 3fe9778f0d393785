package jepsen

import (
	"slices"
	"time"
)

// Measure is how long something took, each time that it happened.
type Measure struct {
	Name, What string
	Took       []time.Duration // in order of length
	// Bound is the longest that is promised; 0: nothing is promised, or it depends.
	Bound time.Duration
}

// Quantile is the value that a part of all does not exceed; 0 of nothing.
func (m *Measure) Quantile(part float64) time.Duration {
	if len(m.Took) == 0 {
		return 0
	}
	return m.Took[min(int(part*float64(len(m.Took))), len(m.Took)-1)]
}

// Calls measures the calls of clients that were answered.
func (h *History) Calls() []Measure {
	all := []Measure{
		{Name: "acquire", What: "a grant, from asking to the answer"},
		{Name: "release", What: "a release"},
		{Name: "read", What: "a linearizable read of a lease"},
		{Name: "record", What: "the record of an execution, repeats included"},
		{Name: "open", What: "a session"},
	}
	kinds := map[Kind]*Measure{KindAcquire: &all[0], KindRelease: &all[1], KindRead: &all[2], KindRecord: &all[3], KindOpen: &all[4]}
	for _, o := range h.Ops {
		if m := kinds[o.Kind]; m != nil && o.Outcome == OK {
			m.Took = append(m.Took, o.Return-o.Call)
		}
	}
	return present(all)
}

// Gaps measures how long nobody ran a wanted key, by why the run before ended.
// The bound is for those that one fault at most is to blame for; it counts an
// election where the leader changed meanwhile.
func (h *History) Gaps() []Measure {
	b := h.Meta.Bounds
	all := make([]Measure, len(kinds))
	for i, k := range kinds {
		all[i] = Measure{Name: k.name, What: k.what, Bound: b.Slack + b.Election}
		if k.name == kindLost {
			all[i].Bound += b.TTL
		}
	}
	for _, g := range h.gaps() {
		if k := g.kind(); k != nil && !g.Old.Own && !g.New.Own {
			i := slices.IndexFunc(all, func(m Measure) bool { return m.Name == k.name })
			all[i].Took = append(all[i].Took, g.Length())
		}
	}
	return present(all)
}

func present(all []Measure) []Measure {
	for i := range all {
		slices.Sort(all[i].Took)
	}
	return slices.DeleteFunc(all, func(m Measure) bool { return len(m.Took) == 0 })
}
