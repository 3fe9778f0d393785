package coord

import (
	"cmp"
	"math"
	"slices"
)

// Sticky moves as little as keeps the load even. It is the default.
//
// What an instance has, it keeps, unless it drains or no longer declares it.
// What has no owner goes, the heaviest first, to the instance with the least
// load. Only then, and only the surplus, moves from those with much to those
// with little. So:
//
//   - Loads differ by at most one workload; where weights differ, by at most the
//     largest weight, or DeadBand. Where instances declared different
//     workloads, no chain of moves would make loads of equal weights more even,
//     and no single move those of different weights.
//   - An instance that joins n others makes at most ⌈W/(n+1)⌉ of W workloads
//     move, all of them to it. (Where weights differ very much, a few more may
//     be needed to keep the bound.)
//   - An instance that leaves or drains moves what it had and nothing else.
//   - A cordoned instance gets nothing, and keeps what it has.
//   - A pinned workload is where it is pinned to, whatever that does to the load.
//   - A workload does not go to where it failed last (Avoid) if another instance
//     has room for it at that moment. Where it runs now, it stays.
//   - Capacities hold as long as there is room for all: always found where
//     weights are equal, looked for where they are not (that is a packing
//     problem). Beyond that, load is shared out over capacity, since work that
//     runs slowly beats work that does not.
//   - Among instances with the same load, one of the zone with the least comes
//     first, then who joined first.
//   - The answer, given again as Current, changes nothing more, and the order of
//     the input means nothing.
//
// While different weights change a little, nothing moves: loads may drift apart
// by as much as the bound, and are brought to half of it once they exceed it.
type Sticky struct {
	// DeadBand widens the bound where weights differ: a part of the mean load
	// of an instance, 0.1 being a tenth. It counts where it is more than the
	// largest weight, as with many light workloads whose weights are measured.
	// 0 means none.
	DeadBand float64
}

// String returns "sticky".
func (Sticky) String() string { return "sticky" }

// Assign implements [Assigner].
func (s Sticky) Assign(p Problem) Assignment {
	b := newBoard(p)
	loose := b.keep()
	for _, k := range loose {
		b.place(k)
	}
	if b.uniform {
		b.unload()
		b.level()
	} else {
		b.settle(s.bound(b))
	}
	return b.answer()
}

// bound is by how much loads may differ where weights do.
func (s Sticky) bound(b *board) int64 {
	if !(s.DeadBand > 0) || b.takers == 0 {
		return b.largest
	}
	return max(b.largest, int64(min(s.DeadBand, 1)*float64(b.total/int64(b.takers))))
}

// keep leaves every workload where it may stay, and returns the others, the
// heaviest first.
func (b *board) keep() (loose []int32) {
	for k := range b.works {
		w := b.works[k].index
		if i := b.p.pin(w); i != None {
			b.add(int32(k), b.deskOf[i])
			continue
		}
		b.works[k].class = b.classOf(w)
		i := b.p.at(b.p.Current, w)
		switch {
		case i == None || !b.p.Takes(i, w):
			loose = append(loose, int32(k))
		case b.desks[b.deskOf[i]].takes:
			b.put(int32(k), b.deskOf[i])
		default: // cordoned: it stays, and nobody else gets the instance's share
			b.add(int32(k), b.deskOf[i])
		}
	}
	if !b.uniform {
		slices.SortStableFunc(loose, func(x, y int32) int { return cmp.Compare(b.works[y].weight, b.works[x].weight) })
	}
	return loose
}

// place finds an owner for a workload that has none.
func (b *board) place(k int32) {
	w := &b.works[k]
	row := b.row(w.class)
	if to := b.lightest(row, w.weight); to >= 0 {
		b.put(k, to)
		return
	}
	if b.uniform {
		if end := b.reach(row, math.MaxInt64); end >= 0 {
			b.put(k, b.shift(end))
			return
		}
	}
	// There is room only where it failed last, or nowhere yet: others may have to go.
	if i := b.p.at(b.p.Avoid, w.index); i != None && b.p.Takes(i, w.index) {
		if to := b.deskOf[i]; b.desks[to].takes && b.desks[to].room() >= w.weight {
			b.put(k, to)
			return
		}
	}
	to := int32(-1)
	for s := range b.in(row) {
		if to < 0 || b.desks[s].room() > b.desks[to].room() {
			to = s
		}
	}
	if to >= 0 {
		b.put(k, to)
	}
}

