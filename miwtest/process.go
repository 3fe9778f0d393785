package miwtest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/node"
)

// Node is one start of a node, as the work in its process sees it: a
// coord.Cluster. What it embeds works too, but what goes through the embedded
// *node.Node alone is not observed and outlives a crash.
type Node struct {
	*node.Node
	c     *Cluster
	index int
	boot  int // numbers the starts

	ctx    context.Context // of the programs
	cancel context.CancelCauseFunc
	dead   chan struct{} // closed when nobody can see any more what it does
	die    func()        // closes dead, once

	mu     sync.Mutex
	paused bool
	woke   time.Time // end of the last pause, zero for none
	ended  map[string]<-chan struct{}
	runs   map[uint64]*run
}

// run is one run in the process, from Begin to Returned.
type run struct {
	key     string
	token   uint64
	session string
	entry   *entry    // nil: not started
	told    time.Time // when it was told to stop, zero for not
	stuck   bool      // reported
}

var _ coord.Cluster = (*Node)(nil)

// Causes of the end of a program's context.
var (
	errCrashed = errors.New("the node has crashed")
	errStopped = errors.New("the node is told to leave")
)

func newNode(c *Cluster, i, boot int, inner *node.Node) *Node {
	n := &Node{Node: inner, c: c, index: i, boot: boot, dead: make(chan struct{}), ended: map[string]<-chan struct{}{}, runs: map[uint64]*run{}}
	n.die = sync.OnceFunc(func() { close(n.dead) })
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	return n
}

// Index is the node's number in the cluster.
func (n *Node) Index() int { return n.index }

func (n *Node) isDead() bool {
	select {
	case <-n.dead:
		return true
	default:
		return false
	}
}

// standsStill tells whether the process is paused, else how long ago it woke; 0
// for never.
func (n *Node) standsStill() (paused bool, woke time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.paused || n.woke.IsZero() {
		return n.paused, 0
	}
	return false, max(time.Since(n.woke), 1)
}

// excused: a process that stood still can't have ended its work in time.
func (n *Node) excused() bool {
	paused, woke := n.standsStill()
	return paused || woke > 0 && woke <= n.c.timing.StopBudget
}

// Go runs a program in the process of this start of the node. Its context ends
// when the node is stopped or crashes; a program that returns an error before
// that fails the test.
//
//	n.Go(coord.NewRunner(n, "mailer", sendMails).Run)
func (n *Node) Go(program func(ctx context.Context) error) {
	go func() {
		if err := program(n.ctx); err != nil && n.ctx.Err() == nil {
			n.c.t.Errorf("the program on node %d ended: %v", n.index, err)
		}
	}()
}

// SessionEnded implements coord.Cluster. Nothing ends the work of a dead
// process but its death.
func (n *Node) SessionEnded(id string) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := n.ended[id]; c != nil {
		return c
	}
	c, inner := make(chan struct{}), n.Node.SessionEnded(id)
	n.ended[id] = c
	go func() {
		select {
		case <-inner:
		case <-n.dead:
			return
		}
		if n.isDead() {
			return
		}
		if !n.excused() {
			n.c.report(n.c.works.overdue(n.c.Elapsed(), func(e *entry) bool { return e.proc == n && e.session == id })...)
		}
		close(c)
	}()
	return c
}

// Begin implements coord.Cluster.
func (n *Node) Begin(ctx context.Context, key string, token uint64) (uint64, error) {
	id, err := n.Node.Begin(ctx, key, token)
	if err != nil {
		return 0, err
	}
	r := &run{key: key, token: token}
	if l, ok := n.View().Lease(key); ok && l.Token == token {
		r.session = l.SessionID
	}
	n.mu.Lock()
	n.runs[id] = r
	n.mu.Unlock()
	n.c.held(token, n, r.session)
	return id, nil
}

func (n *Node) run(id uint64) *run {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.runs[id]
}

// Started implements coord.Cluster.
func (n *Node) Started(id uint64) {
	n.Node.Started(id)
	r := n.run(id)
	if r == nil || n.isDead() {
		return
	}
	now := n.c.Elapsed()
	r.entry = &entry{Span: Span{Key: r.key, Node: n.index, Token: r.token, Start: now}, proc: n, lease: r.key, session: r.session}
	n.c.notef("node %d runs %q with token %d", n.index, r.key, r.token)
	paused, _ := n.standsStill()
	n.c.report(n.c.runs.begin(r.entry, paused)...)
}

// Finished implements coord.Cluster.
func (n *Node) Finished(id uint64) {
	n.Node.Finished(id)
	if r := n.run(id); r != nil && r.entry != nil && !n.isDead() {
		n.c.runs.end(r.entry, n.c.Elapsed())
		n.c.notef("node %d has ended %q (token %d)", n.index, r.key, r.token)
	}
}

// Stopping implements coord.Cluster.
func (n *Node) Stopping(id uint64) {
	n.Node.Stopping(id)
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := n.runs[id]; r != nil {
		r.told = time.Now()
	}
}

// Stuck implements coord.Cluster.
func (n *Node) Stuck(id uint64, stack string) {
	n.Node.Stuck(id, stack)
	if n.isDead() || n.excused() {
		return
	}
	n.mu.Lock()
	r := n.runs[id]
	if r == nil || r.stuck {
		n.mu.Unlock()
		return
	}
	r.stuck = true
	since := time.Since(r.told)
	n.mu.Unlock()
	e := entry{Span: Span{Key: r.key, Node: n.index, Token: r.token}}
	n.c.report(e.violates(Stuck, n.c.Elapsed(), "the run of %q on node %d (token %d) has not returned %v after it was told to stop: it must return soon after its context ends. It hangs here:\n%s",
		r.key, n.index, r.token, round(since), indent(stack))...)
}

// Returned implements coord.Cluster.
func (n *Node) Returned(id uint64) {
	n.Node.Returned(id)
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.runs, id)
}

// Exit is what package coord calls where it would end a process: under
// coord.PolicyExit, because work would not stop. It ends the node's as a crash
// does; a supervisor starts it again.
func (n *Node) Exit(code int) {
	if n.isDead() {
		return
	}
	n.c.notef("the process of node %d ends itself with code %d", n.index, code)
	n.c.exited(n)
}
