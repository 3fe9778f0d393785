package fsm_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/fsm"
)

// newWorkerLog returns a log of a cluster that knows workers; entry 2 says so.
func newWorkerLog(t testing.TB) *logbook {
	l := newLogbook(t)
	l.done(&fsm.SetVersion{Version: 3})
	return l
}

// workerID makes a valid ID of a short name: w, the name, and a's.
func workerID(name string) string {
	return "w" + name + strings.Repeat("a", 26-len(name))
}

// create creates a worker of the runtime exec with that short name.
func (l *logbook) create(name string, start bool) {
	l.t.Helper()
	l.done(&fsm.CreateWorker{WorkerId: workerID(name), Name: name, Runtime: "exec", Source: "./" + name, Start: start})
}

// worker returns the worker of that short name.
func (l *logbook) worker(name string) *fsm.Worker {
	l.t.Helper()
	w, ok := l.state.View().Worker(workerID(name))
	if !ok {
		l.t.Fatalf("no worker %s", name)
	}
	return w
}

// finish tells that the present attempt went well, or failed.
func (l *logbook) finish(name string, ok bool) {
	l.t.Helper()
	op := &fsm.FinishLoad{WorkerId: workerID(name), Attempt: l.worker(name).Attempt, Ok: ok, Tries: 1}
	if !ok {
		op.ErrorType, op.Message = "source_not_found", "no file "+name
	}
	l.done(op)
}

// loaded is the attempt by which the code of a worker was loaded, 1 if none was.
func (l *logbook) loaded(name string) uint64 { return max(1, l.worker(name).Loaded) }

// runner opens the session of a node that provides these runtimes.
func (l *logbook) runner(id string, runtimes ...string) {
	l.t.Helper()
	l.open(id)
	l.done(&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: id, Runtimes: runtimes, Embedded: true})
}

// workerLine describes a worker.
func workerLine(w *fsm.Worker) string {
	s := fmt.Sprintf("%s etag=%d attempt=%d", w.State, w.Etag, w.Attempt)
	if w.StartRequested {
		s += " start"
	}
	if w.KeepsRunning {
		s += " keeps"
	}
	if w.Current != nil {
		s += " current=" + w.Current.Text
	}
	if w.Next != nil {
		s += " next=" + w.Next.Text
	}
	if w.Error != nil {
		s += fmt.Sprintf(" error=%s(%s)", w.Error.Type, w.Error.Message)
	}
	return s
}

// is fails if the worker is not as the line says.
func (l *logbook) is(name, want string) {
	l.t.Helper()
	if got := workerLine(l.worker(name)); got != want {
		l.t.Errorf("worker %s\ngot  %s\nwant %s", name, got, want)
	}
}

// wanted returns the workloads of the group of the workers, by their names.
func (l *logbook) wanted() (names []string) {
	l.t.Helper()
	g, ok := l.state.View().Group(fsm.WorkersGroup)
	if !ok {
		return nil
	}
	for w := range g.Workloads("") {
		names = append(names, w.DisplayName)
	}
	if len(names) != g.WantedCount() {
		l.t.Errorf("%d are wanted, count %d", len(names), g.WantedCount())
	}
	return names
}

// token returns that of the present grant of key, of none another.
func (l *logbook) token(key string) uint64 {
	if lease, ok := l.state.View().Lease(key); ok {
		return lease.Token
	}
	return token(999)
}

// drives has a session take the lease under which a worker is loaded.
func (l *logbook) drives(name, session string) uint64 {
	l.t.Helper()
	return l.done(&fsm.Acquire{Key: fsm.LoadKey(workerID(name)), SessionId: session}).Token
}

// runs has the instance of a session granted a worker, by a plan of its own, and
// returns the token.
func (l *logbook) runs(name, session string) uint64 {
	l.t.Helper()
	plan := l.done(&fsm.Acquire{Key: fsm.PlannerKey(fsm.WorkersGroup), SessionId: session}).Token
	g, _ := l.state.View().Group(fsm.WorkersGroup)
	l.done(&fsm.PlanGroup{
		Group: g.Name, Inputs: g.Inputs, PlannerToken: plan, Instances: []string{"i-" + session},
		Assignments: []*fsm.Assignment{{Workload: workerID(name)}},
	})
	lease, ok := l.state.View().Lease(fsm.WorkerKey(workerID(name)))
	if !ok || lease.Who.InstanceID != "i-"+session {
		l.t.Fatalf("worker %s was not granted to %s", name, session)
	}
	return lease.Token
}

