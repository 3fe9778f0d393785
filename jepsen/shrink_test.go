package jepsen_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

// TestShrink ensures that what does not matter is left out, and what is left made
// short.
func TestShrink(t *testing.T) {
	var steps []jepsen.Step
	for i := range 13 {
		steps = append(steps, jepsen.Step{At: time.Duration(i+1) * 8 * s, For: 8 * s, Fault: fmt.Sprintf("f%d", i)})
	}
	has := func(steps []jepsen.Step, fault string, least time.Duration) bool {
		return slices.ContainsFunc(steps, func(s jepsen.Step) bool { return s.Fault == fault && s.For >= least })
	}
	for _, c := range []struct {
		name  string
		fails func([]jepsen.Step) bool
		want  []jepsen.Step
	}{
		{"two that are far apart, one of them for a while", func(s []jepsen.Step) bool { return has(s, "f2", 3*time.Second) && has(s, "f11", 0) }, []jepsen.Step{
			{At: 750 * time.Millisecond, For: 4 * s, Fault: "f2"}, {At: 1312500 * time.Microsecond, For: 125 * time.Millisecond, Fault: "f11"},
		}},
		{"any three", func(s []jepsen.Step) bool { return len(s) >= 3 }, []jepsen.Step{
			{At: 687500 * time.Microsecond, For: 125 * time.Millisecond, Fault: "f10"}, {At: 1187500 * time.Microsecond, For: 125 * time.Millisecond, Fault: "f11"}, {At: 1687500 * time.Microsecond, For: 125 * time.Millisecond, Fault: "f12"},
		}},
		{"no fault at all", func([]jepsen.Step) bool { return true }, nil},
		{"never again", func([]jepsen.Step) bool { return false }, steps},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := jepsen.Shrink(steps, c.fails)
			if !slices.Equal(got, c.want) {
				t.Errorf("shrunk to %v, want %v", got, c.want)
			}
		})
	}
	if steps[2].For != 8*s || len(steps) != 13 {
		t.Errorf("the schedule that was given has changed: %v", steps)
	}
}
