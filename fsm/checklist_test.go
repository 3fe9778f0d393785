package fsm_test

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/miwnode/miwnode/fsm"
)

func instances(v *fsm.View) (ids []string) {
	for s := range v.Instances() {
		ids = append(ids, s.InstanceID)
	}
	return ids
}

func mustInstance(t *testing.T, v *fsm.View, id string) *fsm.Session {
	t.Helper()
	s, ok := v.Instance(id)
	if !ok {
		t.Fatalf("no instance %s", id)
	}
	return s
}

// The behaviours that the state owes to those who come from systems with a store.
func TestChecklist(t *testing.T) {
	t.Run("002_an_opened_session_is_in_the_list", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		equalLines(t, "instances", instances(l.state.View()), []string{"i-a"})
		if s, ok := l.state.View().NodeSession("n-a"); !ok || s.InstanceID != "i-a" {
			t.Errorf("NodeSession: %v, %v", s, ok)
		}
	})
	t.Run("003_it_leaves_the_list_by_the_entry_of_its_expiry", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		l.stamp += 3600 * second // time alone does nothing: expiry is an entry
		l.open("b")
		equalLines(t, "before", instances(l.state.View()), []string{"i-a", "i-b"})
		l.done(&fsm.ExpireSession{SessionId: "a", Term: 1})
		equalLines(t, "after", instances(l.state.View()), []string{"i-b"})
	})
	t.Run("004_join_time_never_changes", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		first := *mustInstance(t, l.state.View(), "i-a").Opening
		for range 100 {
			l.stamp += second
			l.open("a")
		}
		now := mustInstance(t, l.state.View(), "i-a")
		if now.At != first.At || now.Revision != first.Revision || first.At != 1_700_000_000*second {
			t.Errorf("joined at %d in entry %d, first %d in %d", now.At, now.Revision, first.At, first.Revision)
		}
	})
	t.Run("005_who_came_first_joined_first", func(t *testing.T) {
		l := newLogbook(t)
		for _, id := range []string{"c", "a", "b"} {
			l.open(id)
		}
		equalLines(t, "instances", instances(l.state.View()), []string{"i-c", "i-a", "i-b"})
	})
	t.Run("006_a_draining_instance_is_shown_and_gets_nothing", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		l.done(&fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkDrain})
		if !mustInstance(t, l.state.View(), "i-a").Draining() {
			t.Error("not shown as draining")
		}
		l.refused(&fsm.Acquire{Key: "k", SessionId: "a"}, fsm.ErrDraining)
		l.refused(&fsm.Acquire{Key: "k", SessionId: "a", Wait: true}, fsm.ErrDraining)
	})
	t.Run("007_begin_drain_is_idempotent", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		l.done(&fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkDrain})
		equalLines(t, "first", l.events(), []string{"instance.draining instance=i-a node=n-a"})
		l.done(&fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkDrain})
		equalLines(t, "second", l.events(), nil)
	})
	for _, n := range []string{"008_removal_takes_everything_along", "009_nothing_of_a_dead_instance_survives"} {
		t.Run(n, func(t *testing.T) {
			l := newLogbook(t)
			l.open("a")
			l.open("b")
			l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
			l.done(&fsm.Acquire{Key: "j", SessionId: "b"})
			l.done(&fsm.Acquire{Key: "j", SessionId: "a", Wait: true})
			l.done(&fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkDrain})
			l.done(&fsm.ExpireSession{SessionId: "a", Term: 1})
			v := l.state.View()
			if _, ok := v.Session("a"); ok || v.WaiterCount("j") != 0 || v.LeaseCount() != 1 {
				t.Error("something is left")
			}
			if _, ok := v.NodeSession("n-a"); ok {
				t.Error("the node's session is left")
			}
			l.stamp += second
			l.open("a")
			s := mustInstance(t, l.state.View(), "i-a")
			if s.Draining() || s.Revision != l.index || s.At != l.stamp {
				t.Errorf("draining %v, joined at %d", s.Draining(), s.At)
			}
			equalLines(t, "instances", instances(l.state.View()), []string{"i-b", "i-a"})
		})
	}
	t.Run("010_order_does_not_depend_on_clocks", func(t *testing.T) {
		l := newLogbook(t)
		for _, id := range []string{"a", "b", "c"} {
			l.open(id)
			l.stamp -= 3600 * second
		}
		equalLines(t, "instances", instances(l.state.View()), []string{"i-a", "i-b", "i-c"})
		equalLines(t, "restored", instances(reload(t, l.state).View()), []string{"i-a", "i-b", "i-c"})
	})
	t.Run("011_the_first_caller_gets_a_free_lease", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		if r := l.done(&fsm.Acquire{Key: "k", SessionId: "a"}); r.Token != token(1) || r.Queued {
			t.Errorf("got %v", r)
		}
	})
	t.Run("012_others_are_refused_and_the_owner_gets_its_token_again", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		l.open("b")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		l.refused(&fsm.Acquire{Key: "k", SessionId: "b"}, fsm.ErrLeaseHeld)
		if r := l.done(&fsm.Acquire{Key: "k", SessionId: "a"}); r.Token != token(1) {
			t.Errorf("got %v", r)
		}
	})
	t.Run("014_after_an_expiry_another_acquires", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		l.open("b")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		l.done(&fsm.ExpireSession{SessionId: "a", Term: 1})
		if r := l.done(&fsm.Acquire{Key: "k", SessionId: "b"}); r.Token != token(2) {
			t.Errorf("got %v", r)
		}
	})
	t.Run("015_release_by_the_owner_frees_by_another_changes_nothing", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		l.open("b")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		l.refused(&fsm.Release{Key: "k", SessionId: "b", Token: token(1)}, fsm.ErrStaleToken)
		l.done(&fsm.Release{Key: "k", SessionId: "a", Token: token(1)})
		if _, held := l.state.View().Lease("k"); held {
			t.Error("still held")
		}
	})
	t.Run("016_of_1000_acquirers_one_succeeds", func(t *testing.T) {
		l := newLogbook(t)
		for i := range 3 {
			l.open(fmt.Sprint("s", i))
		}
		p := &fsm.Proposal{}
		for i := range 1000 {
			p.Commands = append(p.Commands, fsm.NewCommand(&fsm.Acquire{Key: "k", SessionId: fmt.Sprint("s", i%3), Holder: fmt.Sprint(i)}))
		}
		got := map[fsm.Code]int{}
		for _, r := range l.batch(p).Proposals[0].Results {
			got[fsm.Code(r.Code)]++
		}
		if got[fsm.CodeDone] != 1 || got[fsm.CodeLeaseHeld] != 999 {
			t.Errorf("got %v", got)
		}
	})
	t.Run("017_a_cancelled_acquire_leaves_nothing", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		l.open("b")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		l.done(&fsm.Acquire{Key: "k", SessionId: "b", Holder: "h", Wait: true, Ask: 5})
		l.done(&fsm.Release{Key: "k", SessionId: "a", Token: token(1)}) // b has it now
		l.done(&fsm.CancelWait{Key: "k", SessionId: "b", Holder: "h", Ask: 5})
		if _, held := l.state.View().Lease("k"); held || l.state.View().WaiterCount("k") != 0 {
			t.Error("something is left")
		}
	})
	t.Run("018_tokens_rise_over_all_grants", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		last := uint64(0)
		for i := range 100 {
			r := l.done(&fsm.Acquire{Key: fmt.Sprint("k", i%7), SessionId: "a"})
			if r.Token <= last {
				t.Fatalf("token %d after %d", r.Token, last)
			}
			last = r.Token
			l.done(&fsm.Release{Key: fmt.Sprint("k", i%7), SessionId: "a", Token: r.Token})
			if i%10 == 0 {
				l.state = reload(t, l.state)
			}
		}
		if last >= 1<<53 {
			t.Error("a token that JSON readers can't hold")
		}
	})
	t.Run("074_the_time_of_a_grant_stays_and_is_new_with_the_next", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		first := l.stamp
		l.stamp += second
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		l.done(&fsm.Revoke{Key: "k", Token: token(1)})
		if lease, _ := l.state.View().Lease("k"); lease.AcquiredAt != first {
			t.Errorf("acquired at %d, want %d", lease.AcquiredAt, first)
		}
		l.done(&fsm.ExpireSession{SessionId: "a", Term: 1})
		l.open("a")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		if lease, _ := l.state.View().Lease("k"); lease.AcquiredAt != first+second {
			t.Errorf("acquired at %d, want %d", lease.AcquiredAt, first+second)
		}
	})
	t.Run("075_all_leases_are_listed_without_knowing_their_keys", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		for _, key := range []string{"b/2", "a", "b/1", "b", "c", "b/3"} {
			l.done(&fsm.Acquire{Key: key, SessionId: "a"})
		}
		keys := func(prefix, after string) (out []string) {
			for lease := range l.state.View().Leases(prefix, after) {
				out = append(out, lease.Key)
			}
			return out
		}
		equalLines(t, "all", keys("", ""), []string{"a", "b", "b/1", "b/2", "b/3", "c"})
		equalLines(t, "prefix", keys("b/", ""), []string{"b/1", "b/2", "b/3"})
		equalLines(t, "after", keys("b/", "b/1"), []string{"b/2", "b/3"})
		equalLines(t, "after what is gone", keys("", "b/15"), []string{"b/2", "b/3", "c"})
		equalLines(t, "after the last", keys("b/", "b/3"), nil)
		equalLines(t, "no match", keys("x", ""), nil)
	})
	t.Run("076_who_never_owned_changes_nothing_of_the_owner", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		l.open("b")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		l.refused(&fsm.Release{Key: "k", SessionId: "b", Token: token(1)}, fsm.ErrStaleToken)
		l.refused(&fsm.Revoke{Key: "k", Token: token(2)}, fsm.ErrStaleToken)
		l.refused(&fsm.Transfer{Key: "k", Token: token(2), ToInstance: "i-b"}, fsm.ErrStaleToken)
		l.done(&fsm.CancelWait{Key: "k", SessionId: "b"})
		if lease, _ := l.state.View().Lease("k"); lease.State != fsm.Held || lease.SessionID != "a" {
			t.Errorf("got %+v", lease)
		}
	})
	groupChecklist(t)
	workerChecklist(t)
}

