package jepsen

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

// HTTPCatalog is the workers of a cluster through the API of one node.
type HTTPCatalog struct {
	*HTTPEndpoint
	Runtime string
	Digests map[string]string // of sources that need theirs, in hex
}

var _ CatalogEndpoint = (*HTTPCatalog)(nil)

// Create implements CatalogEndpoint.
func (e *HTTPCatalog) Create(ctx context.Context, key, by string, w NewWorker) (id string, etag uint64, err error) {
	var made api.WorkerChanged
	err = e.ask(ctx, api.Request{Method: http.MethodPost, Path: "/v1/workers", IdempotencyKey: key, Body: api.CreateWorkerRequest{
		Name: w.Name, Runtime: e.Runtime, Source: w.Source, SHA256: e.Digests[w.Source], Tags: w.Tags, Start: w.Start, By: by,
	}}, &made)
	return made.WorkerID, made.Etag, err
}

// Change implements CatalogEndpoint.
func (e *HTTPCatalog) Change(ctx context.Context, key, by string, c WorkerChange) (etag uint64, err error) {
	req := api.Request{Method: http.MethodPost, Path: "/v1/workers/" + c.ID, IfMatch: c.Etag, IdempotencyKey: key}
	switch c.Kind {
	case KindReload:
		req.Path += "/reload"
		req.Body = api.ReloadWorkerRequest{Source: c.Source, SHA256: e.Digests[c.Source], By: by}
	case KindTag:
		req.Method, req.Path = http.MethodPut, req.Path+"/tags"
		req.Body = api.WorkerTagsRequest{Tags: c.Tags, By: by}
	case KindDelete:
		req.Method, req.Body = http.MethodDelete, api.WorkerRequest{By: by}
	default:
		req.Path += "/" + string(c.Kind)
		req.Body = api.WorkerRequest{By: by}
	}
	var changed api.WorkerChanged
	err = e.ask(ctx, req, &changed)
	return changed.Etag, err
}

// Show implements CatalogEndpoint.
func (e *HTTPCatalog) Show(ctx context.Context, id string) (w WorkerSeen, etag uint64, err error) {
	var got api.Worker
	if err := e.do(ctx, http.MethodGet, "/v1/workers/"+id, url.Values{"consistency": {"linearizable"}}, nil, &got); err != nil {
		return w, 0, err
	}
	w = WorkerSeen{Name: got.Name, State: got.State, StartRequested: got.StartRequested, KeepsRunning: got.KeepsRunning, Tags: TagText(got.Tags)}
	if n := len(got.History); n > 0 {
		w.Source = got.History[n-1].Source
	}
	if got.Error != nil {
		w.Error = got.Error.Type
	}
	return w, got.Etag, nil
}

// Workers lists the workers as this node's copy shows them.
func (e *HTTPEndpoint) Workers(ctx context.Context) (all []api.Worker, err error) {
	var page api.Workers
	err = e.do(ctx, http.MethodGet, "/v1/workers", url.Values{"limit": {"1000"}}, nil, &page)
	return page.Workers, err
}

// Driver is the node that loads the worker just now, or any if id is empty; ""
// if this node's copy shows none.
func (e *HTTPEndpoint) Driver(ctx context.Context, id string) string {
	var all api.Leases
	if e.do(ctx, http.MethodGet, "/v1/leases", url.Values{"prefix": {"miw/worker/"}}, nil, &all) != nil {
		return ""
	}
	for _, l := range all.Leases {
		if l.Holder != nil && (id == "" && strings.HasSuffix(l.Key, "/load") || l.Key == fsm.LoadKey(id)) {
			return l.Holder.NodeID
		}
	}
	return ""
}
