//go:build linux

package guard

import (
	"os"
	"slices"
	"sync"
)

// compactAt is the size of the runs file above which it is written anew.
const compactAt = 256 << 10

// journal writes the runs file on a goroutine of its own, so that a disk that hangs holds up new commands but never the
// stopping of old ones. All records that wait share one sync.
type journal struct {
	dir  string
	head runsHeader
	wake func() // tells the loop that results wait

	mu      sync.Mutex
	waiting []record      // guarded by mu
	results []recorded    // guarded by mu
	busy    bool          // guarded by mu: a write is under way
	closed  bool          // guarded by mu
	work    chan struct{} // of size 1

	// Owned by the goroutine.
	f    *os.File
	size int64
	live []record
}

// recorded is the outcome of bringing a run's record to disk.
type recorded struct {
	run uint64
	err error
}

// openJournal starts a new runs file that keeps the given records of earlier starts.
func openJournal(dir string, head runsHeader, kept []record, wake func()) (*journal, error) {
	content := encodeRuns(head, kept)
	f, err := replaceRuns(dir, content)
	if err != nil {
		return nil, err
	}
	j := &journal{dir: dir, head: head, wake: wake, work: make(chan struct{}, 1), f: f, size: int64(len(content)), live: kept}
	go j.serve()
	return j, nil
}

// add asks for a record to be brought to disk. The outcome is among the results later.
func (j *journal) add(r record) { j.put(r) }

// end says that a run is over. It is not synced: a record that lives on too long names a process that is gone.
func (j *journal) end(run uint64) { j.put(record{End: run}) }

func (j *journal) put(r record) {
	j.mu.Lock()
	j.waiting = append(j.waiting, r)
	j.mu.Unlock()
	select {
	case j.work <- struct{}{}:
	default:
	}
}

// take returns the outcomes since the last call.
func (j *journal) take() []recorded {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.results
	j.results = nil
	return r
}

// close stops the writing. It reports whether no write is under way, so that the folder may be left to another guard.
func (j *journal) close() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	return !j.busy
}

// serve runs until the process ends.
func (j *journal) serve() {
	for range j.work {
		j.mu.Lock()
		batch := j.waiting
		j.waiting = nil
		j.busy = len(batch) > 0 && !j.closed
		busy := j.busy
		j.mu.Unlock()
		if !busy {
			continue
		}
		err := j.write(batch)
		j.mu.Lock()
		j.busy = false
		for _, r := range batch {
			if r.End == 0 {
				j.results = append(j.results, recorded{r.Run, err})
			}
		}
		j.mu.Unlock()
		j.wake()
	}
}

// write appends the batch, syncs it if it holds new records, and keeps the file small. If it fails, the new records of the
// batch do not count.
func (j *journal) write(batch []record) error {
	var added []record
	for _, r := range batch {
		if r.End == 0 {
			added = append(added, r)
		}
	}
	live := slices.DeleteFunc(slices.Concat(j.live, added), func(l record) bool {
		return slices.ContainsFunc(batch, func(r record) bool { return r.End != 0 && r.End == l.Run })
	})
	if err := j.store(batch, live, len(added) > 0); err != nil {
		j.live = slices.DeleteFunc(live, func(l record) bool {
			return slices.ContainsFunc(added, func(r record) bool { return r.Run == l.Run })
		})
		return err
	}
	j.live = live
	return nil
}

func (j *journal) store(batch, live []record, sync bool) error {
	if len(live) == 0 || j.size > compactAt {
		return j.rewrite(live)
	}
	b := appendRecords(nil, batch)
	_, err := j.f.WriteAt(b, j.size)
	if err == nil && sync {
		err = j.f.Sync()
	}
	if err != nil {
		j.f.Truncate(j.size)
		return err
	}
	j.size += int64(len(b))
	return nil
}

// rewrite leaves only the records that count. With none it cuts the file, which needs no sync.
func (j *journal) rewrite(live []record) error {
	content := encodeRuns(j.head, live)
	if len(live) == 0 {
		if err := j.f.Truncate(int64(len(content))); err != nil {
			return err
		}
	} else {
		f, err := replaceRuns(j.dir, content)
		if err != nil {
			return err
		}
		j.f.Close()
		j.f = f
	}
	j.size = int64(len(content))
	return nil
}
