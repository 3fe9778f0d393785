// Package nodetest runs clusters of real nodes in one test: real raft, real
// files, on a network in memory, inside a testing/synctest bubble.
//
// # Overview
//
// New starts a cluster on hosts n1, n2, … of a memnet network. Nodes are named
// by their number, from 0. They can be crashed (as kill -9 does it), stopped
// gracefully, restarted with the same or a new address, with the same or an
// empty folder, paused, cut off, and given clocks that run at rates of their
// own. Waiting costs no real time but what the disk takes.
//
//	synctest.Test(t, func(t *testing.T) {
//		c := nodetest.New(t, nodetest.Config{Nodes: 3, Seed: 1})
//		leader := c.WaitLeader()
//		c.Crash(leader)
//		c.WaitLeader()
//	})
//
// # Guarantees
//
// When the test ends, every node is stopped and the invariants are checked:
// equal state at equal revision, one holder per key, tokens that only grow.
//
// # Concurrency
//
// A Cluster's methods may be called from any goroutine of the bubble.
//
// # Errors
//
// What can't be done fails the test.
//
// # Testing
//
// The package is tested by the tests of package node.
package nodetest
