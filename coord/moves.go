package coord

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Move is one workload that an assignment gives to somebody else than who has
// it now. Workload, From and To are indexes in the Problem.
type Move struct {
	Workload int
	From     int // None: nobody has it
	To       int // None: nobody can, and who has it must not keep it
	Cause    Cause
	Because  string // a sentence for people, without a full stop
}

// Cause is why a workload moves.
type Cause string

// The causes of moves, the most urgent first. Only the last is limited.
const (
	CauseOwnerless  Cause = "ownerless"  // nobody has it
	CauseDraining   Cause = "draining"   // who has it drains
	CauseUndeclared Cause = "undeclared" // who has it no longer declares it
	CausePinned     Cause = "pinned"     // it is pinned to another instance
	CauseRebalance  Cause = "rebalance"  // the Assigner finds it better so
)

func (c Cause) rank() int {
	return slices.Index([]Cause{CauseOwnerless, CauseDraining, CauseUndeclared, CausePinned, CauseRebalance}, c)
}

// MoveLimits bounds how much moves at a time for the sake of balance.
type MoveLimits struct {
	// Most is how many such moves may be under way. 0 means a tenth of the
	// group, at least one; negative means no limit.
	Most int
	// UnderWay is how many there are already. They count as done in
	// Problem.Current.
	UnderWay int
}

func (l MoveLimits) left(workloads int) int {
	switch {
	case l.Most < 0:
		return math.MaxInt
	case l.Most == 0:
		return max(0, max(1, workloads/10)-l.UnderWay)
	}
	return max(0, l.Most-l.UnderWay)
}

// Moves compares an assignment, as [Place] returns it, with who has what. What
// has to move comes first and is never limited; then come the moves for the
// sake of balance, as many as the limits leave: those first that even out the
// most, and none to an instance before it has room, as long as another will do.
// later are the moves beyond the limits, in key order. The same input in any
// order makes the same moves.
func Moves(p Problem, to Assignment, limits MoveLimits) (now, later []Move) {
	d := newDiff(p)
	for _, w := range p.KeyOrder() {
		if w >= len(to) {
			continue
		}
		m := Move{Workload: w, From: d.canon(p.at(p.Current, w)), To: d.canon(p.at(to, w))}
		switch m.Cause = d.cause(m); {
		case m.From == m.To:
		case m.Cause == CauseRebalance:
			later = append(later, m)
		default:
			now = append(now, m)
		}
	}
	slices.SortStableFunc(now, func(x, y Move) int {
		return cmp.Or(cmp.Compare(x.Cause.rank(), y.Cause.rank()), cmp.Compare(p.weight(y.Workload), p.weight(x.Workload)))
	})
	for i := range now {
		d.make(&now[i])
	}
	chosen, later := d.choose(later, limits.left(len(p.Workloads)))
	return append(now, chosen...), later
}

// diff keeps the loads as they are after the moves so far.
type diff struct {
	p       Problem
	order   []int     // by instance: its place in join order, that of the first of its ID
	first   []int     // by place: the instance
	load    []float64 // by instance
	uniform bool      // all weights are equal, and counted as 1
}

func newDiff(p Problem) *diff {
	d := &diff{p: p, order: make([]int, len(p.Instances)), first: p.JoinOrder(), load: make([]float64, len(p.Instances)), uniform: true}
	place := make(map[string]int, len(d.first))
	for n, i := range d.first {
		place[p.Instances[i].ID] = n
	}
	for i := range p.Instances {
		d.order[i] = place[p.Instances[i].ID]
	}
	for w := range p.Workloads {
		d.uniform = d.uniform && p.weight(w) == p.weight(0)
	}
	for w := range p.Workloads {
		if i := d.canon(p.at(p.Current, w)); i != None {
			d.load[i] += d.size(w)
		}
	}
	return d
}

// canon is the one index of an instance that may be there twice.
func (d *diff) canon(i int) int {
	if i == None {
		return None
	}
	return d.first[d.order[i]]
}

// size is what a workload counts.
func (d *diff) size(w int) float64 {
	if d.uniform {
		return 1
	}
	return d.p.weight(w)
}

// room is what an instance can still take.
func (d *diff) room(i int) float64 {
	if c := d.capacity(i); c > 0 {
		return c - d.load[i]
	}
	return math.Inf(1)
}

// capacity is what an instance takes, 0 being no bound.
func (d *diff) capacity(i int) float64 {
	c := d.p.Instances[i].Capacity
	if c > 0 && d.uniform {
		return math.Floor(c/d.p.weight(0) + 1e-9)
	}
	return max(c, 0)
}

func (d *diff) cause(m Move) Cause {
	switch {
	case m.From == None:
		return CauseOwnerless
	case d.p.Instances[m.From].Draining:
		return CauseDraining
	case !d.p.Takes(m.From, m.Workload):
		return CauseUndeclared
	case m.To != None && m.To == d.canon(d.p.pin(m.Workload)):
		return CausePinned
	}
	return CauseRebalance
}

