package node

import (
	"errors"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/transport"
)

// Step is a place in the work of a node before or after which a crash must do no
// harm: where something becomes durable, and where something is answered that a
// promise hangs on. Seams.Step is told of each.
type Step string

// The steps. What is written is durable only at the step that is in the past
// tense; before that a crash may leave all, half or nothing of it.
const (
	StepLogWrite  Step = "log write" // of entries, to the journal
	StepLogSync   Step = "log sync"  // they are written but not synced
	StepLogSynced Step = "log synced"
	StepLogBegin  Step = "log begin" // of the journal's next epoch, which forgets what is in it
	StepLogBegun  Step = "log begun"
	StepLogMove   Step = "log move" // of entries from the journal to bolt
	StepLogMoved  Step = "log moved"
	StepLogCut    Step = "log cut" // behind a snapshot, or of what another leader overwrites
	StepLogWasCut Step = "log was cut"

	StepTermSave      Step = "term save"
	StepTermSaved     Step = "term saved"
	StepVoteTermSave  Step = "vote term save"
	StepVoteTermSaved Step = "vote term saved"
	StepVoteSave      Step = "vote save"
	StepVoteSaved     Step = "vote saved"

	StepSnapshotCreate   Step = "snapshot create"
	StepSnapshotCreated  Step = "snapshot created"
	StepSnapshotWrote    Step = "snapshot wrote" // a part of it
	StepSnapshotClose    Step = "snapshot close" // syncs it and gives it its name
	StepSnapshotClosed   Step = "snapshot closed"
	StepSnapshotRestore  Step = "snapshot restore" // an error is the reader's
	StepSnapshotRestored Step = "snapshot restored"

	StepIdentityWrite    Step = "identity write"
	StepIdentityRenamed  Step = "identity renamed"
	StepIdentityWritten  Step = "identity written"
	StepPromiseWrite     Step = "promise write"
	StepPromiseRenamed   Step = "promise renamed"
	StepPromiseWritten   Step = "promise written"
	StepAddressesWrite   Step = "addresses write"
	StepAddressesRenamed Step = "addresses renamed"
	StepAddressesWritten Step = "addresses written"

	// Of raft's calls, at the end that answers. What is answered to is on its way
	// to the peer when the step after it is told of.
	StepVoteAnswer     Step = "vote answer"
	StepVoteAnswered   Step = "vote answered"
	StepAppendAnswer   Step = "append answer"
	StepAppendAnswered Step = "append answered"

	StepRestartProof  Step = "restart proof"  // made; the session is opened next
	StepSessionOpened Step = "session opened" // the node's own

	StepCommandsPropose   Step = "commands propose" // by the leader, to raft
	StepCommandsCommitted Step = "commands committed"
	StepGrantAnswer       Step = "grant answer" // to who asked this node
	StepReleaseAnswer     Step = "release answer"

	StepCommandsAnswer    Step = "commands answer" // by the leader, to the node that sent them
	StepCommandsAnswered  Step = "commands answered"
	StepKeepAliveAnswer   Step = "keep-alive answer"
	StepKeepAliveAnswered Step = "keep-alive answered"
	StepTermAnswer        Step = "term answer" // a part of the proof of leadership
	StepTermAnswered      Step = "term answered"
	StepReadAnswer        Step = "read answer"
	StepReadAnswered      Step = "read answered"
	StepPromiseAnswer     Step = "promise answer"
	StepPromiseAnswered   Step = "promise answered"
)

var allSteps = []Step{
	StepLogWrite, StepLogSync, StepLogSynced, StepLogBegin, StepLogBegun, StepLogMove, StepLogMoved, StepLogCut, StepLogWasCut,
	StepTermSave, StepTermSaved, StepVoteTermSave, StepVoteTermSaved, StepVoteSave, StepVoteSaved,
	StepSnapshotCreate, StepSnapshotCreated, StepSnapshotWrote, StepSnapshotClose, StepSnapshotClosed, StepSnapshotRestore, StepSnapshotRestored,
	StepIdentityWrite, StepIdentityRenamed, StepIdentityWritten, StepPromiseWrite, StepPromiseRenamed, StepPromiseWritten,
	StepAddressesWrite, StepAddressesRenamed, StepAddressesWritten,
	StepVoteAnswer, StepVoteAnswered, StepAppendAnswer, StepAppendAnswered,
	StepRestartProof, StepSessionOpened,
	StepCommandsPropose, StepCommandsCommitted, StepGrantAnswer, StepReleaseAnswer,
	StepCommandsAnswer, StepCommandsAnswered, StepKeepAliveAnswer, StepKeepAliveAnswered, StepTermAnswer, StepTermAnswered,
	StepReadAnswer, StepReadAnswered, StepPromiseAnswer, StepPromiseAnswered,
}

// Steps lists all steps.
func Steps() []Step { return slices.Clone(allSteps) }

// ErrTorn, returned at StepLogSync, is a loss of power: half of what was written
// and not synced is lost.
var ErrTorn = errors.New("half of it was written")

// step tells of a step. An error says that it is not taken. Nil seams are none.
func (s *Seams) step(name Step) error {
	if s == nil || s.Step == nil {
		return nil
	}
	return s.Step(name)
}

