package artifact_test

import (
	"compress/gzip"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miwnode/miwnode/artifact"
)

// origin is a server of artifacts and its URL by host name and by address.
func origin(t *testing.T, h http.HandlerFunc) (server *httptest.Server, roots *x509.CertPool) {
	t.Helper()
	server = httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	roots = x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return server, roots
}

func port(t *testing.T, server *httptest.Server) string {
	t.Helper()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}

func serveHello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, hello) }

func TestWeb_Fetch(t *testing.T) {
	// A proxy of the environment is never asked.
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	t.Setenv("ALL_PROXY", "http://127.0.0.1:1")
	var calls atomic.Int32
	server, roots := origin(t, func(w http.ResponseWriter, q *http.Request) {
		calls.Add(1)
		for _, header := range []string{"Authorization", "Cookie", "Accept-Encoding", "Referer"} {
			if v := q.Header.Get(header); v != "" {
				t.Errorf("%s: %s", header, v)
			}
		}
		serveHello(w, q)
	})
	s, _ := open(t)
	web := artifact.NewWeb(artifact.WebConfig{AllowPrivate: true, RootCAs: roots})
	d := digest(t, helloDigest)
	for range 2 {
		if err := web.Fetch(t.Context(), s, server.URL+"/code?secret=1", d, 13); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, s, d) != hello || calls.Load() != 1 {
		t.Errorf("content %q after %d calls", read(t, s, d), calls.Load())
	}
}

// TestWeb_Refused: what may not be fetched is refused with its reason, and nothing stays.
func TestWeb_Refused(t *testing.T) {
	var target string
	server, roots := origin(t, func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/redirect":
			http.Redirect(w, q, target, http.StatusFound)
		case "/round":
			http.Redirect(w, q, "/round", http.StatusFound)
		case "/none":
			http.NotFound(w, q)
		case "/gone":
			w.WriteHeader(http.StatusGone)
		case "/sick":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/long":
			w.Header().Set("Content-Length", "14")
			_, _ = io.WriteString(w, hello+"\n")
		case "/endless":
			for q.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		case "/short":
			w.Header().Set("Content-Length", "13")
			_, _ = io.WriteString(w, "hello")
		case "/packed":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, hello)
			_ = z.Close()
		default:
			serveHello(w, q)
		}
	})
	s, dir := open(t)
	d := digest(t, helloDigest)
	web := artifact.NewWeb(artifact.WebConfig{AllowPrivate: true, RootCAs: roots})
	strict := artifact.NewWeb(artifact.WebConfig{RootCAs: roots})
	// Stands for a cluster in a network where 127.0.0.1 is the public internet and 127.0.0.2 is not.
	half := artifact.NewWeb(artifact.WebConfig{RootCAs: roots})
	half.SetRefuse(func(a netip.Addr) error {
		if a != netip.MustParseAddr("127.0.0.1") {
			return fmt.Errorf("%w: %s", artifact.ErrRefused, a)
		}
		return nil
	})
	for _, c := range []struct {
		name   string
		web    *artifact.Web
		url    string
		target string // of the redirect
		want   error  // nil: an error that is none of the final ones
		says   string
	}{
		{"plain", web, "http://" + strings.TrimPrefix(server.URL, "https://"), "", artifact.ErrRefused, "no https URL"},
		{"file", web, "file:///etc/passwd", "", artifact.ErrRefused, "no https URL"},
		{"path", web, "/etc/passwd", "", artifact.ErrRefused, "no https URL"},
		{"no host", web, "https:///x", "", artifact.ErrRefused, "names no host"},
		{"password", web, "https://me:secret@127.0.0.1/", "", artifact.ErrRefused, "stored for all to read"},
		{"too long", web, "https://127.0.0.1/" + strings.Repeat("x", 2048), "", artifact.ErrRefused, "at most 2048"},
		{"control characters", web, "https://127.0.0.1/\r\n", "", artifact.ErrRefused, "no URL"},
		{"loopback", strict, server.URL, "", artifact.ErrRefused, "127.0.0.1 is not an address of the public internet"},
		{"loopback by name", strict, "https://localhost:" + port(t, server), "", artifact.ErrRefused, "not an address of the public internet"},
		{"mapped", strict, "https://[::ffff:127.0.0.1]:" + port(t, server), "", artifact.ErrRefused, "not an address of the public internet"},
		{"metadata service", strict, "https://169.254.169.254/latest", "", artifact.ErrRefused, "169.254.169.254 is not"},
		{"private behind a redirect", half, server.URL + "/redirect", "https://127.0.0.2:" + port(t, server) + "/", artifact.ErrRefused, "127.0.0.2"},
		{"name behind a redirect", half, server.URL + "/redirect", "https://127.0.0.3:1/", artifact.ErrRefused, "127.0.0.3"},
		{"plain behind a redirect", web, server.URL + "/redirect", "http://127.0.0.1:1/", artifact.ErrRefused, "no https URL"},
		{"redirects for ever", web, server.URL + "/round", "", artifact.ErrRefused, "more than 5 redirects"},
		{"not there", web, server.URL + "/none", "", artifact.ErrNotFound, "404 Not Found"},
		{"gone", web, server.URL + "/gone", "", artifact.ErrNotFound, "410 Gone"},
		{"sick", web, server.URL + "/sick", "", nil, "503 Service Unavailable"},
		{"too large, said", web, server.URL + "/long", "", artifact.ErrTooLarge, "more than 13 bytes"},
		{"too large, not said", web, server.URL + "/endless", "", artifact.ErrTooLarge, "more than 13 bytes"},
		{"cut short", web, server.URL + "/short", "", nil, "unexpected EOF"},
		{"packed", web, server.URL + "/packed", "", artifact.ErrTooLarge, "more than 13 bytes"},
		{"unknown authority", artifact.NewWeb(artifact.WebConfig{AllowPrivate: true}), server.URL, "", nil, "certificate"},
		{"nobody there", web, "https://127.0.0.1:1/", "", nil, "refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			target = c.target
			err := c.web.Fetch(t.Context(), s, c.url, d, 13)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v, want one that says %q", err, c.says)
			}
			for _, final := range []error{artifact.ErrRefused, artifact.ErrNotFound, artifact.ErrTooLarge, artifact.ErrMismatch} {
				if got := errors.Is(err, final); got != (final == c.want) {
					t.Errorf("error %q matches %q: %v", err, final, got)
				}
			}
			if s.Has(d) {
				t.Errorf("it is there: %s", names(t, dir))
			}
		})
	}
	if err := web.Fetch(t.Context(), s, server.URL, digest(t, emptyDigest), 13); !errors.Is(err, artifact.ErrMismatch) {
		t.Errorf("other content: error %v, want ErrMismatch", err)
	}
}

