// Package fsm is the replicated state of miwnode: sessions, instances, leases
// with their queues, groups with their workloads, workers, executions of jobs,
// what has been answered, what has happened. It is pure: no clock, no I/O, no
// goroutine. Machine makes it the finite state machine of hashicorp/raft.
//
// # Overview
//
// One entry of the log is a [Batch] of commands ([Acquire], [OpenSession], …),
// each wrapped by [NewCommand]. [State.Apply] applies an entry and returns an
// [Outcome]: one [Result] per command, in order, and the [Event]s of what
// changed. [State.View] is the state at that revision, in constant time;
// everything is read from a [View]. [View.Snapshot] and [ReadSnapshot] carry the
// state from node to node.
//
// # Guarantees
//
//   - Determinism: equal entries make equal states, byte for byte ([View.Hash]),
//     whatever snapshots were taken and restored on the way.
//   - A refusal is a Result with a stable [Code]. It changes nothing.
//   - One holder per key. The entry that ends a grant makes the next one, or
//     leaves the key free because nobody may have it.
//   - Tokens rise over all grants of all keys, for ever, and stay below 2^53.
//     Release, transfer and revoke name the token, never just the key.
//   - A workload of a group is granted only to a live member that declares it and
//     neither drains nor is cordoned, while the group wants it and it is not
//     paused; a plan counts only for the inputs that it was made for.
//   - The outcome of a worker's load counts once, for the attempt that it names. A
//     start that was asked for while it loads is never lost, and what was deleted
//     never comes back.
//   - A decision of a leader (expiry, freeing a revoked or barred key, clearing
//     a mark) is refused under any term but the one it carries.
//   - A command with a sequence number is applied once, however often it is
//     proposed; a repeat gets the first answer, checked against the present.
//   - Every transition has one event, in the entry that made it. A reader of
//     events is told when it has a hole.
//   - An entry that this binary doesn't understand halts the Machine before it
//     changes anything: the copy stays as it was, nothing later is applied.
//   - Session IDs are secrets: they are in no event, no history and no refusal.
//
// # Concurrency
//
// A State belongs to one goroutine; a Machine's is raft's apply goroutine. A View
// never changes and may be read by any number of goroutines for as long as they
// like; apply never waits for them. What a View hands out is shared: don't
// change it. Machine.View, Wait, Watch and Halted are safe for everybody.
//
// # Errors
//
// [ResultErr] makes an error of a Result; it is an [*Error] that matches the
// sentinel of its code with errors.Is. [CodeOf] is the reverse. A
// [*VersionError] says that a newer binary is needed, and which. Panics are for
// broken invariants of our own, and the Machine halts on them.
//
// # Testing
//
// testdata/scenario are transcripts of the rules, testdata/wire and
// testdata/snapshot the bytes of everything ever shipped; go test ./fsm -update
// rewrites them, for eyes to see in the diff. twin_test.go is a plain second
// implementation that random histories are compared with.
package fsm
