//go:build linux

package guard_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/miwnode/miwnode/guard"
)

// A program whose main calls guard.Main first can run commands that do not outlive their lease, nor the program.
func Example() {
	g, err := guard.Start(guard.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer g.Close(context.Background())

	// At each confirmed keep-alive: until when the lease is good.
	now := guard.BootTime()
	if err := g.Feed(guard.Feed{StopAt: now + 8*time.Second, KillAt: now + 9*time.Second}); err != nil {
		fmt.Println(err)
		return
	}
	p, err := g.Spawn(context.Background(), guard.Spec{Argv: []string{"sh", "-c", "echo at work; exit 3"}, Stdout: os.Stdout})
	if err != nil {
		fmt.Println(err, guard.ExitCode(err))
		return
	}
	status, err := p.Wait(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(status)
	// Output:
	// at work
	// exited, code 3
}
