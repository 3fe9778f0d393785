package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// ClientConfig says how to reach a node.
type ClientConfig struct {
	// Addr is the path of a unix socket, or an http:// or https:// URL.
	Addr string
	// Token is sent with every call over TCP; empty sends none.
	Token string
	// TLSCA is a PEM file of the authority that signed an https node's
	// certificate; empty trusts the system's.
	TLSCA string
}

// Client calls a node's API. It is safe for concurrent use.
type Client struct {
	addr  string
	base  string
	token string
	http  *http.Client
}

// NewClient makes a client; nothing is dialled yet.
func NewClient(cfg ClientConfig) (*Client, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute, Proxy: nil}
	c := &Client{addr: cfg.Addr, token: cfg.Token, http: &http.Client{Transport: transport}}
	scheme, _, isURL := strings.Cut(cfg.Addr, "://")
	switch {
	case cfg.Addr == "":
		return nil, errors.New("address is empty: give a unix socket's path or an http(s) URL")
	case !isURL:
		path := cfg.Addr
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialUnix(ctx, path) }
		c.base = "http://miwnode"
		return c, nil
	case scheme != "http" && scheme != "https":
		return nil, fmt.Errorf("address %q: it must be a unix socket's path or an http(s) URL", cfg.Addr)
	}
	u, err := url.Parse(cfg.Addr)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("address %q: an URL needs a host, and has no query and no user", cfg.Addr)
	}
	c.base = strings.TrimRight(cfg.Addr, "/")
	if cfg.TLSCA != "" {
		pem, err := os.ReadFile(cfg.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("TLS authority: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("TLS authority: %s holds no PEM certificate", cfg.TLSCA)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return c, nil
}

// Addr is where the client calls.
func (c *Client) Addr() string { return c.addr }

// Token is what the client sends with its calls.
func (c *Client) Token() string { return c.token }

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Request is one call.
type Request struct {
	Method, Path string
	Query        url.Values
	// Body is encoded as JSON, save for an io.Reader, whose bytes are sent; nil
	// sends none.
	Body any
	// IfMatch is the etag that a record must have; 0 sends none.
	IfMatch uint64
	// IdempotencyKey makes a repeat of a write safe; empty sends none.
	IdempotencyKey string

	lastEventID string
}

// Do makes one call, decodes its answer into out (nil: drops it) and returns the
// answer's bytes. A refusal is an *fsm.Error whose Detail is the raw JSON of the
// answer's, a node that can't be reached an *UnreachableError. Nothing is retried.
func (c *Client) Do(ctx context.Context, req Request, out any) ([]byte, error) {
	resp, err := c.send(ctx, req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, &UnreachableError{Addr: c.addr, Sent: true, Err: err}
	}
	if resp.StatusCode >= 300 {
		return raw, refusalOf(resp, raw)
	}
	if out != nil && len(raw) > 0 {
		if err := json.Unmarshal(raw, out); err != nil {
			return raw, fmt.Errorf("%s %s: what answers at %s is no miwnode: %w", req.Method, req.Path, c.addr, err)
		}
	}
	return raw, nil
}

func (c *Client) send(ctx context.Context, req Request) (*http.Response, error) {
	body, raw := req.Body.(io.Reader)
	if req.Body != nil && !raw {
		b, err := json.Marshal(req.Body)
		if err != nil {
			return nil, fmt.Errorf("encode %s %s: %w", req.Method, req.Path, err)
		}
		body = bytes.NewReader(b)
	}
	target := c.base + req.Path
	if len(req.Query) > 0 {
		target += "?" + req.Query.Encode()
	}
	var sent atomic.Bool
	trace := &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }}
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), req.Method, target, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", req.Method, req.Path, err)
	}
	switch {
	case raw:
		r.Header.Set("Content-Type", "application/octet-stream")
	case body != nil:
		r.Header.Set("Content-Type", "application/json")
	}
	if req.IfMatch != 0 {
		r.Header.Set("If-Match", strconv.Quote(strconv.FormatUint(req.IfMatch, 10)))
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	if req.IdempotencyKey != "" {
		r.Header.Set("Idempotency-Key", req.IdempotencyKey)
	}
	if req.lastEventID != "" {
		r.Header.Set("Last-Event-ID", req.lastEventID)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		if inner := (*url.Error)(nil); errors.As(err, &inner) {
			err = inner.Err // the address is named once, by us
		}
		return nil, &UnreachableError{Addr: c.addr, Sent: sent.Load(), Err: err}
	}
	return resp, nil
}

func refusalOf(resp *http.Response, raw []byte) error {
	var answer struct {
		Error struct {
			Code    string          `json:"code"`
			Message string          `json:"message"`
			Detail  json.RawMessage `json:"detail"`
		} `json:"error"`
	}
	if err := json.Unmarshal(raw, &answer); err == nil {
		for code := fsm.CodeInvalidArgument; code <= fsm.CodeInternal; code++ {
			if code.String() == answer.Error.Code {
				e := &fsm.Error{Code: code, Message: answer.Error.Message}
				if len(answer.Error.Detail) > 0 {
					e.Detail = answer.Error.Detail
				}
				return e
			}
		}
	}
	return fmt.Errorf("answer %s with no code known here: %.200s", resp.Status, strings.TrimSpace(string(raw)))
}

// PathEscape makes an ID fit into a path.
func PathEscape(id string) string { return url.PathEscape(id) }
