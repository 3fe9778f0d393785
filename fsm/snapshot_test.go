package fsm_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// richLog has a record of every kind with, together, every field of each set.
func richLog(t testing.TB) *logbook {
	l := newLogbook(t)
	l.term = 3
	l.done(&fsm.RecordLeader{NodeId: "n1", Term: 3})
	a := openNode("a")
	a.Zone, a.Name, a.Labels = "z1", "alpha", fsm.LabelsOf(map[string]string{"b": "2", "a": "1"})
	l.done(a)
	l.open("b")
	c := openClient("c")
	c.ViaNodeId, c.InstanceId = "n-a", "client-c"
	l.done(c)
	l.done(&fsm.Acquire{Key: "k1", SessionId: "a", Holder: "h1", LockDelayMs: 5000, Ask: 3})
	l.done(&fsm.Acquire{Key: "k1", SessionId: "b", Holder: "h2", Wait: true, LockDelayMs: 4000, Ask: 4})
	l.done(&fsm.Acquire{Key: "k1", SessionId: "c", Wait: true})
	l.done(&fsm.Transfer{Key: "k1", Token: token(1), ToInstance: "client-c", By: "ann", Reason: "balance"})
	l.done(&fsm.Acquire{Key: "k2", SessionId: "a"})
	l.done(&fsm.Acquire{Key: "k2", SessionId: "c", Wait: true})
	l.done(&fsm.Transfer{Key: "k2", Token: token(2), ToInstance: "client-c", By: "bob", Reason: "pin"})
	l.stamp += second
	l.done(&fsm.Release{Key: "k2", SessionId: "a", Token: token(2)})
	l.done(&fsm.Revoke{Key: "k2", Token: token(3), By: "ann", Reason: "stuck"})
	l.done(&fsm.Acquire{Key: "k3", SessionId: "b", LockDelayMs: 5000})
	l.done(&fsm.Revoke{Key: "k3", Token: token(4)})
	l.done(&fsm.FreeRevoked{Key: "k3", Token: token(4), Term: 3})
	l.done(&fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkDrain, By: "ann", Reason: "deploy", ExpiresInMs: 60_000})
	l.done(&fsm.MarkInstance{InstanceId: "i-b", Mark: fsm.MarkCordon, By: "ann", Reason: "disk", ExpiresInMs: 90_000})
	l.done(&fsm.RecordMember{NodeId: "n1", Change: fsm.MemberAdded, Reason: "joined"})
	seq := func(p *fsm.Proposal, first uint64, ops ...fsm.Op) {
		for i, op := range ops {
			cmd := fsm.NewCommand(op)
			cmd.Seq = first + uint64(i)
			p.Commands = append(p.Commands, cmd)
		}
		l.batch(p)
	}
	seq(&fsm.Proposal{NodeId: "n1", Boot: 2, LowWater: 5}, 6,
		&fsm.Acquire{Key: "k1", SessionId: "c"},
		&fsm.Acquire{Key: "k4", SessionId: "c", Holder: "h4", Wait: true},
		&fsm.Acquire{Key: "k2", SessionId: "c", Holder: "h5", Wait: true},
		&fsm.OpenSession{SessionId: "d", TtlMs: 20_000})
	seq(&fsm.Proposal{NodeId: "n9", Boot: 1}, 1, &fsm.Revoke{Key: "free", Token: 1})
	l.done(&fsm.RecordMember{NodeId: "n9", Change: fsm.MemberRemoved, Reason: "gone"})
	keyed := fsm.NewCommand(&fsm.Acquire{Key: "k5", SessionId: "c"})
	keyed.IdempotencyKey, keyed.IdempotencyHash = "idem-1", bytes.Repeat([]byte{7}, 32)
	l.batch(&fsm.Proposal{Commands: []*fsm.Command{keyed}})
	return l
}

func TestSnapshot_Golden(t *testing.T) {
	l := richLog(t)
	data := snapshotBytes(t, l.state.View())
	golden(t, "snapshot/v1.golden", []byte(hex.Dump(data)))
	back := reload(t, l.state).View()
	if got, want := back.Revision(), l.index; got != want {
		t.Errorf("revision %d, want %d", got, want)
	}
	// Every version that was ever shipped is read, or refused by a VersionError.
	for file, data := range dumps(t, "testdata/snapshot/*.golden") {
		s, err := fsm.ReadSnapshot(bytes.NewReader(data))
		if err != nil {
			t.Errorf("%s: %v", file, err)
		} else if s.View().LeaseCount() != 5 {
			t.Errorf("%s: %d leases", file, s.View().LeaseCount())
		}
	}
	sum := l.state.View().Hash()
	if !bytes.Equal(data[len(data)-32:], sum[:]) {
		t.Error("the hash is not the checksum of the snapshot")
	}
}

