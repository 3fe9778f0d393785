//go:build linux

package node_test

import (
	"context"
	"fmt"
	"os"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/guard"
	"github.com/miwnode/miwnode/node"
)

// The work is a program in any language: it runs on one node only, and does not
// outlive its lease, nor this process. guard.Main comes first in main.
func ExampleNode_Spawn() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	n, err := node.New(node.Config{DataDir: dir, Bind: "127.0.0.1:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	ended := make(chan error)
	go func() { ended <- n.Run(ctx) }()

	report := coord.NewRunner(n, "report", func(ctx context.Context, l *coord.Lease) error {
		p, err := n.Spawn(ctx, guard.Spec{
			Argv: []string{"sh", "-c", "echo writing as $MIW_TOKEN"}, Env: append(os.Environ(), fmt.Sprintf("MIW_TOKEN=%d", l.Token())),
			Stdout: os.Stdout, Key: l.Key(), Token: l.Token(),
		})
		if err != nil {
			return err
		}
		// TERM when the lease must be given up, KILL a second later.
		defer context.AfterFunc(ctx, func() { _ = p.Stop(0) })()
		status, err := p.Wait(context.WithoutCancel(ctx)) // all that it started is gone
		fmt.Println(status)
		return err
	}, func(c *coord.RunnerConfig) { c.Restart = coord.RestartOnFailure })
	fmt.Println("done:", report.Run(ctx))

	leave()
	fmt.Println("left:", <-ended)
	// Output:
	// writing as 1099511627777
	// exited, code 0
	// done: <nil>
	// left: <nil>
}
