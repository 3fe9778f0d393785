//go:build linux

package guard

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Hedge is the order of calls of the rpc closer.
func Hedge(ctx context.Context, peers []Peer, delay time.Duration, ask func(context.Context, Peer) error) error {
	return hedge(ctx, peers, delay, ask)
}

// CloseOnce calls the closer that a session asks for once.
func CloseOnce(ctx context.Context, s Session) error {
	c, err := closerOf(s)
	if err != nil {
		return err
	}
	return c(ctx, s)
}

// NoteLogger is how a guard writes when nobody takes what it has to say from it, if its owner has that logger.
func NoteLogger(l *slog.Logger, w io.Writer) *slog.Logger { return styleOf(l).logger(w) }

// Stat is what ParseStat finds.
type Stat struct {
	PID, PPID, PGID, SID int
	Start                uint64
	State                byte
}

// ParseStat parses a line of /proc/PID/stat.
func ParseStat(b []byte) (Stat, error) {
	p, err := parseStat(b)
	return Stat{p.pid, p.ppid, p.pgid, p.sid, p.start, p.state}, err
}

// ParseRuns parses a runs file and returns how many runs it says to live.
func ParseRuns(b []byte, mark, boot string) (int, error) {
	r, err := parseRuns(b, mark, boot)
	return len(r), err
}

// CutFrame tells how many bytes are left behind the first frame; -1 if there is none yet.
func CutFrame(b []byte) (int, error) {
	_, rest, ok, err := cutFrame(b)
	if !ok {
		return -1, err
	}
	return len(rest), err
}

// WithRun is how a command's environment is made.
func WithRun(env []string, mark string, run uint64) []string { return withRun(env, mark, run) }

// Carries tells whether a value of MIW_RUN names a run.
func Carries(value, mark string, run uint64) bool { return carries([]byte(value), mark, run) }

// OverdueThenFed lets a guard find, in one step, a StopAt that has passed and a feed that moves it. It returns whether the command
// was told to stop.
func OverdueThenFed(pid int) (told bool, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(pair[1])
	w := &warden{control: endpoint{fd: pair[0]}, node: -1, runs: map[uint64]*run{}, watch: watch{fd: -1, retryAt: BootTime() + time.Hour}}
	defer w.control.close()
	if w.alarm, err = newAlarm(); err != nil {
		return false, err
	}
	defer unix.Close(w.alarm.fd)
	if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return false, err
	}
	defer unix.Close(w.wake)
	now := BootTime()
	w.feed = &feedMessage{StopAt: now - 1, KillAt: now + time.Minute}
	r := &run{id: 1, pid: pid, line: shimLine{fd: -1}, began: true, strays: map[int]uint64{}}
	w.runs[1] = r
	if err := w.alarm.set(w.nextDeadline()); err != nil {
		return false, err
	}
	b, err := appendFrame(nil, message{Feed: &feedMessage{Seq: 1, StopAt: now + time.Minute, KillAt: now + time.Minute}})
	if err != nil {
		return false, err
	}
	if _, err := unix.Write(pair[1], b); err != nil {
		return false, err
	}
	w.step(w.poll())
	if r.told {
		return true, nil
	}
	// Without it, the same step tells the command to stop.
	w.feed.StopAt = now - 1
	w.feed.KillAt = now + time.Minute
	w.step(w.poll0())
	if !r.told {
		return false, unix.EINVAL
	}
	return false, nil
}

// GreetSilent greets a guard process that says nothing.
func GreetSilent(within time.Duration) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "guard"), os.NewFile(uintptr(pair[1]), "node")
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = (&link{conn: conn.(*net.UnixConn)}).greet(&initMessage{}, within)
	return err
}

func (w *warden) poll0() map[int]bool { return map[int]bool{} }
