package fsm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/fsm"
)

// newGroupLog returns a log of a cluster that knows groups; entry 2 says so.
func newGroupLog(t testing.TB) *logbook {
	l := newLogbook(t)
	l.done(&fsm.SetVersion{Version: 2})
	return l
}

func specsOf(keys ...string) (specs []fsm.Spec) {
	for _, k := range keys {
		if k != "" {
			specs = append(specs, fsm.Spec{Key: k})
		}
	}
	return specs
}

// catalog puts a catalog of these keys and returns its hash.
func (l *logbook) catalog(keys ...string) string {
	l.t.Helper()
	hash, puts, err := fsm.NewCatalog(specsOf(keys...))
	if err != nil {
		l.t.Fatal(err)
	}
	for _, p := range puts {
		l.done(p)
	}
	return hash
}

// put puts the group g with these workloads.
func (l *logbook) put(keys ...string) {
	l.t.Helper()
	l.done(&fsm.PutGroup{Group: "g", CatalogHash: l.catalog(keys...)})
}

// member opens the session of a node and has it join the group g for all it wants.
func (l *logbook) member(ids ...string) {
	l.t.Helper()
	for _, id := range ids {
		l.open(id)
		l.done(&fsm.JoinGroup{Group: "g", SessionId: id, All: true, Embedded: true, Settings: &fsm.GroupSettings{}})
	}
}

// group returns the group g.
func (l *logbook) group() *fsm.Group {
	l.t.Helper()
	g, ok := l.state.View().Group("g")
	if !ok {
		l.t.Fatal("no group g")
	}
	return g
}

// planner makes session id the planner of g and returns its token.
func (l *logbook) planner(id string) uint64 {
	l.t.Helper()
	return l.done(&fsm.Acquire{Key: fsm.PlannerKey("g"), SessionId: id}).Token
}

// plan makes a plan for the present inputs: "workload=instance" each.
func (l *logbook) planOp(token uint64, assignments ...string) *fsm.PlanGroup {
	l.t.Helper()
	op := &fsm.PlanGroup{Group: "g", Inputs: l.group().Inputs, PlannerToken: token}
	for _, a := range assignments {
		workload, to, _ := strings.Cut(a, "=")
		i := slices.Index(op.Instances, to)
		if i < 0 {
			i = len(op.Instances)
			op.Instances = append(op.Instances, to)
		}
		op.Assignments = append(op.Assignments, &fsm.Assignment{Workload: workload, Instance: uint32(i)})
	}
	return op
}

func (l *logbook) plan(token uint64, assignments ...string) *fsm.Result {
	l.t.Helper()
	return l.done(l.planOp(token, assignments...))
}

// row describes a workload of g: its status, owner, token, state and successor.
func (l *logbook) row(workload string) string {
	l.t.Helper()
	w, ok := l.group().Workload(workload)
	if !ok {
		return "unwanted"
	}
	return workloadLine(&w)
}

func workloadLine(w *fsm.Workload) string {
	s := w.Status.String()
	if l := w.Lease; l != nil {
		s += fmt.Sprintf(" %s token=%s", l.Who.InstanceID, tokenString(l.Token))
		if l.Note.By != "" {
			s += " by=" + l.Note.By
		}
	}
	if to := w.Successor(); to != "" {
		s += " to=" + to
	}
	if w.Preparing() {
		s += " preparing"
	}
	if w.Pin != nil {
		s += fmt.Sprintf(" pin=%s@%d", w.Pin.InstanceID, w.Pin.Revision)
	}
	if w.Pause != nil {
		s += fmt.Sprintf(" pause@%d", w.Pause.Revision)
	}
	if f := w.Failure; f != nil {
		s += fmt.Sprintf(" failure=%s*%d(%s)", f.InstanceID, f.Count, f.Error)
	}
	if o := w.Last; o != nil {
		s += fmt.Sprintf(" last=%s,%v", o.InstanceID, o.Reason)
	}
	return s
}

