//go:build linux

package guard_test

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/miwnode/miwnode/guard"
	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

// Ensure peers are asked one after the other, without waiting long for a silent one, and that nothing runs on after the answer.
func TestHedge(t *testing.T) {
	peers := []guard.Peer{{NodeID: "a"}, {NodeID: "b"}, {NodeID: "c"}}
	refused := errors.New("refused")
	for _, test := range []struct {
		name string
		ask  func(ctx context.Context, nth int) error
		want error
		took time.Duration
		asks int
	}{
		{"the first closes", func(context.Context, int) error { return nil }, nil, 0, 1},
		{"two refuse", func(_ context.Context, nth int) error {
			if nth < 3 {
				return refused
			}
			return nil
		}, nil, 0, 3},
		{"two are silent", func(ctx context.Context, nth int) error {
			if nth < 3 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, nil, 200 * time.Millisecond, 3},
		{"all refuse", func(context.Context, int) error { return refused }, refused, 0, 3},
		{"all are silent", func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }, context.DeadlineExceeded, time.Second, 3},
		{"the silent one answers late", func(ctx context.Context, nth int) error {
			if nth > 1 {
				return refused
			}
			time.Sleep(500 * time.Millisecond)
			return nil
		}, nil, 500 * time.Millisecond, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				var mu sync.Mutex
				var asked []string
				began := time.Now()
				err := guard.Hedge(ctx, peers, 100*time.Millisecond, func(ctx context.Context, p guard.Peer) error {
					mu.Lock()
					asked = append(asked, p.NodeID)
					nth := len(asked)
					mu.Unlock()
					return test.ask(ctx, nth)
				})
				if !errors.Is(err, test.want) || time.Since(began) != test.took || len(asked) != test.asks {
					t.Errorf("error %v after %v and %d calls; want %v, %v, %d", err, time.Since(began), len(asked), test.want, test.took, test.asks)
				}
				slices.Sort(asked)
				if len(slices.Compact(asked)) != test.asks {
					t.Errorf("asked %v, want each once", asked)
				}
			})
		})
	}
}

// Ensure the session is deleted over a unix socket and over http(s), with the token.
func TestCloser_HTTP(t *testing.T) {
	type request struct{ method, path, auth string }
	got := make(chan request, 10)
	status := http.StatusNoContent
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- request{r.Method, r.URL.EscapedPath(), r.Header.Get("Authorization")}
		w.WriteHeader(status)
	})
	plain, secure := httptest.NewServer(h), httptest.NewTLSServer(h)
	defer plain.Close()
	defer secure.Close()
	dir := t.TempDir()
	socket, ca := filepath.Join(dir, "miw.sock"), filepath.Join(dir, "ca.crt")
	long := filepath.Join(dir, strings.Repeat("a/", 60), "miw.sock") // no address of a socket takes that
	if err := os.MkdirAll(filepath.Dir(long), 0o700); err != nil {
		t.Fatal(err)
	}
	local := &http.Server{Handler: h}
	for _, path := range []string{socket, long} {
		l, err := transport.ListenUnix(path)
		if err != nil {
			t.Fatal(err)
		}
		go local.Serve(l)
	}
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer local.Close()
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		http guard.HTTP
		auth string
	}{
		{"unix socket", guard.HTTP{Addr: socket}, ""},
		{"unix socket with a long path", guard.HTTP{Addr: long}, ""},
		{"http", guard.HTTP{Addr: plain.URL + "/", Token: "geheim"}, "Bearer geheim"},
		{"https", guard.HTTP{Addr: secure.URL, CAFile: ca}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			for code, closed := range map[int]bool{204: true, 200: true, 410: true, 401: false, 404: false, 503: false, 504: false} {
				status = code
				err := guard.CloseOnce(t.Context(), guard.Session{ID: "a/b", TTL: time.Second, HTTP: &test.http})
				if closed != (err == nil) {
					t.Errorf("status %d: %v, want closed: %v", code, err, closed)
				}
				if r, want := <-got, (request{"DELETE", "/v1/sessions/a%2Fb", test.auth}); r != want {
					t.Errorf("got %+v, want %+v", r, want)
				}
			}
		})
	}
	if err := guard.CloseOnce(t.Context(), guard.Session{ID: "a", HTTP: &guard.HTTP{Addr: filepath.Join(dir, "none")}}); err == nil {
		t.Error("a socket that is not there closed a session")
	}
	if err := guard.CloseOnce(t.Context(), guard.Session{ID: "a", HTTP: &guard.HTTP{Addr: secure.URL}}); err == nil {
		t.Error("a stranger's certificate was trusted")
	}
	if err := guard.CloseOnce(t.Context(), guard.Session{ID: "a", Closer: "unheard of"}); err == nil {
		t.Error("an unknown closer closed a session")
	}
}

