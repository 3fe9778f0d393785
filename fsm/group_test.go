package fsm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/miwnode/miwnode/fsm"
)

func candidates(g *fsm.Group) (out []string) {
	for s := range g.Candidates() {
		out = append(out, s.InstanceID)
	}
	return out
}

// Who may plan: the embedded members; where all came over HTTP, any node; and
// nobody with an assigner that only a member could have.
func TestGroup_Candidates(t *testing.T) {
	l := newGroupLog(t)
	l.put("x")
	l.open("a")
	l.open("b")
	c := openClient("c")
	c.InstanceId = "py"
	l.done(c)
	equalLines(t, "without members", candidates(l.group()), nil)
	l.done(&fsm.JoinGroup{Group: "g", SessionId: "c", All: true})
	equalLines(t, "over HTTP", candidates(l.group()), []string{"i-a", "i-b"})
	plan := l.planner("b")
	l.plan(plan, "x=py")
	l.done(&fsm.PutGroup{Group: "g", CatalogHash: l.group().CatalogHash, Settings: &fsm.GroupSettings{Assigner: "custom"}})
	equalLines(t, "with a custom assigner", candidates(l.group()), nil)
	l.refused(l.planOp(plan, "x=py"), fsm.ErrWrongState)
	l.done(&fsm.JoinGroup{Group: "g", SessionId: "a", All: true, Embedded: true, Settings: &fsm.GroupSettings{}})
	equalLines(t, "embedded", candidates(l.group()), []string{"i-a"})
	if !l.group().Embedded() {
		t.Error("no member is embedded")
	}
	l.refused(l.planOp(plan, "x=i-a"), fsm.ErrWrongState)
	l.state = reload(t, l.state)
	l.refused(l.planOp(plan, "x=i-a"), fsm.ErrWrongState)
	l.done(&fsm.Release{Key: fsm.PlannerKey("g"), SessionId: "b", Token: plan})
	plan = l.planner("a")
	l.plan(plan, "x=i-a")
	// A planner that was revoked is none.
	l.done(&fsm.Revoke{Key: fsm.PlannerKey("g"), Token: plan})
	l.refused(l.planOp(plan, "x=i-a"), fsm.ErrStaleToken)
}

