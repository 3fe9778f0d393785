package worker

import (
	"time"

	"github.com/miwnode/miwnode/coord"
)

// restarts decides, for one worker under one grant, what follows a run. It is
// pure but for its count.
type restarts struct {
	policy  string // RestartOnFailure, RestartAlways, RestartNever
	backoff coord.Backoff
	most    int // restarts in a row
	row     int // failures in a row
}

// verdict is what follows a run: another one after a while, or the end.
type verdict struct {
	again bool
	after time.Duration
}

// returned is told how a run ended that nobody had asked to; chance lies in
// [0, 1). One that lasted for as long as the longest back-off begins a new row
// of failures.
func (r *restarts) returned(err error, took time.Duration, chance float64) verdict {
	if err == nil {
		r.row = 0
		return verdict{again: r.policy == RestartAlways, after: r.backoff.Delay(1, chance)}
	}
	if took >= r.backoff.Max {
		r.row = 0
	}
	r.row++
	if r.policy == RestartNever || r.row > r.most {
		return verdict{}
	}
	return verdict{again: true, after: r.backoff.Delay(r.row, chance)}
}