// Faults that users of such systems reported, as far as the state decides them.
func TestScenario(t *testing.T) {
	groupScenarios(t)
	t.Run("B-17_a_retried_release_spares_the_newer_grant", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		l.done(&fsm.Release{Key: "k", SessionId: "a", Token: token(1)})
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		l.refused(&fsm.Release{Key: "k", SessionId: "a", Token: token(1)}, fsm.ErrStaleToken)
		if lease, ok := l.state.View().Lease("k"); !ok || lease.Token != token(2) || lease.State != fsm.Held {
			t.Errorf("got %+v", lease)
		}
	})
	t.Run("B-19_an_expired_session_leaves_its_queues_in_that_entry", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		l.open("c")
		l.done(&fsm.Acquire{Key: "w", SessionId: "a"})
		l.done(&fsm.Acquire{Key: "w", SessionId: "c", Wait: true})
		l.done(&fsm.ExpireSession{SessionId: "c", Term: 1})
		if l.state.View().WaiterCount("w") != 0 || l.state.View().Waiting("w", "c", "") {
			t.Error("it still waits")
		}
	})
	t.Run("B-57_a_snapshot_is_the_golden_one_or_a_hard_error", func(t *testing.T) {
		l := richLog(t)
		back := reload(t, l.state)
		if back.View().Hash() != l.state.View().Hash() {
			t.Error("another state")
		}
		records := splitSnapshot(t, snapshotBytes(t, l.state.View()))
		unknown := field(13, varint(1, 1))
		for at := range len(records) {
			var all []any
			for i, rec := range records {
				if i == at {
					all = append(all, unknown)
				}
				all = append(all, rec)
			}
			if err := read(joinSnapshot(t, all...)); err == nil {
				t.Fatalf("an unknown record at %d was passed over", at)
			}
		}
	})
	t.Run("B-59_a_restore_that_fails_changes_nothing", func(t *testing.T) {
		data := snapshotBytes(t, richLog(t).state.View())
		l := newMachineLog(t, fsm.MachineOptions{})
		before := l.m.View()
		for n := 0; n < len(data); n += 7 {
			if err := l.m.Restore(io.NopCloser(bytes.NewReader(data[:n]))); err == nil {
				t.Fatalf("restored from %d of %d bytes", n, len(data))
			}
			if l.m.View() != before {
				t.Fatal("the copy changed")
			}
		}
		l.apply(&fsm.Acquire{Key: "k", SessionId: "a"}) // and it goes on
	})
	t.Run("B-65_a_retry_after_an_unclear_commit_is_applied_once", func(t *testing.T) {
		l := newLogbook(t)
		l.open("a")
		acquire := fsm.NewCommand(&fsm.Acquire{Key: "k", SessionId: "a", Holder: "r1"})
		acquire.Seq = 1
		p := &fsm.Proposal{NodeId: "n-a", Boot: 1, LowWater: 1, Commands: []*fsm.Command{acquire}}
		first := l.batch(p).Proposals[0].Results[0]
		// The leader died before it answered; the next one gets the same request.
		l.term++
		for range 3 {
			l.state = reload(t, l.state)
			again := l.batch(p).Proposals[0].Results[0]
			if again.Token != first.Token || again.Code != 0 || len(l.last.Events) != 0 {
				t.Fatalf("got %v, first %v, events %v", again, first, l.events())
			}
		}
		entries := l.state.View().History(fsm.HistoryQuery{Key: "k"})
		if len(entries) != 1 {
			t.Errorf("%d grants", len(entries))
		}
	})
	t.Run("B-95_500_waiters_one_grant_one_entry_one_wake_up", func(t *testing.T) {
		l := newMachineLog(t, fsm.MachineOptions{})
		const waiters = 500
		token := l.apply(&fsm.Acquire{Key: "w", SessionId: "a", Holder: "first"}).Token
		var wake []<-chan struct{}
		for i := range waiters {
			session := []string{"a", "b"}[i%2]
			holder := fmt.Sprint("h", i)
			l.apply(&fsm.Acquire{Key: "w", SessionId: session, Holder: holder, Wait: true})
			ch, stop := l.m.Watch(fsm.GrantTopic("w", session, holder))
			defer stop()
			wake = append(wake, ch)
		}
		before := l.index
		l.apply(&fsm.Release{Key: "w", SessionId: "a", Token: token})
		var up []int
		for i, ch := range wake {
			if woken(ch) {
				up = append(up, i)
			}
		}
		if !slices.Equal(up, []int{0}) || l.index != before+1 {
			t.Errorf("woken: %v, by %d entries", up, l.index-before)
		}
		if n := l.m.View().WaiterCount("w"); n != waiters-1 {
			t.Errorf("%d still wait", n)
		}
	})
}

