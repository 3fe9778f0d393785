package coord_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// faults returns the fields that err complains about, in order.
func faults(err error) (fields []string) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	for _, e := range joined.Unwrap() {
		if f, ok := errors.AsType[*coord.TimingError](e); ok {
			fields = append(fields, f.Field)
		}
	}
	return fields
}

var configRows = []row{
	{name: "020_each_of_the_five_must_be_positive", test: func(t *testing.T, _ *coordtest.World) {
		for _, field := range []string{"LeaseTTL", "RenewInterval", "HeartbeatTTL", "HeartbeatInterval", "DrainTimeout"} {
			for _, bad := range []time.Duration{0, -1} {
				ts := coord.DefaultTimings()
				*map[string]*time.Duration{
					"LeaseTTL": &ts.LeaseTTL, "RenewInterval": &ts.RenewInterval, "HeartbeatTTL": &ts.HeartbeatTTL,
					"HeartbeatInterval": &ts.HeartbeatInterval, "DrainTimeout": &ts.DrainTimeout,
				}[field] = bad
				err := ts.Validate()
				equalLines(t, faults(err), field)
				if err == nil || !strings.HasPrefix(err.Error(), field+" is ") || !strings.HasSuffix(err.Error(), " would do") {
					t.Errorf("%s = %v: %v", field, bad, err)
				}
			}
		}
		equalLines(t, faults(coord.Timings{}.Validate()), "LeaseTTL", "RenewInterval", "HeartbeatTTL", "HeartbeatInterval", "DrainTimeout")
	}},
	{name: "021_equal_is_rejected_and_the_size_rule_says_what_would_do", test: func(t *testing.T, _ *coordtest.World) {
		ts := coord.DefaultTimings()
		ts.RenewInterval = ts.LeaseTTL
		if f := faults(ts.Validate()); len(f) == 0 || f[0] != "RenewInterval" {
			t.Errorf("renew == TTL: %v", f)
		}
		ts = coord.DefaultTimings()
		ts.HeartbeatInterval = ts.HeartbeatTTL
		if f := faults(ts.Validate()); len(f) == 0 || f[0] != "HeartbeatInterval" {
			t.Errorf("heartbeat interval == TTL: %v", f)
		}
		// One of the two intervals may be just below its TTL, when the other renews.
		ts = coord.DefaultTimings()
		ts.RenewInterval = ts.LeaseTTL - 1
		equal(t, ts.Validate(), nil, "renew = TTL-1 beside a short heartbeat interval")
		// Both are refused by the size rule, with a way out.
		ts.HeartbeatInterval = ts.HeartbeatTTL - 1
		err := ts.Validate()
		equalLines(t, faults(err), "RenewInterval")
		f, _ := errors.AsType[*coord.TimingError](err)
		equal(t, f.Remedy, 3500*time.Millisecond, "remedy")
		equal(t, f.Other, "LeaseTTL 13.4s with Margin 1.34s", "other way out")
	}},
	{name: "022_the_engine_validates_at_construction", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		r := coord.NewRunner(a, "k", untilDone, func(c *coord.RunnerConfig) {
			c.Drain.Timeout, c.Backoff.Max, c.MaxFailures = -1, -2, -3
			c.Stuck.WhileHeld, c.Stuck.WhenLost = coord.PolicyReport, coord.PolicyHold
		})
		err := r.Err()
		wantErr(t, err, fsm.ErrInvalidArgument)
		for _, field := range []string{"Drain.Timeout", "Backoff.Max", "MaxFailures", "Stuck.WhileHeld", "Stuck.WhenLost"} {
			if !strings.Contains(err.Error(), field+" is ") {
				t.Errorf("%s is not named in %v", field, err)
			}
		}
		wantErr(t, r.Run(t.Context()), fsm.ErrInvalidArgument)
		equal(t, a.Calls("Acquire"), 0, "acquires sent")
	}},
	{name: "023_blank_keys_and_names_are_rejected", test: func(t *testing.T, w *coordtest.World) {
		a := w.Join("a")
		for _, key := range []string{"", " \t", "a\nb", "\xff", strings.Repeat("k", 513), "miw/group/g/planner"} {
			wantErr(t, coord.NewRunner(a, key, untilDone).Err(), fsm.ErrInvalidArgument)
			_, err := coord.Acquire(t.Context(), a, key)
			wantErr(t, err, fsm.ErrInvalidArgument)
		}
		wantErr(t, coord.NewRunner(a, "k", untilDone, func(c *coord.RunnerConfig) { c.Name = "  " }).Err(), fsm.ErrInvalidArgument)
		equal(t, coord.NewRunner(a, strings.Repeat("k", 512), untilDone).Err(), nil, "a key of 512 bytes")
		equal(t, a.Calls("Acquire"), 0, "acquires sent")
	}},
}
