package fsm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/miwnode/miwnode/fsm"
)

// A worker runs only where its runtime is; of functions, where that function is.
func TestWorkerGroup_Runtimes(t *testing.T) {
	l := newWorkerLog(t)
	l.runner("a", "exec", "func:mail")
	l.runner("b", "func:mail", "func:report", "wasm")
	for name, op := range map[string]*fsm.CreateWorker{
		"e": {Runtime: "exec", Source: "./e"}, "w": {Runtime: "wasm", Source: "./w"},
		"m": {Runtime: "func", Source: "mail"}, "r": {Runtime: "func", Source: "report"}, "n": {Runtime: "func", Source: "nowhere"},
	} {
		op.WorkerId, op.Name, op.Start = workerID(name), name, true
		l.done(op) // also where nobody has its runtime: somebody may come
		l.finish(name, true)
	}
	g, _ := l.state.View().Group(fsm.WorkersGroup)
	for name, want := range map[string]string{"e": "a", "w": "b", "m": "ab", "r": "b", "n": ""} {
		got := ""
		for _, s := range []string{"a", "b"} {
			if g.CanRun("i-"+s, workerID(name)) {
				got += s
			}
		}
		if got != want {
			t.Errorf("%s can run on %q, want %q", name, got, want)
		}
	}
	l.refused(&fsm.MoveWorkload{Group: g.Name, Workload: workerID("e"), ToInstance: "i-b"}, fsm.ErrWrongState)
	l.done(&fsm.MoveWorkload{Group: g.Name, Workload: workerID("e"), ToInstance: "i-a"})
	l.done(&fsm.SetPin{Group: g.Name, Workload: workerID("m"), InstanceId: "i-b"})
	l.refused(&fsm.SetPin{Group: g.Name, Workload: workerID("r"), InstanceId: "i-a"}, fsm.ErrWrongState)
	if m, _ := g.Member("i-b"); !m.Provides("wasm") || m.Provides("exec") {
		t.Errorf("b provides %v", m.Runtimes)
	}
	// Who declares less is asked to stop what it has no runtime for any more.
	l.done(&fsm.JoinGroup{Group: g.Name, SessionId: "a", Runtimes: []string{"func:mail"}, Embedded: true})
	equalLines(t, "events", l.events(), []string{
		`group.updated workers instance=i-a node=n-a reason="declared"`,
		"lease.transferring " + fsm.WorkerKey(workerID("e")) + ` token=1 instance=i-a node=n-a by=group reason="undeclared"`,
	})
}

// A reload to another function may leave the owner without it: it is asked to
// stop, and those who have it come into question.
func TestWorkerGroup_ReloadToAnotherFunction(t *testing.T) {
	l := newWorkerLog(t)
	l.runner("a", "func:one", "func:two")
	l.runner("b", "func:three", "func:two")
	l.done(&fsm.CreateWorker{WorkerId: workerID("x"), Name: "x", Runtime: "func", Source: "one", Start: true})
	l.finish("x", true)
	l.runs("x", "a")
	inputs := func() uint64 {
		g, _ := l.state.View().Group(fsm.WorkersGroup)
		return g.Inputs
	}
	before := inputs()
	l.done(&fsm.ReloadWorker{WorkerId: workerID("x"), Source: "two"})
	l.finish("x", true)
	if lease, _ := l.state.View().Lease(fsm.WorkerKey(workerID("x"))); lease.State != fsm.Held || inputs() != before+1 {
		t.Errorf("lease %v, inputs %d after %d", lease.State, inputs(), before)
	}
	l.done(&fsm.ReloadWorker{WorkerId: workerID("x"), Source: "three"})
	l.finish("x", true)
	equalLines(t, "events", l.events(), []string{
		"worker.loaded " + fsm.WorkerKey(workerID("x")) + " func x running",
		"lease.transferring " + fsm.WorkerKey(workerID("x")) + ` token=2 instance=i-a node=n-a by=group reason="undeclared"`,
	})
	g, _ := l.state.View().Group(fsm.WorkersGroup)
	if g.CanRun("i-a", workerID("x")) || !g.CanRun("i-b", workerID("x")) {
		t.Error("a can run it, or b can't")
	}
}