// What raises the inputs of a plan, and what doesn't.
func TestGroup_Inputs(t *testing.T) {
	join := func(change func(*fsm.JoinGroup)) fsm.Op {
		op := &fsm.JoinGroup{Group: "g", SessionId: "a", All: true, Embedded: true, Settings: &fsm.GroupSettings{}}
		change(op)
		return op
	}
	cases := []struct {
		name  string
		op    func(l *logbook) fsm.Op
		raise uint64
	}{
		{"joined again", func(*logbook) fsm.Op { return join(func(*fsm.JoinGroup) {}) }, 0},
		{"another capacity", func(*logbook) fsm.Op { return join(func(o *fsm.JoinGroup) { o.Capacity = 2 }) }, 1},
		{"prepares now", func(*logbook) fsm.Op { return join(func(o *fsm.JoinGroup) { o.Prepares = true }) }, 1},
		{"not embedded any more", func(*logbook) fsm.Op { return join(func(o *fsm.JoinGroup) { o.Embedded = false }) }, 1},
		{"another assigner of a group that was put", func(*logbook) fsm.Op {
			return join(func(o *fsm.JoinGroup) { o.Settings = &fsm.GroupSettings{Assigner: "primary"} })
		}, 0},
		{"put again", func(l *logbook) fsm.Op { return &fsm.PutGroup{Group: "g", CatalogHash: l.group().CatalogHash} }, 0},
		{"put with other settings", func(l *logbook) fsm.Op {
			return &fsm.PutGroup{Group: "g", CatalogHash: l.group().CatalogHash, Settings: &fsm.GroupSettings{MaxMoves: 3}}
		}, 1},
		{"put with another catalog", func(*logbook) fsm.Op { return &fsm.PutGroup{Group: "g"} }, 1},
		{"left", func(*logbook) fsm.Op { return &fsm.LeaveGroup{Group: "g", SessionId: "a"} }, 1},
		{"expired", func(*logbook) fsm.Op { return &fsm.ExpireSession{SessionId: "a", Term: 1} }, 1},
		{"drain of a member", func(*logbook) fsm.Op { return &fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkDrain} }, 1},
		{"cordon of a member", func(*logbook) fsm.Op { return &fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkCordon} }, 1},
		{"uncordon of nothing", func(*logbook) fsm.Op { return &fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkUncordon} }, 0},
		{"drain of another", func(*logbook) fsm.Op { return &fsm.MarkInstance{InstanceId: "i-z", Mark: fsm.MarkDrain} }, 0},
		{"another instance", func(*logbook) fsm.Op { return openNode("y") }, 0},
		{"pin", func(*logbook) fsm.Op { return &fsm.SetPin{Group: "g", Workload: "x", InstanceId: "i-b"} }, 1},
		{"unpin of nothing", func(*logbook) fsm.Op { return &fsm.SetPin{Group: "g", Workload: "x"} }, 0},
		{"pause", func(*logbook) fsm.Op { return &fsm.SetPause{Group: "g", Workload: "x", Paused: true} }, 1},
		{"resume of nothing", func(*logbook) fsm.Op { return &fsm.SetPause{Group: "g", Workload: "x"} }, 0},
		{"move", func(*logbook) fsm.Op { return &fsm.MoveWorkload{Group: "g", Workload: "x", ToInstance: "i-b"} }, 0},
		{"release", func(*logbook) fsm.Op { return &fsm.Release{Key: "g/x", SessionId: "a", Token: token(2)} }, 0},
		{"a catalog", func(*logbook) fsm.Op {
			_, puts, _ := fsm.NewCatalog(specsOf("q"))
			return puts[0]
		}, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := newGroupLog(t)
			l.put("x", "y")
			l.member("a", "b")
			l.open("z")
			l.plan(l.planner("a"), "x=i-a")
			before := l.group().Inputs
			l.done(c.op(l))
			if got := l.group().Inputs - before; got != c.raise {
				t.Errorf("raised by %d, want %d", got, c.raise)
			}
		})
	}
}

// A mark set anew changes its author and expiry, and no inputs; the outcome and
// the view tell the leader what runs out.
func TestGroup_MarksThatRunOut(t *testing.T) {
	l := newGroupLog(t)
	l.put("x", "y")
	l.member("a", "b")
	set := func(op fsm.Op) []string {
		l.done(op)
		var out []string
		for _, m := range l.last.MarkedWorkloads {
			out = append(out, fmt.Sprintf("%s/%s %d@%d %v", m.Group, m.Workload, m.Kind, m.Revision, m.ExpiresIn))
		}
		return out
	}
	equalLines(t, "for ever", set(&fsm.SetPin{Group: "g", Workload: "x", InstanceId: "i-a"}), nil)
	inputs, first := l.group().Inputs, l.index
	equalLines(t, "pin", set(&fsm.SetPin{Group: "g", Workload: "x", InstanceId: "i-a", ExpiresInMs: 60_000, By: "bob"}), []string{fmt.Sprintf("g/x 1@%d 1m0s", first+1)})
	if l.group().Inputs != inputs || len(l.last.Events) != 0 {
		t.Errorf("the same pin raised the inputs, or made %v", l.events())
	}
	equalLines(t, "pause", set(&fsm.SetPause{Group: "g", Workload: "y", Paused: true, ExpiresInMs: 2000}), []string{fmt.Sprintf("g/y 2@%d 2s", first+2)})
	set(&fsm.SetPause{Group: "g", Workload: "x", Paused: true})
	var pending []string
	for m := range reload(t, l.state).View().PendingMarks() {
		pending = append(pending, fmt.Sprintf("%s/%s %d@%d %v by=%s", m.Group, m.Workload, m.Kind, m.Revision, m.ExpiresIn, m.By))
	}
	equalLines(t, "pending", pending, []string{fmt.Sprintf("g/x 1@%d 1m0s by=bob", first+1), fmt.Sprintf("g/y 2@%d 2s by=", first+2)})
	for range l.state.View().PendingMarks() {
		break
	}
	clear := &fsm.SetPin{Group: "g", Workload: "x", MarkedRevision: first, Term: 1}
	l.refused(clear, fsm.ErrWrongState)
	clear.MarkedRevision++
	clear.Term = 2
	l.refused(clear, fsm.ErrWrongState)
	clear.Term = 1
	l.done(clear)
	l.unchanged(clear)
	// Another pin is a change.
	l.done(&fsm.SetPin{Group: "g", Workload: "x", InstanceId: "i-a"})
	inputs = l.group().Inputs
	l.done(&fsm.SetPin{Group: "g", Workload: "x", InstanceId: "i-b"})
	if l.group().Inputs != inputs+1 {
		t.Error("a pin elsewhere didn't raise the inputs")
	}
	// A pin outlives its instance, and says which node that was of.
	l.done(&fsm.ExpireSession{SessionId: "b", Term: 1})
	if w, _ := l.group().Workload("x"); w.Pin == nil || w.Pin.InstanceID != "i-b" || w.Pin.NodeID != "n-b" {
		t.Errorf("got %+v", w.Pin)
	}
	l.done(&fsm.SetPause{Group: "g", Workload: "x"})
	l.done(&fsm.MoveWorkload{Group: "g", Workload: "x", ToInstance: "i-a"})
}

