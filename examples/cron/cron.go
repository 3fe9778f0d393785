// Package cron is an example to copy: a job that is done at fixed times, by one
// instance of the service at a time, through crashes and deploys.
//
// cron_test.go tests it against both with package miwtest.
package cron

import (
	"context"
	"time"

	"github.com/miwnode/miwnode/coord"
)

// Job is what is done at each due time. It must return soon after ctx ends, and
// hand the token of the lease to whatever it writes to.
type Job func(ctx context.Context, l *coord.Lease, due time.Time) error

// Run does the job at every multiple of the interval, on one of the instances
// that call Run. It blocks until ctx ends or the node leaves. A due time at which
// nobody holds the lease is left out; none is done twice, unless its job fails.
func Run(ctx context.Context, c coord.Cluster, name string, every time.Duration, job Job) error {
	return coord.NewRunner(c, "cron:"+name, func(ctx context.Context, l *coord.Lease) error {
		for {
			due := time.Now().Truncate(every).Add(every)
			t := time.NewTimer(time.Until(due))
			select {
			case <-t.C:
			case <-l.Draining(): // a deploy: the next instance does the next one
				t.Stop()
				return nil
			case <-ctx.Done(): // the lease is lost
				t.Stop()
				return context.Cause(ctx)
			}
			if err := l.Confirm(ctx); err != nil { // a round trip; Valid asks nobody
				return err
			}
			if err := job(ctx, l, due); err != nil {
				return err // somebody else may try, after a while
			}
			if _, err := coord.Record(ctx, c, coord.Execution{Key: name, Lease: l}); err != nil {
				return err
			}
		}
	}).Run(ctx)
}
