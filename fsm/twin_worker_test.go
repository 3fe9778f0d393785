package fsm_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// The rules of workers again, for the twin.

type twinWorker struct {
	op               *fsm.CreateWorker
	state            string
	start, keeps     bool
	current, next    twinSource
	history          []twinSource
	err, tags        string
	attempt, driver  uint64
	loaded           uint64
	after            uint64
	tries            uint32
	etag, revision   uint64
	created, changed int64
}

type twinSource struct {
	text, sha string
	size      int64
	by        string
	at        int64
}

func (w *twinWorker) wanted() bool { return w != nil && (w.state == "running" || w.keeps) }

func (w *twinWorker) needs() string {
	if w.op.Runtime == "func" {
		return "func:" + w.current.text
	}
	return w.op.Runtime
}

func twinTags(tags []*fsmpb.Label) string {
	var out []string
	for _, l := range tags {
		out = append(out, l.Key+"="+l.Value)
	}
	return strings.Join(out, ",")
}

// gate refuses what the cluster doesn't know yet, and the name of the workers' group.
func (t *twin) gate(op fsm.Op) *twinAnswer {
	newer, reserved := false, false
	switch op := op.(type) {
	case *fsm.CreateWorker, *fsm.StartWorker, *fsm.StopWorker, *fsm.ReloadWorker, *fsm.DeleteWorker, *fsm.SetWorkerTags, *fsm.BeginLoad, *fsm.FinishLoad, *fsm.FinishRun,
		*fsm.RecordSleep:
		newer = true
	case *fsm.JoinGroup:
		newer = len(op.Runtimes) > 0
		reserved = (op.Group == "workers") != newer
	case *fsm.PutGroup:
		reserved = op.Group == "workers"
	case *fsm.DeleteGroup:
		newer, reserved = true, op.Group == "workers"
	}
	switch {
	case newer && t.version < 3:
		return refusal(fsm.CodeWrongState)
	case reserved && t.version >= 3:
		return refusal(fsm.CodeInvalidArgument)
	}
	return nil
}

func (t *twin) setVersion(op *fsm.SetVersion) *twinAnswer {
	if op.Version <= t.version {
		return refusal(fsm.CodeWrongState)
	}
	if g := t.groups["workers"]; g != nil {
		g.inputs++
		t.emit("group.updated workers 0")
		g.put, g.assigner = false, "sticky"
		t.changed(g, func() { g.catalog = "" })
		members := slices.SortedFunc(maps.Keys(g.members), func(a, b string) int { return cmp.Compare(t.sessions[a].order, t.sessions[b].order) })
		for _, id := range members {
			t.leaveGroup(&fsm.LeaveGroup{Group: g.name, SessionId: id})
		}
		g.notes = map[string]*twinNotes{}
	}
	t.version = op.Version
	t.emit("version.raised")
	return twinDone
}

func (t *twin) runWorker(op fsm.Op) *twinAnswer {
	if op, ok := op.(*fsm.CreateWorker); ok {
		return t.createWorker(op)
	}
	id, etag := "", uint64(0)
	switch op := op.(type) {
	case *fsm.StartWorker:
		id, etag = op.WorkerId, op.Etag
	case *fsm.StopWorker:
		id, etag = op.WorkerId, op.Etag
	case *fsm.ReloadWorker:
		id, etag = op.WorkerId, op.Etag
	case *fsm.DeleteWorker:
		id, etag = op.WorkerId, op.Etag
	case *fsm.SetWorkerTags:
		id, etag = op.WorkerId, op.Etag
	case *fsm.BeginLoad:
		id = op.WorkerId
	case *fsm.FinishLoad:
		id = op.WorkerId
	case *fsm.FinishRun:
		id = op.WorkerId
	default:
		panic(fmt.Sprintf("twin: %T", op))
	}
	w := t.workers[id]
	switch {
	case w == nil:
		return refusal(fsm.CodeNotFound)
	case etag != 0 && etag != w.etag:
		return refusal(fsm.CodeETagMismatch)
	}
	return t.changeWorker(op, id, w)
}

