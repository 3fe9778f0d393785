package worker_test

import (
	"context"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/node"
)

// realNodes are three nodes of this process on the loopback, with their folders
// on disk.
func realNodes(b *testing.B) (nodes []*node.Node) {
	b.Helper()
	var addrs []string
	var taken []net.Listener
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		taken = append(taken, l)
		addrs = append(addrs, l.Addr().String())
	}
	for _, l := range taken {
		_ = l.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	b.Cleanup(func() {
		cancel()
		all.Wait()
	})
	dir := b.TempDir()
	for i, addr := range addrs {
		n, err := node.New(node.Config{DataDir: filepath.Join(dir, strconv.Itoa(i)), Bind: addr, Join: addrs, BootstrapExpect: 3})
		if err != nil {
			b.Fatal(err)
		}
		nodes = append(nodes, n)
		all.Go(func() { _ = n.Run(ctx) })
	}
	for _, n := range nodes {
		if _, err := n.Session(ctx); err != nil {
			b.Fatal(err)
		}
	}
	return nodes
}

// How long it takes until a thousand workers run that sixteen callers create,
// on three nodes of this process.
func BenchmarkCreate_Thousand(b *testing.B) {
	const n = 1000
	nodes := realNodes(b)
	running := make(chan string, n)
	var catalogs []*worker.Catalog
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for _, n := range nodes {
		cat, err := worker.NewCatalog(n, func(c *worker.Config) {
			c.Runtimes = []worker.Runtime{worker.Funcs(map[string]func(context.Context, worker.Run) error{
				"f": func(ctx context.Context, r worker.Run) error {
					running <- r.WorkerID
					return untilAsked(ctx, r)
				},
			})}
		})
		if err != nil {
			b.Fatal(err)
		}
		catalogs = append(catalogs, cat)
		all.Go(func() { _ = cat.Run(ctx) })
	}
	for b.Loop() {
		began := time.Now()
		ids, err := createMany(b.Context(), n, func(caller int, s worker.Spec) (worker.Worker, error) {
			return catalogs[caller%3].Create(b.Context(), s)
		})
		if err != nil {
			b.Fatal(err)
		}
		created := time.Since(began)
		for range n {
			<-running
		}
		b.ReportMetric(created.Seconds(), "s-created")
		b.ReportMetric(time.Since(began).Seconds(), "s-all-run")
		b.StopTimer()
		for _, id := range ids {
			if err := catalogs[0].Delete(b.Context(), id); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
	}
}
