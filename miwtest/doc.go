// Package miwtest tests work that runs under leases: a cluster of real nodes in
// one process, in a bubble of its own time, with faults on demand.
//
// # Overview
//
// [Run] starts three nodes in a testing/synctest bubble and calls a function
// with the [Cluster]. A [Node] of it is a coord.Cluster, so it takes the place
// of a *node.Node in whatever uses package coord. [Cluster.Deploy] runs a
// program on every node, as its main would, again after each restart; [Node.Go]
// runs one on one start of one node.
//
//	miwtest.Run(t, func(t *testing.T, c *miwtest.Cluster) {
//		c.Deploy(func(ctx context.Context, n *miwtest.Node) error {
//			return coord.NewRunner(n, "mailer", sendMails).Run(ctx)
//		})
//		c.Crash(c.WaitOwner("mailer"))
//		c.WaitOwner("mailer") // somebody else has it
//	})
//
// Faults: [Cluster.Crash], [Cluster.Pause], [Cluster.Isolate], [Cluster.Cut],
// [Cluster.LoseSession], [Cluster.Expire]. What operators do: [Cluster.Stop],
// [Cluster.Start], [Cluster.Restart], [Cluster.Drain], [Cluster.Undrain],
// [Cluster.StepDown], [Cluster.Revoke], [Cluster.Move]. [Cluster.Chaos] does
// all of it by chance, [Cluster.Calm] takes it back.
//
// An [Observer] sees what the work does under its leases. The work tells it
// where it acts on something that nobody else may act on at that time:
//
//	defer obs.Begin(lease)()
//
// Time is the bubble's: a minute of it costs about 0.2 s of one core, and it
// passes only when every goroutine of the bubble waits. So what the work waits
// for must be in the bubble, too: channels, timers, contexts, a fake of its
// database. A real connection to elsewhere holds the time still.
//
// # Guarantees
//
// When the function has returned, the faults are taken back and these hold, or
// the test fails:
//
//   - no two runs of one key, and no two works on one observed thing, overlapped;
//   - no work began under a lease that was lost, or went on when it could pass on;
//   - tokens of a key grew from grant to grant;
//   - every run returned when it was told to;
//   - nodes at one revision have equal states, and every key one holder;
//   - no goroutine is left.
//
// A test that fails shows what happened in the cluster, in order. What breaks a
// rule is a [Violation]; [Cluster.Expect] makes one the purpose of a test.
//
// A crash ends what the node's process does as far as anybody can see: its runs
// are over in that instant, and so are the contexts of their goroutines, which
// go on in the bubble, unheard, and must return. A pause is the same with a way
// back: what a paused process does is not counted, and neither time-outs nor
// timers of its node pass. A process that ends itself because work ignores its
// context (code 75) does so here, too, and is started again a second later, as a
// supervisor would.
//
// # Concurrency
//
// What may fail the test at once (waits, and faults that wait) is for the
// goroutine of the test; an Observer and a Node may be used by any goroutine of
// the bubble.
//
// # Errors
//
// What can't be done, or does not come about in time, fails the test.
//
// # Testing
//
// The package is tested by work that breaks each of the rules on purpose.
// examples/cron and examples/consumer are programs with tests to copy.
package miwtest