func showGroups(v *fsm.View, out *strings.Builder) {
	for g := range v.Groups() {
		fmt.Fprintf(out, "    group %s %s inputs=%d planned=%d wanted=%d\n", g.Name, g.Settings.Assigner, g.Inputs, g.PlannedInputs, g.WantedCount())
		for m, s := range g.Members() {
			fmt.Fprintf(out, "      member %s", s.InstanceID)
			switch {
			case m.All:
				out.WriteString(" all")
			case m.CatalogHash != "":
				fmt.Fprintf(out, " catalog=%.4s", m.CatalogHash)
			case m.Runtimes != nil:
				fmt.Fprintf(out, " runtimes=%s", strings.Join(m.Runtimes, ","))
			default:
				fmt.Fprintf(out, " keys=%s", strings.Join(m.Keys, ","))
			}
			if m.Embedded {
				out.WriteString(" embedded")
			}
			if m.Prepares {
				out.WriteString(" prepares")
			}
			out.WriteString("\n")
		}
		for w := range g.Workloads("") {
			fmt.Fprintf(out, "      %s %s\n", w.Key, workloadLine(&w))
		}
	}
	for j := range v.Jobs("", "") {
		fmt.Fprintf(out, "    job %s total=%d owner=%s\n", j.Key, j.Total, j.Owner.InstanceID)
		for r := range j.Recent() {
			fmt.Fprintf(out, "      %s token=%s %s %q\n", r.Outcome, tokenString(r.Token), r.Who.InstanceID, r.Detail)
		}
	}
}

