//go:build linux

package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stage is where a guard is in its life.
type stage int

const (
	stageServing  stage = iota // the node's pipe is open
	stageOrphaned              // it has ended, and the node's process has not, or not yet
	stageKilling               // the node's process has exited: everything is being killed
	stageClosing               // everything is gone, the pipe too: the session is being closed
	stageLeaving               // the node says farewell
	stageDone
)

const (
	lockPatience = time.Second            // for a guard that is just going
	hurry        = 2 * time.Second        // what is left after TERM, once the node is dead
	retryFirst   = 5 * time.Millisecond   // between two looks at what does not die
	retryLast    = 200 * time.Millisecond // the longest
)

// warden is the guard process: one loop on one thread that owns all of this.
type warden struct {
	control endpoint
	node    int // pidfd; -1 once it has said that the node's process exited
	alarm   alarm
	wake    int // eventfd: signals, the journal, the closing
	signals inbox

	stage   stage
	runs    map[uint64]*run
	feed    *feedMessage
	breaks  int    // how often a feed came too late for what ran
	mark    string // of the folder, or the owner
	own     string // of this guard alone: by it, its watcher tells its runs from those of the next guard
	watch   watch
	notes   noteStyle
	say     *slog.Logger // once nobody else takes what there is to say
	folder  *folder      // nil without one, or when it has been left to others
	journal *journal

	retryAt   time.Duration // 0 is not now
	retryWait time.Duration
	farewell  farewell
}

// inbox is what other goroutines of the guard leave for the loop before they wake it.
type inbox struct {
	terminate atomic.Bool  // TERM or INT came
	closed    atomic.Int32 // 1: the session is closed; 2: given up
}

// farewell is what the guard knows of the node's end.
type farewell struct {
	pipeEnded  bool
	exited     bool          // the pidfd says so
	at         time.Duration // when both were known
	deadline   time.Duration // for what then remains; 0 is none
	terminated time.Duration // when TERM came; 0 if none did
	killed     int           // commands that the node left running
	cancel     context.CancelFunc
}

// newWarden makes a guard of this process: it reads what to guard, locks the folder and says so.
func newWarden() (*warden, error) {
	w := &warden{control: endpoint{fd: guardControlFD}, node: guardNodeFD, runs: map[uint64]*run{}, own: newMark(), watch: watch{fd: -1}}
	init, err := w.awaitInit()
	if err != nil {
		return nil, err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become subreaper: %w", err)
	}
	if w.alarm, err = newAlarm(); err != nil {
		return nil, err
	}
	if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	w.mark, w.notes, w.say = init.Mark, init.Notes, init.Notes.logger(os.Stderr)
	if init.Dir != "" {
		if err := w.takeFolder(init); err != nil {
			return nil, err
		}
	}
	w.listen()
	w.control.send(message{Ready: &readyMessage{Mark: w.mark}})
	return w, nil
}

