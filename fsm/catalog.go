package fsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/miwnode/miwnode/fsm/fsmpb"
	"google.golang.org/protobuf/proto"
)

// Spec is a declared workload. It never changes.
type Spec struct {
	Key         string
	DisplayName string
	Weight      float64 // above 0
	Labels      []Label // sorted by key
}

// Catalog is a set of declared workloads, named by the hash of its content. It
// never changes.
type Catalog struct {
	Hash  string
	specs []Spec // sorted by key
	parts []int  // length of each part that it came in, for the snapshot
	made  EventID
	size  int // bytes on the wire
}

// Len returns how many workloads it declares.
func (c *Catalog) Len() int { return len(c.specs) }

// Find returns the workload of that key.
func (c *Catalog) Find(key string) (*Spec, bool) {
	i := sort.Search(len(c.specs), func(i int) bool { return c.specs[i].Key >= key })
	if i == len(c.specs) || c.specs[i].Key != key {
		return nil, false
	}
	return &c.specs[i], true
}

// NewCatalog returns the hash of a catalog and the commands that bring it into
// the state, in any order of specs: it sorts them and their labels, and takes a
// weight of 0 for 1. It refuses what Check or apply would, naming the workload.
func NewCatalog(specs []Spec) (hash string, puts []*PutCatalog, err error) {
	sorted := make([]*WorkloadSpec, len(specs))
	for i := range specs {
		s := &specs[i]
		w := &WorkloadSpec{Key: s.Key, DisplayName: s.DisplayName, Weight: s.Weight}
		if w.Weight == 0 {
			w.Weight = 1
		}
		for _, l := range s.Labels {
			w.Labels = append(w.Labels, &fsmpb.Label{Key: l.Key, Value: l.Value})
		}
		slices.SortFunc(w.Labels, func(a, b *fsmpb.Label) int { return strings.Compare(a.Key, b.Key) })
		sorted[i] = w
	}
	slices.SortStableFunc(sorted, func(a, b *WorkloadSpec) int { return strings.Compare(a.Key, b.Key) })
	if len(sorted) > MaxWorkloads {
		return "", nil, tooManyWorkloads(len(sorted))
	}
	if err := checkSpecs(sorted); err != nil {
		return "", nil, err
	}
	hash = hashSpecs(sorted)
	puts = []*PutCatalog{{Hash: hash}}
	size, total := 0, 0
	for _, w := range sorted {
		last := puts[len(puts)-1]
		n := specSize(w)
		if size += n; size > maxPartBytes {
			last = &PutCatalog{Hash: hash, Part: last.Part + 1}
			puts = append(puts, last)
			size = n
		}
		total += n
		last.Workloads = append(last.Workloads, w)
	}
	if total > MaxCatalogBytes {
		return "", nil, invalid("workloads", "have %d bytes together, at most %d are allowed", total, MaxCatalogBytes)
	}
	for _, p := range puts {
		p.Parts = uint32(len(puts))
	}
	return hash, puts, nil
}

// CatalogHash returns the hash that NewCatalog gives specs that it accepts.
func CatalogHash(specs []Spec) string {
	hash, _, _ := NewCatalog(specs)
	return hash
}

// specSize is what w adds to its part.
func specSize(w *WorkloadSpec) int { return proto.Size(w) + 4 }

// hashSpecs hashes the canonical encoding: the number of workloads, then of each
// its key, display name, weight (IEEE 754, big endian), the number of its labels
// and these; lengths and numbers are varints.
func hashSpecs(sorted []*WorkloadSpec) string {
	var b bytes.Buffer
	b.WriteString("miw-catalog-1\n")
	count := func(n int) { b.Write(binary.AppendUvarint(b.AvailableBuffer(), uint64(n))) }
	text := func(s string) {
		count(len(s))
		b.WriteString(s)
	}
	count(len(sorted))
	for _, w := range sorted {
		text(w.GetKey())
		text(w.GetDisplayName())
		b.Write(binary.BigEndian.AppendUint64(b.AvailableBuffer(), math.Float64bits(w.GetWeight())))
		count(len(w.GetLabels()))
		for _, l := range w.GetLabels() {
			text(l.GetKey())
			text(l.GetValue())
		}
	}
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:])
}

// catalogEntry is a catalog in the state. It never changes, it is replaced.
type catalogEntry struct {
	hash    string
	catalog *Catalog       // nil until all parts are there
	parts   []*catalogPart // until then; nil = missing
	refs    int            // groups and members that refer to it
	made    EventID
	idle    EventID // since when nobody does; zero = somebody does
}

type catalogPart struct {
	specs []Spec
	size  int
}