func (t *twin) createWorker(op *fsm.CreateWorker) *twinAnswer {
	if t.workers[op.WorkerId] != nil {
		return refusal(fsm.CodeAlreadyExists)
	}
	if t.groups["workers"] == nil {
		t.newGroup("workers").inputs = 1
	}
	src := twinSource{text: op.Source, sha: op.Sha256, by: op.By, at: t.stamp}
	w := &twinWorker{op: op, state: "loading", start: op.Start, next: src, history: []twinSource{src}, tags: twinTags(op.Tags), attempt: 1, created: t.stamp}
	t.tellWorker("created", w, "", "")
	return t.putWorker(nil, w)
}

// putWorker replaces a record, and has the group follow.
func (t *twin) putWorker(former, next *twinWorker) *twinAnswer {
	next.etag++
	next.revision, next.changed = t.index, t.stamp
	if next.wanted() && !former.wanted() {
		next.after = t.tokens
	}
	t.workers[next.op.WorkerId] = next
	t.follow(former, next)
	return &twinAnswer{total: next.etag}
}

func (t *twin) follow(former, next *twinWorker) {
	if !former.wanted() && !next.wanted() {
		return
	}
	g := t.groups["workers"]
	if !next.wanted() {
		g.inputs++
		t.tell(t.leases[fsm.WorkerKey(former.op.WorkerId)], g, fsm.ByGroup)
		return
	}
	if former.wanted() && former.needs() == next.needs() && former.tags == next.tags {
		return
	}
	g.inputs++
	if l := t.leases[fsm.WorkerKey(next.op.WorkerId)]; l != nil && l.group == g.name {
		if m := g.members[l.session]; m != nil && !t.declares(m, next.op.WorkerId) {
			t.tell(l, g, fsm.ByGroup)
		}
	}
}

func (t *twin) tellWorker(verb string, w *twinWorker, instance, err string) {
	start := ""
	if w.start {
		start = "start"
	}
	t.emit("worker.%s %s 0 %s %s %s %s", verb, fsm.WorkerKey(w.op.WorkerId), instance, w.state, start, err)
}

func (t *twin) runnerOf(id string) string {
	if l := t.leases[fsm.WorkerKey(id)]; l != nil && l.group == "workers" {
		return l.instance
	}
	return ""
}

func (t *twin) changeWorker(op fsm.Op, id string, w *twinWorker) *twinAnswer {
	same := &twinAnswer{total: w.etag}
	next := *w
	switch op := op.(type) {
	case *fsm.StartWorker:
		switch {
		case w.state == "load_failed":
			return refusal(fsm.CodeWrongState)
		case w.state == "running", w.start:
			return same
		case w.state == "loading":
			next.start = true
			t.tellWorker("start_requested", &next, "", "")
		default:
			next.state = "running"
			if w.state == "failed" {
				next.err = ""
			}
			t.tellWorker("started", &next, "", "")
			t.forgetRun(id)
		}
	case *fsm.StopWorker:
		if !w.start && !w.wanted() {
			return same
		}
		next.start = false
		if w.start {
			t.tellWorker("start_withdrawn", &next, "", "")
		}
		if w.wanted() {
			next.keeps = false
			if w.state == "running" {
				next.state = "stopped"
			}
			t.tellWorker("stopped", &next, t.runnerOf(id), "")
		}
	case *fsm.ReloadWorker:
		if w.state == "loading" {
			return refusal(fsm.CodeWrongState)
		}
		if op.Source != "" {
			next.next = twinSource{text: op.Source, sha: op.Sha256, by: op.By, at: t.stamp}
			next.history = append(slices.Clone(w.history), next.next)
			next.history = next.history[max(0, len(next.history)-32):]
		} else if w.next == (twinSource{}) {
			next.next = w.current
		}
		next.state, next.keeps = "loading", w.state == "running"
		next.attempt, next.driver = w.attempt+1, 0
		t.tellWorker("reloading", &next, t.runnerOf(id), "")
	case *fsm.DeleteWorker:
		t.tellWorker("deleted", w, t.runnerOf(id), "")
		delete(t.workers, id)
		t.follow(w, nil)
		delete(t.groups["workers"].notes, id)
		return same
	case *fsm.SetWorkerTags:
		if next.tags = twinTags(op.Tags); next.tags == w.tags {
			return same
		}
	case *fsm.BeginLoad:
		l := t.leases[fsm.LoadKey(id)]
		switch {
		case l == nil, l.token != op.Token, l.state != "held" && l.state != "transferring":
			return refusal(fsm.CodeStaleToken)
		case w.state != "loading":
			return refusal(fsm.CodeWrongState)
		case w.driver == op.Token:
			return &twinAnswer{token: w.attempt, total: w.etag}
		}
		next.attempt, next.driver = w.attempt+1, op.Token
		a := t.putWorker(w, &next)
		a.token = next.attempt
		return a
	case *fsm.FinishLoad:
		switch {
		case w.state != "loading", w.attempt != op.Attempt:
			return refusal(fsm.CodeWrongState)
		case op.Ok && w.next.sha != "" && w.next.sha != op.Sha256:
			return refusal(fsm.CodeInvalidArgument)
		}
		t.finishLoad(op, &next)
	case *fsm.FinishRun:
		l := t.leases[fsm.WorkerKey(id)]
		switch {
		case l == nil, l.state == "barred", l.token != op.Token, l.group != "workers", w.wanted() && l.token <= w.after:
			return refusal(fsm.CodeStaleToken)
		case !w.wanted(), op.Attempt != w.loaded:
			return refusal(fsm.CodeWrongState)
		}
		verb := map[bool]string{true: "stopped", false: "failed"}[op.Ok]
		if next.keeps, next.err = false, op.ErrorType; w.state == "running" {
			next.state = verb
		}
		t.tellWorker(verb, &next, l.instance, op.ErrorType)
	}
	return t.putWorker(w, &next)
}

