package memnet

import (
	"fmt"
	"math"
	"net/netip"
	"sync"
	"time"
)

// Options are the properties of a network that do not change. The zero value of a field means its default.
type Options struct {
	// Delay and Jitter of every link not set otherwise: Delay plus up to Jitter. Default 200 µs and 200 µs; Delay below 0 is
	// none at all.
	Delay, Jitter time.Duration
	// UserTimeout ends a connection that has had unacknowledged data for so long, as TCP_USER_TIMEOUT does. Default 10 s.
	UserTimeout time.Duration
	// KeepAlive ends an idle connection whose link has been cut for so long, as keep-alive probes do. Default 30 s.
	KeepAlive time.Duration
	// Retransmit is the first retransmission time-out; it doubles with each try, up to one second. Default 200 ms.
	Retransmit time.Duration
	// Window bounds the bytes that one direction of a connection holds unread; writers wait. Default 256 KiB.
	Window int
	// PacketQueue bounds the packets that wait to be read on a socket, or to be sent by a paused host; what comes on top is
	// dropped. Default 256.
	PacketQueue int

	_ struct{}
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if o.Delay == 0 && o.Jitter == 0 {
		o.Jitter = 200 * time.Microsecond
	}
	def(&o.Delay, 200*time.Microsecond)
	o.Delay = max(o.Delay, 0)
	def(&o.UserTimeout, 10*time.Second)
	def(&o.KeepAlive, 30*time.Second)
	def(&o.Retransmit, 200*time.Millisecond)
	if o.Window <= 0 {
		o.Window = 256 << 10
	}
	if o.PacketQueue <= 0 {
		o.PacketQueue = 256
	}
	return o
}

// instant is a time on the network's clock. It is never 0, so that 0 can mean "not".
type instant time.Duration

const never instant = math.MaxInt64

// Net is a network of hosts with faults. All its methods may be called from any goroutine.
type Net struct {
	seed  uint64
	opts  Options
	start time.Time

	mu     sync.Mutex // guards everything below and all of hosts, links, ends; never held while waiting
	hosts  map[string]*place
	byIP   map[netip.Addr]*place
	links  map[linkKey]*link
	names  map[string][]string
	lastIP uint32
	def    quality
	stats  Stats
	closed bool
}

// place is a machine's lasting part: its name, address and faults. What runs on it is a Host, one life after another.
type place struct {
	name     string
	ip       netip.Addr
	paused   bool
	isolated bool
	life     *Host
	lastPort uint16
}

// New returns an empty network whose jitters and losses follow from seed. At most one Options is taken.
func New(seed uint64, opts ...Options) *Net {
	var o Options
	if len(opts) > 0 {
		o = opts[0]
	}
	o = o.withDefaults()
	return &Net{
		seed:  seed,
		opts:  o,
		start: time.Now(),
		hosts: map[string]*place{},
		byIP:  map[netip.Addr]*place{},
		links: map[linkKey]*link{},
		names: map[string][]string{},
		def:   quality{delay: o.Delay, jitter: o.Jitter},
	}
}

func (n *Net) now() instant { return instant(time.Since(n.start)) + 1 }

func (n *Net) instantOf(t time.Time) instant {
	if t.IsZero() {
		return never
	}
	return instant(t.Sub(n.start)) + 1
}

// Host returns the current life of the host of that name, making it on first use. A name that is an IP address becomes the
// host's address; other hosts get 10.0.0.1, 10.0.0.2, … in the order of their first use. After Crash, Host returns a fresh life.
func (n *Net) Host(name string) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.place(name)
	if p.life == nil {
		p.life = newHost(n, p)
		if n.closed {
			p.life.down = true
			close(p.life.downCh)
		}
	}
	return p.life
}

// place finds a host by name or address, or makes it. Called with n.mu held.
func (n *Net) place(name string) *place {
	if name == "" {
		panic("memnet: host without a name")
	}
	if p := n.hosts[name]; p != nil {
		return p
	}
	ip, err := netip.ParseAddr(name)
	if err == nil {
		if p := n.byIP[ip]; p != nil {
			return p
		}
	} else {
		for {
			n.lastIP++
			ip = netip.AddrFrom4([4]byte{10, byte(n.lastIP >> 16), byte(n.lastIP >> 8), byte(n.lastIP)})
			if n.byIP[ip] == nil {
				break
			}
		}
	}
	p := &place{name: name, ip: ip, lastPort: 30000}
	n.hosts[name] = p
	n.byIP[ip] = p
	return p
}

// SetAddr gives host another IP address for all that it binds and dials from now on. Open connections go on.
func (n *Net) SetAddr(host, ip string) {
	a, err := netip.ParseAddr(ip)
	if err != nil {
		panic(fmt.Sprintf("memnet: address of %s: %v", host, err))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.place(host)
	if q := n.byIP[a]; q != nil && q != p {
		panic(fmt.Sprintf("memnet: address %s belongs to %s", ip, q.name))
	}
	delete(n.byIP, p.ip)
	p.ip = a
	n.byIP[a] = p
}

// SetName makes Lookup of a DNS name, or of "srv:NAME", answer addrs: addresses for a name, host:port for srv. No addrs: the
// name is gone.
func (n *Net) SetName(name string, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(addrs) == 0 {
		delete(n.names, name)
		return
	}
	n.names[name] = append([]string(nil), addrs...)
}

// Crash ends the present life of host at once: its connections are reset at their peers, its listeners are gone, packets to it
// are dropped, and every call through its handles fails. A pause ends too. Host returns the next life. This is the death of a
// process: its machine still answers a dial, with a refusal. For a machine that falls silent, Isolate it first.
func (n *Net) Crash(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.place(host)
	p.paused = false
	if p.life != nil {
		p.life.crash()
		p.life = nil
	}
}

// Close ends every life of every host; nothing waits on the network afterwards.
func (n *Net) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	for _, p := range n.hosts {
		p.paused = false
		if p.life != nil {
			p.life.crash()
		}
	}
}
