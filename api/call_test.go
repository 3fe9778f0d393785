package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
)

// Bad input is refused with the name of what is wrong, and changes nothing.
func TestBadInput(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	id := s.session(`{"ttl": "30s"}`)
	before := n.View().Revision()
	long := strings.Repeat("k", 513)
	for _, c := range []struct{ name, method, path, body, word string }{
		{"no JSON", "POST", "/v1/sessions", `{"ttl": `, "not JSON"},
		{"a list", "POST", "/v1/sessions", `[]`, "must be a JSON object"},
		{"trailing data", "POST", "/v1/sessions", `{"ttl": "10s"} {}`, "after its JSON object"},
		{"unknown field", "POST", "/v1/sessions", `{"ttl": "10s", "tll": "9s"}`, `"tll"`},
		{"another case", "POST", "/v1/sessions", `{"TTL": "10s"}`, `"TTL"`},
		{"field twice", "POST", "/v1/sessions", `{"ttl": "10s", "ttl": "20s"}`, "given twice"},
		{"number for text", "POST", "/v1/sessions", `{"ttl": "10s", "name": 5}`, "name must be a string"},
		{"number for duration", "POST", "/v1/sessions", `{"ttl": 10}`, "ttl must be a duration string"},
		{"bad duration", "POST", "/v1/sessions", `{"ttl": "10 seconds"}`, `"10 seconds"`},
		{"text for bool", "POST", "/v1/sessions", `{"ttl": "10s", "instance": "yes"}`, "instance must be true or false"},
		{"wrong labels", "POST", "/v1/sessions", `{"ttl": "10s", "labels": {"a": 1}}`, "labels must be"},
		{"no TTL", "POST", "/v1/sessions", ``, "from 2s to 1m0s"},
		{"TTL too short", "POST", "/v1/sessions", `{"ttl": "1s"}`, "ttl is 1s: it must lie between 2s and 1m0s"},
		{"TTL too long", "POST", "/v1/sessions", `{"ttl": "61s"}`, "ttl is 1m1s: it must lie between 2s and 1m0s"},
		{"not UTF-8", "POST", "/v1/leases/acquire", "{\"key\": \"\xff\", \"session_id\": \"" + id + "\"}", "UTF-8"},
		{"half a surrogate", "POST", "/v1/leases/acquire", `{"key": "\ud800", "session_id": "` + id + `"}`, "surrogate"},
		{"empty key", "POST", "/v1/leases/acquire", acquireBody("", id), "key"},
		{"blank key", "POST", "/v1/leases/acquire", acquireBody(" ", id), "key must not be blank"},
		{"no instance", "POST", "/v1/instances//drain", ``, "/v1/instances//drain has an empty name"},
		{"without an empty name", "POST", "/v1/groups/g/plan", `{"without": [""]}`, "without has an empty name"},
		{"long key", "POST", "/v1/leases/acquire", acquireBody(long, id), "key"},
		{"control character", "POST", "/v1/leases/acquire", acquireBody("a\nb", id), "key"},
		{"negative wait", "POST", "/v1/leases/acquire", acquireBody("k", id, "wait", "-1s"), "wait"},
		{"token as text", "POST", "/v1/leases/release", `{"key": "k", "token": "1", "session_id": "` + id + `"}`, "token must be a whole number"},
		{"token with fraction", "POST", "/v1/leases/release", `{"key": "k", "token": 1.5, "session_id": "` + id + `"}`, "token must be a whole number"},
		{"negative token", "POST", "/v1/leases/release", `{"key": "k", "token": -1, "session_id": "` + id + `"}`, "token must be a whole number"},
		{"no token", "POST", "/v1/leases/revoke", `{"key": "k"}`, "token"},
		{"body over 1 MiB", "POST", "/v1/leases/acquire", `{"key": "` + strings.Repeat("k", 1<<20) + `"}`, "1048576"},
		{"unknown parameter", "GET", "/v1/leases?consitency=local", "", `"consitency"`},
		{"parameter twice", "GET", "/v1/leases?limit=1&limit=2", "", "given twice"},
		{"parameter of another call", "GET", "/v1/status?limit=1", "", `"limit"`},
		{"bad consistency", "GET", "/v1/leases?consistency=strong", "", `"strong"`},
		{"bad bound", "GET", "/v1/leases?consistency=bounded:soon", "", "bounded:soon"},
		{"zero limit", "GET", "/v1/leases?limit=0", "", "limit"},
		{"bad limit", "GET", "/v1/leases?limit=many", "", "limit"},
		{"key and prefix", "GET", "/v1/leases?key=a&prefix=b", "", "not both"},
		{"bad timeout", "GET", "/v1/status?timeout=5", "", "timeout"},
		{"zero timeout", "GET", "/v1/status?timeout=0s", "", "timeout"},
		{"bad query", "GET", "/v1/status?%zz", "", "query"},
		{"bad after", "GET", "/v1/instances?after=x", "", "after"},
		{"bad since", "GET", "/v1/history?since=-1", "", "since"},
		{"bad type", "GET", "/v1/events?type=*.x", "", "type"},
		{"bad last event", "GET", "/v1/events?since=x", "", "since"},
		{"expiry of a mark", "POST", "/v1/instances/" + n.InstanceID() + "/cordon", `{"expires_in": "-1s"}`, "expires_in"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := *s
			s.t = t
			s.call(c.method, c.path, c.body).refused(400, "invalid_argument", c.word)
		})
	}
	if got := n.View().Revision(); got != before {
		t.Errorf("revision went from %d to %d", before, got)
	}
	s.call("GET", "/v1/events", "", "Last-Event-ID", "here").refused(400, "invalid_argument", "Last-Event-ID")
	for _, path := range []string{"/", "/v1", "/v1/group", "/v1/leases/", "/v1/sessions/x/y"} {
		s.call("GET", path, "").refused(404, "not_found", path)
	}
	wrong := s.call("POST", "/v1/status", "").refused(405, "not_found", "GET")
	if got := wrong.header.Get("Allow"); got != "GET" {
		t.Errorf("Allow %q, want GET", got)
	}
}