// make counts a move as done, and says why it is.
func (d *diff) make(m *Move) {
	m.Because = d.because(m)
	if m.From != None {
		d.load[m.From] -= d.size(m.Workload)
	}
	if m.To != None {
		d.load[m.To] += d.size(m.Workload)
	}
}

func (d *diff) because(m *Move) string {
	if m.Cause == CausePinned {
		return "it is pinned to " + d.id(m.To)
	}
	if m.Cause == CauseRebalance {
		return d.better(m)
	}
	why := ""
	switch m.Cause {
	case CauseOwnerless:
		why = "nobody has it"
		if i := d.p.at(d.p.Avoid, m.Workload); i != None {
			why = "it failed last on " + d.id(i)
		}
	case CauseDraining:
		why = d.id(m.From) + " drains"
	case CauseUndeclared:
		why = d.id(m.From) + " no longer declares it"
	}
	switch {
	case m.To == None:
		return why + ", and no other instance can have it"
	case m.To == d.canon(d.p.pin(m.Workload)):
		return why + ", and it is pinned to " + d.id(m.To)
	}
	return why + ", and " + d.id(m.To) + " has " + d.amount(m.To)
}

// better says why a move for the sake of balance is made.
func (d *diff) better(m *Move) string {
	switch {
	case m.To == None:
		return "the assigner gives it to nobody"
	case d.room(m.From) < -1e-9:
		return fmt.Sprintf("%s has %s and room for %s, %s has %s", d.id(m.From), d.amount(m.From), number(d.capacity(m.From)), d.id(m.To), d.amount(m.To))
	case d.load[m.From] > d.load[m.To]:
		return fmt.Sprintf("%s has %s, %s has %s", d.id(m.From), d.amount(m.From), d.id(m.To), d.amount(m.To))
	}
	return "the assigner places it on " + d.id(m.To)
}

func (d *diff) id(i int) string { return d.p.Instances[i].ID }

// amount says how much an instance has.
func (d *diff) amount(i int) string {
	switch {
	case d.load[i] < 1e-9:
		return "none"
	case !d.uniform:
		return "a load of " + number(d.load[i])
	case d.load[i] == 1:
		return "1 workload"
	}
	return number(d.load[i]) + " workloads"
}

func number(x float64) string { return strconv.FormatFloat(math.Round(x*1000)/1000, 'f', -1, 64) }

// route is all moves from one instance to another, those of the same size in
// key order.
type route struct {
	from, to int
	size     float64
	moves    []Move
}

// choose takes the best moves, up to most of them, and returns the others too.
// Moves of one route and size are as good as each other, so it compares routes.
func (d *diff) choose(all []Move, most int) (chosen, others []Move) {
	if len(all) == 0 || most == 0 {
		return nil, d.explained(all)
	}
	type of struct {
		from, to int
		size     float64
	}
	at := make(map[of]int)
	var routes []route
	for _, m := range all {
		key := of{m.From, m.To, d.size(m.Workload)}
		n, known := at[key]
		if !known {
			n = len(routes)
			at[key] = n
			routes = append(routes, route{from: m.From, to: m.To, size: key.size})
		}
		routes[n].moves = append(routes[n].moves, m)
	}
	for len(chosen) < most && len(routes) > 0 {
		best := 0
		for n := range routes[1:] {
			if d.prefer(&routes[n+1], &routes[best]) {
				best = n + 1
			}
		}
		r := &routes[best]
		d.make(&r.moves[0])
		chosen = append(chosen, r.moves[0])
		if r.moves = r.moves[1:]; len(r.moves) == 0 {
			routes = slices.Delete(routes, best, best+1)
		}
	}
	for _, r := range routes {
		others = append(others, r.moves...)
	}
	slices.SortFunc(others, func(x, y Move) int {
		return cmp.Compare(d.p.Workloads[x.Workload].Key, d.p.Workloads[y.Workload].Key)
	})
	return chosen, d.explained(others)
}

// prefer reports whether a move of x comes before one of y. Routes begin with
// their first key, so where nothing else tells them apart the keys do.
func (d *diff) prefer(x, y *route) bool {
	xRoom, yRoom := d.room(x.to) >= x.size-1e-9, d.room(y.to) >= y.size-1e-9
	if xRoom != yRoom {
		return xRoom
	}
	if c := cmp.Compare(d.load[x.from]-d.load[x.to], d.load[y.from]-d.load[y.to]); c != 0 {
		return c > 0
	}
	if c := cmp.Compare(x.size, y.size); c != 0 {
		return c > 0
	}
	return d.p.Workloads[x.moves[0].Workload].Key < d.p.Workloads[y.moves[0].Workload].Key
}

// explained says for each move, one after the other, why it would be made.
func (d *diff) explained(moves []Move) []Move {
	for i := range moves {
		d.make(&moves[i])
	}
	return moves
}
