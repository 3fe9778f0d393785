// Package memnet is a network in memory for tests, made for testing/synctest bubbles: hosts with addresses, streams that behave as TCP does, packets, and faults.
//
// # Overview
//
// [New] makes a network; [Net.Host] gives each node a host of its own, which implements transport.Network. Faults are set on the network, by the names of hosts:
// [Net.Cut], [Net.CutOneWay], [Net.Isolate], [Net.SetDelay], [Net.SetLoss], [Net.Pause], [Net.Crash] and what ends them.
//
// # Guarantees
//
// Bytes of a stream arrive in order, each segment after the delay of its link; loss makes it later by retransmission times, never lost. What is under way over a cut
// waits for the heal and then for the next retransmission; a connection whose data is not acknowledged for Options.UserTimeout dies of it, an idle one after
// Options.KeepAlive of cut. In a one-way cut the open direction carries data until the sender's first retransmission time-out: no acknowledgement, no more data. An end that
// timed out resets the other one as soon as the path is open. Buffers are bounded: writers wait. Deadlines, half-close and close behave as those of package net, with its errors.
//
// Packets are delayed and thereby reordered, lost by SetLoss, by cuts at their sending, by full queues and where nobody listens.
//
// A paused host sends, receives and accepts nothing, and loses nothing but packets beyond its queues. A crashed host resets its connections, and its handles fail; a new life
// may listen on the same address or, after SetAddr, another one.
//
// Jitter and loss are drawn per link from the seed. The order of goroutines is the runtime's, so two runs with one seed are alike, not equal.
//
// # Concurrency
//
// All methods may be called from any goroutine. Nothing runs in the background: readers look at the clock, and a timer exists only while an operation waits for a
// moment that is known. An idle connection costs neither timer nor goroutine. A network made inside a bubble belongs to it.
//
// A bubble ends when its test does, and time with it. What waits for time then (memberlist's last probe after Shutdown, for one) is reported as a deadlock: sleep a little first.
//
// # Errors
//
// Those of package net: *net.OpError around net.ErrClosed, os.ErrDeadlineExceeded, io.EOF, or a system call's number (ECONNRESET, ECONNREFUSED, ETIMEDOUT, …).
//
// # Testing
//
// memnet_test.go is the table of what streams, dials and packets do under each fault, to the millisecond. package transport runs real raft and memberlist over it.
package memnet
