package node_test

import (
	"testing"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
	"github.com/miwnode/miwnode/node/nodetest"
)

// What an operator drained or cordoned stays so when its session is lost and
// another is opened, and nobody is granted anything in between.
func TestSession_MarksOutliveIt(t *testing.T) {
	const reason = "its disk fails"
	for _, tc := range []struct {
		name    string
		before  []fsmpb.Mark // through the leader, while all is well
		cutOff  []fsmpb.Mark // while the node hears nothing of it
		suspend bool         // the machine sleeps; else the node is cut off until its session has expired
		drained bool
		cordon  bool
	}{
		{name: "drained and cut off", before: []fsmpb.Mark{fsm.MarkDrain}, drained: true},
		{name: "cordoned and cut off", before: []fsmpb.Mark{fsm.MarkCordon}, cordon: true},
		{name: "drained and asleep", before: []fsmpb.Mark{fsm.MarkDrain}, suspend: true, drained: true},
		{name: "marked while it was cut off", cutOff: []fsmpb.Mark{fsm.MarkDrain, fsm.MarkCordon}, drained: true, cordon: true},
		{name: "drained, and undrained while it was cut off", before: []fsmpb.Mark{fsm.MarkDrain}, cutOff: []fsmpb.Mark{fsm.MarkUndrain}},
		{name: "never marked"},
	} {
		bubble(t, tc.name, nodetest.Config{Seed: 7}, func(t *testing.T, c *nodetest.Cluster) {
			c.WaitReady()
			leader := c.WaitLeader()
			victim := (leader + 1) % 3
			id := c.Node(victim).InstanceID()
			mark := func(m fsmpb.Mark) {
				res, err := c.Node(leader).Submit(c.Context(2*time.Second), &fsm.MarkInstance{InstanceId: id, Mark: m, By: "op", Reason: reason})
				if err == nil {
					err = fsm.ResultErr(res)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			session, err := c.Node(victim).Session(c.Context(2 * time.Second))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range tc.before {
				mark(m)
			}
			lost := func() bool { _, live := c.Node(leader).View().Session(session); return !live }
			if tc.suspend {
				c.Clock(victim).Suspend(30 * time.Second)
			} else {
				c.Isolate(victim)
				for _, m := range tc.cutOff {
					mark(m)
				}
				c.Until(30*time.Second, "its session has expired", lost)
				c.Rejoin(victim)
			}
			var next string
			c.Until(30*time.Second, "another session", func() bool {
				next, err = c.Node(victim).Session(c.Context(time.Second))
				return err == nil && next != session
			})
			// Whoever gets to use the session finds it marked.
			s, live := c.Node(victim).View().Session(next)
			if !live {
				t.Fatal("the new session is not live")
			}
			if s.Draining() != tc.drained || s.Cordoned() != tc.cordon {
				t.Errorf("draining %t, cordoned %t; want %t, %t", s.Draining(), s.Cordoned(), tc.drained, tc.cordon)
			}
			for _, m := range []*fsm.Mark{s.Drain, s.Cordon} {
				if m != nil && (m.By != "op" || m.Reason != reason) {
					t.Errorf("the mark is by %q because %q", m.By, m.Reason)
				}
			}
		})
	}
}
