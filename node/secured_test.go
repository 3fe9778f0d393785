package node_test

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
	"github.com/miwnode/miwnode/transport"
)

// lines collects the log of one node.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, "level=WARN") && strings.Contains(line, part) {
			n++
		}
	}
	return n
}

// A cluster runs on the material that keygen and cert make, and keeps out who
// has none, or other; both ends say so in a clear line, and nobody else is
// disturbed.
func TestNode_Secured(t *testing.T) {
	dir := t.TempDir()
	issue := func(ca, id, out string) func(*testing.T) *transport.TLS {
		t.Helper()
		return func(t *testing.T) *transport.TLS {
			t.Helper()
			m := filepath.Join(dir, out)
			if err := transport.NewNodeCert(filepath.Join(dir, ca), id, nil, m); err != nil {
				t.Fatal(err)
			}
			c, err := transport.LoadTLS(filepath.Join(m, "ca.crt"), filepath.Join(m, "node.crt"), filepath.Join(m, "node.key"))
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
	}
	key, otherKey := transport.NewGossipKey(), transport.NewGossipKey()
	for _, c := range []struct {
		name   string
		cert   func(*testing.T) *transport.TLS // of the intruder
		key    []byte
		inside string // what the cluster's log says
		theirs string // what the intruder's says
	}{
		{"without a certificate", nil, key, "needs TLS", "needs TLS"},
		{"of another authority", issue("ca2", "x", "x-ca2"), key, "bad certificate", "bad certificate"},
		// Its own end notices; one that lies to itself is refused as package transport shows.
		{"with the name of another", issue("ca1", "y", "x-as-y"), key, "", ""},
		{"with another gossip key", issue("ca1", "x", "x-key"), otherKey, "other gossip key", "other gossip key"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir = t.TempDir()
				for _, ca := range []string{"ca1", "ca2"} {
					if err := transport.NewCA(filepath.Join(dir, ca)); err != nil {
						t.Fatal(err)
					}
				}
				var logs [4]lines
				names := []string{"a", "b", "c", "x"}
				certs := make([]*transport.TLS, 4)
				for i, name := range names[:3] {
					certs[i] = issue("ca1", name, name)(t)
				}
				if c.cert != nil {
					certs[3] = c.cert(t)
				}
				cluster := nodetest.New(t, nodetest.Config{Seed: 18, Edit: func(i int, cfg *node.Config) {
					cfg.ID, cfg.TLS, cfg.GossipKey, cfg.Insecure = names[i], certs[i], key, false
					cfg.Logger = slog.New(slog.NewTextHandler(&logs[i], nil))
					if i == 3 {
						cfg.GossipKey, cfg.Insecure = c.key, cfg.TLS == nil
					}
				}})
				cluster.WaitReady()
				acquire(t, cluster, 1, "k")
				leader := cluster.WaitLeader()
				term := cluster.Node(leader).Status().Term
				cluster.Start(cluster.AddIdle())
				time.Sleep(30 * time.Second)
				if c.theirs == "" {
					if err := cluster.Err(3); err == nil || !strings.Contains(err.Error(), "certificate") {
						t.Errorf("Run of the intruder returned %v", err)
					}
				}
				if cluster.Running(3) && cluster.Node(3).ReadyErr() == nil {
					t.Error("the intruder is ready")
				}
				if got := cluster.Node(leader).Status(); got.Term != term || got.Quorum.Voters != 3 || !got.Quorum.OK {
					t.Errorf("the cluster was disturbed: %+v", got)
				}
				inside := 0
				for i := range 3 {
					inside += logs[i].count(c.inside)
				}
				if c.inside != "" && inside == 0 {
					t.Errorf("the cluster does not say %q", c.inside)
				}
				if theirs := logs[3].count(c.theirs); c.theirs != "" && theirs == 0 {
					t.Errorf("the intruder does not say %q:\n%s", c.theirs, logs[3].buf.String())
				}
				acquire(t, cluster, 2, "k2")
			})
		})
	}
}
