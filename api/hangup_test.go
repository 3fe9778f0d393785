package api_test

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/miwnode/miwnode/api"
)

// Ensures that a caller who sends the beginning of a further request behind its
// acquire, and then hangs up, leaves the queue; nothing of the further one is done.
func TestAcquire_PipelinedHangUp(t *testing.T) {
	n := startReady(t)
	socket := filepath.Join(t.TempDir(), api.SocketName)
	srv := runServer(t, n, api.ServerConfig{Socket: shortPath(t, socket), Listen: "127.0.0.1:0"})
	s := serve(t, n)
	holder, waiter := s.session(`{"ttl": "60s"}`), s.session(`{"ttl": "60s"}`)
	s.call("POST", "/v1/leases/acquire", acquireBody("k", holder)).ok(200)
	for network, addr := range map[string]string{"tcp": srv.Addr(), "unix": shortPath(t, socket)} {
		t.Run(network, func(t *testing.T) {
			conn, err := net.Dial(network, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			send := func(path, body string) {
				t.Helper()
				_, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", path, len(body))
				if _, werr := io.WriteString(conn, body); err != nil || werr != nil {
					t.Fatal(err, werr)
				}
			}
			send("/v1/leases/acquire", acquireBody("k", waiter, "wait", "1h"))
			until(t, n, "it waits", func() bool { return n.View().WaiterCount("k") == 1 })
			send("/v1/leases/acquire", acquireBody("other", waiter))
			conn.Close()
			until(t, n, "it has left the queue", func() bool { return n.View().WaiterCount("k") == 0 })
			if _, held := n.View().Lease("other"); held {
				t.Error("a request of a caller that hung up was served")
			}
		})
	}
}