// The inputs of a plan move with what it rests on, and with nothing else.
func TestWorkerGroup_Inputs(t *testing.T) {
	l := newWorkerLog(t)
	id := workerID("x")
	l.create("x", false)
	inputs := func() uint64 {
		g, _ := l.state.View().Group(fsm.WorkersGroup)
		return g.Inputs
	}
	step := func(what string, moves uint64, op fsm.Op) {
		t.Helper()
		before := inputs()
		l.done(op)
		if got := inputs() - before; got != moves {
			t.Errorf("%s: inputs moved by %d, want %d", what, got, moves)
		}
	}
	if n := inputs(); n != 1 {
		t.Errorf("inputs %d of a new group", n)
	}
	step("another", 0, &fsm.CreateWorker{WorkerId: workerID("y"), Name: "y", Runtime: "exec", Source: "./y"})
	step("tags while it loads", 0, &fsm.SetWorkerTags{WorkerId: id, Tags: fsm.LabelsOf(map[string]string{"a": "1"})})
	step("loaded", 0, &fsm.FinishLoad{WorkerId: id, Attempt: 1, Ok: true})
	step("start", 1, &fsm.StartWorker{WorkerId: id})
	step("tags while it runs", 1, &fsm.SetWorkerTags{WorkerId: id, Tags: fsm.LabelsOf(map[string]string{"a": "2"})})
	step("reload", 0, &fsm.ReloadWorker{WorkerId: id})
	step("reloaded", 0, &fsm.FinishLoad{WorkerId: id, Attempt: 2, Ok: true})
	step("stop", 1, &fsm.StopWorker{WorkerId: id})
	step("delete", 0, &fsm.DeleteWorker{WorkerId: id})
}

// A run that failed somewhere is forgotten when the worker is started anew.
func TestWorkerGroup_FailureNotes(t *testing.T) {
	l := newWorkerLog(t)
	l.runner("a", "exec")
	id := workerID("x")
	l.create("x", true)
	l.finish("x", true)
	row := func() string {
		g, _ := l.state.View().Group(fsm.WorkersGroup)
		w, ok := g.Workload(id)
		if !ok {
			return "unwanted"
		}
		return workloadLine(&w)
	}
	l.done(&fsm.Release{Key: fsm.WorkerKey(id), SessionId: "a", Token: l.runs("x", "a"), Failure: "exited with 1"})
	if got := row(); got != "failed failure=i-a*1(exited with 1) last=i-a,released" {
		t.Errorf("after the failure: %s", got)
	}
	l.done(&fsm.StopWorker{WorkerId: id})
	l.done(&fsm.StartWorker{WorkerId: id})
	if got := row(); got != "inactive last=i-a,released" {
		t.Errorf("after a start: %s", got)
	}
	l.done(&fsm.Release{Key: fsm.WorkerKey(id), SessionId: "a", Token: l.runs("x", "a"), Failure: "exited with 1"})
	l.done(&fsm.ReloadWorker{WorkerId: id})
	l.finish("x", true)
	if got := row(); got != "inactive last=i-a,released" {
		t.Errorf("after a reload: %s", got)
	}
}

// A successor that prepares doesn't get a worker that was stopped meanwhile, and
// a paused one is granted to nobody.
func TestWorkerGroup_StopWhileItMoves(t *testing.T) {
	l := newWorkerLog(t)
	l.runner("a", "exec")
	l.open("b")
	l.done(&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: "b", Runtimes: []string{"exec"}, Embedded: true, Prepares: true})
	id := workerID("x")
	l.create("x", true)
	l.finish("x", true)
	got := l.runs("x", "a")
	move := &fsm.MoveWorkload{Group: fsm.WorkersGroup, Workload: id, ToInstance: "i-b", By: "ann"}
	l.done(move)
	l.done(&fsm.StopWorker{WorkerId: id})
	equalLines(t, "events", l.events()[1:], []string{"lease.transferring " + fsm.WorkerKey(id) + ` token=2 instance=i-a node=n-a by=group reason="unwanted"`})
	l.refused(&fsm.Prepared{Group: fsm.WorkersGroup, Workload: id, Token: got, SessionId: "b", Ok: true}, fsm.ErrWrongState)
	l.done(&fsm.Release{Key: fsm.WorkerKey(id), SessionId: "a", Token: got})
	l.refused(move, fsm.ErrNotFound)
	l.done(&fsm.StartWorker{WorkerId: id})
	l.done(&fsm.SetPause{Group: fsm.WorkersGroup, Workload: id, Paused: true})
	l.refused(move, fsm.ErrWrongState)
	l.done(&fsm.SetPause{Group: fsm.WorkersGroup, Workload: id})
	l.done(move)
}

