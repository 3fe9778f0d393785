package api_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/artifact"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
)

// factory is a node that runs workers, with its API.
type factory struct {
	*site
	node *node.Node
	dir  string // of its artifacts
	// slow holds up the load of the code "slow" until something comes or it is closed.
	slow chan struct{}
}

// loader is a runtime of kind exec that reads the code, runs nothing and is held
// up by a source whose code is slow.
type loader struct{ f *factory }

func (l loader) Name() string            { return worker.RuntimeExec }
func (l loader) Provides() []string      { return []string{worker.RuntimeExec} }
func (l loader) Check(worker.Spec) error { return nil }

func (l loader) Load(ctx context.Context, p worker.Program) (worker.Unit, error) {
	b, err := os.ReadFile(p.Code.Path())
	if err != nil {
		return nil, err
	}
	switch strings.TrimSpace(string(b)) {
	case "slow":
		select {
		case <-l.f.slow:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "bad":
		return nil, worker.Errorf(worker.TypeNotExecutable, "the code is bad")
	}
	return idle{}, nil
}

// idle runs until it is told to stop.
type idle struct{}

func (idle) Run(ctx context.Context, r worker.Run) error {
	select {
	case <-r.Draining():
	case <-ctx.Done():
	}
	return nil
}

func (idle) Unload() error { return nil }

func newFactory(t *testing.T) *factory {
	t.Helper()
	f := &factory{node: startReady(t), slow: make(chan struct{})}
	f.dir = filepath.Join(t.TempDir(), "artifacts")
	store, err := artifact.Open(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	funcs := worker.Funcs(map[string]func(context.Context, worker.Run) error{
		"idle": func(ctx context.Context, r worker.Run) error { return idle{}.Run(ctx, r) },
		"fail": func(context.Context, worker.Run) error { return worker.Errorf(worker.TypeExited, "code 3") },
	})
	cat, err := worker.NewCatalog(f.node, func(c *worker.Config) {
		c.Runtimes = []worker.Runtime{funcs, loader{f}}
		c.Artifacts = &worker.Depot{Store: store}
		c.RunRestarts = -1
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- cat.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("catalog ended with %v", err)
		}
	})
	f.site = serve(t, f.node, api.WithCatalog(cat), api.WithArtifacts(store))
	return f
}

// file makes a file with this code and returns its path.
func (f *factory) file(code string) string {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), "code")
	if err := os.WriteFile(path, []byte(code), 0o644); err != nil {
		f.t.Fatal(err)
	}
	return path
}

func digestOf(code string) string {
	d := sha256.Sum256([]byte(code))
	return hex.EncodeToString(d[:])
}

// create makes a worker and returns its ID.
func (f *factory) create(body string) string {
	f.t.Helper()
	return f.call("POST", "/v1/workers", body).ok(201).text("worker_id")
}

// is waits until the worker is in that state.
func (f *factory) is(id, state string) *answer {
	f.t.Helper()
	until(f.t, f.node, "worker is "+state, func() bool {
		w, ok := f.node.View().Worker(id)
		return ok && w.State.String() == state
	})
	return f.call("GET", "/v1/workers/"+id, "").ok(200)
}

// events are the types of the events of a worker, in order.
func (f *factory) events(id string) (types []string) {
	events, _ := f.node.View().Events(fsm.EventID{})
	for e := range events {
		if e.Key == "workers/"+id && e.Worker != nil {
			types = append(types, e.Type.String())
		}
	}
	return types
}

