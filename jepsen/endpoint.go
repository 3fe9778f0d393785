package jepsen

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

// HTTPEndpoint is a node's API as a client in any language sees it.
type HTTPEndpoint struct {
	c    *api.Client
	sock string
}

// NewHTTPEndpoint returns the endpoint behind a node's unix socket.
func NewHTTPEndpoint(sock string) (*HTTPEndpoint, error) {
	c, err := api.NewClient(api.ClientConfig{Addr: sock})
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", sock, err)
	}
	return &HTTPEndpoint{c: c, sock: sock}, nil
}

func (e *HTTPEndpoint) do(ctx context.Context, method, path string, query url.Values, body, out any) error {
	return e.ask(ctx, api.Request{Method: method, Path: path, Query: query, Body: body}, out)
}

func (e *HTTPEndpoint) ask(ctx context.Context, req api.Request, out any) error {
	if req.Query == nil {
		req.Query = url.Values{}
	}
	if d, ok := ctx.Deadline(); ok {
		// The node answers by itself before the caller hangs up.
		req.Query.Set("timeout", max(50*time.Millisecond, time.Until(d)-50*time.Millisecond).Round(time.Millisecond).String())
	}
	_, err := e.c.Do(ctx, req, out)
	if u, ok := errors.AsType[*api.UnreachableError](err); ok && !u.Sent {
		return fsm.Errorf(fsm.CodeNotReady, "%v", err) // surely not applied
	}
	return err
}

// Open implements Endpoint.
func (e *HTTPEndpoint) Open(ctx context.Context, name string, ttl time.Duration, instance bool) (string, time.Duration, error) {
	var s api.Session
	err := e.do(ctx, http.MethodPost, "/v1/sessions", nil, api.OpenSessionRequest{TTL: api.Duration(ttl), Name: name, Instance: instance}, &s)
	return s.SessionID, time.Duration(s.TrustedFor), err
}

// KeepAlive implements Endpoint.
func (e *HTTPEndpoint) KeepAlive(ctx context.Context, session string) (trusted time.Duration, leases []Kept, err error) {
	var k api.KeptAlive
	err = e.do(ctx, http.MethodPost, "/v1/sessions/"+session+"/keepalive", nil, nil, &k)
	for _, l := range k.Leases {
		leases = append(leases, Kept{Key: l.Key, Token: l.Token, Group: l.Group, Held: l.State == "held"})
	}
	return time.Duration(k.TrustedFor), leases, err
}

// Close implements Endpoint.
func (e *HTTPEndpoint) Close(ctx context.Context, session string) error {
	return e.do(ctx, http.MethodDelete, "/v1/sessions/"+session, nil, nil, nil)
}

// Acquire implements Endpoint.
func (e *HTTPEndpoint) Acquire(ctx context.Context, key, session, holder string) (token, heldBy uint64, err error) {
	var a api.Acquired
	err = e.do(ctx, http.MethodPost, "/v1/leases/acquire", nil, api.AcquireRequest{Key: key, SessionID: session, Holder: holder}, &a)
	if r, ok := errors.AsType[*fsm.Error](err); ok {
		if raw, ok := r.Detail.(json.RawMessage); ok {
			var l api.Lease
			if json.Unmarshal(raw, &l) == nil && l.Key == key {
				heldBy = l.Token
			}
		}
	}
	return a.Token, heldBy, err
}

// Release implements Endpoint.
func (e *HTTPEndpoint) Release(ctx context.Context, key string, token uint64, session string) error {
	return e.do(ctx, http.MethodPost, "/v1/leases/release", nil, api.ReleaseRequest{Key: key, Token: token, SessionID: session}, nil)
}

// Read implements Endpoint.
func (e *HTTPEndpoint) Read(ctx context.Context, key string) (uint64, error) {
	var l api.Leases
	if err := e.do(ctx, http.MethodGet, "/v1/leases", url.Values{"key": {key}, "consistency": {"linearizable"}}, nil, &l); err != nil {
		return 0, err
	}
	for _, lease := range l.Leases {
		if lease.Key == key && lease.State != "barred" {
			return lease.Token, nil
		}
	}
	return 0, nil
}

// Join implements Endpoint.
func (e *HTTPEndpoint) Join(ctx context.Context, group, session string) error {
	return e.do(ctx, http.MethodPost, "/v1/groups/"+group+"/join", nil, api.JoinRequest{SessionID: session}, nil)
}

// LeaveGroup implements Endpoint.
func (e *HTTPEndpoint) LeaveGroup(ctx context.Context, group, session string) error {
	return e.do(ctx, http.MethodPost, "/v1/groups/"+group+"/leave", nil, api.LeaveRequest{SessionID: session}, nil)
}

// Group reads a group.
func (e *HTTPEndpoint) Group(ctx context.Context, name string) (g api.Group, err error) {
	return g, e.do(ctx, http.MethodGet, "/v1/groups/"+name, nil, nil, &g)
}

// HTTPSteering steers a group through whichever node answers.
type HTTPSteering struct {
	Name string
	Any  func() *HTTPEndpoint // a node that is up, nil if there is none
}

func (s HTTPSteering) via(call func(e *HTTPEndpoint) error) error {
	e := s.Any()
	if e == nil {
		return fsm.ErrNotReady
	}
	return call(e)
}

