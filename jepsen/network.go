package jepsen

import "time"

// Network is what the nodes of a cluster of processes reach each other through:
// Namespaces, or Loopback where there are no rights.
type Network interface {
	// Name says in a word what it is.
	Name() string
	// Can returns nil, or why it can't do one of VerbCut, VerbShape and VerbAddress.
	Can(Verb) error
	// Cut drops everything from one node to another, without a word; Mend ends that.
	Cut(from, to string) error
	Mend(from, to string) error
	// Shape delays and loses part of what one node sends another; zeros end that.
	Shape(from, to string, delay, jitter time.Duration, loss float64) error
	// Close leaves nothing of it behind.
	Close()

	// address is where the other nodes find a node.
	address(node string) string
	// flags are what `miwnode start` is told of it.
	flags(node string) []string
	// exec is what to put before a command that shall run as on the node's machine.
	exec(node string) []string
}
