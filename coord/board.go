package coord

import (
	"cmp"
	"iter"
	"math"
	"math/bits"
	"slices"
)

// board is a Problem made ready for Sticky: instances in join order (desks),
// workloads in key order, weights as integers, and workloads that may go to the
// same instances put into one class, so that nothing is asked twice.
type board struct {
	p        Problem
	desks    []desk
	deskOf   []int32 // by index of the instance
	works    []work
	rows     []uint64 // class c may move to the desks of rows[c*words:]
	words    int
	classes  map[string]int32 // by row
	everyone []uint64         // the row of all that take something
	scratch  []uint64
	key      []byte
	search   search

	uniform bool  // all weights are equal, and counted as 1
	largest int64 // weight
	total   int64 // load of those that take something
	takers  int   // how many those are
	left    int   // moves until settle gives up
	zones   []int64
}

// desk is an instance.
type desk struct {
	instance int // index in the problem
	zone     int
	takes    bool // what it does not have
	load     int64
	capacity int64
	count    int     // workloads
	shelves  []shelf // those that may move, by class
}

// shelf holds the workloads of a class that a desk has; where weights differ the
// lightest come first.
type shelf struct {
	class int32
	works []int32
}

// work is a workload.
type work struct {
	index  int   // in the problem
	weight int64 // in units of the board
	class  int32
	desk   int32 // -1: none
}

func (s *desk) room() int64 { return s.capacity - s.load }

func newBoard(p Problem) *board {
	b := &board{p: p, deskOf: make([]int32, len(p.Instances)), classes: make(map[string]int32)}
	order := p.JoinOrder()
	b.desks = make([]desk, len(order))
	b.words = (len(order) + 63) / 64
	b.everyone, b.scratch = make([]uint64, b.words), make([]uint64, b.words)
	b.key = make([]byte, 0, 8*b.words)
	b.search.init(len(order), b.words)
	unit := b.weigh()

	ids, zones := make(map[string]int32, len(order)), make(map[string]int)
	for s, i := range order {
		in := &p.Instances[i]
		zone, known := zones[in.Zone]
		if !known {
			zone = len(zones)
			zones[in.Zone] = zone
		}
		ids[in.ID] = int32(s)
		b.desks[s] = desk{instance: i, zone: zone, takes: in.Eligible && !in.Draining, capacity: unit.floor(in.Capacity, len(p.Workloads))}
		if b.desks[s].takes {
			b.everyone[s/64] |= 1 << (s % 64)
			b.takers++
		}
	}
	b.zones = make([]int64, len(zones))
	for i := range p.Instances {
		b.deskOf[i] = ids[p.Instances[i].ID]
	}
	return b
}

// unit turns weights into integers: they add up alike in any order, and a
// difference of zero is one. A weight of 40 binary digits or fewer stays exact.
type unit struct {
	shift  int     // weights are multiplied by 2^shift,
	single float64 // or, when all are this, counted
}

const unbounded = math.MaxInt64 / 4

func (u unit) of(weight float64) int64 {
	if u.single > 0 {
		return 1
	}
	return max(1, int64(math.RoundToEven(math.Ldexp(weight, u.shift))))
}

// floor is a capacity in units. Rounding must not keep out a workload that
// fills it to the last bit.
func (u unit) floor(capacity float64, workloads int) int64 {
	if !(capacity > 0) {
		return unbounded
	}
	if u.single > 0 {
		return int64(math.Floor(min(capacity/u.single+1e-9, unbounded)))
	}
	return int64(min(math.Ldexp(capacity, u.shift)+float64(workloads), unbounded))
}

// weigh fills in the workloads.
func (b *board) weigh() (u unit) {
	b.works = make([]work, len(b.p.Workloads))
	least, most := math.Inf(1), 0.0
	for w := range b.p.Workloads {
		least, most = min(least, b.p.weight(w)), max(most, b.p.weight(w))
	}
	b.uniform = !(least < most)
	if b.uniform {
		u.single = max(most, math.SmallestNonzeroFloat64)
	} else {
		_, exponent := math.Frexp(most)
		u.shift = 40 - exponent
	}
	for k, w := range b.p.KeyOrder() {
		b.works[k] = work{index: w, weight: u.of(b.p.weight(w)), desk: -1}
		b.largest = max(b.largest, b.works[k].weight)
	}
	return u
}

