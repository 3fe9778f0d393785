package fsm

import (
	"errors"
	"fmt"

	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// The records of workers in a snapshot, and how they are read.

func (w *Worker) record() *fsmpb.WorkerRecord {
	r := &fsmpb.WorkerRecord{
		WorkerId:       w.ID,
		Name:           w.Name,
		Runtime:        w.Runtime,
		Current:        w.Current.record(),
		Next:           w.Next.record(),
		Args:           w.Args,
		Env:            wireLabels(w.Env),
		Config:         w.Config,
		Tags:           wireLabels(w.Tags),
		Restart:        w.Restart,
		State:          fsmpb.WorkerState(w.State),
		StartRequested: w.StartRequested,
		KeepsRunning:   w.KeepsRunning,
		Error:          w.Error.record(),
		Attempt:        w.Attempt,
		DriverToken:    w.DriverToken,
		Loaded:         w.Loaded,
		StartedAfter:   w.StartedAfter,
		Tries:          w.Tries,
		Etag:           w.Etag,
		CreatedAt:      w.CreatedAt,
		ChangedAt:      w.ChangedAt,
		Revision:       w.Revision,
	}
	for i := range w.History {
		r.History = append(r.History, w.History[i].record())
	}
	return r
}

func workerFrom(r *fsmpb.WorkerRecord) *Worker {
	w := &Worker{
		ID:             r.WorkerId,
		Name:           r.Name,
		Runtime:        r.Runtime,
		Current:        sourceFrom(r.Current),
		Next:           sourceFrom(r.Next),
		Args:           r.Args,
		Env:            labelsFrom(r.Env),
		Config:         r.Config,
		Tags:           labelsFrom(r.Tags),
		Restart:        r.Restart,
		State:          WorkerState(r.State),
		StartRequested: r.StartRequested,
		KeepsRunning:   r.KeepsRunning,
		Error:          workerErrorFrom(r.Error),
		Attempt:        r.Attempt,
		DriverToken:    r.DriverToken,
		Loaded:         r.Loaded,
		StartedAfter:   r.StartedAfter,
		Tries:          r.Tries,
		Etag:           r.Etag,
		CreatedAt:      r.CreatedAt,
		ChangedAt:      r.ChangedAt,
		Revision:       r.Revision,
	}
	for _, h := range r.History {
		w.History = append(w.History, *sourceFrom(h))
	}
	return w
}

func (s *Source) record() *fsmpb.SourceRecord {
	if s == nil {
		return nil
	}
	return &fsmpb.SourceRecord{Text: s.Text, Sha256: s.SHA256, Size: s.Size, By: s.By, At: s.At}
}

func sourceFrom(r *fsmpb.SourceRecord) *Source {
	if r == nil {
		return nil
	}
	return &Source{Text: r.Text, SHA256: r.Sha256, Size: r.Size, By: r.By, At: r.At}
}

func (e *WorkerError) record() *fsmpb.WorkerErrorRecord {
	if e == nil {
		return nil
	}
	return &fsmpb.WorkerErrorRecord{Type: e.Type, Message: e.Message}
}

func workerErrorFrom(r *fsmpb.WorkerErrorRecord) *WorkerError {
	if r == nil {
		return nil
	}
	return &WorkerError{Type: r.Type, Message: r.Message}
}

func (n *WorkerNote) record() *fsmpb.WorkerNoteRecord {
	if n == nil {
		return nil
	}
	return &fsmpb.WorkerNoteRecord{
		Name: n.Name, Runtime: n.Runtime, State: fsmpb.WorkerState(n.State), StartRequested: n.StartRequested, Error: n.Error.record(),
	}
}

func workerNoteOf(r *fsmpb.WorkerNoteRecord) *WorkerNote {
	if r == nil {
		return nil
	}
	return &WorkerNote{
		Name: r.Name, Runtime: r.Runtime, State: WorkerState(r.State), StartRequested: r.StartRequested, Error: workerErrorFrom(r.Error),
	}
}

func (l *loader) worker(r *fsmpb.WorkerRecord) error {
	if err := l.in(recWorker, r.WorkerId); err != nil {
		return err
	}
	if !knownState(r.State) {
		return &VersionError{What: fmt.Sprintf("worker state %d", r.State)}
	}
	if l.s.workers.Len() >= MaxWorkers {
		return errors.New("too many workers")
	}
	g, ok := l.s.groups.Get(WorkersGroup)
	if !ok || g.derived == nil {
		return errors.New("a worker without the group of the workers")
	}
	w := workerFrom(r)
	if err := first(workerID(w.ID), runtimeName(w.Runtime), w.consistent()); err != nil {
		return err
	}
	l.s.workers.Set(w.ID, w)
	l.s.workerBytes += w.size()
	if w.State == WorkerLoading {
		l.s.loading.Set(w.ID, w)
	}
	if w.Wanted() {
		g.derived.Set(w.ID, w.spec())
	}
	return nil
}

var errWorker = errors.New("a worker contradicts itself")

// consistent checks what the rules rest on.
func (w *Worker) consistent() error {
	loads := w.State == WorkerLoading || w.State == WorkerLoadFailed
	n := len(w.History)
	switch {
	case n == 0, n > MaxSources, w.Attempt == 0, w.Etag == 0:
	case w.Next == nil && (loads || w.Current == nil):
	case w.Current == nil && (w.Wanted() || !loads):
	case (w.Current == nil) != (w.Loaded == 0), w.Loaded > w.Attempt:
	case w.KeepsRunning && w.State != WorkerLoading:
	case w.StartRequested && !loads:
	case w.DriverToken != 0 && w.State != WorkerLoading:
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", errWorker, w.ID)
}
