package api_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/transport"
)

// runServer serves n until the test ends.
func runServer(t *testing.T, n api.Node, cfg api.ServerConfig) *api.Server {
	t.Helper()
	s, err := api.NewServer(n, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server ended with %v", err)
		}
	})
	return s
}

func statusOf(t *testing.T, cfg api.ClientConfig) error {
	t.Helper()
	c, err := api.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var s api.Status
	_, err = c.Do(ctx, api.Request{Method: "GET", Path: "/v1/status"}, &s)
	if err == nil && s.NodeID != "n1" {
		t.Errorf("got the status of %q", s.NodeID)
	}
	return err
}

// The socket is its owner's alone, takes the place of a stale one, and needs no
// token; a long path is no hindrance.
func TestServer_Socket(t *testing.T) {
	n := startReady(t)
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, api.SocketName)
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: shortPath(t, path), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	if err := statusOf(t, api.ClientConfig{Addr: path}); err == nil || !strings.Contains(err.Error(), "nobody listens") {
		t.Errorf("a stale socket gives %v", err)
	}
	runServer(t, n, api.ServerConfig{Socket: path, TokenFile: token})
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", st.Mode().Perm())
	}
	if err := statusOf(t, api.ClientConfig{Addr: path}); err != nil {
		t.Error(err)
	}
}

// shortPath reaches a long path through a link.
func shortPath(t *testing.T, path string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	link := filepath.Join(dir, "d")
	if err := os.Symlink(filepath.Dir(path), link); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(link, filepath.Base(path))
}

func TestServer_SocketPlaceTaken(t *testing.T) {
	n := startReady(t)
	path := filepath.Join(t.TempDir(), api.SocketName)
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := api.NewServer(n, api.ServerConfig{Socket: path}); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("got %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "mine" {
		t.Error("a file in the socket's place was destroyed")
	}
}

func TestServer_Token(t *testing.T) {
	n := startReady(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	srv := runServer(t, n, api.ServerConfig{Listen: "127.0.0.1:0", TokenFile: token})
	s := &site{t: t, node: n, url: "http://" + srv.Addr(), http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}

	s.call("GET", "/v1/status", "", "Authorization", "Bearer 0123456789abcdef").ok(200)
	s.call("GET", "/v1/status", "", "Authorization", "bearer  0123456789abcdef").ok(200)
	for _, header := range []string{"", "Bearer", "Bearer 0123456789abcdeF", "Basic 0123456789abcdef", "0123456789abcdef"} {
		a := s.call("GET", "/v1/status", "", "Authorization", header).refused(401, "unauthenticated")
		if a.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%q: no challenge", header)
		}
	}
	s.call("POST", "/v1/sessions", `{"ttl": "10s"}`).refused(401, "unauthenticated")
	s.call("GET", "/metrics", "").refused(401, "unauthenticated")
	s.call("GET", "/healthz", "").ok(200)
	s.call("GET", "/readyz", "").ok(200)
	if err := statusOf(t, api.ClientConfig{Addr: s.url, Token: "0123456789abcdef"}); err != nil {
		t.Error(err)
	}
}

// Without a token, a browser on this machine must not be a way in.
func TestServer_Browsers(t *testing.T) {
	n := startReady(t)
	srv := runServer(t, n, api.ServerConfig{Listen: "127.0.0.1:0"})
	s := &site{t: t, node: n, url: "http://" + srv.Addr(), http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	path := "/v1/instances/" + n.InstanceID() + "/cordon"

	s.call("POST", path, "", "Origin", "https://evil.example").refused(403, "permission_denied")
	s.call("POST", path, "", "Sec-Fetch-Site", "cross-site").refused(403, "permission_denied")
	for host, allowed := range map[string]bool{"evil.example": false, "evil.example:7480": false, "localhost:7480": true, "127.0.0.1": true, "[::1]:7480": true} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host // as a name would that an attacker points here
		resp, err := s.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.StatusCode == 200; got != allowed {
			t.Errorf("host %q: status %d", host, resp.StatusCode)
		}
		if resp.Header.Get("Access-Control-Allow-Origin") != "" || resp.Header.Get("Set-Cookie") != "" {
			t.Errorf("host %q: CORS or cookies: %v", host, resp.Header)
		}
	}
}

