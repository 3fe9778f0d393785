package transport_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/transport"
	"github.com/miwnode/miwnode/transport/memnet"
)

func load(dir string) (*transport.TLS, error) {
	return transport.LoadTLS(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "node.crt"), filepath.Join(dir, "node.key"))
}

// A node certificate is good for its ID, and where it names hosts, for these (and loopback) only.
func TestTLS_CheckName(t *testing.T) {
	ca := authority(t)
	for _, tt := range []struct {
		id    string
		hosts []string
		node  string
		addr  string
		want  string // "" = good
	}{
		{"n1", nil, "n1", "10.0.0.5:7400", ""},
		{"n1", nil, "n1", "", ""},
		{"n1", nil, "n2", "10.0.0.5:7400", "the certificate of \"n1\" names n1, not node n2: make one with `miwnode cert node --id n2`"},
		{"n1", []string{"n2"}, "n2", "", "the certificate of \"n1\" names n1, not node n2"},
		{"weird/ü:id", nil, "weird/ü:id", "", ""},
		{"n1", []string{"10.0.0.5", "n1.example"}, "n1", "10.0.0.5:7400", ""},
		{"n1", []string{"10.0.0.5", "n1.example"}, "n1", "n1.example:7400", ""},
		{"n1", []string{"*.example"}, "n1", "n1.example:7400", ""},
		{"n1", []string{"::1", "fd00::5"}, "n1", "[fd00::5]:7400", ""},
		{"n1", []string{"10.0.0.5"}, "n1", "127.0.0.1:7400", ""},
		{"n1", []string{"10.0.0.5"}, "n1", "10.0.0.6:7400", "the certificate of node n1 is for 10.0.0.5, not for 10.0.0.6, which it advertises: " +
			"make one with `miwnode cert node --id n1 --host 10.0.0.6`"},
		{"n1", []string{"n1.example"}, "n1", "n2.example", "the certificate of node n1 is for n1.example, not for n2.example"},
	} {
		m := certificate(t, ca, tt.id, tt.hosts...)
		err := m.CheckName(tt.node, tt.addr)
		if (tt.want == "") != (err == nil) || (err != nil && !strings.HasPrefix(err.Error(), tt.want)) {
			t.Errorf("%s for %v as %s at %s: got %v, want %s", tt.id, tt.hosts, tt.node, tt.addr, err, tt.want)
		}
	}
}

// A node whose own certificate can't work does not start.
func TestTLS_OwnNameChecked(t *testing.T) {
	ca := authority(t)
	n := memnet.New(1)
	defer n.Close()
	_, err := tryListen(n, "n1", withTLS(certificate(t, ca, "n2")))
	if err == nil || !strings.HasPrefix(err.Error(), "TLS: the certificate of this node does not fit: the certificate of \"n2\" names n2, not node n1") {
		t.Errorf("got %v", err)
	}
	if m, err := tryListen(n, "n1", withTLS(certificate(t, ca, "n1"))); err != nil {
		t.Errorf("the port was not given back: %v", err)
	} else {
		_ = m.Close()
	}
}

func TestLoadTLS_Faults(t *testing.T) {
	ca, other := authority(t), authority(t)
	good := t.TempDir()
	if err := transport.NewNodeCert(ca, "n1", nil, good); err != nil {
		t.Fatal(err)
	}
	second := t.TempDir()
	if err := transport.NewNodeCert(other, "n1", nil, second); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := func(dir, name string) string { return filepath.Join(dir, name) }
	for _, tt := range []struct{ name, ca, cert, key, want string }{
		{"missing file", in(good, "nothing"), in(good, "node.crt"), in(good, "node.key"), "TLS material: stat " + in(good, "nothing") + ": no such file"},
		{"no PEM for the authority", text, in(good, "node.crt"), in(good, "node.key"), text + " holds no certificate in PEM form"},
		{"no PEM for the certificate", in(good, "ca.crt"), text, in(good, "node.key"), "failed to find any PEM data"},
		{"key of another", in(good, "ca.crt"), in(good, "node.crt"), in(second, "node.key"), "private key does not match public key"},
		{"another authority", in(second, "ca.crt"), in(good, "node.crt"), in(good, "node.key"), in(good, "node.crt") + " is not good under " + in(second, "ca.crt")},
	} {
		if _, err := transport.LoadTLS(tt.ca, tt.cert, tt.key); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
}

// A certificate that has run out is refused at load and at the greeting.
func TestTLS_Expiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		ca := authority(t)
		oldDir := t.TempDir()
		if err := transport.NewNodeCert(ca, "old", nil, oldDir); err != nil {
			t.Fatal(err)
		}
		m, err := load(oldDir)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := time.Until(m.NotAfter()).Round(time.Hour), 5*365*24*time.Hour; got != want {
			t.Errorf("a certificate lives %v, want %v", got, want)
		}
		old := listen(t, n, "old", withTLS(m))
		time.Sleep(6 * 365 * 24 * time.Hour)
		fresh := listen(t, n, "fresh", withTLS(certificate(t, ca, "fresh")))
		wantRefusal(t, ask(old, fresh.Addr(), "fresh"), transport.RefusedBadCertificate)
		wantLine(t, "fresh", fresh.log, "refusal=bad certificate", "certificate has expired")
		wantLine(t, "old", old.log, "refusal=bad certificate", "did not take the certificate of this one")
		if _, err := load(oldDir); err == nil || !strings.Contains(err.Error(), "expired") {
			t.Errorf("load: got %v", err)
		}
	})
}

