//go:build linux

package guard

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runVariable is the environment variable by which a command and its descendants are found: a list, separated by commas, of
// mark.run, outermost first, so that a guard inside a guard's command does not hide what it starts from the outer one.
const runVariable = "MIW_RUN"

// proc is what /proc says of a process. PID and start together never name two processes of one pid namespace.
type proc struct {
	pid, ppid, pgid, sid int
	start                uint64 // ticks since boot
	state                byte
	dying                bool // it runs no code any more, and may have lost its environment
}

// exitingFlag is PF_EXITING of the kernel, among the flags of a process.
const exitingFlag = 0x4

var errBadStat = errors.New("unreadable /proc/PID/stat")

// readProc reads one process. A process that is gone gives an error that matches os.ErrNotExist or ESRCH.
func readProc(pid int) (proc, error) {
	var buf [1024]byte
	return readStat(pid, buf[:])
}

func readStat(pid int, buf []byte) (proc, error) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return proc{}, err
	}
	n, err := unix.Read(fd, buf)
	unix.Close(fd)
	if err != nil {
		return proc{}, err
	}
	return parseStat(buf[:n])
}

// parseStat reads the fields of interest. The command's name may hold anything, so it counts from the last parenthesis.
func parseStat(b []byte) (proc, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return proc{}, errBadStat
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	if err != nil {
		return proc{}, errBadStat
	}
	f := bytes.Fields(b[end+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return proc{}, errBadStat
	}
	p := proc{pid: pid, state: f[0][0]}
	for i, to := range []*int{&p.ppid, &p.pgid, &p.sid} {
		if *to, err = strconv.Atoi(string(f[1+i])); err != nil {
			return proc{}, errBadStat
		}
	}
	if p.start, err = strconv.ParseUint(string(f[19]), 10, 64); err != nil {
		return proc{}, errBadStat
	}
	flags, err := strconv.ParseUint(string(f[6]), 10, 64)
	if err != nil {
		return proc{}, errBadStat
	}
	p.dying = flags&exitingFlag != 0
	return p, nil
}

// table is a picture of all processes. It is not atomic: who acts on one takes another until nothing is left to do.
type table struct {
	procs    map[int]proc
	children map[int][]int
}

func readTable() (*table, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	t := &table{procs: make(map[int]proc, len(names)), children: make(map[int][]int)}
	var buf [1024]byte
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, err := readStat(pid, buf[:])
		if err != nil {
			continue // gone meanwhile
		}
		t.procs[pid] = p
		t.children[p.ppid] = append(t.children[p.ppid], pid)
	}
	return t, nil
}

// descend adds pid's descendants, not itself, to the set.
func (t *table) descend(pid int, set map[int]proc) {
	for _, c := range t.children[pid] {
		if _, seen := set[c]; !seen {
			set[c] = t.procs[c]
			t.descend(c, set)
		}
	}
}

// ended tells whether nothing of the process runs any more. A zombie has ended, unless only its first thread has.
func (p proc) ended() bool {
	if p.state != 'Z' && p.state != 'X' {
		return false
	}
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

// signal sends to exactly this process: never to another that got its number.
func (p proc) signal(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	now, err := readProc(p.pid)
	if err != nil {
		return err
	}
	if now.start != p.start {
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(fd, sig, nil, 0)
}

// gone tells whether an error of signal or readProc means that the process is no more.
func gone(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EINVAL)
}

// runsOf returns the value of MIW_RUN that the process started with; "" if it has none or can't be read.
func runsOf(pid int) []byte {
	dir := "/proc/" + strconv.Itoa(pid)
	env, err := os.ReadFile(dir + "/environ")
	if err != nil {
		return nil
	}
	if len(env) == 0 {
		// Its first thread may have ended before the others, or it has none (or is the kernel's).
		threads, err := os.ReadDir(dir + "/task")
		if err != nil || len(threads) < 2 {
			return nil
		}
		for _, t := range threads {
			if env, err = os.ReadFile(dir + "/task/" + t.Name() + "/environ"); err == nil && len(env) > 0 {
				break
			}
		}
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if rest, ok := bytes.CutPrefix(v, []byte(runVariable+"=")); ok {
			return rest
		}
	}
	return nil
}

// carries tells whether a value of MIW_RUN names a run of the mark: this one, or any if run is 0.
func carries(value []byte, mark string, run uint64) bool {
	for v := range bytes.SplitSeq(value, []byte{','}) {
		rest, ok := bytes.CutPrefix(v, []byte(mark+"."))
		if ok && (run == 0 || string(rest) == strconv.FormatUint(run, 10)) {
			return true
		}
	}
	return false
}

// withRun returns env with the run added to its MIW_RUN, and without what only processes of the guard itself may have.
func withRun(env []string, mark string, run uint64) []string {
	value := mark + "." + strconv.FormatUint(run, 10)
	out := make([]string, 0, len(env)+1)
	for _, v := range env {
		switch name, rest, _ := bytes.Cut([]byte(v), []byte{'='}); string(name) {
		case runVariable:
			if len(rest) > 0 {
				value = string(rest) + "," + value
			}
		case roleVariable:
		default:
			out = append(out, v)
		}
	}
	return append(out, runVariable+"="+value)
}

// pidNamespace returns the inode of this process's pid namespace.
func pidNamespace() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0, fmt.Errorf("find pid namespace: %w", err)
	}
	return st.Ino, nil
}

// awaitAny waits until one of the processes has ended, or for at most d.
func awaitAny(procs []proc, d time.Duration) {
	const limit = 64
	var fds []unix.PollFd
	defer func() {
		for _, f := range fds {
			unix.Close(int(f.Fd))
		}
	}()
	for _, p := range procs[:min(len(procs), limit)] {
		fd, err := unix.PidfdOpen(p.pid, 0)
		if err != nil {
			return // one is gone
		}
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	for end := BootTime() + d; ; {
		left := end - BootTime()
		if left <= 0 {
			return
		}
		if _, err := unix.Poll(fds, int(left.Milliseconds())+1); err != unix.EINTR {
			return
		}
	}
}
