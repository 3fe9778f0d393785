package coord_test

import (
	"testing"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
)

// What this package and the state in memory cost, without a commit.
func BenchmarkLease_AcquireRelease(b *testing.B) {
	w := coordtest.New(coordtest.Timing{})
	defer w.Close()
	n := w.Join("a")
	b.ReportAllocs()
	for b.Loop() {
		l, err := coord.Acquire(b.Context(), n, "k")
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLease_Valid(b *testing.B) {
	w := coordtest.New(coordtest.Timing{})
	defer w.Close()
	l, err := coord.Acquire(b.Context(), w.Join("a"), "k")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if !l.Valid() {
			b.Fatal("not valid")
		}
	}
	_ = l.Release(b.Context())
}
