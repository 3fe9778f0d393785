package fsm

import (
	"bytes"
	"fmt"
	"testing"
)

// The count of all waiters, by which one more is refused, is right after every
// way out of a queue and after a restore: a copy that counted otherwise would
// refuse what others take.
func TestQueue_Count(t *testing.T) {
	s := NewState()
	index := uint64(0)
	apply := func(op Op) {
		index++
		out := s.Apply(index, 1, &Batch{Proposals: []*Proposal{{Commands: []*Command{NewCommand(op)}}}})
		if r := out.Proposals[0].Results[0]; r.Code != 0 {
			t.Fatalf("%T: %s", op, r.Message)
		}
	}
	expect := func(what string, want int) {
		t.Helper()
		if s.waiters != want {
			t.Errorf("%s: %d waiters, want %d", what, s.waiters, want)
		}
		var b bytes.Buffer
		if err := s.View().Snapshot(&b); err != nil {
			t.Fatal(err)
		}
		restored, err := ReadSnapshot(&b)
		if err != nil {
			t.Fatal(err)
		}
		if restored.waiters != want {
			t.Errorf("%s, restored: %d waiters, want %d", what, restored.waiters, want)
		}
	}
	apply(&InitCluster{ClusterId: "c", Version: 1})
	for _, id := range []string{"a", "b", "c"} {
		apply(&OpenSession{SessionId: id, TtlMs: 10_000})
	}
	apply(&Acquire{Key: "k", SessionId: "a"})
	apply(&Acquire{Key: "j", SessionId: "a"})
	for i := range 4 {
		apply(&Acquire{Key: "k", SessionId: "b", Holder: fmt.Sprint(i), Wait: true})
	}
	apply(&Acquire{Key: "j", SessionId: "b", Wait: true})
	apply(&Acquire{Key: "k", SessionId: "c", Wait: true})
	apply(&Acquire{Key: "k", SessionId: "c", Wait: true}) // a repeat
	expect("queued", 6)
	apply(&CancelWait{Key: "k", SessionId: "b", Holder: "2"})
	expect("cancelled", 5)
	apply(&Release{Key: "k", Token: 1<<tokenBits + 1, SessionId: "a"})
	expect("granted", 4)
	apply(&CloseSession{SessionId: "b", Reason: CloseClosed}) // its lease goes to c
	expect("session closed", 0)
}