// Members implements Steering.
func (s HTTPSteering) Members() (all []GroupInstance) {
	_ = s.via(func(e *HTTPEndpoint) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		g, err := e.Group(ctx, s.Name)
		for _, m := range g.Members {
			i := GroupInstance{ID: m.InstanceID, Draining: m.Draining, Cordoned: m.Cordoned}
			if m.Embedded {
				i.Node = m.NodeID
			}
			all = append(all, i)
		}
		return err
	})
	return all
}

// Mark implements Steering.
func (s HTTPSteering) Mark(ctx context.Context, mark, instance string) error {
	return s.via(func(e *HTTPEndpoint) error {
		return e.do(ctx, http.MethodPost, "/v1/instances/"+instance+"/"+mark, nil, api.MarkRequest{By: "operator", Reason: "as the seed says"}, nil)
	})
}

// Steer implements Steering.
func (s HTTPSteering) Steer(ctx context.Context, verb, workload, to string) error {
	return s.via(func(e *HTTPEndpoint) error {
		if verb != "revoke" {
			return e.do(ctx, http.MethodPost, "/v1/groups/"+s.Name+"/"+verb, nil, api.SteerRequest{Workload: workload, To: to, By: "operator"}, nil)
		}
		var l api.Leases
		key := s.Name + "/" + workload
		if err := e.do(ctx, http.MethodGet, "/v1/leases", url.Values{"key": {key}}, nil, &l); err != nil || len(l.Leases) == 0 {
			return err
		}
		return e.do(ctx, http.MethodPost, "/v1/leases/revoke", nil, api.RevokeRequest{Key: key, Token: l.Leases[0].Token, By: "operator"}, nil)
	})
}

// Status asks the node how it is.
func (e *HTTPEndpoint) Status(ctx context.Context) (api.Status, error) {
	var s api.Status
	return s, e.do(ctx, http.MethodGet, "/v1/status", nil, nil, &s)
}

// StepDown asks the cluster for another leader.
func (e *HTTPEndpoint) StepDown(ctx context.Context) error {
	return e.do(ctx, http.MethodPost, "/v1/raft/step-down", nil, api.StepDownRequest{}, nil)
}

// Get returns the raw answer of a read.
func (e *HTTPEndpoint) Get(ctx context.Context, path string, query url.Values) ([]byte, error) {
	return e.c.Do(ctx, api.Request{Method: http.MethodGet, Path: path, Query: query}, nil)
}

// Follow hands every event to the recorder under the reader's name, resuming
// where it was whenever the stream breaks, until ctx ends.
func (e *HTTPEndpoint) Follow(ctx context.Context, r *Recorder, reader string) {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", e.sock)
	}}}
	defer client.CloseIdleConnections()
	last, resync := "", false
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://miwnode/v1/events?since=0", nil)
		if err != nil {
			return
		}
		if last != "" {
			req.URL.RawQuery = ""
			req.Header.Set("Last-Event-ID", last)
		}
		if resp, err := client.Do(req); err == nil {
			var id, kind string
			lines := bufio.NewScanner(resp.Body)
			lines.Buffer(nil, 4<<20)
			for resp.StatusCode == http.StatusOK && lines.Scan() {
				name, value, _ := strings.Cut(lines.Text(), ": ")
				switch name {
				case "id":
					id = value
				case "event":
					kind = value
				case "data":
					if kind == "resync" {
						resync = true
						continue
					}
					e, err := decodeEvent([]byte(value), reader)
					if err != nil {
						r.Notef(reader, "event %s can't be read: %v", id, err)
						continue
					}
					e.Resync = resync
					r.Event(e)
					last, resync = id, false
				}
			}
			resp.Body.Close()
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

func decodeEvent(raw []byte, reader string) (Event, error) {
	var v api.Event
	err := json.Unmarshal(raw, &v)
	e := Event{
		Revision: v.Revision, Position: v.Position, Type: v.Type, Key: v.Key, Token: v.Token,
		Reason: v.Reason, Instance: v.InstanceID, Node: v.NodeID, By: v.By, Reader: reader,
	}
	if v.State != "" {
		e.Worker = &WorkerSeen{Name: v.Name, State: v.State, StartRequested: v.StartRequested}
		if v.Error != nil {
			e.Worker.Error = v.Error.Type
		}
	}
	return e, err
}

// MarkNode drains, undrains, cordons or uncordons the present instance of a node.
// To undo what is not there is no error.
func (e *HTTPEndpoint) MarkNode(ctx context.Context, node, mark string) error {
	var all api.Instances
	if err := e.do(ctx, http.MethodGet, "/v1/instances", nil, nil, &all); err != nil {
		return err
	}
	for _, i := range all.Instances {
		if i.NodeID == node && !strings.HasPrefix(i.InstanceID, "http:") {
			return e.do(ctx, http.MethodPost, "/v1/instances/"+api.PathEscape(i.InstanceID)+"/"+mark, nil, api.MarkRequest{By: "torture", Reason: "as the seed says"}, nil)
		}
	}
	return fsm.Errorf(fsm.CodeNotFound, "%s has no instance", node)
}
