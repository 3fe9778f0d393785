package fsm

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/btree"
)

// keyed is the table of commands that came with an Idempotency-Key.
type keyed struct {
	byKey btree.Map[string, *keyedEntry]
	order []*keyedEntry // oldest first; appended beyond what a View sees
}

// keyedEntry is the first answer to a key. It never changes.
type keyedEntry struct {
	key      string
	hash     []byte
	elapsed  time.Duration // cluster.elapsed when it was applied
	revision uint64        // order: (revision, position)
	position uint32
	answer   remembered
}

// forget drops what is older than the window.
func (k *keyed) forget(now time.Duration) {
	for len(k.order) > 0 && now-k.order[0].elapsed >= IdempotencyWindow {
		k.byKey.Delete(k.order[0].key)
		k.order = k.order[1:]
	}
}

func (k *keyed) add(e *keyedEntry) {
	k.byKey.Set(e.key, e)
	k.order = append(k.order, e)
}

// onceKeyed runs a command, unless its idempotency key has been used.
func (s *State) onceKeyed(cmd *Command, r *Result) *Result {
	key := cmd.GetIdempotencyKey()
	if key == "" {
		s.run(cmd, r)
		return r
	}
	if e, ok := s.keyed.byKey.Get(key); ok {
		if !bytes.Equal(e.hash, cmd.IdempotencyHash) {
			refuse(r, Errorf(CodeInvalidArgument, "the idempotency key (in HTTP the header Idempotency-Key) was used with another body; give each new request a key of its own"))
			return r
		}
		r = s.replay(&e.answer, r)
		if a := cmd.GetAcquire(); a != nil && r.Code == 0 {
			s.askedAnew(s.got, a.Ask)
		}
		return r
	}
	if len(s.keyed.order) >= MaxIdempotencyKeys {
		refuse(r, Errorf(CodeOverloaded, "%d idempotency keys are kept for %v, no more are taken", len(s.keyed.order), IdempotencyWindow))
		return r
	}
	s.run(cmd, r)
	switch Code(r.Code) {
	case CodeInvalidArgument: // a faulty key or hash must not get into the table
		return r
	case CodeOverloaded: // to be tried again
		return r
	}
	s.places++
	s.keyed.add(&keyedEntry{
		key:      strings.Clone(key),
		hash:     slices.Clone(cmd.IdempotencyHash),
		elapsed:  s.cluster.elapsed,
		revision: s.cluster.revision,
		position: s.places,
		answer:   remembered{result: r, got: s.got},
	})
	return r
}
