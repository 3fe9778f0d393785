package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/node"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startNode runs a real node of its own cluster on loopback until the test ends.
func startNode(t *testing.T, edit func(*node.Config)) *node.Node {
	t.Helper()
	cfg := node.Config{DataDir: t.TempDir(), Bind: "127.0.0.1:0", ID: "n1", Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	if edit != nil {
		edit(&cfg)
	}
	n, err := node.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("node ended with %v", err)
		}
	})
	return n
}

func startReady(t *testing.T) *node.Node {
	t.Helper()
	n := startNode(t, nil)
	select {
	case <-n.Ready():
	case <-time.After(30 * time.Second):
		t.Fatalf("node is not ready: %v", n.ReadyErr())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := n.Session(ctx); err != nil {
		t.Fatal(err)
	}
	return n
}

// site is a node's API over HTTP.
type site struct {
	t    *testing.T
	node api.Node
	url  string
	http *http.Client
	srv  *httptest.Server
}

func serve(t *testing.T, n api.Node, opts ...api.Option) *site {
	t.Helper()
	opts = append([]api.Option{api.WithLogger(slog.New(slog.NewTextHandler(t.Output(), nil)))}, opts...)
	return serveHandler(t, n, api.Handler(n, opts...))
}

func serveHandler(t *testing.T, n api.Node, h http.Handler) *site {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return &site{t: t, node: n, url: srv.URL, http: srv.Client(), srv: srv}
}

// breakStreams cuts every connection.
func (s *site) breakStreams() { s.srv.CloseClientConnections() }

func asError[T error](err error, into *T) bool { return errors.As(err, into) }

// answer is what came back.
type answer struct {
	t      *testing.T
	call   string
	status int
	header http.Header
	raw    []byte
	body   map[string]any
}

// call makes one call; body is JSON text, "" sends none.
func (s *site) call(method, path, body string, header ...string) *answer {
	s.t.Helper()
	a, err := s.try(s.t.Context(), method, path, body, header...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (s *site) try(ctx context.Context, method, path, body string, header ...string) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := &answer{t: s.t, call: method + " " + path, status: resp.StatusCode, header: resp.Header}
	if a.raw, err = io.ReadAll(resp.Body); err != nil {
		return nil, err
	}
	if bytes.HasPrefix(a.raw, []byte("{")) {
		dec := json.NewDecoder(bytes.NewReader(a.raw))
		dec.UseNumber()
		if err := dec.Decode(&a.body); err != nil {
			return nil, errors.New("answer is no JSON: " + string(a.raw))
		}
	}
	return a, nil
}

// ok wants a status and a revision, in the body or (without one) in the header.
func (a *answer) ok(status int) *answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: status %d, want %d: %s", a.call, a.status, status, a.raw)
	}
	if _, has := a.body["revision"]; !has && status != http.StatusNoContent {
		a.t.Fatalf("%s: no revision in %s", a.call, a.raw)
	}
	if a.header.Get("Miw-Revision") == "" {
		a.t.Fatalf("%s: no revision in the header", a.call)
	}
	return a
}

// refused wants a code with its status, and the words in its message.
func (a *answer) refused(status int, code string, words ...string) *answer {
	a.t.Helper()
	e, _ := a.body["error"].(map[string]any)
	if a.status != status || e["code"] != code {
		a.t.Fatalf("%s: %d %s, want %d %s", a.call, a.status, a.raw, status, code)
	}
	for _, w := range words {
		if message, _ := e["message"].(string); !strings.Contains(message, w) {
			a.t.Fatalf("%s: message %q lacks %q", a.call, message, w)
		}
	}
	if _, has := a.body["revision"]; !has {
		a.t.Fatalf("%s: no revision in %s", a.call, a.raw)
	}
	return a
}

// at is a field by its path: leases.0.key.
func (a *answer) at(path string) any {
	var v any = a.body
	for _, step := range strings.Split(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[step]
		case []any:
			i := int(step[0] - '0')
			if i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

func (a *answer) text(path string) string {
	a.t.Helper()
	s, ok := a.at(path).(string)
	if !ok {
		a.t.Fatalf("%s: no text %s in %s", a.call, path, a.raw)
	}
	return s
}

func (a *answer) number(path string) uint64 {
	a.t.Helper()
	n, ok := a.at(path).(json.Number)
	if !ok {
		a.t.Fatalf("%s: no number %s in %s", a.call, path, a.raw)
	}
	v, err := n.Int64()
	if err != nil {
		a.t.Fatalf("%s: %s is %v, no whole number", a.call, path, n)
	}
	return uint64(v)
}

func (a *answer) count(path string) int {
	l, _ := a.at(path).([]any)
	return len(l)
}

// session opens one and returns its ID.
func (s *site) session(body string) string {
	s.t.Helper()
	return s.call("POST", "/v1/sessions", body).ok(201).text("session_id")
}

func acquireBody(key, session string, more ...string) string {
	m := map[string]any{"key": key, "session_id": session}
	for i := 0; i+1 < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	b, _ := json.Marshal(m)
	return string(b)
}

func tokenBody(key string, token uint64, more ...string) string {
	m := map[string]any{"key": key, "token": token}
	for i := 0; i+1 < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	b, _ := json.Marshal(m)
	return string(b)
}

// until waits for a condition of the local copy.
func until(t *testing.T, n api.Node, what string, ok func() bool) {
	t.Helper()
	wake, stop := n.Watch("*")
	defer stop()
	limit := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond) // not all that changes wakes
	defer tick.Stop()
	for !ok() {
		select {
		case <-wake:
		case <-tick.C:
		case <-limit:
			t.Fatalf("not within 20s: %s", what)
		}
	}
}
