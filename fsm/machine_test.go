package fsm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/miwnode/miwnode/fsm"
	"google.golang.org/protobuf/encoding/protowire"
)

// machineLog feeds a Machine.
type machineLog struct {
	t     testing.TB
	m     *fsm.Machine
	index uint64
}

func newMachineLog(t testing.TB, o fsm.MachineOptions) *machineLog {
	l := &machineLog{t: t, m: fsm.NewMachine(o)}
	l.apply(&fsm.InitCluster{ClusterId: "c1", Version: 1})
	l.apply(openNode("a"))
	l.apply(openNode("b"))
	return l
}

func (l *machineLog) data(data []byte) *fsm.Outcome {
	l.index++
	return l.m.Apply(&raft.Log{Index: l.index, Term: 1, Data: data}).(*fsm.Outcome)
}

func (l *machineLog) apply(op fsm.Op) *fsm.Result {
	l.t.Helper()
	out := l.data(encode(l.t, &fsm.Proposal{Commands: []*fsm.Command{fsm.NewCommand(op)}}))
	if out.Err != nil {
		l.t.Fatalf("%T: %v", op, out.Err)
	}
	return out.Proposals[0].Results[0]
}

func woken(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// A Machine that meets what it can't apply halts: the copy is frozen, nothing
// later is applied, and it says which version is needed.
func TestMachine_Halt(t *testing.T) {
	unknown := field(1, join(field(4, field(99, nil)), varint(5, 4)))
	cases := []struct {
		name  string
		entry func(l *machineLog) *fsm.Outcome
		want  string
	}{
		{"unknown command", func(l *machineLog) *fsm.Outcome { return l.data(unknown) }, "version 4 is needed"},
		{"unknown field", func(l *machineLog) *fsm.Outcome {
			return l.data(field(1, field(4, field(30, protowire.AppendVarint(protowire.AppendTag(nil, 40, protowire.VarintType), 1)))))
		}, "version 4 is needed"},
		{"damaged entry", func(l *machineLog) *fsm.Outcome { return l.data([]byte{0x0a, 200}) }, "truncated"},
		{"version raised beyond ours", func(l *machineLog) *fsm.Outcome {
			return l.data(encode(t, &fsm.Proposal{Commands: []*fsm.Command{fsm.NewCommand(&fsm.SetVersion{Version: 4})}}))
		}, "version 4 is needed"},
		{"index that runs back", func(l *machineLog) *fsm.Outcome {
			l.index -= 2
			return l.data(nil)
		}, "the copy is at revision 4"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var halts []error
			l := newMachineLog(t, fsm.MachineOptions{OnHalt: func(err error) { halts = append(halts, err) }})
			l.apply(&fsm.Acquire{Key: "k", SessionId: "a"})
			before := l.m.View().Hash()
			if l.m.Halted() != nil {
				t.Fatal("halted too early")
			}
			out := c.entry(l)
			if out.Err == nil || !strings.Contains(out.Err.Error(), c.want) {
				t.Fatalf("got %v, want it to say %q", out.Err, c.want)
			}
			if len(halts) != 1 || !errors.Is(l.m.Halted(), halts[0]) {
				t.Errorf("OnHalt got %v, Halted is %v", halts, l.m.Halted())
			}
			l.index = 100
			later := l.data(encode(t, &fsm.Proposal{Commands: []*fsm.Command{fsm.NewCommand(&fsm.Acquire{Key: "later", SessionId: "a"})}}))
			if later.Err == nil || later.Revision != 4 || len(later.Proposals) != 0 {
				t.Errorf("an entry after it got %+v", later)
			}
			if l.m.View().Hash() != before {
				t.Error("the copy is not frozen")
			}
			if _, err := l.m.Snapshot(); err == nil {
				t.Error("a snapshot of a halted machine would stand for entries that it has not applied")
			}
			if err := l.m.Restore(io.NopCloser(bytes.NewReader(snapshotBytes(t, l.m.View())))); err == nil {
				t.Error("a halted machine restored")
			}
			if err := l.m.Wait(t.Context(), 100); !errors.Is(err, halts[0]) {
				t.Errorf("Wait got %v", err)
			}
			select {
			case <-l.m.HaltedCh():
			default:
				t.Error("HaltedCh is open")
			}
			if len(halts) != 1 {
				t.Errorf("OnHalt was called %d times", len(halts))
			}
		})
	}
}

func TestMachine_OnApplied(t *testing.T) {
	var revisions []uint64
	var m *fsm.Machine
	l := &machineLog{t: t}
	m = fsm.NewMachine(fsm.MachineOptions{OnApplied: func(o *fsm.Outcome) {
		if m.View().Revision() != o.Revision {
			t.Errorf("the view is at %d, the outcome at %d", m.View().Revision(), o.Revision)
		}
		revisions = append(revisions, o.Revision)
	}})
	l.m = m
	l.apply(&fsm.InitCluster{ClusterId: "c1", Version: 1})
	l.index = 9 // raft's own entries lie between
	l.apply(openNode("a"))
	if fmt.Sprint(revisions) != "[1 10]" {
		t.Errorf("got %v", revisions)
	}
}

