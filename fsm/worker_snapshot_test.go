package fsm_test

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// richWorkerLog has workers in every state with, together, every field.
func richWorkerLog(t testing.TB) *logbook {
	l := newWorkerLog(t)
	l.term = 3
	l.runner("a", "exec", "func:mail", "wasm")
	l.stamp += second
	keyed := fsm.NewCommand(&fsm.CreateWorker{
		WorkerId: workerID("r"), Name: "reports", Runtime: "exec", Source: "https://x.example/r", Sha256: strings.Repeat("0b", 32), Args: []string{"-v", "a b"},
		Env: fsm.LabelsOf(map[string]string{"A": "1", "B": ""}), Config: []byte(`{"to":["ann"]}`), Tags: fsm.LabelsOf(map[string]string{"team": "mail"}),
		Restart: "always", Start: true, By: "ann",
	})
	keyed.IdempotencyKey, keyed.IdempotencyHash = "idem-1", bytes.Repeat([]byte{7}, 32)
	l.batch(&fsm.Proposal{Commands: []*fsm.Command{keyed}})
	attempt := l.done(&fsm.BeginLoad{WorkerId: workerID("r"), Token: l.drives("r", "a")}).Token
	l.done(&fsm.FinishLoad{WorkerId: workerID("r"), Attempt: attempt, Ok: true, Sha256: strings.Repeat("0b", 32), Size: 512, Tries: 2})
	l.stamp += second
	l.done(&fsm.ReloadWorker{WorkerId: workerID("r"), Source: "./r2", By: "bob"})
	l.done(&fsm.StartWorker{WorkerId: workerID("r")})
	l.done(&fsm.BeginLoad{WorkerId: workerID("r"), Token: token(1)})
	l.runs("r", "a")
	for _, name := range []string{"f", "g", "l", "s"} {
		l.create(name, true)
	}
	l.finish("f", false)
	l.finish("g", true)
	l.done(&fsm.FinishRun{WorkerId: workerID("g"), Token: l.runs("g", "a"), Attempt: l.loaded("g"), ErrorType: "exited", Message: "with 1\nno memory"})
	l.finish("s", true)
	l.done(&fsm.StopWorker{WorkerId: workerID("s"), By: "ann"})
	l.done(&fsm.SetPause{Group: fsm.WorkersGroup, Workload: workerID("r"), Paused: true, By: "ann"})
	l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
	return l
}

func TestWorkerSnapshot_Golden(t *testing.T) {
	l := richWorkerLog(t)
	golden(t, "snapshot/v3.golden", []byte(hex.Dump(snapshotBytes(t, l.state.View()))))
	back := reload(t, l.state).View()
	checkInvariants(t, back)
	var before, after []string
	for w := range l.state.View().Workers("") {
		before = append(before, w.Name+" "+workerLine(w))
	}
	for w := range back.Workers("") {
		after = append(after, w.Name+" "+workerLine(w))
	}
	equalLines(t, "workers", after, before)
	equalLines(t, "workers", after, []string{
		"f load_failed etag=2 attempt=1 start next=./f error=source_not_found(no file f)",
		"g failed etag=3 attempt=1 current=./g error=exited(with 1\nno memory)",
		"l loading etag=1 attempt=1 start next=./l",
		"reports loading etag=6 attempt=4 start keeps current=https://x.example/r next=./r2",
		"s stopped etag=3 attempt=1 current=./s",
	})
	if loading := slices.Collect(back.LoadingWorkers()); len(loading) != 2 || loading[1].DriverToken != token(1) {
		t.Errorf("%d are loading", len(loading))
	}
	// A keyed repeat finds the first one's ID.
	cmd := fsm.NewCommand(&fsm.CreateWorker{WorkerId: workerID("again"), Name: "reports", Runtime: "exec", Source: "./r"})
	cmd.IdempotencyKey, cmd.IdempotencyHash = "idem-1", bytes.Repeat([]byte{7}, 32)
	l.state = reload(t, l.state)
	if r := l.batch(&fsm.Proposal{Commands: []*fsm.Command{cmd}}).Proposals[0].Results[0]; r.Code != 0 || r.WorkerId != workerID("r") || r.Total != 1 {
		t.Errorf("a keyed repeat: %v", r)
	}
}

