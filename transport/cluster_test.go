package transport_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/raft"

	"github.com/miwnode/miwnode/transport"
	"github.com/miwnode/miwnode/transport/memnet"
)

// counter is a raft state machine that counts entries.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) Apply(*raft.Log) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

func (c *counter) Snapshot() (raft.FSMSnapshot, error) { return nil, fmt.Errorf("no snapshots here") }
func (c *counter) Restore(io.ReadCloser) error         { return nil }

// replica is a raft on a member.
type replica struct {
	*raft.Raft
	m   *member
	net *raft.NetworkTransport
	fsm *counter
}

// book finds nodes as an address book would.
type book struct {
	mu    sync.Mutex
	addrs map[string]string
}

func (b *book) set(id, addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.addrs == nil {
		b.addrs = map[string]string{}
	}
	b.addrs[id] = addr
}

func (b *book) find(id string) (string, <-chan struct{}, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a, ok := b.addrs[id]; ok {
		return a, nil, nil
	}
	return "", nil, fmt.Errorf("node %s is unknown", id)
}

type stores struct {
	log   *raft.InmemStore
	snaps *raft.InmemSnapshotStore
}

func newStores() stores { return stores{raft.NewInmemStore(), raft.NewInmemSnapshotStore()} }

func startRaft(t *testing.T, m *member, b *book, s stores) *replica {
	t.Helper()
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(m.id)
	c.Logger = hclog.NewNullLogger()
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = 500*time.Millisecond, 500*time.Millisecond, 250*time.Millisecond
	r := &replica{m: m, fsm: &counter{}}
	r.net = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: m.Raft(b.find), MaxPool: 3, MaxRPCsInFlight: 1, Timeout: 2 * time.Second, Logger: c.Logger,
	})
	var err error
	if r.Raft, err = raft.NewRaft(c, r.fsm, s.log, s.log, s.snaps, r.net); err != nil {
		t.Fatal(err)
	}
	return r
}

// stop ends a raft as an application must: transport first, or Shutdown may hang.
func (r *replica) stop() {
	f := r.Shutdown()
	_ = r.net.Close()
	_ = f.Error()
	r.net.CloseStreams()
}

// leader waits for one leader among the replicas.
func leader(t *testing.T, limit time.Duration, rs ...*replica) *replica {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < limit; time.Sleep(10 * time.Millisecond) {
		for _, r := range rs {
			if r.State() == raft.Leader {
				return r
			}
		}
	}
	t.Fatalf("no leader within %v", limit)
	return nil
}

func others(rs []*replica, not *replica) (out []*replica) {
	for _, r := range rs {
		if r != not {
			out = append(out, r)
		}
	}
	return out
}

// Three real rafts over real streams elect, survive the loss of their leader, take it back, and follow a node to a new address.
func TestRaft(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%t", secure), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := memnet.New(1)
				defer n.Close()
				var b book
				ca := authority(t)
				start := func(id string, boot uint64) *member {
					changes := []change{{id: transport.Identity{Boot: boot}}}
					if secure {
						changes = append(changes, withTLS(certificate(t, ca, id)))
					}
					m := listen(t, n, id, changes...)
					b.set(id, m.AdvertiseAddr())
					return m
				}
				var rs []*replica
				disks := map[string]stores{}
				servers := raft.Configuration{}
				for i := range 3 {
					id := fmt.Sprintf("n%d", i+1)
					disks[id] = newStores()
					rs = append(rs, startRaft(t, start(id, 1), &b, disks[id]))
					servers.Servers = append(servers.Servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
				}
				defer func() {
					for _, r := range rs {
						r.stop()
					}
				}()
				if err := rs[0].BootstrapCluster(servers).Error(); err != nil {
					t.Fatal(err)
				}
				first := leader(t, 5*time.Second, rs...)
				apply := func(r *replica, want int) {
					t.Helper()
					f := r.Apply([]byte("x"), time.Second)
					if err := f.Error(); err != nil || f.Response() != want {
						t.Fatalf("apply on %s: got %v, %v, want %d", r.m.id, f.Response(), err, want)
					}
				}
				apply(first, 1)
				if addr, id := rs[0].LeaderWithID(); string(addr) != first.m.id || string(id) != first.m.id {
					t.Errorf("leader is known as %q at %q, want the node ID %s for both", id, addr, first.m.id)
				}

				// A leader that is cut off is replaced and steps down.
				n.Isolate(first.m.id)
				begin := time.Now()
				second := leader(t, 5*time.Second, others(rs, first)...)
				t.Logf("new leader after %v", time.Since(begin))
				apply(second, 2)
				if first.State() == raft.Leader {
					t.Error("the former leader still leads though it is cut off")
				}
				n.Rejoin(first.m.id)
				apply(second, 3)
				time.Sleep(5 * time.Second)
				if got := first.AppliedIndex(); got != second.AppliedIndex() {
					t.Errorf("the former leader has applied %d, the leader %d", got, second.AppliedIndex())
				}

				// A node that dies and comes back elsewhere, as a new boot with its old disk, is found by its ID.
				for i, r := range rs {
					if r != second {
						continue
					}
					n.Crash(r.m.id)
					r.stop()
					_ = r.m.Close()
					n.SetAddr(r.m.id, "10.0.9.9")
					rs[i] = startRaft(t, start(r.m.id, 2), &b, disks[r.m.id])
				}
				third := leader(t, 5*time.Second, rs...)
				apply(third, 4)
				time.Sleep(5 * time.Second)
				for _, r := range rs {
					if r.AppliedIndex() != third.AppliedIndex() {
						t.Errorf("%s has applied %d, the leader %d", r.m.id, r.AppliedIndex(), third.AppliedIndex())
					}
				}
				for _, m := range rs {
					if lines := m.m.log.all(); len(lines) != 0 {
						t.Errorf("log of %s: %v", m.m.id, lines)
					}
				}
			})
		})
	}
}

