package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// SocketName is the unix socket's name in a data folder.
const SocketName = "miw.sock"

// ServerConfig says where a node's API is served. The zero value serves nowhere.
type ServerConfig struct {
	// Socket is the path of a unix socket; it is made for its owner alone
	// (0600), and a stale one is replaced. Empty: none.
	Socket string
	// Listen is a TCP host:port; empty or "off": none.
	Listen string
	// TokenFile holds the token that callers over TCP must send. Empty: none
	// is asked for, and web browsers are kept out by the names they call.
	TokenFile string
	// TLSCert and TLSKey are PEM files; both or none. They are read anew at
	// each handshake, so a renewed certificate needs no restart.
	TLSCert, TLSKey string
	// Insecure allows an address beyond loopback without token and TLS.
	Insecure bool
	// Logger takes what callers can't be told; nil discards it.
	Logger *slog.Logger
}

// Validate reports every fault of c at once, each naming its field and what would do.
func (c ServerConfig) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if (c.TLSCert == "") != (c.TLSKey == "") {
		bad("TLSCert is %q and TLSKey is %q: give both or neither", c.TLSCert, c.TLSKey)
	}
	if c.TokenFile != "" {
		if _, err := ReadToken(c.TokenFile); err != nil {
			bad("TokenFile: %w", err)
		}
	}
	if c.tcp() {
		host, port, err := net.SplitHostPort(c.Listen)
		if err != nil {
			bad("Listen is %q: it must be host:port or off", c.Listen)
		} else if _, err := net.LookupPort("tcp", port); err != nil {
			bad("Listen is %q: %q is not a port", c.Listen, port)
		} else if !isLoopback(host) && !c.Insecure && (c.TokenFile == "" || c.TLSCert == "") {
			bad("Listen is %q, not loopback: it needs TokenFile and TLS (TLSCert, TLSKey), or Insecure", c.Listen)
		}
	}
	return errors.Join(errs...)
}

func (c ServerConfig) tcp() bool { return c.Listen != "" && c.Listen != "off" }

// Server serves one node's API on a unix socket and a TCP address.
type Server struct {
	cfg    ServerConfig
	log    *slog.Logger
	base   context.Context // of every call
	hangUp context.CancelFunc

	unix, tcp *endpoint // nil: none
	addr      atomic.Pointer[string]
}

// endpoint is one listener and what is served on it.
type endpoint struct {
	server   *http.Server
	listener net.Listener // nil: not bound yet
}

// NewServer checks cfg and binds what it names; Run serves it. A TCP port that
// is taken is no error: Run tries it again. The node's data folder must be
// locked by then: that is what makes a socket in it stale. The options are for
// the handlers of both; the token is that of the configuration.
func NewServer(n Node, cfg ServerConfig, opts ...Option) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, log: cfg.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.base, s.hangUp = context.WithCancel(context.Background())
	if err := s.bind(n, append([]Option{WithLogger(s.log)}, opts...)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) bind(n Node, opts []Option) error {
	if s.cfg.Socket != "" {
		l, err := listenUnix(s.cfg.Socket)
		if err != nil {
			return err
		}
		s.unix = &endpoint{s.server(Handler(n, opts...)), l}
	}
	if s.cfg.tcp() {
		h, err := s.tcpHandler(n, slices.Clip(opts))
		if err != nil {
			return err
		}
		s.tcp = &endpoint{server: s.server(h)}
		if err := s.listenTCP(); err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return nil
}

func (s *Server) server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return s.base }, ConnContext: ConnContext,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// Addr is the bound TCP host:port, "" while there is none.
func (s *Server) Addr() string {
	if addr := s.addr.Load(); addr != nil {
		return *addr
	}
	return ""
}

// Close gives back what NewServer bound, for a server that is not run.
func (s *Server) Close() error {
	s.hangUp()
	for _, e := range []*endpoint{s.unix, s.tcp} {
		if e != nil && e.listener != nil {
			_ = e.listener.Close()
		}
	}
	if s.unix != nil {
		return os.Remove(s.cfg.Socket)
	}
	return nil
}

