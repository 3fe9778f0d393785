package miwtest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Span is one run of a key, or one work that an [Observer] saw. Times are
// since the cluster was made.
type Span struct {
	Key   string
	Node  int
	Token uint64
	Start time.Duration
	End   time.Duration // 0 for one that goes on
}

// book keeps the spans of one sort and finds what must not be. It reads no clock.
type book struct {
	noun string // what a span is
	// shared: spans of one process under one token may overlap.
	shared bool

	mu    sync.Mutex
	pages map[string]*page
	open  []*entry // in the order of their starts
	dead  map[*Node]bool
}

// page is what happened under one key.
type page struct {
	spans []*entry // those that counted, in the order of their starts
	most  *entry   // the one with the largest token
}

// entry is a Span and what it hangs on.
type entry struct {
	Span
	proc    *Node
	lease   string // its key
	session string
	counted bool // it is on its page
	// unheard: its process stands still, or did when its lease was lost.
	unheard bool
	told    bool // a violation of it was reported
}

func newBook(noun string, shared bool) *book {
	return &book{noun: noun, shared: shared, pages: map[string]*page{}, dead: map[*Node]bool{}}
}

// begin opens a span. What a process does that stands still, or is dead, does
// not count.
func (b *book) begin(e *entry, paused bool) []Violation {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead[e.proc] {
		return nil
	}
	b.open = append(b.open, e)
	if e.unheard = paused; paused {
		return nil
	}
	return b.count(e, e.Start)
}

// count holds e, which begins or goes on at now, against all others of its key.
func (b *book) count(e *entry, now time.Duration) (found []Violation) {
	p := b.pages[e.Key]
	if p == nil {
		p = &page{most: e}
		b.pages[e.Key] = p
	}
	for _, o := range b.open {
		if o == e || o.Key != e.Key || o.unheard || b.shared && o.proc == e.proc && o.Token == e.Token {
			continue
		}
		found = e.violates(Overlap, now, "a %s of %q %s while that on node %d (token %d), begun at %v, goes on",
			b.noun, e.Key, e.where(), o.Node, o.Token, round(o.Start))
		break
	}
	if o := p.most; found == nil && (o.Token > e.Token || o.Token == e.Token && o.proc != e.proc) {
		found = e.violates(TokenOrder, now, "a %s of %q %s after one on node %d with token %d: hand Lease.Token to what is written to, and have that refuse smaller ones",
			b.noun, e.Key, e.where(), o.Node, o.Token)
	}
	if e.Token > p.most.Token {
		p.most = e
	}
	if !e.counted {
		e.counted = true
		p.spans = append(p.spans, e)
	}
	return found
}

func (e *entry) where() string { return fmt.Sprintf("is on node %d (token %d)", e.Node, e.Token) }

func (e *entry) violates(k Kind, at time.Duration, format string, args ...any) []Violation {
	e.told = true
	return []Violation{{Kind: k, Key: e.Key, Node: e.Node, At: at, Text: fmt.Sprintf(format, args...)}}
}

// end closes a span; closing it again changes nothing.
func (b *book) end(e *entry, now time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.open, e); i >= 0 {
		e.End = now
		b.open = slices.Delete(b.open, i, i+1)
	}
}

// kill ends all that a process does, for good.
func (b *book) kill(proc *Node, now time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead[proc] = true
	b.open = slices.DeleteFunc(b.open, func(e *entry) bool {
		if e.proc != proc {
			return false
		}
		e.End = now
		return true
	})
}

// pause has nothing of a process counted until it goes on.
func (b *book) pause(proc *Node) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.open {
		e.unheard = e.unheard || e.proc == proc
	}
}

// resume has those spans of a process counted again whose lease is valid. The
// others stay unheard: they should end in a moment.
func (b *book) resume(proc *Node, now time.Duration, valid func(*entry) bool) (found []Violation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.open {
		if e.proc != proc || !valid(e) {
			continue
		}
		e.unheard = false
		if !e.counted {
			e.Start = now
		}
		found = append(found, b.count(e, now)...)
	}
	return found
}

// overdue reports what goes on although its lease may pass on: all that which
// picks and that was not reported before.
func (b *book) overdue(now time.Duration, which func(*entry) bool) (found []Violation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.open {
		if e.told || !which(e) {
			continue
		}
		found = append(found, e.violates(Overdue, now, "a %s of %q %s, begun at %v, goes on although its lease is lost and may be granted elsewhere: it must end when Lease.Context does, within the stop budget",
			b.noun, e.Key, e.where(), round(e.Start))...)
	}
	return found
}

// running returns the node with an open span of the key, -1 for none.
func (b *book) running(key string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range slices.Backward(b.open) {
		if e.Key == key && !e.unheard {
			return e.Node
		}
	}
	return -1
}

// keys returns the keys with an open span on the node, sorted; those of the
// nodes themselves are nobody's business.
func (b *book) keys(node int) (keys []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.open {
		if e.Node == node && !e.unheard && !slices.Contains(keys, e.Key) && !strings.HasPrefix(e.Key, "miw/") {
			keys = append(keys, e.Key)
		}
	}
	slices.Sort(keys)
	return keys
}

// number is how many spans of a key counted.
func (b *book) number(key string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.pages[key]; p != nil {
		return len(p.spans)
	}
	return 0
}

// list returns the spans of a key that counted, in the order of their starts.
func (b *book) list(key string) (all []Span) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.pages[key]; p != nil {
		for _, e := range p.spans {
			all = append(all, e.Span)
		}
	}
	return all
}