// parseWorkerOp reads the verbs of workers, which are named by their short names.
func parseWorkerOp(w words, verb string) fsm.Op {
	p := w.pairs
	id, etag := workerID(p["w"]), w.number("etag", 0)
	switch verb {
	case "create":
		return &fsm.CreateWorker{WorkerId: id, Name: p["w"], Runtime: p["runtime"], Source: p["source"], Start: w.flags["start"], By: p["by"]}
	case "start":
		return &fsm.StartWorker{WorkerId: id, Etag: etag, By: p["by"]}
	case "stop":
		return &fsm.StopWorker{WorkerId: id, Etag: etag, By: p["by"]}
	case "reload":
		return &fsm.ReloadWorker{WorkerId: id, Source: p["source"], Etag: etag, By: p["by"]}
	case "delete":
		return &fsm.DeleteWorker{WorkerId: id, Etag: etag, By: p["by"]}
	case "begin":
		return &fsm.BeginLoad{WorkerId: id, Token: w.token()}
	case "loaded":
		return &fsm.FinishLoad{WorkerId: id, Attempt: w.number("attempt", 0), Ok: p["error"] == "", Tries: uint32(w.number("tries", 1)), ErrorType: p["error"]}
	case "ended":
		return &fsm.FinishRun{WorkerId: id, Token: w.token(), Attempt: w.number("attempt", 1), Ok: p["error"] == "", ErrorType: p["error"]}
	}
	w.l.t.Fatalf("unknown verb %q", verb)
	return nil
}

func showWorkers(v *fsm.View, out *strings.Builder) {
	for w := range v.Workers("") {
		fmt.Fprintf(out, "    worker %s %s\n", w.Name, workerLine(w))
	}
}

// checkWorkers fails if what a view says of workers contradicts itself, or the
// group of the workers.
func checkWorkers(t testing.TB, v *fsm.View) {
	t.Helper()
	g, grouped := v.Group(fsm.WorkersGroup)
	wanted, n, last := 0, 0, ""
	var loading []string
	for w := range v.Workers("") {
		if w.ID <= last {
			t.Errorf("worker %q after %q", w.ID, last)
		}
		last = w.ID
		n++
		if !grouped {
			t.Errorf("worker %s without a group", w.ID)
			continue
		}
		if w.State == fsm.WorkerLoading {
			loading = append(loading, w.ID)
		}
		spec, ok := g.Wanted(w.ID)
		if ok != w.Wanted() || ok && (spec.DisplayName != w.Name || !slices.Equal(spec.Labels, w.Tags)) {
			t.Errorf("worker %s is %s, the group wants %v", w.ID, workerLine(w), spec)
		}
		if ok {
			wanted++
			for m, s := range g.Members() {
				if m.Declares(spec) != m.Provides(w.Needs(w.Current)) {
					t.Errorf("worker %s: %s declares %v", w.ID, s.InstanceID, m.Declares(spec))
				}
			}
		}
		if w.Wanted() && w.Current == nil || w.State == fsm.WorkerLoading && w.Next == nil || w.History[len(w.History)-1].Text != cmp.Or(w.Next, w.Current).Text {
			t.Errorf("worker %s: %s, history %v", w.ID, workerLine(w), w.History)
		}
	}
	if n != v.WorkerCount() || grouped && v.Cluster().Version >= 3 && wanted != g.WantedCount() {
		t.Errorf("%d workers, count %d; %d are wanted, the group wants %d", n, v.WorkerCount(), wanted, g.WantedCount())
	}
	var index []string
	for w := range v.LoadingWorkers() {
		index = append(index, w.ID)
		if now, _ := v.Worker(w.ID); now != w {
			t.Errorf("worker %s is another one among those that load", w.ID)
		}
	}
	equalLines(t, "loading", index, loading)
}
