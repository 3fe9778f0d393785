package node

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// Bolt maps its file and trusts what it reads there: a damaged page ends the
// process, by a panic on a goroutine of bolt's own or by a signal. So the file
// is read beforehand, as far as bolt may ever follow it, and whatever bolt would
// not have written is a fault.
//
// The format is that of bolt, version 2, little endian:
//
//	page    id u64 | flags u16 | count u16 | overflow u32 | content; overflow pages follow
//	meta    magic u32 | 2 u32 | page size u32 | 0 u32 | root u64 | 0 u64 | freelist u64 | pages u64 | transaction u64 | FNV-1a u64
//	branch  count × (pos u32 | bytes of key u32 | page u64), then the keys
//	leaf    count × (flags u32 | pos u32 | bytes of key u32 | of value u32), then key and value of each
//	bucket  root u64 | sequence u64, then a leaf if root is 0: the value of an entry whose flags are 1
//
// A pos counts from its element; bolt packs keys and values without a gap.
const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2
	boltNoPage  = ^uint64(0) // in place of a freelist

	boltBranch   = 1
	boltLeaf     = 2
	boltMetaPage = 4
	boltFreelist = 16

	boltHead    = 16 // bytes of a page's, an element's and a bucket's head each
	boltMeta    = 64
	boltBucket  = 1 // flag of a leaf's element
	boltMaxKey  = 32768
	boltMaxTree = 64 // levels; a page splits in two at the least, so that is more than any file has

	// boltWhole is the size up to which a page is read at once; of a larger one
	// only heads and keys, most of it is values.
	boltWhole = 64 << 10
)

// stableKeys are the keys that a node keeps beside the log, with the bytes of
// their values, -1 for any. Of a key that is damaged the value would be missing:
// a vote, or the term.
var stableKeys = map[string]int64{"CurrentTerm": 8, "LastVoteTerm": 8, "LastVoteCand": -1, "miw/journal": int64(len(journalID{}))}

var errEmpty = errors.New("empty")

// checkBolt tells what is wrong with raft's store at path. What it finds right
// bolt can read and write without harm. The values of the log are not looked at.
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
	return (&boltFile{file: f, size: st.Size()}).check()
}

// boltFile is a walk over the pages of the newest transaction.
type boltFile struct {
	file     io.ReaderAt
	size     int64
	pageSize int64
	pages    uint64 // in use or free; what is beyond is room to grow
	met      []bool // by page
	depth    int
	buffers  [][]byte // by depth
}

func (b *boltFile) check() error {
	root, freelist, err := b.meta()
	if err != nil {
		return err
	}
	b.met = make([]bool, b.pages)
	if err := b.walk(root, 0, nil, nil, b.rootEntry); err != nil {
		return err
	}
	if freelist == boltNoPage {
		return nil
	}
	return b.freelist(freelist) // only bolt's first transaction has one
}

// meta reads both pages of meta data. Bolt makes do with one that is valid, but
// goes back by a transaction if it is not the newer one: a vote may be in that.
func (b *boltFile) meta() (root, freelist uint64, err error) {
	le := binary.LittleEndian
	b.pageSize = 0
	newest := uint64(0)
	for id := range uint64(2) {
		m := make([]byte, boltHead+boltMeta)
		if _, err := b.file.ReadAt(m, int64(id)*b.pageSize); err != nil {
			return 0, 0, pageFault(id, err)
		}
		head, m := m[:boltHead], m[boltHead:]
		sum := fnv.New64a()
		_, _ = sum.Write(m[:boltMeta-8])
		size := int64(le.Uint32(m[8:]))
		switch {
		case le.Uint32(m) != boltMagic, le.Uint64(m[56:]) != sum.Sum64(), le.Uint64(head) != id, le.Uint16(head[8:]) != boltMetaPage:
			return 0, 0, pageFault(id, errors.New("its meta data is damaged"))
		case le.Uint32(m[4:]) != boltVersion:
			return 0, 0, pageFault(id, fmt.Errorf("its format is %d, not %d", le.Uint32(m[4:]), boltVersion))
		case size < 1024 || size > 1<<24 || size&(size-1) != 0 || id > 0 && size != b.pageSize:
			return 0, 0, pageFault(id, fmt.Errorf("a page of %d bytes can't be", size))
		}
		b.pageSize = size
		if tx := le.Uint64(m[48:]); id == 0 || tx > newest {
			newest, root, freelist, b.pages = tx, le.Uint64(m[16:]), le.Uint64(m[32:]), le.Uint64(m[40:])
		}
	}
	if b.pages > uint64(b.size/b.pageSize) {
		return 0, 0, fmt.Errorf("cut short: %d bytes of %d pages of %d", b.size, b.pages, b.pageSize)
	}
	return root, freelist, nil
}

