package jepsen_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/jepsen"
	"github.com/miwnode/miwnode/node"
)

// How a simulated cluster reaches into its nodes.

// errDead is what a node finds at each step after it died of one.
var errDead = errors.New("the process is dead")

// doom is where a node is to die.
type doom struct {
	jepsen.Doom
	left atomic.Int64
}

// boot is one start of a node as its steps see it, from before there is a node.
type boot struct {
	s    *simCluster
	sn   *simNode
	proc string
	dead atomic.Bool // of a step
	ails atomic.Bool // its disk has refused what it can't do without
}

// step is the seam of a node.
func (b *boot) step(step node.Step) error {
	if b.dead.Load() {
		return errDead
	}
	taken[step].passed.Add(1)
	if err := b.write(step); err != nil {
		return err
	}
	d := b.sn.doom.Load()
	if d == nil || d.Step != step || d.left.Add(-1) != 0 {
		return nil
	}
	if strings.HasSuffix(string(step), " answered") {
		time.Sleep(time.Microsecond) // the answer gets out first
	}
	if !b.die(d) || !d.Torn {
		return errDead
	}
	return node.ErrTorn
}

// die is kill -9 by the node's own hand: nothing of it acts after this, though its
// goroutines go on until they come to a step.
func (b *boot) die(d *doom) bool {
	if !b.dead.CompareAndSwap(false, true) {
		return false
	}
	s := b.s
	taken[d.Step].hit.Add(1)
	s.c.Kill(b.sn.index)
	s.r.Kill(b.proc, "crash")
	over := s.r.Fault("crash-at", []string{b.sn.name}, b.sn.name+" dies at "+string(d.Step))
	if before := b.sn.revived.Swap(&over); before != nil {
		(*before)() // somebody else has started it
	}
	s.wg.Go(func() { // its locks may be held here
		if l := s.lifeOf(b.sn.name); l != nil && l.proc == b.proc {
			s.end(b.sn, l, "crash")
		}
	})
	return true
}

// ailing is a disk in trouble.
type ailing struct {
	kind  string
	delay time.Duration
	err   error
	over  atomic.Pointer[func()] // notes that it hurts no more, once it has
}

// Where a slow disk is waited for: nobody waits for a lock of the node's there,
// which would hold up the time of the bubble. The log has a place of its own, delay.
var slowSteps = map[node.Step]bool{
	node.StepTermSave: true, node.StepVoteTermSave: true, node.StepVoteSave: true, node.StepLogCut: true,
	node.StepSnapshotCreate: true, node.StepSnapshotClose: true, node.StepAddressesWrite: true,
}

// What a disk refuses that is full: the journal has its room from the beginning.
var fullSteps = map[node.Step]bool{
	node.StepLogMove: true, node.StepLogCut: true, node.StepTermSave: true, node.StepVoteTermSave: true, node.StepVoteSave: true,
	node.StepSnapshotCreate: true, node.StepSnapshotClose: true, node.StepIdentityWrite: true, node.StepPromiseWrite: true, node.StepAddressesWrite: true,
}

// What a disk refuses besides that fails.
var failingSteps = map[node.Step]bool{node.StepLogSync: true, node.StepLogBegin: true}

// snapshotSteps may be refused and the node go on: it has its log.
var snapshotSteps = map[node.Step]bool{node.StepSnapshotCreate: true, node.StepSnapshotClose: true}

// write is what the disk has to say to a step.
func (b *boot) write(step node.Step) error {
	a := b.sn.disk.Load()
	switch {
	case a == nil:
	case a.kind == jepsen.DiskSlow:
		if slowSteps[step] {
			time.Sleep(a.delay)
		}
	case fullSteps[step], a.kind == jepsen.DiskFailing && failingSteps[step]:
		if !snapshotSteps[step] {
			b.refused(a, step)
		}
		return a.err
	}
	return nil
}

// delay is the time of one write to the log.
func (b *boot) delay(int) error {
	if a := b.sn.disk.Load(); a != nil && a.kind == jepsen.DiskSlow {
		time.Sleep(a.delay)
	}
	return nil
}

