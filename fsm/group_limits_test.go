package fsm_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/fsm"
)

// Each limit of groups and jobs from both sides, before proposing and in apply.
func TestGroupLimits(t *testing.T) {
	long := func(n int) string { return strings.Repeat("k", n) }
	keys := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("w%06d", i))
		}
		return out
	}
	put := func(change func(*fsm.PutGroup)) fsm.Op {
		op := &fsm.PutGroup{Group: "new", Settings: &fsm.GroupSettings{}}
		change(op)
		return op
	}
	join := func(change func(*fsm.JoinGroup)) fsm.Op {
		op := &fsm.JoinGroup{Group: "g", SessionId: "a", All: true}
		change(op)
		return op
	}
	plan := func(change func(*fsm.PlanGroup)) fsm.Op {
		op := &fsm.PlanGroup{Group: "g", Inputs: 2, PlannerToken: token(1), Instances: []string{"i-a"}, Assignments: []*fsm.Assignment{{Workload: "w"}}}
		change(op)
		return op
	}
	job := func(change func(*fsm.RecordJob)) fsm.Op {
		op := &fsm.RecordJob{Key: "j"}
		change(op)
		return op
	}
	cases := []struct {
		name string
		op   fsm.Op
		want string // in the message, "" = accepted
	}{
		{"group of 128", put(func(o *fsm.PutGroup) { o.Group = long(128) }), ""},
		{"group of 129", put(func(o *fsm.PutGroup) { o.Group = long(129) }), "group has 129 bytes, at most 128"},
		{"group of 0", put(func(o *fsm.PutGroup) { o.Group = "" }), "group must not be empty"},
		{"blank group", put(func(o *fsm.PutGroup) { o.Group = "   " }), "group must not be blank"},
		{"group with a slash", put(func(o *fsm.PutGroup) { o.Group = "a/b" }), "group must not contain a slash"},
		{"group miw", put(func(o *fsm.PutGroup) { o.Group = "miw" }), "the product's own"},
		{"unknown assigner", put(func(o *fsm.PutGroup) { o.Settings.Assigner = "random" }), "assigner is unknown, must be sticky, balanced, primary or custom"},
		{"custom assigner", put(func(o *fsm.PutGroup) { o.Settings.Assigner = "custom" }), ""},
		{"unknown rebalance", put(func(o *fsm.PutGroup) { o.Settings.Rebalance = "soon" }), "rebalance is unknown, must be immediate or graceful"},
		{"10,000 moves", put(func(o *fsm.PutGroup) { o.Settings.MaxMoves = 10_000 }), ""},
		{"10,001 moves", put(func(o *fsm.PutGroup) { o.Settings.MaxMoves = 10_001 }), "max_moves is 10001, at most 10000"},
		{"author of 129", put(func(o *fsm.PutGroup) { o.By = long(129) }), "by has 129 bytes"},
		{"short hash", put(func(o *fsm.PutGroup) { o.CatalogHash = "0a" }), "catalog_hash must be 64 hexadecimal digits"},
		{"without settings", put(func(o *fsm.PutGroup) { o.Settings = nil }), ""},

		{"all", join(func(o *fsm.JoinGroup) {}), ""},
		{"nothing declared", join(func(o *fsm.JoinGroup) { o.All = false }), "declaration must be one of a catalog, keys, all and runtimes"},
		{"two declarations", join(func(o *fsm.JoinGroup) { o.Keys = keys(1) }), "declaration must be one of"},
		{"10,000 keys", join(func(o *fsm.JoinGroup) { o.All, o.Keys = false, keys(10_000) }), ""},
		{"10,001 keys", join(func(o *fsm.JoinGroup) { o.All, o.Keys = false, keys(10_001) }), "workloads are 10001"},
		{"keys unsorted", join(func(o *fsm.JoinGroup) { o.All, o.Keys = false, []string{"b", "a"} }), "must be sorted, each once"},
		{"a key twice", join(func(o *fsm.JoinGroup) { o.All, o.Keys = false, []string{"a", "a"} }), "must be sorted, each once"},
		{"blank key", join(func(o *fsm.JoinGroup) { o.All, o.Keys = false, []string{" "} }), "workload must not be blank"},
		{"keys of a megabyte", join(func(o *fsm.JoinGroup) {
			o.All = false
			for i := range 4000 {
				o.Keys = append(o.Keys, fmt.Sprintf("%05d%s", i, long(300)))
			}
		}), "bytes together, at most 983040"},
		{"capacity below 0", join(func(o *fsm.JoinGroup) { o.Capacity = -1 }), "capacity is -1"},
		{"capacity NaN", join(func(o *fsm.JoinGroup) { o.Capacity = math.NaN() }), "capacity is NaN"},
		{"unknown assigner joins", join(func(o *fsm.JoinGroup) { o.Settings = &fsm.GroupSettings{Assigner: "x"} }), "assigner is unknown"},
		{"no session", join(func(o *fsm.JoinGroup) { o.SessionId = "" }), "session_id must not be empty"},
		{"leave without a session", &fsm.LeaveGroup{Group: "g"}, "session_id must not be empty"},

		{"a plan", plan(func(o *fsm.PlanGroup) {}), ""},
		{"plan without inputs", plan(func(o *fsm.PlanGroup) { o.Inputs = 0 }), "inputs must not be 0"},
		{"plan without a token", plan(func(o *fsm.PlanGroup) { o.PlannerToken = 0 }), "planner_token must not be 0"},
		{"plan for no instance", plan(func(o *fsm.PlanGroup) { o.Instances = []string{""} }), "instance_id must not be empty"},
		{"instance beyond", plan(func(o *fsm.PlanGroup) { o.Assignments[0].Instance = 1 }), `assignment of "w" names an instance or a reason that the plan doesn't list`},
		{"reason beyond", plan(func(o *fsm.PlanGroup) { o.Assignments[0].Reason = 1 }), "names an instance or a reason"},
		{"reason of 513", plan(func(o *fsm.PlanGroup) { o.Reasons = []string{long(513)} }), "reason has 513 bytes"},
		{"plan of 10,001", plan(func(o *fsm.PlanGroup) {
			for range 10_000 {
				o.Assignments = append(o.Assignments, &fsm.Assignment{Workload: "w"})
			}
		}), "10001 assignments"},
		{"plan of two megabytes", plan(func(o *fsm.PlanGroup) {
			for range 6000 {
				o.Assignments = append(o.Assignments, &fsm.Assignment{Workload: long(350)})
			}
		}), "send it in parts"},

		{"move to nobody", &fsm.MoveWorkload{Group: "g", Workload: "w"}, "to_instance must not be empty"},
		{"pin for a year", &fsm.SetPin{Group: "g", Workload: "w", InstanceId: "i-a", ExpiresInMs: 365 * 86_400_000}, ""},
		{"pin for ever and a day", &fsm.SetPin{Group: "g", Workload: "w", InstanceId: "i-a", ExpiresInMs: 400 * 86_400_000}, "expires_in is"},
		{"pin with a term", &fsm.SetPin{Group: "g", Workload: "w", InstanceId: "i-a", Term: 1}, "for clearing"},
		{"unpin that expires", &fsm.SetPin{Group: "g", Workload: "w", ExpiresInMs: 1}, "for setting"},
		{"unpin with half a decision", &fsm.SetPin{Group: "g", Workload: "w", MarkedRevision: 1}, "go together"},
		{"pause with a term", &fsm.SetPause{Group: "g", Workload: "w", Paused: true, Term: 1, MarkedRevision: 1}, "for clearing"},
		{"resume with half a decision", &fsm.SetPause{Group: "g", Workload: "w", Term: 1}, "go together"},
		{"prepared without a token", &fsm.Prepared{Group: "g", Workload: "w", SessionId: "a"}, "token must not be 0"},
		{"prepared of 513", &fsm.Prepared{Group: "g", Workload: "w", SessionId: "a", Token: 1, Message: long(513)}, "message has 513 bytes"},
		{"forget without a token", &fsm.ForgetFailure{Group: "g", Workload: "w", SessionId: "a"}, "token must not be 0"},
		{"failure of 513", &fsm.Release{Key: "k", SessionId: "a", Token: 1, Failure: long(513)}, "failure has 513 bytes"},

		{"job without a token", job(func(o *fsm.RecordJob) {}), ""},
		{"job without a key", job(func(o *fsm.RecordJob) { o.Key = "" }), "key must not be empty"},
		{"detail of 512", job(func(o *fsm.RecordJob) { o.Detail = long(511) + "\n" }), ""},
		{"detail of 513", job(func(o *fsm.RecordJob) { o.Detail = long(513) }), "detail has 513 bytes"},
		{"detail with NUL", job(func(o *fsm.RecordJob) { o.Detail = "a\x00" }), "control character U+0000"},
		{"outcome of 65", job(func(o *fsm.RecordJob) { o.Outcome = long(65) }), "outcome has 65 bytes"},
		{"lost", job(func(o *fsm.RecordJob) { o.Outcome = "lost" }), "outcome must not be lost"},
		{"started without a lease", job(func(o *fsm.RecordJob) { o.Outcome = "started" }), "token must be set to start a run"},
		{"lease without a token", job(func(o *fsm.RecordJob) { o.LeaseKey = "k" }), "token must be set where lease_key is"},
		{"token and instance", job(func(o *fsm.RecordJob) { o.Token, o.InstanceId = 1, "i" }), "instance_id is for records without a token"},
		{"overlap of nothing", &fsm.RecordOverlap{Key: "k", TokenA: 1, TokenB: 2, Term: 1}, "certain must be above 0"},
		{"overlap without a term", &fsm.RecordOverlap{Key: "k", TokenA: 1, TokenB: 2, CertainNs: 1}, "term must not be 0"},
		{"stack of 16 KiB", &fsm.RecordStuck{Key: "miw/group/g/planner", Token: token(1), SessionId: "a", Detail: strings.Repeat("line\n\t", 16<<10/6)}, ""},
		{"stack of more", &fsm.RecordStuck{Key: "k", Token: 1, SessionId: "a", Detail: long(16<<10 + 1)}, "detail has 16385 bytes"},

		{"part beyond", &fsm.PutCatalog{Hash: strings.Repeat("0", 64), Part: 2, Parts: 2}, "part is 2 of 2"},
		{"65 parts", &fsm.PutCatalog{Hash: strings.Repeat("0", 64), Parts: 65}, "part is 0 of 65"},
		{"weight 0", &fsm.PutCatalog{Hash: strings.Repeat("0", 64), Parts: 1, Workloads: []*fsm.WorkloadSpec{{Key: "a"}}}, "weight is 0, must be above 0"},
		{"unsorted", &fsm.PutCatalog{Hash: strings.Repeat("0", 64), Parts: 1, Workloads: []*fsm.WorkloadSpec{{Key: "b", Weight: 1}, {Key: "a", Weight: 1}}}, "must be sorted by key"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := newGroupLog(t)
			l.put("w")
			l.open("a")
			l.done(&fsm.JoinGroup{Group: "g", SessionId: "a", Keys: []string{"w"}})
			l.planner("a")
			err := fsm.ResultErr(l.do(c.op))
			if c.want == "" {
				if err != nil || fsm.Check(c.op, 2) != nil {
					t.Errorf("apply: %v, Check: %v", err, fsm.Check(c.op, 2))
				}
				reload(t, l.state)
				return
			}
			before := fsm.Check(c.op, 2)
			if !isErr(err, fsm.ErrInvalidArgument) || !strings.Contains(err.Error(), c.want) || before == nil {
				t.Errorf("apply: got %v, Check: %v, want %q", err, before, c.want)
			}
			if gate := fsm.Check(c.op, 1); !isErr(gate, fsm.ErrWrongState) {
				t.Errorf("in a cluster of version 1: %v", gate)
			}
		})
	}
}