// unload makes instances that have more than their capacity give away what
// others have room for. Weights are equal.
func (b *board) unload() {
	for s := range b.desks {
		for b.desks[s].takes && b.desks[s].room() < 0 {
			end := b.reach(b.only(int32(s)), math.MaxInt64)
			if end < 0 {
				break
			}
			b.shift(end)
		}
	}
}

// level makes loads differ by at most one where that can be done. Weights are
// equal, so a chain of moves changes the load of its two ends only, and when no
// chain helps, no other assignment is more even.
func (b *board) level() {
	stuck := make([]bool, len(b.desks))
	for moved := true; moved; {
		moved = false
		clear(stuck)
		for {
			from := b.heaviest(stuck)
			if from < 0 {
				break
			}
			if to := b.lightest(b.everyone, 1); to < 0 || b.desks[from].load-b.desks[to].load <= 1 {
				break
			}
			end := b.reach(b.only(from), b.desks[from].load-2)
			if end < 0 {
				stuck[from] = true
				continue
			}
			b.shift(end)
			moved = true
		}
	}
}

// shed is unload for different weights. It returns how many it moved.
func (b *board) shed() (moves int) {
	for s := range b.desks {
		for b.desks[s].takes && b.desks[s].room() < 0 && b.left > 0 && b.relieve(int32(s)) {
			b.left--
			moves++
		}
	}
	return moves
}

// relieve moves one workload off a desk that has too much: the lightest that is
// enough, else the heaviest, of those that there is room for.
func (b *board) relieve(desk int32) bool {
	over := -b.desks[desk].room()
	enough, less := int32(-1), int32(-1)
	for n := range b.desks[desk].shelves {
		sh := &b.desks[desk].shelves[n]
		room := b.roomiest(b.row(sh.class), desk)
		if at := b.from(sh, over); at < len(sh.works) && b.works[sh.works[at]].weight <= room && (enough < 0 || b.heavier(enough, sh.works[at])) {
			enough = sh.works[at]
		}
		if at := b.from(sh, room+1); at > 0 && (less < 0 || b.heavier(sh.works[at-1], less)) {
			less = sh.works[at-1]
		}
	}
	k := enough
	if k < 0 {
		k = less
	}
	if k < 0 {
		return false
	}
	b.move(k, b.lightest(b.row(b.works[k].class), b.works[k].weight))
	return true
}

// settle is level for different weights: when loads differ by more than the
// bound, or somebody has nothing while another has two, it moves until they
// differ by half of it, or by the bound where that takes more moves than an
// instance has workloads on average.
func (b *board) settle(bound int64) {
	b.left = 10*len(b.works) + 1000 // no input, however odd, keeps it busy
	budget := 0
	if b.takers > 0 {
		budget = (len(b.works) + b.takers - 1) / b.takers
	}
	moves := 0
	for {
		n := b.shed() + b.even(bound, math.MaxInt, b.urgent) + b.fill()
		if n == 0 {
			return
		}
		moves += n
		moves += b.even(bound/2, budget-moves, b.careful)
	}
}

// even moves one workload after the other from the most to the least loaded
// while they differ by more than limit, at most so many, and returns how many.
func (b *board) even(limit int64, most int, next func(from int32, limit int64) (k, to int32)) (moves int) {
	stuck := make([]bool, len(b.desks))
	for moved := true; moved; {
		moved = false
		clear(stuck)
		for {
			if moves >= most || b.left <= 0 {
				return moves
			}
			from := b.heaviest(stuck)
			if from < 0 {
				break
			}
			k, to := next(from, limit)
			if k < 0 {
				stuck[from] = true
				continue
			}
			b.move(k, to)
			b.left--
			moves++
			moved = true
		}
	}
	return moves
}

