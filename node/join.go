package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

const (
	discoverTimeout  = 2 * time.Second // one question to one peer
	discoverPatience = 200 * time.Millisecond
	joinTimeout      = 5 * time.Second
	peerMemory       = 5 * time.Second // how long a peer that spoke counts as seen
	joinWaitMin      = 20 * time.Millisecond
	joinWaitMax      = 2 * time.Second
	sayInterval      = 10 * time.Second
)

func newClusterID() string { return uuid.NewString() }

// belong returns once the node belongs to a cluster. It tries for ever.
func (m *membership) belong(ctx context.Context) error {
	if err := m.resume(ctx); err != nil || m.n.ident.clusterID() != "" {
		return err
	}
	wait := joinWaitMin
	for m.n.ident.clusterID() == "" {
		if err := m.attempt(ctx); err != nil {
			return err
		}
		if m.n.ident.clusterID() != "" {
			break
		}
		select {
		case <-m.wake:
			wait = joinWaitMin
		case <-time.After(wait/2 + rand.N(wait)):
			wait = min(2*wait, joinWaitMax)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// resume takes up what an earlier start left: a founder that had written the
// configuration but not its own cluster ID founds on.
func (m *membership) resume(context.Context) error {
	had := m.promises.get()
	if m.n.ident.clusterID() == "" && had.Asker == m.n.ident.id && had.ClusterID != "" && m.n.raft.hasState() {
		if err := m.adopt(had.ClusterID); err != nil {
			return err
		}
	}
	if m.n.ident.clusterID() != "" && len(m.n.raft.servers()) == 1 {
		m.n.raft.campaign() // nobody else to wait for
	}
	return nil
}

// attempt is one round: look around, then found or join.
func (m *membership) attempt(ctx context.Context) error {
	m.discover(ctx)
	if m.n.ident.clusterID() != "" {
		return nil
	}
	peers := m.recent()
	for _, p := range peers {
		if p.ClusterId == "" {
			continue
		}
		if had := m.promises.get(); had.ClusterID != "" && had.Asker == m.n.ident.id {
			// There is a cluster already: this one must not come to life.
			if err := m.promises.abandon(had.ClusterID); err != nil {
				return err
			}
		} else if had.ClusterID != "" {
			m.say("bound", "bound to a founding set; waiting for its founder", "founder", had.Asker, "members", had.Members)
			continue
		}
		if err := m.join(ctx, p); err != nil {
			m.say("join/"+p.NodeId, "can't join yet", "through", p.NodeId, "err", err)
			continue
		}
		return nil
	}
	set, err := m.founders(peers)
	if err != nil {
		return err
	}
	if set != nil {
		_, err := m.found(ctx, set)
		return err
	}
	m.sayWhy(peers)
	return nil
}

// sayWhy tells now and then why the node waits.
func (m *membership) sayWhy(peers []*nodepb.Peer) {
	m.mu.Lock()
	err := m.lastErr
	m.mu.Unlock()
	expect := m.n.cfg.BootstrapExpect
	switch seen := len(peers) + 1; {
	case expect > 0:
		m.say("wait", "waiting for nodes to found a cluster with", "expected", expect, "seen", seen, "last_error", errText(err))
	default:
		m.say("wait", "waiting for a cluster to join", "tried", m.n.cfg.Join, "last_error", errText(err))
	}
}

// whyNoCluster says the same to who asks.
func (m *membership) whyNoCluster() string {
	peers, had := m.recent(), m.promises.get()
	m.mu.Lock()
	last := m.lastErr
	m.mu.Unlock()
	expect, free := m.n.cfg.BootstrapExpect, 1
	for _, p := range peers {
		switch {
		case p.ClusterId != "":
			return fmt.Sprintf("the node belongs to no cluster yet: it is joining cluster %s through node %s", p.ClusterId, p.NodeId)
		case int(p.Expect) == expect:
			free++
		}
	}
	switch {
	case expect > 0 && free >= expect:
		return fmt.Sprintf("the node belongs to no cluster yet: all %d founding nodes are seen, the cluster is being founded", expect)
	case expect > 0 && had.ClusterID != "" && had.Asker != m.n.ident.id:
		return fmt.Sprintf("the node belongs to no cluster yet: it waits for node %s, which began to found one; start that again", had.Asker)
	case expect > 0:
		return fmt.Sprintf("the node belongs to no cluster yet: %d of %d founding nodes seen; start the others and check the join addresses", free, expect)
	}
	return fmt.Sprintf("the node belongs to no cluster yet: no member answers at %s; last error: %s", strings.Join(m.n.cfg.Join, ", "), errText(last))
}

func errText(err error) string {
	if err == nil {
		return "none"
	}
	return err.Error()
}

// say logs a line, the same one not more often than every ten seconds.
func (m *membership) say(key, msg string, args ...any) {
	if m.rare.ok(key) {
		m.n.log.Log(context.Background(), slog.LevelInfo, msg, args...)
	}
}

// self is what this node tells about itself.
func (m *membership) self() *nodepb.Peer {
	id, had := m.n.identity(), m.promises.get()
	return &nodepb.Peer{
		NodeId: id.NodeID, Addr: id.Addr, ClusterId: id.ClusterID,
		Expect: uint32(m.n.cfg.BootstrapExpect), PromisedTo: had.ClusterID, Abandoned: had.Abandoned, MaxVersion: m.n.version(),
	}
}

// recent lists the peers that spoke to us of late.
func (m *membership) recent() []*nodepb.Peer {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []*nodepb.Peer
	for id, s := range m.seen {
		if time.Since(s.at) > peerMemory {
			delete(m.seen, id)
			continue
		}
		list = append(list, s.peer)
	}
	slices.SortFunc(list, func(a, b *nodepb.Peer) int {
		if a.NodeId < b.NodeId {
			return -1
		}
		return 1
	})
	return list
}

// hear takes in what a peer says of itself.
func (m *membership) hear(p *nodepb.Peer, boot uint64) {
	if p == nil || p.NodeId == "" || p.NodeId == m.n.ident.id {
		return
	}
	// A stranger's word about an address counts only once it has joined.
	if mine := m.n.ident.clusterID(); mine == "" || p.ClusterId == mine {
		m.n.book.learn(p.NodeId, p.Addr, boot)
	}
	m.mu.Lock()
	before := m.seen[p.NodeId]
	m.seen[p.NodeId] = &seenPeer{peer: p, at: time.Now()}
	m.mu.Unlock()
	if before == nil || before.peer.ClusterId != p.ClusterId || before.peer.PromisedTo != p.PromisedTo {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
	if err := m.promises.release(p.NodeId, p.Abandoned); err != nil {
		m.n.log.Warn("promise not released", "err", err)
	}
	m.follow(p.NodeId, p.ClusterId)
}

// met is hear for a peer of which only the greeting is known.
func (m *membership) met(peer transport.Identity) {
	if had := m.promises.get(); had.ClusterID != "" && had.ClusterID == peer.ClusterID {
		select {
		case m.wake <- struct{}{}: // look around: its founder is there
		default:
		}
	}
}

// follow adopts the cluster that this node has promised itself to, once a
// member of it speaks.
func (m *membership) follow(_, clusterID string) {
	had := m.promises.get()
	if clusterID == "" || m.n.ident.clusterID() != "" || had.ClusterID != clusterID {
		return
	}
	if err := m.adopt(clusterID); err != nil {
		m.n.log.Warn("cluster not adopted", "cluster", clusterID, "err", err)
	}
}

// adopt makes the node one of the cluster, for ever.
func (m *membership) adopt(clusterID string) error {
	if err := m.n.ident.adopt(clusterID); err != nil {
		return err
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
	m.changes.send()
	return nil
}

// discover asks everybody who may be there who they are, all at once.
func (m *membership) discover(ctx context.Context) {
	addrs := m.candidates(ctx)
	answers := make(chan error, len(addrs))
	for _, addr := range addrs {
		m.asking.Go(func() { answers <- m.greet(ctx, addr) })
	}
	// Who does not answer soon must not keep the others waiting.
	patience := time.NewTimer(discoverPatience)
	defer patience.Stop()
	for range addrs {
		select {
		case err := <-answers:
			m.noteErr(err)
		case <-patience.C:
			m.noteErr(errors.New("some peers did not answer at once"))
			return
		}
	}
}

func (m *membership) noteErr(err error) {
	if err != nil {
		m.mu.Lock()
		m.lastErr = err
		m.mu.Unlock()
	}
}

// greet asks one address.
func (m *membership) greet(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, discoverTimeout)
	defer cancel()
	var reply nodepb.DiscoverReply
	if err := m.n.callAddr(ctx, addr, "", methodDiscover, &nodepb.DiscoverRequest{Self: m.self(), Known: m.recent()}, &reply); err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	m.hear(reply.Self, 0)
	for _, p := range reply.Known {
		m.n.book.learn(p.NodeId, p.Addr, 0)
	}
	return nil
}

// candidates resolves the join names anew and adds the addresses last known.
func (m *membership) candidates(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, discoverTimeout)
	defer cancel()
	var addrs []string
	for _, j := range m.n.cfg.Join {
		found, err := m.n.cfg.Network.Lookup(ctx, j)
		if err != nil {
			m.noteErr(err)
			m.say("lookup/"+j, "join name does not resolve", "name", j, "err", err)
		}
		addrs = append(addrs, found...)
	}
	addrs = append(addrs, m.n.book.addrs(m.n.ident.id)...)
	slices.Sort(addrs)
	addrs = slices.Compact(addrs)
	return slices.DeleteFunc(addrs, func(a string) bool { return a == m.n.Addr() || a == m.n.advertised() })
}

// announce tells the founding set that the cluster is there, so that its
// members adopt it before the first election.
func (m *membership) announce(ctx context.Context, set []*nodepb.Peer) {
	var wg sync.WaitGroup
	for _, p := range set {
		if p.NodeId != m.n.ident.id {
			wg.Go(func() { _ = m.greet(ctx, p.Addr) })
		}
	}
	wg.Wait()
}

// join asks a member to be taken in as a learner.
func (m *membership) join(ctx context.Context, through *nodepb.Peer) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	var reply nodepb.JoinReply
	if err := m.n.callAddr(ctx, through.Addr, through.NodeId, methodJoin, m.joinRequest(), &reply); err != nil {
		return err
	}
	if m.n.ident.clusterID() == "" {
		m.n.log.Info("joined", "cluster", reply.ClusterId, "leader", reply.LeaderId)
	}
	return m.adopt(reply.ClusterId)
}

func (m *membership) joinRequest() *nodepb.JoinRequest {
	return &nodepb.JoinRequest{
		NodeId: m.n.ident.id, Addr: m.n.advertised(), MaxVersion: m.n.version(), Zone: m.n.cfg.Zone, Fresh: !m.n.raft.hasState(),
	}
}

// stay brings the node back into touch while it knows no leader: addresses may
// all have changed, or it may have been removed.
func (m *membership) stay(ctx context.Context) error {
	m.discover(ctx) // tells everybody where this start is
	wait := joinWaitMin
	for {
		changed := m.n.raft.changed()
		if m.n.raft.leader() != "" {
			wait = joinWaitMin
			select {
			case <-changed:
			case <-ctx.Done():
				return nil
			}
			continue
		}
		// An election under way needs no help.
		if pause(ctx, 2*m.n.cfg.Timing.RaftTimeout+wait/2+rand.N(wait)) != nil {
			return nil
		}
		wait = min(2*wait, joinWaitMax)
		if m.n.raft.leader() == "" {
			m.discover(ctx)
			m.rejoin(ctx)
		}
	}
}

// rejoin asks to be taken in anew by the cluster this node belongs to.
func (m *membership) rejoin(ctx context.Context) {
	var last error
	for _, p := range m.recent() {
		if p.ClusterId != m.n.ident.clusterID() || m.n.raft.leader() != "" {
			continue
		}
		if last = m.join(ctx, p); last == nil {
			return
		}
	}
	m.mu.Lock()
	last = errors.Join(last, m.lastErr)
	m.mu.Unlock()
	m.say("alone", "no leader", "voters", m.n.raft.voters(), "reached", len(m.recent()), "last_error", errText(last))
}

// handleDiscover answers anybody, of a cluster or not.
func (m *membership) handleDiscover(_ context.Context, peer transport.Identity, q *nodepb.DiscoverRequest) (*nodepb.DiscoverReply, error) {
	if q.Self.GetNodeId() != peer.NodeID {
		return nil, fsm.Errorf(fsm.CodeInvalidArgument, "node %s speaks for %s", peer.NodeID, q.Self.GetNodeId())
	}
	m.hear(q.Self, peer.Boot)
	for _, p := range q.Known {
		m.n.book.learn(p.NodeId, p.Addr, 0)
	}
	return &nodepb.DiscoverReply{Self: m.self(), Known: m.recent()}, nil
}

// handleJoin takes a node in as a learner, or passes the request to the leader.
func (m *membership) handleJoin(ctx context.Context, peer transport.Identity, q *nodepb.JoinRequest) (*nodepb.JoinReply, error) {
	mine := m.n.ident.clusterID()
	switch {
	case mine == "":
		return nil, fsm.Errorf(fsm.CodeNotReady, "this node belongs to no cluster itself")
	case !q.Forwarded && q.NodeId != peer.NodeID:
		return nil, fsm.Errorf(fsm.CodePermissionDenied, "node %s asks for node %s", peer.NodeID, q.NodeId)
	}
	if !q.Forwarded {
		q.Boot = peer.Boot
	}
	if _, ok := m.n.raft.serving(); ok {
		return m.admit(ctx, q)
	}
	leader := m.n.raft.leader()
	if leader == "" || leader == m.n.ident.id || q.Forwarded {
		return nil, fsm.Errorf(fsm.CodeNoQuorum, "no leader is known")
	}
	q.Forwarded = true
	var reply nodepb.JoinReply
	if err := m.n.call(ctx, leader, methodJoin, q, &reply); err != nil {
		return nil, err
	}
	return &reply, nil
}

// admit is the leader's half of a join.
func (m *membership) admit(ctx context.Context, q *nodepb.JoinRequest) (*nodepb.JoinReply, error) {
	if need := m.n.View().Cluster().Version; q.MaxVersion < need {
		return nil, fsm.Errorf(fsm.CodeWrongState, "the cluster is at state version %d, node %s knows up to %d: run a newer version", need, q.NodeId, q.MaxVersion)
	}
	if host, _, err := net.SplitHostPort(q.Addr); err != nil || isLoopback(host) && !isLoopback(hostOf(m.n.advertised())) {
		return nil, fsm.Errorf(fsm.CodeInvalidArgument, "node %s advertises %q, which other machines can't reach: set its advertised address", q.NodeId, q.Addr)
	}
	replaces := ""
	if q.Fresh {
		replaces = m.n.book.owner(q.Addr, q.NodeId)
	}
	m.n.book.learn(q.NodeId, q.Addr, q.Boot)
	record := func(c memberChange) error {
		m.n.log.Info("member "+changeWords[c.change], "member", c.id, "why", c.reason)
		return m.n.record(ctx, c.op())
	}
	if replaces != "" {
		if err := m.n.raft.replace(ctx, replaces, q.NodeId, record); err != nil {
			return nil, err
		}
	}
	if err := m.n.raft.addLearner(ctx, q.NodeId, q.Fresh, record); err != nil {
		return nil, err
	}
	m.changes.send()
	return &nodepb.JoinReply{ClusterId: m.n.ident.clusterID(), LeaderId: m.n.ident.id}, nil
}

func hostOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}