func pageFault(id uint64, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it is not there")
	}
	return fmt.Errorf("page %d: %w", id, err)
}

// visitor looks at an entry of a bucket.
type visitor func(e boltEntry) error

// rootEntry is a bucket, and all that is in it.
func (b *boltFile) rootEntry(e boltEntry) error {
	inside := map[string]visitor{"logs": logEntry, "conf": stableEntry}[string(e.key)]
	if inside == nil || e.flags != boltBucket || e.size < boltHead || e.size > b.pageSize {
		return fmt.Errorf("%q is no bucket of raft's", e.key)
	}
	v, err := e.value()
	if err != nil {
		return err
	}
	if root := binary.LittleEndian.Uint64(v); root != 0 {
		return b.walk(root, 0, nil, nil, inside)
	}
	inner := v[boltHead:]
	p, err := newBoltPage(inner)
	switch le := binary.LittleEndian; {
	case err != nil:
		return err
	case !p.leaf || le.Uint64(inner) != 0 || le.Uint32(inner[12:]) != 0:
		return fmt.Errorf("bucket %s lies within a page and names others", e.key)
	}
	return p.entries(nil, nil, inside)
}

func logEntry(e boltEntry) error {
	if e.flags != 0 || len(e.key) != 8 || e.size == 0 {
		return fmt.Errorf("%q is no index of an entry", e.key)
	}
	return nil
}

func stableEntry(e boltEntry) error {
	size, known := stableKeys[string(e.key)]
	if !known || e.flags != 0 || size >= 0 && size != e.size {
		return fmt.Errorf("%q with %d bytes is nothing that a node keeps", e.key, e.size)
	}
	return nil
}

// walk checks a page and all below it, whose keys lie from least up to, and
// without, below.
func (b *boltFile) walk(id uint64, level int, least, below []byte, visit visitor) error {
	b.depth++
	defer func() { b.depth-- }()
	p, err := b.page(id)
	switch {
	case err != nil:
	case level > boltMaxTree:
		err = errors.New("it lies too deep")
	case p.count == 0 && (level > 0 || !p.leaf):
		err = errors.New("it is empty")
	default:
		err = p.entries(least, below, visit)
	}
	if err != nil {
		return pageFault(id, err)
	}
	for i, child := range p.children {
		next := below
		if i+1 < p.count {
			next = p.keys[i+1]
		}
		if err := b.walk(child, level+1, p.keys[i], next, visit); err != nil {
			return err
		}
	}
	return nil
}

