package nodetest

import (
	"context"
	"time"

	"github.com/miwnode/miwnode/node"
)

// poll is how often waits look, in the bubble's time.
const poll = 5 * time.Millisecond

// Until waits until ok, and fails the test if that takes longer than limit.
func (c *Cluster) Until(limit time.Duration, what string, ok func() bool) {
	c.t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(poll) {
		if time.Now().After(end) {
			c.t.Fatalf("not within %v: %s\n%s", limit, what, c.Describe())
		}
	}
}

// Leader is the number of the node that leads, in the newest term if several
// think so; -1 for none.
func (c *Cluster) Leader() int {
	leader, term := -1, uint64(0)
	for i := range c.Len() {
		if !c.Running(i) {
			continue
		}
		if s := c.Node(i).Status(); s.Role == node.RoleLeader && s.Term > term {
			leader, term = i, s.Term
		}
	}
	return leader
}

// WaitLeader waits for a leader that serves, and returns its number.
func (c *Cluster) WaitLeader() int {
	c.t.Helper()
	leader := -1
	c.Until(DefaultWait, "a leader", func() bool {
		leader = c.Leader()
		return leader >= 0 && c.Node(leader).ReadyErr() == nil
	})
	return leader
}

// WaitReady waits until the nodes, or all that run, are ready.
func (c *Cluster) WaitReady(nodes ...int) {
	c.t.Helper()
	if len(nodes) == 0 {
		for i := range c.Len() {
			if c.Running(i) {
				nodes = append(nodes, i)
			}
		}
	}
	for _, i := range nodes {
		c.Until(DefaultWait, "a ready node", func() bool { return c.Node(i).ReadyErr() == nil })
	}
}

// WaitVoters waits until the leader's configuration has that many voters.
func (c *Cluster) WaitVoters(voters int) {
	c.t.Helper()
	c.Until(DefaultWait, "the voters", func() bool {
		l := c.Leader()
		return l >= 0 && c.Node(l).Status().Quorum.Voters == voters
	})
}

// WaitRevision waits until node i has the revision.
func (c *Cluster) WaitRevision(i int, revision uint64) {
	c.t.Helper()
	c.Until(DefaultWait, "a revision", func() bool { return c.Node(i).View().Revision() >= revision })
}

// Converge waits until all running nodes have the same revision as a leader that serves.
func (c *Cluster) Converge() {
	c.t.Helper()
	c.Until(DefaultWait, "equal revisions", func() bool {
		l := c.Leader()
		if l < 0 {
			return false
		}
		want := c.Node(l).View().Revision()
		for i := range c.Len() {
			if c.Running(i) && c.Node(i).View().Revision() != want {
				return false
			}
		}
		return true
	})
}

// Context ends after d of the bubble's time, or with the test.
func (c *Cluster) Context(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	c.t.Cleanup(cancel)
	return ctx
}
