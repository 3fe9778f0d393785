package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// store is raft's log and stable store on one bolt file. Raft panics, and so
// kills the process that embeds it, when a term can't be saved or an entry
// can't be read; here such a fault ends the goroutine that met it and stops
// the node instead. The first fault is final: after it nothing is written.
type store struct {
	bolt  *raftboltdb.BoltStore
	seams *Seams
	fatal func(error) // must not block

	closed atomic.Bool

	mu  sync.Mutex
	err error
}

const storeCloseLimit = 3 * time.Second

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
	return &store{bolt: bolt, seams: seams, fatal: fatal}, nil
}

// close closes the file. A write that hangs in the kernel holds it up; after
// the limit the file counts as in use.
func (s *store) close() error {
	done := make(chan error, 1)
	go func() { done <- s.bolt.Close() }()
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
func (s *store) FirstIndex() (uint64, error) { return s.bolt.FirstIndex() }

// LastIndex implements raft.LogStore.
func (s *store) LastIndex() (uint64, error) { return s.bolt.LastIndex() }

// GetLog implements raft.LogStore. Raft panics on an entry that it has stored
// and can't read, so the goroutine ends here.
func (s *store) GetLog(index uint64, log *raft.Log) error {
	err := s.bolt.GetLog(index, log)
	if err == nil || err == raft.ErrLogNotFound {
		return err
	}
	_ = s.fail(fmt.Sprintf("read log entry %d", index), err)
	runtime.Goexit()
	return err
}

// StoreLog implements raft.LogStore.
func (s *store) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore.
func (s *store) StoreLogs(logs []*raft.Log) error {
	var seam func() error
	if s.seams.LogStore != nil {
		seam = func() error { return s.seams.LogStore(len(logs)) }
	}
	return s.write("append to the log", seam, func() error { return s.bolt.StoreLogs(logs) })
}

// DeleteRange implements raft.LogStore.
func (s *store) DeleteRange(from, to uint64) error {
	return s.write("cut the log", nil, func() error { return s.bolt.DeleteRange(from, to) })
}

// Set implements raft.StableStore.
func (s *store) Set(key, val []byte) error {
	return s.write("save "+string(key), s.stableSeam(key), func() error { return s.bolt.Set(key, val) })
}

// Get implements raft.StableStore.
func (s *store) Get(key []byte) ([]byte, error) { return s.bolt.Get(key) }

// SetUint64 implements raft.StableStore. Raft's answer to an error here is a
// panic, so the goroutine ends instead: it has promised nothing yet.
func (s *store) SetUint64(key []byte, val uint64) error {
	err := s.write("save "+string(key), s.stableSeam(key), func() error { return s.bolt.SetUint64(key, val) })
	if err != nil {
		runtime.Goexit()
	}
	return nil
}

// GetUint64 implements raft.StableStore.
func (s *store) GetUint64(key []byte) (uint64, error) { return s.bolt.GetUint64(key) }

func (s *store) stableSeam(key []byte) func() error {
	if s.seams.StableStore == nil {
		return nil
	}
	return func() error { return s.seams.StableStore(string(key)) }
}

var errEmpty = errors.New("empty")

// checkBolt holds the size of a bolt file against what its newest valid meta
// page says is in use. Bolt maps the file, and reading a page that is no
// longer there would end the process with SIGBUS.
func checkBolt(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	if st.Size() == 0 {
		return errEmpty
	}
	const (
		pageHeader = 16
		metaSize   = 64
		boltMagic  = 0xED0CDAED
	)
	le := binary.LittleEndian
	var newest, used uint64
	found := false
	for _, page := range []int64{0, 4096, 8192, 16384, 65536} { // meta page 1 lies at the page size
		b := make([]byte, metaSize)
		if _, err := f.ReadAt(b, page+pageHeader); err != nil {
			if errors.Is(err, io.EOF) {
				continue
			}
			return err
		}
		sum := fnv.New64a()
		_, _ = sum.Write(b[:metaSize-8])
		if le.Uint32(b) != boltMagic || le.Uint64(b[56:]) != sum.Sum64() {
			continue
		}
		if tx := le.Uint64(b[48:]); !found || tx >= newest {
			found, newest, used = true, tx, le.Uint64(b[40:])*uint64(le.Uint32(b[8:]))
		}
	}
	if !found {
		return errors.New("no valid page of meta data: damaged or cut short")
	}
	if uint64(st.Size()) < used {
		return fmt.Errorf("cut short: %d bytes of %d", st.Size(), used)
	}
	return nil
}