func (t *twin) finishLoad(op *fsm.FinishLoad, next *twinWorker) {
	driver := ""
	if l := t.leases[fsm.LoadKey(op.WorkerId)]; l != nil && l.token == next.driver {
		driver = l.instance
	}
	next.tries, next.driver = op.Tries, 0
	if !op.Ok {
		next.state, next.err = "load_failed", op.ErrorType
		if next.keeps {
			next.state, next.start, next.keeps = "running", false, false
		}
		t.tellWorker("load_failed", next, driver, op.ErrorType)
		return
	}
	next.current, next.loaded = next.next, next.attempt
	next.current.sha, next.current.size = op.Sha256, op.Size
	next.history = append(slices.Clone(next.history[:len(next.history)-1]), next.current)
	starts := next.start && !next.keeps
	next.state = map[bool]string{true: "running", false: "stopped"}[next.start || next.keeps]
	next.next, next.err, next.start, next.keeps = twinSource{}, "", false, false
	t.tellWorker("loaded", next, driver, "")
	if starts {
		t.tellWorker("started", next, "", "")
	}
	t.forgetRun(op.WorkerId)
}

func (t *twin) forgetRun(id string) {
	n := t.groups["workers"].note(id)
	n.failed, n.failures = "", 0
}

// keeps tells whether notes of a workload are kept.
func (t *twin) keeps(g *twinGroup, workload string) bool {
	return g.name != "workers" || t.version < 3 || t.workers[workload] != nil
}

func (t *twin) dumpWorkers() (out []string) {
	for _, id := range slices.Sorted(maps.Keys(t.workers)) {
		w := t.workers[id]
		out = append(out, fmt.Sprintf("worker %s %s start=%v keeps=%v %v %v %v err=%s tags=%s %d %d %d %d %d %d at %d, %d %d",
			id, w.state, w.start, w.keeps, w.current, w.next, w.history, w.err, w.tags, w.attempt, w.driver, w.loaded, w.after, w.tries, w.etag, w.revision, w.created, w.changed))
	}
	return out
}

func dumpWorkers(v *fsm.View) (out []string) {
	source := func(s *fsm.Source) twinSource {
		if s == nil {
			return twinSource{}
		}
		return twinSource{s.Text, s.SHA256, s.Size, s.By, s.At}
	}
	for w := range v.Workers("") {
		var history []twinSource
		for i := range w.History {
			history = append(history, source(&w.History[i]))
		}
		var tags []string
		for _, l := range w.Tags {
			tags = append(tags, l.Key+"="+l.Value)
		}
		failure := ""
		if w.Error != nil {
			failure = w.Error.Type
		}
		out = append(out, fmt.Sprintf("worker %s %v start=%v keeps=%v %v %v %v err=%s tags=%s %d %d %d %d %d %d at %d, %d %d",
			w.ID, w.State, w.StartRequested, w.KeepsRunning, source(w.Current), source(w.Next), history, failure, strings.Join(tags, ","),
			w.Attempt, w.DriverToken, w.Loaded, w.StartedAfter, w.Tries, w.Etag, w.Revision, w.CreatedAt, w.ChangedAt))
	}
	return out
}
