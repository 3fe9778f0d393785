package node

import (
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// peers is raft's transport. It notes how far each peer's log is known to agree
// with ours, and tells a peer of a new commit index as soon as there is one:
// raft itself tells with the next entry or after the commit timeout. It holds
// an acknowledgement back until what it covers is durable here, see logWriter.
//
// What it knows belongs to one term. A peer that acknowledged entry n under
// our former leadership may have lost it to another leader since, and a
// follower commits all it has up to the index it is told: a nudge with
// remembered state would have it commit a wrong suffix.
type peers struct {
	*raft.NetworkTransport
	id      string
	durable func(index uint64, stopped <-chan struct{}) error
	closing chan struct{} // raft is to stop
	close   sync.Once
	wake    chan struct{} // one slot
	// former has it keep what belongs to an earlier term, for Defects.FormerNudge only.
	former bool
	calls  <-chan raft.RPC // to this node
	// space is the least time between an answer of a peer and the next heartbeat to it.
	space time.Duration

	mu      sync.Mutex
	raft    termSource
	term    uint64 // whose acks are in known
	known   map[raft.ServerID]*peer
	contact map[raft.ServerID]*contact // any term
}

// contact is how a peer has answered raft's calls.
type contact struct {
	answered time.Time     // last; zero = never
	failed   time.Time     // last failure since the last answer; zero = none
	flying   int           // calls under way
	since    time.Time     // when the first of them began, or the last answer came meanwhile
	urgent   int           // transfers of leadership to it under way: nothing is held
	lost     bool          // the last heartbeat failed, and nothing was answered since
	back     chan struct{} // closed at the next answer; nil if nobody waits for it
}

// reignLook is how often an append that waits for a lost peer looks whether it
// is still to be made.
const reignLook = 2 * time.Second

// failureMemory is for how many limits a failed call says that a peer is not
// there: an election repeats its calls each four to eight of them.
const failureMemory = 10

// peer is what one peer has acknowledged in the term.
type peer struct {
	addr      raft.ServerAddress
	header    raft.RPCHeader
	index     uint64 // its log agrees with ours up to here
	indexTerm uint64
	told      uint64 // commit index of the newest append that was sent to it
	busy      bool   // a nudge is under way
}

// termSource is the part of raft that a nudge depends on.
type termSource interface {
	CommitIndex() uint64
	State() raft.RaftState
	CurrentTerm() uint64
	GetConfiguration() raft.ConfigurationFuture
}

var (
	_ raft.Transport   = (*peers)(nil)
	_ raft.WithPreVote = (*peers)(nil)
)

func newPeers(id string, t *raft.NetworkTransport, durable func(uint64, <-chan struct{}) error) *peers {
	return &peers{
		NetworkTransport: t, id: id, durable: durable, closing: make(chan struct{}), wake: make(chan struct{}, 1),
		known: make(map[raft.ServerID]*peer), contact: make(map[raft.ServerID]*contact),
	}
}

// Close implements raft.WithClose. What waits for the disk gives up.
func (p *peers) Close() error {
	p.close.Do(func() { close(p.closing) })
	return p.NetworkTransport.Close()
}

func (p *peers) bind(r termSource) {
	p.mu.Lock()
	p.raft = r
	p.mu.Unlock()
}

// Consumer implements raft.Transport.
func (p *peers) Consumer() <-chan raft.RPC { return p.calls }

// LocalAddr implements raft.Transport: the address of a server is its node ID,
// which the stream layer resolves at each dial.
func (p *peers) LocalAddr() raft.ServerAddress { return raft.ServerAddress(p.id) }

// AppendEntriesPipeline implements raft.Transport. A pipeline goes around
// AppendEntries, and can wedge a follower for good (hashicorp/raft#612).
func (p *peers) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// AppendEntries implements raft.Transport.
func (p *peers) AppendEntries(id raft.ServerID, to raft.ServerAddress, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	heartbeat := q.PrevLogEntry == 0 && len(q.Entries) == 0 && q.LeaderCommitIndex == 0
	if heartbeat {
		p.pace(id)
	} else {
		if err := p.awaitPeer(id, q.Term); err != nil {
			return err
		}
		p.sending(id, q)
	}
	err := p.noting(id, func() error { return p.NetworkTransport.AppendEntries(id, to, q, r) })
	if err != nil {
		if heartbeat {
			p.lose(id)
		}
		return err
	}
	if n := len(q.Entries); n > 0 {
		if err := p.durable(q.Entries[n-1].Index, p.closing); err != nil {
			return err
		}
	}
	p.answered(id, to, q, r, heartbeat)
	return nil
}

// InstallSnapshot implements raft.Transport.
func (p *peers) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, q *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	if err := p.awaitPeer(id, q.Term); err != nil {
		return err
	}
	return p.NetworkTransport.InstallSnapshot(id, to, q, r, data)
}