// A large plan comes in parts; only the last one says that the group is planned.
func TestPlanGroup_Parts(t *testing.T) {
	l := newGroupLog(t)
	l.put("x", "y")
	l.member("a")
	plan := l.planner("a")
	one := l.planOp(plan, "x=i-a")
	one.More = true
	l.done(one)
	if g := l.group(); g.PlannedInputs != 0 || g.PlannedRevision != 0 {
		t.Errorf("planned by a part: %+v", *g.GroupHead)
	}
	l.done(l.planOp(plan, "y=i-a"))
	g := l.group()
	if g.PlannedInputs != g.Inputs || g.PlannedRevision != l.index || g.PlannedAt != l.stamp || g.Planner.InstanceID != "i-a" {
		t.Errorf("got %+v", *g.GroupHead)
	}
}

// Who waits for a group's key like a stranger gets it only where the group has
// nobody for it.
func TestGroup_StrangersInTheQueue(t *testing.T) {
	l := newGroupLog(t)
	l.put("x")
	l.member("a", "b")
	l.open("z")
	plan := l.planner("a")
	l.plan(plan, "x=i-a")
	l.done(&fsm.Acquire{Key: "g/x", SessionId: "z", Wait: true})
	l.plan(plan, "x=i-b")
	l.done(&fsm.Release{Key: "g/x", SessionId: "a", Token: token(2)})
	equalLines(t, "rows", l.rows(), []string{"x active i-b token=3 last=i-a,moved"})
	l.done(&fsm.Release{Key: "g/x", SessionId: "b", Token: token(3)})
	equalLines(t, "rows", l.rows(), []string{"x active i-z token=4 last=i-b,released"})
	if lease, _ := l.state.View().Lease("g/x"); lease.Group != "" || lease.Holder != "" {
		t.Errorf("got %+v", lease)
	}
	l.refused(&fsm.ForgetFailure{Group: "g", Workload: "x", Token: token(4), SessionId: "a"}, fsm.ErrStaleToken)
	l.refused(&fsm.Prepared{Group: "g", Workload: "x", Token: token(4), SessionId: "b", Ok: true}, fsm.ErrWrongState)
}

