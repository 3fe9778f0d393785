package main

import (
	"context"
	"io"
	"os"

	"github.com/miwnode/miwnode/guard"
)

func main() {
	guard.Main() // returns at once, except in a guard's own processes
	os.Exit(run(context.Background(), os.Args[1:], process{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, lookupEnv: os.LookupEnv,
	}))
}

// process is what a command has of the process around it.
type process struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookupEnv      func(string) (string, bool)
}

// run runs one command line and returns its exit code.
func run(ctx context.Context, args []string, p process) int {
	a := &app{process: p}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	return a.report(cmd, err)
}
