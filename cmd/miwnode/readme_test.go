package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// commandsOf are the lines of the n-th sh block, from 0, of a section of the README.
func commandsOf(t *testing.T, section string, n int) (lines []string) {
	t.Helper()
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	blocks := strings.Split(text, "\n```sh\n")
	if n+1 >= len(blocks) {
		t.Fatalf("%d blocks of commands in the section %q, want number %d", len(blocks)-1, section, n)
	}
	text, _, _ = strings.Cut(blocks[n+1], "\n```\n")
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, " #")
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// The commands of the README on workers do what it says, line by line.
func TestProcess_ReadmeWorkers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three processes; runs without -short")
	}
	c := newCLI(t)
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(examples, c.path("examples")); err != nil {
		t.Fatal(err)
	}
	nodes := c.startCluster(3)
	shows := map[string][]string{
		"worker create ticker": {"ticker: running on node n"},
		"worker create module": {"module: running on node n"},
		"workers":              {"ticker", "exec", "team=a", "module", "wasm", "running"},
		"worker show ticker":   {"ticker.sh", "RAN ON", "worker.created", "worker.started"},
		"worker reload ticker": {"ticker: running"},
		"drain n1":             {"drained in"},
		"worker stop ticker":   {"ticker: stopped"},
		"worker start ticker":  {"ticker: running"},
		"worker delete ticker": {"ticker: deleted"},
		"worker delete module": {"module: deleted"},
	}
	ran := 0
	for _, line := range commandsOf(t, "Have the cluster keep the code: workers", 0) {
		if v, ok := strings.CutPrefix(line, "export "); ok {
			c = c.with(v)
			continue
		}
		words, err := splitWords(line)
		if err != nil || words[0] != "./miwnode" {
			t.Fatalf("%q is no command of miwnode: %v", line, err)
		}
		r := c.run(words[1:]...).ends(0)
		for prefix, texts := range shows {
			if strings.HasPrefix(strings.Join(words[1:], " ")+" ", prefix+" ") {
				r.shows(texts...)
				ran++
			}
		}
	}
	if ran < len(shows) {
		t.Errorf("%d lines were looked at, want %d", ran, len(shows))
	}
	said := func(text string) bool {
		for _, n := range nodes {
			if strings.Contains(n.text(), text) {
				return true
			}
		}
		return false
	}
	for _, text := range []string{"began under token", "tick 1", "finishing"} {
		eventually(t, "a node has "+text+" in its log", func() bool { return said(text) })
	}
	c.run("workers").ends(0).shows("No workers.")
}

// The commands of the README on groups do what it says, line by line.
func TestProcess_ReadmeGroup(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three processes; runs without -short")
	}
	const section = "Share twelve workloads over three terminals"
	for _, line := range commandsOf(t, section, 0) {
		if !strings.HasSuffix(line, " --group examples/shards.yaml") {
			t.Errorf("%q names no group", line)
		}
	}
	shards, err := filepath.Abs("../../examples/shards.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := newCLI(t)
	nodes := c.startCluster(3, "--group", shards)
	n1, n2 := nodes[0], nodes[1]
	even := func(each int, who ...string) {
		t.Helper()
		eventually(t, "it is even", func() bool {
			counts := spread(n1.owners("shards"))
			for _, n := range who {
				if counts[n] != each {
					return false
				}
			}
			return true
		})
	}
	even(4, "n1", "n2", "n3")
	killed := false
	for _, line := range commandsOf(t, section, 1) {
		if v, ok := strings.CutPrefix(line, "export "); ok {
			c = c.with(v)
			continue
		}
		if strings.HasPrefix(line, "kill -9 ") {
			n2.signal(syscall.SIGKILL)
			<-n2.done
			killed = true
			even(6, "n1", "n3")
			continue
		}
		words, err := splitWords(line)
		if err != nil || words[0] != "./miwnode" {
			t.Fatalf("%q is no command of miwnode: %v", line, err)
		}
		r := c.run(words[1:]...).ends(0)
		switch words[1] {
		case "groups":
			r.shows("sticky", "n1", "n2", "n3", "s01", "s12", "active")
		case "plan":
			r.shows("n3 is gone", "4 workloads would move", "Nothing was changed")
		case "drain":
			moved := "4 of 4" // n3 may plan for the group besides, which is a lease, too
			if strings.Contains(r.out, "miw/group/shards/planner") {
				moved = "5 of 5"
			}
			r.shows(moved + " leases moved, longest gap between leases")
			even(6, "n1", "n2")
		case "undrain":
			even(4, "n1", "n2", "n3")
		case "why":
			if killed {
				r.shows("it is pinned to n2 (", "its cache is there", "is not there: until it is", "crashed")
			} else {
				r.shows("shards/s01 is active: on n", "the assigner sticky leaves it with")
			}
		case "pin":
			r.shows("shards/s01: pinned to n2")
			eventually(t, "it is there", func() bool { return n1.owners("shards")["s01"] == "n2" })
		case "pause":
			r.shows("shards/s02: paused")
		case "resume":
			r.shows("shards/s02: resumed")
			even(4, "n1", "n2", "n3")
		case "history":
			r.shows("shards/s01", "crashed", "LEASE GAP")
		default:
			t.Errorf("%q is not looked at", line)
		}
	}
	if !killed {
		t.Error("no node was killed")
	}
	n2.again()
	eventually(t, "it has gone back", func() bool { return n1.owners("shards")["s01"] == "n2" })
}