// The name is the workers' own: nobody else puts the group, joins it or deletes it.
func TestWorkerGroup_Reserved(t *testing.T) {
	l := newWorkerLog(t)
	l.open("a")
	for _, op := range []fsm.Op{
		&fsm.PutGroup{Group: fsm.WorkersGroup},
		&fsm.DeleteGroup{Group: fsm.WorkersGroup},
		&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: "a", All: true, Settings: &fsm.GroupSettings{}},
		&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: "a", Keys: []string{"x"}, Settings: &fsm.GroupSettings{}},
		&fsm.JoinGroup{Group: "g", SessionId: "a", Runtimes: []string{"exec"}, Settings: &fsm.GroupSettings{}},
	} {
		l.refused(op, fsm.ErrInvalidArgument)
	}
	// With runtimes it needs nothing to be put first, and may bring settings.
	l.done(&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: "a", Runtimes: []string{"exec"}})
	g, _ := l.state.View().Group(fsm.WorkersGroup)
	if g.Settings.Assigner != "sticky" || g.MemberCount() != 1 {
		t.Errorf("settings %+v, %d members", g.Settings, g.MemberCount())
	}
	l.done(&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: "a", Runtimes: []string{"exec"}, Settings: &fsm.GroupSettings{Assigner: "balanced", Rebalance: "graceful"}})
	g, _ = l.state.View().Group(fsm.WorkersGroup)
	if g.Settings.Assigner != "balanced" || g.Settings.Rebalance != "graceful" {
		t.Errorf("settings %+v", g.Settings)
	}
	l.same(&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: "a", Runtimes: []string{"exec"}})
}

// A group that had the name before it was reserved becomes the workers'.
func TestWorkerGroup_TakenOver(t *testing.T) {
	l := newGroupLog(t)
	for _, id := range []string{"a", "b"} {
		l.open(id)
	}
	l.done(&fsm.PutGroup{Group: fsm.WorkersGroup, CatalogHash: l.catalog("x", "y"), Settings: &fsm.GroupSettings{Assigner: "balanced"}, By: "ann"})
	l.done(&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: "a", All: true, Embedded: true})
	l.done(&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: "b", CatalogHash: l.catalog("y", "z"), Prepares: true})
	plan := l.done(&fsm.Acquire{Key: fsm.PlannerKey(fsm.WorkersGroup), SessionId: "a"}).Token
	place := func(workload, to string) {
		t.Helper()
		g, _ := l.state.View().Group(fsm.WorkersGroup)
		l.done(&fsm.PlanGroup{Group: g.Name, Inputs: g.Inputs, PlannerToken: plan, Instances: []string{to}, Assignments: []*fsm.Assignment{{Workload: workload}}})
	}
	place("x", "i-a")
	place("y", "i-a")
	place("z", "i-b")
	l.done(&fsm.MoveWorkload{Group: fsm.WorkersGroup, Workload: "y", ToInstance: "i-b"})
	l.done(&fsm.SetPin{Group: fsm.WorkersGroup, Workload: "x", InstanceId: "i-a"})
	l.done(&fsm.SetPause{Group: fsm.WorkersGroup, Workload: "z", Paused: true, ExpiresInMs: 60_000})
	l.done(&fsm.SetVersion{Version: 3})
	equalLines(t, "events", l.events(), []string{
		`group.updated workers reason="reserved"`,
		`lease.transferring workers/x token=2 instance=i-a node=n-a by=group reason="unwanted"`,
		`group.updated workers instance=i-a node=n-a reason="left"`,
		`lease.transferring workers/y token=3 instance=i-a node=n-a by=group reason="left"`,
		`group.updated workers instance=i-b node=n-b reason="left"`,
		"version.raised number=3",
	})
	l.state = reload(t, l.state)
	checkInvariants(t, l.state.View())
	g, _ := l.state.View().Group(fsm.WorkersGroup)
	if g.Put || g.CatalogHash != "" || g.Settings.Assigner != "sticky" || g.MemberCount() != 0 || g.WantedCount() != 0 || g.Embedded() {
		t.Errorf("group %+v, %d members, %d wanted", *g.GroupHead, g.MemberCount(), g.WantedCount())
	}
	for m := range l.state.View().PendingMarks() {
		t.Errorf("mark of %s", m.Workload)
	}
	// What is still being stopped is given back without a trace, and workers come.
	for _, lease := range []struct {
		key, session string
		token        uint64
	}{{"workers/x", "a", 2}, {"workers/y", "a", 3}, {"workers/z", "b", 4}} {
		l.done(&fsm.Release{Key: lease.key, SessionId: lease.session, Token: token(lease.token)})
	}
	l.done(&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: "a", Runtimes: []string{"exec"}, Embedded: true})
	l.create("x", true)
	l.finish("x", true)
	l.runs("x", "a")
	equalLines(t, "wanted", l.wanted(), []string{"x"})
	l.state = reload(t, l.state)
}

