//go:build linux

package guard

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// watcherName is the title of a watcher. It does not hold the program's name, so that what kills everything of that name misses it.
const watcherName = "miw-watch"

const (
	watcherGrace = 50 * time.Millisecond // behind KillAt, within the margin to the lease's end
	watcherLimit = time.Minute           // of trying to end what a dead guard has left
	watcherLast  = time.Minute           // the longest between two tries to have a watcher
)

// wordKind is what a word between a guard and its watcher is about.
type wordKind uint64

const (
	wordFeed   wordKind = iota + 1 // to the watcher: the newest KillAt
	wordRun                        // to the watcher: a run that is about to begin, and the newest KillAt
	wordEnd                        // to the watcher: all of a run is gone
	wordKilled                     // to the guard: the runs up to this one are being killed
)

// word is one packet. It is of a fixed size, so that a watcher that is fed for years makes no garbage.
type word struct {
	kind   wordKind
	run    uint64
	pgid   int
	start  uint64
	killAt time.Duration
}

const wordSize = 5 * 8

func (v word) encode() (b [wordSize]byte) {
	for i, f := range []uint64{uint64(v.kind), v.run, uint64(v.pgid), v.start, uint64(v.killAt)} {
		binary.LittleEndian.PutUint64(b[8*i:], f)
	}
	return b
}

func decodeWord(b []byte) word {
	f := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return word{wordKind(f(0)), f(1), int(f(2)), f(3), time.Duration(f(4))}
}

// hearWord reads a word if there is one. It returns an error that is not EAGAIN when there will be none any more.
func hearWord(fd int) (word, error) {
	var b [wordSize]byte
	for {
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return word{}, err
		case n != wordSize:
			return word{}, errFrame // its end, above all
		default:
			return decodeWord(b[:]), nil
		}
	}
}

// watcherInit is the first packet.
type watcherInit struct {
	Mark  string    `json:"mark"`
	Guard int       `json:"guard"`
	Notes noteStyle `json:"notes"`
}

// watch is the guard's end of the line to its watcher: the process that ends the guard's runs if the guard is killed, or is not there
// at their KillAt. It is a child of the guard: the only one that may be left when no run is.
type watch struct {
	pid       int // 0 without one; not reaped before it is 0
	fd        int // -1 without one
	began     time.Duration
	retryAt   time.Duration // not to be started before
	retryWait time.Duration
	mute      bool // that it can't be started has been said
}

// startWatcher forks a watcher and tells it of all runs.
func (w *warden) startWatcher(now time.Duration) {
	pid, fd, err := forkWatcher(watcherInit{Mark: w.own, Guard: os.Getpid(), Notes: w.notes})
	if err != nil {
		w.watch.postpone(now)
		if !w.watch.mute {
			w.watch.mute = true
			w.note(slog.LevelError, "no watcher: if node and guard are killed or stopped together, what commands have started may outlive their lease", "error", err.Error())
		}
		return
	}
	w.watch.pid, w.watch.fd, w.watch.began, w.watch.mute = pid, fd, now, false
	for _, r := range w.runs {
		w.tellWatcher(w.wordOf(r))
	}
}

func (v *watch) postpone(now time.Duration) {
	v.retryWait = min(max(2*v.retryWait, relaunchFirst), watcherLast)
	v.retryAt = now + v.retryWait
}

