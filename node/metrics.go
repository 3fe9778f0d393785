package node

import (
	"os"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/miwnode/miwnode/fsm"
)

// metrics are the node's own, in a registry of their own: a process may run
// several nodes.
type metrics struct {
	n   *Node
	reg *prometheus.Registry

	grants   prometheus.Counter
	ended    *prometheus.CounterVec
	gap      prometheus.Histogram
	apply    prometheus.Histogram
	commit   prometheus.Histogram
	renew    prometheus.Histogram
	stop     prometheus.Histogram
	overlaps prometheus.Counter
	duties   *prometheus.CounterVec
}

// fast are buckets for what takes between a tenth of a millisecond and seconds.
var fast = prometheus.ExponentialBuckets(0.0001, 2.5, 12)

func newMetrics(n *Node) *metrics {
	m := &metrics{
		n: n, reg: prometheus.NewRegistry(),
		grants: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "miw_lease_grants_total", Help: "Grants applied to this node's copy since it started.",
		}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "miw_lease_ended_total", Help: "Leases that ended in this node's copy since it started, by reason.",
		}, []string{"reason"}),
		gap: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "miw_handover_gap_seconds", Help: "From the end of a run to the start of the next of the same key, where that waited already; measured by the leader.", Buckets: fast,
		}),
		apply: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "miw_apply_seconds", Help: "Applying one entry of the log.", Buckets: prometheus.ExponentialBuckets(0.000002, 3, 12),
		}),
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "miw_commit_seconds", Help: "From proposing an entry on the leader to its application there.", Buckets: fast,
		}),
		duties: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "miw_duty_restarts_total", Help: "Leader's duties that ended early and were started again.",
		}, []string{"duty"}),
		renew: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "miw_renew_latency_seconds", Help: "Keep-alives of this node's session, from sending to confirmation.", Buckets: fast,
		}),
		stop: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "miw_worker_stop_seconds", Help: "Runs of this process, from being told to stop to their return.", Buckets: prometheus.ExponentialBuckets(0.001, 3, 12),
		}),
		overlaps: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "miw_overlap_total", Help: "Pairs of runs of one key that certainly overlapped, found by this node while it led.",
		}),
	}
	m.reg.MustRegister(m.grants, m.ended, m.gap, m.apply, m.commit, m.renew, m.stop, m.overlaps, m.duties, &present{n: n})
	return m
}

// Metrics gathers the node's metrics, named miw_*.
func (n *Node) Metrics() prometheus.Gatherer { return n.metrics.reg }

// applied counts what an entry did. It runs on the apply goroutine.
func (m *metrics) applied(o *fsm.Outcome) {
	for _, e := range o.Events {
		switch e.Type {
		case fsm.EventLeaseGranted:
			m.grants.Inc()
		case fsm.EventLeaseEnded:
			m.ended.WithLabelValues(e.EndReason.String()).Inc()
		}
	}
}

func (m *metrics) dutyFailed(name string) { m.duties.WithLabelValues(name).Inc() }

// present collects what is true at the moment of asking.
type present struct{ n *Node }

var (
	descLeader   = prometheus.NewDesc("miw_is_leader", "1 on the raft leader.", nil, nil)
	descQuorum   = prometheus.NewDesc("miw_quorum_ok", "1 if a majority of the voters is alive and a leader known.", nil, nil)
	descRevision = prometheus.NewDesc("miw_revision", "Revision of the local copy.", nil, nil)
	descLog      = prometheus.NewDesc("miw_log_bytes", "Size of the log's file.", nil, nil)
	descMembers  = prometheus.NewDesc("miw_members", "Members by what gossip says of them.", []string{"state"}, nil)
	descHeld     = prometheus.NewDesc("miw_lease_held", "Leases held by this node's instance.", nil, nil)
	descStuck    = prometheus.NewDesc("miw_stuck", "Runs of this process that did not return in time.", nil, nil)
	descRenewAge = prometheus.NewDesc("miw_renew_age_seconds", "Since the sending of the newest confirmed keep-alive of this node's session.", nil, nil)
	descDoubt    = prometheus.NewDesc("miw_observer_uncertainty_seconds", "By how much an instant of another node's clock may be off at most, on the leader while nodes report runs.", nil, nil)
	descWorkers  = prometheus.NewDesc("miw_workers", "Workers of the cluster by state.", []string{"state"}, nil)
	descReady    = prometheus.NewDesc("miw_ready", "1 if the node knows a leader and its copy is caught up.", nil, nil)
	descRoutines = prometheus.NewDesc("miw_goroutines", "Goroutines of the process.", nil, nil)
)

// Describe implements prometheus.Collector.
func (p *present) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descLeader, descQuorum, descRevision, descLog, descMembers, descHeld, descStuck, descReady, descRenewAge, descDoubt, descWorkers, descRoutines} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (p *present) Collect(ch chan<- prometheus.Metric) {
	n := p.n
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	_, leads := n.raft.leading()
	gauge(descLeader, truth(leads))
	gauge(descQuorum, truth(n.quorum().OK))
	gauge(descReady, truth(n.ReadyErr() == nil))
	gauge(descRoutines, float64(runtime.NumGoroutine()))
	view := n.View()
	gauge(descRevision, float64(view.Revision()))
	if st, err := os.Stat(n.folder.path(raftFile)); err == nil {
		gauge(descLog, float64(st.Size()))
	}
	states := map[string]int{"alive": 0, "suspect": 0, "dead": 0, "left": 0}
	for _, m := range n.Members() {
		states[m.Gossip]++
	}
	for state, count := range states {
		gauge(descMembers, float64(count), state)
	}
	for state, count := range countWorkers(view) {
		gauge(descWorkers, float64(count), state)
	}
	held := 0
	if s, ok := view.Instance(n.ident.instanceID); ok {
		held = s.LeaseCount()
	}
	gauge(descHeld, float64(held))
	if age, ok := n.lease.keeper.renewAge(); ok {
		gauge(descRenewAge, age.Seconds())
	}
	if doubt, ok := n.lease.witness.uncertainty(); ok {
		gauge(descDoubt, doubt.Seconds())
	}
	stuck := 0
	for _, r := range n.Runs() {
		if r.StuckFor > 0 {
			stuck++
		}
	}
	gauge(descStuck, float64(stuck))
}

// countWorkers counts the workers in each state, those that none is in too.
func countWorkers(view *fsm.View) map[string]int {
	states := map[string]int{}
	for s := fsm.WorkerLoading; s <= fsm.WorkerFailed; s++ {
		states[s.String()] = 0
	}
	for w := range view.Workers("") {
		states[w.State.String()]++
	}
	return states
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// observed feeds durations to a histogram.
func observed(h prometheus.Histogram) func(time.Duration) {
	return func(d time.Duration) { h.Observe(d.Seconds()) }
}
