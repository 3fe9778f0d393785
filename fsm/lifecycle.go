package fsm

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// The lives of workers: loading → stopped, running or load_failed; running ⇄
// stopped, running → failed; a reload leads from any of them to loading again.

// worker returns the record that a command names, with the etag that it expects.
func (s *State) worker(id string, etag uint64) (*Worker, error) {
	w, ok := s.workers.Get(id)
	if !ok {
		return nil, Errorf(CodeNotFound, "no worker %s", id)
	}
	if etag != 0 && etag != w.Etag {
		return nil, Errorf(CodeETagMismatch, "the worker is at etag %d, not %d: it was changed meanwhile, read it again", w.Etag, etag)
	}
	return w, nil
}

func (s *State) createWorker(op *CreateWorker, r *Result) error {
	if _, ok := s.workers.Get(op.WorkerId); ok {
		return Errorf(CodeAlreadyExists, "there is a worker %s", op.WorkerId)
	}
	if s.workers.Len() >= MaxWorkers {
		return Errorf(CodeOverloaded, "there are %d workers, no more are taken", s.workers.Len())
	}
	src := s.sourceOf(op.Source, op.Sha256, op.By)
	next := &Worker{
		ID:             op.WorkerId,
		Name:           op.Name,
		Runtime:        op.Runtime,
		Next:           &src,
		History:        []Source{src},
		Args:           op.Args,
		Env:            labelsFrom(op.Env),
		Config:         bytes.Clone(op.Config),
		Tags:           labelsFrom(op.Tags),
		Restart:        cmp.Or(op.Restart, RestartOnFailure),
		State:          WorkerLoading,
		StartRequested: op.Start,
		Attempt:        1,
		CreatedAt:      s.stamp,
	}
	if err := s.roomForBytes(nil, next); err != nil {
		return err
	}
	if _, known := s.groups.Get(WorkersGroup); !known {
		if err := s.roomForGroup(); err != nil {
			return err
		}
		s.raise(s.makeGroup(WorkersGroup))
	}
	s.emitWorker(EventWorkerCreated, next, nobody, op.By, nil)
	s.putWorker(nil, next, r)
	r.WorkerId = next.ID
	return nil
}

func (s *State) sourceOf(text, sha256, by string) Source {
	if digest, ok := strings.CutPrefix(text, "sha256:"); ok {
		sha256 = digest
	}
	return Source{Text: text, SHA256: sha256, By: by, At: s.stamp}
}

func (s *State) startWorker(op *StartWorker, r *Result) error {
	w, err := s.worker(op.WorkerId, op.Etag)
	if err != nil {
		return err
	}
	next := *w
	switch {
	case w.State == WorkerLoadFailed:
		return Errorf(CodeWrongState, "the load of the worker failed: reload it, so that it can start")
	case w.State == WorkerRunning, w.State == WorkerLoading && w.StartRequested:
		r.Total = w.Etag
		return nil
	case w.State == WorkerLoading:
		next.StartRequested = true
		s.emitWorker(EventWorkerStartRequested, &next, nobody, op.By, nil)
	default:
		next.State = WorkerRunning
		if w.State == WorkerFailed {
			next.Error = nil
		}
		s.emitWorker(EventWorkerStarted, &next, nobody, op.By, nil)
		s.forgetRun(w.ID)
	}
	s.putWorker(w, &next, r)
	return nil
}

func (s *State) stopWorker(op *StopWorker, r *Result) error {
	w, err := s.worker(op.WorkerId, op.Etag)
	if err != nil {
		return err
	}
	if !w.StartRequested && !w.Wanted() {
		r.Total = w.Etag
		return nil
	}
	next := *w
	if w.StartRequested {
		next.StartRequested = false
		s.emitWorker(EventWorkerStartWithdrawn, &next, nobody, op.By, nil)
	}
	if w.Wanted() {
		next.KeepsRunning = false
		if w.State == WorkerRunning {
			next.State = WorkerStopped
		}
		s.emitWorker(EventWorkerStopped, &next, s.runnerOf(w), op.By, nil)
	}
	s.putWorker(w, &next, r)
	return nil
}

func (s *State) reloadWorker(op *ReloadWorker, r *Result) error {
	w, err := s.worker(op.WorkerId, op.Etag)
	if err != nil {
		return err
	}
	if w.State == WorkerLoading {
		return Errorf(CodeWrongState, "the worker is loading already")
	}
	next := *w
	src := w.again()
	if op.Source != "" {
		src = s.sourceOf(op.Source, op.Sha256, op.By)
		next.History = append(slices.Clone(w.History), src)
		next.History = next.History[max(0, len(next.History)-MaxSources):]
	}
	if err := s.roomForBytes(w, &next); err != nil {
		return err
	}
	next.Next, next.State, next.KeepsRunning = &src, WorkerLoading, w.State == WorkerRunning
	next.Attempt = w.Attempt + 1
	s.emitWorker(EventWorkerReloading, &next, s.runnerOf(w), op.By, nil)
	s.putWorker(w, &next, r)
	return nil
}

func (s *State) deleteWorker(op *DeleteWorker, r *Result) error {
	w, err := s.worker(op.WorkerId, op.Etag)
	if err != nil {
		return err
	}
	s.emitWorker(EventWorkerDeleted, w, s.runnerOf(w), op.By, nil)
	s.dropWorker(w)
	r.Total = w.Etag
	return nil
}

func (s *State) setWorkerTags(op *SetWorkerTags, r *Result) error {
	w, err := s.worker(op.WorkerId, op.Etag)
	if err != nil {
		return err
	}
	next := *w
	next.Tags = labelsFrom(op.Tags)
	if slices.Equal(w.Tags, next.Tags) {
		r.Total = w.Etag
		return nil
	}
	if err := s.roomForBytes(w, &next); err != nil {
		return err
	}
	s.putWorker(w, &next, r)
	return nil
}

