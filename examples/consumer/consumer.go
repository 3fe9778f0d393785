// Package consumer is an example to copy: the partitions of a queue, shared
// out over the instances of a service; each partition is read by one at a time.
//
// consumer_test.go tests it against crashes and deploys with package miwtest.
package consumer

import (
	"context"

	"github.com/miwnode/miwnode/coord"
)

// Queue is where messages come from.
type Queue interface {
	// Next waits for the message at the offset of the partition.
	Next(ctx context.Context, partition string, offset int) (string, error)
	// Offset is where reading the partition goes on.
	Offset(ctx context.Context, partition string) (int, error)
	// Commit moves the offset. It refuses a token that is smaller than one that
	// it has seen: its sender was overtaken.
	Commit(ctx context.Context, partition string, offset int, token uint64) error
}

// Handler does what a message asks for. A message comes again when its
// instance dies before the offset is committed.
type Handler func(ctx context.Context, l *coord.Lease, partition, message string) error

// Run reads the partitions that are this instance's share. It blocks until ctx
// ends or the node leaves.
func Run(ctx context.Context, c coord.Cluster, partitions []string, q Queue, handle Handler) error {
	g := coord.Group{Name: "queue", Rebalance: coord.RebalanceGraceful}
	for _, p := range partitions {
		g.Workloads = append(g.Workloads, coord.Workload{Key: p})
	}
	share, err := coord.NewCoordinator(c, g, func(ctx context.Context, w coord.Workload, l *coord.Lease) error {
		return read(ctx, w.Key, l, q, handle)
	})
	if err != nil {
		return err
	}
	return share.Run(ctx)
}

// read handles the messages of one partition until the lease is to be given up.
func read(ctx context.Context, partition string, l *coord.Lease, q Queue, handle Handler) error {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // a drain ends the wait for a message, not the handling of one
		select {
		case <-l.Draining():
			stop()
		case <-waiting.Done():
		}
	}()
	offset, err := q.Offset(ctx, partition)
	if err != nil {
		return err
	}
	for {
		m, err := q.Next(waiting, partition, offset)
		if waiting.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if !l.Valid() {
			return context.Cause(ctx)
		}
		if err := handle(ctx, l, partition, m); err != nil {
			return err
		}
		offset++
		if err := q.Commit(ctx, partition, offset, l.Token()); err != nil {
			return err
		}
	}
}
