package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/miwnode/miwnode/artifact"
	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
)

// Node is what a Handler needs of a node; *node.Node satisfies it.
type Node interface {
	ID() string
	Status() node.Status
	Members() []node.Member
	Metrics() prometheus.Gatherer
	Healthy() error
	ReadyErr() error

	View() *fsm.View
	Watch(topics ...string) (wake <-chan struct{}, stop func())
	Read(ctx context.Context, c node.Consistency) (*fsm.View, node.Freshness, error)
	Propose(ctx context.Context, op fsm.Op, opts ...node.ProposeOption) (*fsm.Result, error)
	KeepAlive(ctx context.Context, sessionID string) (node.KeepAliveAnswer, error)
	TrustedFor(ttl time.Duration) time.Duration
	StepDown(ctx context.Context, to string) error
	Closing() <-chan struct{}
}

var _ Node = (*node.Node)(nil)

// defaultTimeout is the deadline of a call that names none.
const defaultTimeout = 5 * time.Second

// maxTimeout bounds ?timeout= and the wait of an acquire.
const maxTimeout = 366 * 24 * time.Hour

// Option adjusts a Handler.
type Option func(*handler)

// WithToken makes every call but /healthz and /readyz need Authorization:
// Bearer token. An empty token asks for none.
func WithToken(token string) Option {
	return func(h *handler) { h.token = token }
}

// WithLogger gives the handler a log for what its callers can't be told.
func WithLogger(log *slog.Logger) Option {
	return func(h *handler) { h.log = log }
}

// WithAssigner says how a group is placed by this program, for the questions
// why and plan. The groups of the built-in assigners need none.
func WithAssigner(group string, a coord.Assigner) Option {
	return func(h *handler) { h.assigners[group] = a }
}

// WithMetrics adds metrics to those of the node.
func WithMetrics(g prometheus.Gatherer) Option {
	return func(h *handler) { h.gatherers = append(h.gatherers, g) }
}

// withHosts makes calls name one of these hosts (or none, as over a unix
// socket): what a browser can be tricked into calling by a name that an
// attacker points here.
func withHosts(allowed func(host string) bool) Option {
	return func(h *handler) { h.allowedHost = allowed }
}

// handler serves one node.
type handler struct {
	node        Node
	log         *slog.Logger
	token       string
	allowedHost func(host string) bool
	assigners   map[string]coord.Assigner // by group
	catalog     Catalog                   // nil: workers are changed by what a node can do
	artifacts   *artifact.Store           // nil: none
	uploads     chan struct{}             // a slot per upload
	gatherers   prometheus.Gatherers      // beside the node's own
	origin      *http.CrossOriginProtection
	mux         *http.ServeMux
	metrics     http.Handler
}

// Handler serves n over HTTP. What a caller that hung up, or was told that the
// outcome is uncertain, can't use any more is given back behind it, within ten
// seconds; else nothing outlives the calls.
func Handler(n Node, opts ...Option) http.Handler {
	h := &handler{node: n, log: slog.New(slog.DiscardHandler), origin: http.NewCrossOriginProtection(), mux: http.NewServeMux(), assigners: map[string]coord.Assigner{}}
	h.uploads = make(chan struct{}, maxUploads)
	for _, o := range opts {
		o(h)
	}
	h.metrics = metricsHandler(append(prometheus.Gatherers{n.Metrics()}, h.gatherers...), h.log)
	paths := map[string][]string{}
	for _, rt := range routes {
		h.mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) { h.serve(rt, w, r) })
		paths[rt.path] = append(paths[rt.path], rt.method)
	}
	for path, methods := range paths {
		h.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			body, _ := bodyOf(fsm.Errorf(fsm.CodeNotFound, "%s %s does not exist; %s does", r.Method, r.URL.Path, strings.Join(methods, ", ")), false)
			h.answer(w, http.StatusMethodNotAllowed, errorAnswer{Error: body, Revision: h.node.View().Revision()})
		})
	}
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		h.refuse(w, fsm.Errorf(fsm.CodeNotFound, "there is nothing at %s", r.URL.Path), false)
	})
	return h
}

// route is one call of the API.
type route struct {
	method, path string
	// query names the parameters beside timeout, comma-separated; those with ...
	// may be repeated.
	query string
	// open calls need no token.
	open bool
	// write calls may change something: an end without a verdict is uncertain.
	write bool
	// stream calls answer by themselves and have no deadline unless they name one.
	stream bool
	// body is the most bytes that it takes; 0 means maxBody, less that it reads
	// the body itself.
	body int64
	do   func(*call) (answer any, status int, err error)
}

