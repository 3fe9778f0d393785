package memnet

// Stats counts what a network, or one direction of it, carried.
type Stats struct {
	Packets        uint64 // sent
	PacketBytes    uint64 // sent
	PacketsDropped uint64 // by loss, cut, full buffers, or because nobody listened
	Segments       uint64 // of streams, sent
	StreamBytes    uint64 // sent
	Retransmits    uint64 // of segments, by loss
	Dials          uint64
	Conns          uint64 // established
}

func (s *Stats) add(o Stats) {
	s.Packets += o.Packets
	s.PacketBytes += o.PacketBytes
	s.PacketsDropped += o.PacketsDropped
	s.Segments += o.Segments
	s.StreamBytes += o.StreamBytes
	s.Retransmits += o.Retransmits
	s.Dials += o.Dials
	s.Conns += o.Conns
}

// count adds to the counters of the link and of the network. Called with n.mu held.
func (n *Net) count(l *link, s Stats) {
	l.stats.add(s)
	n.stats.add(s)
}

// Stats returns what the whole network carried.
func (n *Net) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats
}

// LinkStats returns what went from one host to the other.
func (n *Net) LinkStats(from, to string) Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.link(n.place(from), n.place(to)).stats
}
