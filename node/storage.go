package node

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// store is raft's log and stable store, on a bolt file and the journal before it. Raft panics, and so
// kills the process that embeds it, when a term can't be saved or an entry
// can't be read; here such a fault ends the goroutine that met it and stops
// the node instead. The first fault is final: after it nothing is written.
type store struct {
	bolt  *raftboltdb.BoltStore
	disk  *logDisk
	seams *Seams
	fatal func(error) // must not block

	writer logWriter
	raft   atomic.Pointer[raft.Raft] // nil while raft doesn't run

	closed atomic.Bool

	mu  sync.Mutex
	err error
}

const (
	journalName     = "journal"
	storeCloseLimit = 3 * time.Second
)

var (
	_ raft.LogStore    = (*store)(nil)
	_ raft.StableStore = (*store)(nil)
)

// openStore opens or makes the file. mustExist says that the node has state, so
// that an empty file is a loss and not a beginning.
func openStore(f *folder, mustExist bool, seams *Seams, fatal func(error)) (s *store, err error) {
	damaged := func(format string, args ...any) error {
		return &folderError{dir: f.dir, kind: ErrFolderDamaged, text: fmt.Sprintf(format, args...)}
	}
	path := f.path(raftFile)
	if err := checkBolt(path); err != nil {
		// A first start that was cut off may have left an empty file.
		if none := errors.Is(err, os.ErrNotExist) || errors.Is(err, errEmpty); !none || mustExist {
			return nil, damaged("%s: %v; this node's log is lost: remove the folder and join again as a new node", raftFile, err)
		}
	}
	defer func() {
		if r := recover(); r != nil {
			s, err = nil, damaged("%s: %v", raftFile, r)
		}
	}()
	bolt, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{
		Timeout:         time.Second,
		FreelistType:    bbolt.FreelistMapType,
		NoFreelistSync:  true,
		InitialMmapSize: 64 << 20,
	}})
	if err != nil {
		return nil, damaged("%s can't be opened: %v", raftFile, err)
	}
	s = &store{bolt: bolt, seams: seams, fatal: fatal}
	s.writer.write = s.append
	j, logs, err := openJournalOf(f, bolt, seams)
	if err == nil {
		var to boltLog = bolt
		if seams.Step != nil {
			to = watchedBolt{bolt, seams}
		}
		s.disk, err = newLogDisk(to, j, logs, func(err error) { _ = s.fail("move entries from the journal", err) })
	}
	if err != nil {
		return nil, errors.Join(damaged("%s: %v; the newest entries of this node's log are lost: remove the folder and join again as a new node",
			journalName, err), bolt.Close())
	}
	return s, nil
}

