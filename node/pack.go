package node

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

const (
	// maxEntryCommands and maxEntryBytes bound one entry of the log, the bytes
	// with room for the stamp.
	maxEntryCommands = 8192
	maxEntryBytes    = fsm.MaxBatchBytes - 64
	// maxForward* bound one request to the leader. A single command is smaller.
	maxForwardCommands = 4096
	maxForwardBytes    = 2 << 20
	// maxForwards is how many of them are under way: the second fills while the
	// first is committed.
	maxForwards = 2
	// maxPeerBytes bounds what waits at the leader for other nodes.
	maxPeerBytes = 64 << 20
)

// Field numbers of Batch, Proposal and Command that are written by hand.
const (
	batchProposals   = 1
	proposalNode     = 1
	proposalBoot     = 2
	proposalLowWater = 3
	proposalCommands = 4
	proposalVersion  = 5
	commandSeq       = 1
)

// commandSize is the size of a command in a proposal.
func commandSize(c *command) int {
	return 1 + protowire.SizeBytes(1+protowire.SizeVarint(c.seq)+len(c.body))
}

// proposalRoom is what a proposal needs beside its commands, at most.
func (p *proposer) proposalRoom() int { return len(p.self.nodeID) + 64 }

// appendProposal appends a batch of one proposal, this node's, with the
// commands in it; p.mu is held. Its version is what they need, not what this
// binary or its copy knows: members that are older halt on more.
func (p *proposer) appendProposal(dst []byte, commands []*command) []byte {
	version := uint32(1)
	for _, c := range commands {
		version = max(version, c.needs)
	}
	lowWater := p.lowWater()
	size := 1 + protowire.SizeBytes(len(p.self.nodeID)) +
		1 + protowire.SizeVarint(p.self.boot) + 1 + protowire.SizeVarint(lowWater) + 1 + protowire.SizeVarint(uint64(version))
	for _, c := range commands {
		size += commandSize(c)
	}
	dst = slices.Grow(dst, size+16)
	dst = protowire.AppendTag(dst, batchProposals, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(size))
	dst = protowire.AppendTag(dst, proposalNode, protowire.BytesType)
	dst = protowire.AppendString(dst, p.self.nodeID)
	for _, f := range [...]struct {
		n protowire.Number
		v uint64
	}{{proposalBoot, p.self.boot}, {proposalLowWater, lowWater}} {
		dst = protowire.AppendTag(dst, f.n, protowire.VarintType)
		dst = protowire.AppendVarint(dst, f.v)
	}
	for _, c := range commands {
		dst = protowire.AppendTag(dst, proposalCommands, protowire.BytesType)
		dst = protowire.AppendVarint(dst, uint64(1+protowire.SizeVarint(c.seq)+len(c.body)))
		dst = protowire.AppendTag(dst, commandSeq, protowire.VarintType)
		dst = protowire.AppendVarint(dst, c.seq)
		dst = append(dst, c.body...)
	}
	dst = protowire.AppendTag(dst, proposalVersion, protowire.VarintType)
	return protowire.AppendVarint(dst, uint64(version))
}

