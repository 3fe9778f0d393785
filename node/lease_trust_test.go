package node

import (
	"math/rand/v2"
	"testing"
	"time"
)

const sec = time.Second

var benchRule = newTrustRule(6*sec, sec, sec)

// The instants that follow from a sending.
func TestTrust_Rule(t *testing.T) {
	for _, c := range []struct {
		ttl, margin, stop, sent time.Duration
		warn, until             time.Duration
	}{
		{10 * sec, sec, sec, 100 * sec, 108 * sec, 109 * sec},
		{6 * sec, sec, sec, 100 * sec, 104 * sec, 105 * sec},
		{60 * sec, sec, sec, 0, 53 * sec, 54 * sec}, // a tenth of the TTL, never less
		{2 * sec, 200 * time.Millisecond, 500 * time.Millisecond, 0, 1300 * time.Millisecond, 1800 * time.Millisecond},
	} {
		r := newTrustRule(c.ttl, c.margin, c.stop)
		if got := r.warn(c.sent); got != c.warn {
			t.Errorf("%+v: warn %v, want %v", c, got, c.warn)
		}
		if got := r.until(c.sent); got != c.until {
			t.Errorf("%+v: until %v, want %v", c, got, c.until)
		}
	}
}

// Each row is a history of one session that was first asked for at 0; T 6 s, M
// 1 s, S 1 s.
func TestTrust_Histories(t *testing.T) {
	type want struct {
		left         time.Duration
		ending, over bool
	}
	for name, c := range map[string]struct {
		do   func(*trust)
		now  time.Duration
		want want
	}{
		"opened":                           {func(*trust) {}, sec, want{left: 3 * sec}},
		"nothing heard, told to stop":      {func(*trust) {}, 4 * sec, want{ending: true}},
		"nothing heard, made to stop":      {func(*trust) {}, 5 * sec, want{ending: true, over: true}},
		"confirmed":                        {func(x *trust) { x.confirmed(answer{sent: 2 * sec}, 0) }, 3 * sec, want{left: 3 * sec}},
		"answered late: counts from 2 s":   {func(x *trust) { x.confirmed(answer{sent: 2 * sec}, 0) }, 5999 * time.Millisecond, want{left: time.Millisecond}},
		"an older answer takes nothing":    {func(x *trust) { x.confirmed(answer{sent: 2 * sec}, 0); x.confirmed(answer{sent: sec}, 0) }, 3 * sec, want{left: 3 * sec}},
		"copy lags behind the answer":      {func(x *trust) { x.confirmed(answer{sent: 2 * sec, changed: 9}, 8) }, 3 * sec, want{left: sec}},
		"copy catches up":                  {func(x *trust) { x.confirmed(answer{sent: 2 * sec, changed: 9}, 8); x.covered(9) }, 3 * sec, want{left: 3 * sec}},
		"copy catches up too late":         {func(x *trust) { x.confirmed(answer{sent: 2 * sec, changed: 9}, 8); x.at(4 * sec); x.covered(9) }, 4500 * time.Millisecond, want{ending: true}},
		"one way: an answer after ending":  {func(x *trust) { x.at(4 * sec); x.confirmed(answer{sent: 3900 * time.Millisecond}, 0) }, 4500 * time.Millisecond, want{ending: true}},
		"one way: the end does not move":   {func(x *trust) { x.at(4 * sec); x.confirmed(answer{sent: 3900 * time.Millisecond}, 0) }, 5 * sec, want{ending: true, over: true}},
		"slept":                            {func(x *trust) { x.slept(2 * sec) }, 2 * sec, want{}},
		"slept, answer from before":        {func(x *trust) { x.slept(2 * sec); x.confirmed(answer{sent: 1900 * time.Millisecond}, 0) }, 2 * sec, want{}},
		"slept, then confirmed":            {func(x *trust) { x.slept(2 * sec); x.confirmed(answer{sent: 2 * sec}, 0) }, 2 * sec, want{left: 4 * sec}},
		"slept past the end":               {func(x *trust) { x.slept(30 * sec) }, 30 * sec, want{ending: true, over: true}},
		"slept past the end, an answer":    {func(x *trust) { x.slept(30 * sec); x.at(30 * sec); x.confirmed(answer{sent: 30 * sec}, 0) }, 30 * sec, want{ending: true, over: true}},
		"gone from the state":              {func(x *trust) { x.end() }, sec, want{ending: true, over: true}},
		"gone, then an answer":             {func(x *trust) { x.end(); x.confirmed(answer{sent: sec}, 0) }, sec, want{ending: true, over: true}},
		"lag: later answers stay in order": {func(x *trust) { x.confirmed(answer{3 * sec, 12}, 8); x.confirmed(answer{2 * sec, 9}, 8); x.covered(10) }, 3 * sec, want{left: 3 * sec}},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTrust(benchRule, 0)
			c.do(x)
			ending, over := x.at(c.now)
			if got := (want{x.left(c.now), ending, over}); got != c.want {
				t.Errorf("at %v: %+v, want %+v", c.now, got, c.want)
			}
		})
	}
}

// A copy that lags for ever costs no memory, and the answers that matter stay.
func TestTrust_UncoveredIsBounded(t *testing.T) {
	x := newTrust(newTrustRule(60*sec, sec, sec), 0)
	for i := range 1000 {
		x.confirmed(answer{sent: time.Duration(i+1) * time.Millisecond, changed: uint64(i + 10)}, 1)
	}
	if len(x.uncovered) > maxUncovered {
		t.Fatalf("%d answers kept, want at most %d", len(x.uncovered), maxUncovered)
	}
	if rev, ok := x.waitsFor(); !ok || rev != 10 {
		t.Errorf("waits for %d, %v; want the first, 10", rev, ok)
	}
	x.covered(2000)
	if x.sent != 1000*time.Millisecond {
		t.Errorf("counts from %v, want from the newest, 1s", x.sent)
	}
}

// Whatever the rates of two clocks within 5 %, the holder is out before the
// leader's deadline: no keep-alive is confirmed after it was sent at s, received
// at r >= s, and the leader waits T by its clock from r.
func TestTrust_RatesWithinMargin(t *testing.T) {
	for _, timing := range []struct{ ttl, margin time.Duration }{{10 * sec, sec}, {6 * sec, sec}, {2 * sec, 200 * time.Millisecond}, {60 * sec, sec}} {
		rule := newTrustRule(timing.ttl, timing.margin, 0)
		for range 10000 {
			holder := 0.975 + rand.Float64()*0.05
			leader := 0.975 + rand.Float64()*0.05
			flight := time.Duration(rand.Int64N(int64(time.Second)))
			outAt := float64(rule.until(0)) / holder             // true time after sending
			freeAt := float64(flight) + float64(rule.ttl)/leader // true time after sending
			if outAt >= freeAt {
				t.Fatalf("T %v M %v: with rates %.3f and %.3f the holder is out at %v, the lease free at %v",
					rule.ttl, rule.margin, holder, leader, time.Duration(outAt), time.Duration(freeAt))
			}
		}
	}
}