// A snapshot that contradicts itself in its workers is an error.
func TestWorkerSnapshot_Broken(t *testing.T) {
	worker := func(records []*fsmpb.Record, name string) *fsmpb.WorkerRecord {
		for _, r := range records {
			if w := r.GetWorker(); w.GetWorkerId() == workerID(name) {
				return w
			}
		}
		t.Fatalf("no worker %s", name)
		return nil
	}
	event := func(records []*fsmpb.Record) *fsmpb.WorkerNoteRecord {
		for _, r := range records {
			if w := r.GetEvent().GetWorker(); w != nil {
				return w
			}
		}
		t.Fatal("no event")
		return nil
	}
	cases := []struct {
		name   string
		change func([]*fsmpb.Record) []*fsmpb.Record
		want   string
	}{
		{"fine", func(r []*fsmpb.Record) []*fsmpb.Record { return r }, ""},
		{"no state", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "s").State = 0; return r }, "worker state 0"},
		{"unknown state", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "s").State = 6; return r }, "worker state 6"},
		{"unknown state beyond a byte", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "s").State = 258; return r }, "worker state 258"},
		{"unknown state in an event", func(r []*fsmpb.Record) []*fsmpb.Record { event(r).State = 258; return r }, "worker state 258"},
		{"bad ID", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "s").WorkerId = "wz"; return r }, "worker_id must be"},
		{"no runtime", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "s").Runtime = ""; return r }, "runtime must not be empty"},
		{"twice", func(r []*fsmpb.Record) []*fsmpb.Record { return append(r, r[len(r)-1]) }, "out of order"},
		{"unsorted", func(r []*fsmpb.Record) []*fsmpb.Record {
			n := len(r)
			r[n-1], r[n-2] = r[n-2], r[n-1]
			return r
		}, "out of order"},
		{"loading nothing", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "l").Next = nil; return r }, "contradicts itself"},
		{"running nothing", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "r").Current = nil; return r }, "contradicts itself"},
		{"stopped without code", func(r []*fsmpb.Record) []*fsmpb.Record {
			w := worker(r, "s")
			w.Current, w.Next = nil, w.Current
			return r
		}, "contradicts itself"},
		{"stopped that goes on", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "s").KeepsRunning = true; return r }, "contradicts itself"},
		{"stopped that starts", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "s").StartRequested = true; return r }, "contradicts itself"},
		{"stopped that somebody loads", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "s").DriverToken = 1; return r }, "contradicts itself"},
		{"without a history", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "s").History = nil; return r }, "contradicts itself"},
		{"too long a history", func(r []*fsmpb.Record) []*fsmpb.Record {
			w := worker(r, "s")
			for range fsm.MaxSources {
				w.History = append(w.History, w.History[0])
			}
			return r
		}, "contradicts itself"},
		{"without an etag", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "s").Etag = 0; return r }, "contradicts itself"},
		{"without an attempt", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "s").Attempt = 0; return r }, "contradicts itself"},
		{"loaded by no attempt", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "s").Loaded = 0; return r }, "contradicts itself"},
		{"loaded by an attempt to come", func(r []*fsmpb.Record) []*fsmpb.Record { worker(r, "s").Loaded = 9; return r }, "contradicts itself"},
		{"without the group", func(r []*fsmpb.Record) []*fsmpb.Record {
			return slices.DeleteFunc(r, func(r *fsmpb.Record) bool {
				return r.GetGroup() != nil || r.GetMember() != nil || r.GetWorkload() != nil || r.GetLease().GetGroup() != ""
			})
		}, "without the group of the workers"},
		{"group with a catalog", func(r []*fsmpb.Record) []*fsmpb.Record {
			i := slices.IndexFunc(r, func(r *fsmpb.Record) bool { return r.GetGroup() != nil })
			r[i].GetGroup().Put = true
			return r
		}, "the group of the workers has a catalog"},
		{"member without runtimes", func(r []*fsmpb.Record) []*fsmpb.Record {
			i := slices.IndexFunc(r, func(r *fsmpb.Record) bool { return r.GetMember() != nil })
			r[i].GetMember().Join.Runtimes, r[i].GetMember().Join.All = nil, true
			return r
		}, "runtimes are what members"},
		{"in a cluster that knows none", func(r []*fsmpb.Record) []*fsmpb.Record { r[0].GetCluster().Version = 2; return r }, "runtimes are what members"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			records := splitSnapshot(t, snapshotBytes(t, richWorkerLog(t).state.View()))
			records = c.change(records[:len(records)-1])
			var all []any
			for _, r := range records {
				all = append(all, r)
			}
			err := read(joinSnapshot(t, append(all, end(uint64(len(records))))...))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
