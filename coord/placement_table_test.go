package coord_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/coord"
)

// Ensures the figures of DESIGN.md: what the two assigners move when one
// instance joins, or the oldest one leaves.
func TestPlacement_Table(t *testing.T) {
	var table strings.Builder
	table.WriteString("| workloads | instances | `Balanced` moves | `Sticky` moves | the fewest possible |\n|---|---|---|---|---|\n")
	for _, c := range []struct{ workloads, from, to, balanced, sticky, fewest int }{
		{100, 3, 4, 51, 25, 25},
		{100, 9, 10, 54, 10, 10},
		{100, 10, 9, 46, 10, 10},
		{12, 5, 6, 9, 2, 2},
		{10_000, 200, 201, 1_225, 49, 49},
	} {
		moves := map[string]int{}
		for _, a := range []coord.Assigner{coord.Balanced{}, coord.Sticky{}} {
			p := coord.Problem{Workloads: numbered(c.workloads), Instances: fleet(max(c.from, c.to))[:c.from]}
			before := must(t, a, p)
			lost := 0
			if c.to > c.from {
				p.Current, p.Instances = before, fleet(c.to)
			} else {
				lost = counts(p, before)[0]
				p = without(p, before, 0)
			}
			moves[coord.AssignerName(a)] = lost + moved(p.Current, must(t, a, p))
		}
		equal(t, moves["balanced"], c.balanced, fmt.Sprintf("moves of Balanced, %d workloads over %d then %d", c.workloads, c.from, c.to))
		equal(t, moves["sticky"], c.sticky, fmt.Sprintf("moves of Sticky, %d workloads over %d then %d", c.workloads, c.from, c.to))
		fewest := c.workloads / max(c.from, c.to) // what a newcomer lacks, or who leaves had
		equal(t, fewest, c.fewest, "fewest")
		which := "one joins"
		if c.to < c.from {
			which = "the oldest leaves"
		}
		fmt.Fprintf(&table, "| %d | %d → %d, %s | %d | %d | %d |\n", c.workloads, c.from, c.to, which, moves["balanced"], moves["sticky"], fewest)
	}
	design, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(design), table.String()) {
		t.Errorf("DESIGN.md lacks the table as it should be:\n%s", &table)
	}
}
