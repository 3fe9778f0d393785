package fsm_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/fsm"
	"google.golang.org/protobuf/proto"
)

// The hash is of the content: no order, and the weight that is not given is 1.
func TestCatalogHash(t *testing.T) {
	a := []fsm.Spec{
		{Key: "b", Weight: 2, DisplayName: "B", Labels: []fsm.Label{{Key: "y", Value: "2"}, {Key: "x", Value: "1"}}},
		{Key: "a"},
	}
	b := []fsm.Spec{
		{Key: "a", Weight: 1},
		{Key: "b", Weight: 2, DisplayName: "B", Labels: []fsm.Label{{Key: "x", Value: "1"}, {Key: "y", Value: "2"}}},
	}
	if got := fsm.CatalogHash(a); got != fsm.CatalogHash(b) || len(got) != 64 {
		t.Errorf("got %s and %s", got, fsm.CatalogHash(b))
	}
	if a[0].Key != "b" || a[0].Labels[0].Key != "y" {
		t.Error("NewCatalog changed what it was given")
	}
	// Fixed for ever: catalogs are found by it.
	golden(t, "catalog_hash.golden", []byte(fsm.CatalogHash(a)+"\n"+fsm.CatalogHash(nil)+"\n"))
	for name, other := range map[string][]fsm.Spec{
		"weight":  {{Key: "a", Weight: 3}, b[1]},
		"name":    {{Key: "a", DisplayName: "A"}, b[1]},
		"label":   {{Key: "a", Labels: []fsm.Label{{Key: "x"}}}, b[1]},
		"key":     {{Key: "c"}, b[1]},
		"one off": {b[1]},
		"borders": {{Key: "a", DisplayName: "b"}, {Key: "B"}},
	} {
		if fsm.CatalogHash(other) == fsm.CatalogHash(a) {
			t.Errorf("%s: the same hash", name)
		}
	}
}

