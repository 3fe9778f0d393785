package fsm_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// Each limit from both sides, before proposing and in apply.
func TestLimits(t *testing.T) {
	long := func(n int) string { return strings.Repeat("k", n) }
	labels := func(n, key, value int) []*fsmpb.Label {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprintf("%0*d", key, i)] = long(value)
		}
		return fsm.LabelsOf(m)
	}
	acquire := func(key, holder string, delay int64) fsm.Op {
		return &fsm.Acquire{Key: key, SessionId: "a", Holder: holder, LockDelayMs: delay}
	}
	open := func(change func(*fsm.OpenSession)) fsm.Op {
		o := &fsm.OpenSession{SessionId: "new", TtlMs: 10_000, NodeId: "n9", Boot: 1, Nonce: "x", InstanceId: "i9"}
		change(o)
		return o
	}
	mark := func(change func(*fsm.MarkInstance)) fsm.Op {
		m := &fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkUndrain}
		change(m)
		return m
	}
	cases := []struct {
		name string
		op   fsm.Op
		want string // in the message, "" = accepted
	}{
		{"key of 1", acquire("k", "", 0), ""},
		{"key of 512", acquire(long(512), "", 0), ""},
		{"key of 513", acquire(long(513), "", 0), "key has 513 bytes, at most 512"},
		{"key of 0", acquire("", "", 0), "key must not be empty"},
		{"key in other scripts", acquire("schlüssel/鍵", "", 0), ""},
		{"key with a newline", acquire("a\nb", "", 0), "key has the control character U+000A at byte 1"},
		{"key with DEL", acquire("a\x7fb", "", 0), "control character U+007F"},
		{"key with C1", acquire("a\u0085b", "", 0), "control character U+0085"},
		{"holder of 512", acquire("k", long(512), 0), ""},
		{"holder of 513", acquire("k", long(513), 0), "holder has 513 bytes"},
		{"holder with NUL", acquire("k", "a\x00", 0), "control character U+0000"},
		{"lock delay of an hour", acquire("k", "", 3_600_000), ""},
		{"lock delay of more", acquire("k", "", 3_600_001), "lock_delay is 1h0m0.001s, must be 0s to 1h0m0s"},
		{"lock delay below 0", acquire("k", "", -1), "lock_delay is -1ms"},
		{"no session", &fsm.Acquire{Key: "k"}, "session_id must not be empty"},
		{"release without a token", &fsm.Release{Key: "k", SessionId: "a"}, "token must not be 0"},
		{"transfer without a token", &fsm.Transfer{Key: "k", ToInstance: "i-a"}, "token must not be 0"},
		{"transfer to nobody", &fsm.Transfer{Key: "k", Token: 1}, "to_instance must not be empty"},
		{"revoke without a token", &fsm.Revoke{Key: "k"}, "token must not be 0"},
		{"revoke by 128", &fsm.Revoke{Key: "k", Token: 1, By: long(128), Reason: long(512)}, "nobody holds"},
		{"revoke by 129", &fsm.Revoke{Key: "k", Token: 1, By: long(129)}, "by has 129 bytes"},
		{"revoke for 513", &fsm.Revoke{Key: "k", Token: 1, Reason: long(513)}, "reason has 513 bytes"},
		{"free without a term", &fsm.FreeRevoked{Key: "k", Token: 1}, "term must not be 0"},
		{"lift without a term", &fsm.LiftBar{Key: "k", Token: 1}, "term must not be 0"},
		{"expire without a term", &fsm.ExpireSession{SessionId: "a"}, "term must not be 0"},
		{"close for another reason", &fsm.CloseSession{SessionId: "a", Reason: fsmpb.EndReason_END_REASON_EXPIRED}, "reason must be closed or crashed"},

		{"ttl of 2 s", open(func(o *fsm.OpenSession) { o.TtlMs = 2000 }), ""},
		{"ttl below", open(func(o *fsm.OpenSession) { o.TtlMs = 1999 }), "ttl is 1.999s, must be 2s to"},
		{"ttl of 60 s", open(func(o *fsm.OpenSession) { o.TtlMs = 60_000 }), ""},
		{"ttl above", open(func(o *fsm.OpenSession) { o.TtlMs = 60_001 }), "ttl is 1m0.001s, must be 2s to 1m0s"},
		{"64 labels", open(func(o *fsm.OpenSession) { o.Labels = labels(64, 128, 1024) }), ""},
		{"65 labels", open(func(o *fsm.OpenSession) { o.Labels = labels(65, 8, 8) }), "labels are 65, at most 64"},
		{"label key of 129", open(func(o *fsm.OpenSession) { o.Labels = labels(1, 129, 8) }), "label key has 129 bytes"},
		{"label value of 1025", open(func(o *fsm.OpenSession) { o.Labels = labels(1, 1, 1025) }), "label 0 has 1025 bytes"},
		{"labels unsorted", open(func(o *fsm.OpenSession) { o.Labels = []*fsmpb.Label{{Key: "b"}, {Key: "a"}} }), "sorted by key"},
		{"label twice", open(func(o *fsm.OpenSession) { o.Labels = []*fsmpb.Label{{Key: "a"}, {Key: "a"}} }), "each key once"},
		{"node without a boot", open(func(o *fsm.OpenSession) { o.Boot = 0 }), "boot and nonce must be set"},
		{"boot without a node", open(func(o *fsm.OpenSession) { o.NodeId = "" }), "node_id must be set"},
		{"node's own, via another", open(func(o *fsm.OpenSession) { o.ViaNodeId = "n1" }), "via_node_id is for sessions of clients"},
		{"name of 257", open(func(o *fsm.OpenSession) { o.Name = long(257) }), "name has 257 bytes"},
		{"instance of 257", open(func(o *fsm.OpenSession) { o.InstanceId = long(257) }), "instance_id has 257 bytes"},

		{"no mark", mark(func(m *fsm.MarkInstance) { m.Mark = 0 }), "mark is unknown"},
		{"drain for a year", mark(func(m *fsm.MarkInstance) { m.Mark, m.ExpiresInMs = fsm.MarkDrain, 365*86_400_000 }), ""},
		{"drain for ever and a day", mark(func(m *fsm.MarkInstance) { m.Mark, m.ExpiresInMs = fsm.MarkDrain, 400*86_400_000 }), "expires_in is"},
		{"drain with a term", mark(func(m *fsm.MarkInstance) { m.Mark, m.Term = fsm.MarkDrain, 1 }), "for clearing"},
		{"undrain that expires", mark(func(m *fsm.MarkInstance) { m.ExpiresInMs = 1 }), "expires_in is for setting"},
		{"undrain with half a decision", mark(func(m *fsm.MarkInstance) { m.Term = 1 }), "go together"},

		{"version 0", &fsm.SetVersion{}, "version is 0"},
		{"leader without a term", &fsm.RecordLeader{NodeId: "n1"}, "term must not be 0"},
		{"member without a change", &fsm.RecordMember{NodeId: "n1"}, "change is unknown"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := newLogbook(t)
			l.open("a")
			err := fsm.ResultErr(l.do(c.op))
			if c.want == "" {
				if err != nil || fsm.Check(c.op, 1) != nil {
					t.Errorf("apply: %v, Check: %v", err, fsm.Check(c.op, 1))
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("apply: got %v, want %q", err, c.want)
			}
			if before := fsm.Check(c.op, 1); isErr(err, fsm.ErrInvalidArgument) && !isErr(before, fsm.ErrInvalidArgument) && !strings.Contains(c.want, "1m0s") {
				t.Errorf("Check would have let it pass: %v", before)
			}
		})
	}

	t.Run("what UTF-8 is not", func(t *testing.T) {
		if err := fsm.Check(acquire("a\xff", "", 0), 1); !isErr(err, fsm.ErrInvalidArgument) || !strings.Contains(err.Error(), "not valid UTF-8") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("version gate", func(t *testing.T) {
		if err := fsm.Check(acquire("k", "", 0), 0); !isErr(err, fsm.ErrWrongState) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("init", func(t *testing.T) {
		for _, c := range []struct {
			op   *fsm.InitCluster
			want string
		}{
			{&fsm.InitCluster{ClusterId: "c", Version: 1, MaxSessionTtlMs: 2000}, ""},
			{&fsm.InitCluster{Version: 1}, "cluster_id must not be empty"},
			{&fsm.InitCluster{ClusterId: "c"}, "version is 0"},
			{&fsm.InitCluster{ClusterId: "c", Version: 1, MaxSessionTtlMs: 1999}, "max_session_ttl is 1.999s"},
			{&fsm.InitCluster{ClusterId: "c", Version: 1, MaxSessionTtlMs: 3_600_001}, "max_session_ttl is 1h0m0.001s"},
		} {
			if err := fsm.Check(c.op, 1); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: got %v, want %q", c.op, err, c.want)
			}
		}
	})
	t.Run("idempotency key", func(t *testing.T) {
		for _, c := range []struct {
			key, hash int
			want      string
		}{
			{1, 32, ""}, {256, 32, ""}, {257, 32, "has 257 bytes"}, {5, 31, "has 31 bytes, must have 32"}, {5, 0, "has 0 bytes"}, {0, 32, "must not be empty"},
		} {
			cmd := fsm.NewCommand(acquire("k", "", 0))
			cmd.IdempotencyKey, cmd.IdempotencyHash = long(c.key), make([]byte, c.hash)
			l := newLogbook(t)
			l.open("a")
			applied := fsm.ResultErr(l.batch(&fsm.Proposal{Commands: []*fsm.Command{cmd}}).Proposals[0].Results[0])
			for _, err := range []error{applied, fsm.CheckCommand(cmd, 1)} {
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%d, %d: got %v, want %q", c.key, c.hash, err, c.want)
				}
			}
		}
	})
}

// A full table is refused, and the next one that leaves makes room.
func TestLimits_Tables(t *testing.T) {
	many := func(l *logbook, n int, op func(i int) fsm.Op) {
		t.Helper()
		for from := 0; from < n; from += 5000 {
			p := &fsm.Proposal{}
			for i := from; i < min(n, from+5000); i++ {
				p.Commands = append(p.Commands, fsm.NewCommand(op(i)))
			}
			for _, r := range l.batch(p).Proposals[0].Results {
				if r.Code != 0 {
					t.Fatal(r.Message)
				}
			}
		}
	}
	t.Run("sessions", func(t *testing.T) {
		l := newLogbook(t)
		many(l, fsm.MaxSessions, func(i int) fsm.Op { return openClient(fmt.Sprintf("s%06d", i)) })
		if err := fsm.ResultErr(l.do(openClient("more"))); !isErr(err, fsm.ErrOverloaded) {
			t.Errorf("got %v", err)
		}
		l.done(&fsm.CloseSession{SessionId: "s000000", Reason: fsm.CloseClosed})
		l.done(openClient("more"))
	})
	t.Run("idempotency keys", func(t *testing.T) {
		l := newLogbook(t)
		keyed := func(i int) *fsm.Command {
			c := fsm.NewCommand(&fsm.Revoke{Key: "k", Token: 1})
			c.IdempotencyKey, c.IdempotencyHash = fmt.Sprint("key", i), bytes.Repeat([]byte{1}, 32)
			return c
		}
		p := &fsm.Proposal{}
		for i := range fsm.MaxIdempotencyKeys {
			p.Commands = append(p.Commands, keyed(i))
		}
		l.batch(p)
		one := func(i int) error {
			return fsm.ResultErr(l.batch(&fsm.Proposal{Commands: []*fsm.Command{keyed(i)}}).Proposals[0].Results[0])
		}
		if err := one(fsm.MaxIdempotencyKeys); !isErr(err, fsm.ErrOverloaded) {
			t.Errorf("one too many: %v", err)
		}
		if err := one(0); !isErr(err, fsm.ErrNotFound) {
			t.Errorf("a repeat: %v", err)
		}
		l.stamp += int64(fsm.IdempotencyWindow)
		if err := one(fsm.MaxIdempotencyKeys); !isErr(err, fsm.ErrNotFound) {
			t.Errorf("after the window: %v", err)
		}
	})
	t.Run("answers of a boot", func(t *testing.T) {
		l := newLogbook(t)
		send := func(low, from, to uint64) *fsm.Result {
			p := &fsm.Proposal{NodeId: "n1", Boot: 1, LowWater: low}
			for seq := from; seq <= to; seq++ {
				c := fsm.NewCommand(&fsm.Revoke{Key: "k", Token: 1})
				c.Seq = seq
				p.Commands = append(p.Commands, c)
			}
			results := l.batch(p).Proposals[0].Results
			return results[len(results)-1]
		}
		send(0, 1, fsm.MaxResults)
		if r := send(0, fsm.MaxResults+1, fsm.MaxResults+1); fsm.Code(r.Code) != fsm.CodeOverloaded {
			t.Errorf("one too many: %v", fsm.Code(r.Code))
		}
		if r := send(0, 7, 7); fsm.Code(r.Code) != fsm.CodeNotFound {
			t.Errorf("a repeat: %v", fsm.Code(r.Code))
		}
		if r := send(2, fsm.MaxResults+1, fsm.MaxResults+1); fsm.Code(r.Code) != fsm.CodeNotFound {
			t.Errorf("with a higher low-water mark: %v", fsm.Code(r.Code))
		}
	})
	t.Run("records of nodes that left", func(t *testing.T) {
		l := newLogbook(t)
		for i := range 1100 {
			node := fmt.Sprintf("n%04d", i)
			c := fsm.NewCommand(&fsm.RecordMember{NodeId: node, Change: fsm.MemberRemoved})
			l.batch(&fsm.Proposal{NodeId: node, Boot: 7, Commands: []*fsm.Command{c}})
		}
		v := l.state.View()
		if v.ClientBoot("n0000") != 0 || v.ClientBoot("n0075") != 0 || v.ClientBoot("n0076") != 7 || v.ClientBoot("n1099") != 7 {
			t.Error("want the records of the last 1024 kept")
		}
	})
	t.Run("waiters of a key", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		// Each holder in a session of its own, or every acquire would look for its former place.
		many(l, fsm.MaxWaitersPerKey, func(i int) fsm.Op { return openClient(fmt.Sprint("s", i)) })
		many(l, fsm.MaxWaitersPerKey, func(i int) fsm.Op { return &fsm.Acquire{Key: "k", SessionId: fmt.Sprint("s", i), Wait: true} })
		more := &fsm.Acquire{Key: "k", SessionId: "a", Holder: "h", Wait: true}
		if err := fsm.ResultErr(l.do(more)); !isErr(err, fsm.ErrOverloaded) {
			t.Errorf("one too many: %v", err)
		}
		l.done(&fsm.CancelWait{Key: "k", SessionId: "s77"})
		l.done(more)
	})
	t.Run("leases and waiters", func(t *testing.T) {
		if testing.Short() {
			t.Skip("two million records")
		}
		l := newLogbook(t)
		l.open("a")
		l.open("b")
		many(l, fsm.MaxLeases, func(i int) fsm.Op { return &fsm.Acquire{Key: fmt.Sprint(i), SessionId: "a"} })
		if err := fsm.ResultErr(l.do(&fsm.Acquire{Key: "more", SessionId: "a"})); !isErr(err, fsm.ErrOverloaded) {
			t.Errorf("one lease too many: %v", err)
		}
		many(l, fsm.MaxWaiters, func(i int) fsm.Op { return &fsm.Acquire{Key: fmt.Sprint(i), SessionId: "b", Wait: true} })
		if err := fsm.ResultErr(l.do(&fsm.Acquire{Key: "1", SessionId: "a", Holder: "h", Wait: true})); !isErr(err, fsm.ErrOverloaded) {
			t.Errorf("one waiter too many: %v", err)
		}
		l.done(&fsm.Release{Key: "5", SessionId: "a", Token: token(6)})
		l.done(&fsm.Acquire{Key: "1", SessionId: "a", Holder: "h", Wait: true})
		l.done(&fsm.CloseSession{SessionId: "b", Reason: fsm.CloseClosed})
		l.done(&fsm.Acquire{Key: "more", SessionId: "a"})
	})
}

// Nothing but the founding is done before a cluster has its ID.
func TestBeforeInit(t *testing.T) {
	l := &logbook{t: t, state: fsm.NewState(), term: 1, stamp: second}
	for name, op := range wireOps() {
		err := fsm.ResultErr(l.do(op))
		switch name {
		case "record_member":
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case "init_cluster", "set_version": // each may come first
		default:
			if err == nil {
				t.Errorf("%s was done", name)
			}
		}
		l = &logbook{t: t, state: fsm.NewState(), term: 1, stamp: second}
	}
	l.done(&fsm.RecordLeader{NodeId: "n1", Term: 1})
	l.done(&fsm.InitCluster{ClusterId: "c1", Version: 1, MaxSessionTtlMs: 5000})
	want := fsm.Cluster{ID: "c1", Generation: 1, Version: 1, LeaderID: "n1", LeaderTerm: 1, MaxSessionTTL: 5_000_000_000}
	if got := l.state.View().Cluster(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if err := fsm.ResultErr(l.do(openClient("a"))); !isErr(err, fsm.ErrInvalidArgument) {
		t.Errorf("a TTL above the cluster's maximum: %v", err)
	}
}
