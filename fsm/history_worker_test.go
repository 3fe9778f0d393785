package fsm_test

import (
	"fmt"
	"strings"

	"github.com/miwnode/miwnode/fsm"
)

var (
	twinWorkerIDs  = []string{workerID("x"), workerID("y"), workerID("z")}
	twinWorkerKeys = []string{
		fsm.WorkerKey(workerID("x")), fsm.WorkerKey(workerID("y")), fsm.WorkerKey(workerID("z")),
		fsm.LoadKey(workerID("x")), fsm.LoadKey(workerID("y")), fsm.LoadKey(workerID("z")),
		"workers/w1", "workers/w2",
	}
	twinRuntimes = [][]string{{"exec"}, {"exec", "func:one"}, {"exec", "func:one", "func:two"}, {"func:two"}}
)

// workerOp makes a command of workers in the same small world.
func (g *generator) workerOp() fsm.Op {
	t := g.twin
	if t.version < 3 && g.r.IntN(15) == 0 {
		return &fsm.SetVersion{Version: 3}
	}
	id := pick(g, twinWorkerIDs)
	w, etag, attempt, sha := t.workers[id], uint64(0), uint64(1), ""
	if w != nil {
		attempt, sha = w.attempt, w.next.sha
		if g.r.IntN(4) == 0 {
			etag = w.etag
		}
	}
	if g.r.IntN(12) == 0 {
		etag += uint64(1 + g.r.IntN(3))
	}
	if g.r.IntN(12) == 0 {
		attempt = max(1, attempt-1)
	}
	by := pick(g, []string{"", "ann"})
	runtime, source := "exec", pick(g, []string{"./a", "./b"})
	if w != nil && w.op.Runtime == "func" || w == nil && g.r.IntN(2) == 0 {
		runtime, source = "func", pick(g, []string{"one", "two"})
	}
	digest := pick(g, []string{"", "", strings.Repeat("0b", 32)})
	switch g.r.IntN(30) {
	case 0, 1:
		op := &fsm.CreateWorker{WorkerId: id, Name: "w", Runtime: runtime, Source: source, Start: g.r.IntN(2) == 0, By: by}
		if runtime == "exec" {
			op.Sha256 = digest
		}
		return op
	case 2, 3, 4:
		return &fsm.StartWorker{WorkerId: id, Etag: etag, By: by}
	case 5:
		return &fsm.StopWorker{WorkerId: id, Etag: etag, By: by}
	case 6, 7:
		op := &fsm.ReloadWorker{WorkerId: id, Etag: etag, By: by}
		if g.r.IntN(2) == 0 {
			op.Source = source
		}
		if op.Source != "" && runtime == "exec" {
			op.Sha256 = digest
		}
		return op
	case 8:
		if g.r.IntN(2) == 0 {
			return &fsm.DeleteWorker{WorkerId: id, Etag: etag, By: by}
		}
		fallthrough
	case 9:
		return &fsm.SetWorkerTags{WorkerId: id, Etag: etag, Tags: fsm.LabelsOf(map[string]string{"t": fmt.Sprint(g.r.IntN(3))})}
	case 10, 11:
		return &fsm.BeginLoad{WorkerId: id, Token: g.token(fsm.LoadKey(id))}
	case 12, 13, 14, 15:
		op := &fsm.FinishLoad{WorkerId: id, Attempt: attempt, Ok: g.r.IntN(4) != 0, Tries: uint32(g.r.IntN(4))}
		if op.Ok && g.r.IntN(10) != 0 {
			op.Sha256, op.Size = sha, int64(g.r.IntN(3))
		}
		if !op.Ok {
			op.ErrorType = "too_large"
		}
		return op
	}
	if s := t.sessions[g.memberOf(fsm.WorkersGroup)]; s != nil && s.open.InstanceId != "" && t.version >= 3 {
		switch g.r.IntN(4) {
		case 0: // more than plans do, for which many things have to come together
			return &fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: g.session(), Runtimes: pick(g, twinRuntimes), Prepares: g.r.IntN(2) == 0}
		case 1, 2:
			return &fsm.MoveWorkload{Group: fsm.WorkersGroup, Workload: id, ToInstance: s.open.InstanceId}
		}
	}
	op := &fsm.FinishRun{WorkerId: id, Token: g.token(fsm.WorkerKey(id)), Attempt: 1, Ok: g.r.IntN(2) == 0}
	if w != nil && g.r.IntN(6) > 0 {
		op.Attempt = max(1, w.loaded)
	}
	if !op.Ok {
		op.ErrorType = "exited"
	}
	return op
}