// A revoked lease of a group is nobody's to move; freed, it goes to the successor.
func TestGroup_Revoke(t *testing.T) {
	l := newGroupLog(t)
	l.put("x", "y")
	l.member("a", "b")
	plan := l.planner("a")
	l.plan(plan, "x=i-a", "y=i-a")
	l.plan(plan, "x=i-b")
	for i, key := range []string{"g/x", "g/y"} {
		l.done(&fsm.Revoke{Key: key, Token: token(uint64(2 + i)), By: "ann"})
	}
	l.refused(&fsm.MoveWorkload{Group: "g", Workload: "y", ToInstance: "i-b"}, fsm.ErrWrongState)
	l.unchangedButPlan(l.planOp(plan, "y=i-b"))
	l.done(&fsm.FreeRevoked{Key: "g/x", Token: token(2), Term: 1})
	l.done(&fsm.FreeRevoked{Key: "g/y", Token: token(3), Term: 1})
	equalLines(t, "rows", l.rows(), []string{"x active i-b token=4 last=i-a,revoked", "y inactive last=i-a,revoked"})
}

// The successor of a revoked lease ends: nothing happens to the lease but that
// it has none.
func TestGroup_RevokedSuccessorEnds(t *testing.T) {
	l := newGroupLog(t)
	l.put("x")
	l.member("a", "b")
	plan := l.planner("a")
	l.plan(plan, "x=i-a")
	l.plan(plan, "x=i-b")
	l.done(&fsm.Revoke{Key: "g/x", Token: token(2)})
	before, _ := l.state.View().Lease("g/x")
	l.done(&fsm.ExpireSession{SessionId: "b", Term: 1})
	equalLines(t, "events", l.events(), []string{
		"session.expired instance=i-b node=n-b expired",
		"instance.left instance=i-b node=n-b expired",
		`group.updated g instance=i-b node=n-b reason="left"`,
	})
	after, _ := reload(t, l.state).View().Lease("g/x")
	if after.Note.To != "" || after.State != fsm.Revoked || after.ChangedRevision != before.ChangedRevision {
		t.Errorf("got %+v", after)
	}
}

// What groups wake, and whom.
func TestMachine_WatchGroups(t *testing.T) {
	m := fsm.NewMachine(fsm.MachineOptions{})
	index := uint64(0)
	apply := func(op fsm.Op) {
		t.Helper()
		index++
		out := m.Apply(&raft.Log{Index: index, Term: 1, Data: encode(t, &fsm.Proposal{Commands: []*fsm.Command{fsm.NewCommand(op)}})}).(*fsm.Outcome)
		if err := fsm.ResultErr(out.Proposals[0].Results[0]); err != nil {
			t.Fatal(err)
		}
	}
	hash, puts, _ := fsm.NewCatalog(specsOf("x", "y"))
	apply(&fsm.InitCluster{ClusterId: "c1", Version: 2})
	apply(puts[0])
	for _, id := range []string{"a", "b"} {
		apply(openNode(id))
	}
	wake := map[string]<-chan struct{}{}
	for name, topic := range map[string]string{
		"g": fsm.GroupTopic("g"), "h": fsm.GroupTopic("h"), "groups": fsm.GroupsTopic, "job": fsm.JobTopic("j"),
		"a": fsm.SessionTopic("a"), "b": fsm.SessionTopic("b"), "grant b": fsm.GrantTopic("g/x", "b", fsm.GroupHolder("g")),
	} {
		ch, stop := m.Watch(topic)
		defer stop()
		wake[name] = ch
	}
	expect := func(what string, names ...string) {
		t.Helper()
		for name, ch := range wake {
			if got := woken(ch); got != slices.Contains(names, name) {
				t.Errorf("%s: %q woken: %v", what, name, got)
			}
		}
	}
	apply(&fsm.PutGroup{Group: "g", CatalogHash: hash})
	expect("put", "g", "groups")
	apply(&fsm.PutGroup{Group: "g", CatalogHash: hash})
	expect("put again")
	for _, id := range []string{"a", "b"} {
		apply(&fsm.JoinGroup{Group: "g", SessionId: id, All: true, Embedded: true, Prepares: id == "b"})
		expect("join", "g", "groups")
	}
	apply(&fsm.Acquire{Key: fsm.PlannerKey("g"), SessionId: "b"})
	expect("planner", "b")
	plan := func(to string) *fsm.PlanGroup {
		return &fsm.PlanGroup{Group: "g", Inputs: 3, PlannerToken: token(1), Instances: []string{to}, Assignments: []*fsm.Assignment{{Workload: "x"}}}
	}
	apply(plan("i-a"))
	expect("plan", "g", "groups", "a")
	apply(plan("i-a"))
	expect("the same plan")
	apply(plan("i-b"))
	expect("successor", "g", "groups", "a", "b")
	apply(&fsm.Prepared{Group: "g", Workload: "x", Token: token(2), SessionId: "b", Ok: true})
	expect("prepared", "g", "groups", "a")
	apply(&fsm.Release{Key: "g/x", SessionId: "a", Token: token(2)})
	expect("moved", "g", "groups", "a", "b", "grant b")
	apply(&fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkCordon})
	expect("cordon", "g", "groups")
	apply(&fsm.RecordJob{Key: "j"})
	expect("job", "job")
	apply(&fsm.Acquire{Key: "g/y", SessionId: "a", Holder: "stranger", Wait: true})
	expect("a stranger waits")
	apply(&fsm.MarkInstance{InstanceId: "i-a", Mark: fsm.MarkUncordon})
	expect("uncordon", "g", "groups", "a")
	apply(&fsm.Release{Key: "g/y", SessionId: "a", Token: token(4)})
	expect("a stranger's key is free", "g", "groups", "a")
	apply(&fsm.Acquire{Key: "h/y", SessionId: "a"})
	expect("no group's key", "a")
	apply(&fsm.Release{Key: "h/y", SessionId: "a", Token: token(5)})
	expect("no group's key is free", "a")
}

