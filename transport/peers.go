package transport

import (
	"fmt"
	"sync"
)

// maxKnown bounds the memory of a node that many strangers greet.
const maxKnown = 4096

// acquaintances remembers the newest life of each node that greeted us or answered us.
type acquaintances struct {
	mu    sync.Mutex
	known map[string]Identity
}

// meet checks a peer against what is remembered and remembers it. outdated tells that an older life of the node was known. Boots are compared within a
// cluster: a node that belongs to none, though it did, has an empty folder; it may ask its way (Admit keeps it from more) and learn which boot comes next.
func (a *acquaintances) meet(peer Identity) (outdated bool, refused *RefusedError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old, ok := a.known[peer.NodeID]
	switch {
	case !ok:
	case peer.ClusterID == "" && old.ClusterID != "":
		return false, nil
	case peer.Boot < old.Boot:
		return false, &RefusedError{Refusal: RefusedOlderBoot, Peer: peer, Known: old, Reason: fmt.Sprintf(
			"node %s greets with boot %d from %s, but boot %d has been seen at %s: an older process still runs, or its data folder is an old copy",
			peer.NodeID, peer.Boot, peer.Addr, old.Boot, old.Addr)}
	case peer.Boot == old.Boot && peer.Nonce != old.Nonce:
		return false, &RefusedError{Refusal: RefusedTwin, Peer: peer, Known: old, Reason: fmt.Sprintf(
			"node ID %s with boot %d is used by two processes, at %s and at %s: one of the data folders is a copy",
			peer.NodeID, peer.Boot, old.Addr, peer.Addr)}
	}
	if a.known == nil {
		a.known = map[string]Identity{}
	}
	if !ok && len(a.known) >= maxKnown {
		for id := range a.known { // any: the cluster's own nodes come back by themselves
			delete(a.known, id)
			break
		}
	}
	a.known[peer.NodeID] = peer
	return ok && peer.Boot > old.Boot, nil
}
