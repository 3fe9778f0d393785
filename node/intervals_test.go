package node

import (
	"math/rand/v2"
	"testing"
	"time"
)

// crooked is a clock with a rate and an offset, read at true instants.
type crooked struct {
	rate   float64
	offset time.Duration
}

func (c crooked) at(t time.Duration) time.Duration {
	return c.offset + time.Duration(float64(t)*c.rate)
}

func randomClock(r *rand.Rand) crooked {
	return crooked{rate: 0.975 + 0.05*r.Float64(), offset: time.Duration(r.Int64N(int64(100*time.Hour))) - 50*time.Hour}
}

// upTo is a random duration below d.
func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// tripAt is a message that leaves at the true instant t.
func tripAt(r *rand.Rand, from, to crooked, t time.Duration) (x trip, over time.Duration) {
	arrived := t + upTo(r, 50*time.Millisecond)
	answered := arrived + upTo(r, 20*time.Millisecond)
	over = answered + upTo(r, 50*time.Millisecond)
	return trip{sent: from.at(t), arrived: to.at(arrived), answered: to.at(answered), received: from.at(over)}, over
}

// Whatever the clocks' rates, within 5 %, and offsets, and whatever the delays,
// a mapped instant lies where the map says, and a recent one within the round
// trip and the drift since.
func TestIntervals_MapHoldsTheTruth(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		from, to := randomClock(r), randomClock(r)
		var m clockMap
		now := time.Hour
		for range 30 {
			sent := now
			x, over := tripAt(r, from, to, now)
			if !m.add(x) {
				t.Fatalf("seed %d: a contradiction where there is none", seed)
			}
			if !m.covers(x.sent) || m.covers(x.sent+1) {
				t.Fatalf("seed %d: a trip covers what came before it, and no more", seed)
			}
			for range 5 {
				at := sent - upTo(r, 3*time.Second)
				got, want := m.at(from.at(at)), to.at(at)
				if want < got.lo-2 || want > got.hi+2 { // rounding
					t.Fatalf("seed %d: %v is mapped to %v..%v, truly %v", seed, from.at(at), got.lo, got.hi, want)
				}
				if limit := 130*time.Millisecond + 2*drift(sent-at+200*time.Millisecond); got.width() > limit {
					t.Fatalf("seed %d: %v before the trip the span is %v wide, want at most %v", seed, sent-at, got.width(), limit)
				}
			}
			now = over + upTo(r, 2*time.Second)
		}
		if len(m.trips) > maxTrips {
			t.Fatalf("%d trips are kept, want at most %d", len(m.trips), maxTrips)
		}
	}
}

// A clock that jumps by more than a round trip hides is found out, and what was
// known before is forgotten.
func TestIntervals_JumpIsFound(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		from, to := randomClock(r), randomClock(r)
		var m clockMap
		now := time.Hour
		for range 5 {
			x, over := tripAt(r, from, to, now)
			m.add(x)
			now = over + time.Second
		}
		jump := time.Second + upTo(r, time.Hour)
		if seed%2 == 0 {
			jump = -jump
		}
		from.offset += jump
		x, over := tripAt(r, from, to, now)
		// That the sender's clock went back shows in nothing but the map.
		if m.add(x) || len(m.trips) != 0 {
			t.Fatalf("seed %d: a jump by %v goes unseen", seed, jump)
		}
		now = over + time.Second
		if x, _ = tripAt(r, from, to, now); !m.add(x) || len(m.trips) != 1 {
			t.Fatalf("seed %d: not begun anew after a jump", seed)
		}
	}
}

// Impossible trips are no knowledge.
func TestIntervals_ImpossibleTrips(t *testing.T) {
	const s = time.Second
	for name, x := range map[string]trip{
		"back before it left":       {sent: 2 * s, received: s, arrived: 10 * s, answered: 10 * s},
		"answered before it came":   {sent: s, received: 2 * s, arrived: 11 * s, answered: 10 * s},
		"longer there than between": {sent: s, received: 2 * s, arrived: 10 * s, answered: 12 * s},
	} {
		var m clockMap
		if m.add(x) {
			t.Errorf("%s: taken", name)
		}
	}
}

