package coord

import (
	"testing"
	"time"
)

// Ensures that only trust read before the copy had the revoke counts: what was
// read after it may stem from an answer that overtook the entry.
func TestRevokedUntil(t *testing.T) {
	base := time.Now()
	at := func(s int) time.Time { return base.Add(time.Duration(s) * time.Second) }
	samples := []sample{{at(8), 10}, {at(10), 11}, {at(12), 11}, {at(20), 15}}
	for _, c := range []struct {
		revision uint64
		want     time.Time
	}{
		{16, at(20)},
		{15, at(12)},      // the copy had 15 when the last was read
		{12, at(12)},      // 11 was before 12
		{11, at(8)},       // neither reading at 11 was before 11
		{10, time.Time{}}, // nothing was
		{3, time.Time{}},
	} {
		if got := revokedUntil(samples, c.revision); !got.Equal(c.want) {
			t.Errorf("revision %d: got %v, want %v", c.revision, got.Sub(base), c.want.Sub(base))
		}
	}
	if got := revokedUntil(nil, 5); !got.IsZero() {
		t.Errorf("without readings: %v", got)
	}
}

// Ensures the shares of a TTL: a session that renews in time always has trust
// enough, and what a run is given without a proof is half a margin.
func TestShares(t *testing.T) {
	for _, c := range []struct{ ttl, enough, grace time.Duration }{
		{10 * time.Second, 4500 * time.Millisecond, 500 * time.Millisecond},
		{2 * time.Second, 900 * time.Millisecond, 100 * time.Millisecond},
		{60 * time.Second, 27 * time.Second, 3 * time.Second},
	} {
		if got := enough(c.ttl); got != c.enough {
			t.Errorf("enough(%v) = %v, want %v", c.ttl, got, c.enough)
		}
		if got := grace(c.ttl); got != c.grace {
			t.Errorf("grace(%v) = %v, want %v", c.ttl, got, c.grace)
		}
		if d := DefaultTimings(); c.ttl == d.LeaseTTL && enough(c.ttl) > c.ttl-d.Margin-d.StopBudget-d.RenewInterval {
			t.Error("a healthy session has too little")
		}
	}
}
