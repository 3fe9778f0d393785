package jepsen

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

// Bookkeeper records executions of jobs, each under a request ID of its own that
// it repeats through one node after the other until it is answered; and some
// again after that. However often it had to ask, each counts once.
type Bookkeeper struct {
	Name string
	Jobs []string
	R    *Recorder
	Rng  *rand.Rand // owned by Run
	// Nodes and Endpoint are the ways in; an endpoint is nil while its node is down.
	Nodes    []string
	Endpoint func(node string) *HTTPEndpoint

	stream *Stream
	asked  int
}

// Run records until ctx ends.
func (b *Bookkeeper) Run(ctx context.Context) {
	b.stream = b.R.Stream(b.Name)
	for sleep(ctx, draw(b.Rng, 50*time.Millisecond, 700*time.Millisecond)) {
		job := b.Jobs[b.Rng.IntN(len(b.Jobs))]
		if b.Rng.IntN(5) == 0 {
			b.ReadTotal(ctx, job, b.Nodes[b.Rng.IntN(len(b.Nodes))])
			continue
		}
		b.record(ctx, job)
	}
}

func (b *Bookkeeper) record(ctx context.Context, job string) {
	b.asked++
	id := fmt.Sprintf("%s-%d-%x", b.Name, b.asked, b.Rng.Uint64())
	p := b.stream.Call(Op{Kind: KindRecord, Key: job})
	total, err := b.insist(ctx, job, id)
	if settle(p, err, total, 0) != OK || b.Rng.IntN(4) > 0 {
		return
	}
	// An answer may have been late only: its repeat is answered as it was.
	p = b.stream.Call(Op{Kind: KindRepeat, Key: job, Token: total})
	again, err := b.insist(ctx, job, id)
	settle(p, err, again, 0)
}

// insist repeats a record until its outcome is known or ctx ends.
func (b *Bookkeeper) insist(ctx context.Context, job, id string) (total uint64, err error) {
	err = fsm.ErrUncertain
	sent := false
	for i := b.Rng.IntN(len(b.Nodes)); ctx.Err() == nil; i++ {
		if e := b.Endpoint(b.Nodes[i%len(b.Nodes)]); e != nil {
			rctx, cancel := context.WithTimeout(ctx, draw(b.Rng, 300*time.Millisecond, 2*time.Second))
			total, err = e.Record(rctx, job, id)
			cancel()
			switch settled(err) {
			case OK, Refused:
				return total, err
			case Uncertain:
				sent = true
			}
		}
		sleep(ctx, 50*time.Millisecond)
	}
	if sent {
		return 0, fsm.ErrUncertain
	}
	return 0, err
}

// ReadTotal reads a job's total through a node, linearizably.
func (b *Bookkeeper) ReadTotal(ctx context.Context, job, node string) {
	e := b.Endpoint(node)
	if e == nil {
		return
	}
	if b.stream == nil {
		b.stream = b.R.Stream(b.Name)
	}
	rctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	p := b.stream.Call(Op{Node: node, Kind: KindTotal, Key: job})
	total, err := e.Total(rctx, job)
	settle(p, err, total, 0)
}

// Record notes one execution of a job and returns their number.
func (e *HTTPEndpoint) Record(ctx context.Context, job, requestID string) (uint64, error) {
	var r api.JobRecorded
	err := e.ask(ctx, api.Request{Method: http.MethodPost, Path: "/v1/jobs/record", Body: api.RecordJobRequest{Key: job}, IdempotencyKey: requestID}, &r)
	return r.Total, err
}

// Total returns how often a job was executed; linearizable.
func (e *HTTPEndpoint) Total(ctx context.Context, job string) (uint64, error) {
	var j api.Jobs
	err := e.ask(ctx, api.Request{Method: http.MethodGet, Path: "/v1/jobs", Query: url.Values{"key": {job}, "consistency": {"linearizable"}}}, &j)
	if err != nil || len(j.Jobs) == 0 {
		return 0, err
	}
	return j.Jobs[0].Total, nil
}
