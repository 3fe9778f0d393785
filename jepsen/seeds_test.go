package jepsen_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

var (
	replayFlag   = flag.Int("replay", 0, "run a seed that fails again up to so many times and say how often it fails")
	shrinkFlag   = flag.Bool("shrink", false, "shrink the schedule of a seed that fails to the smallest that still fails once in -replay tries (50 if not given)")
	patienceFlag = flag.Duration("patience", 5*time.Minute, "how long replaying and shrinking one seed may take")
	scheduleFlag = flag.String("schedule", "", "carry out the schedule of this report.json under its seed")
	defectFlag   = flag.String("defect", "", "plant this bug, a field of node.Defects or fsm.Defects")
)

// plantBug switches on the bug of that name.
func plantBug(t *testing.T, cfg *simConfig, name string) {
	t.Helper()
	for _, v := range []reflect.Value{reflect.ValueOf(&cfg.defects).Elem(), reflect.ValueOf(&cfg.defects.FSM).Elem()} {
		if f := v.FieldByName(name); f.IsValid() && f.Kind() == reflect.Bool {
			f.SetBool(true)
			cfg.defect = name
			return
		}
	}
	t.Fatalf("-defect %s: there is no such bug in node.Defects or fsm.Defects", name)
}

// torment is one seed of a simulation, to be run as often as one likes.
type torment struct {
	run    simulation
	cfg    simConfig
	faults []jepsen.Fault
}

// once runs it, with other steps than those that the seed draws unless steps is nil.
func (o torment) once(t *testing.T, steps []jepsen.Step) *jepsen.Report {
	if steps != nil {
		o.cfg.steps, o.cfg.lasts = steps, 0
	}
	h, steps, extra := o.run(t, o.cfg, o.faults)
	return &jepsen.Report{History: h, Schedule: steps, Verdicts: append(jepsen.Check(h), extra...)}
}

// again runs a torment that failed until it has failed three times more, but not
// more than most times nor after deadline, and returns the first that failed.
// Only what fails a check that failed before counts as a failure.
func (o torment) again(t *testing.T, failed *jepsen.Report, steps []jepsen.Step, enough, most int, deadline time.Time) (first *jepsen.Report, failures, runs int) {
	names := jepsen.FailedChecks(failed.Verdicts)
	for runs < most && failures < enough && time.Now().Before(deadline) {
		r := o.once(t, steps)
		runs++
		if slices.ContainsFunc(jepsen.FailedChecks(r.Verdicts), func(c string) bool { return slices.Contains(names, c) }) {
			if failures++; first == nil {
				first = r
			}
		}
	}
	return first, failures, runs
}

// smallest is the report of the smallest schedule that fails at least once in
// tries runs.
func (o torment) smallest(t *testing.T, failed *jepsen.Report, tries int, deadline time.Time) *jepsen.Report {
	last := failed
	jepsen.Shrink(failed.Schedule, func(steps []jepsen.Step) bool {
		r, _, _ := o.again(t, failed, steps, 1, tries, deadline)
		if r != nil {
			last = r
		}
		return r != nil
	})
	return last
}

// pursue replays and shrinks what failed, as the flags say.
func (o torment) pursue(t *testing.T, failed *jepsen.Report) {
	t.Helper()
	if failed.OK() || *replayFlag == 0 && !*shrinkFlag {
		return
	}
	tries, deadline := *replayFlag, time.Now().Add(*patienceFlag)
	if tries == 0 {
		tries = 50
	}
	_, failures, runs := o.again(t, failed, failed.Schedule, 3, tries, deadline)
	t.Logf("seed %d failed %d times more in %d runs", o.cfg.seed, failures, runs)
	if !*shrinkFlag {
		return
	}
	small := o.smallest(t, failed, tries, deadline)
	dir := filepath.Join(reportDir(t), "smallest")
	test, _, _ := strings.Cut(t.Name(), "/")
	small.Replay = fmt.Sprintf("go test ./jepsen -run '%s$' -count 50 -failfast -schedule %s", test, filepath.Join(dir, "report.json"))
	if err := small.Write(dir); err != nil {
		t.Errorf("report: %v", err)
	}
	plain, _ := json.MarshalIndent(small.Schedule, "  ", "  ")
	if time.Now().After(deadline) {
		t.Logf("seed %d: %v were over before the schedule was as small as it gets: -patience", o.cfg.seed, *patienceFlag)
	}
	t.Logf("seed %d: %d of %d faults will do, report in %s\n  again: %s\n  %s\n  %s",
		o.cfg.seed, len(small.Schedule), len(failed.Schedule), dir, small.Replay, strings.Join(small.Faults(), "\n  "), plain)
}

// torments runs the seeds that the flags ask for, else as many as a CI run has:
// plain ones, and raced other ones under the race detector. A run in which
// less than enough happened fails, for a promise that was never tried has not been kept.
func torments(t *testing.T, plain, raced int, of func(seed int64) torment, enough func(jepsen.Counts) bool) {
	// Three raft logs are opened per life: less garbage collection pays here.
	percent := debug.SetGCPercent(400)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	seeds, from := plain, *fromFlag
	if raceEnabled {
		seeds, from = raced, from+int64(plain)
	}
	if *seedsFlag > 0 {
		seeds, from = *seedsFlag, *fromFlag
	}
	var steps []jepsen.Step
	if *scheduleFlag != "" {
		seed, read, err := jepsen.ReadSchedule(*scheduleFlag)
		if err != nil {
			t.Fatal(err)
		}
		seeds, from, steps = 1, seed, read
	}
	if *seedFlag != 0 {
		seeds, from = 1, *seedFlag
	}
	for i := range seeds {
		seed := from + int64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			o := of(seed)
			o.cfg.steps = steps
			if *defectFlag != "" {
				plantBug(t, &o.cfg, *defectFlag)
			}
			h, steps, extra := o.run(t, o.cfg, o.faults)
			r := judge(t, h, steps, extra...)
			t.Log(r.Summary())
			if c := jepsen.Count(h); *scheduleFlag == "" && !enough(c) {
				t.Errorf("too little happened to judge by: %+v", c)
			}
			o.pursue(t, r)
		})
	}
}

// plainOnly skips what the race detector sees nothing new in: the seeds that run
// under it go through the same code, and `make sim` runs this without it.
func plainOnly(t *testing.T) {
	t.Helper()
	if raceEnabled {
		t.Skip("runs without the race detector: make sim")
	}
}
