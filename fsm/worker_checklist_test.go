package fsm_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/miwnode/miwnode/fsm"
)

// verbs are the transitions of one worker that the ring of events has, oldest first.
func (l *logbook) verbs(name string) (out []string) {
	events, _ := l.state.View().Events(fsm.EventID{})
	for e := range events {
		if e.Worker != nil && e.Key == fsm.WorkerKey(workerID(name)) {
			out = append(out, e.Type.String()[len("worker."):])
		}
	}
	return out
}

// same applies a command that must be done and change nothing.
func (l *logbook) same(op fsm.Op) {
	l.t.Helper()
	before := l.content()
	l.done(op)
	if len(l.last.Events) > 0 || string(before) != string(l.content()) {
		l.t.Errorf("%T changed something, events %v", op, l.events())
	}
}

// The behaviours of workers, as far as the state decides them.
func workerChecklist(t *testing.T) {
	id := workerID("x")
	start, stop := &fsm.StartWorker{WorkerId: id}, &fsm.StopWorker{WorkerId: id}
	key := fsm.WorkerKey(id)

	t.Run("083_a_worker_is_loading_before_anybody_loads_it", func(t *testing.T) {
		l := newWorkerLog(t)
		l.create("x", false) // there is no instance at all
		l.is("x", "loading etag=1 attempt=1 next=./x")
		if n := len(slices.Collect(l.state.View().LoadingWorkers())); n != 1 {
			t.Errorf("%d are loading", n)
		}
	})
	t.Run("084_a_load_leaves_loading_once", func(t *testing.T) {
		l := newWorkerLog(t)
		l.create("x", false)
		done := &fsm.FinishLoad{WorkerId: id, Attempt: 1, Ok: true}
		l.done(done)
		equalLines(t, "events", l.events(), []string{"worker.loaded " + key + " exec x stopped"})
		l.refused(done, fsm.ErrWrongState)
		if n := len(slices.Collect(l.state.View().LoadingWorkers())); n != 0 {
			t.Errorf("%d are loading", n)
		}
	})
	t.Run("085_a_failed_load_says_why_and_starts_nothing", func(t *testing.T) {
		l := newWorkerLog(t)
		l.create("x", true)
		l.done(&fsm.FinishLoad{WorkerId: id, Attempt: 1, Tries: 3, ErrorType: "digest_mismatch", Message: "it is another file"})
		equalLines(t, "events", l.events(), []string{"worker.load_failed " + key + " exec x load_failed start error=digest_mismatch(it is another file)"})
		l.is("x", "load_failed etag=2 attempt=1 start next=./x error=digest_mismatch(it is another file)")
		if tries := l.worker("x").Tries; tries != 3 {
			t.Errorf("%d tries", tries)
		}
		equalLines(t, "wanted", l.wanted(), nil)
		l.refused(start, fsm.ErrWrongState)
		// The request is kept, and honoured after a reload.
		l.done(&fsm.ReloadWorker{WorkerId: id})
		l.finish("x", true)
		l.is("x", "running etag=4 attempt=2 current=./x")
	})
	t.Run("086_a_start_while_loading_is_recorded_at_once", func(t *testing.T) {
		l := newWorkerLog(t)
		l.create("x", false)
		l.done(start)
		l.is("x", "loading etag=2 attempt=1 start next=./x")
		l.finish("x", true)
		equalLines(t, "events", l.events(), []string{"worker.loaded " + key + " exec x running", "worker.started " + key + " exec x running"})
		equalLines(t, "wanted", l.wanted(), []string{"x"})
	})
	t.Run("087_start_and_commit_meet_in_either_order_and_in_one_entry", func(t *testing.T) {
		for _, order := range []string{"start, commit", "commit, start", "one entry", "one entry, commit first"} {
			l := newWorkerLog(t)
			l.create("x", false)
			commit := &fsm.FinishLoad{WorkerId: id, Attempt: 1, Ok: true}
			switch order {
			case "start, commit":
				l.done(start)
				l.done(commit)
			case "commit, start":
				l.done(commit)
				l.done(start)
			case "one entry":
				l.batch(&fsm.Proposal{Commands: []*fsm.Command{fsm.NewCommand(start), fsm.NewCommand(commit)}})
			default:
				l.batch(&fsm.Proposal{Commands: []*fsm.Command{fsm.NewCommand(commit), fsm.NewCommand(start)}})
			}
			if w := l.worker("x"); w.State != fsm.WorkerRunning || w.StartRequested {
				t.Errorf("%s: %s", order, workerLine(w))
			}
		}
	})
	t.Run("088_a_start_after_the_load_is_an_ordinary_one", func(t *testing.T) {
		l := newWorkerLog(t)
		l.create("x", false)
		l.finish("x", true)
		l.done(start)
		equalLines(t, "events", l.events(), []string{"worker.started " + key + " exec x running"})
	})
	t.Run("089_a_withdrawn_start_leaves_it_stopped", func(t *testing.T) {
		l := newWorkerLog(t)
		l.create("x", true)
		l.done(stop)
		l.finish("x", true)
		l.is("x", "stopped etag=3 attempt=1 current=./x")
		equalLines(t, "verbs", l.verbs("x"), []string{"created", "start_withdrawn", "loaded"})
	})
	t.Run("090_a_stale_writer_is_refused_and_may_read_again", func(t *testing.T) {
		l := newWorkerLog(t)
		l.create("x", false)
		l.finish("x", true)
		stale := []fsm.Op{
			&fsm.StartWorker{WorkerId: id, Etag: 1}, &fsm.StopWorker{WorkerId: id, Etag: 1}, &fsm.ReloadWorker{WorkerId: id, Etag: 1},
			&fsm.DeleteWorker{WorkerId: id, Etag: 1}, &fsm.SetWorkerTags{WorkerId: id, Etag: 1},
		}
		for _, op := range stale {
			l.refused(op, fsm.ErrETagMismatch)
		}
		r := l.done(&fsm.StartWorker{WorkerId: id, Etag: 2})
		if r.Total != 3 || l.worker("x").Etag != 3 {
			t.Errorf("etag %d in the answer, %d in the record", r.Total, l.worker("x").Etag)
		}
	})
	t.Run("091_repeats_change_nothing", func(t *testing.T) {
		l := newWorkerLog(t)
		l.open("a")
		l.create("x", false)
		l.refused(&fsm.CreateWorker{WorkerId: id, Name: "x", Runtime: "exec", Source: "./x"}, fsm.ErrAlreadyExists)
		l.done(start)
		l.same(start)
		begin := &fsm.BeginLoad{WorkerId: id, Token: l.drives("x", "a")}
		l.done(begin)
		l.same(begin)
		l.finish("x", true)
		l.same(start)
		l.done(stop)
		l.same(stop)
		equalLines(t, "verbs", l.verbs("x"), []string{"created", "start_requested", "loaded", "started", "stopped"})
	})
	t.Run("092_a_driver_that_died_is_replaced_and_can_commit_nothing", func(t *testing.T) {
		l := newWorkerLog(t)
		l.open("a")
		l.open("b")
		l.create("x", true)
		first := l.done(&fsm.BeginLoad{WorkerId: id, Token: l.drives("x", "a")})
		l.done(&fsm.Acquire{Key: fsm.LoadKey(id), SessionId: "b", Wait: true})
		l.done(&fsm.CloseSession{SessionId: "a", Reason: fsm.CloseCrashed})
		l.state = reload(t, l.state)
		// b has the lease in the entry of the crash, and begins anew.
		second := l.done(&fsm.BeginLoad{WorkerId: id, Token: l.token(fsm.LoadKey(id))})
		if first.Token != 2 || second.Token != 3 {
			t.Errorf("attempts %d and %d", first.Token, second.Token)
		}
		l.refused(&fsm.BeginLoad{WorkerId: id, Token: token(1)}, fsm.ErrStaleToken)
		l.refused(&fsm.FinishLoad{WorkerId: id, Attempt: first.Token, Ok: true}, fsm.ErrWrongState)
		l.done(&fsm.FinishLoad{WorkerId: id, Attempt: second.Token, Ok: true})
		equalLines(t, "events", l.events(), []string{
			"worker.loaded " + key + " exec x running instance=i-b node=n-b",
			"worker.started " + key + " exec x running",
		})
	})
	t.Run("093_of_several_commits_one_wins", func(t *testing.T) {
		l := newWorkerLog(t)
		l.create("x", false)
		ok := &fsm.FinishLoad{WorkerId: id, Attempt: 1, Ok: true}
		no := &fsm.FinishLoad{WorkerId: id, Attempt: 1, ErrorType: "too_large"}
		out := l.batch(&fsm.Proposal{Commands: []*fsm.Command{fsm.NewCommand(ok), fsm.NewCommand(no), fsm.NewCommand(ok)}})
		var codes []string
		for _, r := range out.Proposals[0].Results {
			codes = append(codes, fsm.Code(r.Code).String())
		}
		equalLines(t, "codes", codes, []string{"done", "wrong_state", "wrong_state"})
		equalLines(t, "verbs", l.verbs("x"), []string{"created", "loaded"})
	})
	t.Run("097_start_of_a_running_and_stop_of_a_stopped_one_are_nothing", func(t *testing.T) {
		l := newWorkerLog(t)
		l.create("x", true)
		l.finish("x", true)
		l.same(start)
		l.done(stop)
		l.same(stop)
	})
	t.Run("098_nothing_is_found_under_an_unknown_ID", func(t *testing.T) {
		l := newWorkerLog(t)
		for _, op := range []fsm.Op{
			start, stop, &fsm.ReloadWorker{WorkerId: id}, &fsm.DeleteWorker{WorkerId: id}, &fsm.SetWorkerTags{WorkerId: id},
			&fsm.BeginLoad{WorkerId: id, Token: 1}, &fsm.FinishLoad{WorkerId: id, Attempt: 1, Ok: true}, &fsm.FinishRun{WorkerId: id, Token: 1, Attempt: 1, Ok: true},
		} {
			l.refused(op, fsm.ErrNotFound)
		}
	})
	t.Run("099_delete_wins_over_a_late_commit", func(t *testing.T) {
		l := newWorkerLog(t)
		l.runner("a", "exec")
		l.create("x", true)
		attempt := l.done(&fsm.BeginLoad{WorkerId: id, Token: l.drives("x", "a")}).Token
		l.done(&fsm.DeleteWorker{WorkerId: id})
		l.refused(&fsm.FinishLoad{WorkerId: id, Attempt: attempt, Ok: true}, fsm.ErrNotFound)
		equalLines(t, "wanted", l.wanted(), nil)
		if n := len(slices.Collect(l.state.View().LoadingWorkers())); n != 0 {
			t.Errorf("%d are loading", n)
		}
		// One that runs is told to stop by the entry that deletes it.
		l.create("y", true)
		l.finish("y", true)
		l.runs("y", "a")
		l.done(&fsm.DeleteWorker{WorkerId: workerID("y")})
		if lease, _ := l.state.View().Lease(fsm.WorkerKey(workerID("y"))); lease.State != fsm.Transferring || lease.Note.To != "" {
			t.Errorf("its lease is %v", lease.State)
		}
	})
	t.Run("100_stop_and_start_keep_everything", func(t *testing.T) {
		l := newWorkerLog(t)
		l.done(&fsm.CreateWorker{
			WorkerId: id, Name: "x", Runtime: "exec", Source: "./x", Config: []byte(`{}`), Args: []string{"-v"}, Restart: "never",
			Tags: fsm.LabelsOf(map[string]string{"a": "b"}), Env: fsm.LabelsOf(map[string]string{"C": "d"}),
		})
		l.finish("x", true)
		show := func() string {
			w := l.worker("x")
			return fmt.Sprint(w.Current.Text, string(w.Config), w.Args, w.Restart, w.Tags, w.Env, len(w.History))
		}
		before := show()
		l.done(start)
		l.done(stop)
		l.done(start)
		if got := show(); got != before || got != "./x{}[-v]never[{a b}] [{C d}] 1" {
			t.Errorf("got %s, before %s", got, before)
		}
	})
	t.Run("102_a_reload_of_a_running_worker_lets_it_go_on", func(t *testing.T) {
		l := newWorkerLog(t)
		l.runner("a", "exec")
		l.create("x", true)
		l.finish("x", true)
		token := l.runs("x", "a")
		l.done(&fsm.ReloadWorker{WorkerId: id, Source: "./y", By: "ann"})
		l.is("x", "loading etag=3 attempt=2 keeps current=./x next=./y")
		equalLines(t, "wanted", l.wanted(), []string{"x"})
		l.finish("x", false)
		l.is("x", "running etag=4 attempt=2 current=./x next=./y error=source_not_found(no file x)")
		l.done(&fsm.ReloadWorker{WorkerId: id, Source: "./z"})
		l.finish("x", true)
		l.is("x", "running etag=6 attempt=3 current=./z")
		// It has been the same grant all the time, and every source is on record.
		if got := l.token(key); got != token {
			t.Errorf("token %d, want %d", got, token)
		}
		var history []string
		for _, src := range l.worker("x").History {
			history = append(history, src.Text+" by "+src.By)
		}
		equalLines(t, "history", history, []string{"./x by ", "./y by ann", "./z by "})
	})
	t.Run("103_tags_are_replaced_all_at_once_and_tell_nobody", func(t *testing.T) {
		l := newWorkerLog(t)
		l.create("x", true)
		l.finish("x", true)
		l.done(&fsm.SetWorkerTags{WorkerId: id, Tags: fsm.LabelsOf(map[string]string{"a": "1", "b": "2"})})
		l.done(&fsm.SetWorkerTags{WorkerId: id, Tags: fsm.LabelsOf(map[string]string{"c": "3"})})
		equalLines(t, "events", l.events(), nil)
		if got := fmt.Sprint(l.worker("x").Tags); got != "[{c 3}]" {
			t.Errorf("tags %s", got)
		}
		l.same(&fsm.SetWorkerTags{WorkerId: id, Tags: fsm.LabelsOf(map[string]string{"c": "3"})})
		l.done(&fsm.SetWorkerTags{WorkerId: id})
		if tags := l.worker("x").Tags; len(tags) != 0 {
			t.Errorf("tags %v", tags)
		}
	})
	t.Run("104_the_configuration_stays", func(t *testing.T) {
		l := newWorkerLog(t)
		l.done(&fsm.CreateWorker{WorkerId: id, Name: "x", Runtime: "exec", Source: "./x", Config: []byte(`{"a": 1}`)})
		l.finish("x", true)
		l.done(&fsm.ReloadWorker{WorkerId: id, Source: "./y"})
		l.state = reload(t, l.state)
		if got := string(l.worker("x").Config); got != `{"a": 1}` {
			t.Errorf("config %s", got)
		}
	})
	t.Run("105_each_transition_has_its_event", func(t *testing.T) {
		l := newWorkerLog(t)
		l.runner("a", "exec")
		l.create("x", true)
		l.done(stop)
		l.done(start)
		l.finish("x", false)
		l.done(&fsm.ReloadWorker{WorkerId: id})
		l.finish("x", true)
		l.done(&fsm.FinishRun{WorkerId: id, Token: l.runs("x", "a"), Attempt: l.loaded("x"), ErrorType: "exited", Message: "with 1"})
		failed := fsm.WorkerNote{Name: "x", Runtime: "exec", State: fsm.WorkerFailed}
		if e := l.last.Events[0]; e.Type != fsm.EventWorkerFailed || e.Worker.Error == nil || *e.Worker.Error != (fsm.WorkerError{Type: "exited", Message: "with 1"}) || e.Who.InstanceID != "i-a" ||
			e.Worker.Name != failed.Name || e.Worker.Runtime != failed.Runtime || e.Worker.State != failed.State {
			t.Errorf("event %v of %v, %+v", e.Type, e.Who, e.Worker)
		}
		l.done(start)
		l.done(stop)
		l.done(&fsm.DeleteWorker{WorkerId: id})
		// Row 107: they are part of the transition, and outlive whoever made it.
		l.state = reload(t, l.state)
		equalLines(t, "verbs", l.verbs("x"), []string{
			"created", "start_withdrawn", "start_requested", "load_failed", "reloading", "loaded", "started", "failed", "started", "stopped", "deleted",
		})
	})
	t.Run("087_a_start_is_not_lost_to_a_run_that_was_stopped_before", func(t *testing.T) {
		l := newWorkerLog(t)
		l.runner("a", "exec")
		l.create("x", true)
		l.finish("x", true)
		old := l.runs("x", "a")
		l.done(stop)
		l.done(start)
		// The former run fails while it stops, and says so too late.
		l.refused(&fsm.FinishRun{WorkerId: id, Token: old, Attempt: l.loaded("x"), ErrorType: "exited"}, fsm.ErrStaleToken)
		l.done(&fsm.Release{Key: key, SessionId: "a", Token: old})
		l.is("x", "running etag=4 attempt=1 current=./x")
		l.done(&fsm.FinishRun{WorkerId: id, Token: l.runs("x", "a"), Attempt: l.loaded("x"), ErrorType: "exited"})
		l.is("x", "failed etag=5 attempt=1 current=./x error=exited()")
	})
	t.Run("102_a_run_of_the_code_of_before_ends_nothing_of_what_was_reloaded", func(t *testing.T) {
		l := newWorkerLog(t)
		l.runner("a", "exec")
		l.create("x", true)
		l.finish("x", true)
		token, old := l.runs("x", "a"), l.loaded("x")
		l.done(&fsm.ReloadWorker{WorkerId: id, Source: "./fixed"})
		l.finish("x", true)
		// The old code fails at the instant at which the new is ready, under the same grant.
		l.refused(&fsm.FinishRun{WorkerId: id, Token: token, Attempt: old, ErrorType: "exited"}, fsm.ErrWrongState)
		l.refused(&fsm.FinishRun{WorkerId: id, Token: token, Attempt: old, Ok: true}, fsm.ErrWrongState)
		l.is("x", "running etag=4 attempt=2 current=./fixed")
		// While the new is loaded, the end of the old is that of the worker.
		l.done(&fsm.ReloadWorker{WorkerId: id, Source: "./next"})
		l.done(&fsm.FinishRun{WorkerId: id, Token: token, Attempt: l.loaded("x"), ErrorType: "exited"})
		l.is("x", "loading etag=6 attempt=3 current=./fixed next=./next error=exited()")
		l.finish("x", true)
		l.is("x", "stopped etag=7 attempt=3 current=./next")
	})
	t.Run("108_whoever_has_it_hears_of_commands_that_were_made_elsewhere", func(t *testing.T) {
		l := newWorkerLog(t)
		l.runner("a", "exec")
		l.create("x", true)
		l.finish("x", true)
		l.runs("x", "a")
		l.batch(&fsm.Proposal{NodeId: "n9", Boot: 1, Commands: []*fsm.Command{fsm.NewCommand(stop)}})
		equalLines(t, "events", l.events()[1:], []string{"lease.transferring " + key + ` token=2 instance=i-a node=n-a by=group reason="unwanted"`})
	})
	t.Run("110_after_a_restart_of_all_workers_are_as_they_were_saved", func(t *testing.T) {
		l := newWorkerLog(t)
		l.runner("a", "exec")
		for _, name := range []string{"r", "s", "l", "f"} {
			l.create(name, name == "r")
		}
		l.finish("r", true)
		l.finish("s", true)
		l.finish("f", false)
		l.runs("r", "a")
		l.done(&fsm.CloseSession{SessionId: "a", Reason: fsm.CloseClosed})
		l.state = reload(t, l.state)
		l.is("r", "running etag=2 attempt=1 current=./r")
		l.is("s", "stopped etag=2 attempt=1 current=./s")
		l.is("l", "loading etag=1 attempt=1 next=./l")
		l.is("f", "load_failed etag=2 attempt=1 next=./f error=source_not_found(no file f)")
		equalLines(t, "wanted", l.wanted(), []string{"r"})
		l.runner("b", "exec")
		l.runs("r", "b")
	})
	t.Run("111_a_bad_worker_is_deleted_alone", func(t *testing.T) {
		l := newWorkerLog(t)
		l.create("x", true)
		l.create("y", true)
		l.finish("x", false)
		l.finish("y", true)
		l.done(&fsm.DeleteWorker{WorkerId: id})
		equalLines(t, "wanted", l.wanted(), []string{"y"})
	})
	t.Run("115_a_record_under_a_former_ID_has_nothing_of_the_former_one", func(t *testing.T) {
		l := newWorkerLog(t)
		l.runner("a", "exec")
		l.create("x", true)
		l.finish("x", true)
		old := l.runs("x", "a")
		l.done(&fsm.SetPause{Group: fsm.WorkersGroup, Workload: id, Paused: true})
		l.done(&fsm.DeleteWorker{WorkerId: id})
		l.done(&fsm.Release{Key: key, SessionId: "a", Token: old, Failure: "killed"})
		// No caller does so: IDs are random. If one did, it would be another worker.
		l.create("x", false)
		l.is("x", "loading etag=1 attempt=1 next=./x")
		l.finish("x", true)
		l.done(start)
		g, _ := l.state.View().Group(fsm.WorkersGroup)
		w, _ := g.Workload(id)
		if w.Pause != nil || w.Failure != nil || w.Last != nil || w.Pin != nil {
			t.Errorf("it has notes of the former one: %s", workloadLine(&w))
		}
		l.refused(&fsm.FinishRun{WorkerId: id, Token: old, Attempt: l.loaded("x"), Ok: true}, fsm.ErrStaleToken)
	})
}
