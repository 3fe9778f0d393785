package api

import (
	"cmp"
	"net/http"

	"github.com/miwnode/miwnode/fsm"
)

// recordJob notes one execution. A record with a token counts only while the
// lease is held under it; one without is taken down for the node that was asked.
func (c *call) recordJob() (any, int, error) {
	var req RecordJobRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	op := &fsm.RecordJob{Key: req.Key, LeaseKey: req.LeaseKey, Token: req.Token, Outcome: req.Outcome, Detail: req.Detail}
	if req.Token == 0 {
		op.InstanceId = c.node.Status().InstanceID
	}
	res, err := c.propose(op)
	if err != nil {
		return nil, 0, err
	}
	return JobRecorded{Revision: res.GetRevision(), Total: res.GetTotal()}, http.StatusOK, nil
}

// jobs lists records; one that is asked for by its key is always there.
func (c *call) jobs() (any, int, error) {
	limit, err := c.limit()
	if err != nil {
		return nil, 0, err
	}
	key, one := c.query["key"]
	prefix, many := c.query["prefix"]
	switch {
	case one && many:
		return nil, 0, invalid("give key or prefix, not both")
	case one && key == "":
		return nil, 0, invalid("key is empty: name a job, or leave it out for all")
	}
	view, age, err := c.read()
	if err != nil {
		return nil, 0, err
	}
	answer := Jobs{Revision: view.Revision(), Age: age, Jobs: []Job{}}
	if one {
		job := Job{Key: key, Recent: []JobRun{}}
		if j, ok := view.Job(key); ok {
			job = jobOf(j)
		}
		answer.Jobs = append(answer.Jobs, job)
		return answer, http.StatusOK, nil
	}
	for j := range view.Jobs(prefix, c.query["after"]) {
		if len(answer.Jobs) == limit {
			answer.Next = answer.Jobs[limit-1].Key
			break
		}
		answer.Jobs = append(answer.Jobs, jobOf(j))
	}
	return answer, http.StatusOK, nil
}

func jobOf(j *fsm.Job) Job {
	job := Job{
		Key: j.Key, Total: j.Total, Owner: cmp.Or(j.Owner.InstanceID, j.Owner.Name), NodeID: j.Owner.NodeID,
		LastAt: stamp(j.LastAt), Recent: []JobRun{},
	}
	for r := range j.Recent() {
		job.Recent = append(job.Recent, JobRun{
			At: stamp(r.At), EndedAt: stamp(r.EndedAt), Token: r.Token, LeaseKey: r.LeaseKey,
			InstanceID: r.Who.InstanceID, NodeID: r.Who.NodeID, Name: r.Who.Name, Outcome: r.Outcome, Detail: r.Detail,
		})
	}
	return job
}
