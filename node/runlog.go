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
	// reportAfter is how long news of runs waits for more to come.
	reportAfter = 50 * time.Millisecond
	// maxReported bounds the runs in one report, maxUnreported those that are
	// over and that no leader has taken yet.
	maxReported   = 1024
	maxUnreported = 8192
	// watchAfter is for how long the clock is looked at after the last run.
	watchAfter = 5 * time.Second
	// lately is how long a hold-up is spoken of after its end.
	lately = 2 * time.Second
)

// runLog tells the leader when the runs of this process began and ended, by
// this node's clock. While nothing runs it says nothing; while nothing changes
// a report is a few numbers on a keep-alive.
//
// What it says must be true for certain. So it looks at the clock all the time
// while something runs: a process that was held up does not know when its work
// ended, and takes back whatever it has said.
type runLog struct {
	self    holder
	lead    leadership
	call    caller
	witness *witness
	clock   clock
	sleep   *sleepDetector
	log     *slog.Logger
	timeout time.Duration
	alone   time.Duration // a report goes by itself if none has gone for so long
	limit   time.Duration // looks further apart than this mean that the process was held up
	wake    chan struct{}

	mu       sync.Mutex
	watching bool
	looked   time.Duration // last look that an alarm woke it for
	void     bool          // held up since looked: nothing is believed before the next look
	held     time.Duration // how long the last hold-up was
	resumed  time.Duration // when that was over
	epoch    uint64
	seq      uint64
	reported time.Duration         // when the last report was made
	open     map[uint64]*loggedRun // by run: not over
	news     []*loggedRun          // not taken by the leader yet
	sendAt   time.Duration         // when they go by themselves
	failures int
	flying   bool   // a report is under way
	term     uint64 // of the leader that took the last one
	echo     echo
	owed     uint64 // newest report with an end in it that was not echoed yet
	last     time.Duration
}

// echo is the answer to a report, which the next report tells of.
type echo struct {
	seq      uint64
	received time.Duration
}

// loggedRun is a run as the log knows it. Its fields are under the log's mu.
type loggedRun struct {
	id         uint64
	key        string
	token      uint64
	start, end time.Duration
	over       bool
	unknown    bool // nobody knows when it was over
	isNews     bool
	changes    int
}

// report is one on its way.
type report struct {
	msg     *nodepb.RunReport
	epoch   uint64
	runs    []*loggedRun
	changes []int // of each run when the report was made
	ends    bool
}

func newRunLog(cfg leaseConfig, w *witness) *runLog {
	margin := max(cfg.timing.Margin, cfg.timing.SessionTTL/10)
	return &runLog{
		self:    cfg.self,
		lead:    cfg.lead,
		call:    cfg.call,
		witness: w,
		clock:   cfg.clock,
		sleep:   newSleepDetector(cfg.clock),
		log:     cfg.log,
		timeout: 2 * cfg.timing.RaftTimeout,
		alone:   2 * cfg.timing.RenewInterval,
		// Shorter hold-ups do no harm: a run that is made to stop at the end of
		// trust is over a margin before anybody else may begin.
		limit: margin / 2,
		wake:  make(chan struct{}, 1),
		open:  map[uint64]*loggedRun{},
	}
}

func (l *runLog) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// heldUp tells whether this process was stopped, suspended or starved since the
// last look. If so nothing that it has said counts any more; l.mu is held.
func (l *runLog) heldUp(now time.Duration) bool {
	if !l.watching || l.void {
		return l.void
	}
	_, slept, _ := l.sleep.look()
	if slept == 0 && now-l.looked <= l.limit {
		return false
	}
	l.forget()
	return true
}

// heldUpFor is for how long this process was held up, if it has gone on only
// lately; 0 where it was not, or nothing ran.
func (l *runLog) heldUpFor() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.boot()
	switch {
	case l.watching && l.heldUp(now): // nobody has looked since
		return now - l.looked
	case l.held > 0 && now-l.resumed < lately:
		return l.held
	}
	return 0
}

// forget takes back all that was said; l.mu is held.
func (l *runLog) forget() {
	l.void = true
	l.epoch++
	l.echo, l.owed = echo{}, 0
	clear(l.open)
	l.news = nil
}

// started notes that work begins.
func (l *runLog) started(id uint64, key string, token uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.boot()
	if !l.watching {
		l.watching, l.void, l.looked = true, false, now
		_, _, _ = l.sleep.look()
		l.poke()
	}
	if l.last = now; l.heldUp(now) {
		return // it takes no part: nobody could say whether it had the lease
	}
	r := &loggedRun{id: id, key: key, token: token, start: now}
	l.open[id] = r
	l.changed(r, now)
}

// finished notes that work has returned.
func (l *runLog) finished(id uint64) { l.close(id, false) }

// dropped notes that a run is over of which nobody said when its work returned.
func (l *runLog) dropped(id uint64) { l.close(id, true) }

func (l *runLog) close(id uint64, unknown bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.open[id]
	if r == nil {
		return
	}
	now := l.clock.boot()
	if l.last = now; l.heldUp(now) {
		return
	}
	delete(l.open, id)
	r.end, r.over, r.unknown = now, true, unknown
	l.changed(r, now)
}

