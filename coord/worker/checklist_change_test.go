package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// worker in a state, as tests of changes want it.
func (w *world) in(state fsm.WorkerState, m *member) string {
	w.t.Helper()
	id := m.create(worker.Spec{Source: sourceFor[state], Start: state == fsm.WorkerRunning || state == fsm.WorkerFailed, Restart: worker.RestartNever}).ID
	w.untilState(id, state)
	switch state {
	case fsm.WorkerRunning:
		w.untilRuns(id)
	case fsm.WorkerLoading:
		w.untilDriven(id)
	}
	return id
}

// sourceFor is what to load for a worker that is to come to a state.
var sourceFor = map[fsm.WorkerState]string{
	fsm.WorkerLoading: "hangs", fsm.WorkerStopped: "f", fsm.WorkerRunning: "f", fsm.WorkerLoadFailed: "bad", fsm.WorkerFailed: "fails",
}

// stateful are runtimes whose workers come to every state.
func (w *world) stateful(name string) worker.Runtime {
	return w.script(func(s *scripted) {
		s.names = []string{"f", "g", "hangs", "bad", "fails"}
		s.load = func(ctx context.Context, p worker.Program) error {
			switch p.Source {
			case "hangs":
				<-ctx.Done()
				return ctx.Err()
			case "bad":
				return worker.Errorf(worker.TypeInvalidModule, "bad")
			}
			return nil
		}
		s.run = func(ctx context.Context, p worker.Program, r worker.Run) error {
			if p.Source == "fails" {
				return worker.Errorf(worker.TypeExited, "exit code 3")
			}
			return untilAsked(ctx, r)
		}
	})(name)
}

var allStates = []fsm.WorkerState{fsm.WorkerLoading, fsm.WorkerStopped, fsm.WorkerRunning, fsm.WorkerLoadFailed, fsm.WorkerFailed}

