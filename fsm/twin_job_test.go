package fsm_test

import (
	"cmp"
	"maps"
	"slices"

	"github.com/miwnode/miwnode/fsm"
)

type twinJob struct {
	total uint64
	owner string
	runs  []twinRun
}

type twinRun struct {
	token             uint64
	instance, outcome string
}

func (t *twin) recordJob(op *fsm.RecordJob) *twinAnswer {
	run := twinRun{token: op.Token, instance: op.InstanceId, outcome: cmp.Or(op.Outcome, "done")}
	if op.Token != 0 {
		l := t.leases[cmp.Or(op.LeaseKey, op.Key)]
		if l == nil || l.state == "barred" || l.token != op.Token {
			return refusal(fsm.CodeStaleToken)
		}
		run.instance = l.instance
	}
	if t.jobs[op.Key] == nil {
		t.jobs[op.Key] = &twinJob{}
	}
	j := t.jobs[op.Key]
	open := t.openRun(j, op.Token)
	if open != nil && run.outcome == "started" {
		t.closeRun(op.Key, open, "lost")
		open = nil
	}
	if open != nil {
		t.closeRun(op.Key, open, run.outcome)
	} else {
		j.total++
		j.owner = run.instance
		j.runs = append(j.runs, run)
		j.runs = j.runs[max(0, len(j.runs)-32):]
		t.emit("job.recorded %s %d %s", op.Key, run.token, run.instance)
	}
	return &twinAnswer{total: j.total}
}

func (t *twin) openRun(j *twinJob, token uint64) *twinRun {
	for i := range j.runs {
		if token != 0 && j.runs[i].token == token && j.runs[i].outcome == "started" {
			return &j.runs[i]
		}
	}
	return nil
}

func (t *twin) closeRun(key string, r *twinRun, outcome string) {
	r.outcome, t.jobs[key].owner = outcome, r.instance
	t.emit("job.recorded %s %d %s", key, r.token, r.instance)
}

func (t *twin) loseRuns(l *twinLease) {
	for _, key := range slices.Sorted(maps.Keys(t.jobs)) {
		if r := t.openRun(t.jobs[key], l.token); r != nil {
			t.closeRun(key, r, "lost")
		}
	}
}