func forkWatcher(init watcherInit) (pid, fd int, err error) {
	first, err := json.Marshal(init)
	if err != nil {
		return 0, -1, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, -1, fmt.Errorf("make socket: %w", err)
	}
	defer unix.Close(pair[1])
	defer func() {
		if err != nil {
			unix.Close(pair[0])
		}
	}()
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return 0, -1, fmt.Errorf("open own pidfd: %w", err)
	}
	defer unix.Close(self)
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, -1, fmt.Errorf("open /dev/null: %w", err)
	}
	defer unix.Close(null)
	if _, err := unix.Write(pair[0], first); err != nil {
		return 0, -1, fmt.Errorf("talk to the new process: %w", err)
	}
	env := []string{roleVariable + "=" + roleWatcher, "GOGC=off", "GOMAXPROCS=1"}
	if outer := os.Getenv(runVariable); outer != "" {
		env = append(env, runVariable+"="+outer) // of a guard whose command this one's owner is
	}
	pid, err = syscall.ForkExec("/proc/self/exe", []string{watcherName}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   env,
		Files: []uintptr{uintptr(null), uintptr(null), 2, uintptr(pair[1]), uintptr(self)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, -1, fmt.Errorf("fork: %w", err)
	}
	return pid, pair[0], nil
}

// wordOf tells the watcher of a run.
func (w *warden) wordOf(r *run) word {
	return word{kind: wordRun, run: r.id, pgid: r.pid, start: r.start, killAt: w.feed.KillAt}
}