// The whole life of a worker over HTTP.
func TestWorkers(t *testing.T) {
	f := newFactory(t)
	made := f.call("POST", "/v1/workers", `{"name": "mailer", "runtime": "func", "source": "idle", "by": "ann", "tags": {"team": "a", "env": "x"},
		"config": {"queue": "main"}, "args": ["-v"], "env": {"A": "1"}}`).ok(201)
	id := made.text("worker_id")
	if made.text("state") != "loading" || made.number("etag") != 1 || made.header.Get("ETag") != `"1"` || made.at("start_requested") != false {
		t.Errorf("got %s, ETag %s", made.raw, made.header.Get("ETag"))
	}
	got := f.is(id, "stopped")
	for path, want := range map[string]any{
		"worker_id": id, "name": "mailer", "runtime": "func", "source": "idle", "state": "stopped", "start_requested": false, "error": nil,
		"attempts": json.Number("1"), "tags.team": "a", "env.A": "1", "config.queue": "main", "args.0": "-v", "restart": "on_failure",
		"history.0.source": "idle", "history.0.by": "ann", "instance_id": nil, "token": nil,
	} {
		if got.at(path) != want {
			t.Errorf("%s is %v, want %v", path, got.at(path), want)
		}
	}
	etag := got.header.Get("ETag")
	if etag != fmt.Sprintf("%q", fmt.Sprint(got.number("etag"))) {
		t.Errorf("ETag is %s, etag %d", etag, got.number("etag"))
	}

	f.call("POST", "/v1/workers/"+id+"/start", "", "If-Match", `"77"`).refused(412, "etag_mismatch")
	started := f.call("POST", "/v1/workers/"+id+"/start", `{"by": "ann"}`, "If-Match", etag).ok(200)
	if started.text("state") != "running" {
		t.Errorf("got %s", started.raw)
	}
	f.call("POST", "/v1/workers/"+id+"/start", "").ok(200) // again changes nothing
	until(t, f.node, "it has an instance", func() bool { l, ok := f.node.View().Lease("workers/" + id); return ok && l.Token != 0 })
	running := f.call("GET", "/v1/workers/"+id, "").ok(200)
	if running.text("instance_id") != f.node.InstanceID() || running.text("node_id") != "n1" || running.number("token") == 0 || running.number("etag") != started.number("etag") {
		t.Errorf("got %s", running.raw)
	}
	if g := f.call("GET", "/v1/groups/workers", "").ok(200); g.text("workloads.0.key") != id || g.text("members.0.declares") != "runtimes" || g.text("members.0.runtimes.0") != "exec" {
		t.Errorf("got %s", g.raw)
	}

	stopped := f.call("POST", "/v1/workers/"+id+"/stop", "", "If-Match", fmt.Sprint(started.number("etag"))).ok(200)
	if stopped.text("state") != "stopped" || stopped.number("etag") <= started.number("etag") {
		t.Errorf("got %s", stopped.raw)
	}
	tagged := f.call("PUT", "/v1/workers/"+id+"/tags", `{"tags": {"team": "b"}}`, "If-Match", stopped.header.Get("ETag")).ok(200)
	if got := f.call("GET", "/v1/workers/"+id, "").ok(200); got.text("tags.team") != "b" || got.at("tags.env") != nil || got.number("etag") != tagged.number("etag") {
		t.Errorf("got %s", got.raw)
	}
	f.call("DELETE", "/v1/workers/"+id, "", "If-Match", stopped.header.Get("ETag")).refused(412, "etag_mismatch")
	f.call("DELETE", "/v1/workers/"+id, `{"by": "ann"}`).ok(200)
	for method, call := range map[string]string{"GET": "", "POST": "/start", "PUT": "/tags", "DELETE": ""} {
		f.call(method, "/v1/workers/"+id+call, map[string]string{"PUT": `{"tags": {}}`}[method]).refused(404, "not_found", id)
	}
	want := []string{"worker.created", "worker.loaded", "worker.started", "worker.stopped", "worker.deleted"}
	if got := f.events(id); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("events %v, want %v", got, want)
	}
}

