// Package guard runs commands under a small process that stands beside the one that owns them, and proves the owner's death
// the moment it happens.
//
// # Overview
//
// A program that holds leases may start commands that must not outlive them. If the program is killed nobody is left to
// stop its commands, and nobody may take its leases before their TTL is over. The guard is a second process of the same
// binary, in a session of its own, that spawns the commands as their parent and subreaper. It holds a pipe to its owner (the
// node) and a pidfd of it. It stops the commands when they no longer may run, and when the node is dead and every command with all
// its descendants is gone, it closes the node's session through any peer that answers, so that a successor starts within
// milliseconds instead of a TTL.
//
// A third process, the watcher, stands by from the first command on. It blocks until the guard is dead, or has let a KillAt pass, and
// then kills what the guard should have killed. It can only end work sooner: it closes no session and frees no lease.
//
// An embedding program calls [Main] first thing in main:
//
//	func main() {
//		guard.Main() // returns at once, except in the guard's own processes
//		…
//	}
//
// Each node.Node that it then runs has a guard of its own, which the node tells all it must know; the program only spawns
// (node.Node.Spawn), if that. Who has no node starts a guard, tells it until when the commands may run, and spawns:
//
//	g, err := guard.Start(guard.Config{Dir: "data"})
//	g.Feed(guard.Feed{StopAt: …, KillAt: …, Session: …}) // at every confirmed keep-alive
//	p, err := g.Spawn(ctx, guard.Spec{Argv: []string{"./shard", "a"}})
//	status, err := p.Wait(ctx)
//	g.Close(ctx)
//
// Without that call in main, Start fails ([Available] tells beforehand): a binary that does not answer as a guard can't be one. The program then has no
// commands, and its crash is known only by the restart of its process or the end of the TTL.
//
// # Guarantees
//
//   - A command runs at most until the KillAt last fed: it gets TERM at StopAt and KILL at KillAt, whether the node is cut off, stopped
//     (SIGSTOP), hung or gone, and so is the guard (then its watcher kills, 50 ms after KillAt). Once KillAt has passed there is
//     no TERM any more, nor anything else that the node said meanwhile. Both are instants of CLOCK_BOOTTIME: on a machine that was
//     suspended, or a guard and a watcher that both were stopped, a command goes on until one of the two gets to run again.
//   - Everything a command started goes with it: its process group, descendants that left the group or the session, and orphans,
//     which the kernel hands to the guard. An orphan that can be told to belong to none of several running commands (it left the
//     session and emptied its environment) goes with the first of them that ends: too early rather than too late.
//   - A session is closed only if three things hold: the pipe to the node has ended, a pidfd says that the node's process has exited,
//     and the guard has no child left, its watcher included. No time and no suspicion is part of it. A node that is stopped is not dead.
//   - A command runs only after the record that names it (process group, start time, pid namespace) is on disk, so [Leftovers] of a
//     later start finds it even if the node, the guard and the watcher were killed together.
//   - If the node and the guard are killed together, as by a kill of everything of one name, the kernel kills each command, and the watcher
//     all that carries the mark (MIW_RUN) of the guard's runs or is in their process groups, at once, without a new start.
//   - The end of a command is reported once, when all of it is gone. If the guard itself is killed, the node stops all of its
//     commands hard, reports them as killed, and starts the guard again.
//
// What does not hold: if the node, the guard and the watcher are all killed together, the kernel ends each command, but not what a
// command has started: a program that a shell waits for, a job in the background, a daemon. That goes on, beyond the lease, until the
// node starts again on its folder and ends it ([Leftovers]). If the node and the guard are killed together, the same goes for a process
// that has left the command's group, has emptied its environment and has lost its parent: nothing tells whose it is. Where that
// matters, run the service in a container or a unit of systemd, whose end takes everything with it. If the machine, the container
// or its pid namespace ends, the guard ends with it, and the TTL or the restart decides. A command that changes its user can't be killed by a guard without the rights to do so; it is reported as
// left over. Only Linux (5.3 or newer, with /proc) has guards; elsewhere Start says so and Main does nothing.
//
// # Concurrency
//
// All methods of [Guard] and [Process] may be called from any goroutine. Feed, Signal and Stop never block. The guard process
// is one loop on one thread, and so is the watcher.
//
// # Errors
//
// Spawn's errors match [ErrNotFound] and [ErrNotExecutable] where the command is to blame, [ErrNotFed] where no lease allows a run,
// [ErrGuardDied] while the guard is being replaced. [ExitCode] turns a Spawn error or a [Status] into the code of a shell.
//
// # Testing
//
// [RegisterCloser] puts another way of closing sessions under a name that a [Session] can choose.
package guard
