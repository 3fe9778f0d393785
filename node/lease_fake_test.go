package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

// fakeCluster stands in for raft and the network: one log, elections by the
// test's word, links that the test cuts. Everything above is the real thing.
type fakeCluster struct {
	t      testing.TB
	mu     sync.Mutex
	nodes  []*fakeNode
	log    []*raft.Log
	cut    map[[2]string]bool // from, to: what goes that way is lost
	delay  time.Duration      // of each leg
	before func(from *fakeNode, m transport.Method) error
	after  func(from *fakeNode, m transport.Method) error
	// onApply is asked before an entry is appended: it may refuse it.
	onApply func(n *fakeNode, data []byte) error
	// onCommit is asked after an entry is applied: its error hides the outcome.
	onCommit func(n *fakeNode, data []byte) error
}

// fakeNode is one member; its fields are under the cluster's mu.
type fakeNode struct {
	c       *fakeCluster
	id      string
	boot    uint64
	clock   *TestClock
	machine *fsm.Machine
	lease   leaseSide
	now     uint64 // raft's term
	leads   uint64 // term in which it believes to lead
	serves  bool
	knows   string // leader
	change  chan struct{}
	lags    bool        // its copy does not move
	behind  []*raft.Log // what it has not applied
	applyMu sync.Mutex
	stop    context.CancelFunc
	duty    context.CancelFunc
	done    sync.WaitGroup
}

// testTiming is the bench of the scenarios: T 6 s, renewal 1 s, margin 1 s.
var testTiming = Timing{
	SessionTTL: 6 * time.Second, RenewInterval: time.Second, Margin: time.Second, StopBudget: time.Second,
	RaftTimeout: 300 * time.Millisecond,
}.WithDefaults()

type fakeOption func(i int, cfg *leaseConfig)

// newFakeCluster starts n nodes, the first of which leads, in a bubble.
func newFakeCluster(t testing.TB, n int, opts ...fakeOption) *fakeCluster {
	t.Helper()
	c := &fakeCluster{t: t, cut: map[[2]string]bool{}}
	for i := range n {
		c.addNode(i, 1, opts...)
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			n.halt()
		}
	})
	c.commit(fsm.NewCommand(&fsm.InitCluster{ClusterId: "test", Version: fsm.Version}))
	c.elect(0)
	for _, n := range c.nodes {
		n.start()
	}
	return c
}

func (c *fakeCluster) addNode(i int, boot uint64, opts ...fakeOption) *fakeNode {
	n := &fakeNode{c: c, id: fmt.Sprintf("n%d", i), boot: boot, clock: NewTestClock(1, time.Duration(i+1)*time.Hour), change: make(chan struct{})}
	n.machine = fsm.NewMachine(fsm.MachineOptions{OnApplied: func(o *fsm.Outcome) { n.lease.applied(o) }})
	cfg := leaseConfig{
		self:   holder{nodeID: n.id, boot: boot, nonce: fmt.Sprintf("nonce%d", boot), instanceID: fmt.Sprintf("host:%d:i%d", boot, i)},
		timing: testTiming, clock: n.clock, machine: n.machine, lead: n, call: n,
	}
	for _, o := range opts {
		o(i, &cfg)
	}
	if tc, ok := cfg.clock.(*TestClock); ok {
		n.clock = tc
	}
	n.lease = newLeaseSide(cfg)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes = append(c.nodes, n)
	return n
}

func (n *fakeNode) start() {
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	n.done.Go(func() { _ = n.lease.run(ctx) })
}

// halt ends the node as a killed process would: nobody is told.
func (n *fakeNode) halt() {
	n.c.mu.Lock()
	n.deposeLocked()
	n.c.mu.Unlock()
	if n.stop != nil {
		n.stop()
	}
	n.done.Wait()
}

func (c *fakeCluster) isCut(from, to string) bool { return c.cut[[2]string{from, to}] }

func (c *fakeCluster) setCut(cut bool, from, to *fakeNode) {
	c.mu.Lock()
	c.cut[[2]string{from.id, to.id}] = cut
	c.mu.Unlock()
}

// isolate cuts n off from all others, heal undoes it.
func (c *fakeCluster) isolate(n *fakeNode) { c.links(n, true) }
func (c *fakeCluster) heal(n *fakeNode)    { c.links(n, false) }

func (c *fakeCluster) links(n *fakeNode, cut bool) {
	for _, o := range c.nodes {
		if o != n {
			c.setCut(cut, n, o)
			c.setCut(cut, o, n)
		}
	}
}

