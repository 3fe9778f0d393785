package artifact

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	maxRedirects = 5
	maxURL       = 2048 // bytes

	// DefaultStallTimeout is how long a server may send nothing.
	DefaultStallTimeout = 30 * time.Second
	dialTimeout         = 10 * time.Second
)

// WebConfig says what a Web may do.
type WebConfig struct {
	// AllowPrivate lets it call loopback, private, link-local and other addresses that are not of the public internet.
	AllowPrivate bool
	// StallTimeout ends a transfer whose server has sent nothing for so long. Defaults to DefaultStallTimeout.
	StallTimeout time.Duration
	// RootCAs are the authorities that servers are checked with. Nil is the system's.
	RootCAs *x509.CertPool

	_ struct{}
}

// Web fetches artifacts from https URLs.
type Web struct {
	stall  time.Duration
	client *http.Client
	refuse func(netip.Addr) error
}

// NewWeb returns a Web. It keeps no connections between its calls.
func NewWeb(cfg WebConfig) *Web {
	w := &Web{stall: cfg.StallTimeout, refuse: checkPublic}
	if w.stall <= 0 {
		w.stall = DefaultStallTimeout
	}
	if cfg.AllowPrivate {
		w.refuse = func(netip.Addr) error { return nil }
	}
	dialer := net.Dialer{Timeout: dialTimeout, Control: w.control}
	w.client = &http.Client{
		CheckRedirect: redirect,
		Transport: &http.Transport{
			Proxy:                  nil, // one of the environment would dial for us, wherever it likes
			DialContext:            dialer.DialContext,
			TLSClientConfig:        &tls.Config{RootCAs: cfg.RootCAs, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    dialTimeout,
			ResponseHeaderTimeout:  w.stall,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true, // the digest is of the bytes that are sent
			DisableKeepAlives:      true,
		},
	}
	return w
}

// control is called with the address that is about to be dialled, after all names were resolved.
func (w *Web) control(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %q is no IP address", ErrRefused, address)
	}
	return w.refuse(ap.Addr())
}

func redirect(q *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("%w: more than %d redirects", ErrRefused, maxRedirects)
	}
	q.Header.Del("Referer") // it would hand on what the first URL has in its query
	_, err := CheckURL(q.URL.String())
	return err
}

// IsURL tells a source that is a URL from one that is a path or a digest.
func IsURL(source string) bool {
	scheme, _, found := strings.Cut(source, "://")
	return found && !strings.ContainsAny(scheme, "/.")
}

// CheckURL returns ErrRefused for a text that is no https URL which can be fetched. Its host is looked at when it is dialled.
func CheckURL(source string) (*url.URL, error) {
	u, err := url.Parse(source)
	switch {
	case len(source) > maxURL:
		return nil, fmt.Errorf("%w: the URL has %d bytes, at most %d are allowed", ErrRefused, len(source), maxURL)
	case err != nil:
		return nil, fmt.Errorf("%w: %q is no URL", ErrRefused, source)
	case u.Scheme != "https":
		return nil, fmt.Errorf("%w: %q is no https URL", ErrRefused, source)
	case u.Hostname() == "":
		return nil, fmt.Errorf("%w: %q names no host", ErrRefused, source)
	case u.User != nil:
		return nil, fmt.Errorf("%w: the URL has a user or a password in it, which would be stored for all to read", ErrRefused)
	}
	return u, nil
}

// Fetch gets the artifact d, of at most limit bytes, from an https URL into the store, unless it is there.
func (w *Web) Fetch(ctx context.Context, s *Store, source string, d Digest, limit int64) error {
	u, err := CheckURL(source)
	if err != nil {
		return err
	}
	return s.Fill(ctx, d, limit, func(p *Part) error {
		if err := p.Reset(); err != nil { // what is there may be of another origin
			return fmt.Errorf("receive artifact: %w", err)
		}
		if err := w.get(ctx, u, p, limit); err != nil {
			return fmt.Errorf("fetch %s: %w", shown(u), err)
		}
		return nil
	})
}

// shown is a URL without its query, which may hold what is not to be logged.
func shown(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

func (w *Web) get(ctx context.Context, u *url.URL, p *Part, limit int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	resp, err := w.client.Do(q)
	if err != nil {
		// The text of a url.Error has the whole URL in it.
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return causeOf(ctx, err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusGone:
		return fmt.Errorf("%w: the server says %s", ErrNotFound, resp.Status)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("the server says %s", resp.Status)
	case resp.ContentLength > limit:
		return tooLarge("the content", limit)
	}
	watch := time.AfterFunc(w.stall, func() { cancel(fmt.Errorf("the server sent nothing for %v", w.stall)) })
	defer watch.Stop()
	_, err = io.Copy(p, &paced{resp.Body, func() { watch.Reset(w.stall) }})
	return causeOf(ctx, err) // a body that was cut off because of ctx may seem to have ended
}

// causeOf is why ctx ended, if it has, instead of what that led to.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// paced says when something was read.
type paced struct {
	r    io.Reader
	read func()
}

func (r *paced) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	if n > 0 {
		r.read()
	}
	return n, err
}