// changed has r reported; l.mu is held.
func (l *runLog) changed(r *loggedRun, now time.Duration) {
	r.changes++
	if r.isNews {
		return
	}
	if len(l.news) >= maxUnreported+len(l.open) {
		// An end that is left out would be taken for a run that goes on.
		l.forget()
		l.void = false
		return
	}
	r.isNews = true
	if l.news = append(l.news, r); len(l.news) == 1 {
		l.sendAt = max(l.sendAt, now+reportAfter)
		l.poke()
	}
}

// report returns what there is to say now, nil for nothing. answered must be
// called with it.
func (l *runLog) report() *report {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The instant is read under the lock: what changes after it is later.
	now := l.clock.boot()
	if l.flying || !l.watching || l.heldUp(now) {
		return nil
	}
	l.seq++
	l.reported = now
	p := &report{epoch: l.epoch, msg: &nodepb.RunReport{
		Term: l.term, Seq: l.seq, Epoch: l.epoch, Sent: int64(now),
		EchoSeq: l.echo.seq, EchoReceived: int64(l.echo.received),
	}}
	p.runs = slices.Clone(l.news[:min(len(l.news), maxReported)])
	p.msg.Partial = len(p.runs) < len(l.news)
	for _, r := range p.runs {
		p.changes = append(p.changes, r.changes)
		p.ends = p.ends || r.over
		x := &nodepb.RunInterval{Run: r.id, Key: r.key, Token: r.token, Start: int64(r.start), Over: r.over, Unknown: r.unknown}
		if r.over {
			x.End = int64(r.end)
		}
		p.msg.Runs = append(p.msg.Runs, x)
	}
	if len(p.runs) > 0 {
		p.msg.InstanceId = l.self.instanceID
	}
	l.flying = true
	return p
}

// answered takes what became of a report; a nil reply means that nobody took it.
func (l *runLog) answered(p *report, reply *nodepb.RunReply) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.boot()
	l.flying = false
	if reply == nil {
		l.echo = echo{} // the leader knows of no answer
		l.sendAt = now + 5*backOff(l.failures)
		l.failures++
		return
	}
	l.failures, l.sendAt = 0, now
	if p.epoch != l.epoch {
		return
	}
	l.echo = echo{seq: p.msg.Seq, received: now}
	if p.ends {
		l.owed = p.msg.Seq
	} else if p.msg.EchoSeq >= l.owed {
		l.owed = 0
	}
	for i, r := range p.runs {
		if r.changes == p.changes[i] {
			r.isNews = false
		}
	}
	l.news = slices.DeleteFunc(l.news, func(r *loggedRun) bool { return !r.isNews })
	if reply.Term != l.term {
		// A new leader knows nothing of what the former ones were told.
		l.term = reply.Term
		for _, r := range l.open {
			if !r.isNews {
				r.isNews = true
				l.news = append(l.news, r)
			}
		}
	}
	if len(l.news) > 0 {
		l.sendAt = now + reportAfter
		l.poke()
	}
}

// run looks at the clock while something runs, and sends news that no
// keep-alive has carried.
func (l *runLog) run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	a := l.clock.alarm()
	defer a.stop()
	for {
		next, send := l.next()
		if send {
			if p := l.report(); p != nil {
				wg.Go(func() { l.send(ctx, p) })
			}
		}
		if next == far {
			a.stop()
		} else {
			a.setAt(next)
		}
		select {
		case <-a.ring():
			l.look()
		case <-l.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// next is when to look again, and whether news are due.
func (l *runLog) next() (at time.Duration, send bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.watching {
		return far, false
	}
	at = l.looked + l.limit/2
	if l.flying || l.void {
		return at, false
	}
	// Without a session there is no keep-alive to travel with, and work that
	// goes on without one is what matters most.
	due := l.reported + l.alone
	if len(l.news) > 0 {
		due = l.sendAt
	}
	return min(at, due), l.clock.boot() >= due
}

// look is called when an alarm rings, and then only: a process that is stopped
// hears none, whatever else still moves in it.
func (l *runLog) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.boot()
	if l.heldUp(now) {
		l.held, l.resumed = now-l.looked, now
		l.log.Info("this process was held up: its runs so far are not observed any more", "for", l.held)
	}
	l.looked, l.void = now, false
	if len(l.open) == 0 && len(l.news) == 0 && l.owed == 0 && now-l.last > watchAfter {
		l.watching = false
	}
}

// send has the leader take a report that goes by itself.
func (l *runLog) send(ctx context.Context, p *report) {
	defer l.poke()
	ctx, cancel := context.WithTimeoutCause(ctx, l.timeout, errSlowLeader)
	defer cancel()
	reply, err := l.deliver(ctx, p.msg)
	if err != nil {
		l.log.Debug("report of runs not taken", "error", err)
		reply = nil
	}
	l.answered(p, reply)
}

func (l *runLog) deliver(ctx context.Context, msg *nodepb.RunReport) (*nodepb.RunReply, error) {
	switch leader := l.lead.leader(); leader {
	case "":
		return nil, fsm.Errorf(fsm.CodeNotReady, "no leader is known")
	case l.self.nodeID:
		return l.witness.handle(l.self.sender(), msg)
	default:
		reply := new(nodepb.RunReply)
		return reply, l.call.call(ctx, leader, methodReportRuns, msg, reply)
	}
}
