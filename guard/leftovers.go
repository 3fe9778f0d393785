//go:build linux

package guard

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// exitGrace is how long the owner of a guard may still be seen although its folder could be locked.
const exitGrace = 500 * time.Millisecond

// own remembers what Start found in a folder whose guard is now this process's own: by the folder's real path.
var own = struct {
	sync.Mutex
	left map[string][]Leftover
}{left: map[string][]Leftover{}}

// Leftovers ends what an earlier start left behind in the folder: it waits for an orphaned guard to finish (and kills one that does
// not), kills the recorded process groups and every process that carries the folder's mark, and waits until they are gone, all within
// the timeout. It returns what it could not end or can't prove to be gone: an empty list is proof that no run of the folder is left.
// ErrFolderInUse says that the guard belongs to a process that lives. Where this process has a guard for the folder itself, it
// returns what Start found before that.
//
// The caller must hold the data folder's own lock.
func Leftovers(dir string, timeout time.Duration) ([]Leftover, error) {
	end := BootTime() + timeout
	d, err := openFolder(dir, false)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // no guard ever stood here
	}
	if err != nil {
		return nil, err
	}
	defer d.close()
	ns, err := pidNamespace()
	if err != nil {
		return nil, err
	}
	if left, err := awaitLock(d, ns, end); left != nil || err != nil {
		return left, err
	}
	boot, err := kernelBoot()
	if err != nil {
		return nil, err
	}
	var left []Leftover
	records, err := readRuns(dir, d.mark, boot)
	if errors.Is(err, errRunsDamaged) {
		// What it named can't be known. The mark still finds what kept its environment, but that is no proof.
		left = append(left, Leftover{Reason: err.Error()})
	} else if err != nil {
		return nil, err
	}
	keep, foreign := sortRecords(records, ns, BootTime())
	for _, r := range foreign {
		left = append(left, Leftover{PGID: r.PGID, Key: r.Key, Token: r.Token, Reason: "ran in another pid namespace, out of sight"})
	}
	ended, err := endRuns(trail{records: keep, mark: d.mark}, end)
	if err != nil {
		return nil, err
	}
	left = append(left, ended...)
	kept := append(foreign, stillLeft(keep, ended)...)
	for i := range kept {
		kept[i].Run = 0 // numbers of runs are those of one guard
	}
	f, err := replaceRuns(dir, encodeRuns(runsHeader{runsVersion, d.mark, boot}, kept))
	if err != nil {
		return nil, err
	}
	f.Close()
	return left, nil
}

// awaitLock locks the folder, for which it waits out, or ends, a guard whose owner is dead.
func awaitLock(d *folder, ns uint64, end time.Duration) ([]Leftover, error) {
	began := BootTime()
	patience := began + (end-began)/2
	for killed := false; ; {
		err := d.tryLock()
		if !errors.Is(err, ErrFolderInUse) {
			return nil, err
		}
		h := d.holder()
		switch now := BootTime(); {
		case h.PID == 0: // between locking and writing its name
		case h.Namespace == ns && h.Owner == os.Getpid() && alive(h.Owner, h.OwnerStart):
			own.Lock()
			left := slices.Clone(own.left[realPath(d.dir)])
			own.Unlock()
			if left == nil {
				left = []Leftover{}
			}
			return left, nil
		case h.Namespace == ns && alive(h.Owner, h.OwnerStart):
			// A process that exits gives up its locks a moment before it counts as gone.
			if now < began+exitGrace {
				break
			}
			return nil, fmt.Errorf("%w: process %d of node process %d", ErrFolderInUse, h.PID, h.Owner)
		case h.Namespace == ns && !killed && now >= patience:
			killed = proc{pid: h.PID, start: h.Start}.signal(syscall.SIGKILL) == nil
		case now >= end && h.Namespace != ns:
			return []Leftover{{Reason: "a guard of another pid namespace has not finished"}}, nil
		case now >= end:
			return []Leftover{{PID: h.PID, Reason: "an earlier guard has not finished"}}, nil
		}
		pause(min(5*time.Millisecond, max(0, end-BootTime())))
	}
}

// pause waits for a moment where the kernel offers nothing to wait on.
func pause(d time.Duration) {
	t := time.NewTimer(d)
	<-t.C
}

// sortRecords parts the records into those of this pid namespace and those of others. The latter get the time when they were
// first seen to be out of sight, and are dropped when no session of their time can be left.
func sortRecords(records []record, ns uint64, now time.Duration) (mine, foreign []record) {
	for _, r := range records {
		switch {
		case r.Namespace == ns:
			mine = append(mine, r)
		case r.Unseen == 0:
			r.Unseen = now
			foreign = append(foreign, r)
		case now-r.Unseen <= foreignLife:
			foreign = append(foreign, r)
		}
	}
	return mine, foreign
}

