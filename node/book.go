package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// addressBook knows where each node was last heard of. It lives on what peers
// say when they greet and on gossip, and is kept in the data folder so that a
// node that starts again finds its cluster without a join list.
type addressBook struct {
	folder *folder

	mu      sync.Mutex
	entries map[string]bookEntry     // by node ID
	heard   map[string]time.Time     // when the entry was last confirmed, by node ID
	moved   map[string]chan struct{} // closed when the node's address changes, by node ID
	change  chan struct{}            // one slot: there is something to save
}

// bookMemory is how long the address of a node is kept that is no member and is
// not heard of.
const bookMemory = 10 * time.Minute

type bookEntry struct {
	Addr string `json:"addr"`
	Boot uint64 `json:"boot,omitempty"` // of the start that said so
}

// bookRecord is the file peers.json.
type bookRecord struct {
	Format int                  `json:"format"`
	Peers  map[string]bookEntry `json:"peers"`
}

func openBook(f *folder) (*addressBook, error) {
	b := &addressBook{folder: f, entries: make(map[string]bookEntry), heard: make(map[string]time.Time), moved: make(map[string]chan struct{}), change: make(chan struct{}, 1)}
	var rec bookRecord
	if _, err := f.read(peersFile, &rec); err != nil {
		return nil, err
	}
	maps.Copy(b.entries, rec.Peers)
	for id := range b.entries {
		b.heard[id] = time.Now()
	}
	return b, nil
}

// learn takes in where a node says it is; what an earlier start of it said does
// not count any more.
func (b *addressBook) learn(id, addr string, boot uint64) {
	if id == "" || addr == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	known, ok := b.entries[id]
	if ok && boot < known.Boot {
		return
	}
	b.heard[id] = time.Now()
	if e := (bookEntry{addr, boot}); e != known {
		b.entries[id] = e
		if c := b.moved[id]; c != nil && e.Addr != known.Addr {
			close(c)
			delete(b.moved, id)
		}
		select {
		case b.change <- struct{}{}:
		default:
		}
	}
}

func (b *addressBook) resolve(id string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.addrOf(id)
}

func (b *addressBook) addrOf(id string) (string, error) {
	if e, ok := b.entries[id]; ok {
		return e.Addr, nil
	}
	return "", fmt.Errorf("no address known for node %s", id)
}

// locate is resolve for who wants to know when the address changes.
func (b *addressBook) locate(id string) (addr string, moved <-chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if addr, err = b.addrOf(id); err != nil {
		return "", nil, err
	}
	c := b.moved[id]
	if c == nil {
		c = make(chan struct{})
		b.moved[id] = c
	}
	return addr, c, nil
}

// owner is another node that was last heard of at addr, "" for none.
func (b *addressBook) owner(addr, not string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, e := range b.entries {
		if e.Addr == addr && id != not {
			return id
		}
	}
	return ""
}

// all returns the known addresses by node ID.
func (b *addressBook) all() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := make(map[string]string, len(b.entries))
	for id, e := range b.entries {
		m[id] = e.Addr
	}
	return m
}

// keep saves changes, a burst of them at once, until ctx ends. members is who is
// in the cluster, nobody while that is not known for certain.
func (b *addressBook) keep(ctx context.Context, members func() []raft.Server) error {
	aging := time.NewTicker(bookMemory / 10)
	defer aging.Stop()
	for {
		changed := false
		select {
		case <-b.change:
			changed = true
			_ = pause(ctx, time.Second)
		case <-aging.C:
		case <-ctx.Done():
			return nil
		}
		if forgot := b.prune(members(), time.Now()); !forgot && !changed {
			continue
		}
		// The addresses are only a hint, but a folder that takes no file any more
		// has lost what the node has promised, or soon will.
		if err := b.save(); err != nil {
			return fmt.Errorf("%w: %w", ErrStorage, cmp.Or(b.folder.check(), err))
		}
	}
}

// prune forgets those who are no members and whose address another node has
// now, earlier lives of a folder that is wiped at each start, or who have not
// been heard of for long: dead, or of another cluster.
func (b *addressBook) prune(members []raft.Server, now time.Time) (forgot bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(members) == 0 {
		return false
	}
	taken := make(map[string]bool)
	for _, s := range members {
		taken[b.entries[string(s.ID)].Addr] = true
	}
	for id, e := range b.entries {
		if !taken[e.Addr] && now.Sub(b.heard[id]) < bookMemory {
			continue
		}
		if !slices.ContainsFunc(members, func(s raft.Server) bool { return string(s.ID) == id }) {
			delete(b.entries, id)
			delete(b.heard, id)
			forgot = true
		}
	}
	return forgot
}

func (b *addressBook) save() error {
	b.mu.Lock()
	rec := bookRecord{Format: folderFormat, Peers: maps.Clone(b.entries)}
	b.mu.Unlock()
	return b.folder.write(peersFile, rec)
}

// addrs lists the known addresses, without those of skip, in a stable order.
func (b *addressBook) addrs(skip string) []string {
	var list []string
	for id, addr := range b.all() {
		if id != skip {
			list = append(list, addr)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
