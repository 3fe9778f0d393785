package jepsen_test

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/jepsen"
)

// What goes on in one life of a simulated node: its work, and who watches it.

// singleton runs key's work under a Runner, as an application does. It runs in a bubble.
func (s *simCluster) singleton(sn *simNode, l *simLife, key string) {
	run := coord.NewRunner(l.n, key, func(ctx context.Context, lease *coord.Lease) error {
		return s.work.Do(ctx, jepsen.Grant{Proc: l.proc, Node: sn.name, Key: key, Token: lease.Token(), Valid: lease.Valid, Dead: l.dead})
	}, func(c *coord.RunnerConfig) {
		c.Stuck.Exit = func(int) {
			s.exit(sn, l, key)
		}
	})
	s.wg.Go(func() {
		ctx, cancel := context.WithCancel(s.ctx)
		defer cancel()
		go func() {
			select {
			case <-l.dead:
				cancel()
			case <-ctx.Done():
			}
		}()
		for ctx.Err() == nil {
			_ = run.Run(ctx) // a drain ends it; once that is taken back, it goes on
			for l.n.Draining() && ctx.Err() == nil {
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// handles takes leases of keys by hand on one life of a node.
func (s *simCluster) handles(sn *simNode, l *simLife, keys []string) {
	s.wg.Go(func() {
		s.work.Handles(s.ctx, l.n, l.proc, sn.name, keys, l.dead, func() { s.exit(sn, l, "a handle") })
	})
}

// operator drains, cordons, revokes and transfers as the seed says.
func (s *simCluster) operator(keys []string) *jepsen.Operator {
	return &jepsen.Operator{
		R: s.r, Rng: rand.New(rand.NewPCG(uint64(s.cfg.seed), 0x6f70)), Keys: keys, Nodes: s.names, Submit: s.submit,
		View: func() *fsm.View {
			if l := s.any(); l != nil {
				return l.n.View()
			}
			return nil
		},
		InstanceOf: func(name string) string {
			if l := s.lifeOf(name); l != nil {
				return l.n.InstanceID()
			}
			return ""
		},
	}
}

// any is the life of a node that answers, nil if none does.
func (s *simCluster) any() *simLife {
	for _, name := range s.names {
		if l := s.lifeOf(name); l != nil && l.n.ReadyErr() == nil && !s.paused(name) {
			return l
		}
	}
	return nil
}

// submit commits an operator's command through such a node.
func (s *simCluster) submit(ctx context.Context, op fsm.Op) error {
	l := s.any()
	if l == nil {
		return fsm.ErrNotReady
	}
	r, err := l.n.Submit(ctx, op)
	if err != nil {
		return err
	}
	return fsm.ResultErr(r)
}

// follow reads the events of one life, going on where the node's earlier life
// was, until it ends.
func (s *simCluster) follow(sn *simNode, l *simLife) {
	wake, stop := l.n.Watch(fsm.AllTopic)
	defer stop()
	resync := false
	for {
		s.mu.Lock()
		since := s.last[sn.name]
		s.mu.Unlock()
		v := l.n.View()
		events, ok := v.Events(since)
		if !ok {
			resync = true
			since = v.OldestEvent()
			events, _ = v.Events(since)
		}
		if v.Revision()%32 == 0 { // so that copies are compared at one revision while they work
			s.sample(sn.name, l, v)
		}
		if !s.r.Dead(l.proc) {
			for e := range events {
				seen := jepsen.Event{
					Revision: e.ID.Revision, Position: e.ID.Position, Type: e.Type.String(), Key: e.Key, Token: e.Token,
					Reason: e.EndReason.String(), Instance: e.Who.InstanceID, Reader: sn.name, Resync: resync,
				}
				if w := e.Worker; w != nil {
					seen.Worker = &jepsen.WorkerSeen{Name: w.Name, State: w.State.String(), StartRequested: w.StartRequested}
					if w.Error != nil {
						seen.Worker.Error = w.Error.Type
					}
				}
				if e.Note != nil {
					seen.By = e.Note.By
				}
				s.r.Event(seen)
				since, resync = e.ID, false
			}
			s.mu.Lock()
			s.last[sn.name] = since
			s.mu.Unlock()
		}
		select {
		case <-wake:
		case <-l.dead:
			return
		case <-s.ctx.Done():
			return
		}
	}
}

// sampleEvery notes the state of a life's copy now and then.
func (s *simCluster) sampleEvery(sn *simNode, l *simLife, d time.Duration) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.sample(sn.name, l, l.n.View())
		case <-l.dead:
			return
		case <-s.ctx.Done():
			return
		}
	}
}
