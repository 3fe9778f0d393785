package runtimetest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord/worker"
)

// Run runs the suite.
func Run(t *testing.T, k Kit) {
	for _, c := range []struct {
		name string
		test func(*bench)
	}{
		{"Names", names},
		{"Output", output},
		{"Given", given},
		{"Failure", failure},
		{"Finish", finish},
		{"FinishAtOnce", finishAtOnce},
		{"Cancel", cancel},
		{"CancelAfterDrain", cancelAfterDrain},
		{"CancelBefore", cancelBefore},
		{"Again", again},
		{"AfterFailure", afterFailure},
		{"SideBySide", sideBySide},
		{"LoadAgain", loadAgain},
		{"LoadCancelled", loadCancelled},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(&bench{t, k, k.Runtime(t), NewLog(t)}) })
	}
	for name, refused := range k.Refused {
		t.Run("Refused/"+name, func(t *testing.T) { refuse(&bench{t, k, k.Runtime(t), NewLog(t)}, refused) })
	}
}

// bench is one test.
type bench struct {
	*testing.T
	Kit
	runtime worker.Runtime
	log     *Log
}

// job is a worker that was loaded.
type job struct {
	b    *bench
	name string
	p    worker.Program
	unit worker.Unit
}

func (b *bench) program(name string, does Behaviour) worker.Program {
	b.Helper()
	p := b.Program(b.T, does)
	p.WorkerID, p.Name, p.Log = "w-"+name, name, b.log.Logger(name)
	p.Env = map[string]string{"GREETING": "good day = to you"}
	p.Config = json.RawMessage(`{"a":[1,"two"]}`)
	if does == Tell {
		p.Args = append(p.Args, "one", "two words", "")
	}
	return p
}

func (b *bench) load(name string, does Behaviour) *job {
	b.Helper()
	j := &job{b: b, name: name, p: b.program(name, does)}
	spec := worker.Spec{Name: j.name, Runtime: b.runtime.Name(), Source: j.p.Source, Args: j.p.Args, Env: j.p.Env, Config: j.p.Config}
	if err := b.runtime.Check(spec); err != nil {
		b.Fatalf("Check: %v", err)
	}
	unit, err := b.runtime.Load(b.Context(), j.p)
	if err != nil || unit == nil {
		b.Fatalf("Load: unit %v, error %v", unit, err)
	}
	j.unit = unit
	b.Cleanup(j.unload)
	return j
}

// unload frees the worker, once.
func (j *job) unload() {
	if j.unit == nil {
		return
	}
	if err := j.unit.Unload(); err != nil {
		j.b.Errorf("Unload: %v", err)
	}
	j.unit = nil
}

// running is a run under way.
type running struct {
	*job
	drain  chan struct{}
	cancel context.CancelCauseFunc
	done   chan error
}

var errEnough = errors.New("enough")

// start begins a run.
func (j *job) start() *running {
	r := &running{job: j, drain: make(chan struct{}), done: make(chan error, 1)}
	r.run(context.Background())
	return r
}

func (r *running) run(ctx context.Context) {
	ctx, r.cancel = context.WithCancelCause(ctx)
	go func() {
		r.done <- r.unit.Run(ctx, worker.Run{
			WorkerID: r.p.WorkerID, Name: r.p.Name, Key: "workers/" + r.p.WorkerID, Token: 4711, Number: 1,
			Args: r.p.Args, Env: r.p.Env, Config: r.p.Config, Log: r.p.Log, Drain: r.drain,
		})
	}()
}

// ended waits for the end of a run.
func (r *running) ended() error {
	r.b.Helper()
	defer r.cancel(nil)
	select {
	case err := <-r.done:
		return err
	case <-time.After(Patience):
		r.b.Fatalf("the run of %s does not return; it has written %q", r.name, r.b.log.Lines(r.name))
		return nil
	}
}

// goesOn fails the test if the run has ended.
func (r *running) goesOn() {
	r.b.Helper()
	select {
	case err := <-r.done:
		r.b.Fatalf("the run of %s has ended: %v", r.name, err)
	default:
	}
}

// wrote fails the test unless the log has just these lines of the worker, in that order, beside what the runtime says.
func (b *bench) wrote(name string, want ...string) {
	b.Helper()
	got := b.log.Lines(name)
	var found []string
	for _, line := range got {
		if slices.Contains(want, line) {
			found = append(found, line)
		}
	}
	if !slices.Equal(found, want) {
		b.Errorf("the log of %s has %q, want %q", name, got, want)
	}
}

func names(b *bench) {
	name := b.runtime.Name()
	if name == "" {
		b.Error("the runtime has no name")
	}
	provides := b.runtime.Provides()
	if len(provides) == 0 {
		b.Error("the runtime provides nothing")
	}
	for _, p := range provides {
		if p != name && !strings.HasPrefix(p, name+":") {
			b.Errorf("the runtime %q provides %q", name, p)
		}
	}
	if !slices.Equal(provides, b.runtime.Provides()) {
		b.Error("what the runtime provides changes")
	}
}

// output: all that a worker writes is in the log when its run has returned.
func output(b *bench) {
	if err := b.load("talker", Print).start().ended(); err != nil {
		b.Error(err)
	}
	b.wrote("talker", "hello", "bye")
}

