package memnet

// segKind is what a segment does to its reader.
type segKind uint8

const (
	segData  segKind = iota
	segEnd           // end of the stream (FIN)
	segReset         // the connection is gone (RST)
)

type segment struct {
	kind segKind
	size int     // bytes of data left in it
	due  instant // when it arrives; never = waits for the link or the sender
}

// flow is one direction of a connection: bytes that were written and not yet read, in order, in segments that arrive at their
// time. Nothing moves them: a reader looks at the clock. Guarded by Net.mu.
type flow struct {
	n        *Net
	to       *end // the reader
	fwd, rev *link
	buf      []byte // bytes unread, from off
	off      int
	segs     []segment // from first
	first    int
	lastDue  instant
	// stuckSince is when data began to wait that can't be acknowledged for a cut; 0 = none.
	stuckSince instant
	resetDue   instant // arrival of the first segReset; never = none
}

func (f *flow) size() int { return len(f.buf) - f.off }

func (f *flow) empty() bool { return f.first == len(f.segs) }

// headDue returns when the next segment arrives.
func (f *flow) headDue() instant {
	if f.empty() {
		return never
	}
	return f.segs[f.first].due
}

func (f *flow) cut() bool { return !f.fwd.open() || !f.rev.open() }

// push adds a segment with the bytes of p.
func (f *flow) push(now instant, kind segKind, p []byte) {
	wasEmpty := f.empty()
	if f.off > 0 && f.off == len(f.buf) {
		f.buf, f.off = f.buf[:0], 0
	} else if f.off > len(f.buf)/2 && len(f.buf)+len(p) > cap(f.buf) {
		f.buf = f.buf[:copy(f.buf, f.buf[f.off:])]
		f.off = 0
	}
	f.buf = append(f.buf, p...)
	if wasEmpty {
		f.segs, f.first = f.segs[:0], 0
	} else if f.first > len(f.segs)/2 && len(f.segs) == cap(f.segs) {
		f.segs = f.segs[:copy(f.segs, f.segs[f.first:])]
		f.first = 0
	}
	s := segment{kind: kind, size: len(p), due: never}
	if f.cut() && f.stuckSince == 0 && kind != segReset {
		f.stuckSince = now
	}
	if f.passes(now, kind) {
		f.schedule(&s, now)
	}
	if kind == segReset {
		f.resetDue = min(f.resetDue, s.due)
	}
	if last := len(f.segs) - 1; last >= f.first && kind == segData && f.segs[last].kind == segData && f.segs[last].due == s.due {
		f.segs[last].size += s.size
	} else {
		f.segs = append(f.segs, s)
	}
	f.n.count(f.fwd, Stats{Segments: 1, StreamBytes: uint64(len(p))})
	if wasEmpty || kind != segData {
		f.to.wakeReader(now, s.due)
	}
	if kind == segReset {
		f.to.writer.arm(f.n, now, s.due)
	}
}

// passes tells whether what is sent now gets under way.
func (f *flow) passes(now instant, kind segKind) bool {
	switch {
	case f.fwd.from.paused || !f.fwd.open():
		return false
	case f.rev.open() || kind == segReset: // a reset is not acknowledged
		return true
	default: // no acknowledgements: the sender stalls at its first time-out
		return now-f.stuckSince < instant(f.n.opts.Retransmit)
	}
}

func (f *flow) schedule(s *segment, now instant) {
	s.due = max(f.lastDue, now+f.n.travel(f.fwd)+f.n.retransmission(f.fwd))
	f.lastDue = s.due
}

// update brings what is under way in line with the faults of now.
func (f *flow) update(now instant) {
	if f.empty() {
		if !f.cut() { // else what was read may still wait for its acknowledgement
			f.stuckSince = 0
		}
		return
	}
	if !f.fwd.open() { // what was on the wire is lost and waits for its retransmission
		for i := f.first; i < len(f.segs); i++ {
			if f.segs[i].due > now {
				f.segs[i].due = never
			}
		}
		f.lastDue = min(f.lastDue, now)
	}
	under := f.segs[len(f.segs)-1].due > now
	switch {
	case f.cut():
		if under && f.stuckSince == 0 {
			f.stuckSince = now
		}
	case f.fwd.from.paused:
		f.stuckSince = 0
	default:
		start := now
		if f.stuckSince != 0 {
			start = f.n.nextTry(f.stuckSince, now)
			f.stuckSince = 0
		}
		for i := f.first; i < len(f.segs); i++ {
			if f.segs[i].due == never {
				f.schedule(&f.segs[i], start)
			}
		}
	}
	f.resetDue = never
	for _, s := range f.segs[f.first:] {
		if s.kind == segReset {
			f.resetDue = s.due
			break
		}
	}
}

// take copies what has arrived into p.
func (f *flow) take(now instant, p []byte) int {
	got := 0
	for got < len(p) && !f.empty() {
		s := &f.segs[f.first]
		if s.kind != segData || s.due > now {
			break
		}
		k := copy(p[got:], f.buf[f.off:f.off+s.size])
		got += k
		f.off += k
		if s.size -= k; s.size == 0 {
			f.first++
		}
	}
	if f.off == len(f.buf) {
		f.off = 0
		if cap(f.buf) > 32<<10 { // an idle connection keeps no large buffer
			f.buf = nil
		} else {
			f.buf = f.buf[:0]
		}
	}
	return got
}

// drop forgets all data, keeping nothing to be read.
func (f *flow) drop() {
	f.buf, f.off, f.segs, f.first = nil, 0, nil, 0
	f.stuckSince, f.resetDue = 0, never
}

// dropUnsent forgets what has not got under way.
func (f *flow) dropUnsent() {
	for len(f.segs) > f.first && f.segs[len(f.segs)-1].due == never {
		last := len(f.segs) - 1
		f.buf = f.buf[:len(f.buf)-f.segs[last].size]
		f.segs = f.segs[:last]
	}
	f.stuckSince = 0
}