// pace holds a heartbeat to a peer that has just answered. Raft sends one each
// tenth to fifth of the heartbeat timeout, at which each wakes several goroutines
// in two processes; a follower waits for a whole one. Whom nobody hears is asked at once.
func (p *peers) pace(id raft.ServerID) {
	p.mu.Lock()
	var rest time.Duration
	if c := p.contact[id]; c != nil && c.failed.IsZero() && !c.answered.IsZero() {
		rest = p.space - time.Since(c.answered)
	}
	p.mu.Unlock()
	if rest <= 0 {
		return
	}
	t := time.NewTimer(rest)
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.closing:
	}
}

// lose notes that a heartbeat failed.
func (p *peers) lose(id raft.ServerID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.contact[id]; !c.failed.IsZero() {
		c.lost = true
	}
}

// awaitPeer holds what is to be sent to a lost peer until a heartbeat reaches it
// again. For raft each failure doubles the pause before the next try, up to ten
// seconds; a node that comes back would spend them without a log to catch up
// with. Heartbeats are tried four times a second at least. It fails when the
// reign in which the call was made is over.
func (p *peers) awaitPeer(id raft.ServerID, term uint64) error {
	for {
		p.mu.Lock()
		c, r := p.contact[id], p.raft
		if c == nil || !c.lost || c.urgent > 0 || r == nil {
			p.mu.Unlock()
			return nil
		}
		if c.back == nil {
			c.back = make(chan struct{})
		}
		back := c.back
		p.mu.Unlock()
		look := time.NewTimer(reignLook)
		select {
		case <-back:
		case <-look.C:
		case <-p.closing:
			look.Stop()
			return raft.ErrTransportShutdown
		}
		look.Stop()
		if r.CurrentTerm() != term || r.State() != raft.Leader {
			return errReignOver
		}
		if !slices.ContainsFunc(r.GetConfiguration().Configuration().Servers, func(s raft.Server) bool { return s.ID == id }) {
			return errNoMember
		}
	}
}

// hurry has nothing held that goes to the peer until done is called. Raft asks
// the goroutine that a held call would keep busy for a transfer of leadership,
// and a second request that it does not take never ends.
func (p *peers) hurry(id raft.ServerID) (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.contact[id]
	if c == nil {
		return func() {}
	}
	c.urgent++
	c.wakeAll()
	return func() {
		p.mu.Lock()
		c.urgent--
		p.mu.Unlock()
	}
}

// wakeAll has those look again who wait for the peer.
func (c *contact) wakeAll() {
	if c.back != nil {
		close(c.back)
		c.back = nil
	}
}

// Why a call to a lost peer is not made.
var (
	errReignOver = errors.New("this node no longer leads")
	errNoMember  = errors.New("the peer is no member any more")
)

// RequestVote implements raft.Transport.
func (p *peers) RequestVote(id raft.ServerID, to raft.ServerAddress, q *raft.RequestVoteRequest, r *raft.RequestVoteResponse) error {
	return p.noting(id, func() error { return p.NetworkTransport.RequestVote(id, to, q, r) })
}

// RequestPreVote implements raft.WithPreVote.
func (p *peers) RequestPreVote(id raft.ServerID, to raft.ServerAddress, q *raft.RequestPreVoteRequest, r *raft.RequestPreVoteResponse) error {
	return p.noting(id, func() error { return p.NetworkTransport.RequestPreVote(id, to, q, r) })
}