// stubNode is a real node with some of it replaced.
type stubNode struct {
	api.Node
	propose   func(ctx context.Context, op fsm.Op) (*fsm.Result, error)
	keepAlive func(ctx context.Context) error
	read      func(ctx context.Context) error
	stepDown  error
	ready     error
	closing   chan struct{}
}

func (s stubNode) Propose(ctx context.Context, op fsm.Op, opts ...node.ProposeOption) (*fsm.Result, error) {
	if s.propose == nil {
		return s.Node.Propose(ctx, op, opts...)
	}
	return s.propose(ctx, op)
}

func (s stubNode) KeepAlive(ctx context.Context, id string) (node.KeepAliveAnswer, error) {
	if s.keepAlive == nil {
		return s.Node.KeepAlive(ctx, id)
	}
	return node.KeepAliveAnswer{}, s.keepAlive(ctx)
}

func (s stubNode) Read(ctx context.Context, c node.Consistency) (*fsm.View, node.Freshness, error) {
	if s.read == nil {
		return s.Node.Read(ctx, c)
	}
	return nil, node.Freshness{}, s.read(ctx)
}

func (s stubNode) StepDown(ctx context.Context, to string) error {
	if s.stepDown == nil {
		return s.Node.StepDown(ctx, to)
	}
	return s.stepDown
}

func (s stubNode) ReadyErr() error {
	if s.ready == nil {
		return s.Node.ReadyErr()
	}
	return s.ready
}

func (s stubNode) Closing() <-chan struct{} {
	if s.closing == nil {
		return s.Node.Closing()
	}
	return s.closing
}

