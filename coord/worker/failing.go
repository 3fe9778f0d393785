package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
)

// Failing says that the runs of a worker that is to run fail, or that who was
// granted it can't load it. It never changes.
type Failing struct {
	Count    int             // of failures in a row
	Error    fsm.WorkerError // of the last one
	Instance fsm.Identity    // where that was
	At       int64           // stamp, Unix nanoseconds
	// Next is when it is tried again, as a stamp; in the past, it is under way.
	// 0: when the planner of the group finds an instance for it.
	Next int64
}

// Runs that fail are put on record as executions of a job, which every node has
// and only the holder of the worker's lease can add to. The job's words:
const (
	runFailed    = "failed"
	runRecovered = "recovered" // from the failures before
	failedDetail = "%d in a row, the next run in %v: %s: %s"
)

// wellAfter is how many of the longest back-offs a run lasts that makes the
// failures before it forgotten.
const wellAfter = 10

// runsKey is the key of that job.
func runsKey(id string) string { return "miw/worker/" + id + "/runs" }

// failing reads how it stands with the runs of a worker.
func failing(v *fsm.View, w Worker) *Failing {
	if !w.Wanted() {
		return nil
	}
	if w.Token != 0 {
		return failingRuns(v, w)
	}
	g, known := v.Group(fsm.WorkersGroup)
	if !known {
		return nil
	}
	load, wanted := g.Workload(w.ID)
	if !wanted || load.Failure == nil {
		return nil
	}
	f := load.Failure
	who := fsm.Identity{InstanceID: f.InstanceID}
	if s, live := v.Instance(f.InstanceID); live {
		who = *s.Identity
	}
	return &Failing{Count: f.Count, Error: fsm.WorkerError{Type: TypeLoadFailed, Message: f.Error}, Instance: who, At: f.At}
}

func failingRuns(v *fsm.View, w Worker) *Failing {
	job, known := v.Job(runsKey(w.ID))
	if !known {
		return nil
	}
	var last *fsm.JobRun
	for r := range job.Recent() {
		last = r
	}
	if last == nil || last.Token != w.Token || last.Outcome != runFailed {
		return nil
	}
	f := &Failing{Instance: *last.Who, At: last.EndedAt}
	var after string
	if _, err := fmt.Sscanf(last.Detail, "%d in a row, the next run in %s", &f.Count, &after); err != nil {
		return nil
	}
	d, err := time.ParseDuration(strings.TrimSuffix(after, ":"))
	if err != nil {
		return nil
	}
	f.Next = f.At + d.Nanoseconds()
	_, why, _ := strings.Cut(last.Detail, ": ")
	f.Error.Type, f.Error.Message, _ = strings.Cut(why, ": ")
	return f
}

// runRecord puts the failures of one tenant on record in the background: no run
// waits for that. What comes while another is on its way takes the place of what
// came before it. The goroutine of the tenant owns it.
type runRecord struct {
	failures int       // in a row
	news     chan note // nil until the first failure
	end      context.CancelFunc
	work     sync.WaitGroup
}

// note is what there is to record; well is when, if nothing else comes, the
// failures are over.
type note struct {
	outcome, detail string
	well            time.Duration // 0: never
}

// failed notes a failure after which the worker is run again in a while.
func (t *tenant) failed(err error, took, after time.Duration) {
	r, enough := &t.record, wellAfter*t.backoff.Max
	if took >= enough {
		r.failures = 0
	}
	r.failures++
	typ, message := errorOf(err, TypeRunFailed).told()
	t.note(note{runFailed, fmt.Sprintf(failedDetail, r.failures, after.Round(time.Millisecond), typ, message), after + enough})
}

// recovered notes that the failures so far say nothing of what is run next.
func (t *tenant) recovered() {
	if t.record.failures > 0 {
		t.record.failures = 0
		t.note(note{outcome: runRecovered})
	}
}

func (t *tenant) note(n note) {
	r := &t.record
	if r.news == nil {
		ctx, cancel := context.WithCancel(t.ctx)
		r.news, r.end = make(chan note, 1), cancel
		r.work.Go(func() { t.keepRecord(ctx, r.news) })
	}
	select {
	case <-r.news:
	default:
	}
	r.news <- n
}

// closeRecord ends what goes on in the background.
func (t *tenant) closeRecord() {
	if t.record.news != nil {
		t.record.end()
		t.record.work.Wait()
	}
}

// keepRecord records what comes until ctx ends. When nothing has come for long,
// the worker is well.
func (t *tenant) keepRecord(ctx context.Context, news <-chan note) {
	var well <-chan time.Time
	for {
		n := note{outcome: runRecovered}
		select {
		case n = <-news:
		case <-well:
		case <-ctx.Done():
			return
		}
		well = nil
		if n.well > 0 {
			well = time.After(n.well)
		}
		t.putOnRecord(ctx, n, news)
	}
}

// putOnRecord records a note, unless another one comes before that is done.
func (t *tenant) putOnRecord(ctx context.Context, n note, news <-chan note) {
	e := coord.Execution{Key: runsKey(t.id), Lease: t.lease, Outcome: n.outcome, Detail: n.detail}
	for tries := 1; len(news) == 0; tries++ {
		limit, cancel := context.WithTimeout(ctx, submitTimeout)
		_, err := coord.Record(limit, t.c, e)
		cancel()
		if err == nil || errors.Is(err, fsm.ErrStaleToken) || pause(ctx, redriveAfter.Delay(tries, 0)) != nil {
			return
		}
	}
}