// A session with very many leases ends in one entry, quickly.
func TestExpire_Many(t *testing.T) {
	const n = 20_000
	m, index := filledMachine(t, 3*n)
	before := m.View()
	began := time.Now()
	out := m.Apply(&raft.Log{Index: index + 1, Term: 1, Data: encode(t, &fsm.Proposal{Commands: []*fsm.Command{fsm.NewCommand(&fsm.ExpireSession{SessionId: sessionName(0), Term: 1})}})}).(*fsm.Outcome)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	if len(out.Events) != n+2 || m.View().LeaseCount() != 2*n || before.LeaseCount() != 3*n {
		t.Errorf("%d events, %d leases left, %d in the former view", len(out.Events), m.View().LeaseCount(), before.LeaseCount())
	}
	last := ""
	for _, e := range out.Events[2:] {
		if e.Key <= last {
			t.Fatalf("key %q after %q", e.Key, last)
		}
		last = e.Key
	}
}

// The read of one lease costs no memory.
func TestView_LeaseAllocatesNothing(t *testing.T) {
	m, _ := filledMachine(t, 1000)
	key := benchKey(500)
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := m.View().Lease(key); !ok {
			t.Error("no lease")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A counter of tokens that is used up carries into the generation.
func TestToken_Carry(t *testing.T) {
	l := newLogbook(t)
	l.open("a")
	records := splitSnapshot(t, snapshotBytes(t, l.state.View()))
	records[0].GetCluster().TokenCounter = 1<<40 - 2
	var all []any
	for _, rec := range records {
		all = append(all, rec)
	}
	s, err := fsm.ReadSnapshot(bytes.NewReader(joinSnapshot(t, all...)))
	if err != nil {
		t.Fatal(err)
	}
	l.state = s
	var got []uint64
	for i := range 3 {
		got = append(got, l.done(&fsm.Acquire{Key: fmt.Sprint(i), SessionId: "a"}).Token)
	}
	if want := []uint64{2<<40 - 1, 2<<40 + 1, 2<<40 + 2}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