// Every code reaches the caller with its status, whatever it came from.
func TestCodes(t *testing.T) {
	n := startReady(t)
	for code := fsm.CodeInvalidArgument; code <= fsm.CodeInternal; code++ {
		want := map[fsm.Code]int{
			fsm.CodeInvalidArgument: 400, fsm.CodeUnauthenticated: 401, fsm.CodePermissionDenied: 403, fsm.CodeNotFound: 404, fsm.CodeWaitTimeout: 408,
			fsm.CodeLeaseHeld: 409, fsm.CodeStaleToken: 409, fsm.CodeDraining: 409, fsm.CodeAlreadyExists: 409, fsm.CodeWrongState: 409,
			fsm.CodeSessionExpired: 410, fsm.CodeETagMismatch: 412, fsm.CodeOverloaded: 429, fsm.CodeNoQuorum: 503, fsm.CodeNotReady: 503,
			fsm.CodeClosing: 503, fsm.CodeUncertain: 504, fsm.CodeInternal: 500,
		}[code]
		t.Run(code.String(), func(t *testing.T) {
			refusal := fsm.Errorf(code, "because")
			s := serve(t, stubNode{
				Node:      n,
				propose:   func(context.Context, fsm.Op) (*fsm.Result, error) { return nil, fmt.Errorf("wrapped: %w", refusal) },
				keepAlive: func(context.Context) error { return refusal }, read: func(context.Context) error { return refusal }, stepDown: refusal,
			})
			s.call("POST", "/v1/leases/acquire", acquireBody("k", "s")).refused(want, code.String(), "because")
			s.call("POST", "/v1/sessions/s/keepalive", "").refused(want, code.String(), "because")
			s.call("GET", "/v1/leases?consistency=linearizable", "").refused(want, code.String(), "because")
			s.call("POST", "/v1/raft/step-down", "").refused(want, code.String(), "because")

			// A refusal may come as a result, too.
			s = serve(t, stubNode{Node: n, propose: func(context.Context, fsm.Op) (*fsm.Result, error) {
				return &fsm.Result{Code: uint32(code), Message: "because"}, nil
			}})
			s.call("POST", "/v1/leases/release", tokenBody("k", 1, "session_id", "s")).refused(want, code.String(), "because")
		})
	}
}

// The detail of an uncertain outcome has the names of everything that travels.
func TestCodes_UncertainDetail(t *testing.T) {
	refusal := &fsm.Error{Code: fsm.CodeUncertain, Message: "because", Detail: node.RequestID{Boot: 3, Seq: 7}}
	s := serve(t, stubNode{Node: startReady(t), propose: func(context.Context, fsm.Op) (*fsm.Result, error) { return nil, refusal }})
	got := s.call("POST", "/v1/leases/release", tokenBody("k", 1, "session_id", "s")).refused(504, "uncertain", "because").at("error.detail")
	want := map[string]any{"boot": json.Number("3"), "seq": json.Number("7")}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("detail %v, want %v", got, want)
	}
}

// An end without a verdict is uncertain where something may have been changed.
func TestCodes_NoVerdict(t *testing.T) {
	n := startReady(t)
	s := serve(t, stubNode{
		Node:      n,
		propose:   func(ctx context.Context, _ fsm.Op) (*fsm.Result, error) { <-ctx.Done(); return nil, ctx.Err() },
		keepAlive: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		read:      func(context.Context) error { return errors.New("copy is on fire") },
	})
	began := time.Now()
	s.call("POST", "/v1/leases/release?timeout=50ms", tokenBody("k", 1, "session_id", "s")).refused(504, "uncertain")
	s.call("POST", "/v1/sessions/s/keepalive?timeout=50ms", "").refused(503, "no_quorum")
	s.call("GET", "/v1/leases", "").refused(503, "not_ready", "on fire")
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("took %v, though the timeouts were 50ms", took)
	}
}

