package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
)

// sharded is a node with a group and an HTTP member that takes all of it.
type sharded struct {
	*site
	node     *node.Node
	session  string
	instance string
}

func newSharded(t *testing.T, body string) *sharded {
	t.Helper()
	n := startReady(t)
	g := &sharded{site: serve(t, n), node: n}
	g.call("PUT", "/v1/groups/shards", body).ok(200)
	g.session, g.instance = g.member("py")
	return g
}

// member opens a session and joins.
func (g *sharded) member(name string) (session, instance string) {
	g.t.Helper()
	a := g.call("POST", "/v1/sessions", `{"ttl": "60s", "instance": true, "name": "`+name+`"}`).ok(201)
	joined := g.call("POST", "/v1/groups/shards/join", `{"session_id": "`+a.text("session_id")+`"}`).ok(200)
	if joined.text("instance_id") != a.text("instance_id") {
		g.t.Fatalf("joined as %s, the session is %s", joined.raw, a.raw)
	}
	return a.text("session_id"), a.text("instance_id")
}

// plan makes the node the planner and has it give workloads to an instance.
func (g *sharded) plan(instance string, workloads ...string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 20*time.Second)
	defer cancel()
	session, err := g.node.Session(ctx)
	if err != nil {
		g.t.Fatal(err)
	}
	lease, err := g.node.Propose(ctx, &fsm.Acquire{Key: fsm.PlannerKey("shards"), SessionId: session})
	if err != nil || lease.Code != 0 {
		g.t.Fatalf("plan: %v, %v", lease, err)
	}
	group, _ := g.node.View().Group("shards")
	op := &fsm.PlanGroup{Group: "shards", Inputs: group.Inputs, PlannerToken: lease.Token, Instances: []string{instance}}
	for _, w := range workloads {
		op.Assignments = append(op.Assignments, &fsm.Assignment{Workload: w})
	}
	if res, err := g.node.Propose(ctx, op); err != nil || fsm.ResultErr(res) != nil {
		g.t.Fatalf("plan: %v, %v", fsm.ResultErr(res), err)
	}
}

func (g *sharded) keepAlive() *answer {
	g.t.Helper()
	return g.call("POST", "/v1/sessions/"+g.session+"/keepalive", "").ok(200)
}

const threeShards = `{"assigner": "balanced", "rebalance": "graceful", "max_moves": 2, "by": "op", "workloads": [
	{"key": "a"}, {"key": "b", "weight": 2.5, "display_name": "B"}, {"key": "c/d", "labels": {"disk": "ssd"}}]}`

func TestGroup(t *testing.T) {
	g := newSharded(t, threeShards)
	g.plan(g.instance, "a", "b")

	got := g.call("GET", "/v1/groups/shards", "").ok(200)
	for path, want := range map[string]any{
		"name": "shards", "assigner": "balanced", "rebalance": "graceful", "by": "op", "planner": g.node.InstanceID(),
		"members.0.instance_id": g.instance, "members.0.declares": "all", "members.0.embedded": false,
		"workloads.0.key": "a", "workloads.0.status": "active", "workloads.0.owner": g.instance, "workloads.0.name": "py", "workloads.0.node_id": "n1",
		"workloads.1.display_name": "B", "workloads.2.key": "c/d", "workloads.2.status": "inactive", "workloads.2.owner": nil, "workloads.2.labels.disk": "ssd",
	} {
		if got.at(path) != want {
			t.Errorf("%s is %v, want %v", path, got.at(path), want)
		}
	}
	for path, want := range map[string]uint64{"max_moves": 2, "counts.active": 2, "counts.inactive": 1, "members.0.workloads": 2} {
		if got.number(path) != want {
			t.Errorf("%s is %v, want %d", path, got.at(path), want)
		}
	}
	if got.number("inputs") != got.number("planned_inputs") {
		t.Errorf("the plan is not that of the inputs: %s", got.raw)
	}
	if g.call("GET", "/v1/groups", "").ok(200).text("groups.0.workloads.1.owner") != g.instance {
		t.Error("the list of groups shows no owners")
	}
	if lease := g.call("GET", "/v1/leases?key=shards/a", "").ok(200); lease.text("leases.0.group") != "shards" {
		t.Errorf("the lease does not name its group: %s", lease.raw)
	}
	g.call("GET", "/v1/groups/none", "").refused(404, "not_found", `"none"`)
}

