package wasmrt

import "encoding/binary"

// The engine lets a table grow as far as its module says, and to 2³² entries where it
// says nothing. So each gets a largest size before the engine sees the module: growing
// one beyond that fails as growing it beyond its own would.

// entrySize is what the engine takes for an entry of a table.
const entrySize = 8

// noMost is the largest size of a table that has none of its own.
const noMost = 1<<32 - 1

// table is one that a module has.
type table struct {
	kind        byte // of its entries
	flags       byte // of its limits
	least, most uint64
}

// entries is how many its tables begin with.
func (s shape) entries() (n uint64) {
	for _, t := range s.tables {
		n += t.least
	}
	return n
}

// bounded returns the module of that shape with such sizes for its tables that they
// never have more than most entries together. It begins with no more.
func (s shape) bounded(module []byte, most uint64) []byte {
	if len(s.tables) == 0 {
		return module
	}
	each := (most - s.entries()) / uint64(len(s.tables)) // that one may get when it grows
	tables := s.tables
	out := append(make([]byte, 0, len(module)+5*len(tables)+8), core...)
	for rest := (scan{rest: module[len(core):]}); len(rest.rest) > 0; {
		id, content := rest.byte(), rest.bytes(rest.u32())
		if id == secTable {
			n := (&scan{rest: content}).u32()
			content = sized(tables[:n], each)
			tables = tables[n:]
		}
		out = append(binary.AppendUvarint(append(out, id), uint64(len(content))), content...)
	}
	return out
}

// sized is the content of a section of tables that may grow by that many entries each.
func sized(tables []table, by uint64) []byte {
	const hasMost = 1
	b := binary.AppendUvarint(nil, uint64(len(tables)))
	for _, t := range tables {
		b = append(b, t.kind, t.flags|hasMost)
		b = binary.AppendUvarint(b, t.least)
		b = binary.AppendUvarint(b, min(t.most, t.least+by))
	}
	return b
}
