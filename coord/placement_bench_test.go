package coord_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
)

// large is 10,000 workloads on 200 instances that share them evenly, and one
// more instance. Kinds: plain; catalogs, where who can run what is asked, and
// half of the instances lack a tenth of the workloads; weights.
func large(t testing.TB, kind string) coord.Problem {
	p := coord.Problem{Workloads: numbered(10_000), Instances: fleet(200)}
	for i := range p.Instances {
		p.Instances[i].Zone = fmt.Sprint("zone ", i%3)
	}
	if kind == "catalogs" {
		p.Can = func(i, w int) bool { return i%2 == 0 || w%10 != 3 }
	}
	if kind == "weights" {
		for w := range p.Workloads {
			p.Workloads[w].Weight = 1 + float64(w*7919%100)/50
		}
	}
	p.Current = must(t, coord.Sticky{}, p)
	p.Instances = append(p.Instances, joined("new", 9_999))
	return p
}

var kinds = []string{"plain", "catalogs", "weights"}

// Ensures that a join in the largest group is planned in no time: at most 51
// moves, and 50 ms at the best of a few tries, as others use the machine.
func TestSticky_Large(t *testing.T) {
	for _, kind := range kinds {
		p := large(t, kind)
		best := time.Hour
		for range 5 {
			start := time.Now()
			a := must(t, coord.Sticky{}, p)
			now, later := coord.Moves(p, a, coord.MoveLimits{})
			best = min(best, time.Since(start))
			if n := moved(p.Current, a); n == 0 || n > 51 || len(now)+len(later) != n {
				t.Fatalf("%s: %d moved, %d of them now, %d later", kind, n, len(now), len(later))
			}
		}
		if best > 50*time.Millisecond*scale {
			t.Errorf("%s: %v for a join", kind, best)
		}
	}
}

func BenchmarkSticky_Join(b *testing.B) {
	for _, kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			p := large(b, kind)
			b.ReportAllocs()
			for b.Loop() {
				coord.Sticky{}.Assign(p)
			}
			b.ReportMetric(float64(moved(p.Current, coord.Sticky{}.Assign(p))), "moves")
		})
	}
}

func BenchmarkSticky_Fresh(b *testing.B) {
	for _, kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			p := large(b, kind)
			p.Current = nil
			b.ReportAllocs()
			for b.Loop() {
				coord.Sticky{}.Assign(p)
			}
		})
	}
}

func BenchmarkPlace_Join(b *testing.B) {
	p := large(b, "catalogs")
	b.ReportAllocs()
	for b.Loop() {
		a, err := coord.Place(coord.Sticky{}, p)
		if err != nil {
			b.Fatal(err)
		}
		coord.Moves(p, a, coord.MoveLimits{})
	}
}
