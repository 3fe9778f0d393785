package miwtest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miwnode/miwnode/node/nodetest"
)

// DefaultWait is how long, in the bubble's time, a wait may take before it
// fails the test. It is more than the longest take-over: an election, a TTL and
// a commit.
const DefaultWait = nodetest.DefaultWait

// Until waits until ok, and fails the test if that takes longer than limit.
func (c *Cluster) Until(limit time.Duration, what string, ok func() bool) {
	c.t.Helper()
	c.inner.Until(limit, what, ok)
}

// Owner is the node that runs the work of a key just now, -1 for none. Of a
// lease of coord.Acquire it is the node that has it. The key of a workload is
// GROUP/WORKLOAD.
func (c *Cluster) Owner(key string) int { return c.runs.running(key) }

// WaitOwner waits until one of the nodes, or any if none is named, runs the
// work of the key, and returns which.
func (c *Cluster) WaitOwner(key string, nodes ...int) int {
	c.t.Helper()
	what, owner := fmt.Sprintf("a run of %q", key), -1
	if len(nodes) > 0 {
		what += fmt.Sprint(" on node ", strings.Trim(fmt.Sprint(nodes), "[]"))
	}
	c.Until(DefaultWait, what, func() bool {
		owner = c.Owner(key)
		return owner >= 0 && (len(nodes) == 0 || slices.Contains(nodes, owner))
	})
	return owner
}

// WaitOwned waits until each of the keys is run by some node.
func (c *Cluster) WaitOwned(keys ...string) {
	c.t.Helper()
	for _, key := range keys {
		c.WaitOwner(key)
	}
}

// Keys returns the keys whose work node i runs just now, sorted.
func (c *Cluster) Keys(i int) []string { return c.runs.keys(i) }

// WaitIdle waits until node i runs nothing.
func (c *Cluster) WaitIdle(i int) {
	c.t.Helper()
	c.Until(2*DefaultWait, fmt.Sprintf("no run on node %d", i), func() bool { return len(c.Keys(i)) == 0 })
}

// Runs returns the runs of a key so far, in the order of their starts.
func (c *Cluster) Runs(key string) []Span { return c.runs.list(key) }

// Leader is the number of raft's leader, -1 for none.
func (c *Cluster) Leader() int { return c.inner.Leader() }

// WaitReady waits until the nodes, or all that run and are not paused, are ready.
func (c *Cluster) WaitReady(nodes ...int) {
	c.t.Helper()
	if len(nodes) == 0 {
		for i := range c.Len() {
			if c.awake(i) {
				nodes = append(nodes, i)
			}
		}
	}
	c.inner.WaitReady(nodes...)
}

// awake tells whether node i runs and is not paused.
func (c *Cluster) awake(i int) bool {
	if !c.Running(i) {
		return false
	}
	paused, _ := c.Node(i).standsStill()
	return !paused
}