// fill gives one workload to each instance that has none, where another has two.
func (b *board) fill() (moves int) {
	for s := range b.desks {
		if !b.desks[s].takes || b.desks[s].count > 0 || b.left <= 0 {
			continue
		}
		stuck := make([]bool, len(b.desks))
		for from := b.heaviest(stuck); from >= 0; from = b.heaviest(stuck) {
			if b.desks[from].count > 1 {
				if k := b.pick(from, int32(s), b.half); k >= 0 {
					b.move(k, int32(s))
					b.left--
					moves++
					break
				}
			}
			stuck[from] = true
		}
	}
	return moves
}

// careful is the next move beyond the bound: what moved has not to move back.
func (b *board) careful(from int32, limit int64) (k, to int32) { return b.step(from, limit, b.side) }

// urgent is the next move to get within the bound, which as few as possible
// shall do. Where one has much too little, rather than one much too much,
// the heaviest workload that anybody can spare makes the fewest.
func (b *board) urgent(from int32, bound int64) (k, to int32) {
	top, mean := b.desks[from].load, b.total/int64(b.takers)
	to = b.lightest(b.everyone, 1)
	if to < 0 || top-b.desks[to].load <= bound || mean-b.desks[to].load <= top-mean {
		return b.step(from, bound, b.half)
	}
	k = -1
	for s := range b.desks {
		f, t := &b.desks[s], &b.desks[to]
		spare := max(bound-(top-f.load), f.load-mean+bound/2) // it won't have too little itself, now or in the end
		fits := min(b.half(f, t), t.room(), spare)
		for i := range f.shelves {
			sh := &f.shelves[i]
			n := b.from(sh, fits+1)
			if n == 0 || !has(b.row(sh.class), to) {
				continue
			}
			c := sh.works[n-1]
			if k < 0 || b.works[c].weight > b.works[k].weight || b.works[c].weight == b.works[k].weight && b.less(b.works[k].desk, int32(s)) {
				k = c
			}
		}
	}
	if k < 0 {
		return b.step(from, bound, b.half)
	}
	return k, to
}

// step finds the move from the desk that evens out most: to the lightest that
// can have one of its workloads, and differs by more than limit.
func (b *board) step(from int32, limit int64, size func(from, to *desk) int64) (k, to int32) {
	if t := b.lightest(b.everyone, 0); t < 0 || b.desks[from].load-b.desks[t].load <= limit {
		return -1, -1
	} else if k := b.pick(from, t, size); k >= 0 {
		return k, t
	}
	for _, t := range b.byLoad() {
		if b.desks[from].load-b.desks[t].load <= limit {
			break
		}
		if k := b.pick(from, t, size); k >= 0 {
			return k, t
		}
	}
	return -1, -1
}

// half is the most that can move without turning the difference round. As no
// workload is heavier than the bound, the most loaded can give it without
// having too little then.
func (b *board) half(from, to *desk) int64 { return (from.load - to.load) / 2 }

// side is the most that can move and leave both on their side of the mean.
func (b *board) side(from, to *desk) int64 {
	mean := b.total / int64(b.takers)
	return min(from.load-mean, mean-to.load)
}

// pick chooses which workload goes from one to the other, -1 when none can or
// should: the heaviest of up to that size, else the lightest that leaves the two
// more even than before.
func (b *board) pick(from, to int32, size func(from, to *desk) int64) int32 {
	f, t := &b.desks[from], &b.desks[to]
	fits := min(size(f, t), t.room())
	most := min(f.load-t.load-1, t.room())
	best, light := int32(-1), int32(-1)
	for i := range f.shelves {
		sh := &f.shelves[i]
		if !has(b.row(sh.class), to) {
			continue
		}
		if n := b.from(sh, fits+1); n > 0 && (best < 0 || b.heavier(sh.works[n-1], best)) {
			best = sh.works[n-1]
		}
		if k := sh.works[0]; b.works[k].weight <= most && (light < 0 || b.heavier(light, k)) {
			light = k
		}
	}
	if best >= 0 {
		return best
	}
	return light
}
