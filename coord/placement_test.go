package coord_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/coord"
)

// workloads are those of the keys.
func workloads(keys ...string) (all []coord.WorkloadInfo) {
	for _, k := range keys {
		all = append(all, coord.WorkloadInfo{Key: k})
	}
	return all
}

// numbered are n workloads w0000, w0001, …
func numbered(n int) (all []coord.WorkloadInfo) {
	for i := range n {
		all = append(all, coord.WorkloadInfo{Key: fmt.Sprintf("w%04d", i)})
	}
	return all
}

// joined is an instance that may take anything.
func joined(id string, revision uint64) coord.InstanceInfo {
	return coord.InstanceInfo{ID: id, JoinedRevision: revision, Eligible: true}
}

// fleet are n instances i000, i001, … that joined in this order.
func fleet(n int) (all []coord.InstanceInfo) {
	for i := range n {
		all = append(all, joined(fmt.Sprintf("i%03d", i), uint64(10+i)))
	}
	return all
}

// must asks an assigner by way of all checks.
func must(t testing.TB, a coord.Assigner, p coord.Problem) coord.Assignment {
	t.Helper()
	answer, err := coord.Place(a, p)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// keysOf is what the instance got, by key; "" when it is not there.
func keysOf(p coord.Problem, a coord.Assignment, id string) string {
	var keys []string
	for w, i := range a {
		if i != coord.None && p.Instances[i].ID == id {
			keys = append(keys, p.Workloads[w].Key)
		}
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

// placed reads an assignment as text: "a: w1 w2 | b: w3", with instances in join
// order, and what nobody has at the end.
func placed(p coord.Problem, a coord.Assignment) string {
	var parts []string
	for _, i := range p.JoinOrder() {
		id := p.Instances[i].ID
		parts = append(parts, strings.TrimSpace(id+": "+keysOf(p, a, id)))
	}
	var nobody []string
	for _, w := range p.KeyOrder() {
		if a[w] == coord.None {
			nobody = append(nobody, p.Workloads[w].Key)
		}
	}
	if nobody != nil {
		parts = append(parts, "nobody: "+strings.Join(nobody, " "))
	}
	return strings.Join(parts, " | ")
}

// byID reads an assignment so that the order of the input does not show.
func byID(p coord.Problem, a coord.Assignment) map[string]string {
	m := make(map[string]string, len(a))
	for w, i := range a {
		m[p.Workloads[w].Key] = ""
		if i != coord.None {
			m[p.Workloads[w].Key] = p.Instances[i].ID
		}
	}
	return m
}

// moved counts the workloads that had a live owner and have another now.
func moved(current []int, a coord.Assignment) (n int) {
	for w, i := range current {
		if i != coord.None && a[w] != i {
			n++
		}
	}
	return n
}

// without is the problem after that instance left, with the assignment as it was.
func without(p coord.Problem, a coord.Assignment, gone int) coord.Problem {
	p.Instances = slices.Delete(slices.Clone(p.Instances), gone, gone+1)
	p.Current = slices.Clone(a)
	for w, i := range a {
		switch {
		case i == gone:
			p.Current[w] = coord.None
		case i > gone:
			p.Current[w]--
		}
	}
	return p
}

// counts is how many workloads each instance has.
func counts(p coord.Problem, a coord.Assignment) []int {
	n := make([]int, len(p.Instances))
	for _, i := range a {
		if i != coord.None {
			n[i]++
		}
	}
	return n
}

// loads is the weight each instance has.
func loads(p coord.Problem, a coord.Assignment) []float64 {
	n := make([]float64, len(p.Instances))
	for w, i := range a {
		if i == coord.None {
			continue
		}
		if weight := p.Workloads[w].Weight; weight > 0 {
			n[i] += weight
		} else {
			n[i]++
		}
	}
	return n
}

// shuffled is the same problem in another order.
func shuffled(rng *rand.Rand, p coord.Problem) coord.Problem {
	workloads, instances := rng.Perm(len(p.Workloads)), rng.Perm(len(p.Instances)) // old index by new
	nowAt := make([]int, len(instances))
	for now, old := range instances {
		nowAt[old] = now
	}
	q := coord.Problem{}
	for _, old := range workloads {
		q.Workloads = append(q.Workloads, p.Workloads[old])
	}
	for _, old := range instances {
		q.Instances = append(q.Instances, p.Instances[old])
	}
	reorder := func(wishes []int) (out []int) {
		for _, old := range workloads {
			if wishes == nil {
				return nil
			}
			i := wishes[old]
			if i != coord.None {
				i = nowAt[i]
			}
			out = append(out, i)
		}
		return out
	}
	q.Current, q.Pinned, q.Avoid = reorder(p.Current), reorder(p.Pinned), reorder(p.Avoid)
	if p.Can != nil {
		q.Can = func(i, w int) bool { return p.Can(instances[i], workloads[w]) }
	}
	return q
}

var assigners = []coord.Assigner{coord.Sticky{}, coord.Balanced{}, coord.Primary{}}
