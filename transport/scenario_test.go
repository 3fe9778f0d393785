package transport_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/transport"
	"github.com/miwnode/miwnode/transport/memnet"
)

func TestScenario(t *testing.T) {
	// A member that shuts down while it joins, and while the network fails, does so in time, every time.
	t.Run("B-89_shutdown_during_joins_and_errors", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := memnet.New(1)
			defer n.Close()
			random := rand.New(rand.NewPCG(1, 1))
			for _, id := range []string{"n1", "n2"} {
				g := startGossip(t, listen(t, n, id), nil, io.Discard)
				defer func() { _ = g.Shutdown() }()
			}
			x := listen(t, n, "x")
			rounds := 1000
			if testing.Short() {
				rounds = 100
			}
			for i := range rounds {
				g := startGossip(t, x, nil, io.Discard)
				switch i % 5 {
				case 1:
					n.Isolate("n1")
				case 2:
					n.CutOneWay("n1", "x")
				case 3:
					n.Pause("n2")
				case 4:
					n.SetLoss("x", "n1", 0.5)
				}
				var join sync.WaitGroup
				join.Go(func() { _, _ = g.Join([]string{"10.0.0.1:7400", "10.0.0.2:7400", "10.0.0.2:1"}) })
				time.Sleep(time.Duration(random.Int64N(int64(50 * time.Millisecond))))
				begin := time.Now()
				if i%2 == 0 {
					_ = g.Leave(time.Second) // may fail: nobody may be there to tell
				}
				if err := g.Shutdown(); err != nil {
					t.Errorf("round %d: shutdown: %v", i, err)
				}
				if took := time.Since(begin); took > 3*time.Second {
					t.Errorf("round %d: leave and shutdown took %v", i, took)
				}
				n.HealAll()
				n.Resume("n2")
				join.Wait()
			}
		})
	})

	// A node that tells others to reach it on their own loopback address does not start.
	t.Run("B-91_advertised_loopback_address", func(t *testing.T) {
		for _, advertise := range []string{"127.0.0.1", "localhost:7400", "[::1]:7400"} {
			err := transport.Config{Bind: "0.0.0.0:7400", Advertise: advertise, Insecure: true}.Validate()
			want := "Advertise: " + advertise + " is reachable from this machine only, but Bind 0.0.0.0:7400 is open to others"
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
		if err := (transport.Config{Bind: "127.0.0.1:0", Advertise: "127.0.0.1"}).Validate(); err != nil {
			t.Errorf("a cluster on one machine: %v", err)
		}
	})
}

// A node whose data folder was wiped, and which keeps its ID, may ask its way, but is no member with its old boots.
func TestWipedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		n1 := listen(t, n, "n1")
		n1.Raft(nil)
		x := listen(t, n, "x", change{id: transport.Identity{Boot: 5}})
		if err := ask(x, n1.Addr(), "n1"); err != nil {
			t.Fatal(err)
		}
		n.Crash("x")
		wiped := listen(t, n, "x", change{id: transport.Identity{ClusterID: "none"}})
		if err := ask(wiped, n1.Addr(), "n1"); err != nil {
			t.Errorf("asking its way: %v", err)
		}
		_, err := wiped.Raft(func(string) (string, <-chan struct{}, error) { return n1.Addr(), nil, nil }).Dial("n1", time.Second)
		wantRefusal(t, err, transport.RefusedNotAdmitted)
		wiped.join("blue")
		wantRefusal(t, ask(wiped, n1.Addr(), "n1"), transport.RefusedOlderBoot)
		wiped.mu.Lock()
		wiped.who.Boot = 6
		wiped.mu.Unlock()
		if err := ask(wiped, n1.Addr(), "n1"); err != nil {
			t.Errorf("with the boot that comes next: %v", err)
		}
	})
}

// starved is a network whose listener has no file handles left for a while.
type starved struct {
	transport.Network
	failures int
}

