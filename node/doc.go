// Package node runs one member of a cluster: raft, gossip, the wire and the
// replicated state, in the process that embeds it.
//
// # Overview
//
// New checks a Config, takes the data folder and makes the node's parts; Run
// starts them, blocks, and leaves gracefully when its context ends. A node
// finds its peers by the addresses in Config.Join, founds a cluster with them
// or joins theirs, and is ready (Ready, ReadyErr) once it knows a leader and
// its copy of the state has caught up.
//
//	n, err := node.New(node.Config{DataDir: "data", Join: []string{"app:7400"}, BootstrapExpect: 3})
//	if err != nil {
//		return err
//	}
//	g.Go(func() error { return n.Run(ctx) })
//
// A program whose main calls guard.Main first thing gets a guard process with
// each node: a small process of the same binary that outlives it. If the program
// crashes, the guard ends the commands of Spawn and closes the node's session
// through any peer, so that what it held is granted elsewhere within
// milliseconds. Without that call, or on a system without guards, Run says so and
// goes on: a crash is then known by the restart on the same folder or by the end
// of the session's TTL, and Spawn refuses. Nodes with a Config.Network of their
// own have no guard.
//
// Package coord is what applications use on top of it: leases, runners,
// drains. *Node satisfies coord.Cluster. Package api makes it an http.Handler.
//
// What the node keeps in its folder: lock (held while it lives), node.json
// (who it is), promise.json, peers.json (where peers were last), raft.db (log,
// term, vote), snapshots/, and guard.lock and runs, which are the guard's.
//
// # Guarantees
//
// A command that Propose has acknowledged survives the loss of any minority of
// the voters, kill -9 and the loss of power. A retry of Propose under one call
// never applies a command twice. A caller sees its own write in its local copy
// when the call returns.
//
// A keep-alive is confirmed only after a proof of leadership that began after
// it arrived, and a session is trusted from the moment its keep-alive was sent,
// on a clock that runs while the machine sleeps. So at no instant do two
// instances hold a locally valid lease on one key, as long as their clocks' rates
// differ by less than five percent; their offsets and jumps don't matter.
//
// Two clusters never merge: every stream and packet carries the cluster ID. A
// cluster is founded once: its founders have promised themselves to it on disk
// before its first entry is written.
//
// The leader is told when work began and ended in every node, and counts and
// records two runs of one key that certainly overlapped, whatever the clocks.
//
// Gossip is a hint. No lease moves and no member is added, promoted or
// demoted because of it.
//
// The node never ends the process and never panics for what its disk or its
// peers do: raft's own panics are contained, and Run returns an error instead.
//
// # Concurrency
//
// All methods of Node are safe for concurrent use, before, during and after
// Run. Run owns every goroutine, and none is left when it has returned, but one
// that waits for runs of the application that have not: the folder stays locked
// until they do. Channels handed out are level triggered and never block the node.
//
// # Errors
//
// Refusals are *fsm.Error with the codes of the HTTP contract, from whichever
// node they come; compare with errors.Is and the sentinels of package fsm. New
// and Run fail with the errors of this package: ErrFolderInUse, ErrFolderCopied,
// ErrFolderDamaged, ErrFolderNewer, ErrOtherID, ErrOtherCluster, ErrStorage.
// Spawn fails with ErrNoGuard and the errors of package guard.
//
// # Testing
//
// Package nodetest runs whole clusters in a synctest bubble.
package node
