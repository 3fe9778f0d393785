// Package transport moves bytes between the nodes of a cluster: gossip packets, gossip and raft streams, and calls, all over one port number.
//
// # Overview
//
// [Listen] binds TCP and UDP on one number. Every TCP stream, inside mutual TLS if there is material for it ([LoadTLS]), begins with a greeting in which
// both ends say who they are ([Identity]) and what the stream is for ([Kind]). Then it belongs to its kind:
//
//   - [Transport.Raft] is the stream layer of raft.NetworkTransport. Its addresses are node IDs.
//   - [Transport.Gossip] is the transport of memberlist, packets included.
//   - [Transport.Call] and [Transport.Serve] are remote procedure calls: many at once over one connection per peer, made when it is needed.
//
// The package knows addresses and frames, never what a lease is. [NewCA], [NewNodeCert] and [NewGossipKey] make what a secure cluster needs.
//
// # Guarantees
//
// Nobody gets a stream who does not pass the greeting: nodes of different clusters, an older boot of a node, a second process with the same node ID and
// boot (a copied data folder), another node than the one that was looked for, another gossip key, a certificate of another authority or for another node
// or host, and whomever Config.Admit turns away. Each refusal is a typed error at the dialling end and one log line at either end, with the reason and
// both addresses, at most once a minute for one peer.
//
// A bind that other machines can reach is refused without TLS and gossip key, unless Config.Insecure is said.
//
// A greeting ends within five seconds. 256 silent strangers delay a node by a second at most. A slow handler holds up no other call; a dead
// peer costs the calls to it and nothing else, and those end within Config.PeerTimeout whatever their deadlines. Frames, calls at once and bytes at once are
// bounded on every connection. A handler's panic is an error answer and a log line.
//
// Without TLS the greeting is a safeguard against mistakes, not against an attacker: everything it says can be made up.
//
// # Concurrency
//
// All methods may be called from any goroutine. Handlers run on goroutines of their own. Config.Identity and Config.Admit are called from many goroutines and must
// not block. Close waits for all goroutines of the Transport; it must not be called from a handler.
//
// # Errors
//
// An error of Call is one of three: the handler's answer (*[RPCError]); certainly not sent ([ErrNotSent], which [RefusedError] matches too); or unknown, when the
// handler may have run ([ErrConnLost], the end of the context). A deadline travels with the request and is counted from its arrival, so clocks may differ.
//
// # Testing
//
// Package memnet is a network in memory for testing/synctest bubbles. Everything here waits on channels and timers only, so that real raft, real memberlist and real
// TLS run over it in no time.
package transport
