package fsm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/fsm"
)

// A worker is created loading, loaded, run, stopped and deleted; each step makes
// its event, and the group of the workers wants it while it is to run.
func TestWorker_Life(t *testing.T) {
	l := newWorkerLog(t)
	l.runner("a", "exec")
	id := workerID("x")
	l.create("x", false)
	equalLines(t, "events", l.events(), []string{"worker.created workers/" + id + " exec x loading"})
	l.is("x", "loading etag=1 attempt=1 next=./x")
	equalLines(t, "wanted", l.wanted(), nil)

	l.finish("x", true)
	equalLines(t, "events", l.events(), []string{"worker.loaded workers/" + id + " exec x stopped"})
	l.is("x", "stopped etag=2 attempt=1 current=./x")

	l.done(&fsm.StartWorker{WorkerId: id, By: "ann"})
	equalLines(t, "events", l.events(), []string{"worker.started workers/" + id + " exec x running by=ann"})
	equalLines(t, "wanted", l.wanted(), []string{"x"})
	got := l.runs("x", "a")
	equalLines(t, "events", l.events(), []string{
		"lease.granted workers/" + id + " token=2 instance=i-a node=n-a",
		"workload.assigned workers/" + id + " token=2 instance=i-a node=n-a by=planner",
		"group.planned workers instance=i-a node=n-a by=planner number=1",
	})

	l.done(&fsm.StopWorker{WorkerId: id, By: "ann"})
	equalLines(t, "events", l.events(), []string{
		"worker.stopped workers/" + id + " exec x stopped instance=i-a node=n-a by=ann",
		"lease.transferring workers/" + id + ` token=2 instance=i-a node=n-a by=group reason="unwanted"`,
	})
	equalLines(t, "wanted", l.wanted(), nil)
	l.done(&fsm.Release{Key: fsm.WorkerKey(id), SessionId: "a", Token: got})

	l.done(&fsm.DeleteWorker{WorkerId: id, By: "ann"})
	equalLines(t, "events", l.events(), []string{"worker.deleted workers/" + id + " exec x stopped by=ann"})
	if _, ok := l.state.View().Worker(id); ok || l.state.View().WorkerCount() != 0 {
		t.Error("the record is there")
	}
}

// The record has all that was asked for, before and after a restart.
func TestWorker_Record(t *testing.T) {
	l := newWorkerLog(t)
	l.stamp += second
	r := l.done(&fsm.CreateWorker{
		WorkerId: workerID("x"), Name: "Mailer", Runtime: "exec", Source: "sha256:" + strings.Repeat("0b", 32), Args: []string{"-v", "two\nlines"},
		Env: fsm.LabelsOf(map[string]string{"B": "2", "A": "1"}), Config: []byte(`{"to": ["a"]}`), Tags: fsm.LabelsOf(map[string]string{"team": "mail"}),
		By: "ann",
	})
	if r.WorkerId != workerID("x") || r.Total != 1 {
		t.Errorf("result %v", r)
	}
	l.state = reload(t, l.state)
	w := l.worker("x")
	next := fsm.Source{Text: "sha256:" + strings.Repeat("0b", 32), SHA256: strings.Repeat("0b", 32), By: "ann", At: l.stamp}
	got := fmt.Sprintf("%s %s %q %v %s %v %s %v tries=%d driver=%d changed=%d made=%d revision=%d", w.Name, w.Runtime, w.Args, w.Env, w.Config, w.Tags, w.Restart, *w.Next, w.Tries, w.DriverToken, w.ChangedAt, w.CreatedAt, w.Revision)
	want := fmt.Sprintf(`Mailer exec ["-v" "two\nlines"] [{A 1} {B 2}] {"to": ["a"]} [{team mail}] on_failure %v tries=0 driver=0 changed=%d made=%d revision=3`, next, l.stamp, l.stamp)
	if got != want {
		t.Errorf("\ngot  %s\nwant %s", got, want)
	}
	if len(w.History) != 1 || w.History[0] != next {
		t.Errorf("history %v", w.History)
	}
	// What is loaded tells its digest and size, in the history too.
	l.done(&fsm.FinishLoad{WorkerId: w.ID, Attempt: 1, Ok: true, Sha256: next.SHA256, Size: 77, Tries: 3})
	next.Size = 77
	w = l.worker("x")
	if *w.Current != next || len(w.History) != 1 || w.History[0] != next || w.Tries != 3 {
		t.Errorf("current %v, history %v, tries %d", *w.Current, w.History, w.Tries)
	}
	// As a workload it has its name and tags.
	l.done(&fsm.StartWorker{WorkerId: w.ID})
	g, _ := l.state.View().Group(fsm.WorkersGroup)
	spec, _ := g.Wanted(w.ID)
	if got := fmt.Sprintf("%s %s %v %v", spec.Key, spec.DisplayName, spec.Weight, spec.Labels); got != w.ID+" Mailer 1 [{team mail}]" {
		t.Errorf("spec %s", got)
	}
}

