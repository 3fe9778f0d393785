package artifact

import "net/netip"

// SetRefuse replaces the rule about addresses.
func (w *Web) SetRefuse(refuse func(netip.Addr) error) { w.refuse = refuse }

// CheckPublic is the rule about addresses.
var CheckPublic = checkPublic
