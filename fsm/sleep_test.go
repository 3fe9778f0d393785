package fsm_test

import (
	"fmt"
	"testing"

	"github.com/miwnode/miwnode/fsm"
)

// A history tells of a sleep beside the grants, held or ended, which keep their
// gaps; the state after a snapshot tells the same.
func TestHistory_Slept(t *testing.T) {
	l := newWorkerLog(t)
	l.open("a")
	l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
	l.done(&fsm.RecordSleep{Key: "k", Token: token(1), InstanceId: "i-a", SleptNs: 1_500_400_000})
	l.done(&fsm.Release{Key: "k", SessionId: "a", Token: token(1)})
	l.stamp += second
	l.done(&fsm.RecordSleep{Key: "k", Token: token(1), InstanceId: "i-a", SleptNs: 30 * second})
	l.stamp += second
	l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
	var got []string
	for _, e := range reload(t, l.state).View().History(fsm.HistoryQuery{Key: "k"}) {
		got = append(got, fmt.Sprintf("%s %s/%s %v %q gap=%v", tokenString(e.Token), e.Who.InstanceID, e.Who.NodeID, e.EndReason, e.Note.Reason, e.Gap))
	}
	equalLines(t, "history", got, []string{
		`1 i-a/n-a slept "slept 1.5 s" gap=0s`,
		`1 i-a/n-a released "" gap=0s`,
		`1 i-a/ slept "slept 30 s" gap=0s`, // the grant and who had it are gone from the state
		`2 i-a/n-a  "" gap=2s`,
	})
	events, _ := l.state.View().Events(fsm.EventID{})
	got = nil
	for e := range events {
		if e.Type == fsm.EventLeaseSlept {
			got = append(got, fmt.Sprintf("%s %s %s %q %d", e.Key, tokenString(e.Token), e.Who.InstanceID, e.Note.Reason, e.Note.Number))
		}
	}
	equalLines(t, "events", got, []string{`k 1 i-a "slept 1.5 s" 1500400000`, `k 1 i-a "slept 30 s" 30000000000`})
}

func TestRecordSleep_Limits(t *testing.T) {
	l := newWorkerLog(t)
	for _, op := range []*fsm.RecordSleep{
		{Key: "k", Token: 1, InstanceId: "i-a"},
		{Key: "k", Token: 1, InstanceId: "i-a", SleptNs: -1},
		{Token: 1, InstanceId: "i-a", SleptNs: 1},
		{Key: "k", InstanceId: "i-a", SleptNs: 1},
		{Key: "k", Token: 1, SleptNs: 1},
	} {
		l.refused(op, fsm.ErrInvalidArgument)
		if err := fsm.Check(op, 3); !isErr(err, fsm.ErrInvalidArgument) {
			t.Errorf("Check(%v): %v", op, err)
		}
	}
	good := &fsm.RecordSleep{Key: "k", Token: 1, InstanceId: "i-a", SleptNs: 1}
	if err := fsm.Check(good, 2); !isErr(err, fsm.ErrWrongState) {
		t.Errorf("in a cluster of version 2: %v", err)
	}
	newGroupLog(t).refused(good, fsm.ErrWrongState)
}