// A program outside Go is granted work by its keep-alives, and gives it back.
func TestGroup_HTTPMember(t *testing.T) {
	g := newSharded(t, threeShards)
	since := g.node.View().Revision()
	g.plan(g.instance, "a", "c/d")
	kept := g.keepAlive()
	for path, want := range map[string]any{
		"leases.0.key": "shards/a", "leases.0.state": "held", "leases.0.group": "shards", "leases.0.workload": "a",
		"leases.1.key": "shards/c/d", "leases.1.workload": "c/d",
	} {
		if kept.at(path) != want {
			t.Errorf("%s is %v, want %v", path, kept.at(path), want)
		}
	}
	if e := g.event(since, "workload.assigned"); e.Key != "shards/a" || e.Token != kept.number("leases.0.token") || e.InstanceID != g.instance {
		t.Errorf("got event %+v", e)
	}
	if e := g.event(since, "group.planned"); e.Key != "shards" || e.Total != 2 {
		t.Errorf("got event %+v", e)
	}

	body := fmt.Sprintf(`{"key": "shards/a", "token": %d, "session_id": %q, "failure": "disk full"}`, kept.number("leases.0.token"), g.session)
	g.call("POST", "/v1/leases/release", body).ok(200)
	failed := g.call("GET", "/v1/groups/shards", "").ok(200)
	if failed.at("workloads.0.status") != "failed" || failed.text("workloads.0.failure.error") != "disk full" || failed.text("workloads.0.failure.instance_id") != g.instance {
		t.Errorf("a failure is not shown: %s", failed.raw)
	}
	g.call("POST", "/v1/groups/shards/leave", `{"session_id": "`+g.session+`"}`).ok(200)
	if kept := g.keepAlive(); kept.count("leases") != 1 || kept.text("leases.0.state") != "transferring" {
		t.Errorf("who left is not told to stop: %s", kept.raw)
	}
	if left := g.call("GET", "/v1/groups/shards", "").ok(200); left.count("members") != 0 || left.text("workloads.2.status") != "transferring" {
		t.Errorf("got %s", left.raw)
	}
}

// A group goes when nobody is in it or has a workload of it, and not before.
func TestGroup_Delete(t *testing.T) {
	g := newSharded(t, threeShards)
	g.plan(g.instance, "a")
	since := g.node.View().Revision()
	g.call("DELETE", "/v1/groups/shards", "").refused(409, "wrong_state", "members (1)")
	g.call("POST", "/v1/groups/shards/leave", `{"session_id": "`+g.session+`"}`).ok(200)
	g.call("DELETE", "/v1/groups/shards", "").refused(409, "wrong_state", "still held")
	g.call("POST", "/v1/leases/release", tokenBody("shards/a", g.keepAlive().number("leases.0.token"), "session_id", g.session)).ok(200)
	g.call("DELETE", "/v1/groups/shards", `{"by": "op"}`, "Idempotency-Key", "del-1").ok(200)
	g.call("DELETE", "/v1/groups/shards", `{"by": "op"}`, "Idempotency-Key", "del-1").ok(200)
	g.call("DELETE", "/v1/groups/shards", "").refused(404, "not_found", "shards")
	g.call("DELETE", "/v1/groups/workers", "").refused(400, "invalid_argument", "workers")
	g.call("GET", "/v1/groups/shards", "").refused(404, "not_found")
	if g.call("GET", "/v1/groups", "").ok(200).count("groups") != 0 {
		t.Error("the group is still listed")
	}
	if e := g.event(since, "group.updated"); e.Key != "shards" {
		t.Errorf("got event %+v", e)
	}
}

// event is the first of its type since a revision.
func (g *sharded) event(since uint64, kind string) (e api.Event) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("%s/v1/events?since=%d&type=%s", g.url, since, kind), nil)
	if err != nil {
		g.t.Fatal(err)
	}
	resp, err := g.http.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				g.t.Fatal(err)
			}
			return e
		}
	}
	g.t.Fatalf("no event %s", kind)
	return e
}

