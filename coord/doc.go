// Package coord is what applications use: leases on keys, work that runs in
// exactly one of all processes, and groups of workloads that instances share out
// among themselves.
//
// # Overview
//
// [Acquire] returns a [Lease] on a key. A [Runner] keeps a function running in
// one process of the cluster: it waits in the queue of the key, runs the
// function while it holds the lease, and hands over when the instance drains.
// A [Coordinator] declares a [Group] of workloads: each of them runs on one of
// the instances that declared it. All sit on a [Cluster], which *node.Node is; the lease hangs on the one
// session of that node, which the node renews.
//
// The life of a Runner:
//
//	            granted           trusted, slot free
//	waiting ─────────────► starting ─────────────► running ◄──────┐
//	   ▲ ▲                    │                   │ │ │ │         │ restart delay
//	   │ │ back-off           │ called off        │ │ │ └─ nil ─► resting
//	   │ └──── backing off ◄──┼───── failed ──────┘ │ │             │
//	   │        (released)    │                     │ │ drain, stop │
//	   │                      ▼          lost,      │ ▼             ▼
//	   └─ released ◄─── stopping ◄────── revoked, ──┴ draining ─► stopping ─► stopped
//	      (queues again)   │             moved          │  drain timeout
//	                       │ kill timeout               │
//	                       ▼                            ▼
//	                     stuck: hold (waits), exit (code 75), or report
//
// How long a lease may be trusted, T being the session's TTL, M the margin and
// S the stop budget, counted from the *sending* of the last keep-alive that was
// confirmed, on a clock that runs while the machine sleeps:
//
//	told to stop   sent + T - M - S   the context ends with ErrLost
//	made to stop   sent + T - M       a run that goes on ends with its process
//	passes on      received + T       the leader may grant the key elsewhere
//
// Since a keep-alive is received after it was sent, work ends at least M before
// its lease can pass on; M allows for clocks that run at different rates. Faults
// of the network or of the cluster end nothing before that time: only trust
// that ran out does.
//
// A group is planned by one of its instances, which holds a lease for that: it
// asks the group's [Assigner] ([Sticky] by default) who shall run what, and
// proposes what that changes. A workload that nobody has is granted, in the entry
// of the plan, to its new owner; one that somebody has gets a named successor,
// and is granted to that in the entry that releases it:
//
//	                                   ┌─ prepares ─┐ (the owner goes on)
//	free ──plan──► active ──plan──► successor named ──► transferring ──release──► active
//	 ▲                │                                  (told to stop)          (there)
//	 └── failed, ─────┘
//	     owner died
//
// [Why] explains where a workload is, [WhatIf] what would move. A [Planner] plans
// for groups whose instances are no Go programs. [Record] counts executions.
//
// # Guarantees
//
//   - No two runs of one key overlap, in one process or in many, unless
//     [PolicyReport] was chosen for work that ignores its context.
//   - The function is never called without trust: where less than half of the
//     window is left, a proof is had first.
//   - Each grant of a key has a larger [Lease.Token] than every one before it. A
//     run that is run again under the same grant keeps the token.
//   - A lease is released after its work has returned, never before, by token:
//     a release that comes late frees no newer grant.
//   - Waiting is first come, first served over the whole cluster. A release
//     grants the key to the next in the same entry of the log.
//   - A drain asks ([Lease.Draining], [Drainable]) and lets finish, for up to
//     the drain timeout; then the context ends. Workloads whose next owner
//     prepares go on until it is ready, or half of that time is over.
//   - A panic, an ended goroutine, a failing hook or RequestDrain ends nothing
//     but itself.
//   - A lease that rests costs nothing: no timer, no wake-up, no message of its
//     own. Nor does a group in which nothing changes.
//   - A workload runs only where it was declared, never where an instance drains,
//     and is begun nowhere before its last run has returned or its owner is surely
//     stopped. Sent there and back again, it runs once more, with a new token.
//   - What moves for the sake of balance is bounded in number and in time; what
//     has nobody, or must leave, is not.
//   - A workload that fails, an assigner that panics and a planner that dies
//     concern nobody else: what runs goes on.
//
// What is not guaranteed: that somebody runs at every moment. Exactly one at
// most; nobody while a lost lease runs out.
//
// # Concurrency
//
// Leases and Runners are safe for concurrent use. A Runner calls its function
// on a goroutine of its own, one call at a time; [Hooks] are called one at a
// time, in order, by another. Runner.Run, Coordinator.Run and Planner.Run block
// and own what they start. Coordinators of several groups share a node.
//
// # Errors
//
// Refusals match the sentinels of package fsm with errors.Is: fsm.ErrLeaseHeld,
// fsm.ErrWaitTimeout, fsm.ErrDraining, fsm.ErrStaleToken. fsm.ErrNoQuorum means
// surely not done, fsm.ErrUncertain perhaps done. Why a context ended is
// context.Cause: [ErrLost], [ErrRevoked], [ErrMoved], [ErrPaused],
// [ErrUnassigned], [ErrDrained], [ErrShutDown], [ErrReleased].
//
// # Testing
//
// Package coordtest is a Cluster in memory. In a testing/synctest bubble, hours
// of leases, partitions and drains take milliseconds.
package coord
