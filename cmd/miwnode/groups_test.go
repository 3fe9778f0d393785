package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/api"
)

// do makes a call of the node's API that must succeed.
func (n *nodeProcess) do(method, path string, body, out any) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 10*time.Second)
	defer cancel()
	if _, err := n.client().Do(ctx, api.Request{Method: method, Path: path, Body: body}, out); err != nil {
		n.t.Fatalf("%s %s of %s: %v", method, path, n.dir, err)
	}
}

func (n *nodeProcess) putGroup(name, assigner string, keys ...string) {
	n.t.Helper()
	req := api.PutGroupRequest{Assigner: assigner}
	for _, k := range keys {
		req.Workloads = append(req.Workloads, api.WorkloadRequest{Key: k})
	}
	n.do("PUT", "/v1/groups/"+name, req, nil)
}

// What an operator reads and says of groups, without anybody who takes part.
func TestGroups(t *testing.T) {
	c := newCLI(t)
	n := c.startNode("a", "--bind", "127.0.0.1:0")
	c = n.cli
	c.run("groups").ends(0).shows("No groups", "miwnode start --group")
	c.run("groups", "shards").ends(1).complains("not found", `"shards"`)
	c.run("jobs").ends(0).shows("No jobs were recorded", "coord.Record")
	c.run("jobs", "--prefix", "x").ends(0).shows(`No job that begins with "x"`)
	c.run("jobs", "nightly").ends(0).shows(`"nightly" was never recorded.`)
	c.run("pause", "a").ends(1).complains("no group has a workload", `"a"`, "miwnode groups")

	n.putGroup("shards", "balanced", "a", "b", "x/y")
	n.putGroup("others", "primary", "b")
	c.run("groups").ends(0).shows("GROUP", "shards", "balanced", "others", "primary", "3 inactive", "nobody: no members")
	c.run("groups", "shards").ends(0).shows("assigner", "balanced", "planned", "never", "No members: nothing runs", "WORKLOAD", "x/y", "inactive")
	raw := c.run("groups", "shards", "-o", "json").ends(0)
	if !strings.HasPrefix(raw.out, `{"revision":`) || strings.Count(raw.out, "\n") != 1 {
		t.Errorf("-o json is not the answer as it came: %q", raw.out)
	}
	c.run("groups", "shards", "--limit", "2").ends(0).shows("more: --after b")
	c.run("groups", "shards", "--after", "b").ends(0).shows("x/y")
	c.run("groups", "shards", "--after", "y").ends(0).shows(`There is nothing after "y".`)
	c.run("groups", "--after", "t").ends(0).shows(`There is nothing after "t".`)

	// A workload by its full name, or by its key where one group only has it.
	c.run("pause", "a", "--reason", "noisy", "--by", "op", "--expires-in", "1h").ends(0).shows("shards/a: paused")
	c.run("groups", "shards").ends(0).shows("paused until", ": noisy (op)")
	c.run("leases", "--after", "zz").ends(0).shows(`There is nothing after "zz".`)
	c.run("resume", "shards/a").ends(0).shows("shards/a: resumed")
	c.run("pause", "b").ends(2).complains(`"b" is in 2 groups`, "others/b", "shards/b")
	c.run("pause", "others/b").ends(0).shows("others/b: paused")
	c.run("pause", "x/y").ends(0).shows("shards/x/y: paused")
	c.run("resume", "shards/x/y").ends(0).shows("shards/x/y: resumed")
	c.run("pause", "others/a").ends(1).complains("no group has a workload", "others/a")
	c.run("unpin", "a").ends(0).shows("shards/a: not pinned")
	inst := firstCell(c.run("instances").ends(0).out)
	c.run("move", "a", "--to", "nobody").ends(1).complains("no instance", "nobody")
	c.run("move", "a", "--to", inst).ends(1).complains("member")
	c.run("pin", "a").ends(2).complains("--to is missing")
	c.run("__complete", "why", "").ends(0).shows("shards/a", "others/b")
	c.run("__complete", "plan", "").ends(0).shows("shards", "others")
	c.run("__complete", "move", "--to", "").ends(0).shows(inst)
	c.run("events", "--since", "0", "--type", "group.*", "--count", "2").ends(0).shows("group.updated", "key=shards")

	c.run("groups", "delete").ends(2).complains("GROUP is missing")
	c.run("groups", "delete", "others").ends(0).shows("others: deleted")
	c.run("groups", "delete", "others").ends(1).complains("not found", "others")
	c.run("groups").ends(0).shows("shards")

	n.do("POST", "/v1/jobs/record", api.RecordJobRequest{Key: "nightly", Outcome: "failed", Detail: "no disk"}, nil)
	c.run("jobs").ends(0).shows("JOB", "nightly", "failed", "a")
	c.run("jobs", "nightly").ends(0).shows("nightly: 1 executions", "FROM", "failed", "no disk")
	c.run("jobs", "nightly", "-o", "json").ends(0).shows(`"total":1`)
}