// noting makes a call and notes how the peer answers.
func (p *peers) noting(id raft.ServerID, call func() error) error {
	p.mu.Lock()
	c := p.contact[id]
	if c == nil {
		c = &contact{}
		p.contact[id] = c
	}
	if c.flying++; c.flying == 1 {
		c.since = time.Now()
	}
	p.mu.Unlock()
	err := call()
	p.mu.Lock()
	defer p.mu.Unlock()
	c.flying--
	now := time.Now()
	if err != nil {
		c.failed = now
		return err
	}
	c.answered, c.failed, c.since, c.lost = now, time.Time{}, now, false
	c.wakeAll()
	return nil
}

// sending notes what an append that goes out now will tell.
func (p *peers) sending(id raft.ServerID, q *raft.AppendEntriesRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := p.known[id]; k != nil && p.term == q.Term {
		k.told = max(k.told, q.LeaderCommitIndex)
	}
}

func (p *peers) answered(id raft.ServerID, to raft.ServerAddress, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse, heartbeat bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.Term > p.term {
		p.term = q.Term
		if !p.former {
			clear(p.known)
		}
	}
	if heartbeat || q.Term != p.term || !r.Success || r.Term != q.Term {
		return
	}
	index, term := q.PrevLogEntry, q.PrevLogTerm
	if n := len(q.Entries); n > 0 {
		index, term = q.Entries[n-1].Index, q.Entries[n-1].Term
	}
	k := p.known[id]
	if k == nil {
		k = &peer{}
		p.known[id] = k
	}
	k.addr, k.header, k.told = to, q.RPCHeader, max(k.told, q.LeaderCommitIndex)
	if index > k.index {
		k.index, k.indexTerm = index, term
		p.poke()
	}
}

// poke has the nudger look again. It never blocks.
func (p *peers) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// nudge tells peers of new commit indexes until stopped.
func (p *peers) nudge(stopped <-chan struct{}) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-p.wake:
		case <-stopped:
			return
		}
		for id, q := range p.due() {
			wg.Go(func() { p.tell(id, q) })
		}
	}
}

// nudgeTo is one empty append.
type nudgeTo struct {
	addr raft.ServerAddress
	q    *raft.AppendEntriesRequest
}

// due lists the peers that have reached the commit index and were not told.
// The order of the three readings is what makes it safe: the index was
// committed before, or in, a reign that still lasts and is the one in which
// the peers acknowledged.
func (p *peers) due() map[raft.ServerID]nudgeTo {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.raft == nil {
		return nil
	}
	commit := p.raft.CommitIndex()
	if p.raft.State() != raft.Leader || p.raft.CurrentTerm() != p.term {
		return nil
	}
	var due map[raft.ServerID]nudgeTo
	for id, k := range p.known {
		if k.busy || k.index < commit || k.told >= commit {
			continue
		}
		k.told, k.busy = commit, true
		if due == nil {
			due = make(map[raft.ServerID]nudgeTo, len(p.known))
		}
		due[id] = nudgeTo{k.addr, &raft.AppendEntriesRequest{
			RPCHeader: k.header, Term: p.term, PrevLogEntry: k.index, PrevLogTerm: k.indexTerm, LeaderCommitIndex: commit,
		}}
	}
	return due
}

func (p *peers) tell(id raft.ServerID, n nudgeTo) {
	var r raft.AppendEntriesResponse
	_ = p.NetworkTransport.AppendEntries(id, n.addr, n.q, &r) // lost: the next append tells
	p.mu.Lock()
	if k := p.known[id]; k != nil && p.term == n.q.Term {
		k.busy = false
	}
	p.mu.Unlock()
	p.poke()
}

// acked is how far the peer's log is known to agree with ours in this term.
func (p *peers) acked(id string) (index uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.known[raft.ServerID(id)]
	if k == nil || p.raft == nil || p.raft.CurrentTerm() != p.term {
		return 0, false
	}
	return k.index, true
}

// lastContact is when the peer last answered.
func (p *peers) lastContact(id string) (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.contact[raft.ServerID(id)]
	if c == nil {
		return time.Time{}, false
	}
	return c.answered, !c.answered.IsZero()
}

// silent tells whether the peer's last call failed of late, or one has been
// waiting for its answer longer than the limit.
func (p *peers) silent(id string, limit time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.contact[raft.ServerID(id)]
	if c == nil {
		return false
	}
	return !c.failed.IsZero() && time.Since(c.failed) < failureMemory*limit || c.flying > 0 && time.Since(c.since) > limit
}
