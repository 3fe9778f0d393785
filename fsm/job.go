package fsm

import (
	"iter"
	"strings"

	"github.com/tidwall/btree"
)

// Outcomes with a meaning of their own.
const (
	OutcomeStarted = "started" // opens a run
	OutcomeDone    = "done"    // taken for ""
	OutcomeLost    = "lost"    // the lease of an open run ended; only the state says so
)

// JobRun is one execution. It never changes.
type JobRun struct {
	At       int64 // stamp of its record, Unix nanoseconds
	EndedAt  int64 // stamp; 0 = open
	Token    uint64
	LeaseKey string    // "" without a token
	Who      *Identity // never nil
	Outcome  string
	Detail   string
}

// Job is the record of the executions of one key. It never changes.
type Job struct {
	Key          string
	Total        uint64    // executions, all of them
	Owner        *Identity // of the last record, never nil
	LastAt       int64     // stamp
	LastRevision uint64

	position uint32
	recent   []JobRun // oldest first
}

// Recent yields the last executions, at most MaxJobRuns, oldest first.
func (j *Job) Recent() iter.Seq[*JobRun] {
	return func(yield func(*JobRun) bool) {
		for i := range j.recent {
			if !yield(&j.recent[i]) {
				return
			}
		}
	}
}

// jobTables is the tables of jobs.
type jobTables struct {
	jobs     btree.Map[string, *Job]
	byAge    btree.Map[string, string]   // order of the last record → key
	openRuns btree.Map[string, []string] // lease key → jobs with an open run under its grant; replaced on change
}

// copyFor gives v its own copy; what is empty needs none.
func (t *jobTables) copyFor(v *jobTables) {
	if t.jobs.Len() == 0 {
		return
	}
	v.jobs = *t.jobs.IsoCopy()
	v.byAge = *t.byAge.IsoCopy()
	v.openRuns = *t.openRuns.IsoCopy()
}

// Job returns the record of a key.
func (v *View) Job(key string) (*Job, bool) { return v.jobs.Get(key) }

// JobCount returns how many jobs are on record.
func (v *View) JobCount() int { return v.jobs.Len() }

// Jobs yields the jobs whose key begins with prefix and comes after after, in
// the order of the keys.
func (v *View) Jobs(prefix, after string) iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		v.jobs.Ascend(max(prefix, after), func(key string, j *Job) bool {
			if !strings.HasPrefix(key, prefix) {
				return false
			}
			return key == after && after != "" || yield(j)
		})
	}
}
