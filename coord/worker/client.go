package worker

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/miwnode/miwnode/fsm"
)

// State is what a Client needs of a node; *node.Node and every coord.Cluster
// satisfy it.
type State interface {
	// Submit proposes one command and returns its result once the local copy
	// covers it. A refusal is a result with a code, not an error.
	Submit(ctx context.Context, op fsm.Op) (*fsm.Result, error)
	// View is the local copy of the replicated state.
	View() *fsm.View
}

// Worker is a worker as a copy of the state shows it. It must not be changed.
type Worker struct {
	*fsm.Worker
	// InstanceID is the instance that has the worker, "" for none. The worker
	// runs there, or is about to, or is being stopped.
	InstanceID string
	// Token is that of its lease, 0 while nobody has it.
	Token uint64
	// Failing says that its runs fail; nil: not that is known.
	Failing *Failing
	// Lacks says why no instance can load or run it though one should, as when
	// nobody has its runtime: a sentence for people. "" if one can.
	Lacks string
}

// Option changes one request to the catalog.
type Option func(*request)

type request struct {
	etag uint64
	by   string
	via  State // nil: the Client's own
}

// IfEtag refuses the request with fsm.ErrETagMismatch unless the record is at
// that etag. It has no meaning for Create.
func IfEtag(etag uint64) Option { return func(r *request) { r.etag = etag } }

// By says who asks, for events and the history: at most 128 bytes.
func By(who string) Option { return func(r *request) { r.by = who } }

// Via proposes the request through s instead of the Client's node: so may an API
// add what its caller asked for, as the key that makes a repeat safe.
func Via(s State) Option { return func(r *request) { r.via = s } }

func requestOf(options []Option) (r request) {
	for _, set := range options {
		set(&r)
	}
	return r
}

// Client changes and reads the catalog through a node, whether or not that node
// runs workers. Every request may be made anywhere: the state carries it out,
// and whoever has the worker follows. It is safe for concurrent use.
//
// Requests return when they are recorded and wait for nothing that follows:
// loads, starts and stops. Repeating one changes nothing. Etags are those of the
// record as the request left it. Errors: fsm.ErrNotFound, fsm.ErrETagMismatch,
// fsm.ErrWrongState, fsm.ErrInvalidArgument, fsm.ErrNoQuorum (not done),
// fsm.ErrUncertain (perhaps done: ask again).
type Client struct {
	state State
}

// NewClient makes a Client of the node.
func NewClient(s State) *Client { return &Client{state: s} }

// Check refuses, as fsm.ErrInvalidArgument, what can be seen to be wrong with a
// worker before anything is done. Create does the same first.
func (c *Client) Check(s Spec) error {
	what := fmt.Sprintf("create worker %q", s.Name)
	for _, key := range slices.Sorted(maps.Keys(s.Env)) {
		if strings.HasPrefix(key, reservedEnv) {
			return invalid(what, fmt.Errorf("env %s is reserved: the node itself sets what begins with %s", key, reservedEnv))
		}
	}
	return invalid(what, fsm.Check(s.op(newID(), ""), fsm.Version))
}

// Create records a worker, which is then loaded by an instance that has its
// runtime. The Worker it returns is the record as it was made, in
// fsm.WorkerLoading.
func (c *Client) Create(ctx context.Context, s Spec, options ...Option) (Worker, error) {
	if err := c.Check(s); err != nil {
		return Worker{}, err
	}
	r := requestOf(options)
	op := s.op(newID(), r.by)
	res, err := c.submit(ctx, r, fmt.Sprintf("create worker %q", s.Name), op)
	if err != nil {
		return Worker{}, err
	}
	op.WorkerId = res.WorkerId // of a repeat, the first one's
	return Worker{Worker: s.record(op, res)}, nil
}

// Start has the worker run: at once, or as soon as it is loaded. One whose load
// failed is refused with fsm.ErrWrongState: reload it.
func (c *Client) Start(ctx context.Context, id string, options ...Option) (etag uint64, err error) {
	r := requestOf(options)
	return c.change(ctx, r, "start", id, &fsm.StartWorker{WorkerId: id, Etag: r.etag, By: r.by})
}

// Stop has the worker stop, and withdraws the request that it start.
func (c *Client) Stop(ctx context.Context, id string, options ...Option) (etag uint64, err error) {
	r := requestOf(options)
	return c.change(ctx, r, "stop", id, &fsm.StopWorker{WorkerId: id, Etag: r.etag, By: r.by})
}

// Reload loads the worker's code anew. One that runs goes on with the old code
// until the new is ready, and if that fails. One whose load failed keeps its
// request to start. fsm.ErrWrongState while it is loading.
func (c *Client) Reload(ctx context.Context, id string, s Source, options ...Option) (etag uint64, err error) {
	r := requestOf(options)
	return c.change(ctx, r, "reload", id, &fsm.ReloadWorker{WorkerId: id, Source: s.Text, Sha256: strings.ToLower(s.SHA256), Etag: r.etag, By: r.by})
}