func (s *starved) Listen(addr string) (net.Listener, net.PacketConn, error) {
	l, p, err := s.Network.Listen(addr)
	return &starvedListener{l, s}, p, err
}

type starvedListener struct {
	net.Listener
	s *starved
}

func (l *starvedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil && l.s.failures > 0 {
		l.s.failures--
		_ = c.Close()
		return nil, fmt.Errorf("accept: %w", syscall.EMFILE)
	}
	return c, err
}

// Running out of file handles is survived, with one line.
func TestListener_OutOfHandles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		a := listen(t, n, "a")
		m := listen(t, n, "poor", change{network: func(net transport.Network) transport.Network { return &starved{net, 20} }})
		failed := 0
		begin := time.Now()
		for ask(a, m.Addr(), "poor") != nil {
			if failed++; failed > 100 {
				t.Fatal("it never accepts again")
			}
		}
		if failed < 20 {
			t.Errorf("%d calls failed, want at least one for each of 20 failures", failed)
		}
		if took := time.Since(begin); took < time.Second || took > time.Minute {
			t.Errorf("back after %v: it did not back off", took)
		}
		wantLine(t, "poor", m.log, "cannot accept connections", "too many open files", "retry_in=5ms")
		if err := ask(a, m.Addr(), "poor"); err != nil {
			t.Error(err)
		}
	})
}

// A transport can be closed twice, and with everything half open.
func TestClose_HalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		m, err := tryListen(n, "n1")
		if err != nil {
			t.Fatal(err)
		}
		var open []net.Conn
		for i := range 300 { // some greeting, some greeted, some waiting for a place
			c, err := n.Host("x").DialContext(t.Context(), m.Addr())
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
			if i%3 == 0 {
				id := transport.Identity{ClusterID: "blue", NodeID: fmt.Sprint("x", i), Boot: 1, Nonce: "x"}
				if err := transport.Greet(c, transport.KindRPC, id); err != nil {
					t.Fatal(err)
				}
			}
		}
		layer, gossip := m.Raft(nil), m.Gossip()
		for range 2 {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
		for i, c := range open {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("connection %d is still open", i)
			}
			_ = c.Close()
		}
		if _, err := layer.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept of raft: got %v", err)
		}
		if _, err := layer.Dial("n2", time.Second); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("dial of raft: got %v", err)
		}
		if _, err := gossip.DialTimeout("10.0.0.2:7400", time.Second); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("dial of gossip: got %v", err)
		}
		if _, err := gossip.WriteTo([]byte("x"), "10.0.0.2:7400"); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("packet of gossip: got %v", err)
		}
		if _, err := m.Raft(nil).Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a layer made after Close: got %v", err)
		}
	})
}

// A dial of a node that has moved to another address is not waited for where
// nobody is who would refuse it.
func TestRaftLayer_DialOfAMovedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		n1, n2 := listen(t, n, "n1"), listen(t, n, "n2")
		n2.Raft(nil)
		listen(t, n, "gone")
		n.Isolate("gone") // whoever dials it hears nothing
		type place struct {
			addr  string
			moved chan struct{}
		}
		var at atomic.Pointer[place]
		at.Store(&place{"gone:7400", make(chan struct{})})
		layer := n1.Raft(func(string) (string, <-chan struct{}, error) { return at.Load().addr, at.Load().moved, nil })
		began := time.Now()
		time.AfterFunc(300*time.Millisecond, func() { close(at.Swap(&place{n2.Addr(), nil}).moved) })
		conn, err := layer.Dial("n2", 2*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if took := time.Since(began); took < 300*time.Millisecond || took > 400*time.Millisecond {
			t.Errorf("it took %v, want 300 ms and a greeting", took)
		}

		// And one that stays where it is takes as long as it may.
		at.Store(&place{"gone:7400", nil})
		began = time.Now()
		if _, err := layer.Dial("n2", 2*time.Second); err == nil || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