// A node that begins to leave sends those who wait away, out of the queue.
func TestAcquire_Closing(t *testing.T) {
	n := startReady(t)
	closing := make(chan struct{})
	s := serve(t, stubNode{Node: n, closing: closing})
	a, b := s.session(`{"ttl": "30s"}`), s.session(`{"ttl": "30s"}`)
	s.call("POST", "/v1/leases/acquire", acquireBody("k", a)).ok(200)
	ended := make(chan *answer, 1)
	go func() {
		a, _ := s.try(t.Context(), "POST", "/v1/leases/acquire", acquireBody("k", b, "wait", "1h"))
		ended <- a
	}()
	until(t, n, "b waits", func() bool { return n.View().WaiterCount("k") == 1 })
	close(closing)
	(<-ended).refused(503, "closing")
	if got := n.View().WaiterCount("k"); got != 0 {
		t.Errorf("%d still wait", got)
	}
}

// A caller that is gone when its grant comes gives it back.
func TestAcquire_GrantLost(t *testing.T) {
	n := startReady(t)
	gone, applied := make(chan struct{}), make(chan struct{})
	s := serve(t, stubNode{Node: n, propose: func(ctx context.Context, op fsm.Op) (*fsm.Result, error) {
		res, err := n.Propose(ctx, op)
		if _, is := op.(*fsm.Acquire); is {
			close(applied)
			<-gone
		}
		return res, err
	}})
	a := s.session(`{"ttl": "30s"}`)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.try(ctx, "POST", "/v1/leases/acquire", acquireBody("k", a))
		ended <- err
	}()
	<-applied
	if _, held := n.View().Lease("k"); !held {
		t.Fatal("not granted")
	}
	cancel()
	if err := <-ended; err == nil {
		t.Fatal("answered")
	}
	// The server notices a closed connection by itself; wait for that signal.
	srvSaw := time.AfterFunc(200*time.Millisecond, func() { close(gone) })
	defer srvSaw.Stop()
	until(t, n, "the grant is given back", func() bool { _, held := n.View().Lease("k"); return !held })
}

func TestLists(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	empty := s.call("GET", "/v1/leases", "").ok(200)
	if _, isList := empty.at("leases").([]any); !isList {
		t.Errorf("an empty list is %s, want []", empty.raw)
	}
	a := s.session(`{"ttl": "60s"}`)
	for i := range 5 {
		token := s.call("POST", "/v1/leases/acquire", acquireBody(fmt.Sprintf("k%d", i), a)).ok(200).number("token")
		if i == 4 {
			s.call("POST", "/v1/leases/release", tokenBody("k4", token, "session_id", a)).ok(200)
		}
	}
	keys := func(path string) (got []string, pages int) {
		for after := ""; ; pages++ {
			page := s.call("GET", path+after, "").ok(200)
			for i := range page.count("leases") {
				got = append(got, page.text(fmt.Sprintf("leases.%d.key", i)))
			}
			next, _ := page.at("next").(string)
			if next == "" {
				return got, pages + 1
			}
			after = "&after=" + next
		}
	}
	if got, pages := keys("/v1/leases?limit=3"); fmt.Sprint(got) != "[k0 k1 k2 k3]" || pages != 2 {
		t.Errorf("got %v on %d pages, want k0 to k3 on 2", got, pages)
	}
	if got, pages := keys("/v1/leases?limit=4"); len(got) != 4 || pages != 1 {
		t.Errorf("got %v on %d pages, want 4 on 1", got, pages)
	}
	if got, _ := keys("/v1/leases?prefix=k2"); fmt.Sprint(got) != "[k2]" {
		t.Errorf("got %v, want k2", got)
	}
	if got := s.call("GET", "/v1/leases?key=k", "").ok(200).count("leases"); got != 0 {
		t.Errorf("a key that nobody holds is listed")
	}

	// History: the newest page first, pages go back in time.
	page := s.call("GET", "/v1/history?limit=2", "").ok(200)
	if page.text("entries.0.key") != "k3" || page.text("entries.1.key") != "k4" {
		t.Errorf("got %s, want k3 and k4", page.raw)
	}
	page = s.call("GET", "/v1/history?limit=2&after="+page.text("next"), "").ok(200)
	if page.text("entries.0.key") != "k1" || page.text("entries.1.key") != "k2" {
		t.Errorf("got %s, want k1 and k2", page.raw)
	}
	page = s.call("GET", "/v1/history?limit=2&after="+page.text("next"), "").ok(200)
	if page.count("entries") != 1 || page.text("entries.0.key") != "k0" || page.at("next") != nil {
		t.Errorf("got %s, want k0 and no more", page.raw)
	}
	if got := s.call("GET", "/v1/history?key=k4", "").ok(200); got.count("entries") != 1 || got.text("entries.0.end_reason") != "released" || got.text("entries.0.ended_at") == "" {
		t.Errorf("got %s", got.raw)
	}

	// Instances, in the order of joining.
	for range 2 {
		s.call("POST", "/v1/sessions", `{"ttl": "60s", "instance": true}`).ok(201)
	}
	var ids []string
	for after := ""; ; {
		page := s.call("GET", "/v1/instances?limit=1"+after, "").ok(200)
		ids = append(ids, page.text("instances.0.instance_id"))
		next, _ := page.at("next").(string)
		if next == "" {
			break
		}
		after = "&after=" + next
	}
	if len(ids) != 3 || ids[0] != n.InstanceID() {
		t.Errorf("got %v, want the node's instance and two more", ids)
	}
	members := s.call("GET", "/v1/members", "").ok(200)
	if members.count("members") != 1 || members.text("members.0.node_id") != "n1" || members.at("members.0.voter") != true || members.at("members.0.leader") != true || members.text("members.0.gossip") != "alive" {
		t.Errorf("got %s", members.raw)
	}
	for _, level := range []string{"local", "bounded:200ms", "linearizable"} {
		got := s.call("GET", "/v1/leases?consistency="+level, "").ok(200)
		if got.count("leases") != 4 || got.text("age") == "" {
			t.Errorf("%s: got %s", level, got.raw)
		}
	}
}

