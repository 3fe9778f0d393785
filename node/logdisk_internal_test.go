package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
)

var errPower = errors.New("the power is off")

// power goes off at one of the operations of a disk.
type power struct {
	mu   sync.Mutex
	rng  *rand.Rand
	left int // operations until it goes off; negative = never
	off  bool
}

// use counts an operation. It reports whether the power is off at its end, and
// whether the operation was carried out nevertheless.
func (p *power) use() (off, done bool) {
	switch {
	case p.off:
		return true, false
	case p.left == 0:
		p.off = true
		return true, p.rng.IntN(2) == 0
	}
	p.left--
	return false, true
}

// tornFile is a file in memory that keeps of what was not synced, when the power
// goes off, any of its sectors.
type tornFile struct {
	power  *power
	synced []byte
	cached []byte
	dirty  map[int64]bool // sectors
}

const sector = 512

func newTornFile(p *power) *tornFile { return &tornFile{power: p, dirty: map[int64]bool{}} }

func (f *tornFile) ReadAt(b []byte, at int64) (int, error) {
	if at >= int64(len(f.cached)) {
		return 0, io.EOF
	}
	n := copy(b, f.cached[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *tornFile) WriteAt(b []byte, at int64) (int, error) {
	f.power.mu.Lock()
	defer f.power.mu.Unlock()
	off, done := f.power.use()
	if done {
		if more := at + int64(len(b)) - int64(len(f.cached)); more > 0 {
			f.cached = append(f.cached, make([]byte, more)...)
		}
		copy(f.cached[at:], b)
		for s := at / sector; s <= (at+int64(len(b))-1)/sector; s++ {
			f.dirty[s] = true
		}
	}
	if off {
		return 0, errPower
	}
	return len(b), nil
}

func (f *tornFile) Sync() error {
	f.power.mu.Lock()
	defer f.power.mu.Unlock()
	off, done := f.power.use()
	if done {
		f.flush(func() bool { return true })
	}
	if off {
		return errPower
	}
	return nil
}

func (f *tornFile) Close() error { return nil }

// flush keeps the sectors that keep tells to.
func (f *tornFile) flush(keep func() bool) {
	f.synced = append(f.synced, make([]byte, len(f.cached)-len(f.synced))...)
	for _, s := range slices.Sorted(maps.Keys(f.dirty)) {
		if end := min((s+1)*sector, int64(len(f.cached))); keep() {
			copy(f.synced[s*sector:end], f.cached[s*sector:end])
		}
	}
	clear(f.dirty)
}

// restart is the power coming on again.
func (f *tornFile) restart() {
	f.flush(func() bool { return f.power.rng.IntN(2) == 0 })
	f.cached = slices.Clone(f.synced)
}

// memBolt is a bolt store in memory: each call is done or not.
type memBolt struct {
	power *power
	logs  map[uint64]*raft.Log
}

func (b *memBolt) change(f func()) error {
	b.power.mu.Lock()
	defer b.power.mu.Unlock()
	off, done := b.power.use()
	if done {
		f()
	}
	if off {
		return errPower
	}
	return nil
}

func (b *memBolt) StoreLogs(logs []*raft.Log) error {
	return b.change(func() {
		for _, l := range logs {
			b.logs[l.Index] = l
		}
	})
}

func (b *memBolt) DeleteRange(from, to uint64) error {
	return b.change(func() {
		maps.DeleteFunc(b.logs, func(i uint64, _ *raft.Log) bool { return i >= from && i <= to })
	})
}

func (b *memBolt) edge(better func(a, b uint64) uint64) (uint64, error) {
	b.power.mu.Lock()
	defer b.power.mu.Unlock()
	var edge uint64
	for i := range b.logs {
		if edge == 0 {
			edge = i
		}
		edge = better(edge, i)
	}
	return edge, nil
}

func (b *memBolt) FirstIndex() (uint64, error) {
	return b.edge(func(a, b uint64) uint64 { return min(a, b) })
}

func (b *memBolt) LastIndex() (uint64, error) {
	return b.edge(func(a, b uint64) uint64 { return max(a, b) })
}

func (b *memBolt) GetLog(index uint64, log *raft.Log) error {
	b.power.mu.Lock()
	defer b.power.mu.Unlock()
	l, ok := b.logs[index]
	if !ok {
		return raft.ErrLogNotFound
	}
	*log = *l
	return nil
}

// logOf is a whole log as a map, to be compared.
func logOf(t *testing.T, d *logDisk) map[uint64]string {
	t.Helper()
	first, err := d.first()
	if err != nil {
		t.Fatal(err)
	}
	last, err := d.last()
	if err != nil {
		t.Fatal(err)
	}
	all := map[uint64]string{}
	for i := first; i <= last && i > 0; i++ {
		var l raft.Log
		switch err := d.get(i, &l); {
		case errors.Is(err, raft.ErrLogNotFound):
		case err != nil:
			t.Fatal(err)
		case l.Index != i:
			t.Fatalf("entry %d says that it is %d", i, l.Index)
		default:
			all[i] = fmt.Sprintf("%d %v %s", l.Term, l.Type, l.Data)
		}
	}
	return all
}

// TestLogDiskKeepsWhatItAcknowledged has the power go off at any operation, also
// in the middle of it: after the start everything acknowledged is there, nothing
// that was deleted comes back, and what was under way is there whole or not at all.
func TestLogDiskKeepsWhatItAcknowledged(t *testing.T) {
	seeds := uint64(80)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 7))
		pow := &power{rng: rand.New(rand.NewPCG(seed, 8)), left: -1}
		file, bolt := newTornFile(pow), &memBolt{pow, map[uint64]*raft.Log{}}
		if err := layOut(file, journalID{1}); err != nil {
			t.Fatal(err)
		}
		want := map[uint64]string{}
		var next, term uint64 = 1, 1
		for range 6 { // lives
			pow.off, pow.left = false, -1
			file.restart()
			j, logs, err := openJournal(file, journalID{1})
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			pow.left = rng.IntN(60)
			d, err := newLogDisk(bolt, j, logs, func(error) {})
			for err == nil {
				if got := logOf(t, d); !maps.Equal(got, want) {
					t.Fatalf("seed %d: %d entries, want %d", seed, len(got), len(want))
				}
				after := maps.Clone(want)
				switch rng.IntN(12) {
				case 0: // a conflict: the end of the log goes, a new term begins
					from := next - uint64(rng.IntN(min(int(next), 40)))
					if from == next {
						continue
					}
					maps.DeleteFunc(after, func(i uint64, _ string) bool { return i >= from })
					err = d.deleteRange(from, next-1)
					next, term = from, term+1
				case 1: // compaction
					to := next - 1 - uint64(rng.IntN(min(int(next), 40)))
					maps.DeleteFunc(after, func(i uint64, _ string) bool { return i <= to })
					if to > 0 {
						err = d.deleteRange(1, to)
					}
				case 2: // a snapshot from the leader: a gap
					if next += uint64(rng.IntN(3)); len(want) == 0 {
						continue
					}
					fallthrough
				default:
					batch := make([]*raft.Log, 1+rng.IntN(100))
					size := 10 << rng.IntN(9)
					if rng.IntN(60) == 0 {
						size = 40_000 // larger than the journal, with enough of them
					}
					for i := range batch {
						batch[i] = &raft.Log{Index: next, Term: term, Type: raft.LogCommand, Data: bytes.Repeat([]byte{'a' + byte(next%26)}, size)}
						after[next] = fmt.Sprintf("%d %v %s", term, raft.LogCommand, batch[i].Data)
						next++
					}
					err = d.append(batch)
				}
				if err == nil {
					want = after
					continue
				}
				// Unknown: either.
				d.moves.Wait()
				pow.off, pow.left = false, -1
				file.restart()
				j, logs, err := openJournal(file, journalID{1})
				if err != nil {
					t.Fatalf("seed %d: after the power went off: %v", seed, err)
				}
				again, err := newLogDisk(bolt, j, logs, func(error) {})
				if err != nil {
					t.Fatal(err)
				}
				if got := logOf(t, again); maps.Equal(got, after) {
					want = after
				} else if !maps.Equal(got, want) {
					t.Fatalf("seed %d: %d entries; had %d, would have had %d", seed, len(got), len(want), len(after))
				}
				next = 1
				for i := range want {
					next = max(next, i+1)
				}
				break
			}
			if d != nil {
				d.moves.Wait()
			}
		}
	}
}

