package jepsen_test

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/jepsen"
)

var (
	seedFlag  = flag.Int64("seed", 0, "run this one seed (0: as many as -seeds says)")
	seedsFlag = flag.Int("seeds", 0, "how many seeds of the simulation to run (0: as many as a CI run has)")
	fromFlag  = flag.Int64("from", 1, "first seed")
	keepFlag  = flag.String("report", "", "folder for the reports of failed runs (default: the test's artifact folder)")
)

// The test binary is the worker of the process tier, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		os.Exit(jepsen.Worker(os.Args[2:]))
	}
	if len(os.Args) > 2 && os.Args[1] == "dial" {
		os.Exit(dial(os.Args[2]))
	}
	code := m.Run()
	if binaryDir != "" {
		os.RemoveAll(binaryDir)
	}
	os.Exit(code)
}

// reportDir is where the evidence of t goes.
func reportDir(t *testing.T) string {
	if *keepFlag != "" {
		return filepath.Join(*keepFlag, strings.ReplaceAll(t.Name(), "/", "_"))
	}
	return t.ArtifactDir()
}

// judge checks h, and when a promise was broken leaves a report and fails t.
func judge(t *testing.T, h *jepsen.History, schedule []jepsen.Step, extra ...jepsen.Verdict) *jepsen.Report {
	t.Helper()
	r := &jepsen.Report{History: h, Schedule: schedule, Verdicts: append(jepsen.Check(h), extra...)}
	r.Replay = "go test ./jepsen -run '" + t.Name() + "' -seed " + strconv.FormatInt(h.Meta.Seed, 10)
	if !r.OK() {
		dir := reportDir(t)
		if err := r.Write(dir); err != nil {
			t.Errorf("report: %v", err)
		}
		t.Errorf("%s\n  report in %s (kept with -artifacts or -report DIR)\n  again: %s\n  %s", r.Summary(), dir, r.Replay, strings.Join(r.Faults(), "\n  "))
	}
	return r
}
