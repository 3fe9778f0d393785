package node_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodetest"
)

// The test binary is also the programs that some tests run, their guards and
// their commands.
func TestMain(m *testing.M) {
	roles(os.Args)
	goleak.VerifyTestMain(m)
}

// Three fresh nodes found a cluster, elect a leader and grant a lease to each
// of them in turn, well within the time a user notices.
func TestNode_FirstLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		c := nodetest.New(t, nodetest.Config{Nodes: 3, Seed: 1})
		c.WaitReady()
		ready := time.Since(start)
		ctx := c.Context(5 * time.Second)
		for i := range 3 {
			session, err := c.Node(i).Session(ctx)
			if err != nil {
				t.Fatal(err)
			}
			r, err := c.Node(i).Submit(ctx, &fsm.Acquire{Key: "k", SessionId: session, Holder: "h"})
			if err != nil || fsm.ResultErr(r) != nil {
				t.Fatalf("acquire on node %d: %v %v", i, err, r)
			}
			if i == 0 {
				t.Logf("ready after %v, first lease after %v", ready, time.Since(start))
				if d := time.Since(start); d > 1500*time.Millisecond {
					t.Errorf("first lease after %v, want at most 1.5s", d)
				}
			}
			r, err = c.Node(i).Submit(ctx, &fsm.Release{Key: "k", SessionId: session, Token: r.Token})
			if err != nil || fsm.ResultErr(r) != nil {
				t.Fatalf("release on node %d: %v %v", i, err, r)
			}
		}
		c.Converge()
	})
}

// What a start logs is so when it is said: the node listens before it belongs to
// a cluster, and is ready after that; of one that comes back, its cluster is told.
func TestNode_SaysHowFarItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logBook{}
		c := nodetest.New(t, nodetest.Config{Nodes: 1, Seed: 3, Log: slog.New(slog.NewTextHandler(log, nil))})
		c.WaitReady()
		var said []string
		for _, line := range log.with("cluster") {
			for _, msg := range []string{"node listens and looks for a cluster to found or to join", "cluster founded", "node is ready"} {
				if strings.Contains(line, msg) {
					said = append(said, msg)
				}
			}
		}
		if got, want := strings.Join(said, "; "), "node listens and looks for a cluster to found or to join; cluster founded; node is ready"; got != want {
			t.Errorf("said %q, want %q", got, want)
		}
		c.Restart(0)
		c.WaitReady()
		if n := len(log.with("node listens and looks for the others of its cluster")); n != 1 {
			t.Errorf("said %d times after a restart that it has a cluster, want once", n)
		}
		if n := len(log.with("node is ready")); n != 2 {
			t.Errorf("said %d times that it is ready, want once for each start", n)
		}
	})
}
