package node

import (
	"errors"
	"sync"

	"github.com/hashicorp/raft"
)

// logDisk is the log on disk: the newest entries in the journal, from which they
// are moved to bolt many at a time. Appends come one after the other; a
// deletion may come beside them, for entries that are older.
type logDisk struct {
	bolt    boltLog
	journal *journal
	failed  func(error) // told of a move that failed; must not block

	writing sync.Mutex // held by an append and by what empties the journal
	moving  sync.Mutex // held by a move; taken after writing

	mu    sync.Mutex
	fresh []*raft.Log // in the journal, perhaps not in bolt; consecutive
	bytes int         // of their data
	busy  bool        // a move is under way or about to be
	moves sync.WaitGroup
}

// boltLog is the part of the bolt store that keeps entries.
type boltLog interface {
	FirstIndex() (uint64, error)
	LastIndex() (uint64, error)
	GetLog(index uint64, log *raft.Log) error
	StoreLogs(logs []*raft.Log) error
	DeleteRange(from, to uint64) error
}

// What is in the journal is moved to bolt when it is one of these.
const (
	moveLogs  = 256
	moveBytes = 512 << 10
)

// newLogDisk moves the entries of the journal, as they were read from it, to
// bolt. They may be there already.
func newLogDisk(bolt boltLog, j *journal, logs []*raft.Log, failed func(error)) (*logDisk, error) {
	d := &logDisk{bolt: bolt, journal: j, failed: failed, fresh: logs}
	if err := d.moveFresh(); err != nil {
		return nil, err
	}
	return d, j.reset() // even after a torn frame alone
}

// append makes logs durable.
func (d *logDisk) append(logs []*raft.Log) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.gapBefore(logs) {
		if err := d.settle(); err != nil {
			return err
		}
	}
	err := d.journal.append(logs)
	if errors.Is(err, errJournalFull) {
		if err := d.settle(); err != nil {
			return err
		}
		err = d.journal.append(logs)
	}
	if errors.Is(err, errJournalSmall) {
		if err := d.settle(); err != nil {
			return err
		}
		return d.bolt.StoreLogs(logs)
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fresh = append(d.fresh, logs...)
	for _, l := range logs {
		d.bytes += len(l.Data)
	}
	if !d.busy && (len(d.fresh) >= moveLogs || d.bytes >= moveBytes) {
		d.busy = true
		d.moves.Go(d.move)
	}
	return nil
}

// gapBefore tells whether logs don't follow on what is fresh, as after a
// snapshot from the leader.
func (d *logDisk) gapBefore(logs []*raft.Log) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(d.fresh)
	return n > 0 && len(logs) > 0 && logs[0].Index != d.fresh[n-1].Index+1
}

// move brings to bolt what is fresh now. The frames stay in the journal until
// it is emptied: the same entries twice do no harm.
func (d *logDisk) move() {
	err := d.moveFresh()
	d.mu.Lock()
	d.busy = false
	d.mu.Unlock()
	if err != nil {
		d.failed(err)
	}
}

func (d *logDisk) moveFresh() error {
	d.moving.Lock()
	defer d.moving.Unlock()
	d.mu.Lock()
	logs := d.fresh
	d.mu.Unlock()
	if len(logs) == 0 {
		return nil
	}
	if err := d.bolt.StoreLogs(logs); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fresh = append([]*raft.Log(nil), d.fresh[len(logs):]...)
	d.bytes = 0
	for _, l := range d.fresh {
		d.bytes += len(l.Data)
	}
	return nil
}

// settle brings all to bolt and then empties the journal; writing is held.
func (d *logDisk) settle() error {
	if err := d.moveFresh(); err != nil || d.journal.empty() {
		return err
	}
	return d.journal.reset()
}

// deleteRange deletes entries. The journal is emptied first, or a start would
// bring them back.
func (d *logDisk) deleteRange(from, to uint64) error {
	d.writing.Lock()
	err := d.settle()
	d.writing.Unlock()
	if err != nil {
		return err
	}
	return d.bolt.DeleteRange(from, to)
}

func (d *logDisk) get(index uint64, log *raft.Log) error {
	d.mu.Lock()
	if n := uint64(len(d.fresh)); n > 0 && index >= d.fresh[0].Index && index < d.fresh[0].Index+n {
		*log = *d.fresh[index-d.fresh[0].Index]
		d.mu.Unlock()
		return nil
	}
	d.mu.Unlock()
	return d.bolt.GetLog(index, log)
}

// first returns the oldest index, 0 if there is none.
func (d *logDisk) first() (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	first, err := d.bolt.FirstIndex()
	if err == nil && first == 0 && len(d.fresh) > 0 {
		first = d.fresh[0].Index
	}
	return first, err
}

// last returns the newest index, 0 if there is none.
func (d *logDisk) last() (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.fresh); n > 0 {
		return d.fresh[n-1].Index, nil
	}
	return d.bolt.LastIndex()
}

// close waits for a move that is under way. What is fresh stays in the journal.
func (d *logDisk) close() error {
	d.moves.Wait()
	return d.journal.file.Close()
}