// classOf finds the class of a workload by the instances it may be given to:
// those that can run it, but for the one where it failed last, unless that is
// the only one.
func (b *board) classOf(workload int) int32 {
	row := b.scratch
	copy(row, b.everyone)
	if can := b.p.Can; can != nil {
		for s := range b.in(b.everyone) {
			if !can(b.desks[s].instance, workload) {
				row[s/64] &^= 1 << (s % 64)
			}
		}
	}
	if i := b.p.at(b.p.Avoid, workload); i != None {
		if s := b.deskOf[i]; has(row, s) {
			row[s/64] &^= 1 << (s % 64)
			if !slices.ContainsFunc(row, func(x uint64) bool { return x != 0 }) {
				row[s/64] |= 1 << (s % 64)
			}
		}
	}
	if n := len(b.rows); n > 0 && slices.Equal(b.rows[n-b.words:], row) { // most are as the one before
		return int32(n/b.words) - 1
	}
	b.key = b.key[:0]
	for _, x := range row {
		b.key = append(b.key, byte(x), byte(x>>8), byte(x>>16), byte(x>>24), byte(x>>32), byte(x>>40), byte(x>>48), byte(x>>56))
	}
	class, known := b.classes[string(b.key)]
	if !known {
		class = int32(len(b.classes))
		b.classes[string(b.key)] = class
		b.rows = append(b.rows, row...)
	}
	return class
}

func (b *board) row(class int32) []uint64 {
	return b.rows[int(class)*b.words : (int(class)+1)*b.words]
}

func has(row []uint64, desk int32) bool { return row[desk/64]>>(desk%64)&1 != 0 }

// only is the row of one desk, until it is called again.
func (b *board) only(s int32) []uint64 {
	clear(b.scratch)
	b.scratch[s/64] = 1 << (s % 64)
	return b.scratch
}

// in yields the desks of the row, in join order.
func (b *board) in(row []uint64) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for n, x := range row {
			for ; x != 0; x &= x - 1 {
				if !yield(int32(64*n + bits.TrailingZeros64(x))) {
					return
				}
			}
		}
	}
}

// add counts a workload to a desk, which it does not leave again.
func (b *board) add(k, s int32) {
	w, to := &b.works[k], &b.desks[s]
	w.desk = s
	to.count++
	to.load += w.weight
	b.zones[to.zone] += w.weight
	if to.takes {
		b.total += w.weight
	}
}

// put gives a workload to a desk, which it may leave again.
func (b *board) put(k, s int32) {
	b.add(k, s)
	to, class := &b.desks[s], b.works[k].class
	n, found := slices.BinarySearchFunc(to.shelves, class, func(sh shelf, c int32) int { return cmp.Compare(sh.class, c) })
	if !found {
		to.shelves = slices.Insert(to.shelves, n, shelf{class: class, works: make([]int32, 0, len(b.works)/len(b.desks)/len(b.classes)+2)})
	}
	sh := &to.shelves[n]
	at := len(sh.works) // where weights are equal, who came last leaves first
	if !b.uniform {
		at, _ = slices.BinarySearchFunc(sh.works, k, func(x, y int32) int {
			return cmp.Or(cmp.Compare(b.works[x].weight, b.works[y].weight), cmp.Compare(x, y))
		})
	}
	sh.works = slices.Insert(sh.works, at, k)
}

// move takes a workload from the desk where it is to another.
func (b *board) move(k, to int32) {
	w := &b.works[k]
	from := &b.desks[w.desk]
	n, _ := slices.BinarySearchFunc(from.shelves, w.class, func(sh shelf, c int32) int { return cmp.Compare(sh.class, c) })
	sh := &from.shelves[n]
	at := len(sh.works) - 1
	for sh.works[at] != k {
		at--
	}
	sh.works = slices.Delete(sh.works, at, at+1)
	if len(sh.works) == 0 {
		from.shelves = slices.Delete(from.shelves, n, n+1)
	}
	from.count--
	from.load -= w.weight
	b.zones[from.zone] -= w.weight
	b.total -= w.weight // both take something
	b.put(k, to)
}

// less orders desks to give to: the least load, then the zone with the least,
// then who joined first.
func (b *board) less(x, y int32) bool {
	s, t := &b.desks[x], &b.desks[y]
	return cmp.Or(cmp.Compare(s.load, t.load), cmp.Compare(b.zones[s.zone], b.zones[t.zone]), cmp.Compare(x, y)) < 0
}

