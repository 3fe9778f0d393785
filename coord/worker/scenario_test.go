package worker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// TestScenario holds faults of catalogs that users of such systems have reported.
func TestScenario(t *testing.T) {
	for _, r := range []row{
		{"B-67_what_can't_be_decoded_hinders_nobody", undecodable},
	} {
		t.Run(r.name, func(t *testing.T) { bubble(t, r.test) })
	}
}

// undecodable has workers among others whose code is damaged, of a newer format,
// or for a runtime that no instance has: they fail, and say why; all others run; and
// nobody is gone, whatever starts anew.
func undecodable(t *testing.T, w *world) {
	runtime := w.script(func(s *scripted) {
		s.names = []string{"f", "damaged", "newer"}
		s.load = func(_ context.Context, p worker.Program) error {
			switch p.Source {
			case "damaged":
				return worker.Errorf(worker.TypeInvalidModule, "decode: unexpected end")
			case "newer":
				return worker.Errorf(worker.TypeInvalidModule, "decode: version 9 is not known")
			}
			return nil
		}
	})
	a, b, c := w.three(runtime)
	want := make(map[string]string) // by worker: the type of its error, "" for none
	for i := range 20 {
		spec, fault := worker.Spec{Name: fmt.Sprint("worker ", i), Source: "f", Start: true}, ""
		switch i % 5 {
		case 0:
			spec.Source, fault = "damaged", worker.TypeInvalidModule
		case 1:
			spec.Source, fault = "newer", worker.TypeInvalidModule
		case 2:
			spec.Runtime, spec.Source, fault = worker.RuntimeWasm, "sha256:"+strings.Repeat("ab", 32), worker.TypeRuntimeMissing
		}
		want[a.create(spec).ID] = fault
	}
	settled := func() bool {
		for id, fault := range want {
			x := w.worker(id)
			switch {
			case fault == "" && w.seen.where(id) == "":
				return false
			case fault != "" && x.State != fsm.WorkerLoadFailed:
				return false
			}
		}
		return true
	}
	check := func(when string) {
		t.Helper()
		w.untilWithin(2*time.Minute, "all run but those that can't "+when, settled)
		equal(t, w.View().WorkerCount(), 20, "workers "+when)
		for id, fault := range want {
			x := w.worker(id)
			switch {
			case fault == "":
				equal(t, x.State, fsm.WorkerRunning, "state "+when)
			case x.Error == nil || x.Error.Type != fault || x.Error.Message == "":
				t.Errorf("%s %s: its error is %+v, want one of the type %s", x.Name, when, x.Error, fault)
			case w.seen.where(id) != "":
				t.Errorf("%s %s runs", x.Name, when)
			}
		}
	}
	check("at first")
	for _, m := range []*member{a, b, c} {
		m.kill()
	}
	var again *member
	for _, m := range []*member{a, b, c} {
		again = w.host(w.Restart(m.Instance, true), func(cfg *worker.Config) { cfg.Runtimes = []worker.Runtime{runtime(m.InstanceID())} })
	}
	check("after a restart of all")
	// Nothing is lost that a good source would not bring back.
	for id, fault := range want {
		if fault != worker.TypeInvalidModule {
			continue
		}
		if _, err := again.Reload(t.Context(), id, worker.Source{Text: "f"}); err != nil {
			t.Fatal(err)
		}
		want[id] = ""
	}
	check("with another source")
}
