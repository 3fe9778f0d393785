//go:build linux

package guard

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	readyTimeout  = 10 * time.Second       // for a new guard process to say that it stands
	relaunchFirst = 50 * time.Millisecond  // between tries to replace a guard that died
	relaunchLast  = 5 * time.Second        // the longest
	hungGrace     = 300 * time.Millisecond // for a guard to answer, once commands should be stopping
	pingInterval  = time.Second            // of asking a guard that owes the end of commands
	hardStopRound = 5 * time.Second        // between two complaints about commands that do not die
)

// Guard is the owner's handle of its guard process. Start makes one; Close ends it.
type Guard struct {
	cfg  Config
	say  noteStyle
	mark string // of a guard without a folder; a folder has its own
	runs atomic.Uint64
	seqs atomic.Uint64
	gone chan struct{} // closed when the guard has ended and nothing is left
	stir chan struct{} // of size 1: the deadlines have changed
	quit chan struct{} // closed by Close

	mu      sync.Mutex
	link    *link               // guarded by mu; nil while a guard that died is being replaced
	procs   map[uint64]*Process // guarded by mu: spawned and not reported
	feeds   feeds               // guarded by mu
	leaving bool                // guarded by mu
}

// feeds is what the guard was fed and what it has answered.
type feeds struct {
	last    *feedMessage
	acked   *feedMessage   // the newest that this guard process has answered
	owed    []*feedMessage // sent since then
	owedAt  time.Duration  // when the guard last had a chance to answer; 0 if it owes none
	doubted bool           // it was late with an answer once before
}

// Start makes the guard process of this process. It first ends what an earlier guard of the folder left behind, as Leftovers does,
// and takes up to LeftoverTimeout for it. What it can't end is logged, and Leftovers returns it.
//
// Main must have been called first thing in main; otherwise the error matches ErrNoMain. Available tells beforehand.
func Start(cfg Config) (*Guard, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	if err := Available(); err != nil {
		return nil, err
	}
	say := styleOf(cfg.Logger)
	cfg = cfg.withDefaults()
	g := &Guard{
		cfg: cfg, say: say, mark: newMark(), procs: map[uint64]*Process{},
		gone: make(chan struct{}), stir: make(chan struct{}, 1), quit: make(chan struct{}),
	}
	if cfg.Dir != "" {
		g.cfg.Dir = realPath(cfg.Dir)
		left, err := Leftovers(g.cfg.Dir, cfg.LeftoverTimeout)
		if err != nil {
			return nil, fmt.Errorf("end what an earlier guard left: %w", err)
		}
		for _, l := range left {
			cfg.Logger.Warn("left by an earlier start and not to be ended", "what", l.String())
		}
		own.Lock()
		own.left[g.cfg.Dir] = left
		own.Unlock()
	}
	l, err := g.launch()
	if err != nil {
		return nil, err
	}
	g.link = l
	go g.supervise(l)
	return g, nil
}

func newMark() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// PID returns the guard process's ID; 0 while one that died is being replaced.
func (g *Guard) PID() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.link == nil {
		return 0
	}
	return g.link.pid
}

// Feed says until when commands may run and what to close if this process dies. It replaces the feed before and never blocks.
func (g *Guard) Feed(f Feed) error {
	if err := f.validate(); err != nil {
		return err
	}
	m := &feedMessage{Seq: g.seqs.Add(1), At: BootTime(), StopAt: f.StopAt, KillAt: f.KillAt, Session: f.Session}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leaving {
		return ErrClosed
	}
	g.feeds.last = m
	g.sendFeed()
	return nil
}

// sendFeed hands the newest feed to the guard. g.mu is held.
func (g *Guard) sendFeed() {
	if g.link == nil || g.feeds.last == nil {
		return
	}
	if g.feeds.owedAt == 0 {
		g.feeds.owedAt = BootTime()
	}
	g.feeds.owed = append(g.feeds.owed, g.feeds.last)
	g.link.put(message{Feed: g.feeds.last}, nil)
	select {
	case g.stir <- struct{}{}:
	default:
	}
}

