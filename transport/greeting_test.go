package transport_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/transport"
	"github.com/miwnode/miwnode/transport/memnet"
)

// Every stranger gets a typed error, both ends write one line with both addresses, however often it tries, and the others go on.
func TestRefusals(t *testing.T) {
	key1, key2 := transport.NewGossipKey(), transport.NewGossipKey()
	gossipKey := func(k []byte) change { return change{config: func(c *transport.Config) { c.GossipKey = k }} }
	type setting struct {
		ca, otherCA string
		net         *memnet.Net
	}
	tests := []struct {
		name     string
		tls      bool
		key      []byte
		stranger func(t *testing.T, s setting) *member
		want     transport.Refusal
		dialID   string // whom the stranger looks for; default good-1
		byGood   string // words in the line of the good node
		byX      string
	}{
		{
			name: "other cluster",
			stranger: func(t *testing.T, s setting) *member {
				return listen(t, s.net, "x", change{id: transport.Identity{ClusterID: "red"}})
			},
			want:   transport.RefusedOtherCluster,
			byGood: "good-1 belongs to cluster blue, x to cluster red by=us direction=incoming",
			byX:    "good-1 belongs to cluster blue, x to cluster red by=peer direction=outgoing",
		},
		{
			name: "older boot",
			stranger: func(t *testing.T, s setting) *member {
				newer := listen(t, s.net, "x", change{id: transport.Identity{Boot: 7}})
				if err := ask(newer, "10.0.0.1:7400", "good-1"); err != nil {
					t.Error(err)
				}
				return listen(t, s.net, "x", change{host: "old-x", id: transport.Identity{Boot: 6}})
			},
			want:   transport.RefusedOlderBoot,
			byGood: "node x greets with boot 6 from 10.0.0.4:7400, but boot 7 has been seen at 10.0.0.3:7400",
			byX:    "node x greets with boot 6 from 10.0.0.4:7400, but boot 7 has been seen at 10.0.0.3:7400",
		},
		{
			name: "twin process",
			stranger: func(t *testing.T, s setting) *member {
				if err := ask(listen(t, s.net, "x"), "10.0.0.1:7400", "good-1"); err != nil {
					t.Error(err)
				}
				return listen(t, s.net, "x", change{host: "copy-of-x"})
			},
			want:   transport.RefusedTwin,
			byGood: "node ID x with boot 1 is used by two processes, at 10.0.0.3:7400 and at 10.0.0.4:7400",
			byX:    "one of the data folders is a copy",
		},
		{
			name: "twin of the node that is asked",
			stranger: func(t *testing.T, s setting) *member {
				return listen(t, s.net, "good-1", change{host: "copy-of-good-1", id: transport.Identity{Boot: 2}})
			},
			want:   transport.RefusedTwin,
			byGood: "node ID good-1 is used by two processes: boot 1 at 10.0.0.1:7400 and boot 2 at 10.0.0.3:7400",
			byX:    "node ID good-1 is used by two processes",
		},
		{
			name:     "wrong node at the address",
			stranger: func(t *testing.T, s setting) *member { return listen(t, s.net, "x") },
			dialID:   "good-9",
			want:     transport.RefusedWrongNode,
			byGood:   "node x looked for node good-9 at 10.0.0.1:7400 and met node good-1 by=peer",
			byX:      "node x looked for node good-9 at 10.0.0.1:7400 and met node good-1 by=us",
		},
		{
			name: "not admitted, with the reason",
			stranger: func(t *testing.T, s setting) *member {
				return listen(t, s.net, "x", change{config: func(c *transport.Config) {
					c.Admit = func(transport.Kind, transport.Identity) error { return errors.New("boot 1 was closed") }
				}})
			},
			want:   transport.RefusedNotAdmitted,
			byGood: "boot 1 was closed by=peer",
			byX:    "boot 1 was closed by=us",
		},
		{
			name:     "other gossip key",
			key:      key1,
			stranger: func(t *testing.T, s setting) *member { return listen(t, s.net, "x", gossipKey(key2)) },
			want:     transport.RefusedGossipKey,
			byGood:   "good-1 and x have different gossip keys",
			byX:      "good-1 and x have different gossip keys",
		},
		{
			name:     "no gossip key",
			key:      key1,
			stranger: func(t *testing.T, s setting) *member { return listen(t, s.net, "x") },
			want:     transport.RefusedGossipKey,
			byGood:   "one of good-1 and x has a gossip key, the other has none",
			byX:      "one of good-1 and x has a gossip key, the other has none",
		},
		{
			name:     "plain stranger at a TLS port",
			tls:      true,
			stranger: func(t *testing.T, s setting) *member { return listen(t, s.net, "x") },
			want:     transport.RefusedNeedsTLS,
			byGood:   "the caller speaks plain, this node needs TLS",
			byX:      "the caller speaks plain, this node needs TLS",
		},
		{
			name: "TLS stranger at a plain port",
			stranger: func(t *testing.T, s setting) *member {
				return listen(t, s.net, "x", withTLS(certificate(t, s.ca, "x")))
			},
			want:   transport.RefusedPlain,
			byGood: "the caller speaks TLS, this node has none",
			byX:    "this node speaks TLS, the other has none",
		},
		{
			name: "certificate of another authority",
			tls:  true,
			stranger: func(t *testing.T, s setting) *member {
				return listen(t, s.net, "x", withTLS(certificate(t, s.otherCA, "x")))
			},
			want:   transport.RefusedBadCertificate,
			byGood: "the other end did not take the certificate of this one",
			byX:    "the certificate of the other end is signed by another authority",
		},
		{
			name: "certificate of another node",
			tls:  true,
			stranger: func(t *testing.T, s setting) *member {
				// The name is checked at the start already, so this one greets with a name that it changes afterwards.
				m := listen(t, s.net, "y", change{host: "x"}, withTLS(certificate(t, s.ca, "y")))
				m.mu.Lock()
				m.who.NodeID = "x"
				m.mu.Unlock()
				return m
			},
			want:   transport.RefusedWrongName,
			byGood: `the certificate of "y" names y, not node x`,
			byX:    `the certificate of "y" names y, not node x`,
		},
		{
			name: "certificate for another host",
			tls:  true,
			stranger: func(t *testing.T, s setting) *member {
				m := listen(t, s.net, "x", withTLS(certificate(t, s.ca, "x", "10.0.0.3")))
				m.mu.Lock()
				m.who.Addr = "10.0.0.99:7400"
				m.mu.Unlock()
				return m
			},
			want:   transport.RefusedWrongName,
			byGood: "the certificate of node x is for 10.0.0.3, not for 10.0.0.99, which it advertises",
			byX:    "the certificate of node x is for 10.0.0.3, not for 10.0.0.99, which it advertises",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := setting{ca: authority(t), otherCA: authority(t), net: memnet.New(1)}
				defer s.net.Close()
				var good [2]*member
				for i := range good {
					id := fmt.Sprintf("good-%d", i+1)
					changes := []change{gossipKey(tt.key)}
					if tt.tls {
						changes = append(changes, withTLS(certificate(t, s.ca, id)))
					}
					good[i] = listen(t, s.net, id, changes...)
				}
				if err := ask(good[1], good[0].Addr(), "good-1"); err != nil {
					t.Fatalf("before: %v", err)
				}
				x := tt.stranger(t, s)
				want := tt.dialID
				if want == "" {
					want = "good-1"
				}
				for range 5 {
					wantRefusal(t, ask(x, good[0].Addr(), want), tt.want)
				}
				synctest.Wait()
				xAddr := x.Addr()[:len("10.0.0.3")]
				wantLine(t, "good-1", good[0].log, "stream refused refusal="+tt.want.String(), tt.byGood, "local=10.0.0.1:7400", "remote="+xAddr)
				wantLine(t, "x", x.log, "stream refused refusal="+tt.want.String(), tt.byX, "local="+xAddr, "remote=10.0.0.1:7400")
				if err := ask(good[1], good[0].Addr(), "good-1"); err != nil {
					t.Errorf("after: %v", err)
				}
			})
		})
	}
}