func TestGroup_Steer(t *testing.T) {
	g := newSharded(t, threeShards)
	_, second := g.member("second")
	g.plan(g.instance, "a", "b", "c/d")
	group := func() *answer { return g.call("GET", "/v1/groups/shards", "").ok(200) }
	steer := func(verb, body string) *answer { return g.call("POST", "/v1/groups/shards/"+verb, body) }

	steer("move", `{"workload": "a", "to": "`+second+`", "reason": "test", "by": "op"}`).ok(202)
	if got := group(); got.text("workloads.0.status") != "transferring" || got.text("workloads.0.successor") != second || got.text("workloads.0.by") != "op" || got.text("workloads.0.reason") != "test" {
		t.Errorf("after move: %s", got.raw)
	}
	steer("pin", `{"workload": "b", "to": "`+second+`", "reason": "cache", "by": "op", "expires_in": "1h"}`).ok(202)
	if got := group(); got.text("workloads.1.pin.instance_id") != second || got.text("workloads.1.pin.expires_in") != "1h0m0s" || got.text("pins.0.workload") != "b" || got.text("pins.0.reason") != "cache" {
		t.Errorf("after pin: %s", got.raw)
	}
	steer("unpin", `{"workload": "b"}`).ok(202)
	if got := group(); got.count("pins") != 0 || got.at("workloads.1.pin") != nil {
		t.Errorf("after unpin: %s", got.raw)
	}
	steer("pause", `{"workload": "c/d", "reason": "noisy", "by": "op"}`).ok(202)
	if got := group(); got.text("workloads.2.status") != "transferring" || got.text("workloads.2.pause.reason") != "noisy" {
		t.Errorf("after pause: %s", got.raw)
	}
	steer("resume", `{"workload": "c/d"}`).ok(202)
	if got := group(); got.at("workloads.2.pause") != nil {
		t.Errorf("after resume: %s", got.raw)
	}

	cordon := "/v1/instances/" + api.PathEscape(second)
	g.call("POST", cordon+"/cordon", "").ok(202)
	for _, c := range []struct {
		name, verb, body string
		status           int
		code, word       string
	}{
		{"pin to a cordoned one", "pin", `{"workload": "b", "to": "` + second + `"}`, 409, "wrong_state", "cordoned"},
		{"pin to an unknown one", "pin", `{"workload": "b", "to": "nobody"}`, 404, "not_found", "nobody"},
		{"move to an unknown one", "move", `{"workload": "b", "to": "nobody"}`, 404, "not_found", "nobody"},
		{"pin an unknown workload", "pin", `{"workload": "x", "to": "` + g.instance + `"}`, 404, "not_found", "x"},
		{"no target", "move", `{"workload": "b"}`, 400, "invalid_argument", "to is missing"},
		{"no target of a pin", "pin", `{"workload": "b"}`, 400, "invalid_argument", "to is missing"},
		{"a target of a pause", "pause", `{"workload": "b", "to": "x"}`, 400, "invalid_argument", "move and pin"},
		{"expiry of a move", "move", `{"workload": "b", "to": "x", "expires_in": "1h"}`, 400, "invalid_argument", "expires_in"},
		{"expiry of a resume", "resume", `{"workload": "b", "expires_in": "1h"}`, 400, "invalid_argument", "expires_in"},
		{"negative expiry", "pause", `{"workload": "b", "expires_in": "-1h"}`, 400, "invalid_argument", "expires_in"},
		{"no workload", "pause", `{}`, 400, "invalid_argument", "workload"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := *g.site
			s.t = t
			s.call("POST", "/v1/groups/shards/"+c.verb, c.body).refused(c.status, c.code, c.word)
		})
	}
	g.call("POST", "/v1/groups/none/pause", `{"workload": "a"}`).refused(404, "not_found", "none")
}

