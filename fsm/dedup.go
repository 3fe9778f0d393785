package fsm

import (
	"slices"
	"sort"
	"strings"
)

// client is what is known of a node that proposes: its boot and the answers
// that its callers may not have had yet.
type client struct {
	nodeID   string
	boot     uint64
	lowWater uint64
	retired  uint64        // revision at which its node left the cluster, 0 = it did not
	results  []*remembered // by seq; appended beyond what a View sees, or copied
	epoch    uint64
}

// remembered is the answer to one command. It never changes.
type remembered struct {
	seq    uint64
	result *Result
	got    place // of an acquire that was granted or queued: a repeat is checked against the present
}

// place is who asked for what; no key = nobody.
type place struct{ key, session, holder string }

// client returns the record of the node to change, raised to boot; nil if the
// boot is closed.
func (s *State) client(nodeID string, boot uint64) *client {
	c, ok := s.clients.Get(nodeID)
	switch {
	case !ok:
		nodeID = strings.Clone(nodeID)
		c = &client{nodeID: nodeID, boot: boot, epoch: s.epoch}
		s.clients.Set(nodeID, c)
	case boot < c.boot:
		return nil
	case c.epoch != s.epoch:
		n := *c
		c, n.epoch = &n, s.epoch
		s.clients.Set(c.nodeID, c)
	}
	if boot > c.boot {
		*c = client{nodeID: c.nodeID, boot: boot, epoch: s.epoch}
	}
	return c
}

// raise forgets the answers below the low-water mark.
func (c *client) raise(lowWater uint64) {
	if lowWater <= c.lowWater {
		return
	}
	c.lowWater = lowWater
	i, _ := c.find(lowWater)
	c.results = c.results[i:]
}

func (c *client) find(seq uint64) (int, bool) {
	// New commands nearly always come last.
	if n := len(c.results); n == 0 || c.results[n-1].seq < seq {
		return n, false
	}
	i := sort.Search(len(c.results), func(i int) bool { return c.results[i].seq >= seq })
	return i, c.results[i].seq == seq
}

func (c *client) remember(i int, m *remembered) {
	if i == len(c.results) {
		c.results = append(c.results, m)
		return
	}
	// Out of order: the slice may be a View's too.
	c.results = slices.Insert(slices.Clone(c.results), i, m)
}

func (s *State) applyProposal(p *Proposal) []*Result {
	out := make([]*Result, len(p.GetCommands()))
	slab := make([]Result, len(out))
	for i := range out {
		out[i] = &slab[i]
		out[i].Revision = s.cluster.revision
	}
	var c *client
	if p.GetNodeId() != "" {
		if c = s.client(p.NodeId, p.Boot); c == nil {
			for _, r := range out {
				refuse(r, Errorf(CodeWrongState, "boot %d of node %s is a closed boot", p.Boot, p.NodeId))
			}
			return out
		}
		c.raise(p.LowWater)
	}
	for i, cmd := range p.Commands {
		out[i] = s.once(c, cmd, out[i])
	}
	return out
}

// once runs a command, unless it is a repeat, and returns its answer.
func (s *State) once(c *client, cmd *Command, r *Result) *Result {
	s.got = place{}
	seq := cmd.GetSeq()
	if seq == 0 {
		return s.onceKeyed(cmd, r)
	}
	if c == nil {
		refuse(r, invalid("node_id", "must be set where a command has a sequence number"))
		return r
	}
	if seq < c.lowWater {
		refuse(r, Errorf(CodeWrongState, "command %d was answered before and its answer is forgotten", seq))
		return r
	}
	i, known := c.find(seq)
	if known {
		return s.replay(c.results[i], r)
	}
	if len(c.results) >= MaxResults {
		refuse(r, Errorf(CodeOverloaded, "%d answers of this boot are remembered, no more are: raise the low-water mark", len(c.results)))
		return r
	}
	r = s.onceKeyed(cmd, r)
	c.remember(i, &remembered{seq: seq, result: r, got: s.got})
	return r
}

// replay answers a repeat with the first answer. An acquire and an opening are
// checked against the present: they never answer with what is gone.
func (s *State) replay(m *remembered, r *Result) *Result {
	if id := m.result.SessionId; id != "" {
		if _, err := s.live(id); err != nil {
			refuse(r, err)
			return r
		}
	}
	if m.got.key == "" {
		return m.result
	}
	sess, err := s.live(m.got.session)
	if err != nil {
		refuse(r, err)
		return r
	}
	l, ok := s.leases.Get(m.got.key)
	switch {
	case ok && l.belongs(sess, m.got.holder) && (m.result.Queued || m.result.Token == l.Token):
		r.Token = l.Token
	case m.result.Queued && s.placeOf(sess, m.got.key, m.got.holder) != nil:
		r.Queued = true
	default:
		refuse(r, Errorf(CodeStaleToken, "the acquire was answered before and what it got is gone"))
		return r
	}
	s.got = m.got
	return r
}

// retireClient forgets the answers to a node that left the cluster, but not
// which of its commands are spent. Few of those records are kept.
func (s *State) retireClient(nodeID string) {
	c, ok := s.clients.Get(nodeID)
	if !ok {
		return
	}
	c = s.client(nodeID, c.boot)
	if n := len(c.results); n > 0 {
		c.lowWater = max(c.lowWater, c.results[n-1].seq+1)
		c.results = nil
	}
	c.retired = s.cluster.revision
	retired, oldest := 0, (*client)(nil)
	s.clients.Scan(func(_ string, c *client) bool {
		if c.retired != 0 {
			retired++
			if oldest == nil || c.retired < oldest.retired {
				oldest = c
			}
		}
		return true
	})
	if retired > maxRetiredClients {
		s.clients.Delete(oldest.nodeID)
	}
}
