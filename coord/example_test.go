package coord_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// A singleton: the function runs in exactly one of all processes that run this.
// The Cluster is a node in production (node.New) and a double here.
func ExampleNewRunner() {
	world := coordtest.New(coordtest.Timing{})
	defer world.Close()
	n := world.Join("a")

	ctx, stop := context.WithCancel(context.Background())
	mail := coord.NewRunner(n, "singleton:mailer", func(ctx context.Context, l *coord.Lease) error {
		fmt.Println("sending mail, alone")
		stop() // as SIGTERM would
		<-l.Draining()
		fmt.Println("finishing what was begun")
		return nil
	})
	fmt.Println("ended:", mail.Run(ctx))
	// Output:
	// sending mail, alone
	// finishing what was begun
	// ended: <nil>
}

// A job that is done once it has succeeded, tried three times at most, whose
// failures are seen.
func ExampleNewRunner_options() {
	world := coordtest.New(coordtest.Timing{})
	defer world.Close()

	job := coord.NewRunner(world.Join("a"), "migrate:42", func(context.Context, *coord.Lease) error {
		return errors.New("the database is busy")
	}, func(c *coord.RunnerConfig) {
		c.Restart = coord.RestartOnFailure
		c.Backoff = coord.Backoff{Initial: time.Millisecond}
		c.MaxFailures = 3
		c.Hooks.Failed = func(err error, failures int, _ time.Duration) { fmt.Println("failure", failures) }
	})
	fmt.Println(job.Run(context.Background()))
	// Output:
	// failure 1
	// failure 2
	// run of "migrate:42" failed 3 times in a row, the last time with: the database is busy
}

// A lease for as long as something takes. The token goes with every write, so
// that what is written to can refuse a writer that was overtaken.
func ExampleAcquire() {
	world := coordtest.New(coordtest.Timing{})
	defer world.Close()
	a, b := world.Join("a"), world.Join("b")
	ctx := context.Background()

	lease, err := coord.Acquire(ctx, a, "report:2026-11")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := lease.Confirm(ctx); err == nil {
		fmt.Println("writing with a token:", lease.Token() > 0)
	}

	_, err = coord.Acquire(ctx, b, "report:2026-11", coord.Try())
	fmt.Println("the other one is told:", errors.Is(err, fsm.ErrLeaseHeld))

	if err := lease.Release(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println("the context ended:", context.Cause(lease.Context()))
	// Output:
	// writing with a token: true
	// the other one is told: true
	// the context ended: lease released
}

// A lease moves to an instance that waits for it, when its holder has stopped.
func ExampleLease_Transfer() {
	world := coordtest.New(coordtest.Timing{})
	defer world.Close()
	a, b := world.Join("a"), world.Join("b")
	ctx := context.Background()

	lease, err := coord.Acquire(ctx, a, "k")
	if err != nil {
		fmt.Println(err)
		return
	}
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		next, err := coord.Acquire(ctx, b, "k")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("b has it, with a larger token:", next.Token() > lease.Token())
		_ = next.Release(ctx)
	}()
	for err = fsm.ErrWrongState; errors.Is(err, fsm.ErrWrongState); { // until b waits
		err = lease.Transfer(ctx, b.InstanceID())
	}
	<-lease.Context().Done()
	fmt.Println("a is told:", context.Cause(lease.Context()))
	_ = lease.Release(ctx)
	<-moved
	// Output:
	// a is told: lease moves to another instance
	// b has it, with a larger token: true
}

// Timings are checked as a whole, and a fault says what would do.
func ExampleTimings_Validate() {
	t := coord.DefaultTimings()
	t.LeaseTTL = 5 * time.Second
	fmt.Println(t.Validate())
	// Output:
	// LeaseTTL is 5s: the session's TTL (5s) must exceed the keep-alive interval (2s) + Margin (1s) + StopBudget (1s) + 2*Election (1s) = 5s; 5.1s would do, or RenewInterval below 2s
}
