package worker

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
)

// What follows runs that end one after the other: s ended well, f failed, F
// failed after it had lasted for as long as the longest back-off.
func TestRestarts(t *testing.T) {
	backoff := coord.Backoff{Initial: 200 * time.Millisecond, Max: time.Second, Jitter: -1}
	for _, tt := range []struct {
		policy string
		most   int
		runs   string
		want   string
	}{
		{RestartOnFailure, 3, "s", "end"},
		{RestartOnFailure, 3, "fs", "200ms end"},
		{RestartOnFailure, 3, "ffff", "200ms 400ms 800ms end"},
		{RestartOnFailure, 5, "ffffff", "200ms 400ms 800ms 1s 1s end"},
		{RestartOnFailure, 3, "fffFfff", "200ms 400ms 800ms 200ms 400ms 800ms end"},
		{RestartOnFailure, 0, "f", "end"},
		{RestartAlways, 3, "sss", "200ms 200ms 200ms"},
		{RestartAlways, 2, "ffsfff", "200ms 400ms 200ms 200ms 400ms end"},
		{RestartNever, 3, "s", "end"},
		{RestartNever, 3, "f", "end"},
	} {
		r := restarts{policy: tt.policy, backoff: backoff, most: tt.most}
		got := ""
		for _, c := range tt.runs {
			var err error
			took := 999 * time.Millisecond
			switch c {
			case 'f':
				err = errors.New("failed")
			case 'F':
				err, took = errors.New("failed"), time.Second
			}
			v := r.returned(err, took, 0.5)
			if v.again {
				got += fmt.Sprint(" ", v.after)
			} else {
				got += " end"
			}
		}
		if want := " " + tt.want; got != want {
			t.Errorf("%s, %d restarts, runs %s:\n got %s\nwant %s", tt.policy, tt.most, tt.runs, got, want)
		}
	}
}