// What is no miwnode at all costs one line at most, and keeps nobody out.
func TestStrangers(t *testing.T) {
	write := func(s string) func(t *testing.T, c net.Conn) {
		return func(_ *testing.T, c net.Conn) { _, _ = io.WriteString(c, s) }
	}
	tests := []struct {
		name string
		tls  bool
		do   func(t *testing.T, c net.Conn)
		log  string // "" = none
	}{
		{"port probe", false, func(*testing.T, net.Conn) {}, ""},
		{"port probe at a TLS port", true, func(*testing.T, net.Conn) {}, ""},
		{"HTTP", false, write("GET / HTTP/1.1\r\n\r\n"), `what arrived begins with "G"`},
		{"HTTP at a TLS port", true, write("GET / HTTP/1.1\r\n\r\n"), `what arrived begins with "G"`},
		{"almost right", false, write("MIX1C...."), `what arrived begins with "MIX1C"`},
		{"greeting of tomorrow", false, write("MIW2C"), `the caller greets in version '2', this node knows version '1'`},
		{"kind of tomorrow", false, write("MIW1Z"), `a stream of kind 'Z'`},
		{"endless greeting", false, write("MIW1C\xff\xff"), "greeting of 65535 bytes, at most 4096 are allowed"},
		{"garbage for a greeting", false, write("MIW1C\x00\x03abc"), "decode greeting"},
		{"no name", false, write("MIW1C\x00\x00"), "node ID is empty"},
		{"half a greeting", false, write("MIW1C\x00\x05a"), ""},
		{"TLS without a certificate", true, func(_ *testing.T, c net.Conn) {
			tc := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"miwnode/1"}})
			_ = tc.Handshake()
			_, _ = tc.Read(make([]byte, 1))
		}, "the peer shows no certificate"},
		{"another protocol over TLS", true, func(t *testing.T, c net.Conn) {
			tc := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
			if err := tc.Handshake(); err == nil {
				t.Error("a handshake for h2 worked")
			}
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := memnet.New(1)
				defer n.Close()
				var one, two []change
				if tt.tls {
					ca := authority(t)
					one, two = []change{withTLS(certificate(t, ca, "n1"))}, []change{withTLS(certificate(t, ca, "n2"))}
				}
				n1, n2 := listen(t, n, "n1", one...), listen(t, n, "n2", two...)
				for range 3 {
					c, err := n.Host("stranger").DialContext(t.Context(), n1.Addr())
					if err != nil {
						t.Fatal(err)
					}
					tt.do(t, c)
					_ = c.(interface{ CloseWrite() error }).CloseWrite()
					_ = c.SetReadDeadline(time.Now().Add(time.Minute))
					if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("the node kept the connection: %v", err)
					}
					_ = c.Close()
				}
				if tt.log != "" {
					wantLine(t, "n1", n1.log, tt.log, "local=10.0.0.1:7400", "remote=10.0.0.3:")
				} else if lines := n1.log.all(); len(lines) != 0 {
					t.Errorf("log: %v", lines)
				}
				if err := ask(n2, n1.Addr(), "n1"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Silent strangers fill every place, and a node still gets in after the grace of one second.
func TestSlowLoris(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		n1, n2 := listen(t, n, "n1"), listen(t, n, "n2")
		var held []net.Conn
		for range 300 { // more than 256 places
			c, err := n.Host("loris").DialContext(t.Context(), n1.Addr())
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write([]byte("MIW"))
			held = append(held, c)
		}
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, _, err := n2.Call(ctx, n1.Addr(), "n1", 1, nil); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited > 1500*time.Millisecond {
			t.Errorf("a node had to wait %v among silent strangers", waited)
		}
		time.Sleep(6 * time.Second) // all places are given back after the limit of 5 s
		for i, c := range held {
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("silent connection %d is still open", i)
			}
		}
		wantLine(t, "n1", n1.log, "greeting not finished in time", "local=10.0.0.1:7400", "remote=10.0.0.3:")
	})
}