// page reads a page that was not met before. What it returns is good until
// another is read at the same depth.
func (b *boltFile) page(id uint64) (*boltPage, error) {
	buf, err := b.take(id, b.pageSize)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	count, overflow := uint64(le.Uint16(buf[10:])), uint64(le.Uint32(buf[12:]))
	if got := le.Uint64(buf); got != id {
		return nil, fmt.Errorf("page %d is in its place", got)
	}
	if overflow >= b.pages-id {
		return nil, fmt.Errorf("with its overflow of %d pages it ends beyond the last", overflow)
	}
	for i := id; i <= id+overflow; i++ {
		if b.met[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		b.met[i] = true
	}
	size := int64(1+overflow) * b.pageSize
	if overflow > 0 {
		read := size
		if size > boltWhole {
			read = min(size, boltHead+boltHead*int64(count))
		}
		if buf, err = b.take(id, read); err != nil {
			return nil, err
		}
	}
	p, err := newBoltPage(buf)
	if err != nil {
		return nil, err
	}
	p.size = size
	p.read = func(at, n int64) ([]byte, error) {
		v := make([]byte, n)
		_, err := b.file.ReadAt(v, int64(id)*b.pageSize+at)
		return v, err
	}
	return p, nil
}

// take reads n bytes from the beginning of a page.
func (b *boltFile) take(id uint64, n int64) ([]byte, error) {
	if id < 2 || id >= b.pages {
		return nil, errors.New("there is no such page")
	}
	for len(b.buffers) <= b.depth {
		b.buffers = append(b.buffers, nil)
	}
	if int64(len(b.buffers[b.depth])) < n {
		b.buffers[b.depth] = make([]byte, max(n, boltWhole))
	}
	buf := b.buffers[b.depth][:n]
	_, err := b.file.ReadAt(buf, int64(id)*b.pageSize)
	return buf, err
}

// freelist checks the list of free pages.
func (b *boltFile) freelist(id uint64) error {
	b.depth++
	defer func() { b.depth-- }()
	buf, err := b.take(id, b.pageSize)
	if err != nil {
		return pageFault(id, err)
	}
	le := binary.LittleEndian
	count := int64(le.Uint16(buf[10:]))
	if le.Uint64(buf) != id || le.Uint16(buf[8:]) != boltFreelist || le.Uint32(buf[12:]) != 0 || boltHead+8*count > b.pageSize || b.met[id] {
		return pageFault(id, errors.New("it is no list of free pages"))
	}
	b.met[id] = true
	for i := range count {
		free := le.Uint64(buf[boltHead+8*i:])
		if free < 2 || free >= b.pages || b.met[free] {
			return pageFault(id, fmt.Errorf("page %d is in use or free twice", free))
		}
		b.met[free] = true
	}
	return nil
}

// boltPage is a page with its overflow, or a bucket that lies within a page.
type boltPage struct {
	leaf  bool
	count int
	size  int64
	buf   []byte                            // its beginning, with the heads of all elements
	read  func(at, n int64) ([]byte, error) // what is not in buf

	// Of a branch.
	keys     [][]byte
	children []uint64
}

// boltEntry is an element of a leaf.
type boltEntry struct {
	flags uint32
	key   []byte
	size  int64 // of its value
	value func() ([]byte, error)
}

// newBoltPage reads the head of a page whose beginning is buf.
func newBoltPage(buf []byte) (*boltPage, error) {
	if len(buf) < boltHead {
		return nil, errors.New("it is too small")
	}
	flags := binary.LittleEndian.Uint16(buf[8:])
	p := &boltPage{leaf: flags == boltLeaf, count: int(binary.LittleEndian.Uint16(buf[10:])), size: int64(len(buf)), buf: buf}
	switch {
	case flags != boltLeaf && flags != boltBranch:
		return nil, fmt.Errorf("its type is %#x", flags)
	case len(buf) < boltHead+boltHead*p.count:
		return nil, fmt.Errorf("it has no room for %d elements", p.count)
	case p.count == 0 && len(bytes.Trim(buf[boltHead:], "\x00")) > 0:
		return nil, errors.New("it has content and no elements")
	}
	return p, nil
}

// entries checks the elements of a page, and has those of a leaf looked at.
func (p *boltPage) entries(least, below []byte, visit visitor) error {
	le := binary.LittleEndian
	end := boltHead + boltHead*int64(p.count)
	last := least
	for i := range p.count {
		start := boltHead + boltHead*int64(i)
		head := p.buf[start:][:boltHead]
		var e boltEntry
		pos, keySize := le.Uint32(head), le.Uint32(head[4:])
		if p.leaf {
			e.flags, pos, keySize, e.size = le.Uint32(head), le.Uint32(head[4:]), le.Uint32(head[8:]), int64(le.Uint32(head[12:]))
		}
		at := end
		end += int64(keySize) + e.size
		if start+int64(pos) != at || keySize == 0 || keySize > boltMaxKey || end > p.size {
			return fmt.Errorf("element %d does not lie where it must", i)
		}
		var err error
		if e.key, err = p.bytes(at, int64(keySize)); err != nil {
			return err
		}
		if order := bytes.Compare(last, e.key); order > 0 || order == 0 && i > 0 || below != nil && bytes.Compare(e.key, below) >= 0 {
			return fmt.Errorf("the key of element %d is out of order", i)
		}
		last = e.key
		if !p.leaf {
			p.keys, p.children = append(p.keys, e.key), append(p.children, le.Uint64(head[8:]))
			continue
		}
		e.value = func() ([]byte, error) { return p.bytes(at+int64(keySize), e.size) }
		if err := visit(e); err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
	}
	return nil
}

func (p *boltPage) bytes(at, n int64) ([]byte, error) {
	if at+n <= int64(len(p.buf)) {
		return p.buf[at:][:n:n], nil
	}
	return p.read(at, n)
}
