package transport

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is what a stream carries.
type Kind byte

// The kinds; the byte travels in the greeting. ONLY APPEND.
const (
	KindGossip Kind = 'G'
	KindRaft   Kind = 'R'
	KindRPC    Kind = 'C'
)

// String returns the kind in a word.
func (k Kind) String() string {
	switch k {
	case KindGossip:
		return "gossip"
	case KindRaft:
		return "raft"
	case KindRPC:
		return "rpc"
	}
	return fmt.Sprintf("kind %q", byte(k))
}

// Identity is who a node says it is when it greets.
type Identity struct {
	ClusterID string // "" while it belongs to none
	NodeID    string
	Boot      uint64 // grows with each start of the node
	Nonce     string // of this process
	Addr      string // advertised host:port; "" lets the Transport fill in its own
}

// DefaultBind is where a node listens unless told otherwise: reachable from its own machine only.
const DefaultBind = "127.0.0.1:" + DefaultPort

// DefaultPeerTimeout is how long a peer may be silent while it owes an answer.
const DefaultPeerTimeout = 3 * time.Second

// Config says how a Transport listens, who it is and whom it lets in.
type Config struct {
	// Network carries everything. Defaults to OS().
	Network Network
	// Bind is the host:port to listen on, TCP and UDP on one number. Defaults to DefaultBind. Port 0 takes a free one.
	Bind string
	// Advertise is the host:port, or host alone, under which others reach this node. Defaults to the bound address, or to an address
	// of this machine if that is unspecified (0.0.0.0).
	Advertise string
	// TLS is the material for mutual TLS on all streams. Nil is plain.
	TLS *TLS
	// GossipKey (16, 24 or 32 bytes) encrypts gossip. The Transport does not use it but to tell at the greeting that two nodes have
	// different ones, and to refuse an open bind without it. Nil is plain.
	GossipKey []byte
	// Insecure allows a non-loopback bind without TLS and gossip key.
	Insecure bool
	// Identity returns who this node is at the moment. It is called for every greeting and every call: it must be cheap and must not
	// block. Node ID and nonce never change; the cluster ID changes once, from "" to its value, and the boot is final by then. Required by Listen and NewClient.
	Identity func() Identity
	// Admit decides about a peer that passed all other checks, at both ends of a new stream. It must not block. Its error is sent to the
	// peer as the reason. Nil: raft and gossip need one cluster ID known at both ends, RPC does not.
	Admit func(k Kind, peer Identity) error
	// Refused is told of every refusal of a greeting, by either end. It must not block.
	Refused func(*RefusedError)
	// Answered is told of each call that was answered here, without an error or with one, once the answer is on its way. Nil: nobody asks.
	Answered func(Method)
	// PeerTimeout ends an RPC connection whose peer owes an answer and is silent for so long; it is asked with pings meanwhile. Defaults to
	// DefaultPeerTimeout.
	PeerTimeout time.Duration
	// Logger gets refusals (rate limited) and faults. Nil discards.
	Logger *slog.Logger

	_ struct{}
}

func (c Config) withDefaults() Config {
	if c.Network == nil {
		c.Network = OS()
	}
	c.Bind = cmp.Or(c.Bind, DefaultBind)
	c.PeerTimeout = cmp.Or(c.PeerTimeout, DefaultPeerTimeout)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Admit == nil {
		identity := c.Identity
		c.Admit = func(k Kind, peer Identity) error {
			if k != KindRPC && (peer.ClusterID == "" || identity().ClusterID == "") {
				return errors.New("one of the two does not belong to a cluster yet")
			}
			return nil
		}
	}
	return c
}

// Validate reports all faults at once, each beginning with the name of the field and saying what would do.
func (c Config) Validate() error {
	return errors.Join(c.validateBind(), c.validateAdvertise(), c.validateGossipKey(), c.validatePeerTimeout())
}

func (c Config) validateBind() error {
	bind := cmp.Or(c.Bind, DefaultBind)
	host, port, err := net.SplitHostPort(bind)
	if err != nil {
		return fault("Bind", "%q is not host:port: write it like %s", bind, DefaultBind)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fault("Bind", "port %q of %q is not a number up to 65535", port, bind)
	}
	if isLoopback(host) || c.Insecure {
		return nil
	}
	var missing []string
	if c.TLS == nil {
		missing = append(missing, "TLS")
	}
	if len(c.GossipKey) == 0 {
		missing = append(missing, "GossipKey")
	}
	if missing == nil {
		return nil
	}
	return fault("Bind", "%s is reachable from other machines, but %s is not set: make the material with `miwnode cert ca`, `miwnode cert node` and "+
		"`miwnode keygen`, or bind a loopback address like %s, or set Insecure if the network keeps everybody else out",
		bind, strings.Join(missing, " and "), DefaultBind)
}

func (c Config) validateAdvertise() error {
	if c.Advertise == "" {
		return nil
	}
	host, _, err := splitHostPort(c.Advertise, "0")
	if err != nil {
		return fault("Advertise", "%w: write the host, or host:port, under which other nodes reach this one", err)
	}
	if isUnspecified(host) {
		return fault("Advertise", "nobody reaches %s: write the host, or host:port, under which other nodes reach this one", c.Advertise)
	}
	// An unparsable Bind is a fault of its own.
	if bound, _, err := net.SplitHostPort(cmp.Or(c.Bind, DefaultBind)); err == nil && isLoopback(host) && !isLoopback(bound) {
		return fault("Advertise", "%s is reachable from this machine only, but Bind %s is open to others, who would be told to reach it there: "+
			"advertise an address of this machine, or bind a loopback address", c.Advertise, c.Bind)
	}
	return nil
}

func (c Config) validateGossipKey() error {
	if n := len(c.GossipKey); n != 0 && !slices.Contains([]int{16, 24, 32}, n) {
		return fault("GossipKey", "has %d bytes, must have 16, 24 or 32: make one with `miwnode keygen`", n)
	}
	return nil
}

func (c Config) validatePeerTimeout() error {
	if c.PeerTimeout != 0 && c.PeerTimeout < 100*time.Millisecond {
		return fault("PeerTimeout", "%v is too short to tell a dead peer from a busy one: at least 100ms", c.PeerTimeout)
	}
	return nil
}

// validateIdentity checks what only a running Transport needs.
func (c Config) validateIdentity() error {
	if c.Identity == nil {
		return fault("Identity", "is required")
	}
	if err := checkNodeID(c.Identity().NodeID); err != nil {
		return fault("Identity", "%w", err)
	}
	return nil
}

// fault is an error that begins with the name of the field it is about.
func fault(field, format string, args ...any) error {
	return fmt.Errorf("%s: %w", field, fmt.Errorf(format, args...))
}