var routes = []route{
	{method: "GET", path: "/healthz", open: true, do: (*call).healthz},
	{method: "GET", path: "/readyz", open: true, do: (*call).readyz},
	{method: "GET", path: "/metrics", stream: true, do: (*call).metrics},

	{method: "GET", path: "/v1/status", query: "consistency", do: (*call).status},
	{method: "GET", path: "/v1/members", query: "consistency,limit,after", do: (*call).members},
	{method: "POST", path: "/v1/raft/step-down", write: true, do: (*call).stepDown},

	{method: "GET", path: "/v1/instances", query: "consistency,limit,after", do: (*call).instances},
	{method: "POST", path: "/v1/instances/{id}/drain", write: true, do: mark(fsm.MarkDrain)},
	{method: "POST", path: "/v1/instances/{id}/undrain", write: true, do: mark(fsm.MarkUndrain)},
	{method: "POST", path: "/v1/instances/{id}/cordon", write: true, do: mark(fsm.MarkCordon)},
	{method: "POST", path: "/v1/instances/{id}/uncordon", write: true, do: mark(fsm.MarkUncordon)},

	{method: "POST", path: "/v1/sessions", write: true, do: (*call).openSession},
	{method: "POST", path: "/v1/sessions/{id}/keepalive", do: (*call).keepAlive},
	{method: "DELETE", path: "/v1/sessions/{id}", write: true, do: (*call).closeSession},

	{method: "GET", path: "/v1/leases", query: "consistency,limit,after,key,prefix", do: (*call).leases},
	{method: "POST", path: "/v1/leases/acquire", write: true, do: (*call).acquire},
	{method: "POST", path: "/v1/leases/release", write: true, do: (*call).release},
	{method: "POST", path: "/v1/leases/transfer", write: true, do: (*call).transfer},
	{method: "POST", path: "/v1/leases/revoke", write: true, do: (*call).revoke},

	{method: "GET", path: "/v1/groups", query: "consistency,limit,after,workload", do: (*call).groups},
	{method: "GET", path: "/v1/groups/{name}", query: "consistency,limit,after", do: (*call).group},
	{method: "PUT", path: "/v1/groups/{name}", write: true, body: maxGroupBody, do: (*call).putGroup},
	{method: "DELETE", path: "/v1/groups/{name}", write: true, do: (*call).deleteGroup},
	{method: "POST", path: "/v1/groups/{name}/join", write: true, do: (*call).joinGroup},
	{method: "POST", path: "/v1/groups/{name}/leave", write: true, do: (*call).leaveGroup},
	{method: "POST", path: "/v1/groups/{name}/move", write: true, do: steer(moveOp)},
	{method: "POST", path: "/v1/groups/{name}/pin", write: true, do: steer(pinOp)},
	{method: "POST", path: "/v1/groups/{name}/unpin", write: true, do: steer(unpinOp)},
	{method: "POST", path: "/v1/groups/{name}/pause", write: true, do: steer(pauseOp)},
	{method: "POST", path: "/v1/groups/{name}/resume", write: true, do: steer(resumeOp)},
	{method: "GET", path: "/v1/groups/{name}/why", query: "consistency,workload", do: (*call).why},
	{method: "POST", path: "/v1/groups/{name}/plan", query: "consistency", do: (*call).plan},

	{method: "POST", path: "/v1/workers", write: true, do: (*call).createWorker},
	{method: "GET", path: "/v1/workers", query: "consistency,limit,after,state,runtime,name,tag...", do: (*call).workers},
	{method: "GET", path: "/v1/workers/{id}", query: "consistency", do: (*call).worker},
	{method: "DELETE", path: "/v1/workers/{id}", write: true, do: (*call).deleteWorker},
	{method: "POST", path: "/v1/workers/{id}/start", write: true, do: changing(Catalog.Start)},
	{method: "POST", path: "/v1/workers/{id}/stop", write: true, do: changing(Catalog.Stop)},
	{method: "POST", path: "/v1/workers/{id}/reload", write: true, do: (*call).reloadWorker},
	{method: "PUT", path: "/v1/workers/{id}/tags", write: true, do: (*call).tagWorker},
	{method: "PUT", path: "/v1/artifacts", body: -1, do: (*call).putArtifact},

	{method: "POST", path: "/v1/jobs/record", write: true, do: (*call).recordJob},
	{method: "GET", path: "/v1/jobs", query: "consistency,limit,after,key,prefix", do: (*call).jobs},

	{method: "GET", path: "/v1/history", query: "consistency,limit,after,key,since", do: (*call).history},
	{method: "GET", path: "/v1/events", query: "since,type,key", stream: true, do: (*call).events},
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		// A refusal goes out before the body has been read, and the connection with
		// it: net/http would first wait for the rest, from somebody who may send
		// nothing more and has shown no token. readBody takes this back.
		w.Header().Set("Connection", "close")
		defer func() {
			if w.Header().Get("Connection") != "" { // nor does net/http wait for it after the answer
				_ = http.NewResponseController(w).SetReadDeadline(time.Now())
			}
		}()
	}
	if h.allowedHost != nil && !h.allowedHost(r.Host) {
		h.refuse(w, fsm.Errorf(fsm.CodePermissionDenied, "this address is not called %q; without a token it answers to loopback names only", r.Host), false)
		return
	}
	if err := h.origin.Check(r); err != nil {
		h.refuse(w, fsm.Errorf(fsm.CodePermissionDenied, "a web page of another origin may not call this: %v", err), false)
		return
	}
	if strings.Contains(r.URL.EscapedPath(), "//") { // the mux would send the caller to another path
		h.refuse(w, invalid("the path %s has an empty name in it", r.URL.EscapedPath()), false)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// call is one request being served.
type call struct {
	h     *handler
	node  Node
	w     http.ResponseWriter
	r     *http.Request
	query map[string]string
	// repeated has the parameters that may be given more than once.
	repeated map[string][]string
	body     []byte
	// ctx ends at the call's deadline or when the caller hangs up.
	ctx     context.Context
	timeout time.Duration // 0: not given
}

func (h *handler) serve(rt route, w http.ResponseWriter, r *http.Request) {
	if !rt.open && !h.authorized(r) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		h.refuse(w, fsm.Errorf(fsm.CodeUnauthenticated, "send the token of this node's token file as Authorization: Bearer"), false)
		return
	}
	c := &call{h: h, node: h.node, w: w, r: r, ctx: r.Context()}
	answer, status, err := c.run(rt)
	switch {
	case err != nil:
		h.refuse(w, err, rt.write)
	case status != 0: // else the call has answered by itself
		h.answer(w, status, answer)
	}
}