// What the code is, loading finds out, and says so in the record and the event.
func TestWorkers_LoadFails(t *testing.T) {
	f := newFactory(t)
	since := f.node.View().Revision()
	bad := f.create(fmt.Sprintf(`{"name": "bad", "runtime": "exec", "source": %q, "start": true}`, f.file("bad")))
	got := f.is(bad, "load_failed")
	if got.text("error.type") != "not_executable" || got.text("error.message") != "the code is bad" || got.number("attempts") != 1 || got.at("start_requested") != true {
		t.Errorf("got %s", got.raw)
	}
	if e := (&sharded{site: f.site}).event(since, "worker.load_failed"); e.WorkerID != bad || e.Name != "bad" || e.Runtime != "exec" || e.State != "load_failed" ||
		e.Error == nil || e.Error.Type != "not_executable" || e.InstanceID != f.node.InstanceID() || e.Key != "workers/"+bad {
		t.Errorf("got event %+v", e)
	}
	f.call("POST", "/v1/workers/"+bad+"/start", "").refused(409, "wrong_state", "reload")
	f.call("POST", "/v1/workers/"+bad+"/reload", fmt.Sprintf(`{"source": %q}`, f.file("good"))).ok(202)
	if got := f.is(bad, "running"); got.count("history") != 2 || got.text("history.1.sha256") != digestOf("good") || got.at("error") != nil { // the start request was kept
		t.Errorf("got %s", got.raw)
	}

	missing := f.create(`{"name": "missing", "runtime": "exec", "source": "/no/such/file"}`)
	other := f.create(fmt.Sprintf(`{"name": "other", "runtime": "exec", "source": %q, "sha256": %q}`, f.file("this"), digestOf("that")))
	if got := f.is(missing, "load_failed"); got.text("error.type") != "source_not_found" || got.text("source") != "/no/such/file" {
		t.Errorf("got %s", got.raw)
	}
	if got := f.is(other, "load_failed"); got.text("error.type") != "digest_mismatch" {
		t.Errorf("got %s", got.raw)
	}
	f.call("POST", "/v1/workers/"+other+"/reload", `{"source": "/no/such/file"}`).ok(202)
	if got := f.is(other, "load_failed"); got.text("error.type") != "source_not_found" {
		t.Errorf("got %s", got.raw)
	}
}

// A worker that fails for good says why.
func TestWorkers_RunFails(t *testing.T) {
	f := newFactory(t)
	id := f.create(`{"name": "x", "runtime": "func", "source": "fail", "start": true}`)
	if got := f.is(id, "failed"); got.text("error.type") != "exited" || got.text("error.message") != "code 3" {
		t.Errorf("got %s", got.raw)
	}
	f.call("POST", "/v1/workers/"+id+"/start", "").ok(200)
}

// A create answers before anything is loaded; what is asked of a worker that is
// loading waits for the load.
func TestWorkers_WhileLoading(t *testing.T) {
	f := newFactory(t)
	id := f.create(fmt.Sprintf(`{"name": "slow", "runtime": "exec", "source": %q}`, f.file("slow")))
	if got := f.call("POST", "/v1/workers/"+id+"/start", "").ok(202); got.text("state") != "loading" || got.at("start_requested") != true {
		t.Errorf("got %s", got.raw)
	}
	f.call("POST", "/v1/workers/"+id+"/reload", "").refused(409, "wrong_state", "loading already")
	f.call("POST", "/v1/workers/"+id+"/stop", "").ok(202)
	f.call("POST", "/v1/workers/"+id+"/start", "").ok(202)
	f.call("GET", "/readyz", "").ok(200) // does not wait for workers
	if got := f.call("GET", "/v1/workers/"+id, "").ok(200); got.number("attempts") != 0 || got.at("start_requested") != true {
		t.Errorf("got %s", got.raw)
	}
	close(f.slow)
	f.is(id, "running")

	// A reload of one that runs goes on with the old code.
	f.slow = make(chan struct{})
	f.call("POST", "/v1/workers/"+id+"/reload", fmt.Sprintf(`{"source": %q}`, f.file("slow"))).ok(202)
	got := f.call("GET", "/v1/workers/"+id, "").ok(200)
	if got.text("state") != "loading" || got.at("keeps_running") != true || got.text("next.sha256") != digestOf("slow") {
		t.Errorf("got %s", got.raw)
	}
	close(f.slow)
	if got := f.is(id, "running"); got.at("next") != nil || got.at("keeps_running") != nil {
		t.Errorf("got %s", got.raw)
	}
}

