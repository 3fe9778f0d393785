package main

import (
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

// TestTorture_BadInput ensures that what can't be run is refused before anything starts.
func TestTorture_BadInput(t *testing.T) {
	c := newCLI(t)
	c.write("full", "")
	for _, b := range []struct {
		args  []string
		code  int
		words []string
	}{
		{[]string{"torture", "--nemesis", "flood"}, 2, []string{"--nemesis", `"flood"`, "partition"}},
		{[]string{"torture", "--nodes", "1"}, 2, []string{"--nodes", "1"}},
		{[]string{"torture", "--nodes", "99"}, 2, []string{"--nodes", "99"}},
		{[]string{"torture", "--for", "1s"}, 2, []string{"--for", "1s"}},
		{[]string{"torture", "--ttl", "1s"}, 2, []string{"--ttl", "1s"}},
		{[]string{"torture", "--network", "wifi"}, 2, []string{"--network", `"wifi"`, "loopback"}},
		{[]string{"torture", "--seed", "-1"}, 2, []string{"--seed", "-1"}},
		{[]string{"torture", "--binary", "./none"}, 2, []string{"--binary", "./none"}},
		{[]string{"torture", "--report", c.dir, "--binary", "/bin/true"}, 2, []string{"--report", "not empty"}},
		{[]string{"torture", "--check", "none"}, 1, []string{"no report in none"}},
		{[]string{"torture", "--check", "none", "--seed", "1"}, 2, []string{"--check", "--seed"}},
		{[]string{"torture", "extra"}, 2, []string{"extra"}},
	} {
		t.Run(strings.Join(b.args, "_"), func(t *testing.T) {
			c.in(t).run(b.args...).ends(b.code).complains(b.words...)
		})
	}
}

// TestTorture_Figures ensures that the live line says how things stand.
func TestTorture_Figures(t *testing.T) {
	p := jepsen.Progress{Elapsed: 83 * time.Second, Length: 2 * time.Minute, Ops: 1204, Uncertain: 12, Grants: 345, Leader: "n2", Violations: []string{"x"}}
	if got, want := figures(p, []string{"cut n1", "pause n3"}), "01:23/02:00  ops 1204 (12 uncertain)  grants 345  leader n2  faults: cut n1, pause n3  violations 1"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if got, want := figures(jepsen.Progress{Length: time.Minute}, nil), "00:00/01:00  ops 0 (0 uncertain)  grants 0  leader none  faults: none  violations 0"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