// stillLeft returns the records that a leftover speaks of.
func stillLeft(records []record, left []Leftover) (kept []record) {
	for _, r := range records {
		if slices.ContainsFunc(left, func(l Leftover) bool { return l.PGID == r.PGID }) {
			kept = append(kept, r)
		}
	}
	return kept
}

// trail is by what the processes of runs are found.
type trail struct {
	records []record
	mark    string
	runs    []uint64      // those of the mark that are meant; nil is all
	known   map[int]found // by PID: processes that were seen to be meant; may be nil
}

// marks tells whether a value of MIW_RUN names a run that is meant.
func (l trail) marks(value []byte) bool {
	if l.runs == nil {
		return carries(value, l.mark, 0)
	}
	return slices.ContainsFunc(l.runs, func(run uint64) bool { return carries(value, l.mark, run) })
}

// dyingPatience is for how long the end of processes is waited for that may be meant. A killed process needs milliseconds; one
// of somebody else's that can't end, as on a disk that hangs, must not be waited for long.
const dyingPatience = time.Second

// endRuns kills the recorded groups and whatever carries the mark, again and again until nothing of them is left or the
// time is over. It returns what is left then.
func endRuns(l trail, end time.Duration) ([]Leftover, error) {
	known := map[int]found{}
	maps.Copy(known, l.known)
	var dying map[int]proc // by PID: whose they are can't be told any more; nil before the first look
	patience := BootTime() + dyingPatience
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		t, err := readTable()
		if err != nil {
			return nil, err
		}
		for _, f := range t.findRuns(l) {
			if k, ok := known[f.proc.pid]; !ok || k.proc.start != f.proc.start {
				known[f.proc.pid] = f
			}
		}
		// A process that is dying loses its environment before it is gone, so who was found once is watched to the end, and
		// so is, for a while, who somebody else has killed before it could be found. Whoever had lost it when it was looked
		// for is dying in a picture that is taken after that.
		last := t
		if dying == nil || len(known) > 0 {
			if last, err = readTable(); err != nil {
				return nil, err
			}
			if dying == nil {
				dying = make(map[int]proc)
			}
			for pid, p := range last.procs {
				if p.dying && pid != os.Getpid() {
					dying[pid] = p
				}
			}
		}
		for pid, f := range known {
			if now, ok := t.procs[pid]; !ok || now.start != f.proc.start || now.ended() {
				unix.Wait4(pid, nil, unix.WNOHANG, nil) // the first process of a container inherits it
				delete(known, pid)
			}
		}
		for pid, p := range dying {
			if now, ok := last.procs[pid]; !ok || now.start != p.start || now.ended() {
				delete(dying, pid)
			}
		}
		if len(known) == 0 {
			if now := BootTime(); len(dying) > 0 && now < min(patience, end) {
				awaitAny(slices.Collect(maps.Values(dying)), min(wait, patience-now))
				continue
			}
			return nil, nil
		}
		var left []Leftover
		var procs []proc
		for _, f := range known {
			one := Leftover{PID: f.proc.pid, PGID: f.proc.pgid, Key: f.record.Key, Token: f.record.Token, Reason: "does not end"}
			if f.proc.pid == os.Getpid() {
				one.Reason = "is this process itself, started by a command of an earlier guard"
				left = append(left, one)
				continue
			}
			switch err := f.proc.signal(syscall.SIGKILL); {
			case err == nil:
				procs = append(procs, f.proc)
			case gone(err):
				continue
			default:
				one.Reason = fmt.Sprintf("can't be killed: %v", err)
			}
			left = append(left, one)
		}
		if len(left) == 0 {
			continue // all went between the picture and the signal: take another picture
		}
		now := BootTime()
		if now >= end {
			return left, nil
		}
		awaitAny(procs, min(wait, end-now))
	}
}

// found is a process of an earlier run, with the record that led to it, if one did.
type found struct {
	proc   proc
	record record
}

// findRuns returns the processes that live and belong to a recorded group or carry the mark, and their descendants.
func (t *table) findRuns(l trail) (all []found) {
	self := os.Getpid()
	seen := map[int]bool{}
	var add func(p proc, r record)
	add = func(p proc, r record) {
		if seen[p.pid] {
			return
		}
		seen[p.pid] = true
		if !p.ended() {
			all = append(all, found{p, r})
		}
		if p.pid == self {
			return
		}
		for _, c := range t.children[p.pid] {
			if c != self {
				add(t.procs[c], record{})
			}
		}
	}
	for _, r := range l.records {
		if leader, ok := t.procs[r.PGID]; ok && leader.start != r.Start {
			continue // the number is another process's now, so nobody of the group is left to hold it
		}
		for _, p := range t.procs {
			if p.pgid == r.PGID && p.sid == r.SID {
				add(p, r)
			}
		}
	}
	for _, p := range t.procs {
		if p.pid != self && !seen[p.pid] && l.marks(runsOf(p.pid)) {
			add(p, record{})
		}
	}
	return all
}

// realPath is the folder's one name.
func realPath(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return dir
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real
	}
	return abs
}
