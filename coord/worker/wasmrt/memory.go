package wasmrt

import "github.com/tetratelabs/wazero/experimental"

// memory is the memory of one run.
type memory struct {
	limit   uint64
	bytes   []byte
	refused bool // it was asked for more than the limit
}

var (
	_ experimental.MemoryAllocator = (*memory)(nil)
	_ experimental.LinearMemory    = (*memory)(nil)
)

// Allocate implements experimental.MemoryAllocator. A module has one memory.
func (m *memory) Allocate(_, _ uint64) experimental.LinearMemory { return m }

// Reallocate implements experimental.LinearMemory.
func (m *memory) Reallocate(size uint64) []byte {
	if size > m.limit {
		m.refused = true
		return nil
	}
	if size > uint64(cap(m.bytes)) {
		grown := make([]byte, size, max(size, min(2*uint64(cap(m.bytes)), m.limit)))
		copy(grown, m.bytes)
		m.bytes = grown
	}
	m.bytes = m.bytes[:size]
	return m.bytes
}

// Free implements experimental.LinearMemory.
func (m *memory) Free() { m.bytes = nil }