// Every fault of a group is named at once, and nothing changes.
func TestGroup_Faults(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	before := n.View().Revision()
	a := s.call("PUT", "/v1/groups/shards", `{"assigner": "best", "rebalance": "soon", "max_moves": 10001, "workloads": [
		{"key": ""}, {"key": "a", "weight": 0}, {"key": "a"}, {"key": "  "}, {"key": "b", "weight": -1}, {"key": "c", "labels": {"": "x"}}, {"key": "d\u0007"}]}`)
	a.refused(400, "invalid_argument", "assigner", "rebalance", "max_moves", "workloads[0]", "workloads[1]: workload a: weight is 0",
		`workloads[2]: key "a" is that of workloads[1], too`, "workloads[3]", "workloads[4]: workload b: weight", "workloads[5]: workload c: label", "workloads[6]")
	if got := a.count("error.detail.faults"); got != 10 {
		t.Errorf("%d faults in the detail, want 10: %s", got, a.raw)
	}
	many := make([]string, 10001)
	for i := range many {
		many[i] = fmt.Sprintf(`{"key": "w%d"}`, i)
	}
	for _, c := range []struct{ name, body, word string }{
		{"10001 workloads", `{"workloads": [` + strings.Join(many, ",") + `]}`, "10000"},
		{"no workloads", `{"assigner": "sticky"}`, "workloads is missing"},
		{"custom", `{"assigner": "custom", "workloads": []}`, "custom"},
		{"NaN", `{"workloads": [{"key": "a", "weight": NaN}]}`, "not JSON"},
		{"weight as text", `{"workloads": [{"key": "a", "weight": "2"}]}`, "workloads[0].weight must be a number"},
		{"weight too large", `{"workloads": [{"key": "a", "weight": 1e999}]}`, "workloads[0].weight"},
		{"unknown field of a workload", `{"workloads": [{"key": "a"}, {"key": "b", "wieght": 2}]}`, `"workloads[1].wieght"`},
		{"no object", `{"workloads": ["a"]}`, "workloads[0] must be a JSON object"},
		{"no list", `{"workloads": {"a": 1}}`, "workloads must be a list"},
		{"negative moves", `{"max_moves": -1, "workloads": []}`, "max_moves must be a whole number"},
		{"over 8 MiB", `{"by": "` + strings.Repeat("x", 8<<20) + `", "workloads": []}`, "8388608"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := *s
			s.t = t
			s.call("PUT", "/v1/groups/shards", c.body).refused(400, "invalid_argument", c.word)
		})
	}
	s.call("PUT", "/v1/groups/miw", `{"workloads": []}`).refused(400, "invalid_argument", "miw")
	s.call("PUT", "/v1/groups/a%2Fb", `{"workloads": []}`).refused(400, "invalid_argument", "slash")
	if got := n.View().Revision(); got != before {
		t.Errorf("revision went from %d to %d", before, got)
	}
}

func TestGroup_JoinFaults(t *testing.T) {
	g := newSharded(t, threeShards)
	without := g.site.session(`{"ttl": "10s"}`)
	for _, c := range []struct {
		name, body string
		status     int
		code, word string
	}{
		{"unknown session", `{"session_id": "nobody"}`, 410, "session_expired", ""},
		{"no instance", `{"session_id": "` + without + `"}`, 409, "wrong_state", "instance"},
		{"empty list", `{"session_id": "` + g.session + `", "workloads": []}`, 400, "invalid_argument", "empty list"},
		{"twice", `{"session_id": "` + g.session + `", "workloads": ["b", "a", "b"]}`, 400, "invalid_argument", `"b" twice`},
		{"blank", `{"session_id": "` + g.session + `", "workloads": [" "]}`, 400, "invalid_argument", "blank"},
		{"negative capacity", `{"session_id": "` + g.session + `", "capacity": -1}`, 400, "invalid_argument", "capacity"},
		{"capacity as text", `{"session_id": "` + g.session + `", "capacity": "1"}`, 400, "invalid_argument", "capacity must be a number"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := *g.site
			s.t = t
			s.call("POST", "/v1/groups/shards/join", c.body).refused(c.status, c.code, c.word)
		})
	}
	g.call("POST", "/v1/groups/none/join", `{"session_id": "`+g.session+`"}`).refused(404, "not_found", "none")
	g.call("POST", "/v1/groups/shards/join", `{"session_id": "`+g.session+`", "workloads": ["b", "a"], "capacity": 2.5}`).ok(200)
	got := g.call("GET", "/v1/groups/shards", "").ok(200)
	if got.text("members.0.declares") != "keys" || got.at("members.0.capacity") != json.Number("2.5") {
		t.Errorf("got %s", got.raw)
	}
}

