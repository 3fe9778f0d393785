package fsm_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// logbook feeds one State entry by entry.
type logbook struct {
	t     testing.TB
	state *fsm.State
	index uint64
	term  uint64
	stamp int64
	last  *fsm.Outcome
}

const second = int64(time.Second)

// newLogbook returns a log whose cluster is initialised by entry 1.
func newLogbook(t testing.TB, opts ...fsm.Option) *logbook {
	l := &logbook{t: t, state: fsm.NewState(opts...), term: 1, stamp: 1_700_000_000 * second}
	l.done(&fsm.InitCluster{ClusterId: "c1", Version: 1})
	return l
}

// batch applies one entry, through the bytes of the log.
func (l *logbook) batch(proposals ...*fsm.Proposal) *fsm.Outcome {
	l.t.Helper()
	data, err := fsm.EncodeBatch(&fsm.Batch{Proposals: proposals, Stamp: l.stamp})
	if err != nil {
		l.t.Fatalf("encode: %v", err)
	}
	b, err := fsm.DecodeBatch(data)
	if err != nil {
		l.t.Fatalf("decode: %v", err)
	}
	l.index++
	l.last = l.state.Apply(l.index, l.term, b)
	return l.last
}

// do applies one command without a sequence number.
func (l *logbook) do(op fsm.Op) *fsm.Result {
	l.t.Helper()
	return l.batch(&fsm.Proposal{Commands: []*fsm.Command{fsm.NewCommand(op)}}).Proposals[0].Results[0]
}

// done applies a command that must not be refused.
func (l *logbook) done(op fsm.Op) *fsm.Result {
	l.t.Helper()
	r := l.do(op)
	if err := fsm.ResultErr(r); err != nil {
		l.t.Fatalf("%T: %v", op, err)
	}
	return r
}

// refused applies a command that must be refused so, and change nothing.
func (l *logbook) refused(op fsm.Op, want error) {
	l.t.Helper()
	before := l.content()
	r := l.do(op)
	if err := fsm.ResultErr(r); !isErr(err, want) {
		l.t.Fatalf("%T: got %v, want %v", op, err, want)
	}
	if len(l.last.Events) != 0 {
		l.t.Fatalf("%T was refused and made the event %v", op, l.last.Events[0].Type)
	}
	if !bytes.Equal(before, l.content()) {
		l.t.Fatalf("%T was refused and changed the state", op)
	}
}

// content is a snapshot without its checksum and cluster record, which has the revision.
func (l *logbook) content() []byte {
	data := snapshotBytes(l.t, l.state.View())
	size, n := binary.Uvarint(data[headBytes:])
	return data[headBytes+n+int(size) : len(data)-32]
}

func (l *logbook) open(id string) *fsm.Result {
	l.t.Helper()
	return l.done(openNode(id))
}

// openNode opens the session of node n-<id>, boot 1, with the instance i-<id>.
func openNode(id string) *fsm.OpenSession {
	return &fsm.OpenSession{SessionId: id, TtlMs: 10_000, NodeId: "n-" + id, Boot: 1, Nonce: "x", InstanceId: "i-" + id}
}

func openClient(id string) *fsm.OpenSession {
	return &fsm.OpenSession{SessionId: id, TtlMs: 10_000, Name: "client " + id}
}

func (l *logbook) events() (out []string) {
	for _, e := range l.last.Events {
		out = append(out, eventLine(e))
	}
	return out
}

func eventLine(e *fsm.Event) string {
	s := e.Type.String()
	add := func(format string, v any) {
		if v != "" && v != uint64(0) {
			s += " " + fmt.Sprintf(format, v)
		}
	}
	add("%s", e.Key)
	if w := e.Worker; w != nil {
		s += fmt.Sprintf(" %s %s %v", w.Runtime, w.Name, w.State)
		if w.StartRequested {
			s += " start"
		}
		if w.Error != nil {
			s += fmt.Sprintf(" error=%s(%s)", w.Error.Type, w.Error.Message)
		}
	}
	if e.Token != 0 {
		add("token=%s", tokenString(e.Token))
	}
	add("instance=%s", e.Who.InstanceID)
	add("node=%s", e.Who.NodeID)
	add("name=%q", e.Who.Name)
	add("%s", e.EndReason.String())
	add("to=%s", e.Note.To)
	add("by=%s", e.Note.By)
	add("reason=%q", e.Note.Reason)
	add("number=%d", e.Note.Number)
	return s
}