// Each field of each record survives the snapshot, and the rich state has them all.
func TestSnapshot_EveryField(t *testing.T) {
	l := richLog(t)
	// An event must have left the ring for the cluster record to be complete.
	for range fsm.EventRingSize / 2 {
		r := l.done(&fsm.Acquire{Key: "k9", SessionId: "c"})
		l.done(&fsm.Release{Key: "k9", SessionId: "c", Token: r.Token})
	}
	data := snapshotBytes(t, l.state.View())
	set := map[protoreflect.FullName]bool{}
	all := map[protoreflect.FullName]bool{}
	for _, data := range [][]byte{data, snapshotBytes(t, richLog(t).state.View()), snapshotBytes(t, richGroupLog(t).state.View()), snapshotBytes(t, richWorkerLog(t).state.View())} {
		for _, rec := range splitSnapshot(t, data) {
			collectFields(rec.ProtoReflect(), set)
		}
	}
	declaredFields((&fsmpb.Record{}).ProtoReflect().Descriptor(), all, map[protoreflect.FullName]bool{})
	// The openings on record are those of sessions, which have no restart proof.
	delete(all, "miwnode.fsm.v1.OpenSession.restart_proved")
	// The joinings on record are below their group.
	delete(all, "miwnode.fsm.v1.JoinGroup.group")
	delete(all, "miwnode.fsm.v1.JoinGroup.settings")
	for name := range all {
		if !set[name] {
			t.Errorf("%s is set in no record of the test", name)
		}
	}
	if again := snapshotBytes(t, reload(t, l.state).View()); !bytes.Equal(again, data) {
		t.Error("the snapshot of the restored state differs")
	}
}

func collectFields(m protoreflect.Message, set map[protoreflect.FullName]bool) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		set[fd.FullName()] = true
		if fd.Message() == nil {
			return true
		}
		if fd.IsList() {
			for i := range v.List().Len() {
				collectFields(v.List().Get(i).Message(), set)
			}
			return true
		}
		collectFields(v.Message(), set)
		return true
	})
}

func declaredFields(d protoreflect.MessageDescriptor, all, seen map[protoreflect.FullName]bool) {
	if seen[d.FullName()] {
		return
	}
	seen[d.FullName()] = true
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		all[fd.FullName()] = true
		if fd.Message() != nil {
			declaredFields(fd.Message(), all, seen)
		}
	}
}

const headBytes = 12

func splitSnapshot(t testing.TB, data []byte) (records []*fsmpb.Record) {
	t.Helper()
	for rest := data[headBytes : len(data)-32]; len(rest) > 0; {
		size, n := binary.Uvarint(rest)
		rec := &fsmpb.Record{}
		if err := proto.Unmarshal(rest[n:n+int(size)], rec); err != nil {
			t.Fatal(err)
		}
		records = append(records, rec)
		rest = rest[n+int(size):]
	}
	return records
}

// joinSnapshot is a snapshot of these records with a right checksum. Each is a
// *fsmpb.Record or the bytes of one.
func joinSnapshot(t testing.TB, records ...any) []byte {
	t.Helper()
	data := binary.BigEndian.AppendUint32([]byte("MIWSNAP\x01"), fsm.Version)
	for _, rec := range records {
		b, ok := rec.([]byte)
		if !ok {
			var err error
			if b, err = (proto.MarshalOptions{Deterministic: true}).Marshal(rec.(*fsmpb.Record)); err != nil {
				t.Fatal(err)
			}
		}
		data = append(binary.AppendUvarint(data, uint64(len(b))), b...)
	}
	sum := sha256.Sum256(data)
	return append(data, sum[:]...)
}

func end(records uint64) *fsmpb.Record {
	return &fsmpb.Record{Record: &fsmpb.Record_End{End: &fsmpb.EndRecord{Records: records}}}
}

func read(data []byte) error {
	_, err := fsm.ReadSnapshot(bytes.NewReader(data))
	return err
}

