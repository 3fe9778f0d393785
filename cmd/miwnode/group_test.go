package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/api"
)

// owners are the nodes (or names) that have the workloads of a group, "" where
// nobody does or who has one is to give it away.
func (n *nodeProcess) owners(group string) map[string]string {
	n.t.Helper()
	var g api.Group
	n.get("/v1/groups/"+group, &g)
	owners := map[string]string{}
	for _, w := range g.Workloads {
		if owners[w.Key] = ""; w.Status == "active" {
			owners[w.Key] = cmpOr(w.Name, w.NodeID)
		}
	}
	return owners
}

// spread counts workloads by owner.
func spread(owners map[string]string) map[string]int {
	counts := map[string]int{}
	for _, o := range owners {
		counts[o]++
	}
	return counts
}

// One node, commands shared out to it alone: their environment, their end.
func TestStart_Group(t *testing.T) {
	c := newCLI(t)
	file := c.write("g.yaml", `
group: g
workloads:
  - key: quick
    run: ["sh", "-c", "echo \"quick $MIW_KEY $MIW_TOKEN $MIW_ADDR\""]
  - key: polite
    run: ["sh", "-c", "trap 'echo polite ends; exit 0' TERM; echo polite began; while :; do sleep 0.05; done"]
  - key: broken
    run: ["sh", "-c", "echo broken ran; exit 3"]
`)
	n := c.startNode("a", "--bind", "127.0.0.1:0", "--group", file, "--renew-interval", "500ms")
	c = n.cli
	n.says(`msg="polite began"`)
	n.says(`msg="broken ran"`)
	n.says("quick g/quick ")
	n.says(" " + n.dir + "/" + api.SocketName)
	eventually(t, "a failure is shown", func() bool {
		return strings.Contains(c.run("groups", "g").ends(0).out, "sh -c echo broken ran; exit 3 ended: exited, code 3")
	})
	c.run("why", "broken").ends(0).shows("it failed", "exit 3")
	c.run("pause", "polite", "--reason", "noisy").ends(0)
	n.says(`msg="polite ends"`)
	eventually(t, "it is paused", func() bool {
		return strings.Contains(c.run("why", "polite").ends(0).out, "g/polite is paused: nobody has it.")
	})
	if out := c.run("history", "--key", "g/polite").ends(0).out; !strings.HasSuffix(strings.Join(strings.Fields(out), " "), "paused - - noisy") {
		t.Errorf("the history of what was paused:\n%s", out)
	}
	c.run("resume", "polite").ends(0)
	eventually(t, "it runs again", func() bool { return strings.Count(n.text(), `msg="polite began"`) == 2 })
	n.signal(syscall.SIGTERM)
	n.ends(0)
	if got := strings.Count(n.text(), `msg="polite ends"`); got != 2 {
		t.Errorf("polite ended %d times, want 2", got)
	}
}

// The session of the README: twelve workloads over three nodes, as an operator
// sees and steers them.
func TestProcess_Group(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three processes; runs without -short")
	}
	c := newCLI(t)
	shards, err := filepath.Abs("../../examples/shards.yaml")
	if err != nil {
		t.Fatal(err)
	}
	nodes := c.startCluster(3, "--group", shards, "--session-ttl", "5s", "--renew-interval", "500ms")
	n1, n2, n3 := nodes[0], nodes[1], nodes[2]
	c = n1.cli
	even := func(want map[string]int, what string) map[string]string {
		t.Helper()
		var owners map[string]string
		eventually(t, what, func() bool {
			owners = n1.owners("shards")
			return fmt.Sprint(spread(owners)) == fmt.Sprint(want)
		})
		return owners
	}
	before := even(map[string]int{"n1": 4, "n2": 4, "n3": 4}, "each has four")
	for _, n := range nodes {
		n.says("runs shards/s")
		other := n.cli.in(t).run("groups", "shards").ends(0) // the same from any node
		other.shows("s01", "s12", "n1", "n2", "n3", "active")
	}
	c.run("groups").ends(0).shows("shards", "sticky", "12")

	t.Run("drain", func(t *testing.T) {
		c := c.in(t)
		c.run("plan", "shards", "--without", "n3").ends(0).shows("n3", "4 workloads would move", "is gone", "Nothing was changed")
		c.run("drain", "n3", "--reason", "deploy", "--wait").ends(0).shows("shards/", "4 of 4 leases moved", "longest gap")
		after := even(map[string]int{"n1": 6, "n2": 6}, "two have six")
		for key, owner := range before {
			if owner != "n3" && after[key] != owner {
				t.Errorf("%s moved from %s to %s, and only n3 was drained", key, owner, after[key])
			}
		}
		c.run("undrain", "n3").ends(0)
		before = even(map[string]int{"n1": 4, "n2": 4, "n3": 4}, "each has four again")
	})
	t.Run("why, pin, move, pause", func(t *testing.T) {
		c := c.in(t)
		key := keyOf(before, "n1")
		c.run("why", key).ends(0).shows("shards/"+key+" is active", "with token", "MEMBER", "CAN")
		c.run("pin", key, "--to", "n2", "--reason", "cache").ends(0).shows("pinned")
		eventually(t, "it is where it is pinned", func() bool { return n1.owners("shards")[key] == "n2" })
		c.run("why", key).ends(0).shows("pinned", "cache")
		c.run("groups", "shards").ends(0).shows("pinned to n2: cache (")
		c.run("unpin", key).ends(0)

		key = keyOf(n1.owners("shards"), "n3")
		c.run("move", "shards/"+key, "--to", "n1", "--reason", "slow").ends(0).shows("goes to")
		eventually(t, "it has moved", func() bool {
			var g api.Group
			n1.get("/v1/groups/shards", &g)
			return slices.ContainsFunc(g.Workloads, func(w api.GroupWorkload) bool {
				return w.Key == key && w.LastOwner != nil && w.LastOwner.NodeID == "n3"
			})
		})
		c.run("pause", key, "--reason", "noisy").ends(0)
		eventually(t, "it is paused", func() bool {
			return strings.Contains(c.run("why", key).ends(0).out, "is paused: nobody has it")
		})
		c.run("resume", key).ends(0)
		eventually(t, "it runs again", func() bool { return n1.owners("shards")[key] != "" })
	})
	t.Run("a crash", func(t *testing.T) {
		even(map[string]int{"n1": 4, "n2": 4, "n3": 4}, "each has four")
		n2.signal(syscall.SIGKILL)
		<-n2.done
		began := time.Now()
		even(map[string]int{"n1": 6, "n3": 6}, "two have all")
		t.Logf("all run elsewhere %v after the crash", time.Since(began).Round(time.Millisecond))
		c.in(t).run("history", "--limit", "40").ends(0).shows("shards/s", "crashed", "LEASE GAP")
	})
	n3.signal(syscall.SIGTERM)
	n3.ends(0)
}

