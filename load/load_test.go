package load_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/load"
)

// TestRepeat ensures that the warm-up is not counted and that rates are per second of measured time.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		row, err := load.Repeat(t.Context(), 10*time.Second, 4, func(context.Context, int) error {
			time.Sleep(100 * time.Millisecond)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if row.PerS != 40 || row.P50 != 100 || row.P99 != 100 || row.Callers != 4 {
			t.Errorf("got %+v, want 40 per s of 100 ms by 4 callers", row)
		}
	})
}

// TestRepeat_Failure ensures that one failing caller fails the run.
func TestRepeat_Failure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		_, err := load.Repeat(t.Context(), time.Second, 2, func(_ context.Context, caller int) error {
			time.Sleep(time.Millisecond)
			if caller == 1 {
				return boom
			}
			return nil
		})
		if !errors.Is(err, boom) {
			t.Errorf("got %v, want %v", err, boom)
		}
	})
}

// TestMedian ensures that figures are medians and overlaps are never averaged away.
func TestMedian(t *testing.T) {
	m := load.Median([]load.Row{{PerS: 3, P50: 1}, {PerS: 1, P50: 9, Overlap: 1}, {PerS: 2, P50: 5}})
	if m.PerS != 2 || m.P50 != 5 || m.Overlap != 1 || m.Runs != 3 {
		t.Errorf("got %+v, want medians 2 and 5, 1 overlap, 3 runs", m)
	}
	if q := load.Quantile([]time.Duration{4, 1, 3, 2}, 0.5); q != 3 {
		t.Errorf("median of 1..4 is %d, want 3", q)
	}
}
