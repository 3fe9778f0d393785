package api

import (
	"context"
	"net/http"
	"time"

	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// Catalog is what changes workers; *worker.Catalog and *worker.Client do.
type Catalog interface {
	Check(s worker.Spec) error
	Create(ctx context.Context, s worker.Spec, options ...worker.Option) (worker.Worker, error)
	Start(ctx context.Context, id string, options ...worker.Option) (etag uint64, err error)
	Stop(ctx context.Context, id string, options ...worker.Option) (etag uint64, err error)
	Reload(ctx context.Context, id string, s worker.Source, options ...worker.Option) (etag uint64, err error)
	SetTags(ctx context.Context, id string, tags map[string]string, options ...worker.Option) (etag uint64, err error)
	Delete(ctx context.Context, id string, options ...worker.Option) error
}

var (
	_ Catalog = (*worker.Catalog)(nil)
	_ Catalog = (*worker.Client)(nil)
)

// WithCatalog has workers created and changed through this catalog: that of the
// node, if it runs workers, so that it loads first what it was asked for.
// Without it, others load them.
func WithCatalog(cat Catalog) Option {
	return func(h *handler) { h.catalog = cat }
}

// proposing is the node as a call may use it: what is proposed outlives its
// caller, under the call's Idempotency-Key.
type proposing struct{ c *call }

func (p proposing) View() *fsm.View { return p.c.node.View() }

func (p proposing) Submit(ctx context.Context, op fsm.Op) (*fsm.Result, error) {
	opts, err := p.c.idempotency()
	if err != nil {
		return nil, err
	}
	return p.c.node.Propose(ctx, op, opts...)
}

// catalog is what a call changes workers through.
func (c *call) catalog() Catalog {
	if c.h.catalog != nil {
		return c.h.catalog
	}
	return c.recorder()
}

// recorder only records what is asked for, and has nothing loaded here first.
func (c *call) recorder() Catalog { return worker.NewClient(proposing{c}) }

// createWorker records a worker. What its source is, loading finds out; but a
// file of this node is taken into the store at once, so that other nodes can
// have it, and as it is now.
func (c *call) createWorker() (any, int, error) {
	var req CreateWorkerRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	if err := c.knownRuntime(req.Runtime); err != nil {
		return nil, 0, err
	}
	spec := worker.Spec{
		Name: req.Name, Runtime: req.Runtime, Source: req.Source, SHA256: req.SHA256, Args: req.Args, Env: req.Env,
		Config: req.Config, Tags: req.Tags, Restart: req.Restart, Start: req.Start,
	}
	cat := c.catalog()
	if err := cat.Check(spec); err != nil {
		return nil, 0, err
	}
	source, missing, err := c.takeIn(req.Runtime, worker.Source{Text: req.Source, SHA256: req.SHA256})
	if err != nil {
		return nil, 0, err
	}
	if missing {
		cat = c.recorder()
	}
	spec.Source, spec.SHA256 = source.Text, source.SHA256
	ctx, cancel := c.outliving()
	defer cancel()
	w, err := cat.Create(ctx, spec, worker.By(req.By), worker.Via(proposing{c}))
	if err != nil {
		return nil, 0, err
	}
	c.setEtag(w.Etag)
	return WorkerChanged{
		Revision: w.Revision, WorkerID: w.ID, State: w.State.String(), StartRequested: w.StartRequested, Etag: w.Etag, Lacks: c.lacks(ctx, w.ID),
	}, http.StatusCreated, nil
}

// joinTime is what the nodes of a cluster without workers have to join once the
// first is created, before it is said that nobody can load it.
const joinTime = 500 * time.Millisecond

// lacks tells whether no node can load a worker that was created just now.
func (c *call) lacks(ctx context.Context, id string) string {
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	wake, stop := c.node.Watch(fsm.GroupTopic(fsm.WorkersGroup), fsm.WorkerTopic(id))
	defer stop()
	for {
		w, err := worker.NewClient(frozen{c.node.View()}).Get(id)
		if err != nil || w.Lacks == "" {
			return ""
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return w.Lacks
		}
	}
}

// knownRuntime refuses what no program of this product runs. One that brings a
// runtime of its own has a Catalog, which knows it.
func (c *call) knownRuntime(name string) error {
	switch name {
	case worker.RuntimeFunc, worker.RuntimeExec, worker.RuntimeWasm:
		return nil
	case "":
		return invalid("runtime is missing: it must be %s, %s or %s", worker.RuntimeExec, worker.RuntimeWasm, worker.RuntimeFunc)
	}
	if c.h.catalog != nil {
		return nil
	}
	return invalid("runtime is %q: it must be %s, %s or %s", name, worker.RuntimeExec, worker.RuntimeWasm, worker.RuntimeFunc)
}

// changing is one of the calls that change a worker by a word alone.
func changing(change func(cat Catalog, ctx context.Context, id string, options ...worker.Option) (uint64, error)) func(*call) (any, int, error) {
	return func(c *call) (any, int, error) {
		var req WorkerRequest
		if err := decodeJSON(c.body, &req); err != nil {
			return nil, 0, err
		}
		return c.changeWorker(req.By, func(ctx context.Context, cat Catalog, id string, options []worker.Option) (uint64, error) {
			return change(cat, ctx, id, options...)
		})
	}
}

// changeWorker makes a change under the etag and the key of the call. Its status
// says whether the worker is where the caller wanted it.
func (c *call) changeWorker(by string, change func(ctx context.Context, cat Catalog, id string, options []worker.Option) (uint64, error)) (any, int, error) {
	etag, err := c.ifMatch()
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := c.outliving()
	defer cancel()
	id := c.r.PathValue("id")
	if etag, err = change(ctx, c.catalog(), id, []worker.Option{worker.IfEtag(etag), worker.By(by), worker.Via(proposing{c})}); err != nil {
		return nil, 0, err
	}
	view := c.node.View()
	answer := WorkerChanged{Revision: view.Revision(), WorkerID: id, Etag: etag, State: "deleted"} // by another call, meanwhile
	if w, there := view.Worker(id); there {
		answer.State, answer.StartRequested = w.State.String(), w.StartRequested
	}
	c.setEtag(etag)
	if answer.State == fsm.WorkerLoading.String() {
		return answer, http.StatusAccepted, nil
	}
	return answer, http.StatusOK, nil
}

func (c *call) reloadWorker() (any, int, error) {
	var req ReloadWorkerRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	if req.Source == "" && req.SHA256 != "" {
		return nil, 0, invalid("sha256 is for a source: give both, or none to load the same again")
	}
	source, missing := worker.Source{Text: req.Source, SHA256: req.SHA256}, false
	if w, there := c.node.View().Worker(c.r.PathValue("id")); there && source.Text != "" {
		var err error
		if source, missing, err = c.takeIn(w.Runtime, source); err != nil {
			return nil, 0, err
		}
	}
	return c.changeWorker(req.By, func(ctx context.Context, cat Catalog, id string, options []worker.Option) (uint64, error) {
		if missing {
			cat = c.recorder()
		}
		return cat.Reload(ctx, id, source, options...)
	})
}

func (c *call) tagWorker() (any, int, error) {
	var req WorkerTagsRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	if req.Tags == nil {
		return nil, 0, invalid("tags is missing: it takes the place of all tags, {} of none")
	}
	return c.changeWorker(req.By, func(ctx context.Context, cat Catalog, id string, options []worker.Option) (uint64, error) {
		return cat.SetTags(ctx, id, req.Tags, options...)
	})
}

// deleteWorker removes a worker from any state. One that runs is told to stop.
func (c *call) deleteWorker() (any, int, error) {
	var req WorkerRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	etag, err := c.ifMatch()
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := c.outliving()
	defer cancel()
	if err := c.catalog().Delete(ctx, c.r.PathValue("id"), worker.IfEtag(etag), worker.By(req.By), worker.Via(proposing{c})); err != nil {
		return nil, 0, err
	}
	return Accepted{Revision: c.node.View().Revision()}, http.StatusOK, nil
}