// What can be seen at once is refused with the name of what is wrong, and leaves no record.
func TestWorkers_BadInput(t *testing.T) {
	f := newFactory(t)
	tags := func(n int) string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint("k", i)] = "v"
		}
		b, _ := json.Marshal(m)
		return string(b)
	}
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, artifact.MaxSize+1); err != nil {
		t.Fatal(err)
	}
	body := func(fields string) string {
		return `{"name": "x", "runtime": "func", "source": "idle", ` + fields + `}`
	}
	for _, c := range []struct{ name, body, word string }{
		{"no runtime", `{"name": "x", "source": "y"}`, "runtime is missing"},
		{"unknown runtime", `{"name": "x", "runtime": "perl", "source": "y"}`, `"perl"`},
		{"no name", `{"runtime": "func", "source": "idle"}`, "name"},
		{"long name", `{"name": "` + strings.Repeat("n", 257) + `", "runtime": "func", "source": "idle"}`, "name"},
		{"no source", `{"name": "x", "runtime": "func"}`, "source"},
		{"malformed digest", body(`"sha256": "abc"`), "sha256"},
		{"malformed source", `{"name": "x", "runtime": "exec", "source": "sha256:abc"}`, "sha256"},
		{"51 tags", body(`"tags": ` + tags(51)), "tags are 51, at most 50"},
		{"long key of a tag", body(`"tags": {"` + strings.Repeat("k", 129) + `": ""}`), "tag key has 129 bytes"},
		{"long value of a tag", body(`"tags": {"k": "` + strings.Repeat("v", 1025) + `"}`), "1025 bytes"},
		{"large config", body(`"config": "` + strings.Repeat("c", 64<<10) + `"`), "config has"},
		{"unknown policy", body(`"restart": "sometimes"`), "restart"},
		{"unknown field", body(`"strat": true`), `"strat"`},
		{"env with an equals sign", body(`"env": {"A=B": "c"}`), "env"},
		{"text for args", body(`"args": "a b"`), "args must be a list of strings"},
		{"http", `{"name": "x", "runtime": "exec", "source": "http://example.org/x"}`, "https"},
		{"URL without a digest", `{"name": "x", "runtime": "exec", "source": "https://example.org/x"}`, "sha256 is missing"},
		{"a folder", fmt.Sprintf(`{"name": "x", "runtime": "exec", "source": %q}`, t.TempDir()), "no regular file"},
		{"a device", `{"name": "x", "runtime": "exec", "source": "/dev/zero"}`, "no regular file"},
		{"a large file", fmt.Sprintf(`{"name": "x", "runtime": "exec", "source": %q}`, big), "268435456"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := *f.site
			s.t = t
			s.call("POST", "/v1/workers", c.body).refused(400, "invalid_argument", c.word)
		})
	}
	if n := f.node.View().WorkerCount(); n != 0 {
		t.Errorf("%d workers were recorded", n)
	}
	id := f.create(`{"name": "x", "runtime": "func", "source": "idle"}`)
	f.is(id, "stopped")
	for _, etag := range []string{"x", `"`, `"0"`, `W/"1"`, `"1", "2"`, "-1"} {
		f.call("POST", "/v1/workers/"+id+"/start", "", "If-Match", etag).refused(400, "invalid_argument", "If-Match")
	}
	f.call("PUT", "/v1/workers/"+id+"/tags", `{}`).refused(400, "invalid_argument", "tags is missing")
	f.call("POST", "/v1/workers/"+id+"/reload", `{"sha256": "`+digestOf("")+`"}`).refused(400, "invalid_argument", "sha256")
	f.call("POST", "/v1/workers/nobody/start", "").refused(400, "invalid_argument", "worker_id")
	f.call("GET", "/v1/workers/nobody", "").refused(404, "not_found", "nobody")
	f.call("GET", "/v1/workers?state=idle", "").refused(400, "invalid_argument", `"idle"`)
	f.call("GET", "/v1/workers?tag=a", "").refused(400, "invalid_argument", `"a"`)
	f.call("GET", "/v1/workers?tag=a=1&tag=a=2", "").refused(400, "invalid_argument", "both")
}