// refused notes that the disk refused what the node can't do without, the first
// time, and what the node makes of it.
func (b *boot) refused(a *ailing, step node.Step) {
	if !b.ails.CompareAndSwap(false, true) {
		return
	}
	s := b.s
	over := s.r.Fault(a.kind, []string{b.sn.name}, fmt.Sprintf("%s: %v at %s", b.sn.name, a.err, step))
	if before := a.over.Swap(&over); before != nil {
		(*before)()
	}
	refusals.Add(1)
	change := s.r.Trouble(jepsen.Trouble{Node: b.sn.name, Proc: b.proc, What: a.err.Error()})
	s.wg.Go(func() {
		l := s.lifeOf(b.sn.name)
		if l == nil || l.proc != b.proc { // New has said so, or it was killed
			change(func(t *jepsen.Trouble) { t.Said, t.Saying, t.Ended = t.At, t.What, t.At })
			return
		}
		t := time.NewTicker(20 * time.Millisecond)
		defer t.Stop()
		for said := false; !l.gone(); {
			if err := l.n.Healthy(); err != nil && !said {
				said = true
				now := s.r.Now()
				change(func(t *jepsen.Trouble) { t.Said, t.Saying = now, err.Error() })
			}
			select {
			case <-t.C:
			case <-l.done:
			case <-l.dead:
				<-l.done
			}
		}
		s.mu.Lock()
		killed := l.killed
		s.mu.Unlock()
		now := s.r.Now()
		change(func(t *jepsen.Trouble) { t.Ended, t.Killed = now, killed })
	})
}

// Ail implements jepsen.Insides.
func (s *simCluster) Ail(name, ailment string, delay time.Duration) {
	a := &ailing{kind: ailment, delay: delay, err: syscall.EIO}
	if ailment == jepsen.DiskFull {
		a.err = syscall.ENOSPC
	}
	s.node(name).disk.Store(a)
}

// Cure implements jepsen.Insides.
func (s *simCluster) Cure(name string) error {
	a := s.node(name).disk.Swap(nil)
	if a == nil {
		return nil
	}
	over := func() {
		if over := a.over.Swap(nil); over != nil {
			(*over)()
		}
	}
	s.mu.Lock()
	l, stops := s.nodes[name].life, s.nodes[name].boot.ails.Load()
	s.mu.Unlock()
	if l != nil && stops {
		s.wg.Go(func() { // and a supervisor starts it again
			<-l.dead
			if err := s.start(name, false, over); err != nil {
				s.r.Notef(name, "%v", err)
			}
		})
		return nil
	}
	return s.start(name, false, over)
}

// Doom implements jepsen.Insides.
func (s *simCluster) Doom(name string, d jepsen.Doom) {
	armed := &doom{Doom: d}
	armed.left.Store(int64(d.Nth))
	s.node(name).doom.Store(armed)
}

// DoomStart implements jepsen.Insides.
func (s *simCluster) DoomStart(name string, d jepsen.Doom) error {
	started := s.r.Fault("crash-starting", []string{name}, name+" is killed and started, to die at "+string(d.Step))
	defer started()
	s.Crash(name)
	s.Doom(name, d)
	return s.Start(name, false)
}

// Revive implements jepsen.Insides.
func (s *simCluster) Revive(name string) error {
	s.node(name).doom.Store(nil)
	return s.start(name, false, func() {
		if over := s.node(name).revived.Swap(nil); over != nil {
			(*over)()
		}
	})
}

