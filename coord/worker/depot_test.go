package worker_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/artifact"
	"github.com/miwnode/miwnode/coord/worker"
)

const (
	script       = "#!/bin/sh\necho hello\n"
	scriptDigest = "bfdeaeb08cffb6a36438bcd12dda25417e3cdd36f1e7e482a2849d539225288b"
)

// peers are nodes of which each answer is known.
type peers func(d artifact.Digest, into *artifact.Store) error

func (p peers) FetchArtifact(_ context.Context, d artifact.Digest, into *artifact.Store) error {
	return p(d, into)
}

var errAway = errors.New("n2: not there")

// TestDepot: code comes from where it is, and what is wrong has its type.
func TestDepot(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/script":
			_, _ = io.WriteString(w, script)
		case "/other":
			_, _ = io.WriteString(w, "other")
		default:
			http.NotFound(w, q)
		}
	}))
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	dir := t.TempDir()
	path, other := filepath.Join(dir, "script"), filepath.Join(dir, "other")
	for file, text := range map[string]string{path: script, other: "other"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var (
		none = peers(func(artifact.Digest, *artifact.Store) error { return artifact.ErrNotFound })
		away = peers(func(artifact.Digest, *artifact.Store) error { return errAway })
		have = peers(func(_ artifact.Digest, s *artifact.Store) error {
			_, _, err := s.Put(strings.NewReader(script), artifact.MaxSize)
			return err
		})
		bad = peers(func(artifact.Digest, *artifact.Store) error { return artifact.ErrMismatch })
	)
	for _, c := range []struct {
		name           string
		peers          worker.Peers
		source, sha256 string
		want           string // type of the error, "" for none
	}{
		{"path", nil, path, "", ""},
		{"path and digest", nil, path, scriptDigest, ""},
		{"path of another node", have, filepath.Join(dir, "none"), scriptDigest, ""},
		{"path that changed, but peers have it", have, other, scriptDigest, ""},
		{"path that changed", none, other, scriptDigest, worker.TypeDigestMismatch},
		{"path that changed, peers away", away, other, scriptDigest, worker.TypeFetchFailed},
		{"no such path", none, filepath.Join(dir, "none"), "", worker.TypeSourceNotFound},
		{"no such path anywhere", none, filepath.Join(dir, "none"), scriptDigest, worker.TypeSourceNotFound},
		{"folder", none, dir, "", worker.TypeForbidden},
		{"URL", none, server.URL + "/script", scriptDigest, ""},
		{"URL that peers have", have, server.URL + "/gone", scriptDigest, ""},
		{"URL, peers away", away, server.URL + "/script", scriptDigest, ""},
		{"URL without digest", none, server.URL + "/script", "", worker.TypeForbidden},
		{"URL of something else", none, server.URL + "/other", scriptDigest, worker.TypeDigestMismatch},
		{"URL of nothing", none, server.URL + "/gone", scriptDigest, worker.TypeSourceNotFound},
		{"URL of nothing, peers away", away, server.URL + "/gone", scriptDigest, worker.TypeFetchFailed},
		{"plain URL", none, "http://example.org/script", scriptDigest, worker.TypeForbidden},
		{"digest", have, "sha256:" + scriptDigest, "", ""},
		{"digest twice", have, "sha256:" + scriptDigest, scriptDigest, ""},
		{"digest nobody has", none, "sha256:" + scriptDigest, "", worker.TypeSourceNotFound},
		{"digest, and no peers", nil, "sha256:" + scriptDigest, "", worker.TypeSourceNotFound},
		{"digest, peers away", away, "sha256:" + scriptDigest, "", worker.TypeFetchFailed},
		{"digest, peers damaged", bad, "sha256:" + scriptDigest, "", worker.TypeDigestMismatch},
		{"two digests", have, "sha256:" + scriptDigest, strings.Repeat("0", 64), worker.TypeDigestMismatch},
		{"half a digest", have, "sha256:1234", "", worker.TypeForbidden},
		{"half a digest beside", have, path, "1234", worker.TypeForbidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			store, err := artifact.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			d := &worker.Depot{Store: store, Peers: c.peers, Web: artifact.NewWeb(artifact.WebConfig{AllowPrivate: true, RootCAs: roots})}
			code, err := d.Fetch(t.Context(), c.source, c.sha256)
			if c.want != "" {
				if !errors.Is(err, &worker.Error{Type: c.want}) || code != nil {
					t.Fatalf("code %v, error %v of type %s, want %s", code, err, typeOf(err), c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			f, err := code.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			b, err := io.ReadAll(f)
			if err != nil || string(b) != script || code.SHA256() != scriptDigest || code.Size() != int64(len(script)) {
				t.Errorf("content %q, digest %s, size %d, error %v", b, code.SHA256(), code.Size(), err)
			}
			if onDisk, err := os.ReadFile(code.Path()); err != nil || string(onDisk) != script {
				t.Errorf("file has %q, error %v", onDisk, err)
			}
		})
	}
}

func typeOf(err error) string {
	if e, ok := errors.AsType[*worker.Error](err); ok {
		return e.Type
	}
	return ""
}

// TestDepot_Heals: code that was damaged on this node is got anew.
func TestDepot_Heals(t *testing.T) {
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	d := &worker.Depot{Store: store, Peers: peers(func(_ artifact.Digest, s *artifact.Store) error {
		asked++
		_, _, err := s.Put(strings.NewReader(script), artifact.MaxSize)
		return err
	})}
	for range 2 {
		code, err := d.Fetch(t.Context(), "sha256:"+scriptDigest, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(code.Path(), []byte("rubbish"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := code.Open(); err == nil {
			t.Fatal("rubbish was opened")
		}
	}
	if asked != 2 {
		t.Errorf("peers were asked %d times, want 2", asked)
	}
}

// TestDepot_Cancelled: the cause of the caller's end comes back as it is.
func TestDepot_Cancelled(t *testing.T) {
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	d := &worker.Depot{Store: store, Peers: peers(func(artifact.Digest, *artifact.Store) error {
		cancel(errAway)
		return context.Canceled
	})}
	if _, err := d.Fetch(ctx, "sha256:"+scriptDigest, ""); err != errAway {
		t.Errorf("error %v, want the cause", err)
	}
}
