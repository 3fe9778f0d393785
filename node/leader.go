package node

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// duty is what only the leader does, from the barrier of its term until ctx
// ends. It is awaited before the next term's begins.
type duty struct {
	name string
	run  func(ctx context.Context, term uint64) error
}

// duties lists them.
func (n *Node) duties() []duty {
	return []duty{
		{"lessor", n.lease.serve},
		{"members", n.reconcile},
		{"version", n.raiseVersion},
	}
}

// reign is one term of leadership.
type reign struct {
	term   uint64
	cancel context.CancelCauseFunc
	done   chan struct{}
}

func (r *reign) end() {
	r.cancel(errLeadershipLost)
	<-r.done
}

// lead watches leadership for as long as the node lives. Raft's channel holds
// one value and overwrites it, so a value says only that something changed; the
// truth is the term that raft leads in now.
func (n *Node) lead(ctx context.Context) error {
	var now *reign
	defer func() {
		if now != nil {
			now.end()
		}
	}()
	for {
		changed := n.raft.changed()
		var leaderCh <-chan bool
		if run := n.raft.run.Load(); run != nil {
			leaderCh = run.raft.LeaderCh()
		}
		term, leading := n.raft.leading()
		if now != nil && (!leading || now.term != term) {
			n.log.Info("no longer leading", "term", now.term)
			now.end()
			now = nil
			continue
		}
		if now == nil && leading {
			now = n.begin(ctx, term)
		}
		select {
		case <-leaderCh:
			n.raft.changes.send()
		case <-changed:
		case why := <-n.raft.wedged:
			if err := n.raft.restart(why); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (n *Node) begin(ctx context.Context, term uint64) *reign {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &reign{term: term, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		defer cancel(nil)
		if err := n.takeOffice(ctx, term); err != nil {
			return
		}
		var wg sync.WaitGroup
		for _, d := range n.duties() {
			wg.Go(func() { n.keepDoing(ctx, term, d) })
		}
		wg.Wait()
	}()
	return r
}

// takeOffice commits the first entry of the term. Once it is applied here, so
// is everything that earlier leaders acknowledged; only then is anything served.
func (n *Node) takeOffice(ctx context.Context, term uint64) error {
	if n.cfg.seams.Defects.NoBarrier && n.View().Cluster().ID != "" {
		n.raft.served.Store(term)
		n.raft.changes.send()
		return nil
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		ops, err := n.inaugural(ctx, term)
		if err == nil {
			err = n.record(ctx, ops...)
		}
		if err == nil {
			n.raft.served.Store(term)
			n.raft.changes.send()
			n.log.Info("leading", "term", term)
			return nil
		}
		n.log.Debug("first entry of the term not committed", "term", term, "err", err)
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// inaugural is the first entry of a term; the very first one also founds the
// replicated state. After a start the copy is empty until the first entry of
// the term is committed, since raft does not know before what is: an empty copy
// says nothing unless all of the log has been applied.
func (n *Node) inaugural(ctx context.Context, term uint64) ([]fsm.Op, error) {
	var ops []fsm.Op
	if n.View().Cluster().ID == "" {
		if err := n.raft.barrier(ctx); err != nil {
			return nil, err
		}
	}
	if n.View().Cluster().ID == "" {
		ops = append(ops, &fsm.InitCluster{
			ClusterId: n.ident.clusterID(), Version: n.foundingVersion(), MaxSessionTtlMs: MaxSessionTTL.Milliseconds(),
		})
		for _, s := range n.raft.servers() {
			ops = append(ops, &fsm.RecordMember{NodeId: string(s.ID), Change: fsm.MemberAdded, Reason: "founded the cluster"})
		}
	}
	return append(ops, &fsm.RecordLeader{NodeId: n.ident.id, Term: term}), nil
}

// foundingVersion is the state version of a cluster that begins.
func (n *Node) foundingVersion() uint32 {
	if p := n.members.promises.get(); p.ClusterID == n.ident.clusterID() {
		return min(n.version(), max(1, p.Version))
	}
	return 1 // raised once all have said what they know
}

// record commits commands of this leader's own in one entry; refusals don't matter.
func (n *Node) record(ctx context.Context, ops ...fsm.Op) error {
	p := &fsm.Proposal{NodeId: n.ident.id, Boot: n.ident.boot()}
	for _, op := range ops {
		p.Commands = append(p.Commands, fsm.NewCommand(op))
	}
	data, err := fsm.EncodeBatch(&fsm.Batch{Proposals: []*fsm.Proposal{p}, Stamp: n.clock.wall().UnixNano()})
	if err != nil {
		return err
	}
	_, err = n.raft.apply(ctx, data)
	return err
}

// keepDoing runs a duty until the term ends, and again should it end before.
func (n *Node) keepDoing(ctx context.Context, term uint64, d duty) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := d.run(ctx, term)
		if ctx.Err() != nil {
			return
		}
		n.log.Error("leader's duty ended early; starting it again", "duty", d.name, "err", err)
		n.metrics.dutyFailed(d.name)
		if pause(ctx, wait) != nil {
			return
		}
	}
}

// raiseVersion raises the replicated version once every member can apply it.
func (n *Node) raiseVersion(ctx context.Context, term uint64) error {
	for {
		changed := n.members.changed()
		now := n.View().Cluster().Version
		if can := n.commonVersion(); can > now {
			err := n.record(ctx, &fsm.SetVersion{Version: can})
			if err != nil && !errors.Is(err, fsm.ErrNoQuorum) && !errors.Is(err, fsm.ErrUncertain) {
				return err
			}
			if err == nil {
				n.log.Info("state version raised", "from", now, "to", can)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// commonVersion is the newest version that all members, learners too, are
// known to apply; 0 if one of them has not said.
func (n *Node) commonVersion() uint32 {
	can := n.version()
	for _, s := range n.raft.servers() {
		if id := string(s.ID); id != n.ident.id {
			can = min(can, n.members.version(id))
		}
	}
	return can
}

// version is the newest state version that this node can apply.
func (n *Node) version() uint32 { return cmp.Or(n.cfg.seams.Version, fsm.Version) }

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
