package miwtest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/miwtest"
)

// failures are tests that fail, run in a process of their own, and what they
// print.
var failures = []struct {
	name string
	test func(t *testing.T, c *miwtest.Cluster)
	want []string
}{
	{
		"a goroutine that is left", func(t *testing.T, c *miwtest.Cluster) {
			c.Deploy(runner("k", func(ctx context.Context, l *coord.Lease) error {
				go forgotten()
				return good(ctx, l)
			}))
			c.WaitOwner("k")
		},
		[]string{"1 goroutines are left 1m0s after all nodes have ended: what a program starts must end with its context", "miwtest_test.forgotten("},
	},
	{
		"a program that ends", func(t *testing.T, c *miwtest.Cluster) {
			c.Deploy(func(context.Context, *miwtest.Node) error { return errors.New("no database") })
			time.Sleep(time.Second)
		},
		[]string{"the program on node 0 ended: no database", "the program on node 2 ended"},
	},
	{
		"what was expected and does not come", func(_ *testing.T, c *miwtest.Cluster) { c.Expect(miwtest.Stale) },
		[]string{`expected a violation of kind "stale work", none was seen`},
	},
	{
		"what nobody expects, with what led to it", func(_ *testing.T, c *miwtest.Cluster) {
			c.Deploy(runner("k", deafWork))
			owner := c.WaitOwner("k")
			c.Drain(owner)
			c.WaitIdle(owner)
		},
		[]string{`stuck run at 35.`, "miwtest_test.deafWork(", "seed 1; what happened", "node 2 starts, boot 1", `runs "k" with token`, " drains", `VIOLATION the run of "k"`},
	},
	{
		"a wait that is in vain", func(_ *testing.T, c *miwtest.Cluster) { c.WaitOwner("nobody's", 1) },
		[]string{`not within 1m0s: a run of "nobody's" on node 1`, "voters 3 alive 3"},
	},
	{
		"a lease of another cluster", func(t *testing.T, c *miwtest.Cluster) {
			l, err := coord.Acquire(t.Context(), c.Node(0).Node, "k") // past the observed node
			if err != nil {
				t.Fatal(err)
			}
			c.Observe("k").Begin(l)()
			_ = l.Release(t.Context())
		},
		[]string{`observer of "k": the lease of "k" with token 1099511627777 is of none of the nodes of this cluster`},
	},
}

func forgotten() { select {} }

// Ensures what a user reads when a test fails.
func TestFailures(t *testing.T) {
	for _, f := range failures {
		t.Run(f.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "TestFailing")
			cmd.Env = append(os.Environ(), "MIWTEST_FAILING="+f.name)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Error("the test passed")
			}
			for _, w := range f.want {
				if !strings.Contains(string(out), w) {
					t.Errorf("%q is not printed", w)
				}
			}
			if t.Failed() {
				t.Log(string(out))
			}
		})
	}
}

// TestFailing is the failing test of the other process.
func TestFailing(t *testing.T) {
	for _, f := range failures {
		if f.name == os.Getenv("MIWTEST_FAILING") {
			miwtest.Run(t, f.test)
		}
	}
}
