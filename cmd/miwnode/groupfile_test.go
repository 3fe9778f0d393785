package main

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestGroupFile(t *testing.T) {
	c := newCLI(t)
	path := c.write("shards.yaml", `
group: shards
assigner: balanced
rebalance: graceful
max_moves: 3
capacity: 4.5
workloads:
  - key: a
    weight: 2
    run: ["sh", "-c", "exec ./shard a"]
  - key: b/1
    display_name: second
    labels: {disk: ssd}
    run: ./shard 'b 1'
`)
	got, err := readGroupFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := groupFile{
		path: path, name: "shards", assigner: "balanced", rebalance: "graceful", maxMoves: 3, capacity: 4.5,
		workloads: []groupWorkload{
			{key: "a", weight: 2, argv: []string{"sh", "-c", "exec ./shard a"}},
			{key: "b/1", displayName: "second", weight: 1, labels: map[string]string{"disk": "ssd"}, argv: []string{"./shard", "b 1"}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	c.run("start", "--group", path, "--check-config").ends(0).shows("good")
}

// Every fault of a file is told at once, each with its line.
func TestGroupFile_Faults(t *testing.T) {
	c := newCLI(t)
	path := c.write("bad.yaml", `group: a/b
assigner: best
rebalance: soon
max_moves: none
capacity: -1
wieght: 2
workloads:
  - key: ""
    run: [x]
  - key: a
    weight: 0
    run: [x]
  - key: b
  - run: ["x"]
  - key: c
    run: []
  - key: d
    run: "sh -c 'x"
  - key: e
    run: x | y
  - key: f
    run: {a: b}
  - key: g
    weight: .nan
    cmd: x
    run: x
  - key: a
    run: x
  - just text
  - key: h
    labels: {"": x}
    run: x
  - key: i
    key: j
    run: x
`)
	r := c.run("start", "--group", path, "--check-config").ends(2)
	for _, want := range []string{
		"line 1: group must not contain a slash",
		`line 2: assigner is "best": it must be sticky, balanced or primary`,
		`line 3: rebalance is "soon": it must be immediate or graceful`,
		`line 4: max_moves is "none"`,
		`line 5: capacity is "-1"`,
		`line 6: the file has an unknown key "wieght"`,
		"line 8: workload must not be empty",
		`line 11: weight is "0"`,
		"line 13: a workload has no run",
		"line 14: a workload has no key",
		"line 16: run names no command",
		"line 18: run:",
		"line 20: run:",
		"line 22: run must be a list of words, or one line",
		`line 24: weight is ".nan"`,
		`line 25: a workload has an unknown key "cmd"`,
		`line 27: key "a" is that of line 10, too`,
		"line 29: a workload must be a map",
		"line 30: workload h: label key",
		`line 34: a workload gives "key" twice`,
	} {
		if !strings.Contains(r.errOut, "--group "+path+" "+want) {
			t.Errorf("no %q in\n%s", want, r.errOut)
		}
	}
	if n := strings.Count(r.errOut, "\n"); n != 20 {
		t.Errorf("%d lines, want 20:\n%s", n, r.errOut)
	}
}

func TestGroupFile_Whole(t *testing.T) {
	c := newCLI(t)
	good := c.write("good.yaml", "group: g\nworkloads: [{key: a, run: x}]\n")
	many := strings.Repeat("  - {key: a, run: x}\n", 10001)
	for i := range 10001 {
		many = strings.Replace(many, "{key: a,", fmt.Sprintf("{key: w%d,", i), 1)
	}
	for _, b := range []struct {
		name  string
		args  []string
		words []string
	}{
		{"no file", []string{c.path("none.yaml")}, []string{"none.yaml", "no such file"}},
		{"empty", []string{c.write("empty.yaml", "")}, []string{"empty.yaml", "is empty"}},
		{"a list", []string{c.write("list.yaml", "- a")}, []string{"line 1", "the file must be a map"}},
		{"no YAML", []string{c.write("tabs.yaml", "a:\n\t- b")}, []string{"tabs.yaml", "no YAML"}},
		{"no group", []string{c.write("nogroup.yaml", "workloads: [{key: a, run: x}]")}, []string{"group is missing"}},
		{"no workloads", []string{c.write("noworkloads.yaml", "group: g")}, []string{"workloads is missing"}},
		{"none in the list", []string{c.write("none.list.yaml", "group: g\nworkloads: []")}, []string{"line 2", "of one at least"}},
		{"the product's own", []string{c.write("miw.yaml", "group: miw\nworkloads: [{key: a, run: x}]")}, []string{"line 1", "miw"}},
		{"the workers'", []string{c.write("workers.yaml", "group: workers\nworkloads: [{key: a, run: x}]")}, []string{"line 1", "must not be workers"}},
		{"10001", []string{c.write("many.yaml", "group: g\nworkloads:\n"+many)}, []string{"10001", "at most 10000"}},
		{"twice", []string{good, good}, []string{`names the group "g" in`, "good.yaml"}},
	} {
		t.Run(b.name, func(t *testing.T) {
			args := []string{"start", "--check-config"}
			for _, path := range b.args {
				args = append(args, "--group", path)
			}
			c.in(t).run(args...).ends(2).complains(append(b.words, "--group")...)
		})
	}
	// The same setting in the environment and in a file of settings.
	c.with("MIW_GROUP="+good).run("start", "--check-config").ends(0)
	config := c.write("miw.conf", "group: ["+filepath.Base(good)+"]")
	c.run("start", "--config", config, "--check-config").ends(0)
}