// awaitInit reads the first message.
func (w *warden) awaitInit() (*initMessage, error) {
	for {
		m, _, ok, err := w.control.next()
		if err != nil {
			return nil, err
		}
		if ok {
			if m.Init == nil || m.Init.Version != protocolVersion {
				return nil, fmt.Errorf("%w: not the start of version %d", errFrame, protocolVersion)
			}
			return m.Init, nil
		}
		fds := []unix.PollFd{{Fd: int32(w.control.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
			return nil, fmt.Errorf("wait for the node: %w", err)
		}
		if err := w.control.receive(); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		} else if err != nil && len(w.control.in) == 0 {
			return nil, err
		}
	}
}

// takeFolder locks the folder and starts a runs file in it.
func (w *warden) takeFolder(init *initMessage) error {
	d, err := openFolder(init.Dir, true)
	if err != nil {
		return err
	}
	for end := BootTime() + lockPatience; ; {
		err := d.tryLock()
		if err == nil {
			break
		}
		if !errors.Is(err, ErrFolderInUse) || BootTime() > end {
			return err
		}
		pause(retryFirst)
	}
	ns, err := pidNamespace()
	if err != nil {
		return err
	}
	self, err := readProc(os.Getpid())
	if err != nil {
		return err
	}
	if err := d.hold(holder{PID: os.Getpid(), Start: self.start, Namespace: ns, Owner: init.Owner, OwnerStart: init.OwnerStart}); err != nil {
		return err
	}
	boot, err := kernelBoot()
	if err != nil {
		return err
	}
	// What Leftovers could not end stays on record.
	kept, err := readRuns(init.Dir, d.mark, boot)
	if err != nil && !errors.Is(err, errRunsDamaged) {
		return err
	}
	w.journal, err = openJournal(init.Dir, runsHeader{runsVersion, d.mark, boot}, kept, w.rouse)
	if err != nil {
		return err
	}
	w.folder, w.mark = d, d.mark
	return nil
}

// refuse tells the node why there is no guard.
func refuse(err error) {
	e := endpoint{fd: guardControlFD}
	e.send(message{Failed: &failedMessage{Reason: err.Error(), InUse: errors.Is(err, ErrFolderInUse)}})
	e.flush()
}

// rouse wakes the loop. It may be called from any goroutine.
func (w *warden) rouse() {
	unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// listen takes the signals. They are caught, not ignored, since commands would inherit the latter. None ends the guard: it is there
// as long as the node is, and a little longer.
func (w *warden) listen() {
	c := make(chan os.Signal, 16)
	signal.Notify(c, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM)
	go func() {
		for s := range c {
			if s == syscall.SIGTERM || s == syscall.SIGINT {
				w.signals.terminate.Store(true)
			}
			w.rouse()
		}
	}()
}

// serve is the loop.
func (w *warden) serve() {
	for w.stage != stageDone {
		w.control.flush()
		w.alarm.set(w.nextDeadline())
		w.step(w.poll())
	}
	w.control.flush()
}

// step does what there is to do. What the node fed is read before any deadline is looked at: a guard that was stopped itself
// must not act on a deadline that has been moved meanwhile. Whose KillAt has passed is killed before anything else the node said
// is done: a Stop or a Signal that waited in the socket must not have a command run its handler beside its successor.
func (w *warden) step(ready map[int]bool) {
	w.drainWake()
	said := w.readControl()
	w.killOverdue(BootTime())
	for _, h := range said {
		w.take(h)
	}
	if ready[w.node] {
		unix.Close(w.node)
		w.node, w.farewell.exited = -1, true
	}
	w.tendWatcher(BootTime())
	w.hearShims()
	w.takeRecords()
	w.reap()
	w.advance()
}

// poll waits until there is something to do. It tells which descriptors are ready.
func (w *warden) poll() map[int]bool {
	var fds []unix.PollFd
	add := func(fd int, events int16) {
		if fd >= 0 {
			fds = append(fds, unix.PollFd{Fd: int32(fd), Events: events})
		}
	}
	events := int16(unix.POLLIN)
	if len(w.control.out) > 0 {
		events |= unix.POLLOUT
	}
	add(w.control.fd, events)
	add(w.node, unix.POLLIN)
	add(w.alarm.fd, unix.POLLIN)
	add(w.wake, unix.POLLIN)
	add(w.watch.fd, unix.POLLIN)
	for _, r := range w.runs {
		add(r.line.fd, unix.POLLIN)
	}
	ready := map[int]bool{-1: false}
	if _, err := unix.Poll(fds, -1); err != nil {
		return ready // EINTR: a signal, which rouses too
	}
	for _, f := range fds {
		if f.Revents != 0 {
			ready[int(f.Fd)] = true
		}
	}
	return ready
}

func (w *warden) drainWake() {
	var b [8]byte
	unix.Read(w.wake, b[:])
	unix.Read(w.alarm.fd, b[:])
}

// heard is a message that waits to be taken.
type heard struct {
	message
	files  []int
	breaks int // of feeds, when it was said
}

// readControl reads all that the node has said and takes what it fed. The rest is returned, in order.
func (w *warden) readControl() (rest []heard) {
	if w.control.fd < 0 {
		return nil
	}
	end := w.control.receive()
	for {
		m, files, ok, err := w.control.next()
		if err != nil {
			end = err
			break
		}
		if !ok {
			break
		}
		if m.Feed != nil {
			w.takeFeed(m.Feed)
			continue
		}
		rest = append(rest, heard{m, files, w.breaks})
	}
	if end != nil {
		if !errors.Is(end, io.EOF) {
			w.note(slog.LevelError, "control socket failed", "error", end.Error())
		}
		w.control.close()
		w.farewell.pipeEnded = true
	}
	return rest
}

// takeFeed moves the deadlines, as of when the node said so, whenever it is read: a feed that was made in time prolongs what runs. One
// that was made after the StopAt before it speaks of new work only, and what ran then has until the KillAt of the old.
func (w *warden) takeFeed(m *feedMessage) {
	if w.feed != nil && m.At >= w.feed.StopAt {
		w.breaks++
		for _, r := range w.runs {
			w.stop(r, ReasonDeadline, w.feed.KillAt)
		}
	}
	w.feed = m
	if len(w.runs) > 0 {
		w.tellWatcher(word{kind: wordFeed, killAt: m.KillAt})
	}
	w.control.send(message{Fed: &fedMessage{Seq: m.Seq}})
}

// take does what one message asks for.
func (w *warden) take(h heard) {
	switch m := h.message; {
	case m.Spawn != nil && h.breaks != w.breaks:
		w.control.send(message{Refused: &refusedMessage{Run: m.Spawn.Run, Why: refusedNotFed, Reason: ErrNotFed.Error()}})
	case m.Spawn != nil:
		w.spawn(m.Spawn, h.files)
	case m.Signal != nil:
		if r := w.runs[m.Signal.Run]; r != nil && !r.killed {
			unix.Kill(-r.pid, unix.Signal(m.Signal.Signal))
		}
	case m.Stop != nil:
		if r := w.runs[m.Stop.Run]; r != nil {
			w.stop(r, ReasonStopped, BootTime()+m.Stop.Budget)
		}
	case m.Leave != nil:
		w.stage = stageLeaving
		for _, r := range w.runs {
			w.stop(r, ReasonStopped, BootTime()+r.budget)
		}
	}
	closeFiles(h.files)
}

// note tells the node, or whoever reads stderr when the node is no more.
func (w *warden) note(level slog.Level, text string, attrs ...string) {
	if !w.farewell.pipeEnded {
		w.control.send(message{Note: &noteMessage{At: time.Now(), Level: level, Text: text, Attrs: attrs}})
		return
	}
	args := make([]any, 0, len(attrs)+2)
	for _, a := range attrs {
		args = append(args, a)
	}
	w.say.Log(context.Background(), level, "guard: "+text, append(args, "guard_pid", os.Getpid())...)
}

// nextDeadline is the earliest instant at which the loop has something to do by itself; 0 is none. It is never in the past:
// what could not be done in time is tried again after a moment.
func (w *warden) nextDeadline() time.Duration {
	var all []time.Duration
	for _, r := range w.runs {
		if !r.told {
			all = append(all, w.feed.StopAt)
		}
		if !r.killed {
			all = append(all, w.killAt(r))
		}
	}
	for _, at := range []time.Duration{w.retryAt, w.farewell.deadline} {
		if at > 0 {
			all = append(all, at)
		}
	}
	if w.watch.fd < 0 && w.watches() {
		all = append(all, w.watch.retryAt)
	}
	if len(all) == 0 {
		return 0
	}
	return max(slices.Min(all), BootTime()+time.Millisecond)
}

// advance moves the guard along: deadlines first, then the stages.
func (w *warden) advance() {
	now := BootTime()
	if w.signals.terminate.Load() && w.farewell.terminated == 0 {
		w.farewell.terminated = now
		w.note(slog.LevelInfo, "told to end: stays until the node has ended")
	}
	if f := &w.farewell; f.pipeEnded && w.stage == stageServing {
		w.stage = stageOrphaned
		f.deadline = w.sessionOver(now)
	}
	if w.farewell.exited && (w.stage == stageServing || w.stage == stageOrphaned) {
		w.bury(now)
	}
	switch w.stage {
	case stageServing, stageOrphaned, stageLeaving:
		w.enforce(now)
		w.sweep(now)
		if len(w.runs) == 0 && w.leaves(now) && w.nobodyLeft(now) {
			w.stage = stageDone
		}
	case stageKilling:
		w.hurryUp(now)
		if w.nobodyLeft(now) && w.farewell.pipeEnded {
			w.closeSession()
		} else if f := w.farewell; f.deadline > 0 && now >= f.deadline {
			w.note(slog.LevelError, "gave up: commands do not die, or the pipe does not end; the session must run out")
			w.stage = stageDone
		}
	case stageClosing:
		w.hurryUp(now)
		if w.signals.closed.Load() != 0 {
			w.stage = stageDone
		}
	}
}

// leaves tells whether a guard without commands has nothing more to wait for: the node said farewell, or it closed the pipe
// without dying until its session must be over.
func (w *warden) leaves(now time.Duration) bool {
	switch w.stage {
	case stageLeaving:
		return true
	case stageOrphaned:
		return w.feed == nil || w.feed.Session == nil || now >= w.farewell.deadline
	}
	return false
}

// sessionOver is when the node's session has certainly run out, if nobody keeps it alive from now on.
func (w *warden) sessionOver(now time.Duration) time.Duration {
	if w.feed == nil || w.feed.Session == nil {
		return now
	}
	return max(now, w.feed.KillAt) + w.feed.Session.TTL
}

// bury begins with what a dead node leaves: everything is killed at once.
func (w *warden) bury(now time.Duration) {
	w.stage = stageKilling
	w.farewell.at, w.farewell.deadline = now, 0
	w.farewell.killed = len(w.runs)
	for id, r := range w.runs {
		unix.Kill(-r.pid, unix.SIGKILL)
		r.line.close()
		delete(w.runs, id) // nobody is left to be told of single ones
	}
	w.retryWait, w.retryAt = retryFirst, now+retryFirst
}

// hurryUp bounds what is left once TERM has come.
func (w *warden) hurryUp(now time.Duration) {
	f := &w.farewell
	if f.terminated == 0 {
		return
	}
	f.deadline = max(f.terminated, f.at) + hurry
	if now >= f.deadline && f.cancel != nil {
		f.cancel()
	}
}

// closeSession is reached when the node is dead and nothing of its commands is left: the one place where that is known.
func (w *warden) closeSession() {
	w.retryAt = 0
	w.leaveFolder()
	took := (BootTime() - w.farewell.at).Round(time.Microsecond)
	if w.feed == nil || w.feed.Session == nil {
		if w.farewell.killed > 0 {
			w.note(slog.LevelWarn, "owner died: its commands are gone", "commands", fmt.Sprint(w.farewell.killed), "took", took.String())
		}
		w.stage = stageDone
		return
	}
	w.note(slog.LevelWarn, "owner died: its commands are gone, closing its session", "commands", fmt.Sprint(w.farewell.killed), "took", took.String())
	w.stage = stageClosing
	s := *w.feed.Session
	ctx, cancel := context.WithTimeout(context.Background(), max(0, w.farewell.at+s.TTL-BootTime()))
	w.farewell.cancel = cancel
	died := w.farewell.at
	go func() {
		defer cancel()
		tries, err := closeUntil(ctx, s)
		if err != nil {
			w.note(slog.LevelError, "gave up closing the dead owner's session: it must run out", "tries", fmt.Sprint(tries), "error", err.Error())
			w.signals.closed.Store(2)
		} else {
			w.note(slog.LevelInfo, "closed the dead owner's session", "tries", fmt.Sprint(tries), "after", (BootTime() - died).Round(time.Microsecond).String())
			w.signals.closed.Store(1)
		}
		w.rouse()
	}()
}

// leaveFolder lets a new start of the node have the folder: no run is left.
func (w *warden) leaveFolder() {
	if w.folder == nil || !w.journal.close() {
		return // a disk that hangs: the lock goes with this process
	}
	w.folder.close()
	w.folder = nil
}
