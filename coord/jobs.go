package coord

import (
	"context"
	"fmt"

	"github.com/miwnode/miwnode/fsm"
)

// Execution is one execution of a job.
type Execution struct {
	// Key names the job. Defaults to the key of Lease.
	Key string
	// Lease, if set, is what the execution ran under: it is recorded only while
	// that grant lasts, so that nobody who was overtaken is counted.
	Lease *Lease
	// Outcome is a word of the caller's, at most 64 bytes. Defaults to "done".
	// OutcomeStarted, which needs a Lease, opens an execution that the next
	// record under the same lease closes; when the lease ends first, the state
	// closes it as lost.
	Outcome string
	// Detail is for people: at most 512 bytes, of several lines if need be.
	Detail string
}

// Outcomes with a meaning of their own.
const (
	OutcomeStarted = fsm.OutcomeStarted
	OutcomeDone    = fsm.OutcomeDone
	OutcomeLost    = fsm.OutcomeLost // only the state records it
)

// Record records an execution of a job and returns how many there are now; one
// that is opened counts at once, not again. Total, owner, times and the last 32
// executions are readable on every node ([fsm.View.Job]).
//
// Refusals: fsm.ErrStaleToken when the lease is no longer this process's, which
// changes nothing; fsm.ErrInvalidArgument. After fsm.ErrUncertain the execution
// may be recorded, after fsm.ErrNoQuorum it is not.
func Record(ctx context.Context, c Cluster, e Execution) (total uint64, err error) {
	op := &fsm.RecordJob{Key: e.Key, Outcome: e.Outcome, Detail: fsm.ClipLines(e.Detail, fsm.MaxDetailBytes)}
	if e.Lease != nil {
		if op.Key == "" {
			op.Key = e.Lease.Key()
		}
		op.LeaseKey, op.Token = e.Lease.Key(), e.Lease.Token()
	} else {
		op.InstanceId = c.InstanceID()
	}
	res, err := c.Submit(ctx, op)
	if err == nil {
		err = fsm.ResultErr(res)
	}
	if err != nil {
		return 0, fmt.Errorf("record an execution of %q: %w", op.Key, err)
	}
	return res.Total, nil
}