// Equal inputs give equal states, whatever the order in which a member declares
// and others see it.
func TestGroup_RestoredAnywhere(t *testing.T) {
	l := richGroupLog(t)
	other := reload(t, l.state)
	for _, op := range []fsm.Op{
		&fsm.PutGroup{Group: "g"},
		&fsm.ExpireSession{SessionId: "c", Term: 3},
		&fsm.JoinGroup{Group: "g", SessionId: "b", Keys: []string{"w4"}},
		&fsm.CloseSession{SessionId: "a", Reason: fsm.CloseCrashed},
		&fsm.SetPause{Group: "g", Workload: "w4"},
	} {
		l.done(op)
		replay(t, other, l.index, l.term, l.stamp, []*fsm.Proposal{{Commands: []*fsm.Command{fsm.NewCommand(op)}}})
		if l.state.View().Hash() != other.View().Hash() {
			t.Fatalf("%T: another state after a snapshot", op)
		}
		checkInvariants(t, l.state.View())
	}
}

// A history tells of an overlap beside the grants, which keep their gaps.
func TestHistory_Overlap(t *testing.T) {
	l := newGroupLog(t)
	l.open("a")
	l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
	l.done(&fsm.Release{Key: "k", SessionId: "a", Token: token(1)})
	l.stamp += second
	l.done(&fsm.RecordOverlap{Key: "k", TokenA: token(1), TokenB: token(1), InstanceA: "i-a", InstanceB: "i-b", CertainNs: 5, UncertaintyNs: 1, Term: 1})
	l.stamp += second
	l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
	var got []string
	for _, e := range reload(t, l.state).View().History(fsm.HistoryQuery{Key: "k"}) {
		got = append(got, fmt.Sprintf("%s %v gap=%v", tokenString(e.Token), e.EndReason, e.Gap))
		if e.EndReason == fsm.EndOverlap && !strings.Contains(e.Note.Reason, "overlapped for at least 5ns (uncertainty 1ns)") {
			t.Errorf("got %q", e.Note.Reason)
		}
	}
	equalLines(t, "history", got, []string{"1 released gap=0s", "1 overlap gap=0s", "2  gap=2s"})
}
