package api_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/artifact"
)

// Code is uploaded once and used by its digest.
func TestArtifacts(t *testing.T) {
	f := newFactory(t)
	got := f.call("PUT", "/v1/artifacts", "good code").ok(200)
	if got.text("sha256") != digestOf("good code") || got.number("size") != 9 {
		t.Errorf("got %s", got.raw)
	}
	if again := f.call("PUT", "/v1/artifacts", "good code").ok(200); again.text("sha256") != got.text("sha256") {
		t.Errorf("got %s", again.raw)
	}
	id := f.create(`{"name": "x", "runtime": "exec", "source": "sha256:` + got.text("sha256") + `"}`)
	f.is(id, "stopped")
	f.call("PUT", "/v1/artifacts", strings.Repeat("x", artifact.MaxUpload)).ok(200)
	f.call("PUT", "/v1/artifacts", strings.Repeat("x", artifact.MaxUpload+1)).refused(400, "invalid_argument", "16777216")
	f.call("PUT", "/v1/artifacts", "").refused(400, "invalid_argument", "empty")
	unknown := f.create(`{"name": "x", "runtime": "exec", "source": "sha256:` + digestOf("never") + `"}`)
	if got := f.is(unknown, "load_failed"); got.text("error.type") != "source_not_found" {
		t.Errorf("got %s", got.raw)
	}

	// One whose size is not known beforehand is bounded as well.
	req, err := http.NewRequestWithContext(t.Context(), "PUT", f.url+"/v1/artifacts", struct{ *strings.Reader }{strings.NewReader(strings.Repeat("y", artifact.MaxUpload+1))})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := f.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 400 {
		t.Errorf("status %d, want 400", resp.StatusCode)
	}
	if files, err := os.ReadDir(f.dir); err != nil || len(files) != 2 {
		t.Errorf("%d artifacts are kept, want 2 (%v)", len(files), err)
	}
}

// Four uploads at a time are taken; those that are broken off make room and leave
// nothing behind.
func TestArtifacts_Bounded(t *testing.T) {
	f := newFactory(t)
	var stalled []net.Conn
	for range 4 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fmt.Fprint(conn, "PUT /v1/artifacts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx"); err != nil {
			t.Fatal(err)
		}
		stalled = append(stalled, conn)
	}
	upload := func() *answer { return f.call("PUT", "/v1/artifacts?timeout=20ms", "more") }
	until(t, f.node, "all four are under way", func() bool { return upload().status == 429 })
	upload().refused(429, "overloaded", "4 artifacts")
	for _, conn := range stalled {
		conn.Close()
	}
	until(t, f.node, "there is room again", func() bool { return upload().status == 200 })
	until(t, f.node, "what was broken off is gone", func() bool {
		files, err := os.ReadDir(f.dir)
		return err == nil && len(files) == 1 && files[0].Name() == digestOf("more")
	})
}

// That a node can't keep code is no fault of who sends it.
func TestArtifacts_NotStored(t *testing.T) {
	f := newFactory(t)
	path := f.file("good")
	if err := os.RemoveAll(f.dir); err != nil {
		t.Fatal(err)
	}
	f.call("PUT", "/v1/artifacts", "code").refused(500, "internal", "can't keep the code")
	body := `{"name": "x", "runtime": "exec", "source": "` + path + `"}`
	f.call("POST", "/v1/workers", body).refused(500, "internal", "can't keep the code")
	f.call("POST", "/v1/workers", strings.ReplaceAll(body, path, t.TempDir())).refused(400, "invalid_argument", "no regular file")
	if n := f.node.View().WorkerCount(); n != 0 {
		t.Errorf("there are %d workers", n)
	}
}
