package coord

// Balanced cuts the workloads, ordered by key, into one contiguous slice for
// each instance, ordered by when it joined. Slices differ by at most one; those
// who joined first have the larger ones, and with fewer workloads than instances
// those who joined last have none.
//
// It looks at nothing but order: not at who has what, nor at weights,
// capacities, zones or failures. So any change of members shifts about half of
// all workloads; [Sticky] moves the fewest.
//
// The formula holds to the letter where all instances declared all workloads.
// Where an instance can't have a workload of its slice (it did not declare it,
// or is cordoned and does not have it), the one with the fewest workloads that
// can have it gets it. A draining instance has no slice. Pins win.
type Balanced struct{}

// String returns "balanced".
func (Balanced) String() string { return "balanced" }

// Assign implements [Assigner].
func (Balanced) Assign(p Problem) Assignment {
	answer := make(Assignment, len(p.Workloads))
	instances := p.active()
	if len(instances) == 0 {
		return nobody(answer)
	}
	keys := p.KeyOrder()
	base, remainder := len(keys)/len(instances), len(keys)%len(instances)
	counts := make([]int, len(p.Instances))
	var left []int
	for n, i := range instances {
		start := n*base + min(n, remainder)
		count := base
		if n < remainder {
			count++
		}
		for _, w := range keys[start : start+count] {
			switch pin := p.pin(w); {
			case pin != None:
				answer[w] = pin
				counts[pin]++
			case p.Takes(i, w):
				answer[w] = i
				counts[i]++
			default:
				left = append(left, w)
			}
		}
	}
	for _, w := range left {
		answer[w] = None
		for _, i := range instances {
			if (answer[w] == None || counts[i] < counts[answer[w]]) && p.Takes(i, w) {
				answer[w] = i
			}
		}
		if answer[w] != None {
			counts[answer[w]]++
		}
	}
	return answer
}

// active returns the instances that do not drain, in join order.
func (p *Problem) active() []int {
	order := p.JoinOrder()
	active := order[:0]
	for _, i := range order {
		if !p.Instances[i].Draining {
			active = append(active, i)
		}
	}
	return active
}

func nobody(a Assignment) Assignment {
	for w := range a {
		a[w] = None
	}
	return a
}
