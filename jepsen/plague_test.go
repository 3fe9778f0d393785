package jepsen_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

// TestChoosePlagues ensures that names are checked, and that none means all.
func TestChoosePlagues(t *testing.T) {
	all, err := jepsen.ChoosePlagues(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(jepsen.PlagueNames(all), " "), "partition kill pause restart slow-network full-disk step-down drain"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, p := range all {
		if len(p.Faults) == 0 || p.What == "" {
			t.Errorf("%s has %d faults and says %q", p.Name, len(p.Faults), p.What)
		}
	}
	some, err := jepsen.ChoosePlagues([]string{"pause", "kill", "pause"})
	if err != nil || !slices.Equal(jepsen.PlagueNames(some), []string{"pause", "kill"}) {
		t.Errorf("%v, %v", jepsen.PlagueNames(some), err)
	}
	if _, err := jepsen.ChoosePlagues([]string{"flood"}); err == nil || !strings.Contains(err.Error(), `"flood"`) || !strings.Contains(err.Error(), "partition") {
		t.Errorf("%v: want it to name what there is", err)
	}
}

// TestVisitation ensures that a seed gives one schedule, that each plague comes as
// often as any other, and that all is over in time.
func TestVisitation(t *testing.T) {
	all := jepsen.Plagues()
	nodes := []string{"n1", "n2", "n3"}
	const length = 10 * time.Minute
	steps := jepsen.Visitation(7, all, nodes, length)
	if !reflect.DeepEqual(steps, jepsen.Visitation(7, all, nodes, length)) {
		t.Error("one seed, two schedules")
	}
	if reflect.DeepEqual(steps, jepsen.Visitation(8, all, nodes, length)) {
		t.Error("two seeds, one schedule")
	}
	of := map[string]string{}
	for _, p := range all {
		for _, f := range p.Faults {
			of[f.Name] = p.Name
		}
	}
	seen := map[string]int{}
	for _, s := range steps {
		seen[of[s.Fault]]++
		if s.At >= length || s.At+s.For > length+time.Second {
			t.Errorf("%v goes on after %v", s, length)
		}
	}
	for _, p := range all {
		if n, each := seen[p.Name], len(steps)/len(all); n < each || n > each+1 {
			t.Errorf("%s comes %d times of %d", p.Name, n, len(steps))
		}
	}
}
