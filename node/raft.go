package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/miwnode/miwnode/fsm"
)

// Settings of raft that are no user's business. The commit timeout is long
// because peers.go tells followers of each commit at once.
const (
	raftCommitTimeout     = 500 * time.Millisecond
	raftSnapshotThreshold = 8192
	raftSnapshotInterval  = 2 * time.Minute
	raftTrailingLogs      = 10240
	raftSnapshotsKept     = 2
	raftLogCache          = 512
	raftMaxPool           = 3
	raftIOTimeout         = 2 * time.Second
	// raftStopLimit bounds how long raft may take to stop once its streams are closed.
	raftStopLimit = 3 * time.Second
	// raftRefusalLimit is how long a leader may refuse every command.
	raftRefusalLimit = 2 * time.Second
)

// heartbeatSpace is the least time from one heartbeat to the next, and
// heartbeatLease how long a leader goes on without answers: as long beyond it as
// with the heartbeats that raft itself would send, and less than a follower waits.
func heartbeatSpace(timeout time.Duration) time.Duration { return timeout * 2 / 5 }
func heartbeatLease(timeout time.Duration) time.Duration { return timeout * 3 / 4 }

// raftHost is raft as the rest of the node sees it. Raft can be stopped and
// started again under it, which is the way out of a leadership transfer that
// never ends; the replicated state stays.
type raftHost struct {
	id      string
	log     *slog.Logger
	timeout time.Duration // heartbeat and election
	machine *fsm.Machine
	store   *store
	snaps   raft.SnapshotStore
	layer   func() raft.StreamLayer
	wedged  chan string // asks for a restart, and why; one slot

	starting sync.Mutex // one start or stop at a time
	run      atomic.Pointer[raftRun]
	served   atomic.Uint64 // newest term whose barrier has been applied here
	former   atomic.Value  // raft.ServerID of the leader that was known last
	refused  refusals
	changes  broadcast

	// Told how long an entry took to apply here, and to commit from here.
	sawApply, sawCommit func(time.Duration)
}

// raftRun is one life of raft between start and stop.
type raftRun struct {
	raft    *raft.Raft
	peers   *peers
	stopped chan struct{} // closed when raft has stopped: bounds every future
	watch   chan raft.Observation
	wg      sync.WaitGroup
}

var _ leadership = (*raftHost)(nil)

// start begins a life of raft.
func (h *raftHost) start() error {
	h.starting.Lock()
	defer h.starting.Unlock()
	return h.startLocked()
}

func (h *raftHost) startLocked() error {
	logger := newRaftLogger(h.log)
	cfg := raft.DefaultConfig()
	cfg.LocalID = raft.ServerID(h.id)
	cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = h.timeout, h.timeout, heartbeatLease(h.timeout)
	cfg.CommitTimeout = raftCommitTimeout
	cfg.SnapshotThreshold, cfg.SnapshotInterval, cfg.TrailingLogs = raftSnapshotThreshold, raftSnapshotInterval, raftTrailingLogs
	if n := h.store.seams.SnapshotEntries; n > 0 {
		cfg.SnapshotThreshold, cfg.SnapshotInterval, cfg.TrailingLogs = n, time.Second, n
	}
	cfg.NoLegacyTelemetry = true
	cfg.ShutdownOnRemove = false
	cfg.RestoreCommittedLogs = false
	cfg.Logger = logger

	run := &raftRun{stopped: make(chan struct{}), watch: make(chan raft.Observation, 16)}
	durable := h.store.writer.durable
	if h.store.seams.Defects.AckBeforeDisk {
		durable = func(uint64, <-chan struct{}) error { return nil }
	}
	run.peers = newPeers(h.id, raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: h.layer(), MaxPool: raftMaxPool, Timeout: raftIOTimeout, MaxRPCsInFlight: 1, Logger: logger,
	}), durable)
	if !h.store.seams.Defects.VerifyLeaderProof { // which takes raft's own heartbeats for a proof
		run.peers.space = heartbeatSpace(h.timeout)
	}
	run.peers.calls = run.peers.NetworkTransport.Consumer()
	if h.store.seams.Step != nil {
		run.peers.calls = watchedCalls(run.peers.calls, run.peers.closing, h.store.seams.Step)
	}
	run.peers.former = h.store.seams.Defects.FormerNudge
	cache, err := raft.NewLogCache(raftLogCache, h.store)
	if err != nil {
		return err
	}
	// In a goroutine of its own: a store that fails here ends it.
	done := make(chan struct{})
	var failure error
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				failure = fmt.Errorf("%w: start raft: %v", ErrFolderDamaged, p)
			}
		}()
		failure = ErrStorage
		run.raft, failure = raft.NewRaft(cfg, forward{h.machine, h.store.seams, h.sawApply}, cache, h.store, h.snaps, run.peers)
	}()
	<-done
	if err := h.store.failed(); err != nil {
		failure = err
	}
	if failure != nil || run.raft == nil {
		if run.raft != nil {
			run.raft.Shutdown()
		}
		_ = run.peers.Close()
		return fmt.Errorf("start raft: %w", failure)
	}
	run.peers.bind(run.raft)
	h.store.raft.Store(run.raft)
	run.raft.RegisterObserver(raft.NewObserver(run.watch, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.RaftState:
			return true
		}
		return false
	}))
	run.wg.Go(func() { run.peers.nudge(run.stopped) })
	run.wg.Go(func() {
		for {
			select {
			case <-run.watch:
				h.changes.send()
			case <-run.stopped:
				return
			}
		}
	})
	h.run.Store(run)
	h.changes.send()
	return nil
}