func TestNewCatalog_Refused(t *testing.T) {
	many := make([]fsm.Spec, fsm.MaxWorkloads+1)
	for i := range many {
		many[i].Key = fmt.Sprint(i)
	}
	large := make([]fsm.Spec, 1000)
	for i := range large {
		large[i].Key = fmt.Sprint(i)
		for j := range 20 {
			large[i].Labels = append(large[i].Labels, fsm.Label{Key: fmt.Sprint(j), Value: strings.Repeat("v", 1000)})
		}
	}
	for _, c := range []struct {
		name  string
		specs []fsm.Spec
		want  string // in the message, "" = accepted
	}{
		{"none", nil, ""},
		{"10,000", many[:fsm.MaxWorkloads], ""},
		{"10,001", many, "workloads are 10001, a group has at most 10000"},
		{"twice", specsOf("b", "a", "b"), `workloads have the key "b" twice`},
		{"empty key", []fsm.Spec{{}}, "workload must not be empty"},
		{"blank key", []fsm.Spec{{Key: " \t "}}, "workload has the control character"},
		{"spaces", []fsm.Spec{{Key: "  "}}, "workload must not be blank"},
		{"key of 383", []fsm.Spec{{Key: strings.Repeat("k", 383)}}, ""},
		{"key of 384", []fsm.Spec{{Key: strings.Repeat("k", 384)}}, "workload has 384 bytes, at most 383"},
		{"with a slash", []fsm.Spec{{Key: "a/b"}}, ""},
		{"weight below 0", []fsm.Spec{{Key: "a", Weight: -1}}, "workload a: weight is -1, must be above 0"},
		{"weight NaN", []fsm.Spec{{Key: "a", Weight: math.NaN()}}, "workload a: weight is NaN"},
		{"weight without end", []fsm.Spec{{Key: "a", Weight: math.Inf(1)}}, "workload a: weight is +Inf"},
		{"label twice", []fsm.Spec{{Key: "a", Labels: []fsm.Label{{Key: "x"}, {Key: "x"}}}}, "workload a: labels must be sorted by key, each key once"},
		{"name of 257", []fsm.Spec{{Key: "a", DisplayName: strings.Repeat("n", 257)}}, "workload a: display_name has 257 bytes"},
		{"20 MB", large, "bytes together, at most 16777216"},
	} {
		t.Run(c.name, func(t *testing.T) {
			hash, puts, err := fsm.NewCatalog(c.specs)
			if c.want != "" {
				if err == nil || !isErr(err, fsm.ErrInvalidArgument) || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("got %v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			l := newGroupLog(t)
			for _, p := range puts {
				l.done(p)
			}
			if got, ok := l.state.View().Catalog(hash); !ok || got.Len() != len(c.specs) {
				t.Errorf("the catalog is not there")
			}
		})
	}
}

// A large catalog travels in parts, in any order, each small enough for a command.
func TestPutCatalog_Parts(t *testing.T) {
	specs := make([]fsm.Spec, fsm.MaxWorkloads)
	for i := range specs {
		specs[i] = fsm.Spec{Key: fmt.Sprintf("%s-%05d", strings.Repeat("k", 300), i), DisplayName: "name"}
	}
	hash, puts, err := fsm.NewCatalog(specs)
	if err != nil {
		t.Fatal(err)
	}
	if len(puts) != 4 {
		t.Fatalf("%d parts, want 4", len(puts))
	}
	l := newGroupLog(t)
	for i := len(puts) - 1; i >= 0; i-- {
		if size := proto.Size(fsm.NewCommand(puts[i])); size > fsm.MaxCommandBytes {
			t.Errorf("part %d has %d bytes", i, size)
		}
		if _, ok := l.state.View().Catalog(hash); ok {
			t.Errorf("whole without part %d", i)
		}
		l.done(puts[i])
		l.state = reload(t, l.state)
	}
	c, ok := l.state.View().Catalog(hash)
	if !ok || c.Len() != fsm.MaxWorkloads {
		t.Fatal("not whole")
	}
	if s, ok := c.Find(specs[7777].Key); !ok || s.DisplayName != "name" || s.Weight != 1 {
		t.Errorf("got %+v, %v", s, ok)
	}
	if _, ok := c.Find("k"); ok {
		t.Error("found what is not in it")
	}
	l.unchanged(puts[1])
}

// unchanged applies a command that is done and changes nothing.
func (l *logbook) unchanged(op fsm.Op) {
	l.t.Helper()
	before := l.content()
	l.done(op)
	if !slices.Equal(before, l.content()) || len(l.last.Events) != 0 {
		l.t.Errorf("%T changed something: %v", op, l.events())
	}
}

// A part that doesn't belong is found when all are there, and may be put anew.
func TestPutCatalog_WrongParts(t *testing.T) {
	l := newGroupLog(t)
	spec := func(key string) []*fsm.WorkloadSpec { return []*fsm.WorkloadSpec{{Key: key, Weight: 1}} }
	hash := fsm.CatalogHash(specsOf("a", "b"))
	part := func(i, of uint32, key string) *fsm.PutCatalog {
		return &fsm.PutCatalog{Hash: hash, Part: i, Parts: of, Workloads: spec(key)}
	}
	l.done(part(0, 2, "a"))
	l.refused(part(1, 2, "c"), fsm.ErrInvalidArgument)
	l.refused(part(1, 2, "a"), fsm.ErrInvalidArgument)
	l.refused(&fsm.PutGroup{Group: "g", CatalogHash: hash}, fsm.ErrNotFound)
	l.open("s")
	l.refused(&fsm.JoinGroup{Group: "g", SessionId: "s", CatalogHash: hash, Settings: &fsm.GroupSettings{}}, fsm.ErrNotFound)
	l.done(part(1, 3, "b")) // cut otherwise: from the beginning
	l.done(part(0, 3, "a"))
	l.done(part(1, 2, "b"))
	l.done(part(0, 2, "a"))
	if _, ok := l.state.View().Catalog(hash); !ok {
		t.Error("not whole")
	}
	// An empty catalog is one, too.
	l.refused(&fsm.PutCatalog{Hash: hash[:63] + "x", Parts: 1}, fsm.ErrInvalidArgument)
	l.done(&fsm.PutCatalog{Hash: fsm.CatalogHash(nil), Parts: 1})
}

// Of the catalogs that nobody refers to, 16 are kept: the last ones.
func TestPutCatalog_Idle(t *testing.T) {
	l := newGroupLog(t)
	hash := func(i int) string { return fsm.CatalogHash(specsOf(fmt.Sprint("w", i))) }
	known := func(i int) bool {
		_, ok := l.state.View().Catalog(hash(i))
		return ok
	}
	put := func(i int) { l.catalog(fmt.Sprint("w", i)) }
	put(0)
	l.done(&fsm.PutGroup{Group: "g", CatalogHash: hash(0)})
	for i := 1; i <= 16; i++ {
		put(i)
	}
	l.open("a")
	l.done(&fsm.JoinGroup{Group: "g", SessionId: "a", CatalogHash: hash(1)})
	put(17)
	for i := range 18 {
		if !known(i) {
			t.Errorf("catalog %d is gone", i)
		}
	}
	put(18) // 2 goes
	l.state = reload(t, l.state)
	l.done(&fsm.CloseSession{SessionId: "a", Reason: fsm.CloseClosed}) // 1 is idle now: 3 goes
	l.done(&fsm.PutGroup{Group: "g"})                                  // 0, too: 4 goes
	var gone []int
	for i := range 19 {
		if !known(i) {
			gone = append(gone, i)
		}
	}
	if !slices.Equal(gone, []int{2, 3, 4}) {
		t.Errorf("gone are %v", gone)
	}
}

// A group wants at most 10,000 workloads, over all its catalogs together.
func TestGroup_TooManyTogether(t *testing.T) {
	keys := func(prefix string, n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("%s%05d", prefix, i))
		}
		return out
	}
	l := newGroupLog(t)
	half, rest, more := keys("a", 6000), keys("b", 4000), keys("c", 1)
	l.put(half...)
	l.open("a")
	l.open("b")
	l.done(&fsm.JoinGroup{Group: "g", SessionId: "a", CatalogHash: l.catalog(append(slices.Clone(half), rest...)...)})
	if n := l.group().WantedCount(); n != 10_000 {
		t.Errorf("wants %d", n)
	}
	one := l.catalog(more...)
	l.refused(&fsm.JoinGroup{Group: "g", SessionId: "b", CatalogHash: one}, fsm.ErrInvalidArgument)
	l.refused(&fsm.PutGroup{Group: "g", CatalogHash: one}, fsm.ErrInvalidArgument)
	if err := fsm.ResultErr(l.do(&fsm.JoinGroup{Group: "g", SessionId: "b", CatalogHash: one})); !strings.Contains(err.Error(), "are 10001, a group has at most 10000") {
		t.Errorf("got %v", err)
	}
	// What takes the place of a catalog is counted in its stead.
	l.done(&fsm.JoinGroup{Group: "g", SessionId: "a", CatalogHash: one})
	if n := l.group().WantedCount(); n != 6001 {
		t.Errorf("wants %d", n)
	}
	l.put(keys("d", 9999)...)
	if n := l.group().WantedCount(); n != 10_000 {
		t.Errorf("wants %d", n)
	}
}