// elect makes node i the leader of a new term of all it can reach.
func (c *fakeCluster) elect(i int) *fakeNode {
	n := c.nodes[i]
	c.mu.Lock()
	term := uint64(0)
	for _, o := range c.nodes {
		term = max(term, o.now)
	}
	term++
	for _, o := range c.nodes {
		if o == n || !c.isCut(n.id, o.id) && !c.isCut(o.id, n.id) {
			o.deposeLocked()
			o.now, o.knows = term, n.id
			o.noteLocked()
		}
	}
	n.leads = term
	n.noteLocked()
	c.mu.Unlock()
	n.applyBehind()
	n.serve()
	return n
}

// serve is what leader.go does after the barrier.
func (n *fakeNode) serve() {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	if n.leads == 0 || n.serves {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	term := n.leads
	n.duty = cancel
	n.serves = true
	n.noteLocked()
	n.done.Go(func() { _ = n.lease.serve(ctx, term) })
}

func (n *fakeNode) deposeLocked() {
	if n.leads != 0 {
		n.leads, n.serves = 0, false
		if n.duty != nil {
			n.duty()
			n.duty = nil
		}
	}
	n.knows = ""
	n.noteLocked()
}

func (n *fakeNode) noteLocked() {
	close(n.change)
	n.change = make(chan struct{})
}

// depose ends the reign of n; nobody leads then.
func (c *fakeCluster) depose(n *fakeNode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.deposeLocked()
	for _, o := range c.nodes {
		if o.knows == n.id {
			o.knows = ""
			o.noteLocked()
		}
	}
}

// commit applies commands as if the present leader had proposed them.
func (c *fakeCluster) commit(commands ...*fsm.Command) *fsm.Outcome {
	c.t.Helper()
	data, err := fsm.EncodeBatch(&fsm.Batch{Proposals: []*fsm.Proposal{{NodeId: "test", Boot: 1, Commands: commands}}, Stamp: 1})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.append(c.nodes[0], c.maxTerm(), data)
}

func (c *fakeCluster) maxTerm() (term uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.nodes {
		term = max(term, o.now)
	}
	return max(1, term)
}

// append appends an entry and has every node apply it that can.
func (c *fakeCluster) append(by *fakeNode, term uint64, data []byte) *fsm.Outcome {
	c.mu.Lock()
	l := &raft.Log{Index: uint64(len(c.log) + 1), Term: term, Type: raft.LogCommand, Data: data}
	c.log = append(c.log, l)
	for _, n := range c.nodes {
		n.behind = append(n.behind, l)
	}
	nodes := slices.Clone(c.nodes)
	c.mu.Unlock()
	out := by.applyBehind()
	for _, n := range nodes {
		c.mu.Lock()
		skip := n == by || n.lags || c.isCut(by.id, n.id)
		c.mu.Unlock()
		if !skip {
			n.applyBehind()
		}
	}
	return out
}

// applyBehind applies what the node's copy lacks and returns the last outcome.
func (n *fakeNode) applyBehind() (out *fsm.Outcome) {
	n.applyMu.Lock()
	defer n.applyMu.Unlock()
	n.c.mu.Lock()
	logs := n.behind
	n.behind = nil
	n.c.mu.Unlock()
	for _, l := range logs {
		out = n.machine.Apply(l).(*fsm.Outcome)
		if out.Err != nil {
			n.c.t.Errorf("node %s halted: %v", n.id, out.Err)
		}
	}
	return out
}

func (n *fakeNode) setLag(lags bool) {
	n.c.mu.Lock()
	n.lags = lags
	n.c.mu.Unlock()
	if !lags {
		n.applyBehind()
	}
}

// leadership

func (n *fakeNode) term() uint64 { n.c.mu.Lock(); defer n.c.mu.Unlock(); return n.now }

func (n *fakeNode) leading() (uint64, bool) {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	return n.leads, n.leads != 0
}

func (n *fakeNode) serving() (uint64, bool) {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	return n.leads, n.serves
}
func (n *fakeNode) leader() string { n.c.mu.Lock(); defer n.c.mu.Unlock(); return n.knows }
func (n *fakeNode) voters() (ids []string) {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	for _, o := range n.c.nodes {
		ids = append(ids, o.id)
	}
	return ids
}

func (n *fakeNode) changed() <-chan struct{} { n.c.mu.Lock(); defer n.c.mu.Unlock(); return n.change }

// apply commits where a majority can be reached at this node's term, else waits
// for the end of the reign, as raft does.
func (n *fakeNode) apply(ctx context.Context, data []byte) (*fsm.Outcome, error) {
	for {
		n.c.mu.Lock()
		term, change := n.leads, n.change
		votes, total := 1, len(n.c.nodes)
		for _, o := range n.c.nodes {
			if o != n && o.now <= n.leads && !n.c.isCut(n.id, o.id) && !n.c.isCut(o.id, n.id) {
				votes++
			}
		}
		hookBefore, hookAfter := n.c.onApply, n.c.onCommit
		n.c.mu.Unlock()
		if term == 0 {
			return nil, fsm.Errorf(fsm.CodeNoQuorum, "not the leader")
		}
		if hookBefore != nil {
			if err := hookBefore(n, data); err != nil {
				return nil, err
			}
		}
		if votes >= total/2+1 {
			out := n.c.append(n, term, data)
			if hookAfter != nil {
				if err := hookAfter(n, data); err != nil {
					return nil, err
				}
			}
			return out, nil
		}
		select {
		case <-change:
			if now, ok := n.leading(); !ok || now != term {
				return nil, fsm.Errorf(fsm.CodeUncertain, "leadership lost")
			}
		case <-ctx.Done():
			return nil, fsm.Errorf(fsm.CodeUncertain, "gave up: %v", context.Cause(ctx))
		}
	}
}

// caller

func (n *fakeNode) call(ctx context.Context, nodeID string, m transport.Method, req, resp proto.Message) error {
	var to *fakeNode
	n.c.mu.Lock()
	for _, o := range n.c.nodes {
		if o.id == nodeID {
			to = o
		}
	}
	n.c.mu.Unlock()
	if to == nil {
		return notSent{errors.New("no such node")}
	}
	leg := func(from, to *fakeNode) error {
		n.c.mu.Lock()
		cut, delay := n.c.isCut(from.id, to.id), n.c.delay
		n.c.mu.Unlock()
		if cut {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		if delay > 0 {
			select {
			case <-time.After(delay):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return ctx.Err()
	}
	n.c.mu.Lock()
	before, after := n.c.before, n.c.after
	n.c.mu.Unlock()
	if before != nil {
		if err := before(n, m); err != nil {
			return err
		}
	}
	if err := leg(n, to); err != nil {
		return err
	}
	out, err := to.handle(ctx, transport.Identity{NodeID: n.id, Boot: n.boot}, m, proto.Clone(req))
	if lerr := leg(to, n); lerr != nil {
		return lerr
	}
	if after != nil {
		if err := after(n, m); err != nil {
			return err
		}
	}
	if err != nil {
		return &fsm.Error{Code: fsm.CodeOf(err), Message: err.Error()}
	}
	proto.Merge(resp, out)
	return nil
}

func (n *fakeNode) handle(ctx context.Context, peer transport.Identity, m transport.Method, req proto.Message) (proto.Message, error) {
	switch m {
	case methodPropose:
		return n.lease.handlePropose(ctx, peer, req.(*nodepb.ProposeRequest))
	case methodKeepAlive:
		return n.lease.handleKeepAlive(ctx, peer, req.(*nodepb.KeepAliveRequest))
	case methodReportRuns:
		return n.lease.handleReportRuns(ctx, peer, req.(*nodepb.RunReport))
	case methodTerm:
		return n.lease.handleTerm(ctx, req.(*nodepb.TermRequest))
	case methodReadIndex:
		return n.lease.handleReadIndex(ctx, req.(*nodepb.ReadIndexRequest))
	}
	return nil, errors.New("no such method")
}

// helpers of tests

// must fails the test unless the command was done.
func (n *fakeNode) must(op fsm.Op) *fsm.Result {
	n.c.t.Helper()
	res, err := n.lease.proposer.propose(context.Background(), op)
	if err == nil {
		err = fsm.ResultErr(res)
	}
	if err != nil {
		n.c.t.Fatalf("%s: %T: %v", n.id, op, err)
	}
	return res
}

// openSession waits for the node's session.
func (n *fakeNode) openSession() string {
	n.c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	id, err := n.lease.keeper.session(ctx)
	if err != nil {
		n.c.t.Fatalf("%s: session: %v", n.id, err)
	}
	return id
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

var discardLog = slog.New(slog.DiscardHandler)
