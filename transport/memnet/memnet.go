// Package memnet is a network in memory for tests.
package memnet

import (
	"context"
	"net"
	"time"
)

// Net is a network of hosts with faults.
type Net struct{}

// New returns an empty network whose delays and losses follow from seed.
func New(seed uint64) *Net { return &Net{} }

// Host returns the current life of the host of that name, making it on first use. A name that is an IP address becomes the
// host's address; other hosts get 10.0.0.1, 10.0.0.2, … in order. After Crash, Host returns a fresh life.
func (n *Net) Host(name string) *Host { return &Host{} }

// Cut stops everything between a and b, both ways.
func (n *Net) Cut(a, b string) {}

// CutOneWay stops everything from one host to the other.
func (n *Net) CutOneWay(from, to string) {}

// Isolate cuts host off from all others, also from those that come later.
func (n *Net) Isolate(host string) {}

// Heal ends the cuts between a and b, both ways. Delay and loss stay.
func (n *Net) Heal(a, b string) {}

// HealAll ends all cuts, isolations, delays and losses that were set. Paused hosts stay paused.
func (n *Net) HealAll() {}

// SetDelay sets the delay of one direction: d plus up to jitter.
func (n *Net) SetDelay(from, to string, d, jitter time.Duration) {}

// SetLoss sets the part (0 … 1) of packets that is lost in one direction; streams are delayed instead.
func (n *Net) SetLoss(from, to string, p float64) {}

// SetDefault sets delay and loss of all links that were not set by themselves.
func (n *Net) SetDefault(d, jitter time.Duration, loss float64) {}

// Pause holds everything to and from host until Resume.
func (n *Net) Pause(host string) {}

// Resume ends Pause.
func (n *Net) Resume(host string) {}

// Crash ends this life of host: its connections are reset at the peers, its listeners are gone, packets are dropped, and every
// call through its handles fails. Host returns the next life.
func (n *Net) Crash(host string) {}

// SetAddr gives host another IP address for what it binds and dials from now on.
func (n *Net) SetAddr(host, ip string) {}

// SetName makes Lookup of name (a DNS name, or "srv:NAME") answer addrs.
func (n *Net) SetName(name string, addrs ...string) {}

// Close closes every connection and listener.
func (n *Net) Close() {}

// Host is one life of a host; it implements transport.Network.
type Host struct{}

// IP returns the host's address.
func (h *Host) IP() string { return "" }

// Listen implements transport.Network.
func (h *Host) Listen(addr string) (net.Listener, net.PacketConn, error) {
	return nil, nil, net.ErrClosed
}

// DialContext implements transport.Network.
func (h *Host) DialContext(ctx context.Context, addr string) (net.Conn, error) {
	return nil, net.ErrClosed
}

// Lookup implements transport.Network.
func (h *Host) Lookup(ctx context.Context, name string) ([]string, error) { return nil, net.ErrClosed }