// TestChecklist: the rows that this package answers for.
func TestChecklist(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	t.Run("081_health_diagnostics_instances_drain", func(t *testing.T) {
		s := *s
		s.t = t
		s.call("GET", "/healthz", "").ok(200)
		s.call("GET", "/readyz", "").ok(200)
		status := s.call("GET", "/v1/status", "").ok(200)
		for path, want := range map[string]any{
			"node_id": "n1", "instance_id": n.InstanceID(), "cluster_id": n.ClusterID(), "role": "leader", "leader_id": "n1",
			"ready": true, "draining": false, "quorum.ok": true,
		} {
			if got := status.at(path); got != want {
				t.Errorf("%s is %v, want %v", path, got, want)
			}
		}
		for path, want := range map[string]uint64{"boot": n.Boot(), "generation": 1, "version": 3, "quorum.voters": 1, "quorum.alive": 1} {
			if got := status.number(path); got != want {
				t.Errorf("%s is %d, want %d", path, got, want)
			}
		}
		path := "/v1/instances/" + api.PathEscape(n.InstanceID())
		s.call("POST", path+"/cordon", `{"reason": "disk", "by": "op", "expires_in": "1h"}`).ok(202)
		list := s.call("GET", "/v1/instances", "").ok(200)
		if list.at("instances.0.cordoned") != true || list.text("instances.0.cordon.reason") != "disk" || list.text("instances.0.cordon.expires_in") != "1h0m0s" {
			t.Errorf("got %s", list.raw)
		}
		s.call("POST", path+"/uncordon", "").ok(202)
		s.call("POST", path+"/drain", "").ok(202)
		if status := s.call("GET", "/v1/status", "").ok(200); status.at("draining") != true {
			t.Errorf("the node does not say that it drains: %s", status.raw)
		}
		if list := s.call("GET", "/v1/instances", "").ok(200); list.at("instances.0.draining") != true {
			t.Errorf("a draining instance is not shown as such: %s", list.raw)
		}
		s.call("GET", "/readyz", "").ok(200) // readiness does not depend on what runs here
		s.call("POST", path+"/undrain", "").ok(202)
		s.call("POST", "/v1/instances/unknown/drain", "").refused(404, "not_found")
	})

	// A second node, to ask the same of.
	second := startNode(t, func(c *node.Config) { c.ID, c.Join = "n2", []string{n.Addr()} })
	select {
	case <-second.Ready():
	case <-time.After(30 * time.Second):
		t.Fatalf("the second node is not ready: %v", second.ReadyErr())
	}
	both := []*site{s, serve(t, second)}
	t.Run("075_all_workloads_are_listed_the_same_from_any_instance", func(t *testing.T) {
		for _, g := range []string{"one", "two"} {
			s.call("PUT", "/v1/groups/"+g, `{"workloads": [{"key": "a"}, {"key": "b"}]}`).ok(200)
		}
		s.call("POST", "/v1/groups/two/pause", `{"workload": "b", "by": "op"}`).ok(202)
		var lists []string
		for _, s := range both {
			list := s.call("GET", "/v1/groups?consistency=linearizable", "").ok(200)
			for path, want := range map[string]string{
				"groups.0.name": "one", "groups.0.workloads.0.key": "a", "groups.0.workloads.1.key": "b",
				"groups.1.name": "two", "groups.1.workloads.0.status": "inactive", "groups.1.workloads.1.status": "paused", "groups.1.workloads.1.pause.by": "op",
			} {
				if got := list.text(path); got != want {
					t.Errorf("%s is %q, want %q", path, got, want)
				}
			}
			b, _ := json.Marshal(list.at("groups"))
			lists = append(lists, string(b))
		}
		if lists[0] != lists[1] {
			t.Errorf("one node lists %s, the other %s", lists[0], lists[1])
		}
	})
	t.Run("077_job_records_are_seen_from_every_instance", func(t *testing.T) {
		for i, s := range both {
			if got := s.call("POST", "/v1/jobs/record", `{"key": "tick"}`).ok(200).number("total"); got != uint64(i+1) {
				t.Errorf("total is %d, want %d", got, i+1)
			}
		}
		for _, s := range both {
			got := s.call("GET", "/v1/jobs?key=tick&consistency=linearizable", "").ok(200)
			if got.count("jobs") != 1 || got.number("jobs.0.total") != 2 || got.text("jobs.0.owner") != second.InstanceID() {
				t.Errorf("got %s", got.raw)
			}
			if zero := s.call("GET", "/v1/jobs?key=never", "").ok(200); zero.count("jobs") != 1 || zero.number("jobs.0.total") != 0 {
				t.Errorf("got %s", zero.raw)
			}
		}
	})
}

func TestReady(t *testing.T) {
	n := startReady(t)
	s := serve(t, stubNode{Node: n, ready: errors.New("no leader is known")})
	s.call("GET", "/readyz", "").refused(503, "not_ready", "no leader is known")
	s.call("GET", "/healthz", "").ok(200)
}

func TestMetrics(t *testing.T) {
	s := serve(t, startReady(t))
	a := s.call("GET", "/metrics", "")
	for _, name := range []string{"miw_revision", "miw_quorum_ok 1", "miw_is_leader 1"} {
		if !strings.Contains(string(a.raw), name) {
			t.Errorf("no %s in\n%s", name, a.raw)
		}
	}
	if got := a.header.Get("Content-Type"); !strings.HasPrefix(got, "text/plain") {
		t.Errorf("content type %q", got)
	}
}

// Mounted under a prefix, as an embedding service does.
func TestHandler_Mounted(t *testing.T) {
	n := startReady(t)
	mux := http.NewServeMux()
	mux.Handle("/miw/", http.StripPrefix("/miw", api.Handler(n)))
	s := serveHandler(t, n, mux)
	s.call("GET", "/miw/v1/status", "").ok(200)
	s.call("GET", "/miw/nothing", "").refused(404, "not_found")
}
