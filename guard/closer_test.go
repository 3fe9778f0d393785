//go:build linux

package guard_test

import (
	"context"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/guard"
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
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	local := &http.Server{Handler: h}
	go local.Serve(l)
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
