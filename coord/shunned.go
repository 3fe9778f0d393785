package coord

import (
	"maps"
	"slices"

	"github.com/miwnode/miwnode/fsm"
)

// shunned remembers where the workloads that fail have failed since they last
// did not: the state knows the last instance only, and between two that can't
// run it a workload would never come to the third. A new planner begins anew.
type shunned map[string]*ordeal

// ordeal is what is known of one of them.
type ordeal struct {
	revision  uint64   // of the last failure that was noted
	instances []string // where it has failed
}

// apply keeps failing workloads away from where they have failed, for as long
// as there is an instance that has not been tried.
func (s shunned) apply(d *draft) {
	maps.DeleteFunc(s, func(key string, _ *ordeal) bool { return d.failures[key] == nil })
	barred := make(map[int][]int) // instances, by workload
	for w, info := range d.problem.Workloads {
		f := d.failures[info.Key]
		if f == nil {
			continue
		}
		o := s.note(info.Key, f)
		var tried []int
		for _, id := range o.instances {
			if i := d.members.at(id); i != None && i != d.problem.Current[w] && i != d.problem.Pinned[w] {
				tried = append(tried, i)
			}
		}
		switch {
		case len(tried) < 2: // Avoid says as much
		case d.someoneBut(tried, w):
			barred[w] = tried
		default:
			o.instances = []string{f.InstanceID}
		}
	}
	if len(barred) == 0 {
		return
	}
	can := d.problem.Can
	d.problem.Can = func(instance, workload int) bool {
		return !slices.Contains(barred[workload], instance) && (can == nil || can(instance, workload))
	}
}

func (s shunned) note(workload string, f *fsm.Failure) *ordeal {
	o := s[workload]
	if o == nil || f.Count == 1 && o.revision != f.Revision {
		o = &ordeal{}
		s[workload] = o
	}
	if o.revision != f.Revision {
		o.revision = f.Revision
		if !slices.Contains(o.instances, f.InstanceID) {
			o.instances = append(o.instances, f.InstanceID)
		}
	}
	return o
}

// someoneBut tells whether an instance can take the workload that is none of those.
func (d *draft) someoneBut(those []int, workload int) bool {
	for i, in := range d.problem.Instances {
		if in.Eligible && !slices.Contains(those, i) && d.members.members[i].Declares(d.specs[workload]) {
			return true
		}
	}
	return false
}
