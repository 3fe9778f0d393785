package miwtest

import (
	"strings"
	"testing"
	"time"
)

// Ensures what is found wrong with spans of one key, and what is not.
func TestBook(t *testing.T) {
	a, b := &Node{index: 0}, &Node{index: 1}
	at := func(n *Node, token uint64, s int) *entry {
		return &entry{Span: Span{Key: "k", Node: n.index, Token: token, Start: time.Duration(s) * time.Second}, proc: n, session: "s"}
	}
	sec := func(s int) time.Duration { return time.Duration(s) * time.Second }
	tests := []struct {
		name   string
		shared bool
		play   func(bk *book) []Violation
		want   string // begins the text of the only violation; "" for none
	}{
		{"one after the other", false, func(bk *book) []Violation {
			x := at(a, 1, 1)
			bk.begin(x, false)
			bk.end(x, sec(2))
			return bk.begin(at(b, 2, 2), false)
		}, ""},
		{"two at a time", false, func(bk *book) []Violation {
			bk.begin(at(a, 1, 1), false)
			return bk.begin(at(b, 2, 2), false)
		}, `overlap at 2s: a run of "k" is on node 1 (token 2) while that on node 0 (token 1), begun at 1s, goes on`},
		{"two runs under one lease", false, func(bk *book) []Violation {
			bk.begin(at(a, 1, 1), false)
			return bk.begin(at(a, 1, 2), false)
		}, `overlap at 2s: a run of "k" is on node 0 (token 1) while that on node 0`},
		{"two works under one lease", true, func(bk *book) []Violation {
			bk.begin(at(a, 1, 1), false)
			return bk.begin(at(a, 1, 2), false)
		}, ""},
		{"two works of one process under two leases", true, func(bk *book) []Violation {
			bk.begin(at(a, 1, 1), false)
			return bk.begin(at(a, 2, 2), false)
		}, `overlap at 2s: a run of "k" is on node 0 (token 2) while that on node 0 (token 1)`},
		{"again under the same grant", false, func(bk *book) []Violation {
			x := at(a, 1, 1)
			bk.begin(x, false)
			bk.end(x, sec(2))
			return bk.begin(at(a, 1, 3), false)
		}, ""},
		{"a smaller token", false, func(bk *book) []Violation {
			x := at(a, 2, 1)
			bk.begin(x, false)
			bk.end(x, sec(2))
			return bk.begin(at(b, 1, 3), false)
		}, `token order at 3s: a run of "k" is on node 1 (token 1) after one on node 0 with token 2`},
		{"one token on two nodes", false, func(bk *book) []Violation {
			x := at(a, 1, 1)
			bk.begin(x, false)
			bk.end(x, sec(2))
			return bk.begin(at(b, 1, 3), false)
		}, `token order at 3s`},
		{"after a crash", false, func(bk *book) []Violation {
			bk.begin(at(a, 1, 1), false)
			bk.kill(a, sec(2))
			return append(bk.begin(at(b, 2, 2), false), bk.begin(at(a, 1, 3), false)...)
		}, ""},
		{"beside one that stands still", false, func(bk *book) []Violation {
			bk.begin(at(a, 1, 1), false)
			bk.pause(a)
			return append(bk.begin(at(b, 2, 2), false), bk.begin(at(a, 1, 3), true)...)
		}, ""},
		{"beside one that goes on with a valid lease", false, func(bk *book) []Violation {
			bk.begin(at(a, 1, 1), false)
			bk.pause(a)
			bk.begin(at(b, 2, 2), false)
			return bk.resume(a, sec(3), func(*entry) bool { return true })
		}, `overlap at 3s: a run of "k" is on node 0 (token 1) while that on node 1`},
		{"beside one that goes on with a lost lease", false, func(bk *book) []Violation {
			bk.begin(at(a, 1, 1), false)
			bk.pause(a)
			bk.begin(at(b, 2, 2), false)
			return bk.resume(a, sec(3), func(*entry) bool { return false })
		}, ""},
		{"overdue, told once", false, func(bk *book) []Violation {
			bk.begin(at(a, 1, 1), false)
			of := func(e *entry) bool { return e.session == "s" }
			return append(bk.overdue(sec(9), of), bk.overdue(sec(10), of)...)
		}, `overdue work at 9s: a run of "k" is on node 0 (token 1), begun at 1s, goes on although its lease is lost`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			found := tt.play(newBook("run", tt.shared))
			switch {
			case tt.want == "" && len(found) > 0:
				t.Errorf("found %v, want nothing", found)
			case tt.want != "" && (len(found) != 1 || !strings.HasPrefix(found[0].String(), tt.want)):
				t.Errorf("found %v, want %q", found, tt.want)
			}
		})
	}
}

// Ensures that what the book says of the present and the past leaves out what
// does not count.
func TestBook_Looks(t *testing.T) {
	bk, a, b := newBook("run", false), &Node{index: 0}, &Node{index: 1}
	begin := func(n *Node, key string, paused bool) *entry {
		e := &entry{Span: Span{Key: key, Node: n.index, Token: 1, Start: time.Second}, proc: n}
		bk.begin(e, paused)
		return e
	}
	x := begin(a, "x", false)
	begin(a, "miw/group/g/planner", false)
	begin(b, "y", true)
	if got := bk.running("x"); got != 0 {
		t.Errorf("x runs on node %d, want 0", got)
	}
	if got := bk.running("y"); got != -1 {
		t.Errorf("y runs on node %d, want -1", got)
	}
	if got := bk.keys(0); len(got) != 1 || got[0] != "x" {
		t.Errorf("keys of node 0: %v", got)
	}
	bk.end(x, 2*time.Second)
	bk.end(x, 3*time.Second)
	want := Span{Key: "x", Node: 0, Token: 1, Start: time.Second, End: 2 * time.Second}
	if got := bk.list("x"); len(got) != 1 || got[0] != want {
		t.Errorf("spans %v, want %v", got, want)
	}
	if got := bk.running("x"); got != -1 {
		t.Errorf("x runs on node %d after its end", got)
	}
}