// tokenString writes a token of generation 1 as its counter.
func tokenString(token uint64) string {
	generation, counter := token>>40, token&(1<<40-1)
	if generation == 1 {
		return fmt.Sprint(counter)
	}
	return fmt.Sprintf("%d.%d", generation, counter)
}

func token(counter uint64) uint64 { return 1<<40 + counter }

func snapshotBytes(t testing.TB, v *fsm.View) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := v.Snapshot(&b); err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	return b.Bytes()
}

// reload returns the state as it comes back from its snapshot.
func reload(t testing.TB, s *fsm.State, opts ...fsm.Option) *fsm.State {
	t.Helper()
	v := s.View()
	n, err := fsm.ReadSnapshot(bytes.NewReader(snapshotBytes(t, v)), opts...)
	if err != nil {
		t.Fatalf("read snapshot: %v", err)
	}
	if got, want := n.View().Hash(), v.Hash(); got != want {
		t.Fatalf("the state changed by its snapshot: hash %x, want %x", got[:4], want[:4])
	}
	return n
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	path = filepath.Join("testdata", path)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run the test with -update, and look at the diff)", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs: only commit the change if you know what caused it and want it (-update)\ngot:\n%s\nwant:\n%s", path, show(got), show(want))
	}
}

func show(b []byte) string {
	if len(b) > 8000 {
		b = b[:8000]
	}
	return string(b)
}

// checkInvariants fails if a view contradicts itself.
func checkInvariants(t testing.TB, v *fsm.View) {
	t.Helper()
	tokens := map[uint64]string{}
	held := map[string]int{}
	for l := range v.Leases("", "") {
		if other, twice := tokens[l.Token]; twice {
			t.Errorf("token %d is of %q and of %q", l.Token, other, l.Key)
		}
		tokens[l.Token] = l.Key
		if l.State == fsm.Barred {
			if l.SessionID != "" || l.LockDelay == 0 {
				t.Errorf("barred key %q has a session or no delay", l.Key)
			}
			continue
		}
		s, ok := v.Session(l.SessionID)
		if !ok {
			t.Errorf("lease %q of a session that is not live", l.Key)
			continue
		}
		if s.Identity != l.Who && *s.Identity != *l.Who {
			t.Errorf("lease %q says %v, its session %v", l.Key, *l.Who, *s.Identity)
		}
		if s.ChangedRevision < l.ChangedRevision {
			t.Errorf("lease %q changed at %d, its session at %d", l.Key, l.ChangedRevision, s.ChangedRevision)
		}
		held[s.ID]++
	}
	for s := range v.Sessions() {
		if s.LeaseCount() != held[s.ID] {
			t.Errorf("session %q has %d leases, %d say so", s.ID, s.LeaseCount(), held[s.ID])
		}
		for l := range v.SessionLeases(s.ID) {
			if main, _ := v.Lease(l.Key); main != l {
				t.Errorf("session %q has another record of %q than the table", s.ID, l.Key)
			}
		}
		if s.InstanceID != "" {
			if i, ok := v.Instance(s.InstanceID); !ok || i != s {
				t.Errorf("instance %q is not found", s.InstanceID)
			}
		}
	}
	order := fsm.EventID{}
	for s := range v.Instances() {
		if id := (fsm.EventID{Revision: s.Revision, Position: s.Position}); !order.Less(id) {
			t.Errorf("instance %q is out of order", s.InstanceID)
		} else {
			order = id
		}
	}
	checkGroups(t, v)
	checkWorkers(t, v)
}

// checkQueues fails if a free key has a waiter that may run, or a waiter no session.
func checkQueues(t testing.TB, v *fsm.View, keys []string) {
	t.Helper()
	for _, key := range keys {
		_, taken := v.Lease(key)
		places := map[[2]string]bool{}
		for w := range v.Waiters(key) {
			place := [2]string{w.SessionID, w.Holder}
			if places[place] {
				t.Errorf("%v waits twice for %q", place, key)
			}
			places[place] = true
			s, ok := v.Session(w.SessionID)
			if !ok {
				t.Errorf("a dead session waits for %q", key)
				continue
			}
			if !taken && !s.Draining() && !s.Cordoned() {
				t.Errorf("key %q is free and %v waits for it", key, place)
			}
			if !v.Waiting(key, w.SessionID, w.Holder) {
				t.Errorf("Waiting(%q, %v) is false", key, place)
			}
		}
		if len(places) != v.WaiterCount(key) {
			t.Errorf("%q: %d waiters, count %d", key, len(places), v.WaiterCount(key))
		}
	}
}

func equalLines(t testing.TB, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\ngot  %q\nwant %q", what, got, want)
	}
}