// Raft can be stopped and started anew on the same transport: calls go on, and no stream of the former one is left.
func TestRaft_RestartInProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		var b book
		var rs []*replica
		var servers raft.Configuration
		disk := newStores()
		for i := range 3 {
			m := listen(t, n, fmt.Sprintf("n%d", i+1))
			b.set(m.id, m.Addr())
			s := newStores()
			if i == 0 {
				s = disk
			}
			rs = append(rs, startRaft(t, m, &b, s))
			servers.Servers = append(servers.Servers, raft.Server{ID: raft.ServerID(m.id), Address: raft.ServerAddress(m.id)})
		}
		if err := rs[0].BootstrapCluster(servers).Error(); err != nil {
			t.Fatal(err)
		}
		leader(t, 5*time.Second, rs...)
		for range 5 {
			rs[0].stop()
			rs[0] = startRaft(t, rs[0].m, &b, disk)
			l := leader(t, 5*time.Second, rs...)
			if err := l.Apply([]byte("x"), time.Second).Error(); err != nil {
				t.Fatal(err)
			}
			if err := ask(rs[0].m, rs[1].m.Addr(), "n2"); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range rs {
			r.stop()
		}
	})
}

// gossiper is a memberlist on a member.
type gossiper struct {
	*memberlist.Memberlist
	m *member
}

func startGossip(t *testing.T, m *member, key []byte, logs io.Writer) *gossiper {
	t.Helper()
	c := memberlist.DefaultLANConfig()
	c.Name = m.id
	c.Transport = m.Gossip()
	c.ProbeInterval, c.ProbeTimeout, c.GossipInterval = 500*time.Millisecond, 200*time.Millisecond, 100*time.Millisecond
	c.PushPullInterval = 10 * time.Second // gossip alone may miss a member, by chance
	c.SecretKey = key
	c.Label = "blue"
	c.Logger = log.New(logs, "", 0)
	l, err := memberlist.Create(c)
	if err != nil {
		t.Fatal(err)
	}
	// A probe that is under way outlives Shutdown, until its own time-out; the bubble must not end before.
	t.Cleanup(func() { time.Sleep(2 * time.Second) })
	return &gossiper{l, m}
}

// Five members find each other; one that dies is declared dead by all, and comes back.
func TestGossip(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("secure=%t", secure), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := memnet.New(1)
				defer n.Close()
				var key []byte
				ca := authority(t)
				start := func(id string, boot uint64) *gossiper {
					changes := []change{{id: transport.Identity{Boot: boot}}}
					if secure {
						key = []byte("0123456789abcdef0123456789abcdef")
						changes = append(changes, withTLS(certificate(t, ca, id)), change{config: func(c *transport.Config) { c.GossipKey = key }})
					}
					return startGossip(t, listen(t, n, id, changes...), key, io.Discard)
				}
				var gs []*gossiper
				for i := range 5 {
					g := start(fmt.Sprintf("n%d", i+1), 1)
					if i > 0 {
						if _, err := g.Join([]string{gs[0].m.Addr()}); err != nil {
							t.Fatal(err)
						}
					}
					gs = append(gs, g)
				}
				sees := func(want int, limit time.Duration, who ...*gossiper) {
					t.Helper()
					begin := time.Now()
					for _, g := range who {
						for g.NumMembers() != want {
							if time.Since(begin) > limit {
								t.Fatalf("%s sees %d members after %v, want %d", g.m.id, g.NumMembers(), limit, want)
							}
							time.Sleep(50 * time.Millisecond)
						}
					}
					t.Logf("all see %d after %v", want, time.Since(begin))
				}
				sees(5, time.Minute, gs...)
				time.Sleep(time.Minute)
				sees(5, 0, gs...)

				n.Crash("n5")
				_ = gs[4].Shutdown()
				_ = gs[4].m.Close()
				sees(4, time.Minute, gs[:4]...)
				gs[4] = start("n5", 2)
				if _, err := gs[4].Join([]string{gs[1].m.Addr()}); err != nil {
					t.Fatal(err)
				}
				sees(5, time.Minute, gs...)
				for _, g := range gs {
					if err := g.Shutdown(); err != nil {
						t.Error(err)
					}
					if lines := g.m.log.all(); len(lines) != 0 {
						t.Errorf("log of %s: %v", g.m.id, lines)
					}
				}
			})
		})
	}
}

