//go:build linux

package guard

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// run is one command and everything it has started.
type run struct {
	id     uint64
	key    string
	token  uint64
	budget time.Duration

	pid   int // of the command, which leads the group of the same number. It is reaped last, so the number stays its own
	start uint64
	line  shimLine

	began  bool           // it is no shim any more, and the node knows
	failed bool           // the node knows that it did not start
	exited bool           // the command itself has; it may have left others
	told   bool           // TERM was sent to all of it, and it is to end
	killAt time.Duration  // 0 while nobody told it to stop
	killed bool           // KILL is being sent
	reason Reason         // why it was told
	strays map[int]uint64 // members outside the group, as far as they were seen: start by PID
}

// spawn forks the shim of a command and asks for its record.
func (w *warden) spawn(m *spawnMessage, files []int) {
	if w.stage != stageServing || w.feed == nil || BootTime() >= w.feed.StopAt {
		w.control.send(message{Refused: &refusedMessage{Run: m.Run, Why: refusedNotFed, Reason: ErrNotFed.Error()}})
		return
	}
	pid, line, err := startShim(m, files, w.mark, w.own)
	if err != nil {
		w.control.send(message{Refused: &refusedMessage{Run: m.Run, Why: refusedSystem, Reason: err.Error()}})
		return
	}
	r := &run{id: m.Run, key: m.Key, token: m.Token, budget: m.Budget, pid: pid, line: line, strays: map[int]uint64{}}
	w.runs[r.id] = r
	p, err := readProc(pid)
	if err != nil {
		w.fail(r, refusedSystem, 0, fmt.Errorf("look at the new process: %w", err))
		return
	}
	r.start = p.start
	if w.watch.fd >= 0 {
		w.tellWatcher(w.wordOf(r))
	} else if now := BootTime(); now >= w.watch.retryAt {
		w.startWatcher(now)
	}
	if w.journal == nil {
		w.let(r)
		return
	}
	ns, err := pidNamespace()
	if err != nil {
		w.fail(r, refusedSystem, 0, err)
		return
	}
	w.journal.add(record{Run: r.id, Namespace: ns, PGID: pid, Start: r.start, SID: p.sid, Key: r.key, Token: r.token})
}

// takeRecords lets those run whose record is on disk.
func (w *warden) takeRecords() {
	if w.journal == nil {
		return
	}
	for _, done := range w.journal.take() {
		r := w.runs[done.run]
		switch {
		case r == nil:
			w.journal.end(done.run) // it ended before it was recorded
		case done.err != nil:
			w.fail(r, refusedRecord, 0, done.err)
		case !r.told:
			w.let(r)
		}
	}
}

// let tells a shim to become its command.
func (w *warden) let(r *run) {
	if err := r.line.let(); err != nil {
		w.fail(r, refusedSystem, 0, fmt.Errorf("talk to the new process: %w", err))
	}
}

// hearShims finds out which shims have become their commands and which could not.
func (w *warden) hearShims() {
	for _, r := range w.runs {
		if r.line.fd < 0 {
			continue
		}
		failure, done := r.line.hear()
		switch {
		case !done:
		case failure != nil:
			w.fail(r, refusedCommand, failure.Code, errors.New(failure.Reason))
		case r.told:
			w.fail(r, refusedNotFed, 0, ErrNotFed)
		default:
			r.began = true
			w.control.send(message{Started: &startedMessage{Run: r.id, PID: r.pid, Start: r.start, SID: os.Getpid()}})
		}
	}
}

// fail tells the node that a command was not started, and ends what there is of it.
func (w *warden) fail(r *run, why string, code int, err error) {
	if !r.began && !r.failed {
		w.control.send(message{Refused: &refusedMessage{Run: r.id, Why: why, Code: code, Reason: err.Error()}})
	}
	r.failed = true
	r.line.close()
	w.kill(r)
}

// stop tells a run to end: TERM now, KILL at the instant, and no later than the feed allows. Where that has passed, KILL is all there
// is. A run that was told before is only hurried.
func (w *warden) stop(r *run, why Reason, killAt time.Duration) {
	killAt = min(killAt, w.feed.KillAt)
	if r.killAt == 0 || killAt < r.killAt {
		r.killAt = killAt
	}
	if r.reason == "" {
		r.reason = why
	}
	if killAt <= BootTime() {
		if !r.killed {
			w.kill(r)
		}
		return
	}
	if !r.told {
		r.told = true
		w.terminate(r)
	}
}

// kill sends KILL from now on until all of the run is gone.
func (w *warden) kill(r *run) {
	r.told, r.killed = true, true
	unix.Kill(-r.pid, unix.SIGKILL)
	w.retryWait, w.retryAt = retryFirst, BootTime()+retryFirst
}

// killAt is when a run gets KILL, as things stand.
func (w *warden) killAt(r *run) time.Duration {
	if r.killAt == 0 || w.feed.KillAt < r.killAt {
		return w.feed.KillAt
	}
	return r.killAt
}

// enforce holds the runs to their deadlines.
func (w *warden) enforce(now time.Duration) {
	w.killOverdue(now)
	for _, r := range w.runs {
		if !r.told && now >= w.feed.StopAt {
			w.note(slog.LevelWarn, "lease not renewed in time: command told to stop", "key", r.key, "pid", fmt.Sprint(r.pid))
			w.stop(r, ReasonDeadline, w.feed.KillAt)
		}
	}
}

// killOverdue begins to kill those runs whose KillAt has passed.
func (w *warden) killOverdue(now time.Duration) {
	for _, r := range w.runs {
		if r.killed || now < w.killAt(r) {
			continue
		}
		if !r.told {
			w.note(slog.LevelWarn, "lease not renewed in time: command killed", "key", r.key, "pid", fmt.Sprint(r.pid))
		}
		if r.reason == "" {
			r.reason = ReasonDeadline
		}
		w.kill(r)
	}
}

// reap finds out which commands have exited. It leaves them as zombies: their number, and their group's, stays theirs until
// the last of the run is gone.
func (w *warden) reap() {
	if w.stage == stageKilling || w.stage == stageClosing {
		return
	}
	for _, r := range w.runs {
		if r.exited {
			continue
		}
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, r.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err != nil || info.Signo == 0 {
			continue
		}
		r.exited = true
		w.hearShims() // it may have failed with a last word
		if r.line.fd >= 0 {
			w.fail(r, refusedSystem, 0, errors.New("the new process ended before it became the command"))
		}
		if r.reason == "" {
			r.reason = ReasonExited
		}
	}
}

// finish reports a run of which nothing is left but the zombie of its command.
func (w *warden) finish(r *run) {
	w.reapOrphans() // who is told that nothing is left finds no zombie of it either
	var ws unix.WaitStatus
	if _, err := unix.Wait4(r.pid, &ws, unix.WNOHANG, nil); err != nil && err != unix.ECHILD {
		return
	}
	delete(w.runs, r.id)
	w.tellWatcher(word{kind: wordEnd, run: r.id})
	if w.journal != nil {
		w.journal.end(r.id)
	}
	if r.failed {
		return
	}
	s := Status{Code: ws.ExitStatus(), Reason: r.reason, Killed: r.killed}
	if ws.Signaled() {
		s.Code, s.Signal = -1, ws.Signal()
	}
	w.control.send(message{Ended: &endedMessage{Run: r.id, Status: s}})
}