// Spawn runs a command. It returns once the command runs, that is when its record is on disk and the system has accepted it, or
// with the reason why it does not. If ctx ends before, the command is killed should it come to run.
func (g *Guard) Spawn(ctx context.Context, s Spec) (*Process, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	if s.Env == nil {
		s.Env = os.Environ()
	}
	if s.Dir == "" {
		dir, err := os.Getwd()
		if err != nil {
			return nil, fmt.Errorf("find working directory: %w", err)
		}
		s.Dir = dir
	}
	if s.StopBudget == 0 {
		s.StopBudget = g.cfg.StopBudget
	}
	m := &spawnMessage{Run: g.runs.Add(1), Argv: s.Argv, Env: s.Env, Dir: s.Dir, Key: s.Key, Token: s.Token, Budget: s.StopBudget}
	files, err := dupFiles(m, s.Stdin, s.Stdout, s.Stderr)
	if err != nil {
		return nil, err
	}
	p := &Process{guard: g, run: m.Run, command: s.Argv[0], key: s.Key, token: s.Token, budget: s.StopBudget, started: make(chan error, 1), done: make(chan struct{})}
	g.mu.Lock()
	switch {
	case g.leaving:
		err = ErrClosed
	case g.link == nil:
		err = ErrGuardDied
	default:
		g.procs[p.run] = p
		err = g.link.put(message{Spawn: m}, files)
		if err != nil {
			delete(g.procs, p.run)
		}
	}
	g.mu.Unlock()
	if err != nil {
		closeFiles(files)
		return nil, err
	}
	select {
	case err := <-p.started:
		if err != nil {
			return nil, err
		}
		return p, nil
	case <-ctx.Done():
		p.Stop(-1)
		return nil, context.Cause(ctx)
	}
}

