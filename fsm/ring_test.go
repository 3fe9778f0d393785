package fsm

import "testing"

// A copy of the ring stays as it was while the original goes on.
func TestRing_CopyIsSnapshot(t *testing.T) {
	r := newRing[int](600)
	var copies []ring[int]
	for i := range 2000 {
		r.push(i)
		copies = append(copies, r)
	}
	for i, c := range copies {
		want := max(0, i-599)
		if c.len() != min(i+1, 600) {
			t.Fatalf("after %d: len %d", i, c.len())
		}
		for v := range c.from(0) {
			if *v != want {
				t.Fatalf("after %d: got %d, want %d", i, *v, want)
			}
			want++
		}
	}
}
