//go:build linux

package guard

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sweep looks after the runs that are ending: what the command left behind is told to go, then made to; a run of which
// nothing is left is reported. It also reaps orphans.
func (w *warden) sweep(now time.Duration) {
	w.reapOrphans()
	ending := false
	for _, r := range w.runs {
		ending = ending || r.exited || r.killed
	}
	if !ending {
		w.retryAt = 0
		return
	}
	t, err := readTable()
	if err != nil {
		w.note(slog.LevelError, "can't see the commands' processes", "error", err.Error())
		w.again(now)
		return
	}
	w.attribute(t)
	waiting := false
	for _, r := range w.runs {
		if !r.exited && !r.killed {
			continue
		}
		members := t.members(r)
		if r.exited && len(members) == 0 {
			w.finish(r)
			continue
		}
		if !r.told {
			// The command ended by itself and left others.
			w.stop(r, r.reason, now+r.budget)
			waiting = waiting || r.killed
			continue
		}
		if r.killed {
			unix.Kill(-r.pid, unix.SIGKILL)
			r.tell(members, syscall.SIGKILL)
			waiting = true
		}
	}
	if waiting {
		w.again(now)
	} else {
		w.retryAt = 0
	}
}

// again asks for another look soon, later each time.
func (w *warden) again(now time.Duration) {
	w.retryWait = min(max(w.retryWait*2, retryFirst), retryLast)
	w.retryAt = now + w.retryWait
}

// attribute finds out to which runs the orphans belong, which the kernel has handed to the guard. Their parent is gone, so
// what remains is their group, the run in their first environment, and that they were seen among a run's descendants before.
// What tells nothing is taken for everybody's that it could be of.
func (w *warden) attribute(t *table) {
	leaders := map[int]bool{}
	for _, r := range w.runs {
		leaders[r.pid] = true
		for pid, start := range r.strays {
			if t.procs[pid].start != start {
				delete(r.strays, pid)
			}
		}
		set := map[int]proc{}
		if !r.exited {
			t.descend(r.pid, set)
		}
		for pid, p := range t.procs {
			if p.pgid == r.pid && pid != r.pid {
				set[pid] = p
				t.descend(pid, set)
			}
		}
		r.remember(set)
	}
	for _, pid := range t.children[os.Getpid()] {
		if leaders[pid] || pid == w.watch.pid || w.known(pid) {
			continue
		}
		p, value, owned := t.procs[pid], runsOf(pid), false
		for _, r := range w.runs {
			if carries(value, w.mark, r.id) {
				owned = true
				r.strays[pid] = p.start
			}
		}
		if owned {
			continue
		}
		for _, r := range w.runs {
			if p.start >= r.start && (r.exited || r.told) {
				r.strays[pid] = p.start
			}
		}
	}
	for _, r := range w.runs {
		set := map[int]proc{}
		for pid := range r.strays {
			t.descend(pid, set)
		}
		r.remember(set)
	}
}

// remember keeps which processes were seen to be the run's.
func (r *run) remember(set map[int]proc) {
	for pid, p := range set {
		if pid != r.pid {
			r.strays[pid] = p.start
		}
	}
}

// known tells whether a process was seen to be some run's.
func (w *warden) known(pid int) bool {
	for _, r := range w.runs {
		if _, ok := r.strays[pid]; ok {
			return true
		}
	}
	return false
}

// members returns what of the run lives, but for the command itself.
func (t *table) members(r *run) (all []proc) {
	for pid, start := range r.strays {
		if p, ok := t.procs[pid]; ok && p.start == start && !p.ended() {
			all = append(all, p)
		}
	}
	return all
}

// tell sends a signal to the members that are outside the group; the group has been sent it as a whole.
func (r *run) tell(members []proc, sig syscall.Signal) {
	for _, p := range members {
		if p.pgid != r.pid {
			p.signal(sig)
		}
	}
}

// terminate asks all of a run to end. What is stopped is continued, or it could not.
func (w *warden) terminate(r *run) {
	unix.Kill(-r.pid, unix.SIGTERM)
	unix.Kill(-r.pid, unix.SIGCONT)
	t, err := readTable()
	if err != nil {
		return // the group has got it; KILL will look again
	}
	w.attribute(t)
	members := t.members(r)
	r.tell(members, syscall.SIGTERM)
	r.tell(members, syscall.SIGCONT)
}

// reapOrphans clears zombies that the kernel has handed to the guard, other than the commands themselves, and watchers of before.
func (w *warden) reapOrphans() {
	leaders := map[int]bool{}
	for _, r := range w.runs {
		leaders[r.pid] = true
	}
	for _, pid := range ownChildren() {
		if !leaders[pid] && pid != w.watch.pid {
			unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// ownChildren lists the direct children of this process, zombies too.
func ownChildren() (pids []int) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if errors.Is(err, os.ErrNotExist) {
			// A kernel without these files, or a thread that ended.
			if t, err := readTable(); err == nil {
				return t.children[os.Getpid()]
			}
			return nil
		}
		for f := range bytes.FieldsSeq(b) {
			if pid, err := strconv.Atoi(string(f)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// nobodyLeft kills whatever is still below the guard, and tells whether there was nothing: the kernel knows no child of it, so
// no descendant lives either, since orphans become its children. The watcher is the last to go: it is killed when no other child is
// seen, which may err, and what counts is still that the kernel then knows none.
func (w *warden) nobodyLeft(now time.Duration) bool {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err == unix.ECHILD {
			return true
		}
		if pid <= 0 {
			break
		}
		if pid == w.watch.pid {
			w.watch.pid = 0
		}
	}
	if w.watch.pid > 0 && !slices.ContainsFunc(ownChildren(), func(pid int) bool { return pid != w.watch.pid }) {
		unix.Kill(w.watch.pid, unix.SIGKILL)
		w.again(now)
		return false
	}
	t, err := readTable()
	if err != nil {
		w.note(slog.LevelError, "can't see the commands' processes", "error", err.Error())
		w.again(now)
		return false
	}
	all := map[int]proc{}
	t.descend(os.Getpid(), all)
	delete(all, w.watch.pid)
	for _, p := range all {
		if !p.ended() {
			p.signal(syscall.SIGKILL)
		}
	}
	w.again(now)
	return false
}
