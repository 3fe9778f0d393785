package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/transport"
)

// Node is one running member of a cluster. All methods are safe for concurrent
// use, before, during and after Run.
type Node struct {
	cfg     Config // with defaults
	log     *slog.Logger
	clock   clock
	folder  *folder
	ident   *identity
	book    *addressBook
	machine *fsm.Machine
	lease   leaseSide
	members *membership
	rival   rival
	metrics *metrics
	guard   *warding
	table   map[transport.Method]handler

	artifacts *artifacts

	// Made by Run.
	trans atomic.Pointer[transport.Transport]
	raft  *raftHost // made by New, started by Run

	life lifecycle
}

// lifecycle is how far a node's life has come.
type lifecycle struct {
	ran     atomic.Bool
	running atomic.Bool
	ready   chan struct{} // closed once
	closing chan struct{} // closed when the node begins to leave
	failed  chan error    // one slot: why the node can't go on

	readyOnce, closeOnce sync.Once

	leftover leftovers

	mu      sync.Mutex
	unready error // nil = ready
	failure error // first fault
}

// New checks cfg, takes the data folder and reads or makes the node's identity
// in it; the boot number is raised and on disk when it returns. The folder
// stays locked until Run has returned and every run of the node's work with it.
// Its errors match ErrFolderInUse, ErrFolderDamaged, ErrFolderNewer,
// ErrFolderCopied and ErrOtherID; a faulty cfg gives all its faults at once.
func New(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	folder, err := openFolder(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	folder.seams = cfg.seams
	n := &Node{cfg: cfg, folder: folder, life: lifecycle{
		ready: make(chan struct{}), closing: make(chan struct{}), failed: make(chan error, 1),
		unready: errNotStarted,
	}}
	if err := n.assemble(); err != nil {
		folder.release()
		return nil, err
	}
	return n, nil
}

// assemble makes the parts, in the order in which they know of each other.
func (n *Node) assemble() (err error) {
	cfg := n.cfg
	if n.ident, err = openIdentity(n.folder, cfg.ID, cfg.seams.KernelBoot, cfg.Moved); err != nil {
		return err
	}
	n.log = cfg.Logger.With("node", n.ident.id)
	n.ident.sayMoved(n.log, cfg.Moved)
	if n.book, err = openBook(n.folder); err != nil {
		return err
	}
	promises, err := openPromises(n.folder, n.ident)
	if err != nil {
		return err
	}
	n.clock = newMachineClock()
	if cfg.seams.Clock != nil {
		n.clock = cfg.seams.Clock
	}
	n.machine = fsm.NewMachine(fsm.MachineOptions{
		OnHalt:    func(err error) { n.fail(fmt.Errorf("replicated state: %w", err)) },
		OnApplied: n.applied,
		Version:   cfg.seams.Version,
		Defects:   cfg.seams.Defects.FSM,
	})
	n.raft = &raftHost{
		id: n.ident.id, log: n.log, timeout: cfg.Timing.RaftTimeout, machine: n.machine, wedged: make(chan string, 1),
		layer: func() raft.StreamLayer { return n.trans.Load().Raft(n.book.locate) },
	}
	n.metrics = newMetrics(n)
	n.raft.sawApply, n.raft.sawCommit = observed(n.metrics.apply), observed(n.metrics.commit)
	n.members = newMembership(n, promises)
	n.lease = newLeaseSide(leaseConfig{
		self: holder{
			nodeID: n.ident.id, boot: n.ident.boot(), nonce: n.ident.nonce, instanceID: n.ident.instanceID,
			zone: cfg.Zone, labels: cfg.Labels,
		},
		timing: cfg.Timing, clock: n.clock, log: n.log, machine: n.machine, lead: n.raft, call: caller(n),
		restartProved: n.restartProved, verify: n.raft.verify, defects: cfg.seams.Defects, seams: cfg.seams,
		observe: observer{renewed: observed(n.metrics.renew), stopped: observed(n.metrics.stop), overlapped: n.metrics.overlaps.Inc, gap: observed(n.metrics.gap)},
	})
	n.guard = newWarding(n)
	n.artifacts = newArtifacts(n)
	n.table = n.methods()
	return nil
}

// step is one part of a running node.
type step struct {
	name  string
	start func(ctx context.Context) error
	stop  func() error // nil: nothing to stop
}

// steps lists what a running node consists of, in the order of its start; it
// stops in the reverse order. What a part needs stands above it.
func (n *Node) steps(bg *background) []step {
	return []step{
		{"guard", n.guard.start, n.guard.stop},
		{"storage", n.openStorage, n.closeStorage},
		{"transport", n.bind, n.unbind},
		{"raft", func(context.Context) error { return n.raft.start() }, n.raft.stop},
		{"calls", func(context.Context) error { n.trans.Load().Serve(n.dispatch); return nil }, nil},
		{"gossip", func(context.Context) error { return nil }, n.members.stopGossip}, // started by membership
		{"background", func(context.Context) error {
			n.sayListening()
			bg.run("data folder", n.folder.watch)
			bg.run("address book", func(ctx context.Context) error { return n.book.keep(ctx, n.raft.present) })
			bg.run("lease side", n.lease.run)
			bg.run("leadership", n.lead)
			bg.run("membership", n.members.run)
			bg.run("readiness", n.watchReady)
			bg.run("guard", n.guard.run)
			return nil
		}, bg.stop},
	}
}

// Run starts the node and blocks until ctx ends, then leaves gracefully: the
// instance is marked draining, outstanding runs are waited for, leadership is
// handed over, the session closed, gossip told, and all stopped. Run then
// returns nil. It returns an error if the node could not start or could not go
// on: its storage failed (ErrStorage), or the state met an entry that only a
// newer version understands.
func (n *Node) Run(ctx context.Context) error {
	if !n.life.ran.CompareAndSwap(false, true) {
		return ErrAlreadyRun
	}
	// Leaving needs all parts, so they live on a context of their own.
	bg := newBackground(context.WithoutCancel(ctx), n.fail)
	steps := n.steps(bg)
	started := 0
	var err error
	for _, s := range steps {
		if err = s.start(ctx); err != nil {
			err = fmt.Errorf("start %s: %w", s.name, err)
			break
		}
		started++
	}
	killed := false
	if err == nil {
		n.life.running.Store(true)
		select {
		case <-ctx.Done():
			n.leave(ctx)
			err = n.Healthy() // a fault while leaving is one
		case err = <-n.life.failed:
			if killed = n.cfg.seams.killed(); !killed {
				n.log.Error("node can't go on", "err", err)
				n.quit()
			}
		case <-n.cfg.seams.Kill:
			killed = true
		}
	} else if ctx.Err() != nil {
		err = nil // told to stop while starting
	}
	n.closeNow()
	n.life.running.Store(false)
	n.setReady(errStopped)
	// Nobody is left to talk to, and a part that waits for a peer must not keep
	// the others from stopping.
	bg.cancel(errStopped)
	if n.trans.Load() != nil {
		_ = n.unbind()
	}
	for i := started - 1; i >= 0; i-- {
		if s := steps[i]; s.stop != nil {
			if serr := s.stop(); serr != nil && !killed {
				n.log.Warn("part did not stop cleanly", "part", s.name, "err", serr)
			}
		}
	}
	n.freeFolder(killed)
	return err
}

// sayListening is the first line of a node that runs. It is a member, and of use,
// later: that is told when it is so.
func (n *Node) sayListening() {
	msg, cluster := "node listens and looks for the others of its cluster", n.ident.clusterID()
	if cluster == "" {
		msg, cluster = "node listens and looks for a cluster to found or to join", "none yet"
	}
	n.log.Info(msg, "addr", n.Addr(), "cluster", cluster, "instance", n.ident.instanceID, "boot", n.ident.boot(), "dir", n.cfg.DataDir)
}

// freeFolder unlocks the folder once nothing uses it: a node made anew on it
// must not overtake work of this one that is stuck, nor a write.
func (n *Node) freeFolder(killed bool) {
	if s := n.raft.store; s != nil && !s.closed.Load() {
		n.log.Error("a write to the log does not end: the data folder stays locked until this process ends")
		return
	}
	idle := n.lease.slots.idle()
	select {
	case <-idle:
	default:
		if !killed {
			n.log.Warn("runs are outstanding: the data folder stays locked until they return", "runs", len(n.Runs()))
			go func() {
				<-idle
				n.folder.release()
			}()
			return
		}
	}
	n.folder.release()
}

// openStorage opens the log and the snapshots.
func (n *Node) openStorage(context.Context) (err error) {
	if n.raft.store, err = openStore(n.folder, n.ident.clusterID() != "", n.cfg.seams, n.fail); err != nil {
		return err
	}
	if n.raft.snaps, err = openSnapshots(n.folder, n.cfg.seams, n.log); err != nil {
		return errors.Join(err, n.raft.store.close())
	}
	return nil
}

func (n *Node) closeStorage() error { return n.raft.store.close() }

// bind listens, trying for as long as somebody else has the port.
func (n *Node) bind(ctx context.Context) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		t, err := transport.Listen(transport.Config{
			Network: n.cfg.Network, Bind: n.cfg.Bind, Advertise: n.cfg.Advertise, TLS: n.cfg.TLS, GossipKey: n.cfg.GossipKey,
			Insecure: n.cfg.Insecure, Identity: n.identity, Admit: n.admit, Refused: n.refused, Answered: n.cfg.seams.answered(), Logger: n.log,
		})
		if err == nil {
			n.trans.Store(t)
			n.book.learn(n.ident.id, t.AdvertiseAddr(), n.ident.boot())
			return nil
		}
		if !retryBind(err) {
			return err
		}
		n.setReady(fsm.Errorf(fsm.CodeNotReady, "can't listen on %s yet: %v", n.cfg.Bind, err))
		if n.members.rare.ok("bind") {
			n.log.Warn("can't listen, trying again until it works: stop what uses the address or set another bind address", "addr", n.cfg.Bind, "err", err)
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

func (n *Node) unbind() error { return n.trans.Load().Close() }

// applied runs on the apply goroutine after each entry.
func (n *Node) applied(o *fsm.Outcome) {
	if run := n.raft.run.Load(); run != nil {
		run.peers.poke()
	}
	n.lease.applied(o)
	n.metrics.applied(o)
	n.sayMarks(o)
}

// sayMarks logs what others do to this instance.
func (n *Node) sayMarks(o *fsm.Outcome) {
	for _, e := range o.Events {
		if e.Who.InstanceID != n.ident.instanceID || e.Note.By == n.ident.id {
			continue
		}
		switch e.Type {
		case fsm.EventInstanceDraining, fsm.EventInstanceUndrained, fsm.EventInstanceCordoned, fsm.EventInstanceUncordoned:
			n.log.Info("this instance was marked", "what", e.Type.String(), "by", e.Note.By, "reason", e.Note.Reason)
		}
	}
}

// fail stops the node with err; the first one counts. It never blocks.
func (n *Node) fail(err error) {
	n.life.mu.Lock()
	if n.life.failure == nil {
		n.life.failure = err
	}
	n.life.mu.Unlock()
	select {
	case n.life.failed <- err:
	default:
	}
}

// Healthy is nil while the process serves.
func (n *Node) Healthy() error {
	n.life.mu.Lock()
	defer n.life.mu.Unlock()
	switch {
	case n.life.failure != nil:
		return n.life.failure
	case !n.life.running.Load() && n.life.ran.Load() && errors.Is(n.life.unready, errStopped):
		return errStopped
	}
	return nil
}

// Addr is the bound host:port, "" until Run has bound it.
func (n *Node) Addr() string {
	if t := n.trans.Load(); t != nil {
		return t.Addr()
	}
	return ""
}

func (n *Node) advertised() string {
	if t := n.trans.Load(); t != nil {
		return t.AdvertiseAddr()
	}
	return ""
}

// ID is the node ID.
func (n *Node) ID() string { return n.ident.id }

// InstanceID names the instance that this start of the node is: host:pid:uuid.
func (n *Node) InstanceID() string { return n.ident.instanceID }

// Boot numbers the starts of the node: it grows with each.
func (n *Node) Boot() uint64 { return n.ident.boot() }

// Nonce is random and of this start; the node greets its peers with it.
func (n *Node) Nonce() string { return n.ident.nonce }

// ClusterID is empty until the node belongs to a cluster.
func (n *Node) ClusterID() string { return n.ident.clusterID() }

// DataDir is the data folder.
func (n *Node) DataDir() string { return n.cfg.DataDir }
