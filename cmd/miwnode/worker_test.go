package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/miwnode/miwnode/api"
)

// script is a worker that says that it began, appends its process number to a
// file, and goes on until TERM.
func (c *cli) script(name, pids string) string {
	c.t.Helper()
	return c.write(name, "#!/bin/sh\ntrap 'echo finished; exit 0' TERM\necho \"began as "+name+" $MIW_WORKER_ID $MIW_KEY $MIW_TOKEN $MIW_CONFIG $QUEUE $1\"\n"+
		"echo $$ >> "+c.path(pids)+"\nwhile :; do sleep 0.05; done\n")
}

// pids are the process numbers in a file, the last one last.
func (c *cli) pids(name string) []string {
	b, _ := os.ReadFile(c.path(name))
	return strings.Fields(string(b))
}

// workerNamed is the worker of that name, as the node shows it.
func (n *nodeProcess) workerNamed(name string) (w api.Worker) {
	n.t.Helper()
	var page api.Workers
	n.get("/v1/workers?name="+name, &page)
	if len(page.Workers) == 1 {
		w = page.Workers[0]
	}
	return w
}

// The whole life of a worker by commands, and what they refuse.
func TestWorker(t *testing.T) {
	c := newCLI(t)
	n := c.startNode("a", "--bind", "127.0.0.1:0")
	c = n.cli
	c.run("workers").ends(0).shows("No workers.", "miwnode worker create")
	c.run("worker", "show", "mailer").ends(1).complains("not found", `"mailer"`, "miwnode workers")

	source := c.script("mailer.sh", "pids")
	r := c.run("worker", "create", "mailer", "--source", "mailer.sh", "--arg=-v", "--env", "QUEUE=main", "--config", `{"n": 1}`,
		"--tag", "team=mail", "--tag", "zone=1", "--by", "ann", "--start", "--wait").ends(0).shows("mailer: running on node", "token")
	id := n.workerNamed("mailer").WorkerID
	if !strings.Contains(r.out, id) {
		t.Errorf("no ID in %q", r.out)
	}
	n.says(`began as mailer.sh ` + id + ` workers/` + id)
	n.says(` {\"n\":1} main -v`) // as the log quotes it
	c.run("workers").ends(0).shows("NAME", "mailer", "running", "exec", source, "team=mail,zone=1", id)
	c.run("worker", "list", "--tag", "team=mail", "--state", "running").ends(0).shows("mailer")
	c.run("workers", "--tag", "team=other").ends(0).shows("No worker is like that.")
	show := c.run("worker", "show", "mailer").ends(0).shows("worker", "mailer", "etag", "SOURCE", source, "ann", "RAN ON", "EVENT", "worker.created", "worker.loaded", "worker.started")
	if c.run("worker", "show", id).ends(0); !strings.Contains(show.out, id) {
		t.Errorf("no ID in %q", show.out)
	}
	c.run("worker", "show", id[:8], "-o", "json").ends(0).shows(`"worker_id":"` + id + `"`)
	c.run("groups", "workers").ends(0).shows(id, "active", "runtimes")
	c.run("why", "workers/"+id).ends(0).shows("is active")
	c.run("__complete", "worker", "stop", "").ends(0).shows("mailer")

	c.run("worker", "tag", "mailer", "zone-", "team=post", "x=y=z").ends(0).shows("mailer: team=post,x=y=z")
	c.run("events", "--since", "0", "--count", "1", "--key", "mailer").ends(0).shows("worker.created", "workers/"+id).complains("the worker mailer", "key workers/"+id)
	c.run("events", "--since", "0", "--count", "1", "--key", id).ends(0).shows("worker.created")
	c.run("worker", "create", "x", "--source", "mailer.sh", "--runtime", "nonsense").ends(2).complains(`--runtime is "nonsense"`, "exec, wasm, func")
	c.run("worker", "stop", "mailer", "--etag", "1").ends(1).complains("etag")

	// A reload exchanges the code under the same lease.
	c.script("second.sh", "pids")
	token := n.workerNamed("mailer").Token
	c.run("worker", "reload", "mailer", "--source", "second.sh", "--wait=30s").ends(0).shows("mailer: running")
	n.says("began as second.sh")
	if got := n.workerNamed("mailer").Token; got != token {
		t.Errorf("token %d after a reload, was %d", got, token)
	}
	c.write("text", "no program")
	c.run("worker", "reload", "mailer", "--source", "text", "--wait").ends(1).complains("could not be loaded", "not_executable")
	c.run("workers").ends(0).shows("running", "reload failed: not_executable")

	c.run("worker", "stop", "mailer", "--wait").ends(0).shows("mailer: stopped")
	n.says("finished")
	if pids := c.pids("pids"); len(pids) != 2 {
		t.Errorf("it was run %d times, want 2", len(pids))
	}
	c.run("worker", "start", "mailer", "--wait").ends(0).shows("mailer: running on node")
	c.run("worker", "delete", "mailer").ends(0).shows("mailer: deleted", "told to stop")
	c.run("workers").ends(0).shows("No workers.")
	eventually(t, "nothing of it runs", func() bool { node, _ := n.holder("workers/" + id); return node == "" })
	c.run("events", "--since", "0", "--type", "worker.*", "--count", "2").ends(0).shows("worker.created", "worker.loaded", id)

	t.Run("what can't be loaded", func(t *testing.T) {
		c := c.in(t)
		c.run("worker", "create", "text", "--source", "text", "--wait").ends(1).complains("text could not be loaded", "not_executable")
		c.run("worker", "start", "text").ends(1).complains("wrong state", "reload")
		first := n.workerNamed("text").WorkerID
		c.run("workers", "--state", "load_failed").ends(0).shows("not_executable")
		c.run("worker", "create", "text", "--source", "mailer.sh", "--wait").ends(0).shows("text: stopped").
			complains("another worker is called text: "+first+" (load_failed); this one is w", "worker delete", "worker reload")
		c.run("worker", "stop", "text").ends(2).complains(`"text" means any of`, "write the ID")
		c.run("events", "--key", "text").ends(2).complains("2 workers are called text", "workers/"+first)
		c.run("exec", "--key", "text", "--", "true").ends(0)
		c.run("events", "--since", "0", "--count", "1", "--key", "text").ends(0).shows("lease.granted").complains("the events of the lease text", "workers/"+first)
	})
	t.Run("what fails", func(t *testing.T) {
		c := c.in(t)
		c.write("fail.sh", "#!/bin/sh\necho sorry >&2\nexit 3\n")
		c.run("worker", "create", "fail", "--source", "fail.sh", "--restart", "never", "--start").ends(0)
		eventually(t, "it has failed", func() bool { return n.workerNamed("fail").State == "failed" })
		c.run("workers").ends(0).shows("exited:")
		n.says("sorry")
		c.run("worker", "delete", "fail").ends(0).shows("fail: deleted")
	})
	t.Run("what fails again and again", func(t *testing.T) {
		c := c.in(t)
		c.run("worker", "create", "crashes", "--source", "fail.sh", "--start").ends(0)
		eventually(t, "it has failed twice", func() bool { f := n.workerNamed("crashes").Failing; return f != nil && f.Count > 1 })
		c.run("workers").ends(0).shows("running", "is failing: its run failed", "times in a row", "exited: ")
		c.run("worker", "show", "crashes").ends(0).shows("is failing: its run failed", "exited: ")
		c.run("worker", "show", "crashes", "-o", "json").ends(0).shows(`"failing":{"count":`, `"type":"exited"`, `"node_id":"`, `"next_try":"`)
		c.run("worker", "stop", "crashes", "--wait").ends(0).shows("crashes: stopped")
		if f := n.workerNamed("crashes").Failing; f != nil {
			t.Errorf("it is stopped and failing: %+v", f)
		}
		c.run("worker", "delete", "crashes").ends(0)
	})
	t.Run("what it counts", func(t *testing.T) {
		text := n.metrics()
		for _, want := range []string{`miw_workers{state="stopped"} 1`, `miw_workers{state="load_failed"} 1`, `miw_workers{state="running"} 0`, `miw_worker_runs_total{outcome="failed"} `, "miw_worker_load_seconds_count"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s in the metrics", want)
			}
		}
	})
}