func (c *call) run(rt route) (any, int, error) {
	var err error
	if c.query, c.repeated, err = queryOf(c.r, rt); err != nil {
		return nil, 0, err
	}
	if rt.body >= 0 {
		if c.body, err = readBody(c.w, c.r, cmp.Or(rt.body, maxBody)); err != nil {
			return nil, 0, err
		}
	}
	if c.timeout, err = c.duration("timeout"); err != nil {
		return nil, 0, err
	}
	if c.timeout < 0 || c.timeout > maxTimeout || c.timeout == 0 && c.query["timeout"] != "" {
		return nil, 0, invalid("timeout is %s: it must lie between 1ns and %v", c.query["timeout"], maxTimeout)
	}
	if rt.stream && c.timeout == 0 {
		return rt.do(c)
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.within(defaultTimeout))
	defer cancel()
	c.ctx = ctx
	return rt.do(c)
}

// within is the call's timeout, or d where it named none.
func (c *call) within(d time.Duration) time.Duration {
	if c.timeout > 0 {
		return c.timeout
	}
	return d
}

func (h *handler) authorized(r *http.Request) bool {
	if h.token == "" {
		return true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got, want := sha256.Sum256([]byte(strings.TrimSpace(token))), sha256.Sum256([]byte(h.token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// queryOf returns the query's parameters, each known, and given once save for
// those that may be repeated.
func queryOf(r *http.Request, rt route) (query map[string]string, repeated map[string][]string, err error) {
	known := rt.parameters()
	values, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, nil, err
	}
	query, repeated = make(map[string]string, len(values)), map[string][]string{}
	for _, name := range sortedKeys(values) {
		switch many, is := known[name]; {
		case !is:
			return nil, nil, invalid("unknown parameter %q; known here: %s", name, strings.Join(sortedKeys(known), ", "))
		case many:
			repeated[name] = values[name]
		case len(values[name]) != 1:
			return nil, nil, invalid("parameter %q is given twice", name)
		default:
			query[name] = values[name][0]
		}
	}
	return query, repeated, nil
}

// parameters are the names that a query may have, and whether more than once.
func (rt route) parameters() map[string]bool {
	known := map[string]bool{"timeout": false}
	for _, name := range strings.FieldsFunc(rt.query, func(r rune) bool { return r == ',' }) {
		name, many := strings.CutSuffix(name, "...")
		known[name] = many
	}
	return known
}

// answer writes a JSON body.
func (h *handler) answer(w http.ResponseWriter, status int, body any) {
	header := w.Header()
	header.Set("Miw-Revision", strconv.FormatUint(h.node.View().Revision(), 10))
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if status == http.StatusNoContent {
		w.WriteHeader(status)
		return
	}
	b, err := json.Marshal(body)
	if err != nil {
		h.log.Error("answer not encoded", "error", err)
		http.Error(w, `{"error":{"code":"not_ready","message":"the answer could not be encoded"}}`, http.StatusServiceUnavailable)
		return
	}
	header.Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // not every server has one
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // a caller that is gone needs no answer
}

// refuse writes an error body.
func (h *handler) refuse(w http.ResponseWriter, err error, write bool) {
	body, status := bodyOf(err, write)
	if e := (*fsm.Error)(nil); !errors.As(err, &e) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		h.log.Warn("call ended without a verdict", "error", err)
	}
	h.answer(w, status, errorAnswer{Error: body, Revision: h.node.View().Revision()})
}
