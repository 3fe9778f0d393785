package jepsen_test

import (
	"encoding/hex"
	"slices"
	"sync"

	"github.com/miwnode/miwnode/fsm"
)

// copies are the states that processes were seen in, by revision. A hash costs as
// much as a snapshot and tells nothing by itself: it is taken once a second process
// is seen at the same revision.
type copies struct {
	mu sync.Mutex
	at map[uint64][]*copied // guarded by mu
}

// copied is one process's copy at one revision.
type copied struct {
	node, proc string
	view       *fsm.View // nil once it was hashed
}

// add notes a copy and returns those that can be compared now.
func (c *copies) add(node, proc string, v *fsm.View) (compare []copied) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		c.at = map[uint64][]*copied{}
	}
	all := c.at[v.Revision()]
	if slices.ContainsFunc(all, func(o *copied) bool { return o.proc == proc }) {
		return nil
	}
	all = append(all, &copied{node, proc, v})
	c.at[v.Revision()] = all
	if len(all) < 2 {
		return nil
	}
	for _, o := range all {
		if o.view != nil {
			compare = append(compare, *o)
			o.view = nil
		}
	}
	return compare
}

// sample notes the copy of a life and returns its revision.
func (s *simCluster) sample(name string, l *simLife, v *fsm.View) uint64 {
	if v.Revision() > 0 && !s.r.Dead(l.proc) {
		for _, c := range s.copies.add(name, l.proc, v) {
			h := c.view.Hash()
			s.r.Sample(c.node, v.Revision(), hex.EncodeToString(h[:8]))
		}
	}
	return v.Revision()
}
