package node

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

var damages = flag.Int("damages", 400, "how many damaged stores TestBoltFile_Damaged opens")

// memoryDir is a folder on a file system in memory if there is one.
func memoryDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "miw-boltfile-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func openBolt(t testing.TB, path string) *raftboltdb.BoltStore {
	t.Helper()
	bolt, err := raftboltdb.New(raftboltdb.Options{Path: path, NoSync: true, BoltOptions: &bbolt.Options{
		NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, Timeout: time.Second,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return bolt
}

// entries are logs from..to-1 with random content.
func entries(rng *rand.Rand, from, to uint64, size func() int) []*raft.Log {
	var logs []*raft.Log
	for i := from; i < to; i++ {
		data := make([]byte, size())
		for j := 0; j < len(data); j += 64 {
			data[j] = byte(rng.Uint32())
		}
		logs = append(logs, &raft.Log{Index: i, Term: 1 + i/1000, Type: raft.LogCommand, Data: data})
	}
	return logs
}

// What bolt itself writes is sound, whatever it was told to write.
func TestBoltFile_Sound(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	for seed := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(seed, 2))
		path := filepath.Join(memoryDir(t), raftFile)
		bolt := openBolt(t, path)
		first, next := uint64(1), uint64(1)
		sizes := []func() int{
			func() int { return rng.IntN(100) }, func() int { return 200 }, func() int { return rng.IntN(10_000) }, func() int { return rng.IntN(100_000) },
		}[:2+rng.IntN(3)]
		for range 60 {
			var err error
			switch rng.IntN(8) {
			case 0:
				err = bolt.SetUint64([]byte("CurrentTerm"), rng.Uint64())
			case 1:
				err = errors.Join(bolt.SetUint64([]byte("LastVoteTerm"), rng.Uint64()), bolt.Set([]byte("LastVoteCand"), make([]byte, rng.IntN(100))))
			case 2: // what a snapshot leaves over
				to := first + rng.Uint64N(next-first+1)
				err = bolt.DeleteRange(first, to)
				first = min(next, to+1)
			case 3: // a follower's log is cut
				from := next - rng.Uint64N(next-first+1)
				err = bolt.DeleteRange(from, next)
				next = from
			case 4:
				if err = bolt.Close(); err == nil {
					bolt = openBolt(t, path)
				}
			case 5: // a leader's snapshot leaves a gap
				next += rng.Uint64N(1000)
			default:
				to := next + rng.Uint64N(200)
				err = bolt.StoreLogs(entries(rng, next, to, sizes[rng.IntN(len(sizes))]))
				next = to
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := checkBolt(path); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		if err := bolt.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// soundStores are raft's stores of several shapes, by name.
func soundStores(t testing.TB) map[string]*folder {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 7))
	base := memoryDir(t)
	stores := map[string]*folder{}
	for name, fill := range map[string]func(s *store) error{
		"empty": func(*store) error { return nil },
		"small": func(s *store) error { return s.StoreLogs(entries(rng, 1, 20, func() int { return 30 })) },
		"large values": func(s *store) error {
			return errors.Join(s.StoreLogs(entries(rng, 1, 40, func() int { return rng.IntN(20_000) })), s.StoreLogs(entries(rng, 40, 42, func() int { return 700_000 })))
		},
		"three levels": func(s *store) error {
			for i := uint64(1); i < 6000; i += 500 {
				if err := s.StoreLogs(entries(rng, i, i+500, func() int { return 300 })); err != nil {
					return err
				}
			}
			return s.DeleteRange(1, 800)
		},
	} {
		dir := filepath.Join(base, strings.ReplaceAll(name, " ", "-"))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		f := &folder{dir: dir}
		s, err := openStore(f, false, &Seams{}, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.SetUint64([]byte("CurrentTerm"), 7), s.SetUint64([]byte("LastVoteTerm"), 7), s.Set([]byte("LastVoteCand"), []byte("node-1")), fill(s)); err != nil {
			t.Fatal(err)
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
		cutFree(t, f.path(raftFile))
		stores[name] = f
	}
	return stores
}

// cutFree takes away what bolt has laid out beyond the last page: nothing there
// can be damaged.
func cutFree(t testing.TB, path string) {
	t.Helper()
	b := walkBolt(t, path)
	if err := os.Truncate(path, int64(b.pages)*b.pageSize); err != nil {
		t.Fatal(err)
	}
}

// walkBolt is the walk over a sound file.
func walkBolt(t testing.TB, path string) *boltFile {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := &boltFile{file: f, size: st.Size()}
	if err := b.check(); err != nil {
		t.Fatal(err)
	}
	return b
}

// A damaged store is opened or refused with a clear error; it never ends the
// process. What is opened can be read and written.
func TestBoltFile_Damaged(t *testing.T) {
	rounds := *damages
	if testing.Short() {
		rounds /= 4
	}
	stores := soundStores(t)
	names := slices.Sorted(maps.Keys(stores))
	base := memoryDir(t)
	refused := 0
	for seed := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(seed, 3))
		name := names[seed%uint64(len(names))]
		// The folder stays if the process ends; it is named after what did it.
		f := &folder{dir: filepath.Join(base, fmt.Sprintf("seed-%d", seed))}
		if err := os.CopyFS(f.dir, os.DirFS(stores[name].dir)); err != nil {
			t.Fatal(err)
		}
		pages := []int{0, 1}
		for id, met := range walkBolt(t, f.path(raftFile)).met {
			if met {
				pages = append(pages, id)
			}
		}
		what := damage(t, rng, f.path(raftFile), pages)
		if rng.IntN(8) == 0 {
			what += "; journal: " + damage(t, rng, f.path(journalName), []int{0, 1, 2, 3})
		}
		err := use(f)
		if errors.Is(err, ErrFolderDamaged) {
			refused++
			err = nil
		}
		if err != nil {
			t.Errorf("seed %d, store %s, %s: %v", seed, name, what, err)
		}
		if err := os.RemoveAll(f.dir); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d damaged stores were refused", refused, rounds)
	if refused < rounds/4 {
		t.Errorf("%d of %d damaged stores were refused: the damages do no harm", refused, rounds)
	}
}

// use opens a store, reads and writes it, and has bolt check what came of it.
func use(f *folder) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	s, err := openStore(f, true, &Seams{}, func(error) {})
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { // which ends early where raft's would
		defer close(done)
		first, _ := s.FirstIndex()
		last, _ := s.LastIndex()
		_ = s.StoreLogs(entries(rand.New(rand.NewPCG(1, 1)), last+1, last+30, func() int { return 2000 }))
		_ = s.DeleteRange(first, first+20)
		_, _ = s.GetUint64([]byte("CurrentTerm"))
		_, _ = s.Get([]byte("LastVoteCand"))
		_ = s.SetUint64([]byte("LastVoteTerm"), 8)
		for i := first; i <= min(last, first+3000); i++ {
			_ = s.GetLog(i, &raft.Log{})
		}
	}()
	<-done
	if err := s.close(); err != nil {
		return err
	}
	return checked(f.path(raftFile))
}

// checked is bolt's own opinion.
func checked(path string) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		var all []error
		for err := range tx.Check() {
			all = append(all, err)
		}
		return errors.Join(all...)
	})
}

