package fsm

import (
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

	needs string // of a worker, see Worker.Needs
}

// Catalog is a set of declared workloads, named by the hash of its content. It
// never changes.
type Catalog struct {
	Hash  string
	specs []Spec // sorted by key
	made  EventID
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
	sorted := slices.Clone(specs)
	for i := range sorted {
		w := &sorted[i]
		if w.Weight == 0 {
			w.Weight = 1
		}
		w.Labels = slices.SortedFunc(slices.Values(w.Labels), func(a, b Label) int { return strings.Compare(a.Key, b.Key) })
	}
	slices.SortStableFunc(sorted, func(a, b Spec) int { return strings.Compare(a.Key, b.Key) })
	if len(sorted) > MaxWorkloads {
		return "", nil, tooManyWorkloads(len(sorted))
	}
	wire := make([]*WorkloadSpec, len(sorted))
	for i := range sorted {
		wire[i] = sorted[i].wire()
	}
	if err := checkSpecs(wire); err != nil {
		return "", nil, err
	}
	hash = hashSpecs(sorted)
	puts = []*PutCatalog{{Hash: hash}}
	size, total := 0, 0
	for _, w := range wire {
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
func hashSpecs(sorted []Spec) string {
	h := sha256.New()
	var b []byte
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	b = append(b, "miw-catalog-1\n"...)
	b = binary.AppendUvarint(b, uint64(len(sorted)))
	for i := range sorted {
		w := &sorted[i]
		text(w.Key)
		text(w.DisplayName)
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(w.Weight))
		b = binary.AppendUvarint(b, uint64(len(w.Labels)))
		for _, l := range w.Labels {
			text(l.Key)
			text(l.Value)
		}
		h.Write(b)
		b = b[:0]
	}
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}

// catalogEntry is a catalog in the table. It never changes, it is replaced.
type catalogEntry struct {
	hash    string
	catalog *Catalog       // nil until all parts are there
	parts   []*catalogPart // nil = missing
	refs    int            // groups and members that refer to it
	made    EventID        // its first part
	idle    EventID        // since when nobody refers to it; zero = somebody does
}

// catalogPart is what one PutCatalog brought. It never changes.
type catalogPart struct {
	specs []Spec
	size  int // bytes on the wire
}

func (s *State) putCatalog(op *PutCatalog) error {
	e, known := s.catalogs.Get(op.Hash)
	if known && e.catalog != nil {
		return nil
	}
	next := &catalogEntry{hash: op.Hash}
	if known {
		*next = *e
	}
	part := &catalogPart{specs: specsOf(op.Workloads), size: partSize(op.Workloads)}
	if len(next.parts) == int(op.Parts) {
		next.parts = slices.Clone(next.parts)
	} else {
		next.parts = make([]*catalogPart, op.Parts) // anew, if it was cut otherwise before
	}
	next.parts[op.Part] = part
	if err := next.assemble(); err != nil {
		return err
	}
	grown := next.size()
	if known {
		grown -= e.size()
	}
	if s.catalogBytes+grown > maxAllCatalogs {
		return Errorf(CodeOverloaded, "the catalogs have %d bytes, no more are taken", s.catalogBytes)
	}
	if !known {
		next.made = s.nextPlace()
		next.idle = next.made
		if next.catalog != nil {
			next.catalog.made = next.made
		}
	}
	s.catalogBytes += grown
	s.catalogs.Set(next.hash, next)
	if !known {
		s.idleCatalog(next.hash)
	}
	return nil
}

// nextPlace orders what is made in one entry.
func (s *State) nextPlace() EventID {
	s.places++
	return EventID{s.cluster.revision, s.places}
}

func (e *catalogEntry) size() (n int) {
	for _, p := range e.parts {
		if p != nil {
			n += p.size
		}
	}
	return n
}

// assemble makes the catalog once all parts are there.
func (e *catalogEntry) assemble() error {
	n, size := 0, 0
	for _, p := range e.parts {
		if p == nil {
			return nil
		}
		n += len(p.specs)
		size += p.size
	}
	if n > MaxWorkloads {
		return tooManyWorkloads(n)
	}
	if size > MaxCatalogBytes {
		return invalid("workloads", "have %d bytes together, at most %d are allowed", size, MaxCatalogBytes)
	}
	c := &Catalog{Hash: e.hash, specs: make([]Spec, 0, n), made: e.made}
	for _, p := range e.parts {
		c.specs = append(c.specs, p.specs...)
	}
	for i := 1; i < n; i++ {
		if c.specs[i-1].Key >= c.specs[i].Key {
			return invalid("workloads", "must be sorted over all parts, each key once: %q", c.specs[i].Key)
		}
	}
	if hash := hashSpecs(c.specs); hash != e.hash {
		return invalid("hash", "is %s, but its parts have %s", e.hash, hash)
	}
	e.catalog = c
	// One copy is enough: the parts are cut from it.
	from := 0
	for i, p := range e.parts {
		to := from + len(p.specs)
		e.parts[i] = &catalogPart{specs: c.specs[from:to:to], size: p.size}
		from = to
	}
	return nil
}

// wholeCatalog returns the catalog of a hash, nil for "".
func (s *State) wholeCatalog(hash string) (*Catalog, error) {
	if hash == "" {
		return nil, nil
	}
	e, ok := s.catalogs.Get(hash)
	if !ok || e.catalog == nil {
		return nil, Errorf(CodeNotFound, "no whole catalog has the hash %s: put it first", hash)
	}
	return e.catalog, nil
}

// refer counts n more referrers to a catalog; nil is none.
func (s *State) refer(c *Catalog, n int) {
	if c == nil || n == 0 {
		return
	}
	e, _ := s.catalogs.Get(c.Hash)
	next := *e
	next.refs += n
	switch {
	case e.refs == 0:
		next.idle = EventID{}
		s.idle = slices.DeleteFunc(slices.Clone(s.idle), func(hash string) bool { return hash == e.hash })
	case next.refs == 0:
		next.idle = s.nextPlace()
	}
	s.catalogs.Set(e.hash, &next)
	if next.refs == 0 {
		s.idleCatalog(e.hash)
	}
}

// idleCatalog notes that nobody refers to a catalog, and drops the one that has
// been so for the longest time if there are too many.
func (s *State) idleCatalog(hash string) {
	s.idle = append(slices.Clip(s.idle), hash)
	if len(s.idle) <= MaxIdleCatalogs {
		return
	}
	oldest, _ := s.catalogs.Delete(s.idle[0])
	s.catalogBytes -= oldest.size()
	s.idle = s.idle[1:]
}

func specsOf(workloads []*WorkloadSpec) []Spec {
	out := make([]Spec, len(workloads))
	for i, w := range workloads {
		out[i] = Spec{Key: w.GetKey(), DisplayName: w.GetDisplayName(), Weight: w.GetWeight()}
		out[i].Labels = labelsFrom(w.GetLabels())
	}
	return out
}

// wire is the reverse of specsOf.
func (s *Spec) wire() *WorkloadSpec {
	return &WorkloadSpec{Key: s.Key, DisplayName: s.DisplayName, Weight: s.Weight, Labels: wireLabels(s.Labels)}
}

func labelsFrom(wire []*fsmpb.Label) (out []Label) {
	for _, l := range wire {
		out = append(out, Label{l.GetKey(), l.GetValue()})
	}
	return out
}

// wireLabels is the reverse of labelsFrom.
func wireLabels(labels []Label) (out []*fsmpb.Label) {
	for _, l := range labels {
		out = append(out, &fsmpb.Label{Key: l.Key, Value: l.Value})
	}
	return out
}