// openJournalOf opens the journal that belongs to bolt. A bolt file that has none
// gets one: only then does it name it.
func openJournalOf(f *folder, bolt *raftboltdb.BoltStore, seams *Seams) (*journal, []*raft.Log, error) {
	var id journalID
	path := f.path(journalName)
	key := []byte("miw/journal")
	b, err := bolt.Get(key)
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil, nil, err
	}
	none := err != nil
	flags := os.O_RDWR
	if none {
		flags |= os.O_CREATE | os.O_TRUNC
		_, _ = rand.Read(id[:])
	} else if len(b) != len(id) {
		return nil, nil, fmt.Errorf("%s names it by %d bytes", raftFile, len(b))
	} else {
		id = journalID(b)
	}
	osFile, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, nil, err
	}
	var file journalFile = dataFile{osFile}
	if none {
		err = layOut(file, id)
		if err == nil {
			err = syncDir(f.dir)
		}
		if err == nil {
			err = bolt.Set(key, id[:])
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	if seams.Step != nil {
		file = &watchedJournal{journalFile: file, seams: seams}
	}
	j, logs, err := openJournal(file, id)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return j, logs, nil
}

// close closes the files. A write that hangs in the kernel holds it up; after
// the limit the file counts as in use.
func (s *store) close() error {
	done := make(chan error, 1)
	go func() {
		s.writer.close()
		done <- errors.Join(s.disk.close(), s.bolt.Close())
	}()
	limit := time.NewTimer(storeCloseLimit)
	defer limit.Stop()
	select {
	case err := <-done:
		s.closed.Store(true)
		return err
	case <-limit.C:
		return fmt.Errorf("%w: a write does not end", ErrStorage)
	}
}

// failed reports the first fault, nil for none.
func (s *store) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// fail makes err, if any, the fault of the store.
func (s *store) fail(doing string, err error) error {
	if err == nil {
		return nil
	}
	s.mu.Lock()
	first := s.err == nil
	if first {
		s.err = fmt.Errorf("%w: %s: %w", ErrStorage, doing, err)
	}
	err = s.err
	s.mu.Unlock()
	if first {
		s.fatal(err)
	}
	return err
}

// write runs a write unless the store has failed before.
func (s *store) write(doing string, seam func() error, write func() error) error {
	if err := s.failed(); err != nil {
		return err
	}
	if seam != nil {
		if err := seam(); err != nil {
			return s.fail(doing, err)
		}
	}
	return s.fail(doing, write())
}

// FirstIndex implements raft.LogStore.
func (s *store) FirstIndex() (uint64, error) {
	if err := s.writer.drain(); err != nil {
		return 0, err
	}
	return s.disk.first()
}

// LastIndex implements raft.LogStore.
func (s *store) LastIndex() (uint64, error) {
	if err := s.writer.drain(); err != nil {
		return 0, err
	}
	return s.disk.last()
}

// GetLog implements raft.LogStore. Raft panics on an entry that it has stored
// and can't read, so the goroutine ends here.
func (s *store) GetLog(index uint64, log *raft.Log) error {
	if l, queued := s.writer.get(index); queued {
		*log = *l
		return nil
	}
	err := s.disk.get(index, log)
	if err == nil && log.Index != index {
		err = fmt.Errorf("entry %d is in its place", log.Index)
	}
	if err == nil || err == raft.ErrLogNotFound {
		return err
	}
	_ = s.fail(fmt.Sprintf("read log entry %d", index), err)
	runtime.Goexit()
	return err
}

// StoreLog implements raft.LogStore.
func (s *store) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore. A leader's entries may be queued only,
// see logWriter.
func (s *store) StoreLogs(logs []*raft.Log) error {
	if s.seams.Dispatch != nil {
		s.seams.Dispatch()
	}
	// Raft calls this on the goroutine that changes its state and configuration.
	if r := s.raft.Load(); r != nil && mayQueue(r.State(), r.GetConfiguration().Configuration().Servers, logs) {
		if queued, err := s.writer.enqueue(logs); queued || err != nil {
			return err
		}
	}
	if err := s.writer.drain(); err != nil {
		return err
	}
	return s.append(logs)
}

// append writes entries to the log, durably.
func (s *store) append(logs []*raft.Log) error {
	var seam func() error
	if s.seams.LogStore != nil {
		seam = func() error { return s.seams.LogStore(len(logs)) }
	}
	return s.write("append to the log", seam, func() error { return s.disk.append(logs) })
}

// DeleteRange implements raft.LogStore.
func (s *store) DeleteRange(from, to uint64) error {
	if err := s.writer.drain(); err != nil {
		return err
	}
	return s.write("cut the log", nil, func() error {
		return s.seams.around(StepLogCut, StepLogWasCut, func() error { return s.disk.deleteRange(from, to) })
	})
}

// Set implements raft.StableStore.
func (s *store) Set(key, val []byte) error {
	if err := s.writer.drain(); err != nil {
		return err
	}
	return s.save(key, func() error { return s.bolt.Set(key, val) })
}

// Get implements raft.StableStore.
func (s *store) Get(key []byte) ([]byte, error) { return s.bolt.Get(key) }

// SetUint64 implements raft.StableStore. Raft's answer to an error here is a
// panic, so the goroutine ends instead: it has promised nothing yet.
func (s *store) SetUint64(key []byte, val uint64) error {
	err := s.writer.drain()
	if err == nil {
		err = s.save(key, func() error { return s.bolt.SetUint64(key, val) })
	}
	if err != nil {
		runtime.Goexit()
	}
	return nil
}

// GetUint64 implements raft.StableStore.
func (s *store) GetUint64(key []byte) (uint64, error) { return s.bolt.GetUint64(key) }

// save writes term or vote.
func (s *store) save(key []byte, write func() error) error {
	return s.write("save "+string(key), nil, func() error {
		before, after := stableSteps(key)
		return s.seams.around(before, after, write)
	})
}