// A time of another day has its date.
func TestHour(t *testing.T) {
	now := time.Date(2026, 11, 30, 23, 30, 0, 0, time.FixedZone("", -3600)) // 00:30 of the next day
	for in, want := range map[time.Duration]string{
		time.Hour: "01:30:00Z", -time.Hour: "2026-11-30 23:30:00Z", 24 * time.Hour: "2026-12-02 00:30:00Z",
	} {
		if got := hour(now.Add(in), now); got != want {
			t.Errorf("in %v: %q, want %q", in, got, want)
		}
	}
}

// What a copy without a quorum does not know may be there.
func TestGroups_UnknownWithoutQuorum(t *testing.T) {
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/status":
			_, _ = io.WriteString(w, `{"revision":40,"node_id":"n1","cluster_id":"blue","quorum":{"voters":3,"alive":1,"ok":false}}`)
		case "/v1/groups/g":
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":{"code":"not_found","message":"there is no group g"},"revision":40}`)
		default:
			_, _ = io.WriteString(w, `{"revision":40}`)
		}
	}))
	defer node.Close()
	c := newCLI(t)
	for _, args := range [][]string{{"why", "s01"}, {"pause", "s01"}, {"drain", "n2"}, {"groups", "g"}} {
		t.Run(args[0], func(t *testing.T) {
			c.in(t).run(append(args, "--addr", node.URL)...).ends(69).
				complains("no quorum", "1 of 3 voters are alive", "the copy of node n1 at revision 40", "may be old", args[1], "bring back a majority")
		})
	}
}

func TestGroups_BadInput(t *testing.T) {
	c := newCLI(t)
	for _, b := range []struct {
		args  []string
		words []string
	}{
		{[]string{"groups", "a", "b"}, []string{`unexpected argument "b"`}},
		{[]string{"jobs", "a", "b"}, []string{`unexpected argument "b"`}},
		{[]string{"groups", "-o", "yaml"}, []string{"-o", "json"}},
		{[]string{"plan", "g", "-o", "yaml"}, []string{"-o", "json"}},
		{[]string{"why"}, []string{"WORKLOAD", "missing"}},
		{[]string{"plan"}, []string{"GROUP is missing"}},
		{[]string{"plan", "g", "--add", "-1"}, []string{"--add", "negative"}},
		{[]string{"plan", "g", "--add", "two"}, []string{"--add", "two"}},
		{[]string{"move", "a"}, []string{"--to is missing"}},
		{[]string{"pause"}, []string{"WORKLOAD", "missing"}},
		{[]string{"pause", "a", "--expires-in", "5"}, []string{"--expires-in"}},
		{[]string{"resume", "a", "--expires-in", "5s"}, []string{"unknown flag"}},
		{[]string{"move", "a", "--expires-in", "5s"}, []string{"unknown flag"}},
	} {
		t.Run(strings.Join(b.args, " "), func(t *testing.T) {
			c.in(t).run(b.args...).ends(2).complains(b.words...)
		})
	}
}