// stop ends the present life of raft: streams first, since raft waits for its
// calls. It fails if raft does not stop within the limit.
func (h *raftHost) stop() error {
	h.starting.Lock()
	defer h.starting.Unlock()
	return h.stopLocked()
}

func (h *raftHost) stopLocked() error {
	run := h.run.Swap(nil)
	if run == nil {
		return nil
	}
	h.changes.send()
	h.store.raft.Store(nil)
	stopping := run.raft.Shutdown()
	run.peers.CloseStreams()
	_ = run.peers.Close()
	done := make(chan struct{})
	go func() {
		_ = stopping.Error()
		close(done)
	}()
	limit := time.NewTimer(raftStopLimit)
	defer limit.Stop()
	var err error
	select {
	case <-done:
	case <-limit.C:
		err = fmt.Errorf("raft did not stop within %v", raftStopLimit)
	}
	close(run.stopped)
	run.wg.Wait()
	h.changes.send()
	return err
}

// restart is the escape from a raft that no longer takes commands.
func (h *raftHost) restart(why string) error {
	h.starting.Lock()
	defer h.starting.Unlock()
	if h.run.Load() == nil {
		return nil // being stopped
	}
	h.log.Warn("restarting raft in the process", "why", why)
	if err := h.stopLocked(); err != nil {
		return err // two rafts on one log must not be
	}
	h.refused.reset()
	return h.startLocked()
}

// wait bounds a future by ctx and by raft's life: futures that are queued when
// raft shuts down are never answered.
func (r *raftRun) wait(ctx context.Context, f raft.Future) error {
	bound(f, r.stopped)
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// bound has f end with raft.ErrRaftShutdown when stopped closes. The field is
// exported on purpose but its type is not; where it is missing, the goroutine
// that waits for such a future stays behind.
func bound(f raft.Future, stopped chan struct{}) {
	v := reflect.ValueOf(f)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return
	}
	if field := v.Elem().FieldByName("ShutdownCh"); field.IsValid() && field.CanSet() && field.Type() == reflect.TypeOf(stopped) {
		field.Set(reflect.ValueOf(stopped))
	}
}

func (h *raftHost) term() uint64 {
	if run := h.run.Load(); run != nil {
		return run.raft.CurrentTerm()
	}
	return 0
}

func (h *raftHost) leading() (uint64, bool) {
	run := h.run.Load()
	if run == nil {
		return 0, false
	}
	// The state between two equal readings of the term belongs to it.
	term := run.raft.CurrentTerm()
	return term, run.raft.State() == raft.Leader && run.raft.CurrentTerm() == term
}

func (h *raftHost) serving() (uint64, bool) {
	term, ok := h.leading()
	return term, ok && h.served.Load() == term
}

func (h *raftHost) leader() string {
	if run := h.run.Load(); run != nil {
		_, id := run.raft.LeaderWithID()
		if id != "" && h.former.Load() != id {
			h.former.Store(id)
		}
		return string(id)
	}
	return ""
}

func (h *raftHost) servers() []raft.Server {
	run := h.run.Load()
	if run == nil {
		return nil
	}
	return run.raft.GetConfiguration().Configuration().Servers
}

