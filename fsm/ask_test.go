package fsm_test

import (
	"bytes"
	"testing"

	"github.com/miwnode/miwnode/fsm"
)

// A call that is taken back leaves the queue, or gives back the grant that it
// alone would have been answered with; never what another call of the same
// holder waits for or was answered with.
func TestAsk(t *testing.T) {
	const key, a, b = "k", "aaaa", "bbbb"
	setup := func(t *testing.T) *logbook {
		l := newLogbook(t)
		for _, id := range []string{a, b} {
			l.done(&fsm.OpenSession{SessionId: id, TtlMs: 10_000})
		}
		return l
	}
	acquire := func(l *logbook, session string, ask uint64) *fsm.Result {
		return l.done(&fsm.Acquire{Key: key, SessionId: session, Wait: true, Ask: ask})
	}
	cancel := func(l *logbook, session string, ask uint64) {
		l.done(&fsm.CancelWait{Key: key, SessionId: session, Ask: ask})
	}
	holder := func(l *logbook) string {
		if lease, ok := l.state.View().Lease(key); ok {
			return lease.SessionID
		}
		return ""
	}
	waiting := func(l *logbook, session string) bool { return l.state.View().Waiting(key, session, "") }

	t.Run("the only asking takes the place with it", func(t *testing.T) {
		l := setup(t)
		acquire(l, a, 1)
		acquire(l, b, 2)
		cancel(l, b, 3)
		if !waiting(l, b) {
			t.Fatal("another call's number took the place")
		}
		cancel(l, b, 2)
		if waiting(l, b) {
			t.Fatal("the place is still there")
		}
	})
	t.Run("the only asking takes the grant with it", func(t *testing.T) {
		l := setup(t)
		acquire(l, a, 1)
		acquire(l, b, 2)
		cancel(l, a, 1)
		if got := holder(l); got != b {
			t.Fatalf("held by %q, want %q", got, b)
		}
	})
	t.Run("a second call keeps the place and the grant", func(t *testing.T) {
		l := setup(t)
		token := acquire(l, a, 1).Token
		acquire(l, b, 2)
		acquire(l, b, 3)
		cancel(l, b, 2)
		if !waiting(l, b) {
			t.Fatal("the place went with the first of two calls")
		}
		l.done(&fsm.Release{Key: key, Token: token, SessionId: a})
		acquire(l, b, 4)
		cancel(l, b, 3)
		if got := holder(l); got != b {
			t.Fatalf("held by %q: a call that was answered lost its grant", got)
		}
		cancel(l, b, 4)
		if got := holder(l); got != "" {
			t.Fatalf("held by %q, though nobody asks for it any more", got)
		}
	})
	t.Run("a repeat without a number is for good", func(t *testing.T) {
		l := setup(t)
		acquire(l, a, 1)
		acquire(l, a, 0)
		cancel(l, a, 1)
		if got := holder(l); got != a {
			t.Fatalf("held by %q, want %q", got, a)
		}
	})
	t.Run("too many calls are for good", func(t *testing.T) {
		l := setup(t)
		for ask := uint64(1); ask <= 9; ask++ {
			acquire(l, a, ask)
		}
		for ask := uint64(1); ask <= 9; ask++ {
			cancel(l, a, ask)
		}
		if got := holder(l); got != a {
			t.Fatalf("held by %q, want %q", got, a)
		}
	})
	t.Run("a repeat under one idempotency key counts", func(t *testing.T) {
		l := setup(t)
		keyed := func(ask uint64) *fsm.Result {
			cmd := fsm.NewCommand(&fsm.Acquire{Key: key, SessionId: a, Wait: true, Ask: ask})
			cmd.IdempotencyKey, cmd.IdempotencyHash = "once", bytes.Repeat([]byte{7}, 32)
			return l.batch(&fsm.Proposal{Commands: []*fsm.Command{cmd}}).Proposals[0].Results[0]
		}
		first, second := keyed(1), keyed(2)
		if first.Token == 0 || first.Token != second.Token {
			t.Fatalf("tokens %d and %d, want one", first.Token, second.Token)
		}
		cancel(l, a, 1)
		if got := holder(l); got != a {
			t.Fatalf("held by %q: the repeat lost its grant", got)
		}
	})
	t.Run("a snapshot keeps the numbers", func(t *testing.T) {
		l := setup(t)
		acquire(l, a, 1)
		acquire(l, b, 2)
		var snap bytes.Buffer
		if err := l.state.View().Snapshot(&snap); err != nil {
			t.Fatal(err)
		}
		restored, err := fsm.ReadSnapshot(&snap)
		if err != nil {
			t.Fatal(err)
		}
		l.state = restored
		cancel(l, b, 2)
		cancel(l, a, 1)
		if holder(l) != "" || waiting(l, b) {
			t.Fatalf("held by %q, b waits: %v", holder(l), waiting(l, b))
		}
	})
}
