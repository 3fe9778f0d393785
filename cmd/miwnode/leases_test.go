package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/api"
)

// The table of leases says who in a session has each: two runners of one node
// have the same instance.
func TestLeases_Who(t *testing.T) {
	c := newCLI(t)
	n := c.startNode("a", "--bind", "127.0.0.1:0", "--singleton", "one=sleep 100", "--singleton", "two=sleep 100")
	for _, key := range []string{"one", "two"} {
		eventually(t, key+" is held", func() bool { node, _ := n.holder(key); return node != "" })
	}
	var s api.Session
	n.do("POST", "/v1/sessions", api.OpenSessionRequest{TTL: api.Duration(30e9), Name: "script"}, &s)
	n.do("POST", "/v1/leases/acquire", api.AcquireRequest{Key: "three", SessionID: s.SessionID, Holder: "its-second-half"}, nil)

	who := map[string]string{}
	for line := range strings.Lines(n.cli.run("leases").ends(0).shows("WHO").out) {
		cells := strings.Fields(line)
		who[cells[0]] = cells[4]
	}
	runners := []string{who["one"], who["two"]}
	slices.Sort(runners)
	if !slices.Equal(runners, []string{"runner-1", "runner-2"}) || who["three"] != "its-second-half" {
		t.Errorf("got %v", who)
	}
}
