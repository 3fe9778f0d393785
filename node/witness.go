package node

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
)

const (
	// seenFor is how long a run that is over is held against later reports.
	seenFor = 30 * time.Second
	// silentAfter is when a node that reports no more is forgotten.
	silentAfter = time.Minute
	// maxSeenPerKey and maxSeen bound the runs in memory. What is beyond takes
	// no part: an overlap may go unseen, none is made up.
	maxSeenPerKey = 8
	maxSeen       = 64 << 10
	// maxFound bounds the overlaps that wait to be recorded.
	maxFound = 1024
)

// witness is the leader's memory of who ran what and when. It maps the instants
// of the nodes' clocks to its own by the round trips of their reports, and finds
// runs of one key that certainly overlapped, and the gaps between those that
// followed each other. Nothing of it outlives the term. It only watches: no
// lease depends on it.
type witness struct {
	machine *fsm.Machine
	duty    dutyFunc
	lead    leadership
	clock   clock
	log     *slog.Logger
	observe observer
	wake    chan struct{} // one slot: an overlap waits to be recorded
	passed  passedGrants

	mu    sync.Mutex
	term  uint64 // that is served; 0 = none
	nodes map[string]*seenNode
	keys  map[string]*seenKey
	total int       // runs in keys
	aged  []agedRun // runs of which no more will be known, oldest first
	swept time.Duration
	found []*fsm.RecordOverlap
}

func newWitness(cfg leaseConfig, duty dutyFunc) *witness {
	return &witness{
		machine: cfg.machine, duty: duty, lead: cfg.lead, clock: cfg.clock, log: cfg.log, observe: cfg.observe,
		wake: make(chan struct{}, 1),
	}
}

// serve is the duty of one term: it records what was found.
func (w *witness) serve(ctx context.Context, term uint64) error {
	w.mu.Lock()
	w.term = term
	w.nodes, w.keys, w.total, w.aged = map[string]*seenNode{}, map[string]*seenKey{}, 0, nil
	w.found = nil
	w.mu.Unlock()
	w.passed.reset(true)
	defer func() {
		w.passed.reset(false)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.term, w.nodes, w.keys, w.aged, w.found = 0, nil, nil, nil, nil
	}()
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return nil
		}
		for ctx.Err() == nil {
			w.mu.Lock()
			ops := make([]fsm.Op, 0, len(w.found))
			for _, o := range w.found {
				ops = append(ops, o)
			}
			w.mu.Unlock()
			if len(ops) == 0 {
				break
			}
			if err := w.record(ctx, term, ops); err != nil {
				w.log.Debug("overlap not recorded, trying again", "error", err)
				_ = sleepOn(ctx, w.clock, dutyRetry)
				continue
			}
			w.mu.Lock()
			w.found = w.found[len(ops):]
			w.mu.Unlock()
		}
	}
}

// record commits what was found. A state version that does not know of overlaps
// yet keeps none; the metric and the log have them.
func (w *witness) record(ctx context.Context, term uint64, ops []fsm.Op) error {
	version := w.machine.View().Cluster().Version
	if slices.ContainsFunc(ops, func(op fsm.Op) bool { return fsm.Check(op, version) != nil }) {
		return nil
	}
	_, err := w.duty(ctx, term, ops...)
	return err
}

// applied notes which grants were made in the entry that ended the former one:
// their holder waited already. It is called on the apply goroutine.
func (w *witness) applied(o *fsm.Outcome) {
	var ended map[string]uint64
	for _, e := range o.Events {
		switch {
		case e.Type == fsm.EventLeaseEnded:
			if ended == nil {
				ended = map[string]uint64{}
			}
			ended[e.Key] = e.Token
		case e.Type == fsm.EventLeaseGranted && ended[e.Key] != 0:
			w.passed.add(ended[e.Key], e.Token)
		}
	}
}

// handle takes a report that came by itself.
func (w *witness) handle(from sender, q *nodepb.RunReport) (*nodepb.RunReply, error) {
	arrived := w.clock.boot()
	term, ok := w.lead.serving()
	if !ok {
		return nil, errNotLeader()
	}
	reply := w.take(from, term, q, arrived)
	if reply == nil {
		return nil, fsm.Errorf(fsm.CodeNotReady, "the report was not taken")
	}
	return reply, nil
}