func TestSnapshot_Broken(t *testing.T) {
	cluster := &fsmpb.Record{Record: &fsmpb.Record_Cluster{Cluster: &fsmpb.ClusterRecord{ClusterId: "c", Version: 1}}}
	session := func(id string) *fsmpb.Record {
		return &fsmpb.Record{Record: &fsmpb.Record_Session{Session: &fsmpb.SessionRecord{Open: &fsm.OpenSession{SessionId: id, TtlMs: 1, InstanceId: "i-" + id}}}}
	}
	lease := func(key, session string, state fsmpb.LeaseState) *fsmpb.Record {
		return &fsmpb.Record{Record: &fsmpb.Record_Lease{Lease: &fsmpb.LeaseRecord{Key: key, Token: 1, SessionId: session, State: state}}}
	}
	waiter := func(key, session string, revision uint64) *fsmpb.Record {
		return &fsmpb.Record{Record: &fsmpb.Record_Waiter{Waiter: &fsmpb.WaiterRecord{Key: key, SessionId: session, Revision: revision}}}
	}
	event := func(revision uint64, kind uint32) *fsmpb.Record {
		return &fsmpb.Record{Record: &fsmpb.Record_Event{Event: &fsmpb.EventRecord{Revision: revision, Position: 1, Type: kind}}}
	}
	result := &fsmpb.Record{Record: &fsmpb.Record_Result{Result: &fsmpb.SeqResult{Seq: 1, Result: &fsm.Result{}}}}
	newer := &fsmpb.Record{Record: &fsmpb.Record_Cluster{Cluster: &fsmpb.ClusterRecord{ClusterId: "c", Version: 4}}}
	cases := []struct {
		name    string
		records []any
		want    string
		version bool // a VersionError
	}{
		{"nothing", []any{end(0)}, "no cluster record", false},
		{"fine", []any{cluster, session("a"), session("b"), lease("k", "a", 1), waiter("k", "b", 1), event(1, 1), end(6)}, "", false},
		{"wrong count", []any{cluster, end(2)}, "says 2", false},
		{"no end", []any{cluster}, "record 1", false},
		{"unknown record", []any{cluster, protowire.AppendBytes(protowire.AppendTag(nil, 14, protowire.BytesType), nil), end(2)}, "unknown field 14", true},
		{"unknown field in a record", []any{cluster, join(marshal(t, session("a")), field(2, varint(99, 1))), end(2)}, "unknown field 99", true},
		{"empty record", []any{cluster, []byte{}, end(2)}, "empty record", false},
		{"newer cluster", []any{newer, end(1)}, "version 4", true},
		{"session before cluster", []any{session("a"), cluster, end(2)}, "out of order", false},
		{"second cluster", []any{cluster, cluster, end(2)}, "out of order", false},
		{"same session twice", []any{cluster, session("a"), session("a"), end(3)}, "out of order", false},
		{"sessions unsorted", []any{cluster, session("b"), session("a"), end(3)}, "out of order", false},
		{"session without an opening", []any{cluster, &fsmpb.Record{Record: &fsmpb.Record_Session{Session: &fsmpb.SessionRecord{}}}, end(2)}, "without a key", false},
		{"lease without a key", []any{cluster, lease("", "", 4), end(2)}, "without a key", false},
		{"lease of a dead session", []any{cluster, lease("k", "a", 1), end(2)}, "not live", false},
		{"lease without a state", []any{cluster, session("a"), lease("k", "a", 0), end(3)}, "lease state 0", false},
		{"lease of an unknown state", []any{cluster, session("a"), lease("k", "a", 257), end(3)}, "lease state 257", false},
		{"same key twice", []any{cluster, lease("k", "", 4), lease("k", "", 4), end(3)}, "out of order", false},
		{"waiter of a dead session", []any{cluster, waiter("k", "a", 1), end(2)}, "not live", false},
		{"waiters out of order", []any{cluster, session("a"), session("b"), waiter("k", "a", 2), waiter("k", "b", 1), end(5)}, "out of order", false},
		{"answer of nobody", []any{cluster, result, end(2)}, "out of order", false},
		{"events out of order", []any{cluster, event(2, 1), event(1, 1), end(3)}, "out of order", false},
		{"unknown event", []any{cluster, event(2, 99), end(2)}, "event type 99", true},
		{"unknown event beyond a byte", []any{cluster, event(2, 257), end(2)}, "event type 257", true},
		{"event before session", []any{cluster, event(2, 1), session("a"), end(3)}, "out of order", false},
		{"huge record", []any{make([]byte, 2<<20), end(1)}, "more than", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := read(joinSnapshot(t, c.records...))
			if c.want == "" {
				if err != nil {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want it to say %q", err, c.want)
			}
			if _, ok := errors.AsType[*fsm.VersionError](err); ok != c.version {
				t.Errorf("%v: a version error: %v, want %v", err, ok, c.version)
			}
		})
	}
	t.Run("another kind of file", func(t *testing.T) {
		if err := read([]byte(strings.Repeat("SQLite format 3", 10))); err == nil || !strings.Contains(err.Error(), "not a snapshot") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("newer format", func(t *testing.T) {
		data := joinSnapshot(t, cluster, end(1))
		binary.BigEndian.PutUint32(data[8:], 9)
		err := read(data)
		if v, ok := errors.AsType[*fsm.VersionError](err); !ok || v.Need != 9 {
			t.Errorf("got %v", err)
		}
	})
	t.Run("something after it", func(t *testing.T) {
		if err := read(append(joinSnapshot(t, cluster, end(1)), 0)); err == nil || !strings.Contains(err.Error(), "after the checksum") {
			t.Errorf("got %v", err)
		}
	})
}

// A snapshot that is cut, damaged or unreadable at any byte is an error.
func TestSnapshot_DamagedAtEveryByte(t *testing.T) {
	data := snapshotBytes(t, richLog(t).state.View())
	if err := read(data); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	for n := range data {
		if err := read(data[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: got %v", n, err)
		}
		if _, err := fsm.ReadSnapshot(io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(boom))); !errors.Is(err, boom) {
			t.Fatalf("failing at %d: got %v", n, err)
		}
		bad := bytes.Clone(data)
		bad[n] ^= 1 << (n % 8)
		if err := read(bad); err == nil {
			t.Fatalf("a bit of byte %d was turned and nobody saw it", n)
		}
	}
	if _, err := fsm.ReadSnapshot(iotest.OneByteReader(bytes.NewReader(data))); err != nil {
		t.Errorf("byte by byte: %v", err)
	}
}

// A writer that fails at any byte is an error.
func TestSnapshot_WriterFails(t *testing.T) {
	v := richLog(t).state.View()
	for n := range len(snapshotBytes(t, v)) {
		if err := v.Snapshot(&failingWriter{left: n}); err == nil {
			t.Fatalf("failing after %d bytes: no error", n)
		}
	}
}

type failingWriter struct{ left int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errors.New("disk full")
	}
	return len(p), nil
}

// The rings leave their oldest, and a reader that is too far behind is told.
func TestEvents_Ring(t *testing.T) {
	l := newLogbook(t)
	l.open("a")
	if _, ok := l.state.View().Events(fsm.EventID{}); !ok {
		t.Error("nothing has left the ring yet")
	}
	const pairs = fsm.EventRingSize/2 + 100
	for range pairs {
		r := l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		l.done(&fsm.Release{Key: "k", SessionId: "a", Token: r.Token})
	}
	for _, v := range []*fsm.View{l.state.View(), reload(t, l.state).View()} {
		// Entries 1 and 2 are the cluster and the session (two events); 65,736 since.
		oldest := v.OldestEvent()
		if want := (fsm.EventID{Revision: 203, Position: 1}); oldest != want {
			t.Errorf("oldest %v, want %v", oldest, want)
		}
		if _, ok := v.Events(fsm.EventID{}); ok {
			t.Error("a hole at the beginning is not seen")
		}
		if _, ok := v.Events(fsm.AfterRevision(201)); ok {
			t.Error("a hole of one event is not seen")
		}
		events, ok := v.Events(fsm.AfterRevision(202))
		if !ok {
			t.Error("a hole is seen where none is")
		}
		n := 0
		last := fsm.AfterRevision(202)
		for e := range events {
			if !last.Less(e.ID) {
				t.Fatalf("%v after %v", e.ID, last)
			}
			last = e.ID
			n++
		}
		if n != fsm.EventRingSize {
			t.Errorf("%d events, want %d", n, fsm.EventRingSize)
		}
		events, ok = v.Events(fsm.AfterRevision(l.index - 1))
		for e := range events {
			if !ok || eventLine(e) != fmt.Sprintf("lease.ended k token=%d instance=i-a node=n-a released", pairs) {
				t.Errorf("got %q", eventLine(e))
			}
		}
	}
}

func TestHistory(t *testing.T) {
	l := newLogbook(t)
	l.open("a")
	grant := func(key string, held, gap int64) {
		l.stamp += gap * second
		r := l.done(&fsm.Acquire{Key: key, SessionId: "a"})
		l.stamp += held * second
		l.done(&fsm.Release{Key: key, SessionId: "a", Token: r.Token})
	}
	grant("x", 1, 0)  // entries 3, 4
	grant("y", 1, 10) // 5, 6
	grant("x", 2, 3)  // 7, 8: x was free for 10 + 1 + 3
	l.stamp += 7 * second
	l.done(&fsm.Acquire{Key: "x", SessionId: "a"}) // 9
	lines := func(q fsm.HistoryQuery) (out []string) {
		for _, e := range l.state.View().History(q) {
			out = append(out, fmt.Sprintf("%s %s %d-%d gap=%v", e.Key, tokenString(e.Token), e.GrantedRevision, e.EndedRevision, e.Gap))
		}
		return out
	}
	equalLines(t, "all", lines(fsm.HistoryQuery{}), []string{"x 1 3-4 gap=0s", "y 2 5-6 gap=0s", "x 3 7-8 gap=14s", "x 4 9-0 gap=7s"})
	equalLines(t, "key", lines(fsm.HistoryQuery{Key: "y"}), []string{"y 2 5-6 gap=0s"})
	equalLines(t, "since", lines(fsm.HistoryQuery{Since: 7}), []string{"x 3 7-8 gap=14s", "x 4 9-0 gap=7s"})
	equalLines(t, "limit", lines(fsm.HistoryQuery{Key: "x", Limit: 2}), []string{"x 3 7-8 gap=14s", "x 4 9-0 gap=7s"})
	equalLines(t, "none", lines(fsm.HistoryQuery{Since: 9}), nil)
	// A clock that ran back makes no negative gap.
	l.stamp -= 100 * second
	l.done(&fsm.Release{Key: "x", SessionId: "a", Token: token(4)})
	l.stamp -= 100 * second
	l.done(&fsm.Acquire{Key: "x", SessionId: "a"})
	equalLines(t, "clock back", lines(fsm.HistoryQuery{Since: 10}), []string{"x 5 11-0 gap=0s"})
}

func FuzzReadSnapshot(f *testing.F) {
	data := snapshotBytes(f, richLog(f).state.View())
	f.Add(data, false)
	f.Add(data[headBytes:len(data)-32], true)
	groups := snapshotBytes(f, richGroupLog(f).state.View())
	f.Add(groups[headBytes:len(groups)-32], true)
	workers := snapshotBytes(f, richWorkerLog(f).state.View())
	f.Add(workers[headBytes:len(workers)-32], true)
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		bad := bytes.Clone(data[headBytes : len(data)-32])
		bad[r.IntN(len(bad))] ^= byte(1 + r.IntN(255))
		f.Add(bad, true)
	}
	f.Fuzz(func(t *testing.T, data []byte, wrap bool) {
		if wrap { // only the records: with a right head and checksum
			data = append(binary.BigEndian.AppendUint32([]byte("MIWSNAP\x01"), fsm.Version), data...)
			sum := sha256.Sum256(data)
			data = append(data, sum[:]...)
		}
		s, err := fsm.ReadSnapshot(bytes.NewReader(data))
		if err != nil {
			return
		}
		v := s.View()
		v.Hash()
		v.History(fsm.HistoryQuery{})
		apply := func(op fsm.Op) {
			s.Apply(v.Revision()+1, 1, &fsm.Batch{Proposals: []*fsm.Proposal{{Commands: []*fsm.Command{fsm.NewCommand(op)}}}})
		}
		for w := range v.Workers("") {
			apply(&fsm.FinishLoad{WorkerId: w.ID, Attempt: w.Attempt, Ok: true, Sha256: strings.Repeat("0b", 32)})
			apply(&fsm.ReloadWorker{WorkerId: w.ID})
			apply(&fsm.StopWorker{WorkerId: w.ID})
		}
		for sess := range v.Sessions() {
			apply(&fsm.CloseSession{SessionId: sess.ID, Reason: fsm.CloseClosed})
		}
		checkInvariants(t, s.View())
	})
}
