package node_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

func TestNode_Status(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Seed: 19, Edit: func(i int, cfg *node.Config) {
			cfg.Zone, cfg.APIAddr, cfg.Labels = string(rune('x'+i)), "api", map[string]string{"k": "v"}
		}})
		if s := c.Node(0).Status(); s.Ready || s.ReadyReason == "" || s.NodeID != c.Node(0).ID() {
			t.Errorf("before it runs: %+v", s)
		}
		c.WaitReady()
		leader := c.WaitLeader()
		for i := range 3 {
			if _, err := c.Node(i).Session(c.Context(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		c.Converge()
		time.Sleep(2 * time.Second)
		for i := range 3 {
			s := c.Node(i).Status()
			role := node.RoleFollower
			if i == leader {
				role = node.RoleLeader
			}
			want := node.Status{
				NodeID: c.Node(i).ID(), InstanceID: c.Node(i).InstanceID(), Boot: 1, ClusterID: c.Node(0).ClusterID(), Generation: 1, Version: 3,
				Role: role, LeaderID: c.Node(leader).ID(), Term: s.Term, CommitIndex: s.CommitIndex, AppliedIndex: s.CommitIndex,
				Revision: c.Node(leader).View().Revision(), Ready: true, Quorum: node.Quorum{Voters: 3, Alive: 3, OK: true},
			}
			if s != want {
				t.Errorf("node %d: got  %+v\nwant %+v", i, s, want)
			}
			if s.Term == 0 || s.CommitIndex < s.Revision {
				t.Errorf("node %d: term %d, commit %d, revision %d", i, s.Term, s.CommitIndex, s.Revision)
			}
			members := c.Node(i).Members()
			if len(members) != 3 {
				t.Fatalf("node %d knows %d members", i, len(members))
			}
			for _, m := range members {
				j := c.Index(m.NodeID)
				if m.Addr != c.Node(j).Addr() || m.APIAddr != "api" || m.Zone != string(rune('x'+j)) || m.Labels["k"] != "v" || !m.Voter ||
					m.Leader != (j == leader) || m.Gossip != "alive" || m.Version != fsm.Version || m.LastContact > time.Second {
					t.Errorf("node %d knows of node %d: %+v", i, j, m)
				}
			}
		}
		// A dead follower is noticed by the leader at once, by gossip soon.
		victim := (leader + 1) % 3
		c.Crash(victim)
		time.Sleep(time.Second)
		if q := c.Node(leader).Status().Quorum; q != (node.Quorum{Voters: 3, Alive: 2, OK: true}) {
			t.Errorf("a second later the leader sees %+v", q)
		}
		c.Until(10*time.Second, "gossip to notice", func() bool {
			for _, m := range c.Node((leader + 2) % 3).Members() {
				if m.NodeID == c.Node(victim).ID() {
					return m.Gossip == "dead"
				}
			}
			return false
		})
	})
}

// The metrics have the names of the contract.
func TestNode_Metrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Nodes: 1, Seed: 20})
		c.WaitReady()
		acquire(t, c, 0, "k")
		time.Sleep(5 * time.Second)
		c.Crash(0)
		c.Start(0)
		c.WaitReady()
		token := acquire(t, c, 0, "k")
		// Another holder waits; its run follows after 20 ms.
		n := c.Node(0)
		session, err := n.Session(c.Context(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		defer n.Claim("k", "next")()
		run, err := n.Begin(c.Context(time.Second), "k", token)
		if err != nil {
			t.Fatal(err)
		}
		n.Started(run)
		submit(t, c, 0, &fsm.Acquire{Key: "k", SessionId: session, Holder: "next", Wait: true})
		n.Finished(run)
		time.Sleep(20 * time.Millisecond)
		submit(t, c, 0, &fsm.Release{Key: "k", SessionId: session, Token: token})
		n.Returned(run)
		next, ok := n.View().Lease("k")
		if !ok || next.Token <= token {
			t.Fatalf("not passed on: %+v", next)
		}
		if run, err = n.Begin(c.Context(time.Second), "k", next.Token); err != nil {
			t.Fatal(err)
		}
		n.Started(run)
		time.Sleep(5 * time.Second)
		n.Finished(run)
		n.Returned(run)
		families, err := c.Node(0).Metrics().Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]float64)
		for _, f := range families {
			for _, m := range f.Metric {
				switch {
				case m.Gauge != nil:
					got[f.GetName()] += m.Gauge.GetValue()
				case m.Counter != nil:
					got[f.GetName()] += m.Counter.GetValue()
				case m.Histogram != nil:
					got[f.GetName()] += float64(m.Histogram.GetSampleCount())
					got[f.GetName()+" sum"] += m.Histogram.GetSampleSum()
				}
			}
		}
		for name, want := range map[string]float64{
			"miw_lease_held": 1, "miw_lease_grants_total": 3, "miw_lease_ended_total": 2, "miw_handover_gap_seconds": 1, "miw_overlap_total": 0,
			"miw_worker_stop_seconds": 0, "miw_stuck": 0, "miw_quorum_ok": 1, "miw_is_leader": 1, "miw_members": 1,
		} {
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("%s is %v (there: %t), want %v", name, v, ok, want)
			}
		}
		for _, name := range []string{"miw_renew_age_seconds", "miw_renew_latency_seconds", "miw_revision", "miw_apply_seconds", "miw_commit_seconds", "miw_log_bytes"} {
			if got[name] <= 0 {
				t.Errorf("%s is %v", name, got[name])
			}
		}
		if sum := got["miw_handover_gap_seconds sum"]; sum < 0.020 || sum > 0.030 {
			t.Errorf("the gap is %vs, want 20ms and the commit", sum)
		}
		if v, ok := got["miw_observer_uncertainty_seconds"]; !ok || v > 0.001 {
			t.Errorf("miw_observer_uncertainty_seconds is %v (there: %t), want next to nothing on one node", v, ok)
		}
	})
}
