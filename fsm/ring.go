package fsm

import "iter"

const chunkSize = 256

// ring keeps the last max values. It only ever writes beyond the end of what
// any copy of it can see, so that a copy of the struct is a snapshot of it.
type ring[T any] struct {
	chunks []*[chunkSize]T
	skip   int // values at the start of the first chunk that have left
	n      int
	max    int
}

func newRing[T any](limit int) ring[T] { return ring[T]{max: limit} }

func (r *ring[T]) len() int { return r.n }

func (r *ring[T]) full() bool { return r.n == r.max }

func (r *ring[T]) at(i int) *T {
	i += r.skip
	return &r.chunks[i/chunkSize][i%chunkSize]
}

// push appends v, dropping the oldest value when the ring is full, and returns
// its place, which stays valid after v has left the ring.
func (r *ring[T]) push(v T) *T {
	if r.full() {
		r.n--
		if r.skip++; r.skip == chunkSize {
			r.chunks, r.skip = r.chunks[1:], 0
		}
	}
	end := r.skip + r.n
	if end/chunkSize == len(r.chunks) {
		r.chunks = append(r.chunks, new([chunkSize]T))
	}
	p := &r.chunks[end/chunkSize][end%chunkSize]
	*p = v
	r.n++
	return p
}

// from yields the values from index i on.
func (r *ring[T]) from(i int) iter.Seq[*T] {
	c := *r
	return func(yield func(*T) bool) {
		for ; i < c.n; i++ {
			if !yield(c.at(i)) {
				return
			}
		}
	}
}
