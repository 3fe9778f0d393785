package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

// stream opens an event stream and returns a function that reads the next event.
func (s *site) stream(ctx context.Context, path string, header ...string) func() api.StreamEvent {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, "GET", s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != "text/event-stream" {
		s.t.Fatalf("status %d, content type %q", resp.StatusCode, got)
	}
	lines := bufio.NewScanner(resp.Body)
	return func() api.StreamEvent {
		s.t.Helper()
		var e api.StreamEvent
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "id":
				e.ID = value
			case "event":
				e.Type = value
			case "data":
				e.Data = []byte(value)
			case "":
				if e.Type != "" {
					return e
				}
			}
		}
		s.t.Fatalf("the stream ended: %v", lines.Err())
		return e
	}
}

func dataOf(t *testing.T, e api.StreamEvent) api.Event {
	t.Helper()
	var v api.Event
	if err := json.Unmarshal(e.Data, &v); err != nil {
		t.Fatal(err)
	}
	if v.Type != e.Type || fmt.Sprintf("%d.%d", v.Revision, v.Position) != e.ID {
		t.Fatalf("event %s, id %s has the data %s", e.Type, e.ID, e.Data)
	}
	return v
}

func TestEvents(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()

	all := s.stream(ctx, "/v1/events?since=0")
	var seen []string
	for !slices.Contains(seen, "instance.joined") {
		seen = append(seen, all().Type)
	}
	for _, kind := range []string{"leader.changed", "session.opened"} {
		if !slices.Contains(seen, kind) {
			t.Errorf("no %s in %v", kind, seen)
		}
	}
	now := s.stream(ctx, "/v1/events")
	leases := s.stream(ctx, "/v1/events?type=lease.*")
	only := s.stream(ctx, "/v1/events?key=k2&type=lease.granted,lease.ended")

	a := s.session(`{"ttl": "30s", "name": "a"}`)
	token := s.call("POST", "/v1/leases/acquire", acquireBody("k1", a)).ok(200).number("token")
	s.call("POST", "/v1/leases/release", tokenBody("k1", token, "session_id", a)).ok(200)
	token2 := s.call("POST", "/v1/leases/acquire", acquireBody("k2", a)).ok(200).number("token")

	if e := now(); e.Type != "session.opened" {
		t.Errorf("a reader from now on first got %s", e.Type)
	}
	granted := leases()
	if v := dataOf(t, granted); v.Type != "lease.granted" || v.Key != "k1" || v.Token != token || v.Name != "a" || v.NodeID != "n1" || v.At.IsZero() {
		t.Errorf("got %s", granted.Data)
	}
	ended := leases()
	if v := dataOf(t, ended); v.Type != "lease.ended" || v.Token != token || v.Reason != "released" {
		t.Errorf("got %s", ended.Data)
	}
	if v := dataOf(t, only()); v.Key != "k2" || v.Token != token2 {
		t.Errorf("a reader of k2 got %+v", v)
	}
	// Taken up after an event, the stream goes on with the next one: no hole, no repeat.
	again := s.stream(ctx, "/v1/events?type=lease.*", "Last-Event-ID", granted.ID)
	if e := again(); e.ID != ended.ID {
		t.Errorf("after %s came %s, want %s", granted.ID, e.ID, ended.ID)
	}
	// Two events of one entry have one revision and follow each other.
	b := s.session(`{"ttl": "30s", "name": "b"}`)
	waited := make(chan *answer, 1)
	go func() {
		a, _ := s.try(ctx, "POST", "/v1/leases/acquire", acquireBody("k2", b, "wait", "10s"))
		waited <- a
	}()
	until(t, n, "b waits", func() bool { return n.View().WaiterCount("k2") == 1 })
	s.call("POST", "/v1/leases/release", tokenBody("k2", token2, "session_id", a)).ok(200)
	(<-waited).ok(200)
	first, second := dataOf(t, only()), dataOf(t, only())
	if first.Type != "lease.ended" || second.Type != "lease.granted" || first.Revision != second.Revision || first.Position >= second.Position {
		t.Errorf("got %+v and %+v, want the end and the grant of one entry", first, second)
	}
	if all := string(granted.Data) + string(ended.Data); strings.Contains(all, a) {
		t.Errorf("an event shows the session's ID")
	}
}

// A reader that names a place that is forgotten gets one resync, then what follows.
func TestEvents_Resync(t *testing.T) {
	n := startReady(t)
	state := fsm.NewState()
	apply := func(index uint64, ops ...fsm.Op) {
		var cmds []*fsm.Command
		for _, op := range ops {
			cmds = append(cmds, fsm.NewCommand(op))
		}
		state.Apply(index, 1, &fsm.Batch{Proposals: []*fsm.Proposal{{Commands: cmds}}})
	}
	apply(1, &fsm.InitCluster{ClusterId: "c", Version: 1})
	apply(2, &fsm.OpenSession{SessionId: "session-of-the-test", TtlMs: 10000})
	// More events than are kept: 33 entries of a thousand grants and their ends.
	for i := range uint64(33) {
		var ops []fsm.Op
		for j := range uint64(1000) {
			token := uint64(1)<<40 + i*1000 + j + 1
			ops = append(ops, &fsm.Acquire{Key: "k", SessionId: "session-of-the-test"}, &fsm.Release{Key: "k", Token: token, SessionId: "session-of-the-test"})
		}
		apply(i+3, ops...)
	}
	wake := make(chan struct{}, 1)
	views := viewNode{Node: n, view: state.View, wake: wake}
	s := serve(t, views)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	next := s.stream(ctx, "/v1/events?since=2")
	e := next()
	var resync api.Resync
	if err := json.Unmarshal(e.Data, &resync); err != nil || e.Type != "resync" || resync.Revision != 35 || e.ID != "35.0" {
		t.Fatalf("got %s %s %s, want a resync at revision 35", e.ID, e.Type, e.Data)
	}
	apply(36, &fsm.OpenSession{SessionId: "session-after-the-resync", TtlMs: 10000})
	wake <- struct{}{}
	if v := dataOf(t, next()); v.Type != "session.opened" || v.Revision != 36 {
		t.Errorf("after the resync came %+v, want what follows it", v)
	}
}