// Gossip can be shut down and begun anew on the same transport.
func TestGossip_Restart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		a, b := listen(t, n, "a"), listen(t, n, "b")
		gb := startGossip(t, b, nil, io.Discard)
		defer func() { _ = gb.Shutdown() }()
		for range 3 {
			ga := startGossip(t, a, nil, io.Discard)
			if _, err := ga.Join([]string{b.Addr()}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			if got := gb.NumMembers(); got != 2 {
				t.Errorf("b sees %d members, want 2", got)
			}
			if err := ga.Leave(time.Second); err != nil {
				t.Error(err)
			}
			if err := ga.Shutdown(); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
	})
}

// What gossip says of itself: the advertised address, or what memberlist was told.
func TestGossip_FinalAdvertiseAddr(t *testing.T) {
	n := memnet.New(1)
	defer n.Close()
	n.SetName("n1.example", "10.1.2.3")
	for _, tt := range []struct {
		advertise string
		ip        string
		port      int
		want      string
	}{
		{"", "", 0, "10.0.0.1:7400"},
		{"192.0.2.7", "", 0, "192.0.2.7:7400"},
		{"192.0.2.7:99", "", 0, "192.0.2.7:99"},
		{"n1.example:99", "", 0, "10.1.2.3:99"},
		{"", "192.0.2.8", 55, "192.0.2.8:55"},
		{"", "", 7946, "10.0.0.1:7400"},
	} {
		m, err := tryListen(n, "n1", change{config: func(c *transport.Config) { c.Advertise = tt.advertise }})
		if err != nil {
			t.Fatal(err)
		}
		ip, port, err := m.Gossip().FinalAdvertiseAddr(tt.ip, tt.port)
		if got := net.JoinHostPort(ip.String(), fmt.Sprint(port)); err != nil || got != tt.want {
			t.Errorf("advertise %q, told %q %d: got %s, %v, want %s", tt.advertise, tt.ip, tt.port, got, err, tt.want)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A cluster of three goes through ten simulated minutes of cuts, pauses and losses, and ends with one leader and one member list.
func TestSoak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(7)
		defer n.Close()
		var b book
		var rs []*replica
		var gs []*gossiper
		var servers raft.Configuration
		for i := range 3 {
			m := listen(t, n, fmt.Sprintf("n%d", i+1))
			b.set(m.id, m.Addr())
			gs = append(gs, startGossip(t, m, nil, io.Discard))
			rs = append(rs, startRaft(t, m, &b, newStores()))
			servers.Servers = append(servers.Servers, raft.Server{ID: raft.ServerID(m.id), Address: raft.ServerAddress(m.id)})
			if _, err := gs[i].Join([]string{gs[0].m.Addr()}); err != nil {
				t.Fatal(err)
			}
		}
		if err := rs[0].BootstrapCluster(servers).Error(); err != nil {
			t.Fatal(err)
		}
		leader(t, 5*time.Second, rs...)
		faults := []func(a, b string){
			func(a, b string) { n.Cut(a, b) },
			func(a, b string) { n.CutOneWay(a, b) },
			func(a, _ string) { n.Isolate(a) },
			func(a, b string) { n.SetLoss(a, b, 0.3) },
			func(a, b string) { n.SetDelay(a, b, 50*time.Millisecond, 100*time.Millisecond) },
			func(a, _ string) { n.Pause(a); time.AfterFunc(7*time.Second, func() { n.Resume(a) }) },
		}
		rounds := 60
		if testing.Short() {
			rounds = 12
		}
		for i := range rounds {
			x, y := rs[i%3].m.id, rs[(i+1+i/3%2)%3].m.id
			faults[i%len(faults)](x, y)
			for _, r := range rs {
				if r.State() == raft.Leader {
					r.Apply([]byte(strings.Repeat("x", i)), time.Second)
				}
				_ = ask(r.m, rs[0].m.Addr(), "n1")
			}
			time.Sleep(8 * time.Second)
			n.HealAll()
			time.Sleep(2 * time.Second)
		}
		time.Sleep(10 * time.Second)
		for _, g := range gs { // memberlist itself does not look for members it has given up
			if _, err := g.Join([]string{gs[0].m.Addr(), gs[1].m.Addr()}); err != nil {
				t.Error(err)
			}
		}
		l := leader(t, 5*time.Second, rs...)
		if err := l.Apply([]byte("x"), time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		for i, r := range rs {
			if r.AppliedIndex() != l.AppliedIndex() {
				t.Errorf("%s has applied %d, the leader %d", r.m.id, r.AppliedIndex(), l.AppliedIndex())
			}
			if got := gs[i].NumMembers(); got != 3 {
				t.Errorf("%s sees %d members, want 3", r.m.id, got)
			}
			if err := ask(r.m, l.m.Addr(), l.m.id); err != nil {
				t.Error(err)
			}
		}
		for i := range rs {
			rs[i].stop()
			_ = gs[i].Shutdown()
		}
		t.Logf("%+v", n.Stats())
	})
}