// checkProposal tells whether batch is exactly one proposal of n commands, made
// by the one who sends it: request IDs are of a boot of a node, so whoever could
// use another's could answer its commands before they are made. What is in the
// commands is not looked at: the peer has checked them, and each is
// checked again when it is applied. It returns the state version that they need.
func checkProposal(batch []byte, n uint32, from sender) (needs uint32, err error) {
	bad := fsm.Errorf(fsm.CodeInvalidArgument, "not one proposal of %d commands", n)
	num, typ, tag := protowire.ConsumeTag(batch)
	if tag < 0 || num != batchProposals || typ != protowire.BytesType {
		return 0, bad
	}
	inner, size := protowire.ConsumeBytes(batch[tag:])
	if size < 0 || tag+size != len(batch) {
		return 0, bad
	}
	var by sender
	count := uint32(0)
	for len(inner) > 0 {
		num, _, size := protowire.ConsumeField(inner)
		if size < 0 || num < proposalNode || num > proposalVersion {
			return 0, bad
		}
		_, _, tag := protowire.ConsumeTag(inner)
		// The last one counts, as when it is decoded.
		switch num {
		case proposalNode:
			node, size := protowire.ConsumeString(inner[tag:])
			if size < 0 {
				return 0, bad
			}
			by.nodeID = node
		case proposalBoot:
			boot, size := protowire.ConsumeVarint(inner[tag:])
			if size < 0 {
				return 0, bad
			}
			by.boot = boot
		case proposalVersion:
			version, size := protowire.ConsumeVarint(inner[tag:])
			if size < 0 {
				return 0, bad
			}
			needs = uint32(version)
		case proposalCommands:
			count++
		}
		inner = inner[size:]
	}
	switch {
	case count != n || n == 0:
		return 0, bad
	case by != from:
		return 0, fsm.Errorf(fsm.CodePermissionDenied, "boot %d of node %s proposes in the name of boot %d of node %s", from.boot, from.nodeID, by.boot, by.nodeID)
	}
	return needs, nil
}

// peerQueue is what waits at the leader for other nodes, and its own duties.
type peerQueue struct {
	list  []*chunk
	bytes int
}

// chunk is one proposal of another node, or a duty of this term.
type chunk struct {
	batch []byte
	n     int
	term  uint64 // of a duty: in no other; 0 = any
	needs uint32 // state version
	reply chan chunkReply
}

type chunkReply struct {
	revision uint64
	results  []*fsm.Result
	err      error
}

// remove takes c back if it is in no entry yet.
func (q *peerQueue) remove(c *chunk) bool {
	i := slices.Index(q.list, c)
	if i < 0 {
		return false
	}
	q.list = slices.Delete(q.list, i, i+1)
	q.bytes -= len(c.batch)
	return true
}