// TestJournalRefusesDamage: what was acknowledged and can't be read is told, not
// left out.
func TestJournalRefusesDamage(t *testing.T) {
	pow := &power{left: -1}
	entries := func(n int) []*raft.Log {
		var logs []*raft.Log
		for i := range n {
			logs = append(logs, &raft.Log{Index: uint64(i + 1), Term: 1, Data: []byte("what was said")})
		}
		return logs
	}
	made := func() *tornFile {
		f := newTornFile(pow)
		if err := layOut(f, journalID{1}); err != nil {
			t.Fatal(err)
		}
		j, _, err := openJournal(f, journalID{1})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := j.reset(); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			if err := j.append(entries(2)); err != nil {
				t.Fatal(err)
			}
		}
		return f
	}
	frame := frameHead + 2*(logHead+len("what was said"))
	frame += (frameAlign - frame%frameAlign) % frameAlign
	for name, c := range map[string]struct {
		damage func(*tornFile)
		want   string // "" = none
		logs   int
	}{
		"none":                   {func(*tornFile) {}, "", 6},
		"first frame":            {func(f *tornFile) { f.cached[frameStart+40]++ }, "frame 1 is damaged, and there is a later one", 0},
		"second frame's head":    {func(f *tornFile) { f.cached[frameStart+frame]++ }, "frame 2 is damaged, and there is a later one", 0},
		"last frame, as if torn": {func(f *tornFile) { f.cached[frameStart+2*frame+50]++ }, "", 4},
		"present header":         {func(f *tornFile) { f.cached[slotSize+30]++ }, "frame 1 is damaged, and there is a later one", 0},
		"former header":          {func(f *tornFile) { f.cached[30]++ }, "", 6},
		"both headers":           {func(f *tornFile) { f.cached[30]++; f.cached[slotSize+30]++ }, "its header is damaged", 0},
		"cut short":              {func(f *tornFile) { f.cached = f.cached[:journalSize-1] }, "cut short: 2097151 bytes of 2097152", 0},
		"nothing but zeros":      {func(f *tornFile) { clear(f.cached) }, "its header is damaged", 0},
		"payload of an odd length": {func(f *tornFile) {
			j := &journal{file: f, id: journalID{1}, epoch: 3, next: 4, at: int64(frameStart + 3*frame)}
			if err := j.append(entries(1)); err != nil {
				t.Fatal(err)
			}
		}, "", 7},
	} {
		f := made()
		c.damage(f)
		_, logs, err := openJournal(f, journalID{1})
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || err.Error() != c.want):
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		case len(logs) != c.logs && err == nil:
			t.Errorf("%s: %d entries, want %d", name, len(logs), c.logs)
		}
	}
	if _, _, err := openJournal(made(), journalID{2}); err == nil || err.Error() != "belongs to another log" {
		t.Errorf("another log's journal: %v", err)
	}
}

// FuzzJournal: no content of the file makes opening it panic.
func FuzzJournal(f *testing.F) {
	f.Add([]byte{}, uint16(0))
	f.Add([]byte{0x4d, 0x49, 0x57, 0x46, 0xff, 0xff, 0xff, 0xff}, uint16(frameStart))
	f.Fuzz(func(t *testing.T, b []byte, at uint16) {
		file := newTornFile(&power{left: -1})
		if err := layOut(file, journalID{1}); err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt(b, int64(at)); err != nil && len(b) > 0 {
			t.Fatal(err)
		}
		_, _, _ = openJournal(file, journalID{1})
		_, _ = readLogs(nil, b)
	})
}