// given: a worker gets what its record has, and what its lease is.
func given(b *bench) {
	if err := b.load("teller", Tell).start().ended(); err != nil {
		b.Error(err)
	}
	b.wrote("teller", "arg one", "arg two words", "arg ", "greeting good day = to you", `config {"a":[1,"two"]}`, "key workers/w-teller", "token 4711")
}

// failure: an error says what kind it is.
func failure(b *bench) {
	err := b.load("loser", Fail).start().ended()
	if !errors.Is(err, &worker.Error{Type: b.FailType}) {
		b.Errorf("error %v, want one of type %s", err, b.FailType)
	}
	b.wrote("loser", "failing")
}

func finish(b *bench) {
	r := b.load("finisher", Finish).start()
	b.log.Await("finisher", "ready")
	r.goesOn()
	close(r.drain)
	if err := r.ended(); err != nil {
		b.Error(err)
	}
	b.wrote("finisher", "ready", "finishing")
}

// finishAtOnce: a run that begins when it is to finish already does no harm.
func finishAtOnce(b *bench) {
	j := b.load("finisher", Finish)
	r := &running{job: j, drain: make(chan struct{}), done: make(chan error, 1)}
	close(r.drain)
	r.run(context.Background())
	_ = r.ended() // it may not even have begun
}

// cancel: the end of the context ends the run, whatever the worker does.
func cancel(b *bench) {
	r := b.load("stayer", Stay).start()
	b.log.Await("stayer", "ready")
	r.goesOn()
	r.cancel(errEnough)
	_ = r.ended()
}

func cancelAfterDrain(b *bench) {
	r := b.load("stayer", Stay).start()
	b.log.Await("stayer", "ready")
	close(r.drain)
	r.goesOn()
	r.cancel(errEnough)
	_ = r.ended()
}

func cancelBefore(b *bench) {
	j := b.load("stayer", Stay)
	r := &running{job: j, drain: make(chan struct{}), done: make(chan error, 1)}
	ctx, end := context.WithCancelCause(context.Background())
	end(errEnough)
	r.run(ctx)
	_ = r.ended()
}

// again: one unit runs as often as it is asked to, each time from its beginning.
func again(b *bench) {
	j := b.load("talker", Print)
	for range 3 {
		if err := j.start().ended(); err != nil {
			b.Error(err)
		}
	}
	b.wrote("talker", "hello", "bye", "hello", "bye", "hello", "bye")
}

// afterFailure: a run that failed, or was ended, does the next no harm.
func afterFailure(b *bench) {
	j := b.load("loser", Fail)
	for range 2 {
		if err := j.start().ended(); !errors.Is(err, &worker.Error{Type: b.FailType}) {
			b.Errorf("error %v, want one of type %s", err, b.FailType)
		}
	}
	stay := b.load("stayer", Stay)
	for range 2 {
		r := stay.start()
		b.log.Await("stayer", "ready")
		r.cancel(errEnough)
		_ = r.ended()
	}
}

// sideBySide: workers of one code know nothing of each other.
func sideBySide(b *bench) {
	one, other := b.load("one", Finish), b.load("other", Finish)
	r, s := one.start(), other.start()
	b.log.Await("one", "ready")
	b.log.Await("other", "ready")
	r.cancel(errEnough)
	_ = r.ended()
	one.unload()
	s.goesOn()
	close(s.drain)
	if err := s.ended(); err != nil {
		b.Error(err)
	}
	b.wrote("other", "ready", "finishing")
}

// loadAgain: what was unloaded can be loaded anew, and while it is loaded once more.
func loadAgain(b *bench) {
	for range 2 {
		first := b.load("talker", Print)
		second := b.load("talker", Print)
		first.unload()
		if err := second.start().ended(); err != nil {
			b.Error(err)
		}
		second.unload()
	}
	b.wrote("talker", "hello", "bye", "hello", "bye")
}

// loadCancelled: a load whose time is over returns, with or without a unit.
func loadCancelled(b *bench) {
	ctx, end := context.WithCancelCause(b.Context())
	end(errEnough)
	done := make(chan error, 1)
	go func() {
		unit, err := b.runtime.Load(ctx, b.program("talker", Print))
		if err == nil {
			err = unit.Unload()
		} else if unit != nil {
			b.Error("a unit and an error")
		}
		done <- err
	}()
	select {
	case <-done:
	case <-time.After(Patience):
		b.Fatal("Load does not return")
	}
}

func refuse(b *bench, refused Refusal) {
	p := refused.Program(b.T)
	p.WorkerID, p.Name, p.Log = "w-bad", "bad", b.log.Logger("bad")
	for range 2 {
		unit, err := b.runtime.Load(b.Context(), p)
		if err == nil {
			b.Cleanup(func() { _ = unit.Unload() })
			b.Fatal("it was loaded")
		}
		if !errors.Is(err, &worker.Error{Type: refused.Type}) || !strings.Contains(err.Error(), refused.Says) {
			b.Errorf("error %v, want one of type %s that says %q", err, refused.Type, refused.Says)
		}
	}
	// A fault of one is none of the others'.
	if err := b.load("talker", Print).start().ended(); err != nil {
		b.Error(err)
	}
}