func TestServer_TLS(t *testing.T) {
	n := startReady(t)
	dir := t.TempDir()
	ca, cert := filepath.Join(dir, "ca"), filepath.Join(dir, "n1")
	if err := transport.NewCA(ca); err != nil {
		t.Fatal(err)
	}
	if err := transport.NewNodeCert(ca, "n1", []string{"127.0.0.1"}, cert); err != nil {
		t.Fatal(err)
	}
	srv := runServer(t, n, api.ServerConfig{
		Listen: "127.0.0.1:0", TLSCert: filepath.Join(cert, transport.NodeCertFile), TLSKey: filepath.Join(cert, transport.NodeKeyFile),
	})
	caFile := filepath.Join(ca, transport.CACertFile)
	if err := statusOf(t, api.ClientConfig{Addr: "https://" + srv.Addr(), TLSCA: caFile}); err != nil {
		t.Error(err)
	}
	if err := statusOf(t, api.ClientConfig{Addr: "https://" + srv.Addr()}); err == nil {
		t.Error("a client trusts an authority that it does not know")
	}
	if err := statusOf(t, api.ClientConfig{Addr: "http://" + srv.Addr()}); err == nil {
		t.Error("plain HTTP is answered on a TLS port")
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	if conn, err := tls.Dial("tcp", srv.Addr(), &tls.Config{RootCAs: pool, ServerName: "other.example"}); err == nil {
		conn.Close()
		t.Error("a certificate is good for a name that it does not have")
	}
}

func TestServerConfig_Validate(t *testing.T) {
	dir := t.TempDir()
	good, short := filepath.Join(dir, "good"), filepath.Join(dir, "short")
	for file, text := range map[string]string{good: "0123456789abcdef", short: "0123"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name  string
		cfg   api.ServerConfig
		words []string // none: good
	}{
		{"nothing", api.ServerConfig{}, nil},
		{"off", api.ServerConfig{Listen: "off"}, nil},
		{"loopback", api.ServerConfig{Listen: "127.0.0.1:7480"}, nil},
		{"localhost", api.ServerConfig{Listen: "localhost:7480"}, nil},
		{"beyond loopback", api.ServerConfig{Listen: "0.0.0.0:7480"}, []string{"TokenFile", "TLS", "Insecure"}},
		{"all addresses", api.ServerConfig{Listen: ":7480"}, []string{"TokenFile"}},
		{"beyond loopback with a token only", api.ServerConfig{Listen: "10.0.0.1:7480", TokenFile: good}, []string{"TLS"}},
		{"beyond loopback, secured", api.ServerConfig{Listen: "10.0.0.1:7480", TokenFile: good, TLSCert: "c", TLSKey: "k"}, nil},
		{"beyond loopback, insecure", api.ServerConfig{Listen: "10.0.0.1:7480", Insecure: true}, nil},
		{"no port", api.ServerConfig{Listen: "127.0.0.1"}, []string{"Listen", "host:port"}},
		{"bad port", api.ServerConfig{Listen: "127.0.0.1:many"}, []string{"many"}},
		{"half of TLS", api.ServerConfig{TLSCert: "c"}, []string{"TLSCert", "TLSKey"}},
		{"short token", api.ServerConfig{TokenFile: short}, []string{"TokenFile", "16"}},
		{"no token file", api.ServerConfig{TokenFile: filepath.Join(dir, "none")}, []string{"TokenFile"}},
		{"two faults", api.ServerConfig{TLSCert: "c", Listen: "0.0.0.0:1"}, []string{"TLSKey", "Insecure"}},
	} {
		err := c.cfg.Validate()
		if (err == nil) != (len(c.words) == 0) {
			t.Errorf("%s: got %v", c.name, err)
		}
		for _, w := range c.words {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q lacks %q", c.name, err, w)
			}
		}
	}
}

// A port that is taken is tried again; the socket serves meanwhile.
func TestServer_PortTaken(t *testing.T) {
	n := startReady(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	path := filepath.Join(t.TempDir(), api.SocketName)
	runServer(t, n, api.ServerConfig{Socket: path, Listen: addr})
	if err := statusOf(t, api.ClientConfig{Addr: path}); err != nil {
		t.Error(err)
	}
	l.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(10 * time.Second); statusOf(t, api.ClientConfig{Addr: "http://" + addr}) != nil; {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("the port was not tried again")
		}
	}
}

// The end of the server ends streams and waits, and takes its socket away.
func TestServer_End(t *testing.T) {
	n := startReady(t)
	path := filepath.Join(t.TempDir(), api.SocketName)
	srv, err := api.NewServer(n, api.ServerConfig{Socket: path, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	s := &site{t: t, node: n, url: "http://" + srv.Addr(), http: &http.Client{Transport: &http.Transport{}}}
	defer s.http.CloseIdleConnections()
	s.stream(t.Context(), "/v1/events")
	a, b := s.session(`{"ttl": "30s"}`), s.session(`{"ttl": "30s"}`)
	s.call("POST", "/v1/leases/acquire", acquireBody("k", a)).ok(200)
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		_, _ = s.try(t.Context(), "POST", "/v1/leases/acquire", acquireBody("k", b, "wait", "1h"))
	}()
	until(t, n, "b waits", func() bool { return n.View().WaiterCount("k") == 1 })
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the server goes on")
	}
	<-waited
	if got := n.View().WaiterCount("k"); got != 0 {
		t.Errorf("%d still wait", got)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}
