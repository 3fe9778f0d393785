package artifact

import (
	"fmt"
	"net/netip"
)

// special are the ranges that are not of the public internet, or lead out of it, beside those that netip names itself. From the registries of
// special-purpose addresses (RFC 6890).
var special = prefixes(
	"0.0.0.0/8",       // this network
	"100.64.0.0/10",   // shared by customers of a carrier
	"192.0.0.0/24",    // protocol assignments
	"192.0.2.0/24",    // documentation
	"192.88.99.0/24",  // 6to4 relays
	"198.18.0.0/15",   // benchmarks
	"198.51.100.0/24", // documentation
	"203.0.113.0/24",  // documentation
	"240.0.0.0/4",     // reserved, and broadcast
	"::/96",           // IPv4, of old
	"64:ff9b::/96",    // IPv4 by translation: any address
	"64:ff9b:1::/48",  // the same, local
	"100::/64",        // discarded
	"2001::/23",       // protocol assignments, Teredo among them
	"2001:db8::/32",   // documentation
	"2002::/16",       // 6to4: any IPv4 address
	"3fff::/20",       // documentation
	"5f00::/16",       // segment routing
	"fec0::/10",       // site-local
)

func prefixes(list ...string) (all []netip.Prefix) {
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// checkPublic returns ErrRefused for an address that is not of the public internet.
func checkPublic(addr netip.Addr) error {
	addr = addr.Unmap().WithZone("")
	public := addr.IsGlobalUnicast() && !addr.IsPrivate()
	for _, p := range special {
		public = public && !p.Contains(addr)
	}
	if !public {
		return fmt.Errorf("%w: %s is not an address of the public internet; allow private sources if that is meant", ErrRefused, addr)
	}
	return nil
}