// Each command in each state: what it answers, what it makes of the state, and
// its events. Literal lines in a file, to be read in the diff.
func TestWorker_EveryTransition(t *testing.T) {
	id := workerID("x")
	start, stop := &fsm.StartWorker{WorkerId: id}, &fsm.StopWorker{WorkerId: id}
	reloadOp := &fsm.ReloadWorker{WorkerId: id, Source: "./new"}
	states := []struct {
		name string
		make func(l *logbook)
	}{
		{"loading", func(l *logbook) { l.create("x", false) }},
		{"loading, to be started", func(l *logbook) { l.create("x", true) }},
		{"stopped", func(l *logbook) { l.create("x", false); l.finish("x", true) }},
		{"running", func(l *logbook) { l.create("x", true); l.finish("x", true) }},
		{"running, owned", func(l *logbook) { l.create("x", true); l.finish("x", true); l.runs("x", "a") }},
		{"load_failed", func(l *logbook) { l.create("x", false); l.finish("x", false) }},
		{"load_failed, to be started", func(l *logbook) { l.create("x", true); l.finish("x", false) }},
		{"failed", func(l *logbook) {
			l.create("x", true)
			l.finish("x", true)
			l.done(&fsm.FinishRun{WorkerId: id, Token: l.runs("x", "a"), Attempt: l.loaded("x"), ErrorType: "exited", Message: "with 1"})
		}},
		{"reloading while it runs", func(l *logbook) { l.create("x", true); l.finish("x", true); l.runs("x", "a"); l.done(reloadOp) }},
		{"reloading while it runs, to be started", func(l *logbook) { l.create("x", true); l.finish("x", true); l.done(reloadOp); l.done(start) }},
		{"reloading, stopped", func(l *logbook) { l.create("x", false); l.finish("x", true); l.done(reloadOp) }},
		{"running after a failed reload", func(l *logbook) { l.create("x", true); l.finish("x", true); l.done(reloadOp); l.finish("x", false) }},
		{"stopped after a failed reload", func(l *logbook) {
			l.create("x", true)
			l.finish("x", true)
			l.done(reloadOp)
			l.finish("x", false)
			l.done(stop)
		}},
	}
	commands := []struct {
		name string
		op   func(l *logbook) fsm.Op
	}{
		{"start", func(*logbook) fsm.Op { return start }},
		{"stop", func(*logbook) fsm.Op { return stop }},
		{"reload", func(*logbook) fsm.Op { return &fsm.ReloadWorker{WorkerId: id} }},
		{"reload ./other", func(*logbook) fsm.Op { return &fsm.ReloadWorker{WorkerId: id, Source: "./other"} }},
		{"delete", func(*logbook) fsm.Op { return &fsm.DeleteWorker{WorkerId: id} }},
		{"tags", func(*logbook) fsm.Op {
			return &fsm.SetWorkerTags{WorkerId: id, Tags: fsm.LabelsOf(map[string]string{"a": "b"})}
		}},
		{"begin", func(l *logbook) fsm.Op { return &fsm.BeginLoad{WorkerId: id, Token: l.drives("x", "a")} }},
		{"loaded", func(l *logbook) fsm.Op {
			return &fsm.FinishLoad{WorkerId: id, Attempt: l.worker("x").Attempt, Ok: true}
		}},
		{"load failed", func(l *logbook) fsm.Op {
			return &fsm.FinishLoad{WorkerId: id, Attempt: l.worker("x").Attempt, ErrorType: "too_large", Message: "of 1 GiB"}
		}},
		{"ended", func(l *logbook) fsm.Op {
			return &fsm.FinishRun{WorkerId: id, Token: l.token(fsm.WorkerKey(id)), Attempt: l.loaded("x"), Ok: true}
		}},
		{"run failed", func(l *logbook) fsm.Op {
			return &fsm.FinishRun{WorkerId: id, Token: l.token(fsm.WorkerKey(id)), Attempt: l.loaded("x"), ErrorType: "exited", Message: "with 2"}
		}},
		{"another etag", func(l *logbook) fsm.Op { return &fsm.StartWorker{WorkerId: id, Etag: l.worker("x").Etag + 1} }},
	}
	var out strings.Builder
	for _, s := range states {
		for _, c := range commands {
			l := newWorkerLog(t)
			l.runner("a", "exec")
			s.make(l)
			op := c.op(l)
			before := l.worker("x")
			fmt.Fprintf(&out, "%s: %s\n    %s\n", s.name, c.name, workerLine(before))
			r := l.do(op)
			fmt.Fprintf(&out, "    → %s\n", strings.ReplaceAll(resultLine(r), "total=", "etag="))
			if w, ok := l.state.View().Worker(id); ok {
				fmt.Fprintf(&out, "    %s", workerLine(w))
				if len(l.wanted()) > 0 {
					out.WriteString(" wanted")
				}
				out.WriteString("\n")
			}
			for _, e := range l.events() {
				fmt.Fprintf(&out, "    - %s\n", strings.ReplaceAll(e, " workers/"+id, ""))
			}
			l.state = reload(t, l.state)
			checkInvariants(t, l.state.View())
		}
	}
	golden(t, "worker_transitions.golden", []byte(out.String()))
}
