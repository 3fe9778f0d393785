package fsm

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

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

func (s *State) recordJob(op *RecordJob, r *Result) error {
	run := JobRun{At: s.stamp, EndedAt: s.stamp, Token: op.Token, Who: nobody, Outcome: op.Outcome, Detail: op.Detail}
	if run.Outcome == "" {
		run.Outcome = OutcomeDone
	}
	if op.Token != 0 {
		run.LeaseKey = op.LeaseKey
		if run.LeaseKey == "" {
			run.LeaseKey = op.Key
		}
		l, err := s.named(run.LeaseKey, op.Token)
		if err != nil {
			return Errorf(CodeStaleToken, "token %d is not that of a present grant of %s", op.Token, run.LeaseKey)
		}
		run.LeaseKey, run.Who = l.Key, l.Who
	} else if sess := s.instance(op.InstanceId); sess != nil {
		run.Who = sess.Identity
	} else if op.InstanceId != "" {
		run.Who = &Identity{InstanceID: op.InstanceId}
	}
	if run.Outcome == OutcomeStarted {
		run.EndedAt = 0
		if err := s.roomForRun(op.Key, run.LeaseKey); err != nil {
			return err
		}
	}
	job, known := s.jobs.Get(op.Key)
	if !known {
		if err := s.roomForJob(); err != nil {
			return err
		}
		job = &Job{Key: op.Key, Owner: nobody}
	}
	r.Total = s.addRun(job, run).Total
	return nil
}

// addRun puts a run on record. It closes the open one under the same token, or
// opens one: then one that is open already was lost.
func (s *State) addRun(job *Job, run JobRun) *Job {
	i := job.open(run.Token)
	if i >= 0 && run.Outcome == OutcomeStarted {
		job = s.closeRun(job, i, OutcomeLost, "")
		i = -1
	}
	if i >= 0 {
		return s.closeRun(job, i, run.Outcome, run.Detail)
	}
	next := *job
	next.Total++
	next.recent = append(slices.Clone(next.recent), run)
	if n := len(next.recent); n > MaxJobRuns {
		if gone := &next.recent[0]; gone.Outcome == OutcomeStarted {
			s.notOpen(gone.LeaseKey, job.Key)
		}
		next.recent = next.recent[n-MaxJobRuns:]
	}
	if run.Outcome == OutcomeStarted {
		s.isOpen(run.LeaseKey, job.Key)
	}
	return s.putJob(&next, &run)
}

// open returns the place of the open run under a token, -1 if there is none.
func (j *Job) open(token uint64) int {
	if token == 0 {
		return -1
	}
	return slices.IndexFunc(j.recent, func(r JobRun) bool { return r.Token == token && r.Outcome == OutcomeStarted })
}

func (s *State) closeRun(job *Job, i int, outcome, detail string) *Job {
	next := *job
	next.recent = slices.Clone(next.recent)
	run := &next.recent[i]
	run.EndedAt, run.Outcome = s.stamp, outcome
	if detail != "" {
		run.Detail = detail
	}
	s.notOpen(run.LeaseKey, job.Key)
	return s.putJob(&next, run)
}

// putJob replaces the record of a job, whose last record is run.
func (s *State) putJob(next *Job, run *JobRun) *Job {
	if next.LastRevision != 0 {
		s.byAge.Delete(next.age())
	}
	place := s.nextPlace()
	next.Owner, next.LastAt, next.LastRevision, next.position = run.Who, s.stamp, place.Revision, place.Position
	s.byAge.Set(next.age(), next.Key)
	s.jobs.Set(next.Key, next)
	note := &Note{Reason: run.Outcome, Number: next.Total}
	s.emit(Event{Type: EventJobRecorded, Key: next.Key, Token: run.Token, Who: run.Who, Note: note})
	s.touch(topic{kind: topicJob, name: next.Key})
	return next
}

func (j *Job) age() string { return placeOrder(EventID{j.LastRevision, j.position}) }

// isOpen notes that a job has an open run under the grant of a lease.
func (s *State) isOpen(leaseKey, job string) {
	jobs, _ := s.openRuns.Get(leaseKey)
	if i, ok := slices.BinarySearch(jobs, job); !ok {
		s.openRuns.Set(leaseKey, slices.Insert(slices.Clone(jobs), i, job))
	}
}

func (s *State) notOpen(leaseKey, job string) {
	jobs, _ := s.openRuns.Get(leaseKey)
	i, ok := slices.BinarySearch(jobs, job)
	switch {
	case !ok:
	case len(jobs) == 1:
		s.openRuns.Delete(leaseKey)
	default:
		s.openRuns.Set(leaseKey, slices.Delete(slices.Clone(jobs), i, i+1))
	}
}

// roomForRun bounds the open runs under one grant.
func (s *State) roomForRun(job, leaseKey string) error {
	jobs, _ := s.openRuns.Get(leaseKey)
	if _, open := slices.BinarySearch(jobs, job); !open && len(jobs) >= MaxOpenRuns {
		return Errorf(CodeOverloaded, "%d jobs run under this grant, no more are taken", len(jobs))
	}
	return nil
}

// roomForJob drops the job without an open run whose last record is the oldest,
// if the table is full.
func (s *State) roomForJob() error {
	if s.jobs.Len() < MaxJobs {
		return nil
	}
	var oldest *Job
	s.byAge.Scan(func(_, key string) bool {
		job, _ := s.jobs.Get(key)
		if !slices.ContainsFunc(job.recent, func(r JobRun) bool { return r.Outcome == OutcomeStarted }) {
			oldest = job
		}
		return oldest == nil
	})
	if oldest == nil {
		return Errorf(CodeOverloaded, "%d jobs are running, no more are taken", s.jobs.Len())
	}
	s.jobs.Delete(oldest.Key)
	s.byAge.Delete(oldest.age())
	return nil
}

// loseRuns closes what was begun under a lease that has ended.
func (s *State) loseRuns(l *Lease) {
	jobs, _ := s.openRuns.Get(l.Key)
	for _, key := range jobs {
		job, _ := s.jobs.Get(key)
		if i := job.open(l.Token); i >= 0 {
			s.closeRun(job, i, OutcomeLost, "")
		}
	}
}

func (s *State) recordOverlap(op *RecordOverlap) error {
	if err := s.otherTerm(op.Term); err != nil {
		return err
	}
	reason := fmt.Sprintf("the runs of %s (token %d) and %s (token %d) overlapped for at least %v (uncertainty %v)",
		op.InstanceA, op.TokenA, op.InstanceB, op.TokenB, time.Duration(op.CertainNs), time.Duration(op.UncertaintyNs))
	reason = Clip(reason, MaxReasonBytes)
	who := &Identity{InstanceID: op.InstanceB}
	s.ledger.push(LedgerEntry{
		Key:             op.Key,
		Token:           op.TokenB,
		Who:             who,
		GrantedAt:       s.stamp,
		GrantedRevision: s.cluster.revision,
		EndedAt:         s.stamp,
		EndedRevision:   s.cluster.revision,
		EndReason:       EndOverlap,
		Note:            noteOf("", reason, op.InstanceA),
	})
	s.emit(Event{Type: EventLeaseOverlap, Key: op.Key, Token: op.TokenB, Who: who, Note: &Note{Reason: reason, To: op.InstanceA, Number: uint64(op.CertainNs)}})
	return nil
}