// peerNode is a member as far as the guard can tell: it greets and answers.
func peerNode(t *testing.T, id string, tls *transport.TLS, key []byte, h transport.Handler) guard.Peer {
	t.Helper()
	tr, err := transport.Listen(transport.Config{
		Bind: "127.0.0.1:0", TLS: tls, GossipKey: key,
		Identity: func() transport.Identity { return transport.Identity{ClusterID: "c", NodeID: id, Boot: 1, Nonce: id} },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	tr.Serve(h)
	return guard.Peer{NodeID: id, Addr: tr.Addr()}
}

// Ensure the session is closed through whichever peer answers, in the name of the node that died, with its keys.
func TestCloser_RPC(t *testing.T) {
	dir := t.TempDir()
	if err := transport.NewCA(filepath.Join(dir, "ca")); err != nil {
		t.Fatal(err)
	}
	files := func(id string) (ca, cert, key string) {
		out := filepath.Join(dir, id)
		if err := transport.NewNodeCert(filepath.Join(dir, "ca"), id, nil, out); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(out, "ca.crt"), filepath.Join(out, "node.crt"), filepath.Join(out, "node.key")
	}
	tls, err := transport.LoadTLS(files("n2"))
	if err != nil {
		t.Fatal(err)
	}
	key := transport.NewGossipKey()
	for _, test := range []struct {
		name string
		tls  *transport.TLS
		key  []byte
	}{{"plain", nil, nil}, {"TLS and gossip key", tls, key}} {
		t.Run(test.name, func(t *testing.T) {
			type call struct {
				peer   transport.Identity
				method transport.Method
				body   *nodepb.CloseCrashedRequest
			}
			calls := make(chan call, 10)
			var refuse atomic.Bool
			peer := peerNode(t, "n2", test.tls, test.key, func(_ context.Context, p transport.Identity, m transport.Method, body []byte) ([]byte, error) {
				q := new(nodepb.CloseCrashedRequest)
				if err := proto.Unmarshal(body, q); err != nil {
					return nil, err
				}
				calls <- call{p, m, q}
				if refuse.Load() {
					return nil, errors.New("no quorum")
				}
				return proto.Marshal(&nodepb.CloseCrashedReply{Closed: true})
			})
			// A port where nobody listens, and one whose owner never says a word.
			closed, silent := listen(t), listen(t)
			closed.Close()
			rpc := &guard.RPC{ClusterID: "c", NodeID: "n1", Boot: 3, Nonce: "x", Addr: "127.0.0.1:7400", GossipKey: test.key, Peers: []guard.Peer{
				{NodeID: "n3", Addr: closed.Addr().String()}, {NodeID: "n4", Addr: silent.Addr().String()}, peer,
			}}
			if test.tls != nil {
				rpc.CAFile, rpc.CertFile, rpc.KeyFile = files("n1")
			}
			s := guard.Session{ID: "s1", TTL: time.Minute, RPC: rpc}
			began := time.Now()
			if err := guard.CloseOnce(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			t.Logf("closed in %v, two peers of three dead", time.Since(began))
			c := <-calls
			if c.peer.NodeID != "n1" || c.peer.Boot != 3 || c.peer.Nonce != "x" || c.method != 9 {
				t.Errorf("method %d came from %+v", c.method, c.peer)
			}
			if c.body.SessionId != "s1" || c.body.NodeId != "n1" || c.body.Boot != 3 {
				t.Errorf("it asks for %v", c.body)
			}
			refuse.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if err := guard.CloseOnce(ctx, s); err == nil {
				t.Error("a refusal closed the session")
			}
			refuse.Store(false)
			// Another node at the address closes nothing.
			s.RPC.Peers = []guard.Peer{{NodeID: "n5", Addr: peer.Addr}}
			if err := guard.CloseOnce(t.Context(), s); err == nil {
				t.Error("a stranger closed the session")
			}
		})
	}
	if err := guard.CloseOnce(t.Context(), guard.Session{ID: "s", RPC: &guard.RPC{NodeID: "n1"}}); err == nil {
		t.Error("nobody closed a session")
	}
	if err := guard.CloseOnce(t.Context(), guard.Session{ID: "s", RPC: &guard.RPC{NodeID: "n1", CAFile: "/no/such/file", Peers: []guard.Peer{{}}}}); err == nil {
		t.Error("missing TLS material closed a session")
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}