// Lists take filters, all of which must match, and come in pages.
func TestWorkers_List(t *testing.T) {
	f := newFactory(t)
	ids := map[string]string{}
	for _, w := range []struct{ name, more string }{
		{"a", `"tags": {"team": "red", "zone": "1"}`},
		{"b", `"tags": {"team": "red", "zone": "2"}, "start": true`},
		{"c", `"tags": {"team": "blue", "zone": "1"}`},
	} {
		ids[w.name] = f.create(`{"name": "` + w.name + `", "runtime": "func", "source": "idle", ` + w.more + `}`)
	}
	f.is(ids["a"], "stopped")
	f.is(ids["b"], "running")
	f.is(ids["c"], "stopped")
	for query, want := range map[string]string{
		"": "a b c", "tag=team=red": "a b", "tag=team=red&tag=zone=1": "a", "tag=team=green": "", "state=running": "b", "state=stopped&tag=zone=1": "a c",
		"runtime=func": "a b c", "runtime=exec": "", "name=c": "c", "consistency=linearizable": "a b c",
	} {
		got := f.call("GET", "/v1/workers?"+query, "").ok(200)
		names := map[string]bool{}
		for i := range got.count("workers") {
			names[got.text(fmt.Sprintf("workers.%d.name", i))] = true
		}
		if len(names) != len(strings.Fields(want)) {
			t.Errorf("%s: got %v, want %s", query, names, want)
		}
		for _, name := range strings.Fields(want) {
			if !names[name] {
				t.Errorf("%s: %s is missing", query, name)
			}
		}
	}
	seen, after := 0, ""
	for {
		page := f.call("GET", "/v1/workers?limit=2&after="+after, "").ok(200)
		seen += page.count("workers")
		if page.at("next") == nil {
			break
		}
		after = page.text("next")
	}
	if seen != 3 {
		t.Errorf("pages have %d workers, want 3", seen)
	}
	// A page of large records ends early.
	large := `"config": "` + strings.Repeat("c", 64<<10-2) + `"`
	for i := range 70 {
		f.create(fmt.Sprintf(`{"name": "l%d", "runtime": "func", "source": "idle", %s}`, i, large))
	}
	if page := f.call("GET", "/v1/workers", "").ok(200); page.count("workers") >= 73 || page.at("next") == nil {
		t.Errorf("a page has %d workers of %d bytes", page.count("workers"), len(page.raw))
	}
}