// Where the table of groups is full, the workers' makes room for none while
// there are workers, and takes the place of an unused one.
func TestWorkerGroup_FullTable(t *testing.T) {
	l := newWorkerLog(t)
	hash := l.catalog("w")
	for i := range fsm.MaxGroups {
		l.done(&fsm.PutGroup{Group: fmt.Sprintf("g%04d", i), CatalogHash: hash})
	}
	l.refused(&fsm.CreateWorker{WorkerId: workerID("x"), Name: "x", Runtime: "exec", Source: "./x"}, fsm.ErrOverloaded)
	l.done(&fsm.PutGroup{Group: "g0000"}) // unused now
	l.create("x", false)
	l.finish("x", true)
	l.refused(&fsm.PutGroup{Group: "more", CatalogHash: hash}, fsm.ErrOverloaded)
	l.done(&fsm.StartWorker{WorkerId: workerID("x")})
	l.done(&fsm.DeleteWorker{WorkerId: workerID("x")})
	l.done(&fsm.PutGroup{Group: "more", CatalogHash: hash})
	if _, ok := l.state.View().Group(fsm.WorkersGroup); ok {
		t.Error("the group is there, and nobody uses it")
	}
}

// A View keeps its workers and what its group wants while the state goes on.
func TestWorkerGroup_View(t *testing.T) {
	l := newWorkerLog(t)
	for i := range 50 {
		l.create(string(rune('a'+i%25))+string(rune('a'+i/25)), true)
	}
	old := l.state.View()
	for w := range old.Workers("") {
		l.done(&fsm.FinishLoad{WorkerId: w.ID, Attempt: 1, Ok: true})
	}
	mid := l.state.View()
	for w := range mid.Workers("") {
		l.done(&fsm.DeleteWorker{WorkerId: w.ID})
	}
	count := func(v *fsm.View) string {
		g, _ := v.Group(fsm.WorkersGroup)
		loading, listed, wanted := 0, 0, 0
		for range v.LoadingWorkers() {
			loading++
		}
		for range v.Workers("") {
			listed++
		}
		for range g.Workloads("") {
			wanted++
		}
		return fmt.Sprintf("%d %d loading, %d wanted %d", v.WorkerCount(), listed, loading, wanted*100+g.WantedCount())
	}
	for _, c := range []struct {
		v    *fsm.View
		want string
	}{{old, "50 50 loading, 50 wanted 0"}, {mid, "50 50 loading, 0 wanted 5050"}, {l.state.View(), "0 0 loading, 0 wanted 0"}} {
		if got := count(c.v); got != c.want {
			t.Errorf("revision %d: got %s, want %s", c.v.Revision(), got, c.want)
		}
	}
	// Pages: after one ID, and after one that is gone.
	var after []string
	for w := range mid.Workers(workerID("xb")) {
		after = append(after, w.Name)
	}
	equalLines(t, "after xb", after, []string{"ya", "yb"})
	g, _ := mid.Group(fsm.WorkersGroup)
	after = nil
	for w := range g.Workloads(workerID("xc")) {
		after = append(after, w.DisplayName)
	}
	equalLines(t, "after xc", after, []string{"ya", "yb"})
}

// Who watches a worker, or all, is woken by changes of the record, and the
// planner by changes of what is wanted.
func TestWorkerGroup_Topics(t *testing.T) {
	l := &machineLog{t: t, m: fsm.NewMachine(fsm.MachineOptions{})}
	l.apply(&fsm.InitCluster{ClusterId: "c1", Version: 3})
	watched := map[string]string{
		"x": fsm.WorkerTopic(workerID("x")), "y": fsm.WorkerTopic(workerID("y")), "all": fsm.WorkersTopic, "group": fsm.GroupTopic(fsm.WorkersGroup),
	}
	names := []string{"x", "y", "all", "group"}
	wakes := map[string]<-chan struct{}{}
	for _, name := range names {
		ch, stop := l.m.Watch(watched[name])
		defer stop()
		wakes[name] = ch
	}
	id := workerID("x")
	for _, c := range []struct {
		op   fsm.Op
		want string
	}{
		{&fsm.CreateWorker{WorkerId: id, Name: "x", Runtime: "exec", Source: "./x"}, "x all group"},
		{&fsm.FinishLoad{WorkerId: id, Attempt: 1, Ok: true}, "x all"},
		{&fsm.StartWorker{WorkerId: id}, "x all group"},
		{&fsm.StartWorker{WorkerId: id}, ""},
		{&fsm.SetWorkerTags{WorkerId: workerID("y")}, ""},
		{&fsm.DeleteWorker{WorkerId: id}, "x all group"},
	} {
		l.index++
		l.m.Apply(&raft.Log{Index: l.index, Term: 1, Data: encode(t, &fsm.Proposal{Commands: []*fsm.Command{fsm.NewCommand(c.op)}})})
		var got []string
		for _, name := range names {
			if woken(wakes[name]) {
				got = append(got, name)
			}
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%T: woken %q, want %q", c.op, g, c.want)
		}
	}
}
