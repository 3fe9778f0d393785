package coord_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
)

const ms = time.Millisecond

// Ensures that what the other system's users have set up keeps its meaning.
func TestTimings_Valid(t *testing.T) {
	for _, ts := range []coord.Timings{
		coord.DefaultTimings(),
		{LeaseTTL: 30000 * ms, RenewInterval: 10000 * ms, HeartbeatTTL: 30000 * ms, HeartbeatInterval: 10000 * ms, DrainTimeout: 30000 * ms},
		{LeaseTTL: 15000 * ms, RenewInterval: 2000 * ms, HeartbeatTTL: 15000 * ms, HeartbeatInterval: 2000 * ms, DrainTimeout: 10000 * ms},
		{LeaseTTL: 60 * time.Second, RenewInterval: time.Second, HeartbeatTTL: time.Hour, HeartbeatInterval: time.Minute, DrainTimeout: time.Hour},
		{
			LeaseTTL: 2 * time.Second, RenewInterval: 500 * ms, HeartbeatTTL: 2 * time.Second, HeartbeatInterval: 500 * ms, DrainTimeout: 1,
			Margin: 300 * ms, StopBudget: 200 * ms, Election: 200 * ms,
		},
	} {
		if err := ts.Validate(); err != nil {
			t.Errorf("%+v: %v", ts, err)
		}
	}
}

func TestTimings_Faults(t *testing.T) {
	base := coord.DefaultTimings()
	for _, c := range []struct {
		name   string
		change func(*coord.Timings)
		want   string
	}{
		{
			"TTL too short", func(ts *coord.Timings) { ts.LeaseTTL = 1900 * ms },
			"RenewInterval is 2s: it must be less than LeaseTTL (1.9s); 380ms would do\n" +
				"LeaseTTL is 1.9s: the session's TTL must lie between 2s and 1m0s; 10s would do\n" +
				"LeaseTTL is 1.9s: the session's TTL (1.9s) must exceed the keep-alive interval (2s) + Margin (1s) + StopBudget (1s) + 2*Election (1s) = 5s; 5.1s would do",
		},
		{
			"TTL too long", func(ts *coord.Timings) {
				ts.LeaseTTL, ts.HeartbeatTTL, ts.Margin = 70*time.Second, 61*time.Second, 7*time.Second
			},
			"HeartbeatTTL is 1m1s: the session's TTL must lie between 2s and 1m0s; 1m0s would do",
		},
		{
			"margin", func(ts *coord.Timings) { ts.Margin = 999 * ms },
			"Margin is 999ms: it must be at least a tenth of the session's TTL (10s); 1s would do",
		},
		{
			"margin negative", func(ts *coord.Timings) { ts.Margin = -1 },
			"Margin is -1ns: it must be more than zero; 1s would do",
		},
		{
			"size", func(ts *coord.Timings) { ts.HeartbeatTTL = 5 * time.Second },
			"HeartbeatTTL is 5s: the session's TTL (5s) must exceed the keep-alive interval (2s) + Margin (1s) + StopBudget (1s) + 2*Election (1s) = 5s; 5.1s would do, or RenewInterval below 2s",
		},
	} {
		ts := base
		c.change(&ts)
		err := ts.Validate()
		if err == nil {
			t.Errorf("%s: no fault", c.name)
		} else if err.Error() != c.want {
			t.Errorf("%s: got\n%v\nwant\n%s", c.name, err, c.want)
		}
	}
}

func TestTimings_Mapping(t *testing.T) {
	ts := coord.Timings{LeaseTTL: 20 * time.Second, RenewInterval: 3 * time.Second, HeartbeatTTL: 15 * time.Second, HeartbeatInterval: 4 * time.Second}
	equal(t, ts.SessionTTL(), 15*time.Second, "session TTL")
	equal(t, ts.KeepAliveInterval(), 3*time.Second, "keep-alive interval")
	equal(t, ts.RestartDelay(), 3*time.Second, "restart delay")
	equal(t, ts.WithDefaults().Margin, 1500*ms, "margin")
}

// Ensures that doing what the faults say, over and over, ends in settings that
// pass: no remedy is itself refused for good.
func TestTimings_RemediesDo(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(most time.Duration) time.Duration {
		return time.Duration(rng.Int64N(int64(most))) - most/20
	}
	for n := range 20_000 {
		ts := coord.Timings{
			LeaseTTL: pick(90 * time.Second), RenewInterval: pick(30 * time.Second), HeartbeatTTL: pick(90 * time.Second),
			HeartbeatInterval: pick(30 * time.Second), DrainTimeout: pick(time.Minute),
			Margin: pick(8 * time.Second), StopBudget: pick(8 * time.Second), Election: pick(4 * time.Second),
		}
		first := ts
		err := ts.Validate()
		for range 12 {
			f, ok := errors.AsType[*coord.TimingError](err)
			if !ok {
				break
			}
			*map[string]*time.Duration{
				"LeaseTTL": &ts.LeaseTTL, "RenewInterval": &ts.RenewInterval, "HeartbeatTTL": &ts.HeartbeatTTL, "DrainTimeout": &ts.DrainTimeout,
				"HeartbeatInterval": &ts.HeartbeatInterval, "Margin": &ts.Margin, "StopBudget": &ts.StopBudget, "Election": &ts.Election,
			}[f.Field] = f.Remedy
			err = ts.Validate()
		}
		if err != nil {
			t.Fatalf("round %d: %+v became %+v, which is refused: %v", n, first, ts, err)
		}
	}
}

func TestBackoff_Delay(t *testing.T) {
	b := coord.Backoff{Initial: 200 * ms, Max: 2 * time.Second, Jitter: 0.5}
	for _, c := range []struct {
		failures int
		chance   float64
		want     time.Duration
	}{
		{0, 0, 0},
		{1, 0, 200 * ms},
		{2, 0, 400 * ms},
		{3, 0, 800 * ms},
		{4, 0, 1600 * ms},
		{5, 0, 2 * time.Second},
		{1000, 0, 2 * time.Second},
		{3, 0.5, 600 * ms},
		{1_000_000, 0.5, 1500 * ms},
	} {
		equal(t, b.Delay(c.failures, c.chance), c.want, "delay")
	}
	equal(t, coord.Backoff{}.Delay(1, 0), time.Second, "default delay")
	equal(t, coord.Backoff{}.Delay(99, 0), time.Minute, "default cap")
	equal(t, coord.Backoff{Jitter: -1}.Delay(1, 0.9), time.Second, "without jitter")
	equal(t, coord.Backoff{Factor: 1}.Delay(9, 0), time.Second, "constant")
}