func commas(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// parseGroupOp reads the verbs of groups; keys are lists with commas, and a
// catalog is named by its keys.
func parseGroupOp(w words, verb string) fsm.Op {
	p := w.pairs
	group := p["g"]
	catalog := func(keys string) string {
		if keys == "" {
			return ""
		}
		return fsm.CatalogHash(specsOf(commas(keys)...))
	}
	settings := &fsm.GroupSettings{Assigner: p["assigner"], Rebalance: p["rebalance"], MaxMoves: uint32(w.number("moves", 0))}
	switch verb {
	case "catalog":
		_, puts, err := fsm.NewCatalog(specsOf(commas(p["keys"])...))
		if err != nil {
			w.l.t.Fatal(err)
		}
		return puts[0]
	case "group":
		return &fsm.PutGroup{Group: group, CatalogHash: catalog(p["catalog"]), Settings: settings, By: p["by"]}
	case "join":
		op := &fsm.JoinGroup{
			Group: group, SessionId: p["s"], CatalogHash: catalog(p["catalog"]), Keys: commas(p["keys"]), All: w.flags["all"],
			Runtimes: commas(p["runtimes"]), Embedded: w.flags["embedded"], Prepares: w.flags["prepares"],
		}
		if w.flags["embedded"] {
			op.Settings = settings
		}
		return op
	case "leave":
		return &fsm.LeaveGroup{Group: group, SessionId: p["s"]}
	case "plan":
		op := &fsm.PlanGroup{Group: group, Inputs: w.number("inputs", 0), PlannerToken: w.token(), More: w.flags["more"]}
		if p["reason"] != "" {
			op.Reasons = []string{p["reason"]}
		}
		for _, a := range commas(p["to"]) {
			workload, to, _ := strings.Cut(a, ":")
			op.Assignments = append(op.Assignments, &fsm.Assignment{Workload: workload, Instance: uint32(len(op.Instances)), Reason: uint32(len(op.Reasons))})
			op.Instances = append(op.Instances, to)
		}
		return op
	case "move":
		return &fsm.MoveWorkload{Group: group, Workload: p["w"], ToInstance: p["to"], By: p["by"], Reason: p["reason"]}
	case "pin", "unpin":
		op := &fsm.SetPin{Group: group, Workload: p["w"], InstanceId: p["to"], By: p["by"], Reason: p["reason"], ExpiresInMs: w.ms("expires")}
		if op.MarkedRevision = w.number("marked", 0); op.MarkedRevision != 0 {
			op.Term = w.number("term", w.l.term)
		}
		return op
	case "pause", "resume":
		op := &fsm.SetPause{Group: group, Workload: p["w"], Paused: verb == "pause", By: p["by"], Reason: p["reason"], ExpiresInMs: w.ms("expires")}
		if op.MarkedRevision = w.number("marked", 0); op.MarkedRevision != 0 {
			op.Term = w.number("term", w.l.term)
		}
		return op
	case "prepared":
		return &fsm.Prepared{Group: group, Workload: p["w"], Token: w.token(), SessionId: p["s"], Ok: w.flags["ok"], Message: p["message"]}
	case "forget":
		return &fsm.ForgetFailure{Group: group, Workload: p["w"], Token: w.token(), SessionId: p["s"]}
	case "job":
		return &fsm.RecordJob{Key: p["key"], LeaseKey: p["lease"], Token: w.token(), Outcome: p["outcome"], Detail: p["detail"], InstanceId: p["instance"]}
	case "overlap":
		return &fsm.RecordOverlap{Key: p["key"], TokenA: token(w.number("a", 0)), TokenB: token(w.number("b", 0)), InstanceA: p["ia"], InstanceB: p["ib"], CertainNs: w.ms("certain") * 1e6, UncertaintyNs: w.ms("unsure") * 1e6, Term: w.number("term", w.l.term)}
	case "delete-group":
		return &fsm.DeleteGroup{Group: group, By: p["by"]}
	case "stuck":
		return &fsm.RecordStuck{Key: p["key"], Token: w.token(), SessionId: p["s"], Detail: p["detail"]}
	}
	return parseWorkerOp(w, verb)
}

// checkGroups fails if what a view says of groups contradicts itself.
func checkGroups(t testing.TB, v *fsm.View) {
	t.Helper()
	for g := range v.Groups() {
		n, last := 0, ""
		for w := range g.Workloads("") {
			if w.Key <= last {
				t.Errorf("group %s: workload %q after %q", g.Name, w.Key, last)
			}
			last = w.Key
			n++
			if w.Pause != nil && w.Status == fsm.StatusActive && w.Lease.Group != "" {
				t.Errorf("%s is paused and active", w.LeaseKey)
			}
		}
		if n != g.WantedCount() || g.WantedCount() > fsm.MaxWorkloads {
			t.Errorf("group %s wants %d, count %d", g.Name, n, g.WantedCount())
		}
		n = 0
		for m, s := range g.Members() {
			n++
			if s == nil || !slices.Contains(s.Groups(), g.Name) {
				t.Errorf("group %s: the member %s doesn't know", g.Name, m.SessionID)
			}
		}
		if n != g.MemberCount() {
			t.Errorf("group %s has %d members, count %d", g.Name, n, g.MemberCount())
		}
		if g.CatalogHash != "" {
			if _, ok := v.Catalog(g.CatalogHash); !ok {
				t.Errorf("group %s: its catalog is gone", g.Name)
			}
		}
	}
	coming := map[string]string{}
	for s := range v.Sessions() {
		for l := range v.Successions(s.ID) {
			if l == nil || l.Note.To != s.InstanceID {
				t.Errorf("%s comes for a lease that doesn't say so", s.InstanceID)
				continue
			}
			coming[l.Key] = s.InstanceID
		}
		for _, name := range s.Groups() {
			if g, ok := v.Group(name); !ok {
				t.Errorf("%s is a member of %s, which is not there", s.InstanceID, name)
			} else if _, ok := g.Member(s.InstanceID); !ok {
				t.Errorf("%s is a member of %s, which doesn't know", s.InstanceID, name)
			}
		}
	}
	for l := range v.Leases("", "") {
		if l.Group == "" {
			continue
		}
		if _, ok := v.Group(l.Group); !ok || l.Holder != fsm.GroupHolder(l.Group) || !strings.HasPrefix(l.Key, l.Group+"/") {
			t.Errorf("lease %s of group %s, holder %s", l.Key, l.Group, l.Holder)
		}
		if l.Note.To != coming[l.Key] {
			t.Errorf("lease %s names %q, but %q comes", l.Key, l.Note.To, coming[l.Key])
		}
	}
}

// richGroupLog has a record of every kind of groups and jobs with, together,
// every field of each set.
func richGroupLog(t testing.TB) *logbook {
	l := newGroupLog(t)
	l.term = 3
	a := openNode("a")
	a.Name = "alpha"
	l.done(a)
	l.open("b")
	l.done(&fsm.OpenSession{SessionId: "c", TtlMs: 10_000, Name: "py", InstanceId: "client-c", ViaNodeId: "n-a"})
	big := fsm.Spec{Key: "w3", DisplayName: "Three", Weight: 2.5}
	for i := range fsm.MaxLabels {
		big.Labels = append(big.Labels, fsm.Label{Key: fmt.Sprintf("l%02d", i), Value: "v"})
	}
	hash, puts, err := fsm.NewCatalog([]fsm.Spec{{Key: "w1"}, {Key: "w2"}, big})
	if err != nil || len(puts) != 1 {
		t.Fatal(err, len(puts))
	}
	// In two parts, the second one first.
	whole := puts[0].Workloads
	l.done(&fsm.PutCatalog{Hash: hash, Part: 1, Parts: 2, Workloads: whole[1:]})
	l.done(&fsm.PutCatalog{Hash: hash, Part: 0, Parts: 2, Workloads: whole[:1]})
	l.done(&fsm.PutGroup{Group: "g", CatalogHash: hash, Settings: &fsm.GroupSettings{Assigner: "balanced", Rebalance: "graceful", MaxMoves: 3}, By: "ann"})
	l.catalog("idle")
	l.done(&fsm.PutCatalog{Hash: strings.Repeat("0a", 32), Part: 1, Parts: 2, Workloads: whole[1:]}) // not whole
	l.stamp += second
	l.done(&fsm.JoinGroup{Group: "g", SessionId: "a", CatalogHash: l.catalog("w1", "w4"), Embedded: true, Capacity: 1.5})
	l.done(&fsm.JoinGroup{Group: "g", SessionId: "b", All: true, Prepares: true})
	l.done(&fsm.JoinGroup{Group: "g", SessionId: "c", Keys: []string{"w2", "w3"}})
	plan := l.planner("a")
	l.plan(plan, "w1=i-a", "w2=client-c", "w3=client-c", "w4=i-a")
	l.done(&fsm.SetPin{Group: "g", Workload: "w1", InstanceId: "i-b", By: "ann", Reason: "disk", ExpiresInMs: 60_000})
	l.done(&fsm.SetPause{Group: "g", Workload: "w4", Paused: true, By: "bob", Reason: "deploy", ExpiresInMs: 90_000})
	l.done(&fsm.MoveWorkload{Group: "g", Workload: "w1", ToInstance: "i-b", By: "ann", Reason: "disk"})
	l.stamp += second
	l.done(&fsm.Release{Key: "g/w2", Token: token(3), SessionId: "c", Failure: "no memory"})
	l.done(&fsm.Acquire{Key: "cron", SessionId: "a"})
	job := fsm.NewCommand(&fsm.RecordJob{Key: "cron", Token: token(6), Outcome: "ok", Detail: "12 rows"})
	job.Seq = 1
	l.batch(&fsm.Proposal{NodeId: "n1", Boot: 1, Commands: []*fsm.Command{job}})
	l.done(&fsm.RecordJob{Key: "report", LeaseKey: "g/w3", Token: token(4), Outcome: "started"})
	l.done(&fsm.RecordJob{Key: "backup", LeaseKey: "cron", Token: token(6), Outcome: "started", Detail: "full"})
	l.done(&fsm.RecordStuck{Key: "g/w3", Token: token(4), SessionId: "c", Detail: "goroutine 1\n\tmain.go:7"})
	l.done(&fsm.RecordOverlap{Key: "g/w3", TokenA: token(3), TokenB: token(4), InstanceA: "i-a", InstanceB: "client-c", CertainNs: 5e6, UncertaintyNs: 1e6, Term: 3})
	return l
}