// A node that answers nothing costs a dialler five seconds at most, less if its context says so.
func TestSilentListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		n1 := listen(t, n, "n1")
		l, _, err := n.Host("silent").Listen(":7400")
		if err != nil {
			t.Fatal(err)
		}
		for limit, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Minute: 5 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			begin := time.Now()
			_, _, err := n1.Call(ctx, l.Addr().String(), "", 1, nil)
			if !errors.Is(err, transport.ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("limit %v: got %v", limit, err)
			}
			if got := time.Since(begin); got != want {
				t.Errorf("limit %v: ended after %v, want %v", limit, got, want)
			}
			cancel()
			time.Sleep(10 * time.Second)
		}
	})
}

// Raft and gossip need a common cluster; calls do not, or nobody could join.
func TestWithoutCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		old := listen(t, n, "old")
		fresh := listen(t, n, "fresh", change{id: transport.Identity{ClusterID: "none"}})
		old.Raft(nil)
		resolve := func(string) (string, <-chan struct{}, error) { return old.Addr(), nil, nil }
		raftOf := fresh.Raft(resolve)
		if err := ask(fresh, old.Addr(), "old"); err != nil {
			t.Errorf("call: %v", err)
		}
		_, err := raftOf.Dial("old", time.Second)
		wantRefusal(t, err, transport.RefusedNotAdmitted)
		_, err = fresh.Gossip().DialTimeout(old.Addr(), time.Second)
		wantRefusal(t, err, transport.RefusedNotAdmitted)

		// Once it belongs to the cluster, new calls greet anew.
		fresh.join("blue")
		var seen transport.Identity
		old.Serve(func(_ context.Context, peer transport.Identity, _ transport.Method, body []byte) ([]byte, error) {
			seen = peer
			return body, nil
		})
		if err := ask(fresh, old.Addr(), "old"); err != nil || seen.ClusterID != "blue" {
			t.Errorf("after joining: got %v as %+v", err, seen)
		}
		if c, err := raftOf.Dial("old", time.Second); err != nil {
			t.Errorf("raft after joining: %v", err)
		} else {
			_ = c.Close()
		}
		fresh.join("red")
		wantRefusal(t, ask(fresh, old.Addr(), "old"), transport.RefusedOtherCluster)
	})
}

// A newer life of a node ends what its former life had open.
func TestNewerBootEndsOlderStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		n1, x := listen(t, n, "n1"), listen(t, n, "x")
		started, ended := make(chan struct{}), make(chan struct{})
		n1.Serve(func(ctx context.Context, _ transport.Identity, _ transport.Method, _ []byte) ([]byte, error) {
			close(started)
			<-ctx.Done()
			close(ended)
			return nil, ctx.Err()
		})
		result := make(chan error, 1)
		go func() {
			_, _, err := x.Call(context.Background(), n1.Addr(), "n1", 1, nil)
			result <- err
		}()
		<-started
		newer := listen(t, n, "x", change{host: "elsewhere", id: transport.Identity{Boot: 2}})
		n1.Serve(echo)
		if err := ask(newer, n1.Addr(), "n1"); err != nil {
			t.Fatal(err)
		}
		<-ended
		if err := <-result; !errors.Is(err, transport.ErrConnLost) || errors.Is(err, transport.ErrNotSent) {
			t.Errorf("call of the older life: got %v, want ErrConnLost", err)
		}
	})
}