// tellWatcher never waits: a watcher whose socket is full is as good as none.
func (w *warden) tellWatcher(v word) {
	if w.watch.fd < 0 {
		return
	}
	b := v.encode()
	for {
		err := unix.Send(w.watch.fd, b[:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			w.loseWatcher(BootTime())
		}
		return
	}
}

// loseWatcher lets go of a watcher that has ended or does not listen. Its process is reaped with the orphans.
func (w *warden) loseWatcher(now time.Duration) {
	unix.Close(w.watch.fd)
	if w.watch.pid > 0 {
		unix.Kill(w.watch.pid, unix.SIGKILL)
	}
	w.watch.pid, w.watch.fd = 0, -1
	if now-w.watch.began > watcherLast {
		w.watch.retryWait = 0
	}
	w.watch.postpone(now)
	if w.watches() {
		w.note(slog.LevelWarn, "the watcher has ended: another is started")
	}
}

// watches tells whether there is anything for a watcher to watch.
func (w *warden) watches() bool {
	return len(w.runs) > 0 && w.stage != stageKilling && w.stage != stageClosing
}

// tendWatcher hears what the watcher has done, and replaces one that has ended.
func (w *warden) tendWatcher(now time.Duration) {
	for w.watch.fd >= 0 {
		v, err := hearWord(w.watch.fd)
		if err == unix.EAGAIN {
			break
		}
		if err != nil {
			w.loseWatcher(now)
			break
		}
		for _, r := range w.runs {
			if v.kind != wordKilled || r.id > v.run || r.killed {
				continue
			}
			w.note(slog.LevelWarn, "the guard was not there at KillAt: command killed by its watcher", "key", r.key, "pid", fmt.Sprint(r.pid))
			if r.reason == "" {
				r.reason = ReasonDeadline
			}
			w.kill(r)
		}
	}
	if w.watch.fd < 0 && w.watches() && now >= w.watch.retryAt {
		w.startWatcher(now)
	}
}

// watcher is the process: it blocks until the guard is dead, or has let a KillAt pass.
type watcher struct {
	init     watcherInit
	line     int // -1 once the guard has let go of it
	guard    int // pidfd
	alarm    alarm
	say      *slog.Logger
	runs     map[uint64]record
	killAt   time.Duration
	enforced time.Duration // the KillAt that has been seen to
}

// watcherMain is the life of a watcher.
func watcherMain() int {
	// As the guard: what a service manager sends to all of them does not end it before its time.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM)
	closeInherited(watcherFDs)
	v := &watcher{line: watcherLineFD, guard: watcherGuardFD, runs: map[uint64]record{}}
	var first [4096]byte
	n, err := unix.Read(v.line, first[:])
	if err == nil {
		err = json.Unmarshal(first[:n], &v.init)
	}
	if err == nil {
		v.alarm, err = newAlarm()
	}
	if err != nil {
		return 1 // the guard sees it end
	}
	v.say = v.init.Notes.logger(os.Stderr)
	leaveImage()
	debug.FreeOSMemory()
	debug.SetMemoryLimit(16 << 20) // what it collects at, if ever
	for !v.step() {
	}
	return 0
}

// step waits for something to do and does it. It returns whether there is nothing more.
func (v *watcher) step() (done bool) {
	v.alarm.set(v.due())
	fds := []unix.PollFd{{Fd: int32(v.guard), Events: unix.POLLIN}, {Fd: int32(v.alarm.fd), Events: unix.POLLIN}, {Fd: int32(v.line), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, -1); err != nil {
		return false // EINTR
	}
	var b [8]byte
	unix.Read(v.alarm.fd, b[:])
	v.hear() // before a deadline is looked at, which may have moved
	if fds[0].Revents != 0 {
		v.endAll()
		return true
	}
	if due := v.due(); due > 0 && BootTime() >= due {
		v.endOverdue()
	}
	return false
}

// due is when to end what the guard should have ended; 0 is never.
func (v *watcher) due() time.Duration {
	if v.line < 0 || len(v.runs) == 0 || v.killAt == v.enforced {
		return 0
	}
	return v.killAt + watcherGrace
}

func (v *watcher) hear() {
	for v.line >= 0 {
		m, err := hearWord(v.line)
		if err == unix.EAGAIN {
			return
		}
		if err != nil {
			unix.Close(v.line)
			v.line = -1
			return
		}
		switch m.kind {
		case wordRun:
			v.runs[m.run] = record{Run: m.run, PGID: m.pgid, Start: m.start, SID: v.init.Guard}
			v.killAt = m.killAt
		case wordFeed:
			v.killAt = m.killAt
		case wordEnd:
			delete(v.runs, m.run)
		}
	}
}

// endAll ends what a dead guard has left.
func (v *watcher) endAll() {
	began := BootTime()
	all := trail{records: slices.Collect(maps.Values(v.runs)), mark: v.init.Mark}
	for {
		left, err := endRuns(all, BootTime()+hardStopRound)
		if err == nil && len(left) == 0 {
			break
		}
		v.say.Error("watcher: commands of a dead guard do not end", "guard_pid", v.init.Guard, "left", fmt.Sprint(left), "error", err)
		if BootTime() > began+watcherLimit {
			return
		}
		if err != nil {
			pause(relaunchFirst)
		}
	}
	if len(v.runs) > 0 {
		v.say.Warn("watcher: the guard died: its commands are gone", "guard_pid", v.init.Guard, "commands", len(v.runs), "took", (BootTime() - began).Round(time.Microsecond))
	}
}

// endOverdue ends the runs whose KillAt a guard that is stopped, or hung, has let pass. What it starts should it go on is spared.
func (v *watcher) endOverdue() {
	overdue := trail{records: slices.Collect(maps.Values(v.runs)), mark: v.init.Mark, runs: slices.Sorted(maps.Keys(v.runs))}
	b := word{kind: wordKilled, run: slices.Max(overdue.runs)}.encode()
	unix.Send(v.line, b[:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	t, err := readTable()
	if err == nil {
		overdue.known = t.below(v.init.Guard)
		var left []Leftover
		if left, err = endRuns(overdue, BootTime()+hardStopRound); err == nil && len(left) == 0 {
			v.enforced = v.killAt
			return
		}
		err = errors.Join(err, fmt.Errorf("left: %v", left))
	}
	v.say.Error("watcher: commands past their KillAt do not end", "guard_pid", v.init.Guard, "error", err)
	pause(relaunchFirst)
}

// below returns the processes below a guard, but for this one.
func (t *table) below(guard int) map[int]found {
	set := map[int]proc{}
	t.descend(guard, set)
	delete(set, os.Getpid())
	all := map[int]found{}
	for pid, p := range set {
		if !p.ended() {
			all[pid] = found{proc: p}
		}
	}
	return all
}
