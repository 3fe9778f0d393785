package transport_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/transport"
)

// onLoopback starts a transport on real sockets.
func onLoopback(tb testing.TB, id string, config func(*transport.Config)) *transport.Transport {
	tb.Helper()
	n := nonce()
	cfg := transport.Config{Bind: "127.0.0.1:0", Identity: func() transport.Identity {
		return transport.Identity{ClusterID: "blue", NodeID: id, Boot: 1, Nonce: n}
	}}
	if config != nil {
		config(&cfg)
	}
	tr, err := transport.Listen(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tr.Serve(echo)
	tb.Cleanup(func() {
		if err := tr.Close(); err != nil {
			tb.Error(err)
		}
	})
	return tr
}

// One number serves TCP and UDP; port 0 finds one that is free for both.
func TestOS_OnePort(t *testing.T) {
	for range 20 {
		l, p, err := transport.OS().Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if l.Addr().String() != p.LocalAddr().String() {
			t.Errorf("TCP on %v, UDP on %v", l.Addr(), p.LocalAddr())
		}
		defer func() { _ = l.Close(); _ = p.Close() }()
	}
}

// A bind that fails says why and what to do, whichever half is taken, and leaves nothing behind.
func TestOS_PortInUse(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tcp.Close() }()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = udp.Close() }()
	for _, tt := range []struct{ name, addr, proto string }{
		{"TCP taken", tcp.Addr().String(), "tcp"},
		{"UDP taken", udp.LocalAddr().String(), "udp"},
	} {
		_, err := transport.Listen(transport.Config{Bind: tt.addr, Identity: func() transport.Identity { return transport.Identity{NodeID: "n1"} }})
		want := "bind " + tt.addr + " (" + tt.proto + "): the port is in use by another process, perhaps another miwnode: stop it or choose another bind address: " +
			"address already in use"
		if err == nil || err.Error() != want || !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: got %v, want %s", tt.name, err, want)
		}
	}
	// The TCP half of the second try was given back.
	l, err := net.Listen("tcp", udp.LocalAddr().String())
	if err != nil {
		t.Errorf("the TCP port is still taken: %v", err)
	} else {
		_ = l.Close()
	}
}

func TestOS_Lookup(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for name, want := range map[string]string{
		"127.0.0.1:99": "127.0.0.1:99",
		"127.0.0.1":    "127.0.0.1:7400",
		"[::1]:99":     "[::1]:99",
		"::1":          "[::1]:7400",
	} {
		got, err := transport.OS().Lookup(ctx, name)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, %v, want %s", name, got, err, want)
		}
	}
	for name, want := range map[string]string{
		"":            `look up "": empty address`,
		":99":         `look up ":99": address ":99" has no host`,
		"a:b":         `look up "a:b": port "b" is not a number up to 65535`,
		"127.0.0.1:x": `look up "127.0.0.1:x": port "x" is not a number up to 65535`,
	} {
		if _, err := transport.OS().Lookup(ctx, name); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", name, err, want)
		}
	}
}