// TestWeb_QueryStaysSecret: what a URL has in its query is in no error.
func TestWeb_QueryStaysSecret(t *testing.T) {
	server, roots := origin(t, func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/sign" {
			http.Redirect(w, q, "/deep?key=hidden", http.StatusFound)
			return
		}
		panic(http.ErrAbortHandler)
	})
	s, _ := open(t)
	web := artifact.NewWeb(artifact.WebConfig{AllowPrivate: true, RootCAs: roots})
	err := web.Fetch(t.Context(), s, server.URL+"/sign?key=hidden", digest(t, helloDigest), 13)
	if err == nil || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), server.URL+"/sign:") {
		t.Errorf("error %v", err)
	}
}

// TestWeb_Stall: a server that stops sending ends the transfer, whatever the caller's patience.
func TestWeb_Stall(t *testing.T) {
	served := make(chan struct{})
	server, roots := origin(t, func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.WriteString(w, "hello")
		w.(http.Flusher).Flush()
		<-q.Context().Done()
		close(served)
	})
	s, _ := open(t)
	web := artifact.NewWeb(artifact.WebConfig{AllowPrivate: true, RootCAs: roots, StallTimeout: 200 * time.Millisecond})
	err := web.Fetch(t.Context(), s, server.URL, digest(t, helloDigest), 13)
	if err == nil || !strings.Contains(err.Error(), "the server sent nothing for 200ms") {
		t.Errorf("error %v", err)
	}
	<-served
}

// TestWeb_Cancelled: the caller's end is the transfer's, and its cause comes back.
func TestWeb_Cancelled(t *testing.T) {
	begun := make(chan struct{})
	server, roots := origin(t, func(w http.ResponseWriter, q *http.Request) {
		w.(http.Flusher).Flush()
		close(begun)
		<-q.Context().Done()
	})
	s, _ := open(t)
	web := artifact.NewWeb(artifact.WebConfig{AllowPrivate: true, RootCAs: roots})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-begun
		cancel(errBroken)
	}()
	if err := web.Fetch(ctx, s, server.URL, digest(t, helloDigest), 13); !errors.Is(err, errBroken) {
		t.Errorf("error %v, want the cause", err)
	}
}

func TestCheckPublic(t *testing.T) {
	for _, public := range []string{"1.1.1.1", "93.184.215.14", "172.32.0.1", "192.169.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8"} {
		if err := artifact.CheckPublic(netip.MustParseAddr(public)); err != nil {
			t.Errorf("%s: %v", public, err)
		}
	}
	for _, other := range []string{
		"127.0.0.1", "127.255.0.1", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
		"100.64.0.1", "192.0.0.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
		"::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12:3456::1", "ff02::1", "fec0::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1",
		"64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:db8::1", "::7f00:1",
	} {
		if err := artifact.CheckPublic(netip.MustParseAddr(other)); !errors.Is(err, artifact.ErrRefused) {
			t.Errorf("%s: error %v, want ErrRefused", other, err)
		}
	}
	if err := artifact.CheckPublic(netip.Addr{}); !errors.Is(err, artifact.ErrRefused) {
		t.Errorf("no address: error %v, want ErrRefused", err)
	}
}

func TestIsURL(t *testing.T) {
	for source, want := range map[string]bool{
		"https://example.org/x": true, "http://example.org": true, "ftp://x": true,
		"./script.sh": false, "/opt/a://b": false, "sha256:" + helloDigest: false, "name": false, "": false, "../https://x": false,
	} {
		if got := artifact.IsURL(source); got != want {
			t.Errorf("IsURL(%q) = %v, want %v", source, got, want)
		}
	}
}
