// Package coordtest is a cluster in memory for tests of code that uses coord.
//
// # Overview
//
// A [World] keeps a real replicated state (package fsm) and plays the leader:
// it commits commands, holds the sessions' deadlines, expires them, frees what
// was revoked. An [Instance] is one process's node: it satisfies coord.Cluster,
// keeps its own copy of the state, renews its session and tells when that is
// not trusted any more. There is no raft, no network and no disk; time is the
// time package's, so that a test in a testing/synctest bubble takes none.
//
//	w := coordtest.New(coordtest.Timing{})
//	defer w.Close()
//	a, b := w.Join("a"), w.Join("b")
//	… coord.NewRunner(a, "k", work) …
//	a.Cut()
//
// # Guarantees
//
// The protocol is that of a node: trust is counted from the sending of the last
// confirmed keep-alive, an answer counts once the copy has applied what it
// covers, a grant that nobody claims is released after a second, a session that
// is ending is lost for good, the slot of a key stays busy until its run has
// returned.
//
// # Concurrency
//
// Everything may be called by any goroutine.
//
// # Errors
//
// Those that coord.Cluster documents.
//
// # Testing
//
// Faults: [Instance.Cut], [Instance.Crash], [Instance.Lag], [Instance.Fault],
// [Instance.Doubt], [World.LoseQuorum].
package coordtest