// TestSimFounding has each node in turn die at each step of the founding of its
// cluster. Once it is started again there is one cluster, and all are of it.
func TestSimFounding(t *testing.T) {
	plainOnly(t)
	for _, c := range []struct {
		nth   int
		steps []node.Step
	}{
		{1, []node.Step{
			node.StepIdentityWrite, node.StepIdentityRenamed, node.StepIdentityWritten, node.StepPromiseWrite, node.StepPromiseRenamed, node.StepPromiseWritten,
			node.StepPromiseAnswer, node.StepPromiseAnswered, node.StepLogBegin, node.StepLogBegun, node.StepLogWrite, node.StepLogSync, node.StepLogSynced,
			node.StepTermSave, node.StepTermSaved, node.StepVoteTermSave, node.StepVoteTermSaved, node.StepVoteSave, node.StepVoteSaved,
			node.StepVoteAnswer, node.StepVoteAnswered, node.StepAppendAnswer, node.StepAppendAnswered, node.StepAddressesWrite,
			node.StepCommandsPropose, node.StepCommandsCommitted, node.StepSessionOpened,
		}},
		{2, []node.Step{
			node.StepIdentityWrite, node.StepIdentityRenamed, node.StepIdentityWritten, node.StepLogWrite, node.StepLogSync, node.StepLogSynced,
			node.StepTermSave, node.StepTermSaved, node.StepAppendAnswered,
		}},
		{3, []node.Step{node.StepIdentityWrite, node.StepIdentityRenamed, node.StepLogSync, node.StepTermSaved}},
	} {
		for _, step := range c.steps {
			t.Run(fmt.Sprintf("%s_%d", strings.ReplaceAll(string(step), " ", "_"), c.nth), func(t *testing.T) {
				t.Parallel()
				deaths := 0
				for i := range 3 {
					synctest.Test(t, func(t *testing.T) {
						name := fmt.Sprintf("n%d", i+1)
						s := newSim(t, simConfig{
							seed: int64(c.nth), name: "founding", singletons: []string{"solo1"}, handles: []string{"raw1"}, restless: -1,
							dooms: map[string]jepsen.Doom{name: {Step: step, Nth: c.nth, Torn: i == 0 && step == node.StepLogSync}},
						})
						time.Sleep(4 * time.Second)
						if s.node(name).revived.Load() != nil {
							deaths++
						}
						if err := s.Revive(name); err != nil {
							t.Error(err)
						}
						time.Sleep(time.Second)
						if !s.ready(30 * time.Second) {
							t.Errorf("%s died at %q: not ready 30 s after it was started again", name, step)
						}
						h, extra := s.finish()
						judge(t, h, nil, extra...)
					})
				}
				if deaths == 0 {
					t.Errorf("no node died at %q: the test shows nothing", step)
				}
			})
		}
	}
}

// stepCount counts over all seeds how often each step was taken, and how often a node
// died at it.
type stepCount struct{ passed, hit atomic.Int64 }

var taken = func() map[node.Step]*stepCount {
	m := map[node.Step]*stepCount{}
	for _, step := range node.Steps() {
		m[step] = &stepCount{}
	}
	return m
}()

// refusals counts over all seeds the processes that were refused a write.
var refusals atomic.Int64

// leastRefusals is how many there must be in a run of all seeds.
const leastRefusals = 60

// leastHit is at how many of the steps nodes must have died in a run of all seeds:
// those that belong to the founding have a test of their own.
const leastHit = 40

// judgeSteps fails a run of many seeds in which steps were never taken or hit.
func judgeSteps(t *testing.T) {
	t.Helper()
	var never, unhit []string
	for _, step := range node.Steps() {
		c := taken[step]
		t.Logf("%-22s taken %7d times, died at %d times", step, c.passed.Load(), c.hit.Load())
		if c.passed.Load() == 0 {
			never = append(never, string(step))
		}
		if c.hit.Load() == 0 {
			unhit = append(unhit, string(step))
		}
	}
	if n := refusals.Load(); n < leastRefusals {
		t.Errorf("%d processes were refused a write, want %d at least", n, leastRefusals)
	}
	if len(never) > 0 {
		t.Errorf("never taken: %q", never)
	}
	if n := len(node.Steps()) - len(unhit); n < leastHit {
		t.Errorf("nodes died at %d steps, want %d at least; at none of %q", n, leastHit, unhit)
	}
}
