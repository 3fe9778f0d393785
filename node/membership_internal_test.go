package node

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/miwnode/miwnode/node/nodepb"
)

func TestPlan(t *testing.T) {
	const v, l = raft.Voter, raft.Nonvoter
	server := func(id string, s raft.ServerSuffrage) raft.Server {
		return raft.Server{ID: raft.ServerID(id), Suffrage: s}
	}
	up := func(id, zone string) memberState { return memberState{id: id, zone: zone, alive: true, caughtUp: true} }
	for _, c := range []struct {
		name    string
		members []memberState
		config  []raft.Server
		voters  int
		want    string
	}{
		{"nothing to do", []memberState{up("a", "")}, []raft.Server{server("a", v)}, 3, ""},
		{"a learner that caught up", []memberState{up("a", ""), up("b", "")}, []raft.Server{server("a", v), server("b", l)}, 3, "b"},
		{"one that lags", []memberState{up("a", ""), {id: "b", alive: true}}, []raft.Server{server("a", v), server("b", l)}, 3, ""},
		{"one that is silent", []memberState{up("a", ""), {id: "b", caughtUp: true}}, []raft.Server{server("a", v), server("b", l)}, 3, ""},
		{"one that nobody knows", []memberState{up("a", "")}, []raft.Server{server("a", v), server("b", l)}, 3, ""},
		{"voters enough", []memberState{up("a", ""), up("b", "")}, []raft.Server{server("a", v), server("b", l)}, 1, ""},
		{
			"as many as are missing, by ID",
			[]memberState{up("a", ""), up("d", ""), up("c", ""), up("b", "")},
			[]raft.Server{server("a", v), server("d", l), server("c", l), server("b", l)},
			3, "b c",
		},
		{
			"zones without a voter first",
			[]memberState{up("a", "z1"), up("b", "z1"), up("c", "z2"), up("d", "z3")},
			[]raft.Server{server("a", v), server("b", l), server("c", l), server("d", l)},
			3, "c d",
		},
	} {
		var got []string
		for _, ch := range plan(c.members, c.config, c.voters) {
			got = append(got, ch.id)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: promote %q, want %q", c.name, s, c.want)
		}
	}
}

func TestFoundingSet(t *testing.T) {
	peer := func(id string, expect uint32, promised, cluster string) *nodepb.Peer {
		return &nodepb.Peer{NodeId: id, Expect: expect, PromisedTo: promised, ClusterId: cluster}
	}
	for _, c := range []struct {
		name  string
		self  *nodepb.Peer
		peers []*nodepb.Peer
		n     int
		want  string
	}{
		{"alone and meant to be", peer("a", 1, "", ""), nil, 1, "a"},
		{"joins only", peer("a", 0, "", ""), []*nodepb.Peer{peer("b", 0, "", "")}, 0, ""},
		{"too few", peer("b", 3, "", ""), []*nodepb.Peer{peer("a", 3, "", "")}, 3, ""},
		{"enough", peer("b", 3, "", ""), []*nodepb.Peer{peer("c", 3, "", ""), peer("a", 3, "", "")}, 3, "a b c"},
		{"more than enough: the smallest", peer("b", 3, "", ""), []*nodepb.Peer{peer("d", 3, "", ""), peer("c", 3, "", ""), peer("a", 3, "", "")}, 3, "a b c"},
		{"who expects another number does not count", peer("b", 3, "", ""), []*nodepb.Peer{peer("c", 5, "", ""), peer("a", 3, "", "")}, 3, ""},
		{"who only joins does not count", peer("b", 2, "", ""), []*nodepb.Peer{peer("a", 0, "", "")}, 2, ""},
		{"there is a cluster", peer("b", 2, "", ""), []*nodepb.Peer{peer("a", 2, "", ""), peer("c", 2, "", "X")}, 2, ""},
		{"one has promised itself elsewhere", peer("a", 2, "", ""), []*nodepb.Peer{peer("b", 2, "Y", "")}, 2, ""},
		{"one has promised itself to this attempt", peer("a", 2, "Y", ""), []*nodepb.Peer{peer("b", 2, "Y", "")}, 2, "a b"},
	} {
		var got []string
		for _, p := range foundingSet(c.self, c.peers, c.n) {
			got = append(got, p.NodeId)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %q, want %q", c.name, s, c.want)
		}
	}
}