// SetTags replaces all tags of the worker.
func (c *Client) SetTags(ctx context.Context, id string, tags map[string]string, options ...Option) (etag uint64, err error) {
	r := requestOf(options)
	return c.change(ctx, r, "set the tags of", id, &fsm.SetWorkerTags{WorkerId: id, Tags: fsm.LabelsOf(tags), Etag: r.etag, By: r.by})
}

// Delete removes the worker, whatever it does just now. If it runs, it is asked
// to stop. Its ID is never used again.
func (c *Client) Delete(ctx context.Context, id string, options ...Option) error {
	r := requestOf(options)
	_, err := c.change(ctx, r, "delete", id, &fsm.DeleteWorker{WorkerId: id, Etag: r.etag, By: r.by})
	return err
}

// Get reads a worker from the local copy.
func (c *Client) Get(id string) (Worker, error) {
	v := c.state.View()
	w, known := v.Worker(id)
	if !known {
		return Worker{}, fsm.Errorf(fsm.CodeNotFound, "no worker %s", id)
	}
	return seen(v, w), nil
}

// Filter says which workers List yields: those that match all of it.
type Filter struct {
	Tags    map[string]string
	State   fsm.WorkerState // 0 = any
	Runtime string          // "" = any
	After   string          // only those with a greater ID
}

// List yields workers of the local copy, in the order of their IDs.
func (c *Client) List(f Filter) iter.Seq[Worker] {
	return func(yield func(Worker) bool) {
		v := c.state.View()
		for w := range v.Workers(f.After) {
			if f.matches(w) && !yield(seen(v, w)) {
				return
			}
		}
	}
}

func (f Filter) matches(w *fsm.Worker) bool {
	if f.State != 0 && w.State != f.State || f.Runtime != "" && w.Runtime != f.Runtime {
		return false
	}
	for k, v := range f.Tags {
		i, found := slices.BinarySearchFunc(w.Tags, k, func(l fsm.Label, k string) int { return strings.Compare(l.Key, k) })
		if !found || w.Tags[i].Value != v {
			return false
		}
	}
	return true
}

func seen(v *fsm.View, w *fsm.Worker) Worker {
	s := Worker{Worker: w}
	if l, ok := v.Lease(fsm.WorkerKey(w.ID)); ok && l.Group == fsm.WorkersGroup {
		s.InstanceID, s.Token = l.Who.InstanceID, l.Token
	}
	s.Failing, s.Lacks = failing(v, s), lacks(v, s)
	return s
}

func (c *Client) change(ctx context.Context, r request, what, id string, op fsm.Op) (etag uint64, err error) {
	res, err := c.submit(ctx, r, fmt.Sprintf("%s worker %s", what, id), op)
	if err != nil {
		return 0, err
	}
	return res.Total, nil
}

func (c *Client) submit(ctx context.Context, r request, what string, op fsm.Op) (*fsm.Result, error) {
	state := c.state
	if r.via != nil {
		state = r.via
	}
	res, err := submit(ctx, state, op)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return res, nil
}

// submit makes an error of a refusal.
func submit(ctx context.Context, s State, op fsm.Op) (*fsm.Result, error) {
	res, err := s.Submit(ctx, op)
	if err == nil {
		err = fsm.ResultErr(res)
	}
	return res, err
}

var idEncoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// newID is an ID that was never used and never will be.
func newID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // it does not fail
	return "w" + strings.ToLower(idEncoding.EncodeToString(b))
}

// op is the command that creates the worker.
func (s Spec) op(id, by string) *fsm.CreateWorker {
	return &fsm.CreateWorker{
		WorkerId: id, Name: s.Name, Runtime: s.Runtime, Source: s.Source, Sha256: strings.ToLower(s.SHA256),
		Args: s.Args, Env: fsm.LabelsOf(s.Env), Config: s.Config, Tags: fsm.LabelsOf(s.Tags), Restart: s.Restart, Start: s.Start, By: by,
	}
}

// record is the worker as op made it.
func (s Spec) record(op *fsm.CreateWorker, res *fsm.Result) *fsm.Worker {
	w := &fsm.Worker{
		ID: op.WorkerId, Name: op.Name, Runtime: op.Runtime, Next: &fsm.Source{Text: op.Source, SHA256: op.Sha256, By: op.By},
		Args: slices.Clone(s.Args), Env: labels(s.Env), Config: slices.Clone(s.Config), Tags: labels(s.Tags), Restart: s.Restart,
		State: fsm.WorkerLoading, StartRequested: s.Start, Attempt: 1, Etag: res.Total, Revision: res.Revision,
	}
	if w.Restart == "" {
		w.Restart = RestartOnFailure
	}
	w.History = []fsm.Source{*w.Next}
	return w
}

func labels(m map[string]string) []fsm.Label {
	all := make([]fsm.Label, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, fsm.Label{Key: k, Value: m[k]})
	}
	return all
}