// New files count from the next handshake; broken ones leave what was.
func TestTLS_Reload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		oldCA, newCA := authority(t), authority(t)
		dir := t.TempDir()
		if err := transport.NewNodeCert(oldCA, "n1", nil, dir); err != nil {
			t.Fatal(err)
		}
		m, err := load(dir)
		if err != nil {
			t.Fatal(err)
		}
		n1 := listen(t, n, "n1", withTLS(m))
		fromOld := listen(t, n, "old", withTLS(certificate(t, oldCA, "old")))
		fromNew := listen(t, n, "new", withTLS(certificate(t, newCA, "new")))
		if err := ask(fromOld, n1.Addr(), "n1"); err != nil {
			t.Fatal(err)
		}
		wantRefusal(t, ask(fromNew, n1.Addr(), "n1"), transport.RefusedBadCertificate)

		// Half-written: the old material stays in use, and that is told.
		write := func(name string, data []byte) {
			t.Helper()
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			// The fake clock of the bubble does not stamp files; the stamp must differ.
			stamp := time.Now().Add(time.Duration(len(data)) * time.Second)
			if err := os.Chtimes(path, stamp, stamp); err != nil {
				t.Fatal(err)
			}
		}
		read := func(path string) []byte {
			t.Helper()
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		write("node.crt", []byte("half"))
		time.Sleep(2 * time.Second)
		again := listen(t, n, "again", withTLS(certificate(t, oldCA, "again")))
		if err := ask(again, n1.Addr(), "n1"); err != nil {
			t.Errorf("with broken files: %v", err)
		}
		if err := m.ReloadErr(); err == nil || !strings.Contains(err.Error(), "failed to find any PEM data") {
			t.Errorf("reload: got %v", err)
		}

		next := t.TempDir()
		if err := transport.NewNodeCert(newCA, "n1", nil, next); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"ca.crt", "node.crt", "node.key"} {
			write(f, read(filepath.Join(next, f)))
		}
		time.Sleep(2 * time.Second)
		if err := ask(fromNew, n1.Addr(), "n1"); err != nil {
			t.Errorf("with new files: %v", err)
		}
		if err := m.ReloadErr(); err != nil {
			t.Errorf("reload: got %v", err)
		}
		third := listen(t, n, "third", withTLS(certificate(t, oldCA, "third")))
		wantRefusal(t, ask(third, n1.Addr(), "n1"), transport.RefusedBadCertificate)
		// What is open goes on.
		if err := ask(fromOld, n1.Addr(), "n1"); err != nil {
			t.Errorf("open connection: %v", err)
		}
	})
}

// Material is written once, for its owner only, and never over something.
func TestMaterial(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	if err := transport.NewCA(dir); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "n1")
	if err := transport.NewNodeCert(dir, "n1", []string{"n1.example", "10.0.0.1"}, out); err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(out, "gossip.key")
	key := transport.NewGossipKey()
	if err := transport.WriteGossipKey(keyFile, key); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"),
		filepath.Join(out, "ca.crt"), filepath.Join(out, "node.crt"), filepath.Join(out, "node.key"), keyFile,
	} {
		s, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Mode().Perm(); got != 0o600 {
			t.Errorf("%s has mode %o, want 600", path, got)
		}
	}
	before, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"authority":   transport.NewCA(dir),
		"certificate": transport.NewNodeCert(dir, "n2", nil, out),
		"gossip key":  transport.WriteGossipKey(keyFile, key),
	} {
		if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "it exists and is not overwritten: move it away or choose another folder") {
			t.Errorf("a second %s: got %v", name, err)
		}
	}
	after, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil || string(before) != string(after) {
		t.Errorf("the key of the authority was touched: %v", err)
	}
	if got, err := transport.ReadGossipKey(keyFile); err != nil || string(got) != string(key) {
		t.Errorf("gossip key: got %x, %v, want %x", got, err, key)
	}
	// The folder of the authority itself will do for one node.
	if err := transport.NewNodeCert(dir, "n3", nil, dir); err != nil {
		t.Errorf("into the authority's folder: %v", err)
	}
}

func TestMaterial_Faults(t *testing.T) {
	ca, empty := authority(t), t.TempDir()
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"no authority", transport.NewNodeCert(empty, "n1", nil, empty), "make the authority with `miwnode cert ca` first"},
		{"no ID", transport.NewNodeCert(ca, "", nil, empty), "make certificate: node ID is empty"},
		{"host with a port", transport.NewNodeCert(ca, "n1", []string{"a:1"}, empty), `make certificate: host "a:1" is neither a name nor an IP address (leave out the port)`},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.name, tt.err, tt.want)
		}
	}
	if left, err := os.ReadDir(empty); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for text, want := range map[string]string{
		"***":  "gossip key: not base64",
		"":     "gossip key: has 0 bytes, must have 16, 24 or 32",
		"AAAA": "gossip key: has 3 bytes, must have 16, 24 or 32",
	} {
		if _, err := transport.ParseGossipKey(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	if _, err := transport.ParseGossipKey("  " + transport.EncodeGossipKey(make([]byte, 32)) + "\n"); err != nil {
		t.Error(err)
	}
}