// heavier orders workloads by weight, then key.
func (b *board) heavier(x, y int32) bool {
	return cmp.Or(cmp.Compare(b.works[x].weight, b.works[y].weight), cmp.Compare(x, y)) > 0
}

// lightest is the desk of the row to give to, of those that have the room. -1: none.
func (b *board) lightest(row []uint64, room int64) int32 {
	best := int32(-1)
	for n, x := range row {
		for ; x != 0; x &= x - 1 {
			s := int32(64*n + bits.TrailingZeros64(x))
			if b.desks[s].room() >= room && (best < 0 || b.less(s, best)) {
				best = s
			}
		}
	}
	return best
}

// roomiest is the most room of a desk of the row, but for one.
func (b *board) roomiest(row []uint64, but int32) int64 {
	most := int64(math.MinInt64)
	for s := range b.in(row) {
		if s != but {
			most = max(most, b.desks[s].room())
		}
	}
	return most
}

// from returns the position on the shelf of the first workload of that weight
// or more. Weights differ.
func (b *board) from(sh *shelf, weight int64) int {
	n, _ := slices.BinarySearchFunc(sh.works, weight, func(k int32, x int64) int { return cmp.Compare(b.works[k].weight, x) })
	return n
}

// heaviest is the desk to take from first, of those that have what may move.
func (b *board) heaviest(but []bool) int32 {
	best := int32(-1)
	for s := range b.desks {
		if !but[s] && len(b.desks[s].shelves) > 0 && (best < 0 || b.less(best, int32(s))) {
			best = int32(s)
		}
	}
	return best
}

// byLoad returns the desks that take something, the lightest first.
func (b *board) byLoad() []int32 {
	all := slices.Collect(b.in(b.everyone))
	slices.SortFunc(all, func(x, y int32) int {
		if b.less(x, y) {
			return -1
		}
		return 1
	})
	return all
}

// search is the memory of reach.
type search struct {
	seen    []uint64
	parent  []int32 // the desk before, -1: none
	via     []int32 // the class of what goes from there to here
	at, far []int32 // the desks of this distance, and of the next
}

func (s *search) init(desks, words int) {
	s.seen = make([]uint64, words)
	s.parent, s.via = make([]int32, desks), make([]int32, desks)
	s.at, s.far = make([]int32, 0, desks), make([]int32, 0, desks)
}

// reach looks for the shortest chain of moves that begins at a desk of the row
// and ends at another that has room and at most that load; of those that are
// equally near it takes the lightest. It returns the end, or -1.
func (b *board) reach(row []uint64, load int64) int32 {
	f := &b.search
	copy(f.seen, row)
	f.at = f.at[:0]
	for s := range b.in(row) {
		f.parent[s] = -1
		f.at = append(f.at, s)
	}
	for len(f.at) > 0 {
		f.far = f.far[:0]
		best := int32(-1)
		for _, s := range f.at {
			for _, sh := range b.desks[s].shelves {
				for n, x := range b.row(sh.class) {
					x &^= f.seen[n]
					f.seen[n] |= x
					for ; x != 0; x &= x - 1 {
						t := int32(64*n + bits.TrailingZeros64(x))
						f.parent[t], f.via[t] = s, sh.class
						f.far = append(f.far, t)
						if b.desks[t].room() > 0 && b.desks[t].load <= load && (best < 0 || b.less(t, best)) {
							best = t
						}
					}
				}
			}
		}
		if best >= 0 {
			return best
		}
		f.at, f.far = f.far, f.at
	}
	return -1
}

// shift carries out the chain that reach found, its end first, and returns the
// desk where it begins, which has one workload less.
func (b *board) shift(end int32) (start int32) {
	for to := end; ; {
		from := b.search.parent[to]
		if from < 0 {
			return to
		}
		shelves := b.desks[from].shelves
		n, _ := slices.BinarySearchFunc(shelves, b.search.via[to], func(sh shelf, c int32) int { return cmp.Compare(sh.class, c) })
		works := shelves[n].works
		b.move(works[len(works)-1], to)
		to = from
	}
}

// answer is where all workloads ended up.
func (b *board) answer() Assignment {
	a := nobody(make(Assignment, len(b.works)))
	for _, w := range b.works {
		if w.desk >= 0 {
			a[w.index] = b.desks[w.desk].instance
		}
	}
	return a
}
