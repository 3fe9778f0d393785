// Package api serves a node over HTTP: JSON answers, server-sent events,
// metrics, health; and holds the client that the command line uses.
//
// # Overview
//
// [Handler] is an http.Handler of one node, to be mounted in any mux:
//
//	mux.Handle("/miw/", http.StripPrefix("/miw", api.Handler(n)))
//
// The server that it is mounted in should have [ConnContext].
//
// [Server] puts it on a unix socket in the node's data folder and on a TCP
// address. [Client] speaks to either. [WithCatalog] and [WithArtifacts] give it
// the workers of the node; without them it changes workers that others run. openapi.yaml describes every call and
// field; [OpenAPI] returns it, and a test holds it and the code together.
//
// # Guarantees
//
// Every call ends by its deadline (?timeout=, 5 s unless said, a waiting
// acquire its wait and 5 s) in one of three ways: done, refused, or uncertain.
// A body with an unknown field, a field given twice, trailing data, a wrong
// type or more than 1 MiB (8 MiB for a group, 16 MiB for an artifact) changes nothing and is answered invalid_argument
// with the name of what is wrong; so is an unknown query parameter. Every
// answer carries the revision of the state it was made from.
//
// A caller that hangs up while it waits for a lease leaves the queue at once,
// one that has begun to send a further request within two seconds,
// and a grant that it can't have seen is given back, but never one that an
// earlier or a later call of the same holder was answered with.
//
// An event stream has no hole: its reader gets every event after the place it
// named, or one resync event that says where to read the state anew. A slow
// reader costs its own connection and nobody else.
//
// # Concurrency
//
// A Handler is safe for concurrent use and holds no lock over a call. It reads
// the node's local copy, so reads neither wait for nor hold up writes.
//
// # Errors
//
// A refusal travels as {"error": {"code", "message", "detail"}}; the codes are
// those of package fsm, and [Client] gives them back as *fsm.Error, so that
// errors.Is(err, fsm.ErrLeaseHeld) holds on the far side too. A node that
// can't be reached is an *[UnreachableError].
//
// # Testing
//
// A Handler needs of a node what [Node] names. The package's own tests use a
// replicated state in memory for the tables of refusals, and real nodes on
// loopback for the rest.
package api