// viewNode serves another state than its node's.
type viewNode struct {
	api.Node
	view func() *fsm.View
	wake chan struct{}
}

func (v viewNode) View() *fsm.View                           { return v.view() }
func (v viewNode) Watch(...string) (<-chan struct{}, func()) { return v.wake, func() {} }

// A reader that takes nothing costs its own connection and nobody else.
func TestEvents_SlowReader(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	u, _ := url.Parse(s.url)
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /v1/events?since=0 HTTP/1.1\r\nHost: %s\r\n\r\n", u.Host) // and never read
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	fast := s.stream(ctx, "/v1/events?type=lease.granted&key=last")
	a := s.session(`{"ttl": "60s"}`)
	for i := range 300 {
		token := s.call("POST", "/v1/leases/acquire", acquireBody(fmt.Sprintf("slow%d%s", i, strings.Repeat("x", 480)), a)).ok(200).number("token")
		_ = token
	}
	s.call("POST", "/v1/leases/acquire", acquireBody("last", a)).ok(200)
	if v := dataOf(t, fast()); v.Key != "last" {
		t.Errorf("got %+v", v)
	}
}

// The client follows a stream over breaks, without a hole.
func TestClient_Events(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	c, err := api.NewClient(api.ClientConfig{Addr: s.url})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a := s.session(`{"ttl": "60s"}`)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var keys []string
	got := make(chan struct{}, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- c.Events(ctx, url.Values{"type": {"lease.granted"}, "since": {"0"}}, 10*time.Second, func(e api.StreamEvent) bool {
			var v api.Event
			_ = json.Unmarshal(e.Data, &v)
			keys = append(keys, v.Key)
			got <- struct{}{}
			return len(keys) < 6
		})
	}()
	for i := range 6 {
		s.call("POST", "/v1/leases/acquire", acquireBody(fmt.Sprintf("k%d", i), a)).ok(200)
		<-got
		if i == 2 {
			s.http.CloseIdleConnections()
			s.breakStreams()
		}
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(keys) != "[k0 k1 k2 k3 k4 k5]" {
		t.Errorf("got %v, want each once and in order", keys)
	}
}

// What there is of the past comes at once, and is told from a stream that breaks.
func TestClient_PastEvents(t *testing.T) {
	s := serve(t, startReady(t))
	c, err := api.NewClient(api.ClientConfig{Addr: s.url})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a := s.session(`{"ttl": "60s"}`)
	for i := range 1000 { // more than a batch
		s.call("POST", "/v1/leases/acquire", acquireBody(fmt.Sprintf("k%d", i), a)).ok(200)
	}
	past, err := c.PastEvents(t.Context(), url.Values{"type": {"lease.granted"}, "since": {"0"}})
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, e := range past {
		var v api.Event
		if err := json.Unmarshal(e.Data, &v); err != nil {
			t.Fatal(err)
		}
		keys[v.Key] = true
	}
	if !keys["k0"] || !keys["k999"] || len(past) < 1000 {
		t.Errorf("got %d events of %d keys", len(past), len(keys))
	}
	if past, err = c.PastEvents(t.Context(), url.Values{"key": {"nobody's"}, "since": {"0"}}); err != nil || len(past) != 0 {
		t.Errorf("got %v, %v", past, err)
	}
	s.srv.Close()
	if _, err := c.PastEvents(t.Context(), url.Values{"since": {"0"}}); err == nil {
		t.Error("nobody answers, and there is no error")
	}
}

func TestClient_Unreachable(t *testing.T) {
	c, err := api.NewClient(api.ClientConfig{Addr: t.TempDir() + "/miw.sock"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Do(t.Context(), api.Request{Method: "GET", Path: "/v1/status"}, nil)
	var un *api.UnreachableError
	if !asError(err, &un) || un.Sent || !strings.Contains(err.Error(), "there is no socket") {
		t.Errorf("got %v", err)
	}
	for _, addr := range []string{"", "ftp://x", "http://", "http://a?b=c"} {
		if _, err := api.NewClient(api.ClientConfig{Addr: addr}); err == nil {
			t.Errorf("address %q is taken", addr)
		}
	}
}

// A stream that names its timeout ends with it, as a stream ends and not as one breaks.
func TestEvents_EndWithTheirTimeout(t *testing.T) {
	s := serve(t, startReady(t))
	start := time.Now()
	resp, err := s.http.Get(s.url + "/v1/events?since=0&timeout=150ms")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("the stream broke: %v", err)
	}
	if took := time.Since(start); took < 150*time.Millisecond || took > 5*time.Second {
		t.Errorf("the stream ended after %v, want 150ms", took)
	}
	if !strings.Contains(string(b), "event: leader.changed\n") {
		t.Errorf("no events came before the end: %q", b)
	}
}