// The largest group goes through in one call, and comes back in pages.
func TestGroup_Large(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	workloads := make([]string, 10000)
	for i := range workloads {
		workloads[i] = fmt.Sprintf(`{"key": "w%05d", "display_name": "%s"}`, i, strings.Repeat("x", 200))
	}
	body := `{"workloads": [` + strings.Join(workloads, ",") + `]}`
	before := n.View().Revision()
	put := s.call("PUT", "/v1/groups/large?timeout=30s", body).ok(200)
	if put.number("workloads") != 10000 || len(put.text("catalog_hash")) != 64 {
		t.Errorf("got %s", put.raw)
	}
	if parts := n.View().Revision() - before; parts < 3 || parts > 5 {
		t.Errorf("%d entries for %d bytes, want 3 to 5", parts, len(body))
	}
	before = n.View().Revision()
	s.call("PUT", "/v1/groups/large?timeout=30s", body).ok(200)
	if again := n.View().Revision() - before; again != 1 {
		t.Errorf("%d entries for the same again, want 1", again)
	}

	page := s.call("GET", "/v1/groups/large?after=w08999", "").ok(200)
	if page.count("workloads") != 1000 || page.at("next") != nil || page.text("workloads.0.key") != "w09000" {
		t.Errorf("the last page has %d workloads from %v on, next %v", page.count("workloads"), page.at("workloads.0.key"), page.at("next"))
	}
	if page.number("counts.inactive") != 10000 {
		t.Errorf("counts are those of a page: %v", page.at("counts"))
	}
	page = s.call("GET", "/v1/groups/large?limit=2", "").ok(200)
	if page.count("workloads") != 2 || page.text("next") != "w00001" {
		t.Errorf("a page of 2 has %d workloads, next %v", page.count("workloads"), page.at("next"))
	}

	// Two groups of that size do not fit a page, and one workload is easily found.
	s.call("PUT", "/v1/groups/larger?timeout=30s", strings.Replace(body, `"w00000"`, `"v"`, 1)).ok(200)
	s.call("PUT", "/v1/groups/small", `{"workloads": [{"key": "v"}]}`).ok(200)
	list := s.call("GET", "/v1/groups", "").ok(200)
	if list.count("groups") != 2 || list.text("next") != "larger" || list.count("groups.0.workloads") != 10000 {
		t.Errorf("the first page has %d groups, next %v", list.count("groups"), list.at("next"))
	}
	if list = s.call("GET", "/v1/groups?after=larger", "").ok(200); list.count("groups") != 1 || list.text("groups.0.name") != "small" {
		t.Errorf("the second page has %d groups", list.count("groups"))
	}
	if list = s.call("GET", "/v1/groups?workload=v", "").ok(200); list.count("groups") != 2 || list.count("groups.0.workloads") != 1 || list.text("groups.1.name") != "small" {
		t.Errorf("v is in %d groups", list.count("groups"))
	}
}

// A repeat under the same Idempotency-Key is answered as the first time.
func TestGroup_Idempotency(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	first := s.call("PUT", "/v1/groups/g", `{"workloads": [{"key": "a"}]}`, "Idempotency-Key", "k").ok(200)
	s.call("PUT", "/v1/groups/g", `{"workloads": [{"key": "b"}]}`).ok(200)
	again := s.call("PUT", "/v1/groups/g", `{"workloads": [{"key": "a"}]}`, "Idempotency-Key", "k").ok(200)
	if first.number("revision") != again.number("revision") {
		t.Errorf("answered with %s, the first time with %s", again.raw, first.raw)
	}
	if got := s.call("GET", "/v1/groups/g", "").ok(200); got.text("workloads.0.key") != "b" {
		t.Errorf("the repeat was applied: %s", got.raw)
	}
	s.call("PUT", "/v1/groups/g", `{"workloads": []}`, "Idempotency-Key", "k").refused(400, "invalid_argument", "another body")
}

