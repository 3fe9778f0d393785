package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// Pins and pauses of workloads run out as marks of instances do: after their
// full time, a new leader's full time again, by the revision that was seen.
func TestLessor_WorkloadMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLessorBench(t)
		b.elect(1)
		b.open("s", 60*time.Second)
		hash, puts, err := fsm.NewCatalog([]fsm.Spec{{Key: "a/1"}, {Key: "b"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, put := range puts {
			b.ok(put)
		}
		b.ok(&fsm.PutGroup{Group: "g", CatalogHash: hash, Settings: &fsm.GroupSettings{}, By: "test"})
		b.ok(&fsm.JoinGroup{Group: "g", SessionId: "s", All: true})
		pinned := func() bool { return workload(t, b, "a/1").Pin != nil }
		paused := func() bool { return workload(t, b, "b").Pause != nil }

		b.ok(&fsm.SetPin{Group: "g", Workload: "a/1", InstanceId: "i-s", By: "me", ExpiresInMs: 5000})
		b.ok(&fsm.SetPause{Group: "g", Workload: "b", Paused: true, By: "me", ExpiresInMs: 5000})
		time.Sleep(4900 * time.Millisecond)
		if !pinned() || !paused() {
			t.Fatalf("pinned %t, paused %t before their time", pinned(), paused())
		}
		time.Sleep(200 * time.Millisecond)
		if pinned() || paused() {
			t.Errorf("pinned %t, paused %t after their time", pinned(), paused())
		}

		// Set anew, then another leader: each time the full time from then.
		b.ok(&fsm.SetPause{Group: "g", Workload: "b", Paused: true, By: "me", ExpiresInMs: 5000})
		time.Sleep(3 * time.Second)
		b.ok(&fsm.SetPause{Group: "g", Workload: "b", Paused: true, By: "me", ExpiresInMs: 5000})
		time.Sleep(3 * time.Second)
		if !paused() {
			t.Error("the first pause's end cleared the second")
		}
		b.elect(2)
		time.Sleep(4900 * time.Millisecond)
		if !paused() {
			t.Error("the pause ended before its full time in the new term")
		}
		time.Sleep(200 * time.Millisecond)
		if paused() {
			t.Error("the pause did not run out")
		}

		// One that was taken back leaves nothing to be proposed; nor does one
		// without an end.
		b.ok(&fsm.SetPin{Group: "g", Workload: "a/1", InstanceId: "i-s", By: "me", ExpiresInMs: 5000})
		b.ok(&fsm.SetPin{Group: "g", Workload: "a/1", By: "me"})
		b.ok(&fsm.SetPause{Group: "g", Workload: "b", Paused: true, By: "me"})
		tries := b.tries()
		time.Sleep(20 * time.Second)
		if got := b.tries(); got != tries {
			t.Errorf("%d proposals with nothing to end", got-tries)
		}
		if !paused() {
			t.Error("a pause without an end ended")
		}

		// A decision of an earlier reign hits nothing.
		pause := workload(t, b, "b").Pause
		res := b.apply(&fsm.SetPause{Group: "g", Workload: "b", MarkedRevision: pause.Revision, Term: 1})
		if err := fsm.ResultErr(res[0]); !errors.Is(err, fsm.ErrWrongState) || !paused() {
			t.Errorf("term 1's decision in term 2: %v, paused %t, want ErrWrongState", err, paused())
		}
	})
}

func workload(t *testing.T, b *lessorBench, key string) fsm.Workload {
	t.Helper()
	g, ok := b.machine.View().Group("g")
	if !ok {
		t.Fatal("no group")
	}
	w, ok := g.Workload(key)
	if !ok {
		t.Fatalf("no workload %s", key)
	}
	return w
}
