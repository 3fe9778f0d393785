package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/miwnode/miwnode/coord/worker"
)

// workerMetrics are of the loads and runs of this node. How many workers are in
// which state, the node tells.
type workerMetrics struct {
	registry *prometheus.Registry
	loads    prometheus.Histogram
	runs     *prometheus.CounterVec
}

func newWorkerMetrics() *workerMetrics {
	m := &workerMetrics{
		registry: prometheus.NewRegistry(),
		loads: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "miw_worker_load_seconds", Help: "Loads of workers on this node, all tries of each, failed ones too.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
		}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "miw_worker_runs_total", Help: "Runs of workers that have ended on this node, by outcome.",
		}, []string{"outcome"}),
	}
	for _, outcome := range []string{worker.OutcomeDone, worker.OutcomeFailed, worker.OutcomeStopped} {
		m.runs.WithLabelValues(outcome) // there from the start
	}
	m.registry.MustRegister(m.loads, m.runs)
	return m
}

func (m *workerMetrics) hooks() worker.Hooks {
	return worker.Hooks{
		Loaded:   func(_, _ string, _ *worker.Error, took time.Duration) { m.loads.Observe(took.Seconds()) },
		Returned: func(_, _, outcome string, _ time.Duration) { m.runs.WithLabelValues(outcome).Inc() },
	}
}