// Close ends the guard and what still runs under it: TERM, and KILL when each command's stop budget is over. It returns when the
// guard process is gone. If ctx ends first it kills everything, and then returns ctx's error. The session is not touched: who
// closes a guard has seen to its session before.
func (g *Guard) Close(ctx context.Context) error {
	g.mu.Lock()
	if !g.leaving {
		g.leaving = true
		close(g.quit)
		if g.link != nil {
			g.link.put(message{Leave: &struct{}{}}, nil)
		}
	}
	g.mu.Unlock()
	select {
	case <-g.gone:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	if g.link != nil {
		g.link.kill()
	}
	g.mu.Unlock()
	select {
	case <-g.gone:
	case <-time.After(hardStopRound): // they do not die; supervise goes on trying
	}
	return context.Cause(ctx)
}

// supervise replaces guards that die until Close.
func (g *Guard) supervise(l *link) {
	defer close(g.gone)
	for {
		g.watch(l)
		mark := l.mark
		g.mu.Lock()
		g.link = nil
		g.feeds = feeds{last: g.feeds.last}
		leaving, owed := g.leaving, len(g.procs)
		g.mu.Unlock()
		if !leaving || owed > 0 || l.killed.Load() {
			g.cfg.Logger.Error("guard process died: its commands are stopped", "guard_pid", l.pid, "commands", owed, "error", l.err)
			g.hardStop(mark)
		}
		if l = g.relaunch(); l == nil {
			return
		}
	}
}

// relaunch tries to start another guard until it succeeds; nil if Close was called meanwhile.
func (g *Guard) relaunch() *link {
	for wait := relaunchFirst; ; wait = min(2*wait, relaunchLast) {
		g.mu.Lock()
		leaving := g.leaving
		g.mu.Unlock()
		if leaving {
			return nil
		}
		l, err := g.launch()
		if err == nil {
			g.mu.Lock()
			g.link = l
			if g.leaving {
				l.put(message{Leave: &struct{}{}}, nil)
			}
			g.sendFeed()
			g.mu.Unlock()
			g.cfg.Logger.Info("guard process replaced", "guard_pid", l.pid)
			return l
		}
		g.cfg.Logger.Error("guard process can't be replaced: no command can be started", "error", err)
		select {
		case <-g.quit:
		case <-time.After(wait):
		}
	}
}

// watch waits for the end of a guard process. It kills one that is hung: one that does not answer although commands should be
// stopping by what it last heard.
func (g *Guard) watch(l *link) {
	for {
		at := g.suspectAt()
		var timer *time.Timer
		var due <-chan time.Time
		if at > 0 {
			timer = time.NewTimer(at - BootTime())
			due = timer.C
		}
		select {
		case <-l.ended:
			if timer != nil {
				timer.Stop()
			}
			return
		case <-g.stir:
		case <-due:
			g.suspect(l)
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// suspectAt is when to look whether the guard is hung; 0 is never.
func (g *Guard) suspectAt() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.link == nil || g.feeds.last == nil:
		return 0
	case g.feeds.owedAt > 0 && g.feeds.acked != nil:
		return max(g.feeds.acked.StopAt, g.feeds.owedAt+hungGrace)
	case g.feeds.owedAt > 0:
		return g.feeds.owedAt + readyTimeout
	case len(g.procs) > 0 && g.feeds.acked != nil:
		if at := g.feeds.acked.StopAt; at > BootTime() {
			return at
		}
		return BootTime() + pingInterval
	}
	return 0
}

// suspect kills a guard that owes an answer, or asks for one.
func (g *Guard) suspect(l *link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.feeds.owedAt > 0 && !g.feeds.doubted {
		// This process may have been stopped itself, and the answer lie in the socket.
		g.feeds.doubted, g.feeds.owedAt = true, BootTime()
		return
	}
	if g.feeds.owedAt > 0 {
		g.cfg.Logger.Error("guard process does not answer: it is killed", "guard_pid", l.pid)
		l.kill()
		g.feeds.owedAt = 0
		return
	}
	if g.feeds.acked != nil && BootTime() >= g.feeds.acked.StopAt && len(g.procs) > 0 {
		again := *g.feeds.last
		again.Seq = g.seqs.Add(1)
		g.feeds.last = &again
		g.sendFeed()
	}
}

// hardStop ends the commands of a guard that died, from here, and reports them. It does not return before they are gone.
func (g *Guard) hardStop(mark string) {
	var records []record
	g.mu.Lock()
	for _, p := range g.procs {
		if p.pid != 0 {
			records = append(records, record{PGID: p.pid, Start: p.start, SID: p.sid, Key: p.key, Token: p.token})
		}
	}
	g.mu.Unlock()
	if g.cfg.Dir != "" {
		// A command may have come to run without our having heard of it.
		if boot, err := kernelBoot(); err == nil {
			if more, err := readRuns(g.cfg.Dir, mark, boot); err == nil {
				ns, _ := pidNamespace()
				mine, _ := sortRecords(more, ns, 0)
				records = append(records, mine...)
			}
		}
	}
	for {
		left, err := endRuns(trail{records: records, mark: mark}, BootTime()+hardStopRound)
		if err == nil && len(left) == 0 {
			break
		}
		g.cfg.Logger.Error("commands of a dead guard do not end", "left", fmt.Sprint(left), "error", err)
		if err != nil {
			pause(relaunchFirst)
		}
	}
	g.mu.Lock()
	procs := g.procs
	g.procs = map[uint64]*Process{}
	g.mu.Unlock()
	for _, p := range procs {
		p.end(Status{Code: -1, Signal: sigKill, Reason: ReasonGuardDied, Killed: true})
	}
}

// hear takes one message of the guard. It is called from the link's reader.
func (g *Guard) hear(l *link, m message) {
	switch {
	case m.Started != nil:
		g.mu.Lock()
		if p := g.procs[m.Started.Run]; p != nil {
			p.pid, p.start, p.sid = m.Started.PID, m.Started.Start, m.Started.SID
			p.started <- nil
		}
		g.mu.Unlock()
	case m.Refused != nil:
		if p := g.forget(m.Refused.Run); p != nil {
			p.refuse(p.refusal(m.Refused))
		}
	case m.Ended != nil:
		if p := g.forget(m.Ended.Run); p != nil {
			p.end(m.Ended.Status)
		}
	case m.Fed != nil:
		g.mu.Lock()
		for len(g.feeds.owed) > 0 && g.feeds.owed[0].Seq <= m.Fed.Seq {
			g.feeds.acked, g.feeds.owed = g.feeds.owed[0], g.feeds.owed[1:]
			g.feeds.owedAt, g.feeds.doubted = BootTime(), false
		}
		if len(g.feeds.owed) == 0 {
			g.feeds.owedAt = 0
		}
		g.mu.Unlock()
		select {
		case g.stir <- struct{}{}:
		default:
		}
	case m.Note != nil:
		g.tell(m.Note, l.pid)
	}
}

// tell logs what the guard said, as of when it said so: a node that was stopped reads it later.
func (g *Guard) tell(m *noteMessage, pid int) {
	h := g.cfg.Logger.Handler()
	if !h.Enabled(context.Background(), m.Level) {
		return
	}
	r := slog.NewRecord(m.At, m.Level, "guard: "+m.Text, 0)
	args := []any{"guard_pid", pid}
	for _, a := range m.Attrs {
		args = append(args, a)
	}
	r.Add(args...)
	_ = h.Handle(context.Background(), r) // as a Logger does
}

func (g *Guard) forget(run uint64) *Process {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.procs[run]
	delete(g.procs, run)
	return p
}

// failure turns a guard's refusal to stand into an error.
func failure(m *failedMessage) error {
	if m.InUse {
		return fmt.Errorf("%w: %s", ErrFolderInUse, strings.TrimPrefix(m.Reason, ErrFolderInUse.Error()+": "))
	}
	return errors.New(m.Reason)
}