// Packets and streams of gossip, and calls, over real sockets.
func TestOS_AllKinds(t *testing.T) {
	a, b := onLoopback(t, "a", nil), onLoopback(t, "b", nil)
	ga, gb := a.Gossip(), b.Gossip()
	if _, err := ga.WriteTo([]byte("hello"), b.Addr()); err != nil {
		t.Fatal(err)
	}
	select {
	case p := <-gb.PacketCh():
		if string(p.Buf) != "hello" || p.From.String() != a.Addr() {
			t.Errorf("got %q from %v, want hello from %s", p.Buf, p.From, a.Addr())
		}
	case <-time.After(5 * time.Second):
		t.Error("no packet")
	}
	accepted := make(chan net.Conn, 1)
	go func() {
		select {
		case c := <-gb.StreamCh():
			accepted <- c
		case <-time.After(5 * time.Second):
			close(accepted)
		}
	}()
	c, err := ga.DialTimeout(b.Addr(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("stream")); err != nil {
		t.Error(err)
	}
	s, ok := <-accepted
	if !ok {
		t.Fatal("no stream")
	}
	buf := make([]byte, 6)
	if _, err := s.Read(buf); err != nil || string(buf) != "stream" {
		t.Errorf("got %q, %v", buf, err)
	}
	if _, _, err := a.Call(t.Context(), b.Addr(), "b", 1, []byte("x")); err != nil {
		t.Error(err)
	}
}

func TestConfig_Validate(t *testing.T) {
	key := transport.NewGossipKey()
	for _, tt := range []struct {
		name string
		cfg  transport.Config
		want string // "" = fine
	}{
		{"nothing said: loopback", transport.Config{}, ""},
		{"loopback by name", transport.Config{Bind: "localhost:0"}, ""},
		{"loopback of IPv6", transport.Config{Bind: "[::1]:7400"}, ""},
		{"all interfaces, said to be insecure", transport.Config{Bind: "0.0.0.0:7400", Insecure: true}, ""},
		{"all interfaces with everything", transport.Config{Bind: ":7400", TLS: &transport.TLS{}, GossipKey: key}, ""},
		{"all interfaces, plain", transport.Config{Bind: "0.0.0.0:7400"}, "Bind: 0.0.0.0:7400 is reachable from other machines, but TLS and GossipKey is not set: " +
			"make the material with `miwnode cert ca`, `miwnode cert node` and `miwnode keygen`, or bind a loopback address like 127.0.0.1:7400, " +
			"or set Insecure if the network keeps everybody else out"},
		{"no host", transport.Config{Bind: ":7400", TLS: &transport.TLS{}}, "Bind: :7400 is reachable from other machines, but GossipKey is not set"},
		{"an address", transport.Config{Bind: "10.1.2.3:7400", GossipKey: key}, "Bind: 10.1.2.3:7400 is reachable from other machines, but TLS is not set"},
		{"no port", transport.Config{Bind: "10.1.2.3"}, `Bind: "10.1.2.3" is not host:port: write it like 127.0.0.1:7400`},
		{"bad port", transport.Config{Bind: "127.0.0.1:99999"}, `Bind: port "99999" of "127.0.0.1:99999" is not a number up to 65535`},
		{"advertise", transport.Config{Advertise: "n1.example"}, ""},
		{"advertise nothing", transport.Config{Advertise: "0.0.0.0:1"}, "Advertise: nobody reaches 0.0.0.0:1: write the host"},
		{"advertise a wrong port", transport.Config{Advertise: "n1:x"}, `Advertise: port "x" is not a number up to 65535`},
		{"short key", transport.Config{GossipKey: key[:7]}, "GossipKey: has 7 bytes, must have 16, 24 or 32: make one with `miwnode keygen`"},
		{"hasty", transport.Config{PeerTimeout: time.Millisecond}, "PeerTimeout: 1ms is too short to tell a dead peer from a busy one: at least 100ms"},
		{"all at once", transport.Config{Bind: "x", Advertise: "::", GossipKey: key[:1]}, "Bind: \"x\" is not host:port: write it like 127.0.0.1:7400\n" +
			"Advertise: nobody reaches ::: write the host, or host:port, under which other nodes reach this one\n" +
			"GossipKey: has 1 bytes"},
	} {
		err := tt.cfg.Validate()
		if (tt.want == "") != (err == nil) || (err != nil && !strings.HasPrefix(err.Error(), tt.want)) {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
}

func TestListen_BadIdentity(t *testing.T) {
	for want, id := range map[string]func() transport.Identity{
		"Identity: is required":                                nil,
		"Identity: node ID is empty":                           func() transport.Identity { return transport.Identity{} },
		"Identity: node ID \"a b\" has white space or control": func() transport.Identity { return transport.Identity{NodeID: "a b"} },
		"Identity: node ID has 129 bytes, at most 128":         func() transport.Identity { return transport.Identity{NodeID: strings.Repeat("x", 129)} },
	} {
		_, err := transport.Listen(transport.Config{Bind: "127.0.0.1:0", Identity: id})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