// An entry that is another one, or none, is a fault of the store and no answer.
func TestStore_WrongEntry(t *testing.T) {
	for name, value := range map[string]func(logs *bbolt.Bucket, key []byte) []byte{
		"another":   func(logs *bbolt.Bucket, key []byte) []byte { return logs.Get(append(key[:7:7], key[7]-1)) },
		"cut short": func(logs *bbolt.Bucket, key []byte) []byte { v := logs.Get(key); return v[:len(v)/2] },
		"garbage":   func(logs *bbolt.Bucket, key []byte) []byte { return []byte(strings.Repeat("\xdd", len(logs.Get(key)))) },
	} {
		f := &folder{dir: memoryDir(t)}
		var fault error
		s, err := openStore(f, false, &Seams{}, func(err error) { fault = err })
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.StoreLogs(entries(rand.New(rand.NewPCG(1, 1)), 1, 10, func() int { return 50 })), s.close()); err != nil {
			t.Fatal(err)
		}
		if s, err = openStore(f, true, &Seams{}, func(err error) { fault = err }); err != nil { // what is in the journal goes to bolt
			t.Fatal(err)
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
		db, err := bbolt.Open(f.path(raftFile), 0o600, &bbolt.Options{NoFreelistSync: true})
		if err != nil {
			t.Fatal(err)
		}
		key := binary.BigEndian.AppendUint64(nil, 5)
		if err := errors.Join(db.Update(func(tx *bbolt.Tx) error {
			logs := tx.Bucket([]byte("logs"))
			return logs.Put(key, slices.Clone(value(logs, key)))
		}), db.Close()); err != nil {
			t.Fatal(err)
		}
		if s, err = openStore(f, true, &Seams{}, func(err error) { fault = err }); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		answered, done := false, make(chan struct{})
		go func() { // which ends without an answer
			defer close(done)
			_ = s.GetLog(5, &raft.Log{})
			answered = true
		}()
		<-done
		if answered || !errors.Is(fault, ErrStorage) || !strings.Contains(fault.Error(), "read log entry 5") {
			t.Errorf("%s: answered %t, fault %v", name, answered, fault)
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// damage harms some of the pages of a file and says how.
func damage(t *testing.T, rng *rand.Rand, path string, pages []int) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const page = 4096
	le := binary.LittleEndian
	cut := len(b)
	at := func() []byte { return b[page*pages[rng.IntN(len(pages))]:][:page] }
	what := ""
	for range 1 + rng.IntN(3) {
		switch rng.IntN(10) {
		case 0:
			p := at()
			clear(p)
			what += "zeros, "
		case 1:
			p := at()
			for i := range p {
				p[i] = byte(rng.Uint32())
			}
			what += "garbage, "
		case 2:
			copy(at(), at())
			what += "a page twice, "
		case 3:
			p := at()
			clear(p[512*rng.IntN(8):][:512])
			what += "a sector of zeros, "
		case 4:
			cut = rng.IntN(len(b) + 1)
			what += "cut short, "
		case 5: // heads of pages and of their elements
			p := at()
			p[rng.IntN(200)] ^= 1 << rng.IntN(8)
			what += "a bit of a head, "
		case 6:
			p := at()
			le.PutUint16(p[8+2*rng.IntN(4):], uint16(rng.Uint32()))
			what += "a head, "
		case 7: // as if bolt had written it
			m := b[page*rng.IntN(2):][16:80]
			field := []int{16, 32, 40, 48}[rng.IntN(4)]
			le.PutUint64(m[field:], le.Uint64(m[field:])+uint64(rng.IntN(7))-3)
			sum := fnv.New64a()
			_, _ = sum.Write(m[:56])
			le.PutUint64(m[56:], sum.Sum64())
			what += "meta data with a new checksum, "
		case 8:
			p := at()
			copy(p[16:], p[16+8*rng.IntN(16):])
			what += "elements moved, "
		default:
			at()[rng.IntN(page)] ^= 1 << rng.IntN(8)
			what += "a bit, "
		}
	}
	if err := os.WriteFile(path, b[:cut], 0o600); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(what, ", ")
}
