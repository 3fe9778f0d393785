package node

import (
	"fmt"
	"sync"
	"time"

	"github.com/miwnode/miwnode/transport"
)

// rivalMemory is for how long a refusal explains that no leader is known: a node
// without one greets its peers every few seconds.
const rivalMemory = 15 * time.Second

// rival is another process that goes by this node's ID, as far as this node was
// told: by peers that prefer it, or by itself.
type rival struct {
	mu   sync.Mutex
	last transport.Identity
	at   time.Time // when it was told of last; zero = never
}

// refused is told of every greeting that ended in a refusal.
func (n *Node) refused(e *transport.RefusedError) {
	self := n.identity()
	other := e.Known
	if e.Peer.NodeID == self.NodeID {
		other = e.Peer // it was met in person
	}
	if other.NodeID != self.NodeID || other.Nonce == self.Nonce {
		return
	}
	if self.ClusterID != "" && (other.ClusterID != self.ClusterID || other.Boot < self.Boot) {
		return // a namesake that nobody takes for this node, or an older start of it: who meets it says so
	}
	r := &n.rival
	r.mu.Lock()
	news := r.last.Nonce != other.Nonce || r.at.IsZero()
	r.last, r.at = other, time.Now()
	r.mu.Unlock()
	if news {
		n.log.Error("another process has this node's ID", "what", rivalWords(self, other), "told_by", e.PeerAddr)
	}
}

// shutOut says why peers don't speak to this node, "" if none has said of late
// that there is another.
func (n *Node) shutOut() string {
	r := &n.rival
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at.IsZero() || time.Since(r.at) > rivalMemory {
		return ""
	}
	return rivalWords(n.identity(), r.last)
}

func rivalWords(self, other transport.Identity) string {
	const remedy = "stop both, remove both folders and start an empty one, which joins as a new node"
	if other.ClusterID != self.ClusterID {
		return fmt.Sprintf("a node of cluster %s, which runs at %s, has this node ID: start this one with another", other.ClusterID, other.Addr)
	}
	if other.Boot == self.Boot {
		return fmt.Sprintf("another process with boot %d of this node ID is at %s: there is a copy of this data folder; %s", other.Boot, other.Addr, remedy)
	}
	return fmt.Sprintf("a newer start of this node ID is at %s, boot %d > %d; if you started it, stop this one; if you did not, there is a copy of this data folder: %s",
		other.Addr, other.Boot, self.Boot, remedy)
}