// around tells of the steps before and after do.
func (s *Seams) around(before, after Step, do func() error) error {
	if s == nil || s.Step == nil {
		return do()
	}
	if err := s.Step(before); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return s.Step(after)
}

// killed tells whether the node is to end as by kill -9.
func (s *Seams) killed() bool {
	select {
	case <-s.Kill:
		return true
	default:
		return false
	}
}

// watchedJournal tells of what is written to the journal. Its writer is one at a time.
type watchedJournal struct {
	journalFile
	seams *Seams

	at    int64 // of the last write
	bytes int
}

// WriteAt implements io.WriterAt.
func (w *watchedJournal) WriteAt(b []byte, at int64) (int, error) {
	before := StepLogWrite
	if at < frameStart {
		before = StepLogBegin
	}
	if err := w.seams.step(before); err != nil {
		return 0, err
	}
	w.at, w.bytes = at, len(b)
	return w.journalFile.WriteAt(b, at)
}

// Sync implements journalFile.
func (w *watchedJournal) Sync() error {
	after := StepLogSynced
	if w.at < frameStart {
		after = StepLogBegun
	} else if err := w.seams.step(StepLogSync); err != nil {
		if errors.Is(err, ErrTorn) {
			half := w.bytes / 2
			_, _ = w.journalFile.WriteAt(make([]byte, w.bytes-half), w.at+int64(half)) // it fails anyway
		}
		return err
	}
	if err := w.journalFile.Sync(); err != nil {
		return err
	}
	return w.seams.step(after)
}

// watchedBolt tells of the entries that are moved to bolt.
type watchedBolt struct {
	boltLog
	seams *Seams
}

// StoreLogs implements boltLog.
func (w watchedBolt) StoreLogs(logs []*raft.Log) error {
	return w.seams.around(StepLogMove, StepLogMoved, func() error { return w.boltLog.StoreLogs(logs) })
}

// stableSteps are those around the saving of a key beside the log.
func stableSteps(key []byte) (before, after Step) {
	switch string(key) {
	case "LastVoteTerm":
		return StepVoteTermSave, StepVoteTermSaved
	case "LastVoteCand":
		return StepVoteSave, StepVoteSaved
	}
	return StepTermSave, StepTermSaved
}

// fileSteps are those around the writing of a file of the folder.
type fileSteps struct{ write, renamed, written Step }

var stepsOfFile = map[string]fileSteps{
	identityFile: {StepIdentityWrite, StepIdentityRenamed, StepIdentityWritten},
	promiseFile:  {StepPromiseWrite, StepPromiseRenamed, StepPromiseWritten},
	peersFile:    {StepAddressesWrite, StepAddressesRenamed, StepAddressesWritten},
}

// answerSteps are those around the answer to a call.
type answerSteps struct{ answer, answered Step }

var stepsOfMethod = map[transport.Method]answerSteps{
	methodPropose:   {StepCommandsAnswer, StepCommandsAnswered},
	methodKeepAlive: {StepKeepAliveAnswer, StepKeepAliveAnswered},
	methodTerm:      {StepTermAnswer, StepTermAnswered},
	methodReadIndex: {StepReadAnswer, StepReadAnswered},
	methodPromise:   {StepPromiseAnswer, StepPromiseAnswered},
}

// answer tells of the step before an answer to a call is given.
func (s *Seams) answer(m transport.Method) error {
	if s.Step == nil {
		return nil
	}
	if of, ok := stepsOfMethod[m]; ok {
		return s.Step(of.answer)
	}
	return nil
}

// answered is told by the transport of an answer that was given; nil if nobody
// wants to know.
func (s *Seams) answered() func(transport.Method) {
	if s.Step == nil {
		return nil
	}
	return func(m transport.Method) {
		if of, ok := stepsOfMethod[m]; ok {
			_ = s.Step(of.answered) // it is given
		}
	}
}

// stepOf is the step before the answer to a command of this node's own.
func stepOf(op fsm.Op) (Step, bool) {
	switch op.(type) {
	case *fsm.Acquire:
		return StepGrantAnswer, true
	case *fsm.Release:
		return StepReleaseAnswer, true
	}
	return "", false
}

// watchedCalls passes the calls of raft's peers on to raft, one after the other
// as raft takes them, and tells of its answers; it ends when closing is closed.
func watchedCalls(calls <-chan raft.RPC, closing <-chan struct{}, step func(Step) error) <-chan raft.RPC {
	passed := make(chan raft.RPC)
	go func() {
		for {
			var call raft.RPC
			select {
			case call = <-calls:
			case <-closing:
				return
			}
			to, answer := call.RespChan, make(chan raft.RPCResponse, 1)
			call.RespChan = answer
			select {
			case passed <- call:
			case <-closing:
				return
			}
			var r raft.RPCResponse
			select {
			case r = <-answer:
			case <-closing:
				return
			}
			var of answerSteps
			switch call.Command.(type) {
			case *raft.RequestVoteRequest:
				of = answerSteps{StepVoteAnswer, StepVoteAnswered}
			case *raft.AppendEntriesRequest, *raft.InstallSnapshotRequest:
				of = answerSteps{StepAppendAnswer, StepAppendAnswered}
			default:
				to <- r
				continue
			}
			if step(of.answer) != nil {
				continue // who asked waits until raft's transport is closed
			}
			to <- r
			_ = step(of.answered) // it is given
		}
	}()
	return passed
}