// take takes a report in; nil if it is late or this is not the term's witness.
func (w *witness) take(from sender, term uint64, q *nodepb.RunReport, arrived time.Duration) *nodepb.RunReply {
	if q == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.term != term || term == 0 {
		return nil
	}
	n := w.nodes[from.nodeID]
	if n != nil && (from.boot < n.boot || from.boot == n.boot && q.Seq <= n.last.seq) {
		return nil // something newer has been heard
	}
	if n == nil || n.sender != from || n.epoch != q.Epoch || q.Term != term {
		n = w.begin(from, q.Epoch, n)
	}
	n.heard = arrived
	if q.EchoSeq != 0 && q.EchoSeq == n.last.seq {
		back := trip{
			sent: n.last.sent, arrived: n.last.arrived,
			answered: n.last.answered, received: time.Duration(q.EchoReceived),
		}
		if n.clock.add(back) {
			if n.last.whole {
				n.alive, n.aliveSeq = n.last.sent, n.last.seq
			}
			w.settle(n, arrived)
		} else {
			w.log.Info("a node's clock and this one's have jumped apart: its runs so far are not observed any more", "peer", from.nodeID)
			n = w.begin(from, q.Epoch, n)
			n.heard = arrived
		}
	}
	if q.InstanceId != "" {
		n.instance = q.InstanceId
	}
	for _, x := range q.Runs {
		w.see(n, q.Seq, x, arrived)
	}
	w.examineAll(n)
	w.sweep(arrived)
	n.last = seenReport{seq: q.Seq, sent: time.Duration(q.Sent), arrived: arrived, whole: !q.Partial, answered: w.clock.boot()}
	return &nodepb.RunReply{Term: term}
}

// begin makes a new record of a node. What was known of the old one's runs
// stays as it is: no more will be known of them.
func (w *witness) begin(from sender, epoch uint64, old *seenNode) *seenNode {
	n := &seenNode{sender: from, epoch: epoch, running: map[*seenRun]struct{}{}, suspects: map[*seenKey]struct{}{}}
	if old != nil {
		n.instance = old.instance
		w.lose(old)
	}
	w.nodes[from.nodeID] = n
	return n
}

// lose ends the record of a node.
func (w *witness) lose(n *seenNode) {
	lost := slices.Clone(n.vague)
	for r := range n.running {
		lost = append(lost, r)
	}
	n.vague = nil
	for _, r := range lost {
		w.loseRun(r, n.heard)
	}
	w.examineAll(n)
}

// loseRun has no more known of r than is now.
func (w *witness) loseRun(r *seenRun, now time.Duration) {
	delete(r.node.running, r)
	switch {
	case r.lost:
	case !r.startKnown:
		w.remove(r)
	default:
		known := r.stretch()
		r.lost, r.moved, r.over, r.end = true, true, false, known.until
		w.aged = append(w.aged, agedRun{r, now})
	}
}

// see takes in what a report says of a run.
func (w *witness) see(n *seenNode, seq uint64, x *nodepb.RunInterval, now time.Duration) {
	k := w.keys[x.Key]
	var r *seenRun
	if k != nil {
		if i := slices.IndexFunc(k.runs, func(r *seenRun) bool { return r.id == x.Run && r.node.sender == n.sender }); i >= 0 {
			r = k.runs[i]
		}
	}
	switch {
	case r == nil:
		if x.Unknown {
			return
		}
		if r = w.add(x.Key, n, now); r == nil {
			return
		}
		r.id, r.token, r.seq, r.began = x.Run, x.Token, seq, time.Duration(x.Start)
		n.running[r] = struct{}{}
		n.vague = append(n.vague, r)
	case r.over:
		return
	case r.lost: // heard of again, by a node that has found a new leader
		r.lost, r.moved, r.node, r.seq = false, true, n, seq
		n.running[r] = struct{}{}
		w.suspect(r.key)
	}
	switch {
	case x.Unknown:
		w.loseRun(r, now)
	case x.Over:
		delete(n.running, r)
		r.over, r.ended = true, time.Duration(x.End)
		if r.startKnown {
			n.vague = append(n.vague, r)
		}
	}
}

// add makes room for a run; nil if there is none.
func (w *witness) add(key string, n *seenNode, now time.Duration) *seenRun {
	k := w.keys[key]
	if k != nil && len(k.runs) >= maxSeenPerKey {
		i := slices.IndexFunc(k.runs, func(r *seenRun) bool { return r.lost || r.endKnown })
		if i < 0 {
			return nil
		}
		w.remove(k.runs[i])
		k = w.keys[key]
	}
	if w.total >= maxSeen {
		return nil
	}
	if k == nil {
		k = &seenKey{name: key}
		w.keys[key] = k
	}
	r := &seenRun{node: n, key: k}
	for _, o := range k.runs {
		k.pairs = append(k.pairs, [2]*seenRun{o, r})
	}
	k.runs = append(k.runs, r)
	w.total++
	w.suspect(k)
	return r
}