// submit queues c and waits for what becomes of it.
func (p *proposer) submit(ctx context.Context, c *chunk) (chunkReply, error) {
	p.mu.Lock()
	switch {
	case p.stopped:
		p.mu.Unlock()
		return chunkReply{}, fsm.Errorf(fsm.CodeClosing, "the node has stopped")
	case c.term == 0 && p.peers.bytes+len(c.batch) > maxPeerBytes:
		p.mu.Unlock()
		return chunkReply{}, fsm.Errorf(fsm.CodeOverloaded, "too many commands wait at the leader")
	}
	p.peers.list = append(p.peers.list, c)
	p.peers.bytes += len(c.batch)
	p.mu.Unlock()
	p.poke()
	select {
	case r := <-c.reply:
		return r, r.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	waited := p.peers.remove(c)
	p.mu.Unlock()
	if waited {
		return chunkReply{}, gaveUp(ctx, "the commands were not proposed")
	}
	select {
	case r := <-c.reply:
		return r, r.err
	default:
		return chunkReply{}, fsm.Errorf(fsm.CodeUncertain, "the commands may be applied")
	}
}

// handle takes the commands of another node where this one leads. A node that
// has won its election but not applied its barrier keeps them until it has.
func (p *proposer) handle(ctx context.Context, from sender, q *nodepb.ProposeRequest) (*nodepb.ProposeReply, error) {
	if len(q.Batch) > maxEntryBytes {
		return nil, fsm.Errorf(fsm.CodeInvalidArgument, "a proposal of %d bytes: at most %d are allowed", len(q.Batch), maxEntryBytes)
	}
	needs, err := checkProposal(q.Batch, q.Commands, from)
	if err != nil {
		return nil, err
	}
	if _, ok := p.lead.leading(); !ok {
		return nil, errNotLeader()
	}
	r, err := p.submit(ctx, &chunk{batch: q.Batch, n: int(q.Commands), needs: needs, reply: make(chan chunkReply, 1)})
	if err != nil {
		return nil, err
	}
	return &nodepb.ProposeReply{Revision: r.revision, Results: r.results}, nil
}

// duty commits commands of this leader's term in one entry. They have no
// request IDs: each is refused where it comes too late, so a repeat does no harm.
func (p *proposer) duty(ctx context.Context, term uint64, ops ...fsm.Op) ([]*fsm.Result, error) {
	proposal := &fsm.Proposal{NodeId: p.self.nodeID, Boot: p.self.boot}
	for _, op := range ops {
		proposal.Commands = append(proposal.Commands, fsm.NewCommand(op))
	}
	batch, err := fsm.EncodeBatch(&fsm.Batch{Proposals: []*fsm.Proposal{proposal}})
	if err != nil {
		return nil, err
	}
	r, err := p.submit(ctx, &chunk{batch: batch, n: len(ops), term: term, reply: make(chan chunkReply, 1)})
	if err != nil {
		return nil, err
	}
	return r.results, nil
}

// refusePeers answers what waits here for a leader that this node is not.
func (p *proposer) refusePeers() {
	p.mu.Lock()
	list := p.peers.list
	p.peers = peerQueue{}
	p.mu.Unlock()
	for _, c := range list {
		c.reply <- chunkReply{err: errNotLeader()}
	}
}

// entry is one entry of the log on its way.
type entry struct {
	data   []byte
	chunks []*chunk
	own    []*command
}

// pack makes an entry of all that waits, nil if nothing does. It waits for no
// more to come: what comes while an entry is committed goes into the next.
func (p *proposer) pack(term uint64) *entry {
	version := p.version()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.notUntil > p.clock.boot() {
		return nil
	}
	e := &entry{}
	commands, size := 0, 0
	for len(p.peers.list) > 0 {
		c := p.peers.list[0]
		late := c.term != 0 && c.term != term
		if !late && (size+len(c.batch) > maxEntryBytes || commands > 0 && commands+c.n > maxEntryCommands) {
			break
		}
		p.peers.list[0] = nil
		p.peers.list = p.peers.list[1:]
		p.peers.bytes -= len(c.batch)
		if late {
			c.reply <- chunkReply{err: errNotLeader()}
			continue
		}
		if c.needs > version {
			c.reply <- chunkReply{err: fsm.Errorf(fsm.CodeNotReady, "the cluster is at state version %d, the proposal needs %d", version, c.needs)}
			continue
		}
		e.chunks = append(e.chunks, c)
		commands += c.n
		size += len(c.batch)
	}
	if room := maxEntryBytes - size - p.proposalRoom(); room > 0 && commands < maxEntryCommands {
		e.own = p.take(maxEntryCommands-commands, room)
	}
	if len(e.chunks) == 0 && len(e.own) == 0 {
		return nil
	}
	for _, c := range e.own {
		size += commandSize(c)
	}
	e.data = make([]byte, 0, size+p.proposalRoom()+16)
	for _, c := range e.chunks {
		e.data = append(e.data, c.batch...)
	}
	if len(e.own) > 0 {
		e.data = p.appendProposal(e.data, e.own)
	}
	e.data = fsm.AppendStamp(e.data, p.clock.wall().UnixNano())
	return e
}

// commit proposes e and gives the answers out.
func (p *proposer) commit(ctx context.Context, e *entry) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer context.AfterFunc(p.tenure.context(), func() { cancel(errNewLeader) })()
	defer cancel(nil)
	out, err := p.apply(ctx, e.data)
	if err == nil && out.Err != nil {
		err = fsm.Errorf(fsm.CodeUncertain, "this node has halted: %v", out.Err)
	}
	want := len(e.chunks)
	if len(e.own) > 0 {
		want++
	}
	if err == nil && len(out.Proposals) != want {
		err = fsm.Errorf(fsm.CodeUncertain, "an entry of %d proposals gave %d outcomes", want, len(out.Proposals))
	}
	for i, c := range e.chunks {
		if err != nil {
			c.reply <- chunkReply{err: err}
			continue
		}
		c.reply <- chunkReply{revision: out.Revision, results: out.Proposals[i].Results}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.putBack(e.own, !errors.Is(err, fsm.ErrNoQuorum))
		p.delay()
		return
	}
	p.failures = 0
	if len(e.own) > 0 {
		p.deliver(e.own, out.Proposals[len(e.chunks)].Results)
	}
}

