package transport_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/miwnode/miwnode/transport"
	"github.com/miwnode/miwnode/transport/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logbook is a slog.Handler that keeps lines of Info and above.
type logbook struct {
	mu    sync.Mutex
	lines []string
}

func (l *logbook) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (l *logbook) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l *logbook) WithGroup(string) slog.Handler                    { return l }
func (l *logbook) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, b.String())
	return nil
}

func (l *logbook) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines...)
}

// member is one node under test.
type member struct {
	*transport.Transport
	id  string
	log *logbook
	mu  sync.Mutex
	who transport.Identity
}

func (m *member) identity() transport.Identity {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.who
}

func (m *member) join(cluster string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.who.ClusterID = cluster
}

// change is what a test wants different from the usual node: cluster "blue", boot 1, nonce of its own, plain, no gossip key.
type change struct {
	host    string // defaults to the ID
	id      transport.Identity
	config  func(*transport.Config)
	network func(transport.Network) transport.Network // wraps that of the host
}

func listen(t *testing.T, n *memnet.Net, id string, changes ...change) *member {
	t.Helper()
	m, err := tryListen(n, id, changes...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close %s: %v", id, err)
		}
	})
	return m
}

var (
	nonces    sync.Mutex
	lastNonce int
)

func nonce() string {
	nonces.Lock()
	defer nonces.Unlock()
	lastNonce++
	return fmt.Sprint("process-", lastNonce)
}

func tryListen(n *memnet.Net, id string, changes ...change) (*member, error) {
	m := &member{id: id, log: &logbook{}}
	m.who = transport.Identity{ClusterID: "blue", NodeID: id, Boot: 1, Nonce: nonce()}
	host := id
	wrap := func(n transport.Network) transport.Network { return n }
	cfg := transport.Config{Insecure: true, Bind: ":7400", Identity: m.identity, Logger: slog.New(m.log)}
	for _, c := range changes {
		if c.host != "" {
			host = c.host
		}
		if c.id.ClusterID != "" {
			m.who.ClusterID = c.id.ClusterID
			if c.id.ClusterID == "none" {
				m.who.ClusterID = ""
			}
		}
		if c.id.Boot != 0 {
			m.who.Boot = c.id.Boot
		}
		if c.id.Nonce != "" {
			m.who.Nonce = c.id.Nonce
		}
		if c.config != nil {
			c.config(&cfg)
		}
		if c.network != nil {
			wrap = c.network
		}
	}
	cfg.Network = wrap(n.Host(host))
	tr, err := transport.Listen(cfg)
	if err != nil {
		return nil, err
	}
	m.Transport = tr
	m.Serve(echo)
	return m, nil
}

func echo(_ context.Context, _ transport.Identity, _ transport.Method, body []byte) ([]byte, error) {
	return body, nil
}

// ask makes one call with a second's patience.
func ask(from *member, addr, want string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	answer, _, err := from.Call(ctx, addr, want, 1, []byte("ping"))
	if err == nil && !strings.HasSuffix(string(answer), "ping") {
		err = fmt.Errorf("answer %q", answer)
	}
	return err
}

// authority is a folder with a CA.
func authority(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := transport.NewCA(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// certificate makes TLS material for a node.
func certificate(t *testing.T, ca, id string, hosts ...string) *transport.TLS {
	t.Helper()
	dir := t.TempDir()
	if err := transport.NewNodeCert(ca, id, hosts, dir); err != nil {
		t.Fatal(err)
	}
	m, err := transport.LoadTLS(filepath.Join(dir, transport.CACertFile), filepath.Join(dir, transport.NodeCertFile), filepath.Join(dir, transport.NodeKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func withTLS(m *transport.TLS) change {
	return change{config: func(c *transport.Config) { c.TLS = m }}
}

// wantRefusal expects err to be this refusal.
func wantRefusal(t *testing.T, err error, want transport.Refusal) {
	t.Helper()
	refused, ok := errors.AsType[*transport.RefusedError](err)
	if !ok || refused.Refusal != want {
		t.Errorf("got %v, want the refusal %q", err, want)
		return
	}
	if !errors.Is(err, transport.ErrNotSent) {
		t.Errorf("%v does not match ErrNotSent", err)
	}
}

// wantLine expects one line in the log and that it holds all the words.
func wantLine(t *testing.T, who string, l *logbook, words ...string) {
	t.Helper()
	lines := l.all()
	if len(lines) != 1 {
		t.Errorf("log of %s: got %d lines, want 1:\n%s", who, len(lines), strings.Join(lines, "\n"))
		return
	}
	for _, w := range words {
		if !strings.Contains(lines[0], w) {
			t.Errorf("log of %s: no %q in\n%s", who, w, lines[0])
		}
	}
}
