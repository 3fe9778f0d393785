package coord_test

import (
	"testing"

	"github.com/miwnode/miwnode/coord/coordtest"
)

// row is one behaviour that this package owes.
type row struct {
	name   string
	timing coordtest.Timing
	test   func(t *testing.T, w *coordtest.World)
}

// TestChecklist holds every behaviour by its number.
func TestChecklist(t *testing.T) {
	for _, rows := range [][]row{leaseRows, configRows, runnerRows, drainRows, stopRows, placementRows, groupRows} {
		for _, r := range rows {
			t.Run(r.name, func(t *testing.T) { bubble(t, r.timing, r.test) })
		}
	}
}
