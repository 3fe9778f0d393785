package jepsen

import "net/netip"

// NewLoopbackFrom is a Loopback that takes every stream for one of the node's.
func NewLoopbackFrom(nodes []string, sender string) (*Loopback, error) {
	return newLoopback(nodes, func(_, _ netip.AddrPort) string { return sender })
}

// Own is the address that a node binds, Told the one that others are told.
func (l *Loopback) Own(node string) netip.AddrPort  { return l.own(node) }
func (l *Loopback) Told(node string) netip.AddrPort { return l.told(node) }

// SocketOwner is socketOwner.
var SocketOwner = socketOwner

// MarkVariable is markVariable.
const MarkVariable = markVariable

// Faults is what is wrong with a group at rest.
func (r *Rest) Faults() []string { return r.faults() }