func (s *State) beginLoad(op *BeginLoad, r *Result) error {
	w, err := s.worker(op.WorkerId, 0)
	if err != nil {
		return err
	}
	l, ok := s.leases.Get(LoadKey(w.ID))
	if !ok || l.Token != op.Token || l.State != Held && l.State != Transferring {
		return Errorf(CodeStaleToken, "token %d is not that of who may load the worker", op.Token)
	}
	if err := loading(w); err != nil {
		return err
	}
	if w.DriverToken == op.Token {
		r.Token, r.Total = w.Attempt, w.Etag
		return nil
	}
	next := *w
	next.Attempt, next.DriverToken = w.Attempt+1, op.Token
	s.putWorker(w, &next, r)
	r.Token = next.Attempt
	return nil
}

// loading refuses what is for a worker that is loading.
func loading(w *Worker) error {
	if w.State == WorkerLoading {
		return nil
	}
	return Errorf(CodeWrongState, "the worker is not loading, it is %v", w.State)
}

func (s *State) finishLoad(op *FinishLoad, r *Result) error {
	w, err := s.worker(op.WorkerId, 0)
	if err != nil {
		return err
	}
	if err := loading(w); err != nil {
		return err
	}
	if op.Attempt != w.Attempt && !s.defects.LateLoad {
		return Errorf(CodeWrongState, "the attempt %d is over, the present one is %d", op.Attempt, w.Attempt)
	}
	if op.Ok && w.Next.SHA256 != "" && op.Sha256 != w.Next.SHA256 {
		return invalid("sha256", "is %q, but the worker is to have %s", op.Sha256, w.Next.SHA256)
	}
	next := *w
	next.Tries, next.DriverToken = op.Tries, 0
	if op.Ok {
		s.loaded(&next, op, s.driverOf(w))
	} else {
		s.loadFailed(&next, op, s.driverOf(w))
	}
	s.putWorker(w, &next, r)
	return nil
}

// loaded makes what was loaded current, and starts what was to start.
func (s *State) loaded(next *Worker, op *FinishLoad, driver *Identity) {
	src := *next.Next
	src.SHA256, src.Size = op.Sha256, op.Size
	// What is loaded is the last that was asked for.
	next.History = slices.Clone(next.History)
	next.History[len(next.History)-1] = src
	next.Current, next.Next, next.Error = &src, nil, nil
	next.Loaded = next.Attempt
	starts := next.StartRequested && !next.KeepsRunning && !s.defects.LostStart
	next.State = WorkerStopped
	if starts || next.KeepsRunning {
		next.State = WorkerRunning
	}
	next.StartRequested, next.KeepsRunning = false, false
	s.forgetRun(next.ID)
	s.emitWorker(EventWorkerLoaded, next, driver, "", nil)
	if starts {
		s.emitWorker(EventWorkerStarted, next, nobody, "", nil)
	}
}

func (s *State) loadFailed(next *Worker, op *FinishLoad, driver *Identity) {
	next.Error = &WorkerError{Type: op.ErrorType, Message: op.Message}
	next.State = WorkerLoadFailed
	if next.KeepsRunning {
		next.State, next.StartRequested, next.KeepsRunning = WorkerRunning, false, false
	}
	s.emitWorker(EventWorkerLoadFailed, next, driver, "", next.Error)
}

func (s *State) finishRun(op *FinishRun, r *Result) error {
	w, err := s.worker(op.WorkerId, 0)
	if err != nil {
		return err
	}
	l, err := s.named(WorkerKey(w.ID), op.Token)
	// A run that was told to stop ends nothing that was started since.
	if err != nil || l.Group != WorkersGroup || w.Wanted() && l.Token <= w.StartedAfter {
		return Errorf(CodeStaleToken, "token %d is not that of who runs the worker", op.Token)
	}
	if !w.Wanted() {
		return Errorf(CodeWrongState, "the worker is not to run, it is %v", w.State)
	}
	// Nor does one of the code that a reload has replaced end what came after it.
	if op.Attempt != w.Loaded {
		return Errorf(CodeWrongState, "what ran was loaded by attempt %d, and has been replaced by that of attempt %d", op.Attempt, w.Loaded)
	}
	next := *w
	next.KeepsRunning, next.Error = false, nil
	state, event := WorkerStopped, EventWorkerStopped
	if !op.Ok {
		state, event = WorkerFailed, EventWorkerFailed
		next.Error = &WorkerError{Type: op.ErrorType, Message: op.Message}
	}
	if w.State == WorkerRunning {
		next.State = state
	}
	s.emitWorker(event, &next, l.Who, "", next.Error)
	s.putWorker(w, &next, r)
	return nil
}

// driverOf returns who loads a worker, as far as that is known.
func (s *State) driverOf(w *Worker) *Identity {
	if l, ok := s.leases.Get(LoadKey(w.ID)); ok && l.Token == w.DriverToken {
		return l.Who
	}
	return nobody
}

// runnerOf returns who has the lease of a worker.
func (s *State) runnerOf(w *Worker) *Identity {
	if l, ok := s.leases.Get(WorkerKey(w.ID)); ok && l.Group == WorkersGroup {
		return l.Who
	}
	return nobody
}

func (s *State) emitWorker(t EventType, w *Worker, who *Identity, by string, err *WorkerError) {
	s.emit(Event{
		Type: t, Key: WorkerKey(w.ID), Who: who, Note: noteOf(by, "", ""),
		Worker: &WorkerNote{Name: w.Name, Runtime: w.Runtime, State: w.State, StartRequested: w.StartRequested, Error: err},
	})
}