func TestMachine_Watch(t *testing.T) {
	l := newMachineLog(t, fsm.MachineOptions{})
	topics := map[string]string{
		"all":        fsm.AllTopic,
		"lease k":    fsm.LeaseTopic("k"),
		"lease j":    fsm.LeaseTopic("j"),
		"queue k":    fsm.QueueTopic("k"),
		"grant a":    fsm.GrantTopic("k", "a", "h/1"),
		"grant b":    fsm.GrantTopic("k", "b", ""),
		"session a":  fsm.SessionTopic("a"),
		"session b":  fsm.SessionTopic("b"),
		"instance a": fsm.InstanceTopic("i-a"),
		"instance b": fsm.InstanceTopic("i-b"),
	}
	wake := map[string]<-chan struct{}{}
	for name, topic := range topics {
		ch, stop := l.m.Watch(topic)
		defer stop()
		wake[name] = ch
	}
	expect := func(what string, names ...string) {
		t.Helper()
		want := map[string]bool{}
		for _, n := range names {
			want[n] = true
		}
		for name, ch := range wake {
			if got := woken(ch); got != want[name] {
				t.Errorf("%s: %q woken: %v, want %v", what, name, got, want[name])
			}
		}
	}
	l.apply(&fsm.Acquire{Key: "k", SessionId: "a", Holder: "h/1"})
	expect("grant", "all", "lease k", "grant a", "session a")
	l.apply(&fsm.Acquire{Key: "k", SessionId: "a", Holder: "h/1"})
	expect("repeat")
	l.apply(&fsm.Acquire{Key: "k", SessionId: "b"})
	expect("refusal")
	l.apply(&fsm.Acquire{Key: "k", SessionId: "b", Wait: true})
	expect("queue", "all", "queue k")
	l.apply(&fsm.Transfer{Key: "k", Token: token(1), ToInstance: "i-b"})
	expect("transfer", "all", "lease k", "grant a", "session a")
	l.apply(&fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkDrain})
	expect("mark", "all", "instance a")
	l.apply(&fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkDrain, Reason: "again"})
	expect("mark anew", "all", "instance a")
	l.apply(&fsm.Release{Key: "k", SessionId: "a", Token: token(1)})
	expect("pass on", "all", "lease k", "queue k", "grant a", "grant b", "session a", "session b")
	l.apply(&fsm.Revoke{Key: "k", Token: token(2)})
	expect("revoke", "all", "lease k", "grant b", "session b")
	l.apply(&fsm.ExpireSession{SessionId: "b", Term: 1})
	expect("expiry", "all", "lease k", "grant b", "session b", "instance b")
	l.apply(&fsm.RecordLeader{NodeId: "n1", Term: 1})
	expect("leader", "all")

	// A wake-up that is not taken stands for all that follow.
	l.apply(&fsm.Acquire{Key: "j", SessionId: "a"})
	l.apply(openNode("c"))
	l.apply(&fsm.Acquire{Key: "j", SessionId: "c"})
	l.apply(&fsm.Acquire{Key: "j", SessionId: "c"})
	if !woken(wake["all"]) || woken(wake["all"]) {
		t.Error("want one wake-up for several changes")
	}

	if err := l.m.Restore(io.NopCloser(bytes.NewReader(snapshotBytes(t, l.m.View())))); err != nil {
		t.Fatal(err)
	}
	for name, ch := range wake {
		if !woken(ch) {
			t.Errorf("restore: %q was not woken", name)
		}
	}
}

func TestMachine_WatchSeveralAndStop(t *testing.T) {
	l := newMachineLog(t, fsm.MachineOptions{})
	ch, stop := l.m.Watch(fsm.LeaseTopic("x"), fsm.LeaseTopic("y"))
	other, stopOther := l.m.Watch(fsm.LeaseTopic("x"))
	defer stopOther()
	l.apply(&fsm.Acquire{Key: "y", SessionId: "a"})
	if !woken(ch) || woken(other) {
		t.Error("want the one who watches y woken")
	}
	stop()
	stop()
	l.apply(&fsm.Acquire{Key: "x", SessionId: "a"})
	if woken(ch) || !woken(other) {
		t.Error("want only the one who still watches woken")
	}
}

func TestMachine_Wait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMachineLog(t, fsm.MachineOptions{})
		if err := l.m.Wait(t.Context(), 3); err != nil {
			t.Errorf("what is there already: %v", err)
		}
		var wg sync.WaitGroup
		reached := make([]time.Duration, 8)
		began := time.Now()
		for i := range reached {
			wg.Go(func() {
				if err := l.m.Wait(t.Context(), uint64(4+i/2)); err != nil {
					t.Errorf("wait for %d: %v", 4+i/2, err)
				}
				reached[i] = time.Since(began)
			})
		}
		tooLong, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("gave up"))
		defer cancel()
		wg.Go(func() {
			if err := l.m.Wait(tooLong, 7); err == nil || err.Error() != "gave up" {
				t.Errorf("got %v, want the cause of the context", err)
			}
		})
		for range 4 {
			time.Sleep(time.Second)
			synctest.Wait()
			l.data(nil)
		}
		wg.Wait()
		for i, at := range reached {
			if want := time.Duration(1+i/2) * time.Second; at != want {
				t.Errorf("revision %d was reached after %v, want %v", 4+i/2, at, want)
			}
		}
	})
}