// Run serves until ctx ends, lets calls that are under way finish for at most
// two seconds, and returns. Waiting acquires and event streams are cut off.
func (s *Server) Run(ctx context.Context) error {
	failed := make(chan error, 2)
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	var serving, closing sync.WaitGroup
	if s.unix != nil {
		serving.Go(func() { failed <- s.unix.serve() })
	}
	if s.tcp != nil {
		serving.Go(func() { failed <- s.serveTCP(stop) })
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	cancel()
	s.hangUp()
	grace, done := context.WithTimeout(context.Background(), 2*time.Second)
	defer done()
	for _, e := range []*endpoint{s.unix, s.tcp} {
		if e == nil {
			continue
		}
		closing.Go(func() {
			if e.server.Shutdown(grace) != nil {
				_ = e.server.Close()
			}
		})
	}
	closing.Wait()
	serving.Wait()
	if s.unix != nil {
		_ = os.Remove(s.cfg.Socket) // a socket that is left is stale and will be replaced
	}
	return err
}

// serve returns nil after Shutdown.
func (e *endpoint) serve() error {
	if err := e.server.Serve(e.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API on %s: %w", e.listener.Addr(), err)
	}
	return nil
}

// serveTCP waits until the port is free, if it is not, and serves.
func (s *Server) serveTCP(ctx context.Context) error {
	for said := false; s.tcp.listener == nil; {
		err := s.listenTCP()
		switch {
		case err == nil:
			continue
		case !errors.Is(err, syscall.EADDRINUSE):
			return err
		case !said:
			s.log.Warn("the API's port is taken; it is tried again each second", "addr", s.cfg.Listen, "error", err)
			said = true
		}
		pause := time.NewTimer(time.Second)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil
		}
	}
	s.log.Info("API served", "addr", s.Addr())
	return s.tcp.serve()
}

func (s *Server) listenTCP() error {
	l, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("serve the API on %s: %w", s.cfg.Listen, err)
	}
	addr := l.Addr().String()
	s.addr.Store(&addr)
	if s.cfg.TLSCert != "" {
		l = tls.NewListener(l, &tls.Config{
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.certificate() },
			NextProtos:     []string{"http/1.1"}, MinVersion: tls.VersionTLS12,
		})
	}
	s.tcp.listener = l
	return nil
}

func (s *Server) certificate() (*tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(s.cfg.TLSCert, s.cfg.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("TLS of the API: %w", err)
	}
	return &cert, nil
}

// tcpHandler is what is served over TCP: with a token, or for loopback names only.
func (s *Server) tcpHandler(n Node, opts []Option) (http.Handler, error) {
	if s.cfg.TLSCert != "" {
		if _, err := s.certificate(); err != nil {
			return nil, err
		}
	}
	if s.cfg.TokenFile != "" {
		token, err := ReadToken(s.cfg.TokenFile)
		if err != nil {
			return nil, err
		}
		opts = append(opts, WithToken(token))
	} else if host, _, _ := net.SplitHostPort(s.cfg.Listen); isLoopback(host) {
		opts = append(opts, withHosts(loopbackName))
	}
	return Handler(n, opts...), nil
}

// ReadToken reads a token file: one line of at least 16 printable characters.
func ReadToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if len(token) < 16 {
		return "", fmt.Errorf("token file %s holds %d characters: a token needs at least 16 (miwnode keygen makes one)", path, len(token))
	}
	for _, r := range token {
		if r <= ' ' || r > '~' {
			return "", fmt.Errorf("token file %s must hold one line of printable ASCII without blanks", path)
		}
	}
	return token, nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// loopbackName tells whether a Host header names this machine by a name that no
// DNS server can point elsewhere and back.
func loopbackName(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	return isLoopback(strings.Trim(host, "[]"))
}
