// Package worker keeps a catalog of workers: programs and functions that the
// cluster stores, loads, runs somewhere, starts, stops and replaces while all
// else goes on.
//
// # Overview
//
// A worker is a record of the replicated state: what it is ([Spec]), where its
// code comes from, and what it is to do. A [Client] changes and reads these
// records through any node. A [Catalog] is an instance's part in carrying them
// out: it loads code and runs workers, each of a kind that one of its runtimes
// knows: [Funcs] for functions of the program, package execrt for commands,
// package wasmrt for WASI modules, or a [Runtime] of one's own by one of these
// names.
//
//	                  ┌────────────── reload ──────────────┐
//	                  ▼                                    │
//	create ──► loading ──loaded──► stopped ◄──stop──── running ──► failed
//	             │  │                 └─────start────────► ▲ ▲        │
//	             │  └──loaded, and to be started───────────┘ └─start──┘
//	             └──failed──► load_failed ──reload──► loading
//
// Loading comes first and is nobody's to wait for: [Client.Create] returns when
// the record is there. One instance drives the load, under a lease; when it
// dies, another does. What it finds is one command, which names its attempt: a
// late one is refused. A start that is asked for meanwhile is in the record, and
// the outcome of the load reads it there, so neither can miss the other.
//
// A worker that is to run is a workload of the group [fsm.WorkersGroup]: given to
// one instance at a time, leased, drained and moved as those of a
// coord.Coordinator are, with its code loaded where it goes before it leaves
// where it is. A worker that runs goes on with its old code while a reload is
// under way and when that fails; the new code begins under the same grant.
//
// A run that fails is run again after a back-off, on the instance that has the
// worker, up to a number of times; the next failure is the worker's. Until then
// [Worker.Failing] says on every instance how it stands: each failure is put on
// record as an execution of the job miw/worker/<ID>/runs. Code that an instance
// can't load is that instance's failure: another one is tried. Where nobody has
// what a worker needs, [Worker.Lacks] says so.
//
// # Guarantees
//
//   - No two runs of a worker overlap, on one instance or on several, as coord
//     guarantees for the workloads of any group.
//   - A load has one outcome, told by one event, whoever drove it and however often.
//   - Who was last to ask that a worker start or stop, by the order of the
//     records, gets that, whatever was loading meanwhile.
//   - A worker that was deleted does not come back, and its ID is not used again.
//   - All instances started anew, each worker is in the state it was in: what
//     was loading is loaded.
//   - A worker that is hard to load, hangs, fails or panics concerns no other. One
//     that hangs in its load may hold up others for ten seconds.
//   - A catalog in which nothing changes costs no message, no timer, no entry.
//
// What is not guaranteed: that a run which ends well in the moment in which it is
// asked to finish counts as done: it is run again where the worker goes. And
// counts of failures in a row are those of one grant: an owner that dies takes
// them along.
//
// # Concurrency
//
// Clients and Catalogs are safe for concurrent use. [Catalog.Run] blocks and owns
// what it starts; a node has one Catalog that runs. Runtimes are called by many
// goroutines, a Unit's Run by one at a time.
//
// # Errors
//
// Refusals match the sentinels of package fsm: fsm.ErrNotFound,
// fsm.ErrETagMismatch, fsm.ErrWrongState, fsm.ErrInvalidArgument. What became of
// loads and runs is no error of a call: it is in the record, as a type, one of
// the Type words, and a message. A Runtime makes them with [Errorf].
//
// # Testing
//
// Package coord/coordtest is a cluster in memory, for bubbles of testing/synctest.
// Package runtimetest holds a Runtime to what it owes.
package worker