// keyOf is a workload that the owner has.
func keyOf(owners map[string]string, owner string) string {
	for _, key := range sortedNames(owners) {
		if owners[key] == owner {
			return key
		}
	}
	return ""
}

// member runs the example in Python.
func (c *cli) member(python string, n *nodeProcess, out *os.File) *exec.Cmd {
	c.t.Helper()
	script, err := filepath.Abs("../../examples/python/member.py")
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(python, script, "py")
	cmd.Env = append(os.Environ(), "MIW_ADDR="+filepath.Join(n.dir, api.SocketName))
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill() // one that has ended needs none
		_ = cmd.Wait()
	})
	return cmd
}

// The example in Python: members over HTTP share a group, none outlives its
// trust, and nothing runs twice.
func TestExample_Python(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here: ", err)
	}
	if err := exec.Command(python, "-c", "import time; time.clock_gettime(time.CLOCK_BOOTTIME)").Run(); err != nil {
		t.Skip("this python3 has no CLOCK_BOOTTIME: ", err)
	}
	c := newCLI(t)
	n := c.startNode("a", "--bind", "127.0.0.1:0")
	n.putGroup("py", "balanced", "a", "b", "c", "d")
	var files []*os.File
	for i := range 2 {
		f, err := os.Create(c.path(fmt.Sprintf("out%d", i)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	owners := func(want map[string]int, what string) {
		t.Helper()
		eventually(t, what, func() bool { return fmt.Sprint(spread(n.owners("py"))) == fmt.Sprint(want) })
	}
	name := func(cmd *exec.Cmd) string { return fmt.Sprintf("python-%d", cmd.Process.Pid) }

	first := c.member(python, n, files[0])
	owners(map[string]int{name(first): 4}, "one has all")
	second := c.member(python, n, files[1])
	owners(map[string]int{name(first): 2, name(second): 2}, "two share")
	n.cli.run("groups", "py").ends(0).shows(name(first), name(second), "all", "active")

	// One that is stopped, and goes on long after, has stopped working in time.
	if err := first.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	owners(map[string]int{name(second): 4}, "the other has all")
	if err := first.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()

	// One that is asked to end leaves at once.
	if err := second.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := second.Wait(); err != nil {
		t.Errorf("the example ended with %v", err)
	}
	owners(map[string]int{"": 4}, "nobody is left")
	checkSteps(t, files)
}

// It stays short enough to be read before it is run.
func TestExample_PythonIsShort(t *testing.T) {
	b, err := os.ReadFile("../../examples/python/member.py")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "\n"); n > 40 {
		t.Errorf("the example has %d lines, want at most 40", n)
	}
}

// checkSteps wants that no step under a token comes after one under a larger
// token, on the clock that all share.
func checkSteps(t *testing.T, files []*os.File) {
	t.Helper()
	type step struct {
		token uint64
		at    float64
	}
	steps := map[string][]step{} // by workload
	for _, f := range files {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(strings.NewReader(string(b))); lines.Scan(); {
			word := strings.Fields(lines.Text())
			if len(word) != 4 || word[0] != "runs" {
				t.Fatalf("the example says %q", lines.Text())
			}
			token, err := strconv.ParseUint(word[2], 10, 64)
			at, err2 := strconv.ParseFloat(word[3], 64)
			if err != nil || err2 != nil {
				t.Fatalf("the example says %q", lines.Text())
			}
			steps[word[1]] = append(steps[word[1]], step{token, at})
		}
	}
	if len(steps) != 4 {
		t.Errorf("%d workloads ran, want 4", len(steps))
	}
	for workload, all := range steps {
		slices.SortFunc(all, func(a, b step) int {
			if a.at < b.at {
				return -1
			}
			return 1
		})
		for i := 1; i < len(all); i++ {
			if all[i].token < all[i-1].token {
				t.Errorf("%s: a step under token %d at %.3f, after one under %d", workload, all[i].token, all[i].at, all[i-1].token)
			}
		}
	}
}
