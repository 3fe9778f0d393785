package coord

import (
	"errors"
	"os"
	"testing"
	"time"
)

// standIn is a Cluster whose process is simulated.
type standIn struct{ Cluster }

func (standIn) Exit(int) {}

// TestStuck_TheEndOfTheProcessIsSaid: whoever gave no logger would otherwise see
// a process vanish with code 75 and not a word.
func TestStuck_TheEndOfTheProcessIsSaid(t *testing.T) {
	run := StuckRun{Key: "singleton:mailer", Token: 1099511627776, Cause: errors.New("lease lost"), Age: 1500 * time.Millisecond}
	const want = `ending the process with code 75: the work of "singleton:mailer" (token 1099511627776) did not return within 1.5s of being told to stop (lease lost), and nothing else can stop it`
	if got := run.farewell(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	run.HeldUp = 12 * time.Second
	if got, want := run.farewell(), want+"; the process had been stopped or starved for 12s before"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if s := (StuckConfig{}).withDefaults(nil, PolicyExit); s.farewell != os.Stderr {
		t.Errorf("the default takes the line to %v, want standard error", s.farewell)
	}
	if s := (StuckConfig{}).withDefaults(standIn{}, PolicyExit); s.farewell != nil {
		t.Error("a simulated process writes to the standard error of the real one")
	}
	if s := (StuckConfig{Exit: func(int) {}}).withDefaults(nil, PolicyExit); s.farewell != nil {
		t.Error("a caller's own Exit finds a line on standard error that it did not write")
	}
}