// A repeat under the same key is the first one's, and of the same etag.
func TestWorkers_Idempotency(t *testing.T) {
	f := newFactory(t)
	path := f.file("code")
	body := fmt.Sprintf(`{"name": "x", "runtime": "exec", "source": %q}`, path)
	first := f.call("POST", "/v1/workers", body, "Idempotency-Key", "c").ok(201)
	if err := os.WriteFile(path, []byte("other code"), 0o644); err != nil {
		t.Fatal(err)
	}
	id := first.text("worker_id")
	f.is(id, "stopped")
	if again := f.call("POST", "/v1/workers", body, "Idempotency-Key", "c").ok(201); again.text("worker_id") != id || again.text("state") != "loading" || again.number("etag") != 1 {
		t.Errorf("got %s, then %s", first.raw, again.raw)
	}
	if n := f.node.View().WorkerCount(); n != 1 {
		t.Errorf("there are %d workers", n)
	}
	if got := f.call("GET", "/v1/workers/"+id, "").ok(200); got.text("sha256") != digestOf("code") || got.text("source") != path || got.number("size") != 4 {
		t.Errorf("got %s", got.raw)
	}
	etag := f.call("GET", "/v1/workers/"+id, "").header.Get("ETag")
	a := f.call("POST", "/v1/workers/"+id+"/start", "", "Idempotency-Key", "s", "If-Match", etag).ok(200)
	b := f.call("POST", "/v1/workers/"+id+"/start", "", "Idempotency-Key", "s", "If-Match", etag).ok(200)
	if a.number("etag") != b.number("etag") {
		t.Errorf("etags %d and %d", a.number("etag"), b.number("etag"))
	}
	f.call("POST", "/v1/workers/"+id+"/start", "", "Idempotency-Key", "s").refused(400, "invalid_argument", "Idempotency-Key")
}

// A node that runs no workers changes them all the same, and keeps no code.
func TestWorkers_WithoutCatalog(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	id := s.call("POST", "/v1/workers", `{"name": "x", "runtime": "exec", "source": "/bin/true"}`).ok(201).text("worker_id")
	s.call("POST", "/v1/workers/"+id+"/start", "").ok(202)
	s.call("DELETE", "/v1/workers/"+id, "").ok(200)
	s.call("POST", "/v1/workers", `{"name": "x", "runtime": "perl", "source": "x"}`).refused(400, "invalid_argument", `"perl"`)
	s.call("PUT", "/v1/artifacts", "code").refused(409, "wrong_state", "no artifacts")
	s.call("PUT", "/v1/groups/workers", `{"workloads": []}`).refused(400, "invalid_argument", "workers")
}

// Create answers at once that nobody has the runtime, if so.
func TestWorkers_Lacks(t *testing.T) {
	f := newFactory(t)
	path := f.file("good")
	got := f.call("POST", "/v1/workers", `{"name": "x", "runtime": "exec", "source": "`+path+`"}`).ok(201)
	if got.at("lacks") != nil {
		t.Errorf("got %s", got.raw)
	}
	got = f.call("POST", "/v1/workers", `{"name": "y", "runtime": "wasm", "source": "`+path+`"}`).ok(201)
	const want = "no node provides wasm, it waits for one that does: n1 has exec, func:fail and func:idle"
	if got.text("lacks") != want {
		t.Errorf("got %s", got.raw)
	}
	if shown := f.call("GET", "/v1/workers/"+got.text("worker_id"), "").ok(200); shown.text("lacks") != want || shown.text("state") != "loading" {
		t.Errorf("got %s", shown.raw)
	}
}

// What is seen to be wrong is told before a file is taken into the store.
func TestWorkers_RefusedFirst(t *testing.T) {
	f := newFactory(t)
	path := f.file("good")
	for body, words := range map[string]string{
		`"name": "x", "runtime": "nonsense"`:                               `no runtime "nonsense"`,
		`"name": "x", "runtime": "exec", "env": {"A": "", "MIW_ADDR": ""}`: "MIW_ADDR is reserved",
		`"name": " ", "runtime": "exec"`:                                   "name must not be blank",
		`"name": "x", "runtime": "exec", "restart": "sometimes"`:           "restart is unknown",
		`"name": "x", "runtime": "exec", "tags": {"a": "\u0007"}`:          "tag a has the control character",
	} {
		f.call("POST", "/v1/workers", `{"source": "`+path+`", `+body+`}`).refused(400, "invalid_argument", words)
	}
	if files, err := os.ReadDir(f.dir); err != nil || len(files) > 0 || f.node.View().WorkerCount() > 0 {
		t.Errorf("%d artifacts, %d workers (%v)", len(files), f.node.View().WorkerCount(), err)
	}
}
