package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// pageWorkerBytes is how much the records of a page of workers have together,
// save for the last of them.
const pageWorkerBytes = 4 << 20

// workers lists the workers that match all filters.
func (c *call) workers() (any, int, error) {
	limit, err := c.limit()
	if err != nil {
		return nil, 0, err
	}
	filter, err := c.workerFilter()
	if err != nil {
		return nil, 0, err
	}
	view, age, err := c.read()
	if err != nil {
		return nil, 0, err
	}
	name, named := c.query["name"]
	answer := Workers{Revision: view.Revision(), Age: age, Workers: []Worker{}}
	size := 0
	for w := range worker.NewClient(frozen{view}).List(filter) {
		if named && w.Name != name {
			continue
		}
		if n := len(answer.Workers); n == limit || size > pageWorkerBytes {
			answer.Next = answer.Workers[n-1].WorkerID
			break
		}
		size += sizeOf(w.Worker)
		answer.Workers = append(answer.Workers, workerOf(view, w))
	}
	return answer, http.StatusOK, nil
}

func (c *call) workerFilter() (worker.Filter, error) {
	f := worker.Filter{After: c.query["after"], Runtime: c.query["runtime"]}
	if state, given := c.query["state"]; given {
		for s := fsm.WorkerLoading; s <= fsm.WorkerFailed; s++ {
			if s.String() == state {
				f.State = s
			}
		}
		if f.State == 0 {
			return f, invalid("state is %q: it must be loading, stopped, running, load_failed or failed", state)
		}
	}
	for _, tag := range c.repeated["tag"] {
		k, v, ok := strings.Cut(tag, "=")
		if !ok || k == "" {
			return f, invalid("tag is %q: it must be key=value", tag)
		}
		if other, twice := f.Tags[k]; twice && other != v {
			return f, invalid("tag %q is to be %q and %q: no worker has both", k, other, v)
		}
		if f.Tags == nil {
			f.Tags = map[string]string{}
		}
		f.Tags[k] = v
	}
	return f, nil
}

// sizeOf is about how much there is to show of a worker.
func sizeOf(w *fsm.Worker) int {
	n := len(w.Name) + len(w.Config)
	for _, s := range w.History {
		n += len(s.Text) + len(s.By)
	}
	for _, a := range w.Args {
		n += len(a)
	}
	for _, l := range w.Env {
		n += len(l.Key) + len(l.Value)
	}
	for _, l := range w.Tags {
		n += len(l.Key) + len(l.Value)
	}
	return n
}

func (c *call) worker() (any, int, error) {
	view, age, err := c.read()
	if err != nil {
		return nil, 0, err
	}
	w, err := worker.NewClient(frozen{view}).Get(c.r.PathValue("id"))
	if err != nil {
		return nil, 0, err
	}
	answer := workerOf(view, w)
	answer.Revision, answer.Age = view.Revision(), age
	c.setEtag(w.Etag)
	return answer, http.StatusOK, nil
}

func workerOf(view *fsm.View, w worker.Worker) Worker {
	out := Worker{
		WorkerID: w.ID, Name: w.Name, Runtime: w.Runtime, State: w.State.String(),
		StartRequested: w.StartRequested, KeepsRunning: w.KeepsRunning, Attempts: int(w.Tries), Lacks: w.Lacks,
		InstanceID: w.InstanceID, Token: w.Token, Restart: w.Restart, Args: w.Args, Config: w.Config, Tags: labelsOf(w.Tags),
		CreatedAt: stamp(w.CreatedAt), ChangedAt: stamp(w.ChangedAt), Etag: w.Etag, History: []WorkerSource{},
	}
	if len(w.Env) > 0 {
		out.Env = labelsOf(w.Env)
	}
	src := w.Current
	switch {
	case src == nil:
		src = w.Next
	case w.Next != nil:
		next := sourceOf(w.Next)
		out.Next = &next
	}
	if src != nil {
		out.Source, out.SHA256, out.Size = src.Text, src.SHA256, src.Size
	}
	if e := w.Error; e != nil {
		out.Error = &WorkerError{Type: e.Type, Message: e.Message}
	}
	if f := w.Failing; f != nil {
		out.Failing = &WorkerFailing{
			Count: f.Count, Error: WorkerError{Type: f.Error.Type, Message: f.Error.Message}, NodeID: f.Instance.NodeID, At: stamp(f.At),
		}
		if f.Next != 0 {
			next := stamp(f.Next)
			out.Failing.NextTry = &next
		}
	}
	if l, ok := view.Lease(fsm.WorkerKey(w.ID)); ok && w.Token == l.Token {
		out.NodeID = l.Who.NodeID
	}
	for i := range w.History {
		out.History = append(out.History, sourceOf(&w.History[i]))
	}
	return out
}

func sourceOf(s *fsm.Source) WorkerSource {
	return WorkerSource{Source: s.Text, SHA256: s.SHA256, Size: s.Size, By: s.By, At: stamp(s.At)}
}

// frozen is one view of the state, to be read as a catalog.
type frozen struct{ view *fsm.View }

func (f frozen) View() *fsm.View { return f.view }

func (f frozen) Submit(context.Context, fsm.Op) (*fsm.Result, error) {
	return nil, fsm.Errorf(fsm.CodeInternal, "a view can't be changed")
}

func (c *call) setEtag(etag uint64) {
	c.w.Header().Set("ETag", `"`+strconv.FormatUint(etag, 10)+`"`)
}

// ifMatch is the etag that the caller wants the record to have, 0 for any. It is
// a number, in quotes or without.
func (c *call) ifMatch() (uint64, error) {
	values := c.r.Header.Values("If-Match")
	if len(values) == 0 || len(values) == 1 && values[0] == "*" {
		return 0, nil
	}
	text := values[0]
	if n := len(text); n > 2 && text[0] == '"' && text[n-1] == '"' {
		text = text[1 : n-1]
	}
	etag, err := strconv.ParseUint(text, 10, 64)
	if len(values) > 1 || err != nil || etag == 0 {
		return 0, invalid("If-Match is %q: it must be one etag as answers have it, a whole number above 0", strings.Join(values, ", "))
	}
	return etag, nil
}