// suspect has k examined at each report of a node that has a run in it.
func (w *witness) suspect(k *seenKey) {
	if len(k.pairs) == 0 {
		return
	}
	for _, r := range k.runs {
		r.node.suspects[k] = struct{}{}
	}
}

// remove drops a run from memory.
func (w *witness) remove(r *seenRun) {
	k := r.key
	i := slices.Index(k.runs, r)
	if i < 0 {
		return
	}
	k.runs = slices.Delete(k.runs, i, i+1)
	k.pairs = slices.DeleteFunc(k.pairs, func(p [2]*seenRun) bool { return p[0] == r || p[1] == r })
	delete(r.node.running, r)
	if w.total--; len(k.runs) == 0 {
		delete(w.keys, k.name)
		delete(r.node.suspects, k)
	}
}

// settle maps what the newest round trip allows to.
func (w *witness) settle(n *seenNode, now time.Duration) {
	n.vague = slices.DeleteFunc(n.vague, func(r *seenRun) bool {
		if !r.startKnown && n.clock.covers(r.began) {
			r.start, r.startKnown = n.clock.at(r.began), true
		}
		if r.over && !r.endKnown && n.clock.covers(r.ended) {
			r.end, r.endKnown = n.clock.at(r.ended), true
			w.aged = append(w.aged, agedRun{r, now})
		}
		return r.startKnown && (!r.over || r.endKnown)
	})
}

// examineAll judges what a report of the node may have decided.
func (w *witness) examineAll(n *seenNode) {
	for k := range n.suspects {
		if w.examine(k); len(k.pairs) == 0 {
			delete(n.suspects, k)
		}
	}
}

// examine judges the pairs of a key.
func (w *witness) examine(k *seenKey) {
	k.pairs = slices.DeleteFunc(k.pairs, func(p [2]*seenRun) bool {
		a, b := p[0], p[1]
		if a.token > b.token {
			a, b = b, a
		}
		var x, y stretch
		switch {
		case a.node == b.node && !a.moved && !b.moved:
			x, y = a.own(), b.own() // one clock: nothing to map
		case a.startKnown && b.startKnown:
			x, y = a.stretch(), b.stretch()
		default:
			return false
		}
		v := judge(x, y)
		switch {
		case v.certain > 0:
			w.overlap(a, b, v)
		case v.decided && x.over:
			w.gap(a, b, x.until, y.start)
		}
		return v.decided
	})
}

// overlap declares that two runs overlapped.
func (w *witness) overlap(a, b *seenRun, v finding) {
	w.observe.sawOverlap()
	w.log.Error("two runs of one key overlapped: this must never happen, please report it",
		"key", a.key.name, "token_a", a.token, "token_b", b.token, "instance_a", a.node.instance, "instance_b", b.node.instance,
		"certain", v.certain, "doubt", v.doubt)
	if len(w.found) >= maxFound {
		return
	}
	w.found = append(w.found, &fsm.RecordOverlap{
		Key: a.key.name, TokenA: a.token, TokenB: b.token, InstanceA: a.node.instance, InstanceB: b.node.instance,
		CertainNs: int64(v.certain), UncertaintyNs: int64(v.doubt), Term: w.term,
	})
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// gap measures the time between two runs that followed each other, where the
// second's grant was made by the entry that ended the first's: nobody else had
// the key between them, and somebody wanted it all the time.
func (w *witness) gap(a, b *seenRun, end, start span) {
	k := a.key
	if w.passed.from(b.token) != a.token {
		return
	}
	for _, r := range k.runs {
		if r.token == a.token && r.began > a.began && r.node == a.node || r.token == b.token && r.gapSeen {
			return // a is not the last run of its grant, or b not the first
		}
	}
	b.gapSeen = true
	w.observe.sawGap(gapBetween(end, start))
}

// sweep forgets what is too old to matter.
func (w *witness) sweep(now time.Duration) {
	i := 0
	for ; i < len(w.aged) && now-w.aged[i].at > seenFor; i++ {
		if r := w.aged[i].seenRun; r.lost || r.over { // not heard of again
			w.remove(r)
		}
		w.aged[i] = agedRun{}
	}
	w.aged = w.aged[i:]
	if now-w.swept < silentAfter/4 {
		return
	}
	w.swept = now
	for id, n := range w.nodes {
		if now-n.heard > silentAfter {
			w.lose(n)
			delete(w.nodes, id)
		}
	}
}

// uncertainty is the most by which a mapped instant may be off, over the nodes
// that report; false where nobody does, or nobody to this node.
func (w *witness) uncertainty() (worst time.Duration, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.nodes {
		if k := len(n.clock.trips); k > 0 {
			worst, ok = max(worst, n.clock.at(n.clock.trips[k-1].sent).width()/2), true
		}
	}
	return worst, ok
}