// apply proposes an entry and waits for its outcome.
func (p *proposer) apply(ctx context.Context, data []byte) (*fsm.Outcome, error) {
	if err := p.seams.step(StepCommandsPropose); err != nil {
		return nil, fsm.Errorf(fsm.CodeNoQuorum, "not proposed: %v", err)
	}
	out, err := p.lead.apply(ctx, data)
	if err == nil && p.seams.step(StepCommandsCommitted) != nil {
		return nil, fsm.Errorf(fsm.CodeUncertain, "committed, and not answered")
	}
	return out, err
}

// deliver answers commands with their results; p.mu is held.
func (p *proposer) deliver(commands []*command, results []*fsm.Result) {
	for i, c := range commands {
		p.answer(c, commandReply{result: results[i]})
	}
}

// forward sends what is queued to the leader, if one is known.
func (p *proposer) forward(ctx context.Context) {
	leader := p.lead.leader()
	if leader == "" || leader == p.self.nodeID {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.notUntil > p.clock.boot() {
		return
	}
	for p.forwards < maxForwards {
		commands := p.take(maxForwardCommands, maxForwardBytes)
		if len(commands) == 0 {
			return
		}
		q := &nodepb.ProposeRequest{Batch: p.appendProposal(nil, commands), Commands: uint32(len(commands))}
		p.forwards++
		p.wg.Go(func() { p.send(ctx, leader, q, commands) })
	}
}

// send carries one request to the leader and gives the answers out.
func (p *proposer) send(ctx context.Context, leader string, q *nodepb.ProposeRequest, commands []*command) {
	cctx, cancel := context.WithTimeoutCause(p.tenure.context(), p.timeout, errSlowLeader)
	var reply nodepb.ProposeReply
	err := p.call.call(cctx, leader, methodPropose, q, &reply)
	// When this end gave up, its reason (that the node stops, say) may look like
	// a refusal of the leader's; it says nothing about what became of the request.
	ours := cctx.Err() != nil && !errors.Is(err, transport.ErrNotSent)
	cancel()
	if err == nil && len(reply.Results) != len(commands) {
		err = fsm.Errorf(fsm.CodeUncertain, "%d results to %d commands", len(reply.Results), len(commands))
	}
	p.mu.Lock()
	p.forwards--
	switch {
	case err == nil:
		p.failures = 0
	case errors.Is(err, fsm.ErrInvalidArgument), errors.Is(err, fsm.ErrPermissionDenied):
		for _, c := range commands {
			p.answer(c, commandReply{err: err})
		}
	default:
		p.log.Debug("commands not answered, sending them again", "leader", leader, "count", len(commands), "error", err)
		p.putBack(commands, ours || !surelyNot(err))
		p.delay()
	}
	p.mu.Unlock()
	p.poke()
	if err != nil {
		return
	}
	// A caller sees its own write in the local copy when its call returns.
	err = p.machine.Wait(ctx, reply.Revision)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		for _, c := range commands {
			p.answer(c, commandReply{err: p.uncertain(c.seq, "applied, but not by the local copy: %v", err)})
		}
		return
	}
	p.deliver(commands, reply.Results)
}

// surelyNot tells whether err says that nothing of the request has got or will
// get into a log.
func surelyNot(err error) bool {
	if errors.Is(err, transport.ErrNotSent) {
		return true
	}
	switch fsm.CodeOf(err) {
	case fsm.CodeNotReady, fsm.CodeNoQuorum, fsm.CodeOverloaded, fsm.CodeClosing:
		return true
	}
	return false
}
