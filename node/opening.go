package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

const (
	// openRetry is the time between two tries to open a session.
	openRetry = 200 * time.Millisecond
	// refusedRetry is the same where trying again helps little.
	refusedRetry = 2 * time.Second
)

// open opens a session under a new random ID and returns once the local copy
// has it. All tries use one ID, so that an answer that was lost leaves no second
// session behind, and trust counts from the first of them: that is the one whose
// apply may have set the leader's deadline.
func (k *sessionKeeper) open(ctx context.Context) (*heldSession, error) {
	if err := k.awaitCluster(ctx); err != nil {
		return nil, err
	}
	id, firstSent := newSessionID(), time.Duration(0)
	for try := 0; ; try++ {
		op := &fsm.OpenSession{
			SessionId:     id,
			TtlMs:         k.timing.SessionTTL.Milliseconds(),
			NodeId:        k.self.nodeID,
			Boot:          k.self.boot,
			Nonce:         k.self.nonce,
			InstanceId:    k.self.instanceID,
			Zone:          k.self.zone,
			Labels:        fsm.LabelsOf(k.self.labels),
			RestartProved: k.proved != nil && k.proved(ctx),
		}
		if op.RestartProved {
			if err := k.seams.step(StepRestartProof); err != nil {
				return nil, err
			}
		}
		if firstSent == 0 {
			firstSent = k.clock.boot()
		}
		// Each try is bounded: the proof of a restart may come in later.
		tctx, cancel := context.WithTimeout(ctx, k.timing.SessionTTL)
		res, err := k.propose(tctx, op)
		cancel()
		if err == nil {
			err = fsm.ResultErr(res)
		}
		if err == nil {
			if _, ok := k.machine.View().Session(id); ok && k.remark(ctx) {
				if err := k.seams.step(StepSessionOpened); err != nil {
					return nil, err
				}
				return k.opened(id, firstSent), nil
			}
			// Opened, and gone again before this copy had it or it was marked.
			id, firstSent = newSessionID(), 0
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		wait := openRetry
		switch fsm.CodeOf(err) {
		case fsm.CodeNoQuorum, fsm.CodeUncertain, fsm.CodeAlreadyExists, fsm.CodeOverloaded:
			k.log.Debug("no session yet, trying again", "try", try, "error", err)
		default: // a limit of the cluster, or a newer boot of this node
			wait = refusedRetry
			k.log.Warn("the session was refused, trying again", "try", try, "error", err)
		}
		if err := sleepOn(ctx, k.clock, wait); err != nil {
			return nil, err
		}
	}
}

// awaitCluster waits until the local copy is of a cluster: nothing can be
// opened before.
func (k *sessionKeeper) awaitCluster(ctx context.Context) error {
	woken, unwatch := k.machine.Watch(fsm.AllTopic)
	defer unwatch()
	for k.machine.View().Cluster().ID == "" {
		select {
		case <-woken:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func newSessionID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// opened makes the session the current one. Where the tries took so long that
// little trust is left, nobody gets it before a keep-alive is confirmed.
func (k *sessionKeeper) opened(id string, firstSent time.Duration) *heldSession {
	s := &heldSession{id: id, trust: newTrust(k.rule, firstSent), ending: make(chan struct{}), over: make(chan struct{})}
	now := k.clock.boot()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rule.warn(firstSent)-now < k.timing.RenewInterval {
		// Not ended, since it never began: unproved until the next answer.
		s.trust = newTrust(k.rule, now)
		s.trust.slept(now)
		s.asked = now
	}
	k.sessions[id] = s
	k.current = s
	k.announce()
	k.log.Info("session opened", "instance", k.self.instanceID, "ttl", k.timing.SessionTTL)
	return s
}
