package node_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
)

// benchNodes are n ready nodes on loopback and on disk, and their sessions.
func benchNodes(b *testing.B, n int) (nodes []*node.Node, sessions []string) {
	b.Helper()
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		addrs = append(addrs, l.Addr().String())
		l.Close()
	}
	dir := b.TempDir() // before the clean-up below: it is removed last
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	b.Cleanup(func() { cancel(); running.Wait() })
	for i, addr := range addrs {
		n, err := node.New(node.Config{DataDir: filepath.Join(dir, strconv.Itoa(i)), Bind: addr, Join: addrs, BootstrapExpect: n})
		if err != nil {
			b.Fatal(err)
		}
		nodes = append(nodes, n)
		running.Go(func() {
			if err := n.Run(ctx); err != nil {
				b.Error(err)
			}
		})
	}
	for _, n := range nodes {
		<-n.Ready()
		id, err := n.Session(ctx)
		if err != nil {
			b.Fatal(err)
		}
		sessions = append(sessions, id)
	}
	return nodes, sessions
}

// share runs b.N turns of one over callers goroutines.
func share(b *testing.B, callers int, one func(caller, turn int) error) {
	b.Helper()
	var turns atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for c := range callers {
		wg.Go(func() {
			for {
				turn := int(turns.Add(1))
				if turn > b.N {
					return
				}
				if err := one(c, turn); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
}

// BenchmarkPairs acquires and releases distinct keys, each caller through its
// own node; one turn is two commands.
func BenchmarkPairs(b *testing.B) {
	for _, callers := range []int{1, 128} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			nodes, sessions := benchNodes(b, 3)
			ctx := context.Background()
			before := nodes[0].View().Revision()
			share(b, callers, func(c, _ int) error {
				n, session, key := nodes[c%3], sessions[c%3], "bench/"+strconv.Itoa(c)
				defer n.Claim(key, "")()
				r, err := n.Submit(ctx, &fsm.Acquire{Key: key, SessionId: session})
				if err == nil {
					err = fsm.ResultErr(r)
				}
				if err != nil {
					return err
				}
				r, err = n.Submit(ctx, &fsm.Release{Key: key, Token: r.Token, SessionId: session})
				if err == nil {
					err = fsm.ResultErr(r)
				}
				return err
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
			b.ReportMetric(2*float64(b.N)/float64(nodes[0].View().Revision()-before), "commands/entry")
		})
	}
}

// BenchmarkRenewals has 128 keep-alives of clients' sessions in flight, each
// proved, through a follower and through the leader.
func BenchmarkRenewals(b *testing.B) {
	nodes, _ := benchNodes(b, 3)
	ctx := context.Background()
	ids := make([]string, 128)
	for i := range ids {
		ids[i] = fmt.Sprintf("session-%d", i)
		if _, err := nodes[0].Submit(ctx, &fsm.OpenSession{SessionId: ids[i], TtlMs: 60000}); err != nil {
			b.Fatal(err)
		}
	}
	for name, leads := range map[string]bool{"leader": true, "follower": false} {
		b.Run(name, func(b *testing.B) {
			n := nodes[0]
			for _, o := range nodes {
				if (o.Status().Role == node.RoleLeader) == leads {
					n = o
				}
			}
			share(b, len(ids), func(c, _ int) error {
				_, err := n.KeepAlive(ctx, ids[c])
				return err
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "proofs/s")
		})
	}
}

// BenchmarkTrusted is what a lease's Valid costs.
func BenchmarkTrusted(b *testing.B) {
	nodes, sessions := benchNodes(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		if nodes[0].Trusted(sessions[0]) <= 0 {
			b.Fatal("not trusted")
		}
	}
}