// present is servers as a leader has them: nobody while none is known, since the
// configuration may be an old one then.
func (h *raftHost) present() []raft.Server {
	if h.leader() == "" {
		return nil
	}
	return h.servers()
}

func (h *raftHost) voters() []string {
	var ids []string
	for _, s := range h.servers() {
		if s.Suffrage == raft.Voter {
			ids = append(ids, string(s.ID))
		}
	}
	return ids
}

func (h *raftHost) changed() <-chan struct{} { return h.changes.wait() }

func (h *raftHost) apply(ctx context.Context, data []byte) (*fsm.Outcome, error) {
	run := h.run.Load()
	if run == nil {
		return nil, fsm.Errorf(fsm.CodeNoQuorum, "raft is not running")
	}
	if ctx.Err() != nil {
		return nil, fsm.Errorf(fsm.CodeNoQuorum, "not proposed: %v", context.Cause(ctx))
	}
	if err := h.store.failed(); err != nil {
		return nil, fsm.Errorf(fsm.CodeNoQuorum, "%v", err)
	}
	start := time.Now()
	f := run.raft.Apply(data, h.timeout)
	err := run.wait(ctx, f)
	switch {
	case err == nil:
		h.sawCommit(time.Since(start))
		h.refused.reset()
		out, ok := f.Response().(*fsm.Outcome)
		if !ok || out == nil || out.Err != nil {
			return nil, fsm.Errorf(fsm.CodeUncertain, "the state machine has halted")
		}
		return out, nil
	case errors.Is(err, raft.ErrNotLeader):
		h.refused.reset()
		return nil, fsm.Errorf(fsm.CodeNoQuorum, "this node does not lead")
	case errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrEnqueueTimeout):
		if h.refused.count() > raftRefusalLimit {
			h.wedge("it has led for a while without taking a command")
		}
		return nil, fsm.Errorf(fsm.CodeNoQuorum, "%v", err)
	}
	return nil, fsm.Errorf(fsm.CodeUncertain, "%v", err)
}

// barrier returns once all that the log held at the call is applied here. Only
// a leader can do so.
func (h *raftHost) barrier(ctx context.Context) error {
	run := h.run.Load()
	if run == nil {
		return raft.ErrNotLeader
	}
	return run.wait(ctx, run.raft.Barrier(h.timeout))
}

// refusals notes since when raft, leading, has taken no command.
type refusals struct {
	mu    sync.Mutex
	since time.Time
}

func (r *refusals) reset() {
	r.mu.Lock()
	r.since = time.Time{}
	r.mu.Unlock()
}

// count notes one and tells for how long there were only those.
func (r *refusals) count() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		r.since = time.Now()
	}
	return time.Since(r.since)
}

// forward keeps the state from going back when raft is started again under
// it: raft then replays what the machine has applied already.
type forward struct {
	*fsm.Machine
	seams *Seams
	saw   func(time.Duration)
}

var _ raft.FSM = forward{}

// Apply implements raft.FSM.
func (f forward) Apply(l *raft.Log) any {
	if rev := f.View().Revision(); l.Index <= rev && rev > 0 {
		return &fsm.Outcome{Revision: rev}
	}
	start := time.Now()
	out := f.Machine.Apply(l)
	f.saw(time.Since(start))
	return out
}

// Restore implements raft.FSM.
func (f forward) Restore(r io.ReadCloser) error {
	if err := f.seams.step(StepSnapshotRestore); err != nil {
		return err
	}
	if err := f.restore(r); err != nil {
		return err
	}
	return f.seams.step(StepSnapshotRestored)
}

func (f forward) restore(r io.ReadCloser) error {
	now := f.View().Revision()
	if now == 0 {
		return f.Machine.Restore(r)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if state, err := fsm.ReadSnapshot(bytes.NewReader(b)); err == nil && state.View().Revision() <= now {
		return nil
	}
	return f.Machine.Restore(io.NopCloser(bytes.NewReader(b)))
}

// broadcast wakes all who wait.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *broadcast) send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// verify is raft's own proof of leadership, which is none.
func (h *raftHost) verify() error {
	run := h.run.Load()
	if run == nil {
		return raft.ErrNotLeader
	}
	return run.wait(context.Background(), run.raft.VerifyLeader())
}
