package jepsen_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/jepsen"
	"github.com/miwnode/miwnode/node"
)

// TestDefect_Lease switches on bugs in the rules by which a lease begins, is
// trusted and ends.
func TestDefect_Lease(t *testing.T) {
	if raceEnabled {
		t.Skip("planted bugs are hunted without the race detector")
	}
	solo := []string{"solo1", "solo2", "solo3"}
	for _, d := range []struct {
		name    string
		defects node.Defects
		faults  []string
		want    string
	}{
		{"grant to a dead session", node.Defects{FSM: fsm.Defects{DeadGrant: true}}, []string{"crash", "cut"}, jepsen.CheckTakeOver},
		{"a former leader goes on with its old deadlines", node.Defects{OldDeadlines: true}, []string{"step-down"}, jepsen.CheckOverlap},
		{"a drain forgets a run", node.Defects{DrainForgets: true}, []string{"restart"}, jepsen.CheckOverlap},
	} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			hunt(t, simConfig{name: d.name, defect: d.name, defects: d.defects, singletons: solo}, only(d.faults...), 20, d.want)
		})
	}
	for _, d := range []drill{
		{name: "renewal counted before its revision is local", defects: node.Defects{UncoveredAnswers: true}, schedule: laggingHolder},
		{name: "trust from the sending of an acquire", defects: node.Defects{AcquireTrusts: true}, schedule: acquiringHolder, edit: renewSeldom},
		{name: "restart proof of a copied folder", defects: node.Defects{CopyProof: true}, schedule: copiedFolder},
	} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			d.want = jepsen.CheckOverlap
			directed(t, d)
		})
	}
}

// follower is a node that holds key and does not lead: whoever leads is made to
// hand that over.
func (s *simCluster) follower(t *testing.T, key string) string {
	a := s.holder(key)
	if a == s.Leader() {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := s.lifeOf(a).n.StepDown(ctx, ""); err != nil {
			t.Errorf("step down: %v", err)
		}
		s.leads(a)
	}
	time.Sleep(2 * time.Second) // everybody has heard of it, and renewed
	if b := s.holder(key); b != a || s.Leader() == a {
		t.Errorf("%s holds %s and %s leads: %s was to hold it, and not to lead", b, key, s.Leader(), a)
	}
	return a
}

// others are the nodes but those.
func (s *simCluster) others(but ...string) []string {
	return slices.DeleteFunc(slices.Clone(s.names), func(n string) bool { return slices.Contains(but, n) })
}

// laggingHolder revokes a lease whose holder's disk hangs: its keep-alives are
// answered, but its copy has not heard of the revoke when the key is freed.
func laggingHolder(t *testing.T, s *simCluster) {
	a := s.follower(t, "solo1")
	l := s.lifeOf(s.Leader())
	lease, _ := l.n.View().Lease("solo1")
	healed := s.r.Fault("slow-disk", []string{a}, a+" can't write to its log")
	p := &park{node: a, until: make(chan struct{})}
	s.parked.Store(p)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := l.n.Submit(ctx, &fsm.Revoke{Key: "solo1", Token: lease.Token, By: "operator"})
	s.r.Notef(a, "token %d of solo1 is revoked: %v", lease.Token, err)
	time.Sleep(8 * time.Second)
	s.parked.Store(nil)
	close(p.until)
	healed()
}

// renewSeldom has a holder renew so seldom that what it asks for between two
// keep-alives is more than the margin later than the first.
func renewSeldom(cfg *simConfig) { cfg.timing.RenewInterval = 2 * time.Second }

// acquiringHolder cuts off a holder that acquires one key after the other.
func acquiringHolder(t *testing.T, s *simCluster) {
	a := s.follower(t, "solo1")
	n := s.lifeOf(a).n
	sess, _ := n.View().NodeSession(a)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	// Each try ends at another moment between two keep-alives.
	until := s.r.Now() + 4*time.Second + time.Duration(s.cfg.seed)*350*time.Millisecond
	for i := 0; s.r.Now() < until; i++ {
		_, _ = n.Submit(ctx, &fsm.Acquire{Key: fmt.Sprintf("other/%d", i), SessionId: sess.ID, Holder: "by hand"}) // given back by the node
		time.Sleep(50 * time.Millisecond)
	}
	s.net.Isolate(a)
	healed := s.r.Fault("cut", []string{a}, "cut "+a)
	time.Sleep(8 * time.Second)
	s.net.Rejoin(a)
	healed()
}

// copiedFolder copies the folder of a holder that goes on, and starts the copy
// on the same machine, as somebody does who restores a backup too early.
func copiedFolder(t *testing.T, s *simCluster) {
	a := s.follower(t, "solo1")
	i := s.node(a).index
	dir := filepath.Join(filepath.Dir(s.c.Dir(i)), "copy")
	synctest.Wait() // nothing is being written
	if err := os.CopyFS(dir, os.DirFS(s.c.Dir(i))); err != nil {
		t.Errorf("copy: %v", err)
		return
	}
	kill := make(chan struct{})
	host := s.net.Host("copy")
	cfg := s.c.Config(i)
	cfg.DataDir, cfg.Network, cfg.Bind, cfg.Moved = dir, host, host.IP()+":7400", true
	node.SetSeams(&cfg, node.Seams{Clock: node.NewTestClock(1, 0), Kill: kill, KernelBoot: "kernel-of-" + s.c.Host(i), Defects: s.cfg.defects})
	n, err := node.New(cfg)
	if err != nil {
		t.Errorf("start the copy: %v", err)
		return
	}
	healed := s.r.Fault("copy", []string{a}, "a copy of the folder of "+a+" is started")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = n.Run(context.Background())
	}()
	time.Sleep(10 * time.Second)
	close(kill)
	<-done
	s.Crash(a) // who has been shut out for good
	healed()
}
