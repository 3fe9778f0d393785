package api_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Ensures that a refusal does not wait for the rest of a body that may never
// come: it is answered, and the connection is given up.
func TestHandler_StalledBody(t *testing.T) {
	s := serve(t, startReady(t))
	for request, status := range map[string]int{
		"POST /nope HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{":                404,
		"POST /v1/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{":           405,
		"POST /v1/sessions?nope=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{":  400,
		"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n{\"": 400,
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second)) // against a hang of the test
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Errorf("%.40q: no answer: %v", request, err)
			continue
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if resp.StatusCode != status {
			t.Errorf("%.40q: got %d, want %d", request, resp.StatusCode, status)
		}
		if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("%.40q: the connection was not given up: %v", request, err)
		}
	}
}

// Ensures that the product's own keys can't be taken through the API.
func TestAcquire_OwnKeys(t *testing.T) {
	s := serve(t, startReady(t))
	s.call("POST", "/v1/leases/acquire", acquireBody("miw/group/g/planner", s.session(`{"ttl": "10s"}`))).
		refused(400, "invalid_argument", "miw/")
}