// changeRows run in a bubble, as all rows do.
var changeRows = []row{
	{"088_start_of_what_is_loaded", func(t *testing.T, w *world) {
		a, b, _ := w.three(w.stateful)
		for _, state := range []fsm.WorkerState{fsm.WorkerStopped, fsm.WorkerFailed} {
			id := w.in(state, a)
			runs := len(w.seen.of(id))
			if _, err := b.Start(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			w.until("it runs once more", func() bool { return len(w.seen.of(id)) == runs+1 })
		}
	}},
	{"090_stale_etag", func(t *testing.T, w *world) {
		a, b, c := w.three(w.stateful)
		id := w.in(fsm.WorkerStopped, a)
		read, _ := b.Get(id)
		etag, err := c.SetTags(t.Context(), id, map[string]string{"team": "mail"}, worker.IfEtag(read.Etag))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, etag, read.Etag+1, "etag")
		_, start := b.Start(t.Context(), id, worker.IfEtag(read.Etag))
		_, stop := b.Stop(t.Context(), id, worker.IfEtag(read.Etag))
		_, reload := b.Reload(t.Context(), id, worker.Source{}, worker.IfEtag(read.Etag))
		_, tag := b.SetTags(t.Context(), id, nil, worker.IfEtag(read.Etag))
		remove := b.Delete(t.Context(), id, worker.IfEtag(read.Etag))
		for _, err := range []error{start, stop, reload, tag, remove} {
			wantErr(t, err, fsm.ErrETagMismatch)
		}
		if _, err := b.Start(t.Context(), id, worker.IfEtag(etag)); err != nil {
			t.Errorf("with the etag that was read again: %v", err)
		}
	}},
	{"091_097_repeats_change_nothing", func(t *testing.T, w *world) {
		a, b, _ := w.three(w.stateful)
		for _, state := range allStates {
			id := w.in(state, a)
			repeat := func(what string, do func() (uint64, error)) {
				t.Helper()
				first, err := do()
				if err != nil {
					return // it has no meaning in this state
				}
				events := len(w.events(id))
				second, err := do()
				if err != nil || second != first || len(w.events(id)) != events {
					t.Errorf("%v: %s repeated: etag %d and %d, error %v, events %q", state, what, first, second, err, w.events(id))
				}
			}
			repeat("start", func() (uint64, error) { return b.Start(t.Context(), id) })
			repeat("stop", func() (uint64, error) { return b.Stop(t.Context(), id) })
			repeat("tags", func() (uint64, error) { return b.SetTags(t.Context(), id, map[string]string{"a": "b"}) })
		}
	}},
	{"091_an_outcome_told_twice", func(t *testing.T, w *world) {
		a, _, _ := w.three(w.stateful)
		id := a.create(worker.Spec{Source: "hangs"}).ID
		w.untilDriven(id)
		op := &fsm.FinishLoad{WorkerId: id, Attempt: w.worker(id).Attempt, Ok: true}
		w.do(op)
		etag := w.worker(id).Etag
		res, err := w.Propose(op)
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, fsm.ResultErr(res), fsm.ErrWrongState)
		equal(t, w.worker(id).Etag, etag, "etag")
		w.wantEvents(id, "created", "loaded")
	}},
	{"098_unknown_worker", func(t *testing.T, w *world) {
		a := w.join("a", w.stateful("a"))
		id := "w" + strings.Repeat("a", 26)
		_, start := a.Start(t.Context(), id)
		_, stop := a.Stop(t.Context(), id)
		_, reload := a.Reload(t.Context(), id, worker.Source{})
		_, tag := a.SetTags(t.Context(), id, nil)
		_, get := a.Get(id)
		for _, err := range []error{start, stop, reload, tag, get, a.Delete(t.Context(), id)} {
			wantErr(t, err, fsm.ErrNotFound)
		}
	}},
	{"099_delete_in_every_state", func(t *testing.T, w *world) {
		a, b, _ := w.three(w.stateful)
		for _, state := range allStates {
			id := w.in(state, a)
			attempt := w.worker(id).Attempt
			if err := b.Delete(t.Context(), id); err != nil {
				t.Errorf("%v: %v", state, err)
			}
			w.until("it stops", func() bool { return w.seen.where(id) == "" && holder(w, id) == "" })
			res, _ := w.Propose(&fsm.FinishLoad{WorkerId: id, Attempt: attempt, Ok: true})
			wantErr(t, fsm.ResultErr(res), fsm.ErrNotFound)
			_, err := b.Get(id)
			wantErr(t, err, fsm.ErrNotFound)
			wantErr(t, b.Delete(t.Context(), id), fsm.ErrNotFound)
			events := w.events(id)
			equal(t, events[len(events)-1], "deleted", fmt.Sprint(state, ": last event"))
		}
		equal(t, w.View().WorkerCount(), 0, "workers")
	}},
	{"100_104_stop_and_start_keep_everything", func(t *testing.T, w *world) {
		var got []worker.Run
		a, b, _ := w.three(w.script(func(s *scripted) {
			s.run = func(ctx context.Context, _ worker.Program, r worker.Run) error {
				got = append(got, r)
				return untilAsked(ctx, r)
			}
		}))
		id := a.create(worker.Spec{
			Source: "f", Start: true, Args: []string{"-v"}, Env: map[string]string{"LANG": "de"}, Config: []byte(`{"a":1}`), Tags: map[string]string{"team": "mail"},
		}).ID
		w.untilRuns(id)
		before := w.worker(id)
		if _, err := b.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		w.until("it stops", func() bool { return w.seen.where(id) == "" })
		if _, err := b.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		w.untilRuns(id)
		after := w.worker(id)
		equal(t, string(after.Config), `{"a":1}`, "config")
		equal(t, fmt.Sprint(after.Tags, after.History, *after.Current), fmt.Sprint(before.Tags, before.History, *before.Current), "tags, history, source")
		equal(t, len(got), 2, "runs")
		for _, r := range got {
			equal(t, fmt.Sprint(r.Args, r.Env, string(r.Config)), `[-v] map[LANG:de]{"a":1}`, "what a run is given")
			equal(t, r.Key, "workers/"+id, "key")
			equal(t, r.Lease.Token(), r.Token, "token")
		}
	}},
	{"101_unknown_runtime", func(t *testing.T, w *world) {
		a := w.join("a", w.script(nil)("a"))
		entries := w.Entries()
		_, err := a.Create(t.Context(), worker.Spec{Name: "x", Runtime: "python", Source: "f"})
		wantErr(t, err, fsm.ErrInvalidArgument)
		_, err = a.Create(t.Context(), worker.Spec{Name: "x", Runtime: worker.RuntimeFunc, Source: "refused"})
		wantErr(t, err, fsm.ErrInvalidArgument)
		_, err = a.Create(t.Context(), worker.Spec{Runtime: worker.RuntimeFunc, Source: "f"})
		wantErr(t, err, fsm.ErrInvalidArgument)
		equal(t, w.Entries(), entries, "entries of the log")
		equal(t, w.View().WorkerCount(), 0, "workers")
	}},
	{"102_reload_adds_to_the_history", func(t *testing.T, w *world) {
		a, b, _ := w.three(w.script(nil))
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		where := w.untilRuns(id)
		if _, err := b.Reload(t.Context(), id, worker.Source{Text: "g"}, worker.By("anna")); err != nil {
			t.Fatal(err)
		}
		w.until("the new code runs", func() bool { return w.seen.of(id)[len(w.seen.of(id))-1].source == "g" })
		rec := w.worker(id)
		equal(t, len(rec.History), 2, "history")
		equal(t, rec.History[0].Text+" "+rec.History[1].Text+" "+rec.History[1].By, "f g anna", "history")
		runs := w.seen.of(id)
		equal(t, len(runs), 2, "runs")
		equal(t, runs[1].instance, where, "instance")
		equal(t, runs[1].token, runs[0].token, "token")
	}},
	{"102_reload_that_fails_leaves_it_running", func(t *testing.T, w *world) {
		a, b, _ := w.three(w.stateful)
		id := w.in(fsm.WorkerRunning, a)
		if _, err := b.Reload(t.Context(), id, worker.Source{Text: "bad"}); err != nil {
			t.Fatal(err)
		}
		w.until("it is loaded", func() bool { return w.worker(id).State != fsm.WorkerLoading })
		time.Sleep(time.Minute)
		equal(t, w.worker(id).State, fsm.WorkerRunning, "state")
		equal(t, w.worker(id).Error.Type, "invalid_module", "error")
		equal(t, len(w.seen.of(id)), 1, "runs")
		w.wantEvents(id, "created", "loaded", "started", "reloading", "load_failed")
	}},
	{"102_reload_of_the_same_source", func(t *testing.T, w *world) {
		a, b, _ := w.three(w.script(nil))
		id := a.create(worker.Spec{Source: "f", Start: true}).ID
		w.untilRuns(id)
		if _, err := b.Reload(t.Context(), id, worker.Source{}); err != nil {
			t.Fatal(err)
		}
		w.until("it runs anew", func() bool { return len(w.seen.of(id)) == 2 && w.seen.where(id) != "" })
		equal(t, len(w.worker(id).History), 1, "history")
	}},
	{"103_tags", func(t *testing.T, w *world) {
		a, b, _ := w.three(w.script(nil))
		many := make(map[string]string)
		for i := range 50 {
			many[fmt.Sprintf("%0128d", i)] = strings.Repeat("v", 1024)
		}
		x := a.create(worker.Spec{Source: "f", Tags: many})
		y := a.create(worker.Spec{Source: "f", Tags: map[string]string{"team": "mail", "env": "test"}})
		z := a.create(worker.Spec{Source: "g", Tags: map[string]string{"team": "mail", "env": "live"}, Start: true})
		for _, tags := range []map[string]string{
			{strings.Repeat("k", 129): "v"}, {"k": strings.Repeat("v", 1025)}, {"": "v"},
		} {
			_, err := b.SetTags(t.Context(), x.ID, tags)
			wantErr(t, err, fsm.ErrInvalidArgument)
		}
		many["one more"] = ""
		_, err := b.SetTags(t.Context(), x.ID, many)
		wantErr(t, err, fsm.ErrInvalidArgument)
		if _, err := b.SetTags(t.Context(), x.ID, map[string]string{"team": "mail"}); err != nil {
			t.Fatal(err)
		}
		w.untilRuns(z.ID)
		for _, tt := range []struct {
			f    worker.Filter
			want []string
		}{
			{worker.Filter{}, []string{x.ID, y.ID, z.ID}},
			{worker.Filter{Tags: map[string]string{"team": "mail"}}, []string{x.ID, y.ID, z.ID}},
			{worker.Filter{Tags: map[string]string{"team": "mail", "env": "test"}}, []string{y.ID}},
			{worker.Filter{Tags: map[string]string{"team": "mail"}, State: fsm.WorkerRunning}, []string{z.ID}},
			{worker.Filter{Runtime: worker.RuntimeExec}, nil},
			{worker.Filter{Runtime: worker.RuntimeFunc, Tags: map[string]string{"env": "no"}}, nil},
		} {
			var got []string
			for s := range b.List(tt.f) {
				got = append(got, s.ID)
			}
			slices.Sort(tt.want)
			if !slices.Equal(got, tt.want) {
				t.Errorf("%+v lists %q, want %q", tt.f, got, tt.want)
			}
		}
	}},
	{"105_an_event_for_each_transition", func(t *testing.T, w *world) {
		a, b, _ := w.three(w.stateful)
		id := w.in(fsm.WorkerFailed, a)
		must := func(_ uint64, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(b.Reload(t.Context(), id, worker.Source{Text: "hangs"}))
		must(b.Start(t.Context(), id))
		must(b.Stop(t.Context(), id))
		must(0, b.Delete(t.Context(), id, worker.By("anna")))
		w.wantEvents(id, "created", "loaded", "started", "failed", "reloading", "start_requested", "start_withdrawn", "deleted")
		events, _ := w.View().Events(fsm.EventID{})
		for e := range events {
			switch {
			case e.Key != fsm.WorkerKey(id):
			case e.Type == fsm.EventWorkerFailed:
				equal(t, *e.Worker.Error, fsm.WorkerError{Type: "exited", Message: "exit code 3"}, "error of the event")
				equal(t, e.Who.InstanceID, w.seen.of(id)[0].instance, "instance of the event")
			case e.Type == fsm.EventWorkerDeleted:
				equal(t, e.Note.By, "anna", "author of the event")
			}
		}
	}},
}

// Each fault of a configuration is named.
func TestNewCatalog_Faults(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		_, err := worker.NewCatalog(w.Join("a"), func(c *worker.Config) {
			c.Runtimes = []worker.Runtime{w.script(nil)("a"), w.script(nil)("a"), nil, &other{}}
			c.MaxLoads, c.LoadTries, c.LoadTimeout = -1, -2, -time.Second
		})
		wantErr(t, err, fsm.ErrInvalidArgument)
		for _, part := range []string{`"func" once more`, "Runtimes[2] is nil", "Artifacts is nil", "MaxLoads is -1", "LoadTries is -2", "LoadTimeout is -1s"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("error %v does not say %s", err, part)
			}
		}
		_, err = worker.NewCatalog(nil)
		wantErr(t, err, fsm.ErrInvalidArgument)
	})
}

// other is a runtime that needs code.
type other struct{}

func (*other) Name() string            { return "other" }
func (*other) Provides() []string      { return []string{"other"} }
func (*other) Check(worker.Spec) error { return nil }
func (*other) Load(context.Context, worker.Program) (worker.Unit, error) {
	return nil, errors.New("not here")
}