// Many wait, watch and read while entries are applied and snapshots written.
func TestMachine_Concurrent(t *testing.T) {
	l := newMachineLog(t, fsm.MachineOptions{})
	const entries = 400
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for r := uint64(4); r <= entries; r += uint64(1 + i) {
				if err := l.m.Wait(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			wake, stop := l.m.Watch(fsm.LeaseTopic(fmt.Sprint("k", i)), fsm.AllTopic)
			defer stop()
			for v := l.m.View(); v.Revision() < entries; v = l.m.View() {
				checkInvariants(t, v)
				checkQueues(t, v, []string{"k0", "k1", "k2"})
				select {
				case <-wake:
				case <-t.Context().Done():
					return
				}
			}
		})
	}
	wg.Go(func() {
		for v := l.m.View(); v.Revision() < entries; v = l.m.View() {
			if err := v.Snapshot(io.Discard); err != nil {
				t.Error(err)
			}
			for s := range v.Sessions() {
				_ = *s // a reader may copy what it gets
			}
		}
	})
	for l.index < entries {
		key, session := fmt.Sprint("k", l.index%3), []string{"a", "b"}[l.index/3%2]
		l.apply(&fsm.Acquire{Key: key, SessionId: session, Holder: fmt.Sprint(l.index % 5), Wait: true})
		if lease, ok := l.m.View().Lease(key); ok && l.index%2 == 0 && l.index < entries {
			l.apply(&fsm.Release{Key: key, SessionId: lease.SessionID, Token: lease.Token})
		}
	}
	l.apply(&fsm.RecordLeader{NodeId: "n1", Term: 1}) // wakes the last
	wg.Wait()
}

// A snapshot goes through raft's hands; one that can't be written is cancelled.
func TestMachine_SnapshotRestore(t *testing.T) {
	l := newMachineLog(t, fsm.MachineOptions{})
	l.apply(&fsm.Acquire{Key: "k", SessionId: "a"})
	snap, err := l.m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	want := l.m.View().Hash()
	l.apply(&fsm.Acquire{Key: "later", SessionId: "a"})
	var sink memorySink
	if err := snap.Persist(&sink); err != nil || !sink.closed || sink.cancelled {
		t.Fatalf("persist: %v, sink %+v", err, sink)
	}
	snap.Release()
	if err := snap.Persist(&memorySink{fail: true}); err == nil {
		t.Error("a sink that fails: no error")
	}

	other := fsm.NewMachine(fsm.MachineOptions{})
	before := other.View()
	if err := other.Restore(io.NopCloser(bytes.NewReader(sink.Bytes()[:sink.Len()-1]))); err == nil {
		t.Error("restored from a truncated snapshot")
	}
	if other.View() != before || other.Halted() != nil {
		t.Error("a failed restore changed something")
	}
	if err := other.Restore(io.NopCloser(bytes.NewReader(sink.Bytes()))); err != nil {
		t.Fatal(err)
	}
	if other.View().Hash() != want {
		t.Error("the restored copy is another one")
	}
	out := other.Apply(&raft.Log{Index: 5, Term: 1}).(*fsm.Outcome)
	if out.Err != nil || other.View().Revision() != 5 {
		t.Errorf("going on after a restore: %v", out.Err)
	}
}

type memorySink struct {
	bytes.Buffer
	fail, closed, cancelled bool
}

func (s *memorySink) Write(p []byte) (int, error) {
	if s.fail {
		return 0, errors.New("disk full")
	}
	return s.Buffer.Write(p)
}
func (s *memorySink) ID() string    { return "memory" }
func (s *memorySink) Close() error  { s.closed = true; return nil }
func (s *memorySink) Cancel() error { s.cancelled = true; return nil }

// The planted bugs of the torture suite do what their names say.
func TestDefects(t *testing.T) {
	t.Run("ReleaseByKey", func(t *testing.T) {
		l := newLogbook(t, fsm.WithDefects(fsm.Defects{ReleaseByKey: true}))
		l.open("a")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		l.done(&fsm.Release{Key: "k", SessionId: "a", Token: token(99)})
	})
	t.Run("ExpiryWithoutTerm", func(t *testing.T) {
		l := newLogbook(t, fsm.WithDefects(fsm.Defects{ExpiryWithoutTerm: true}))
		l.open("a")
		l.done(&fsm.ExpireSession{SessionId: "a", Term: 77})
	})
	t.Run("TokenResetOnRestore", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		s, err := fsm.ReadSnapshot(bytes.NewReader(snapshotBytes(t, l.state.View())), fsm.WithDefects(fsm.Defects{TokenResetOnRestore: true}))
		if err != nil {
			t.Fatal(err)
		}
		l.state = s
		if r := l.done(&fsm.Acquire{Key: "j", SessionId: "a"}); r.Token != token(1) {
			t.Errorf("token %d", r.Token)
		}
	})
}
