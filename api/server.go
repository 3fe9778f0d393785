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
	"strings"
	"sync"
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
	servers   []*http.Server
	listeners []net.Listener
	addr      string
	socket    string
	hangUp    context.CancelFunc
}

// NewServer checks cfg and binds what it names; Run serves it. The node's data
// folder must be locked by then: it is what makes a socket in it stale.
func NewServer(n Node, cfg ServerConfig) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	base, hangUp := context.WithCancel(context.Background())
	s := &Server{hangUp: hangUp}
	add := func(l net.Listener, h http.Handler) {
		s.listeners = append(s.listeners, l)
		s.servers = append(s.servers, &http.Server{
			Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
			BaseContext: func(net.Listener) context.Context { return base },
			ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		})
	}
	if cfg.Socket != "" {
		l, err := listenUnix(cfg.Socket)
		if err != nil {
			hangUp()
			return nil, err
		}
		s.socket = cfg.Socket
		add(l, Handler(n, WithLogger(log)))
	}
	if cfg.tcp() {
		l, h, err := listenTCP(n, cfg, log)
		if err != nil {
			hangUp()
			s.close()
			return nil, err
		}
		s.addr = l.Addr().String()
		add(l, h)
	}
	return s, nil
}

// Addr is the bound TCP host:port, "" without one.
func (s *Server) Addr() string { return s.addr }

// Close gives back what NewServer bound, for a server that is not run.
func (s *Server) Close() error {
	s.hangUp()
	s.close()
	return nil
}

// Run serves until ctx ends, lets calls that are under way finish for at most
// two seconds, and returns. Waiting acquires and event streams are cut off.
func (s *Server) Run(ctx context.Context) error {
	failed := make(chan error, len(s.servers))
	var wg sync.WaitGroup
	for i, srv := range s.servers {
		wg.Go(func() {
			if err := srv.Serve(s.listeners[i]); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serve the API on %s: %w", s.listeners[i].Addr(), err)
			}
		})
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	grace, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	s.hangUp()
	for _, srv := range s.servers {
		wg.Go(func() {
			if srv.Shutdown(grace) != nil {
				_ = srv.Close()
			}
		})
	}
	wg.Wait()
	s.close()
	return err
}

func (s *Server) close() {
	for _, l := range s.listeners {
		_ = l.Close()
	}
	if s.socket != "" {
		_ = os.Remove(s.socket)
	}
}

func listenTCP(n Node, cfg ServerConfig, log *slog.Logger) (net.Listener, http.Handler, error) {
	opts := []Option{WithLogger(log)}
	if cfg.TokenFile != "" {
		token, err := ReadToken(cfg.TokenFile)
		if err != nil {
			return nil, nil, err
		}
		opts = append(opts, WithToken(token))
	} else if host, _, _ := net.SplitHostPort(cfg.Listen); isLoopback(host) {
		opts = append(opts, withHosts(loopbackName))
	}
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("serve the API on %s: %w", cfg.Listen, err)
	}
	if cfg.TLSCert != "" {
		load := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(cfg.TLSCert, cfg.TLSKey)
			return &cert, err
		}
		if _, err := load(nil); err != nil {
			_ = l.Close()
			return nil, nil, fmt.Errorf("TLS of the API: %w", err)
		}
		l = tls.NewListener(l, &tls.Config{GetCertificate: load, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12})
	}
	return l, Handler(n, opts...), nil
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