// Two runs are said to overlap only if they do, by no more than is said; what
// is decided is right, and runs that overlap for longer than the doubt are found.
func TestIntervals_Judge(t *testing.T) {
	vague := func(r *rand.Rand, at, doubt time.Duration) span {
		lo := at - upTo(r, doubt)
		return span{lo, at + upTo(r, doubt)}
	}
	found, apart := 0, 0
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 3))
		const doubt = 50 * time.Millisecond
		run := func() (start, end time.Duration, s stretch) {
			start = upTo(r, time.Second)
			end = start + upTo(r, time.Second)
			s = stretch{start: vague(r, start, doubt), until: vague(r, end, doubt), over: true, final: true}
			switch r.IntN(3) {
			case 0: // still seen running some time before its end
				at := start + upTo(r, end-start+1)
				s.until, s.over, s.final = vague(r, at, doubt), false, false
			case 1: // never heard of again
				at := start + upTo(r, end-start+1)
				s.until, s.over = vague(r, at, doubt), false
			}
			return start, end, s
		}
		s1, e1, a := run()
		s2, e2, b := run()
		truth := min(e1, e2) - max(s1, s2)
		f, g := judge(a, b), judge(b, a)
		if f != g {
			t.Fatalf("seed %d: %+v one way, %+v the other", seed, f, g)
		}
		if f.certain > 0 && truth < f.certain {
			t.Fatalf("seed %d: certain %v, truly %v", seed, f.certain, truth)
		}
		if f.certain > 0 && !f.decided || f.doubt < 0 {
			t.Fatalf("seed %d: %+v", seed, f)
		}
		if a.over && b.over {
			if !f.decided || truth > f.certain+f.doubt {
				t.Fatalf("seed %d: %+v of two that are over, truly %v", seed, f, truth)
			}
			if truth > 4*doubt && f.certain <= 0 {
				t.Fatalf("seed %d: an overlap by %v goes unseen", seed, truth)
			}
		}
		if f.certain > 0 {
			found++
		} else if f.decided {
			apart++
		}
	}
	if found < 1000 || apart < 1000 {
		t.Errorf("%d overlaps, %d apart: the test shows too little", found, apart)
	}
}

// What is decided stays so, whatever is learnt later.
func TestIntervals_JudgeIsFinal(t *testing.T) {
	at := func(ms int64) span { return exactly(time.Duration(ms) * time.Millisecond) }
	for name, tc := range map[string]struct {
		a, b    stretch
		certain time.Duration
		decided bool
	}{
		"both run":               {stretch{start: at(0), until: at(50)}, stretch{start: at(20), until: at(40)}, 20 * time.Millisecond, true},
		"the second just began":  {stretch{start: at(0), until: at(50)}, stretch{start: at(20), until: at(20)}, 0, false},
		"apart":                  {stretch{start: at(0), until: at(10), over: true, final: true}, stretch{start: at(10), until: at(10)}, 0, true},
		"the first may go on":    {stretch{start: at(0), until: at(10)}, stretch{start: at(20), until: at(40)}, -10 * time.Millisecond, false},
		"the first is lost":      {stretch{start: at(0), until: at(10), final: true}, stretch{start: at(20), until: at(40)}, -10 * time.Millisecond, true},
		"seen past the other":    {stretch{start: at(0), until: span{10, 30}, over: true, final: true}, stretch{start: span{5, 20}, until: at(40)}, -10, true},
		"not seen past it yet":   {stretch{start: at(0), until: span{10, 30}, over: true, final: true}, stretch{start: span{5, 20}, until: span{5, 20}}, -15, false},
		"by the smallest amount": {stretch{start: at(0), until: exactly(11), over: true, final: true}, stretch{start: exactly(10), until: at(40)}, 1, true},
	} {
		if f := judge(tc.a, tc.b); f.certain != tc.certain || f.decided != tc.decided {
			t.Errorf("%s: %+v, want certain %v, decided %t", name, f, tc.certain, tc.decided)
		}
	}
	if g := gapBetween(span{10, 20}, span{40, 60}); g != 35 {
		t.Errorf("gap %v, want 35ns", g)
	}
	if g := gapBetween(span{10, 20}, span{5, 15}); g != 0 {
		t.Errorf("gap %v of spans that cross, want 0", g)
	}
}