// A promise is given once, survives a restart, and is free again only by proof
// that its asker has given up.
func TestPromises(t *testing.T) {
	dir := t.TempDir()
	open := func() *promises {
		f := &folder{dir: dir}
		ident, err := openIdentity(f, "c", "k", false)
		if err != nil {
			t.Fatal(err)
		}
		p, err := openPromises(f, ident)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	x := promise{ClusterID: "X", Asker: "a", Members: []string{"a", "b"}}
	y := promise{ClusterID: "Y", Asker: "b", Members: []string{"b", "c"}}
	if err := open().give(x); err != nil {
		t.Fatal(err)
	}
	p := open()
	if got := fmt.Sprint(p.get().ClusterID, p.get().Members); got != "X[a b]" {
		t.Errorf("after a restart the promise is %s", got)
	}
	if err := p.give(x); err != nil {
		t.Errorf("the same promise again: %v", err)
	}
	if err := p.give(y); err == nil {
		t.Error("a second promise was given")
	}
	if err := p.release("b", []string{"X"}); err != nil || p.get().ClusterID != "X" {
		t.Errorf("released by the word of another: %v", err)
	}
	if err := p.release("a", []string{"W"}); err != nil || p.get().ClusterID != "X" {
		t.Errorf("released by another attempt's end: %v", err)
	}
	if err := p.release("a", []string{"W", "X"}); err != nil || p.get().ClusterID != "" {
		t.Errorf("not released: %v", err)
	}
	if err := p.give(y); err != nil {
		t.Errorf("a promise after the release: %v", err)
	}
	if err := p.abandon("Y"); err != nil {
		t.Fatal(err)
	}
	if now := open().get(); now.ClusterID != "" || fmt.Sprint(now.Abandoned) != "[Y]" {
		t.Errorf("after abandoning: %+v", now)
	}
}

// A promise that is lost is not a node that is free, but one that belongs to a
// cluster needs none any more.
func TestPromises_Lost(t *testing.T) {
	f := &folder{dir: t.TempDir()}
	open := func() (*identity, *promises, error) {
		t.Helper()
		ident, err := openIdentity(f, "", "k", false)
		if err != nil {
			t.Fatal(err)
		}
		p, err := openPromises(f, ident)
		return ident, p, err
	}
	lose := func() {
		t.Helper()
		if err := os.Remove(f.path(promiseFile)); err != nil {
			t.Fatal(err)
		}
	}
	_, p, err := open()
	if err != nil {
		t.Fatalf("without a promise: %v", err)
	}
	x := promise{ClusterID: "X", Asker: "a", Members: []string{"a", "b"}}
	if err := p.give(x); err != nil {
		t.Fatal(err)
	}
	lose()
	if _, _, err = open(); !errors.Is(err, ErrFolderDamaged) || !strings.Contains(err.Error(), "promise.json is missing, and this node has promised itself to a founding set") {
		t.Fatalf("without the promise that was given: %v", err)
	}
	if err := f.write(promiseFile, promise{Format: folderFormat, ClusterID: "X", Asker: "a"}); err != nil {
		t.Fatal(err)
	}
	ident, p, err := open()
	if err != nil {
		t.Fatalf("with the file restored: %v", err)
	}
	if p.get().ClusterID != "X" {
		t.Errorf("restored as %+v", p.get())
	}
	if err := ident.adopt("X"); err != nil {
		t.Fatal(err)
	}
	lose()
	if _, _, err = open(); err != nil {
		t.Errorf("a member without its promise: %v", err)
	}
}

// Where the note can't be written no promise is given.
func TestPromises_NotNoted(t *testing.T) {
	f := &folder{dir: t.TempDir()}
	ident, err := openIdentity(f, "", "k", false)
	if err != nil {
		t.Fatal(err)
	}
	p, err := openPromises(f, ident)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(f.path(identityFile+".tmp"), 0o700); err != nil { // in the way of the new file
		t.Fatal(err)
	}
	for range 2 {
		if err := p.give(promise{ClusterID: "X", Asker: "a", Members: []string{"a", "b"}}); err == nil {
			t.Error("a promise was given that a start without its file would not miss")
		}
	}
}
