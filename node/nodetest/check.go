package nodetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
)

// linger is how long the goroutines of a stopped node may take to end.
const linger = 30 * time.Second

// end stops all nodes and checks what must hold at the end of every test.
func (c *Cluster) end() {
	c.Net.HealAll()
	for i := range c.Len() {
		c.Net.Resume(c.Host(i))
		c.Net.Rejoin(c.Host(i))
		c.Clock(i).Thaw()
	}
	if !c.cfg.Unchecked {
		c.Check()
	}
	for i := range c.Len() {
		c.Crash(i)
	}
	c.Net.Close()
	// What a stopped node leaves behind waits for timers of its own, at most;
	// whatever is still there after this, the bubble reports.
	time.Sleep(linger)
}

// Check fails the test if an invariant is broken: two nodes with different
// states at one revision, a key with two holders, a token that did not grow, runs of one
// key that overlapped.
func (c *Cluster) Check() {
	c.t.Helper()
	type seen struct {
		node int
		hash [32]byte
	}
	states := make(map[uint64]seen)
	for i := range c.Len() {
		n := c.Node(i)
		if n == nil {
			continue
		}
		v := n.View()
		hash := v.Hash()
		if other, ok := states[v.Revision()]; ok && other.hash != hash {
			c.t.Errorf("nodes %d and %d have different states at revision %d", other.node, i, v.Revision())
		}
		states[v.Revision()] = seen{i, hash}
		c.checkTokens(i, v)
		c.checkOverlaps(i)
	}
}

func (c *Cluster) checkOverlaps(i int) {
	c.t.Helper()
	if n := c.Overlaps(i); n != 0 {
		c.t.Errorf("node %d saw %v pairs of runs of one key overlap", i, n)
	}
}

// Overlaps is how many overlaps of runs the newest start of node i has found
// while it led.
func (c *Cluster) Overlaps(i int) float64 {
	c.t.Helper()
	families, err := c.Node(i).Metrics().Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "miw_overlap_total" {
			return f.Metric[0].Counter.GetValue()
		}
	}
	c.t.Fatalf("node %d has no metric of overlaps", i)
	return 0
}

func (c *Cluster) checkTokens(i int, v *fsm.View) {
	c.t.Helper()
	events, ok := v.Events(fsm.EventID{})
	if !ok {
		return // the beginning has left the ring
	}
	var last uint64
	open := make(map[string]uint64)
	for e := range events {
		switch e.Type {
		case fsm.EventLeaseGranted:
			if e.Token <= last {
				c.t.Errorf("node %d: token %d of %q granted after %d", i, e.Token, e.Key, last)
			}
			if token, held := open[e.Key]; held {
				c.t.Errorf("node %d: %q granted as %d while held as %d", i, e.Key, e.Token, token)
			}
			last, open[e.Key] = e.Token, e.Token
		case fsm.EventLeaseEnded:
			if open[e.Key] != e.Token {
				c.t.Errorf("node %d: end of token %d of %q, held is %d", i, e.Token, e.Key, open[e.Key])
			}
			delete(open, e.Key)
		}
	}
	for l := range v.Leases("", "") {
		if l.State != fsm.Barred && open[l.Key] != l.Token {
			c.t.Errorf("node %d: %q is held as %d, by the events as %d", i, l.Key, l.Token, open[l.Key])
		}
	}
}

// Describe tells what each node knows, for messages.
func (c *Cluster) Describe() string {
	var b strings.Builder
	for i := range c.Len() {
		if !c.Running(i) {
			fmt.Fprintf(&b, "node %d: not running\n", i)
			continue
		}
		s := c.Node(i).Status()
		fmt.Fprintf(&b, "node %d %s: %s, term %d, leader %q, revision %d, commit %d, voters %d alive %d",
			i, s.NodeID, s.Role, s.Term, s.LeaderID, s.Revision, s.CommitIndex, s.Quorum.Voters, s.Quorum.Alive)
		if s.Role == node.RoleNone || !s.Ready {
			fmt.Fprintf(&b, ", not ready: %s", s.ReadyReason)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