func TestGroup_Why(t *testing.T) {
	g := newSharded(t, threeShards)
	_, second := g.member("second")
	g.plan(g.instance, "a", "b")
	steer := func(verb, body string) { g.t.Helper(); g.call("POST", "/v1/groups/shards/"+verb, body).ok(202) }
	steer("pin", `{"workload": "b", "to": "`+second+`", "reason": "cache", "by": "op"}`)
	steer("pause", `{"workload": "c/d", "reason": "noisy", "by": "op"}`)
	why := func(workload string) *answer {
		return g.call("GET", "/v1/groups/shards/why?workload="+url.QueryEscape(workload), "").ok(200)
	}

	a := why("a")
	for path, want := range map[string]any{
		"group": "shards", "workload": "a", "status": "active", "owner": g.instance, "successor": nil,
		"instances.0.instance_id": g.instance, "instances.1.instance_id": second, "instances.1.can": true,
	} {
		if a.at(path) != want {
			t.Errorf("%s is %v, want %v", path, a.at(path), want)
		}
	}
	if !strings.HasPrefix(a.text("because.0"), g.instance+" has it since revision") {
		t.Errorf("because %v", a.at("because"))
	}
	if b := why("b"); !strings.Contains(string(b.raw), "pinned to "+second) || !strings.Contains(string(b.raw), "cache") {
		t.Errorf("a pin is not explained: %s", b.raw)
	}
	if c := why("c/d"); c.text("status") != "paused" || c.text("because.0") != "it is paused by op: noisy" {
		t.Errorf("a pause is not explained: %s", c.raw)
	}
	g.call("GET", "/v1/groups/shards/why?workload=x", "").refused(404, "not_found", "x")
	g.call("GET", "/v1/groups/none/why?workload=a", "").refused(404, "not_found", "none")
	g.call("GET", "/v1/groups/shards/why", "").refused(400, "invalid_argument", "workload is missing")
}

func TestGroup_Plan(t *testing.T) {
	g := newSharded(t, threeShards)
	_, second := g.member("second")
	g.plan(g.instance, "a")
	g.plan(second, "b", "c/d")
	before := g.node.View().Revision()
	plan := func(body string) *answer { return g.call("POST", "/v1/groups/shards/plan", body) }

	if now := plan("").ok(200); now.number("inputs") == 0 {
		t.Errorf("got %s", now.raw)
	}
	for _, body := range []string{`{"without": "` + second + `"}`, `{"without": ["` + second + `"]}`} {
		gone := plan(body).ok(200)
		if gone.count("moves") != 2 || gone.text("moves.0.workload") != "b" || gone.text("moves.0.from") != second || gone.text("moves.0.to") != g.instance || !strings.Contains(gone.text("moves.0.because"), "is gone") {
			t.Errorf("without the second: %s", gone.raw)
		}
	}
	if more := plan(`{"add": 1}`).ok(200); more.count("moves") == 0 || !strings.Contains(string(more.raw), `"to":"new-1"`) {
		t.Errorf("with another: %s", more.raw)
	}
	plan(`{"without": "nobody"}`).refused(400, "invalid_argument", "nobody")
	plan(`{"without": 5}`).refused(400, "invalid_argument", "without must be a string or a list")
	plan(`{"add": -1}`).refused(400, "invalid_argument", "add")
	g.call("POST", "/v1/groups/none/plan", "").refused(404, "not_found", "none")
	if got := g.node.View().Revision(); got != before {
		t.Errorf("revision went from %d to %d", before, got)
	}
}

// A group that is placed by a function of a Go program is explained by that
// program's own API, and planned by no other.
func TestGroup_CustomAssigner(t *testing.T) {
	g := newSharded(t, threeShards)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	res, err := g.node.Propose(ctx, &fsm.JoinGroup{Group: "own", SessionId: g.session, Keys: []string{"a"}, Settings: &fsm.GroupSettings{Assigner: fsm.AssignCustom}})
	if err != nil || fsm.ResultErr(res) != nil {
		t.Fatal(err, fsm.ResultErr(res))
	}
	g.call("PUT", "/v1/groups/own", `{"assigner": "custom", "workloads": [{"key": "a"}]}`).ok(200)
	g.call("POST", "/v1/groups/own/plan", "").refused(409, "wrong_state", "function")
	g.call("GET", "/v1/groups/own/why?workload=a", "").ok(200)

	own := serve(t, g.node, api.WithAssigner("own", coord.AssignerFunc(func(coord.Problem) coord.Assignment { return coord.Assignment{0} })))
	if plan := own.call("POST", "/v1/groups/own/plan", "").ok(200); plan.text("moves.0.to") != g.instance {
		t.Errorf("got %s", plan.raw)
	}
	bad := serve(t, g.node, api.WithAssigner("own", coord.AssignerFunc(func(coord.Problem) coord.Assignment { panic("oops") })))
	bad.call("POST", "/v1/groups/own/plan", "").refused(409, "wrong_state", "oops")
}
