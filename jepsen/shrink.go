package jepsen

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

// Shrink returns the smallest schedule it can find that still fails: first it
// drops faults, halves of the schedule before single ones, then it makes those
// that are left shorter and has them come sooner. What fails is asked as often
// as that takes; once it answers false for good, the smallest so far is returned.
func Shrink(steps []Step, fails func([]Step) bool) []Step {
	steps = dropFaults(slices.Clone(steps), fails)
	for i := range steps {
		shorten(steps, fails, func(s []Step) bool {
			s[i].For /= 2
			return s[i].For >= 100*time.Millisecond
		})
	}
	for i := range steps { // the pause before each
		before := time.Duration(0)
		if i > 0 {
			before = steps[i-1].At
		}
		shorten(steps, fails, func(s []Step) bool {
			sooner := (s[i].At - before) / 2
			for j := i; j < len(s); j++ {
				s[j].At -= sooner
			}
			return sooner >= 500*time.Millisecond
		})
	}
	return steps
}

// dropFaults leaves out parts of the schedule, smaller and smaller ones, until no
// single fault can be spared (Zeller's delta debugging).
func dropFaults(steps []Step, fails func([]Step) bool) []Step {
	for size := (len(steps) + 1) / 2; size > 0; {
		dropped := false
		for from := 0; from < len(steps); {
			rest := slices.Concat(steps[:from], steps[min(from+size, len(steps)):])
			if fails(rest) {
				steps, dropped = rest, true
			} else {
				from += size
			}
		}
		switch {
		case size > 1:
			size /= 2
		case !dropped:
			size = 0
		}
	}
	return steps
}

// shorten applies less to steps for as long as less says that it may and the
// outcome fails.
func shorten(steps []Step, fails func([]Step) bool, less func([]Step) bool) {
	for {
		next := slices.Clone(steps)
		if !less(next) || !fails(next) {
			return
		}
		copy(steps, next)
	}
}

// ReadSchedule reads the seed and the schedule of a report.json.
func ReadSchedule(file string) (seed int64, steps []Step, err error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, nil, fmt.Errorf("schedule: %w", err)
	}
	var r reportFile
	if err := json.Unmarshal(raw, &r); err != nil {
		return 0, nil, fmt.Errorf("schedule: %s is no report.json: %w", file, err)
	}
	if r.Schedule == nil {
		r.Schedule = []Step{} // none, which is not the one that the seed draws
	}
	return r.Meta.Seed, r.Schedule, nil
}
