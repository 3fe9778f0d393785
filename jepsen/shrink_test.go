package jepsen_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

// TestShrink_Planted follows a bug all the way, as who finds one does: the schedule
// of a report fails again with -replay, -shrink finds the part of it that matters,
// what that keeps fails by itself, and does so for no other reason than the bug.
func TestShrink_Planted(t *testing.T) {
	plainOnly(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (out string, failed bool) {
		cmd := exec.CommandContext(t.Context(), self, append([]string{"-test.run", "^TestSim$", "-test.timeout", "5m"}, args...)...)
		raw, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(raw), err != nil
	}
	dir := t.TempDir()
	// A queue keeps the place of a session that has ended: it takes two crashes for
	// what is granted to the dead to stay with them.
	whole := filepath.Join(dir, "report.json")
	schedule := []jepsen.Step{
		{At: 2 * s, For: s, Fault: "wall-jump", Node: "n3", Jump: time.Minute},
		{At: 5 * s, For: 8 * s, Fault: "crash", Node: "n2"},
		{At: 14 * s, For: s, Fault: "clock-rate", Node: "n3", Amount: 1.01},
		{At: 15 * s, For: 8 * s, Fault: "crash", Node: "n1"},
		{At: 25 * s, For: 8 * s, Fault: "crash", Node: "n3"},
	}
	raw, err := json.Marshal(map[string]any{"meta": jepsen.Meta{Seed: 4}, "schedule": schedule})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(whole, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	out, failed := run("-schedule", whole, "-defect", "DeadGrant", "-test.count", "10", "-test.failfast", "-replay", "4", "-shrink", "-patience", "3m", "-report", dir)
	if !failed || !strings.Contains(out, jepsen.CheckTakeOver+": ") {
		t.Fatalf("the bug was not caught by %s:\n%s", jepsen.CheckTakeOver, out)
	}
	if !regexp.MustCompile(`seed 4 failed [1-3] times more in [1-4] runs`).MatchString(out) {
		t.Errorf("it is not said how often it failed again:\n%s", out)
	}
	small := filepath.Join(dir, "TestSim_seed=4", "smallest", "report.json")
	seed, steps, err := jepsen.ReadSchedule(small)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if seed != 4 || len(steps) < 1 || len(steps) > 3 || slices.ContainsFunc(steps, func(s jepsen.Step) bool { return s.Fault != "crash" }) {
		t.Errorf("seed %d, shrunk to %v, want one to three crashes of seed 4", seed, steps)
	}
	if !strings.Contains(out, fmt.Sprintf("%d of 5 faults will do", len(steps))) || !strings.Contains(out, "-schedule "+small) {
		t.Errorf("it is not said what is left and how to run that:\n%s", out)
	}
	if out, failed := run("-schedule", small, "-defect", "DeadGrant", "-test.count", "30", "-test.failfast", "-report", filepath.Join(dir, "again")); !failed || !strings.Contains(out, jepsen.CheckTakeOver+": ") {
		t.Errorf("what is left does not fail %s by itself:\n%s", jepsen.CheckTakeOver, out)
	}
	if out, failed := run("-schedule", small, "-report", filepath.Join(dir, "sound")); failed {
		t.Errorf("it fails without the bug:\n%s", out)
	}
}
