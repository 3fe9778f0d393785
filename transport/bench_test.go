package transport_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miwnode/miwnode/transport"
)

// BenchmarkCall measures calls with bodies of 30 bytes over one connection on loopback: bare, and as many at once as the name says.
func BenchmarkCall(b *testing.B) {
	ca := b.TempDir()
	if err := transport.NewCA(ca); err != nil {
		b.Fatal(err)
	}
	for _, secure := range []bool{false, true} {
		for _, callers := range []int{1, 64, 512} {
			b.Run(fmt.Sprintf("tls=%t/callers=%d", secure, callers), func(b *testing.B) {
				start := func(id string) *transport.Transport {
					return onLoopback(b, id, func(c *transport.Config) {
						if secure {
							dir := b.TempDir()
							if err := transport.NewNodeCert(ca, id, nil, dir); err != nil {
								b.Fatal(err)
							}
							m, err := load(dir)
							if err != nil {
								b.Fatal(err)
							}
							c.TLS = m
						}
					})
				}
				from, to := start("from"), start("to")
				addr, body := to.Addr(), make([]byte, 30)
				call := func() {
					if _, _, err := from.Call(context.Background(), addr, "to", 1, body); err != nil {
						b.Error(err)
					}
				}
				call()
				b.ReportAllocs()
				b.ResetTimer()
				var left atomic.Int64
				left.Store(int64(b.N))
				var calls sync.WaitGroup
				for range callers {
					calls.Go(func() {
						for left.Add(-1) >= 0 {
							call()
						}
					})
				}
				calls.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
			})
		}
	}
}

// BenchmarkGreeting measures a new connection with its first call.
func BenchmarkGreeting(b *testing.B) {
	to := onLoopback(b, "to", nil)
	from := onLoopback(b, "from", nil)
	layer := from.Gossip()
	accept := to.Gossip().StreamCh()
	b.ReportAllocs()
	for b.Loop() {
		c, err := layer.DialTimeout(to.Addr(), 0)
		if err == nil {
			_ = (<-accept).Close()
			_ = c.Close()
		}
	}
}