// Before every member knows groups, nothing of them gets into the log.
func TestGroupLimits_Version(t *testing.T) {
	l := newLogbook(t)
	for name, op := range wireOps() {
		switch op.(type) {
		case *fsm.PutCatalog, *fsm.PutGroup, *fsm.JoinGroup, *fsm.LeaveGroup, *fsm.PlanGroup, *fsm.MoveWorkload, *fsm.SetPin, *fsm.SetPause,
			*fsm.Prepared, *fsm.ForgetFailure, *fsm.RecordJob, *fsm.RecordOverlap, *fsm.RecordStuck:
			if err := fsm.ResultErr(l.do(op)); !isErr(err, fsm.ErrWrongState) || !strings.Contains(err.Error(), "state version 1, the command needs 2") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	l.open("a")
	l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
	l.refused(&fsm.Release{Key: "k", SessionId: "a", Token: token(1), Failure: "no"}, fsm.ErrWrongState)
	l.done(&fsm.Release{Key: "k", SessionId: "a", Token: token(1)})
	// A snapshot says the version of the cluster: older members read it, too.
	if data := snapshotBytes(t, l.state.View()); data[11] != 1 {
		t.Errorf("the snapshot is of version %d", data[11])
	}
	l.done(&fsm.SetVersion{Version: 2})
	if data := snapshotBytes(t, l.state.View()); data[11] != 2 {
		t.Errorf("the snapshot is of version %d", data[11])
	}
}

func TestClip(t *testing.T) {
	for _, c := range []struct{ in, line, lines string }{
		{"", "", ""},
		{"a\nb\tc\x00d", "a b c d", "a\nb\tc d"},
		{"0123456789abc", "0123456789", "0123456789"},
		{"012345678鍵", "012345678", "012345678"},
		{"a\xffb", "a?b", "a?b"},
	} {
		if got := fsm.Clip(c.in, 10); got != c.line {
			t.Errorf("Clip(%q): got %q", c.in, got)
		}
		if got := fsm.ClipLines(c.in, 10); got != c.lines {
			t.Errorf("ClipLines(%q): got %q", c.in, got)
		}
	}
}

// A full table is refused; groups without use make room.
func TestGroupLimits_Groups(t *testing.T) {
	l := newGroupLog(t)
	l.open("a")
	hash := l.catalog("w")
	name := func(i int) string { return fmt.Sprintf("g%04d", i) }
	for i := range fsm.MaxGroups {
		l.done(&fsm.PutGroup{Group: name(i), CatalogHash: hash})
	}
	l.refused(&fsm.PutGroup{Group: "more", CatalogHash: hash}, fsm.ErrOverloaded)
	l.refused(&fsm.JoinGroup{Group: "more", SessionId: "a", All: true, Settings: &fsm.GroupSettings{}}, fsm.ErrOverloaded)
	// Three are put empty: one has a member, one a paused workload; the last one goes.
	l.done(&fsm.JoinGroup{Group: name(1), SessionId: "a", All: true})
	l.done(&fsm.SetPause{Group: name(2), Workload: "w", Paused: true})
	for i := 1; i <= 3; i++ {
		l.done(&fsm.PutGroup{Group: name(i)})
	}
	l.done(&fsm.PutGroup{Group: "more", CatalogHash: hash})
	v := reload(t, l.state).View()
	for i, want := range map[int]bool{0: true, 1: true, 2: true, 3: false, 4: true} {
		if _, ok := v.Group(name(i)); ok != want {
			t.Errorf("%s: %v, want %v", name(i), ok, want)
		}
	}
	if n := v.GroupCount(); n != fsm.MaxGroups {
		t.Errorf("%d groups", n)
	}
	checkGroups(t, v)
}

// Jobs: 32 runs are kept, 32 may be open under a grant, and of 20,000 jobs the
// one that rested for the longest time makes room.
func TestGroupLimits_Jobs(t *testing.T) {
	t.Run("runs of a job", func(t *testing.T) {
		l := newGroupLog(t)
		l.open("a")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		l.done(&fsm.RecordJob{Key: "k", Token: token(1), Outcome: "started"})
		for i := range 40 {
			l.done(&fsm.RecordJob{Key: "k", Detail: fmt.Sprint(i)})
		}
		job, _ := reload(t, l.state).View().Job("k")
		var details []string
		for r := range job.Recent() {
			details = append(details, r.Detail)
		}
		if job.Total != 41 || len(details) != 32 || details[0] != "8" || details[31] != "39" {
			t.Errorf("total %d, kept %v", job.Total, details)
		}
		// The open run has left the record: it is closed by nobody.
		l.done(&fsm.Release{Key: "k", SessionId: "a", Token: token(1)})
		equalLines(t, "events", l.events(), []string{"lease.ended k token=1 instance=i-a node=n-a released"})
	})
	t.Run("open runs of a grant", func(t *testing.T) {
		l := newGroupLog(t)
		l.open("a")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		start := func(i int) fsm.Op {
			return &fsm.RecordJob{Key: fmt.Sprint("j", i), LeaseKey: "k", Token: token(1), Outcome: "started"}
		}
		for i := range fsm.MaxOpenRuns {
			l.done(start(i))
		}
		l.refused(start(99), fsm.ErrOverloaded)
		l.done(start(5)) // in its own stead
		l.done(&fsm.RecordJob{Key: "j7", LeaseKey: "k", Token: token(1)})
		l.done(start(99))
		l.done(&fsm.CloseSession{SessionId: "a", Reason: fsm.CloseCrashed})
		lost := 0
		for j := range l.state.View().Jobs("", "") {
			for r := range j.Recent() {
				if r.Outcome == "lost" {
					lost++
				}
			}
		}
		if lost != 33 { // one was restarted
			t.Errorf("%d runs were lost", lost)
		}
	})
	t.Run("jobs", func(t *testing.T) {
		l := newGroupLog(t)
		l.open("a")
		l.done(&fsm.Acquire{Key: "k", SessionId: "a"})
		name := func(i int) string { return fmt.Sprintf("j%05d", i) }
		l.done(&fsm.RecordJob{Key: name(0), LeaseKey: "k", Token: token(1), Outcome: "started"})
		p := &fsm.Proposal{}
		for i := 1; i < fsm.MaxJobs; i++ {
			p.Commands = append(p.Commands, fsm.NewCommand(&fsm.RecordJob{Key: name(i)}))
		}
		l.batch(p)
		l.done(&fsm.RecordJob{Key: name(1)}) // 2 is the oldest now; 0 runs
		l.done(&fsm.RecordJob{Key: "more"})
		v := reload(t, l.state).View()
		for i, want := range map[int]bool{0: true, 1: true, 2: false, 3: true} {
			if _, ok := v.Job(name(i)); ok != want {
				t.Errorf("%s: %v, want %v", name(i), ok, want)
			}
		}
		if n := v.JobCount(); n != fsm.MaxJobs {
			t.Errorf("%d jobs", n)
		}
	})
}