// metrics are those of the node, as text.
func (n *nodeProcess) metrics() string {
	n.t.Helper()
	raw, err := n.client().Do(n.t.Context(), api.Request{Method: "GET", Path: "/metrics"}, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(raw)
}

// Over TCP a file is uploaded; a node that runs no workers keeps it all the same.
func TestWorker_Upload(t *testing.T) {
	c := newCLI(t)
	addrs, err := freeAddrs(1)
	if err != nil {
		t.Fatal(err)
	}
	n := c.startNode("a", "--bind", "127.0.0.1:0", "--api", addrs[0], "--workers=false")
	c.write("x.sh", "#!/bin/sh\n")
	c.run("worker", "create", "x", "--source", "x.sh", "--addr", "http://"+addrs[0]).ends(0).shows("x: loading").complains("x is recorded, but no node runs workers: it waits for one that does and provides exec")
	c.run("workers", "--addr", "http://"+addrs[0]).ends(0).shows("no node runs workers")
	w := n.workerNamed("x")
	if w.Source != "sha256:a8076d3d28d21e02012b20eaf7dbf75409a6277134439025f282e368e3305abf" || w.State != "loading" {
		t.Errorf("got %+v", w)
	}
	c.run("worker", "start", "x", "--wait=100ms", "--addr", "http://"+addrs[0]).ends(124).complains("the wait is over", "loading, starts once it is loaded")
}

// Faults of the command line are told before anything is asked.
func TestWorker_BadInput(t *testing.T) {
	c := newCLI(t)
	c.write("x.sh", "#!/bin/sh\n")
	for _, b := range []struct {
		args  []string
		code  int
		words []string
	}{
		{[]string{"worker", "craete"}, 2, []string{`unknown command "craete"`}},
		{[]string{"worker", "create"}, 2, []string{"NAME is missing"}},
		{[]string{"worker", "create", "x"}, 2, []string{"--source is missing"}},
		{[]string{"worker", "create", "x", "--source", "none.sh"}, 1, []string{"none.sh", "no such file"}},
		{[]string{"worker", "create", "x", "--source", "x.sh", "--env", "A"}, 2, []string{"--env", "k=v"}},
		{[]string{"worker", "create", "x", "--source", "x.sh", "--tag", "a=1", "--tag", "a=2"}, 2, []string{"--tag", "twice"}},
		{[]string{"worker", "create", "x", "--source", "x.sh", "--config", "{"}, 2, []string{"--config", "JSON"}},
		{[]string{"worker", "create", "x", "--source", "x.sh", "--config", "@none"}, 2, []string{"--config", "none"}},
		{[]string{"worker", "create", "x\xff", "--source", "x.sh"}, 2, []string{`"x\xff"`, "UTF-8"}},
		{[]string{"worker", "create", "x", "--source", "x.sh", "--arg", "\xff"}, 2, []string{"UTF-8"}},
		{[]string{"worker", "create", "x", "--source", "x.sh", "--env", "MIW_TOKEN=1"}, 2, []string{"MIW_TOKEN", "reserved"}},
		{[]string{"worker", "create", "x", "--source", "x.sh", "--wait=soon"}, 2, []string{"--wait", "soon"}},
		{[]string{"worker", "create", "x", "--source", "x.sh"}, 69, []string{"no node answers"}},
		{[]string{"worker", "start"}, 2, []string{"WORKER", "missing"}},
		{[]string{"worker", "tag", "x"}, 2, []string{"KEY=VALUE is missing"}},
		{[]string{"worker", "tag", "x", "word"}, 2, []string{`"word" is no tag`}},
		{[]string{"worker", "tag", "x", "a=1", "a-"}, 2, []string{`"a"`, "set and removed"}},
		{[]string{"worker", "tag", "x", "a-", "a="}, 2, []string{`"a"`, "set and removed"}},
		{[]string{"worker", "tag", "x", "a=1", "b=2", "a=2"}, 2, []string{`"a" is to be "1" and "2"`}},
		{[]string{"worker", "tag", "x", "a=\xff"}, 2, []string{"UTF-8"}},
		{[]string{"worker", "tag", "x", "-"}, 2, []string{`"-" is no tag`}},
		{[]string{"workers", "extra"}, 2, []string{`unexpected argument "extra"`}},
		{[]string{"start", "--workers", "--allow-private-sources=perhaps"}, 2, []string{"allow-private-sources", "true or false"}},
	} {
		t.Run(strings.Join(b.args, "_"), func(t *testing.T) {
			c.in(t).run(b.args...).ends(b.code).complains(b.words...)
		})
	}
}

// Three processes: a worker is created on one node and started from another,
// runs on one of them, and goes elsewhere with a drain, a crash and a leave; each
// of its processes is gone before the next one begins.
func TestProcess_Worker(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three processes; runs without -short")
	}
	c := newCLI(t)
	nodes := c.startCluster(3, "--session-ttl", "5s", "--renew-interval", "500ms")
	c.write("solo.sh", `#!/bin/sh
for p in $(cat `+c.path("pids")+`); do kill -0 $p && echo $p lives >> `+c.path("overlaps")+`; done
echo $$ >> `+c.path("pids")+`
trap 'exit 0' TERM
while :; do sleep 0.02; done
`)
	c.write("pids", "")
	nodes[0].cli.run("worker", "create", "solo", "--source", c.path("solo.sh"), "--restart", "never", "--wait").ends(0).shows("solo: stopped")
	nodes[1].cli.run("worker", "start", "solo", "--wait").ends(0).shows("solo: running on node")

	// begun waits until the worker was begun for the nth time and returns its
	// process, its node and another one.
	begun := func(nth int, nodes ...*nodeProcess) (pid int, owner, other *nodeProcess) {
		t.Helper()
		eventually(t, fmt.Sprintf("it is begun %d times", nth), func() bool { return len(c.pids("pids")) >= nth })
		if pids := c.pids("pids"); len(pids) != nth {
			t.Fatalf("it was begun %d times, want %d", len(pids), nth)
		}
		if _, err := fmt.Sscan(c.pids("pids")[nth-1], &pid); err != nil {
			t.Fatal(err)
		}
		node := nodes[0].workerNamed("solo").NodeID
		for _, n := range nodes {
			if id(n) == node {
				owner = n
			} else {
				other = n
			}
		}
		if owner == nil {
			t.Fatalf("it runs on %q", node)
		}
		return pid, owner, other
	}
	without := func(gone *nodeProcess) (rest []*nodeProcess) {
		for _, n := range nodes {
			if n != gone {
				rest = append(rest, n)
			}
		}
		return rest
	}
	pid, first, _ := begun(1, nodes...)
	first.cli.run("drain", id(first), "--wait").ends(0).shows("workers/w")
	_, second, _ := begun(2, without(first)...)
	if !gone(pid) {
		t.Errorf("the process of the drained node is still there")
	}
	first.cli.run("undrain", id(first)).ends(0)

	second.signal(syscall.SIGKILL)
	<-second.done
	_, third, other := begun(3, without(second)...)
	other.cli.run("history", "--limit", "3").ends(0).shows("crashed")

	third.signal(syscall.SIGTERM)
	third.ends(0)
	second.again() // two are a majority of three
	second.ready()
	pid, _, other = begun(4, without(third)...)

	other.cli.run("worker", "delete", "solo").ends(0)
	eventually(t, "nothing of it is left", func() bool { return gone(pid) })
	other.cli.run("events", "--since", "0", "--type", "worker.deleted", "--count", "1").ends(0).shows("worker.deleted")
	if b, err := os.ReadFile(c.path("overlaps")); err == nil {
		t.Errorf("processes were there when the next was begun: %s", b)
	}
}
