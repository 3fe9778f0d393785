package worker_test

import "testing"

// row is one behaviour that this package owes.
type row struct {
	name string
	test func(t *testing.T, w *world)
}

// TestChecklist holds every behaviour by its number.
func TestChecklist(t *testing.T) {
	for _, rows := range [][]row{loadRows, changeRows, runRows} {
		for _, r := range rows {
			t.Run(r.name, func(t *testing.T) { bubble(t, r.test) })
		}
	}
}