// The group's own word counts, then that of the newest catalog.
func TestGroup_SpecsThatDiffer(t *testing.T) {
	l := newGroupLog(t)
	join := func(id string, weight float64) {
		hash, puts, err := fsm.NewCatalog([]fsm.Spec{{Key: "w", Weight: weight}, {Key: fmt.Sprint("w", id)}})
		if err != nil {
			t.Fatal(err)
		}
		l.done(puts[0])
		l.open(id)
		l.done(&fsm.JoinGroup{Group: "g", SessionId: id, CatalogHash: hash, Settings: &fsm.GroupSettings{}})
	}
	weight := func() float64 {
		s, _ := l.group().Wanted("w")
		return s.Weight
	}
	join("b", 2)
	join("a", 3)
	if weight() != 3 {
		t.Errorf("got %v, want that of the newest", weight())
	}
	l.done(&fsm.CloseSession{SessionId: "a", Reason: fsm.CloseClosed})
	if weight() != 2 {
		t.Errorf("got %v, want that of b", weight())
	}
	l.put("w")
	join("c", 4)
	var keys []string
	for w := range l.group().Workloads("w") {
		keys = append(keys, w.Key)
	}
	if weight() != 1 {
		t.Errorf("got %v, want that of the group", weight())
	}
	equalLines(t, "after w", keys, []string{"wb", "wc"})
}
