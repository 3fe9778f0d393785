package coord

// Primary gives all workloads to the instance that joined first; the others
// stand by. When that one leaves or drains, the next earliest takes over; a
// newcomer never does.
//
// A workload that it can't have (it did not declare it, or is cordoned and does
// not have it) goes to the earliest that can. Pins win. Weights, capacities,
// zones and failures do not count.
type Primary struct{}

// String returns "primary".
func (Primary) String() string { return "primary" }

// Assign implements [Assigner].
func (Primary) Assign(p Problem) Assignment {
	answer := nobody(make(Assignment, len(p.Workloads)))
	instances := p.active()
	for w := range answer {
		if answer[w] = p.pin(w); answer[w] != None {
			continue
		}
		for _, i := range instances {
			if p.Takes(i, w) {
				answer[w] = i
				break
			}
		}
	}
	return answer
}
