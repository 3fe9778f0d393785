package worker

import (
	"sync"

	"github.com/miwnode/miwnode/fsm"
)

// shelf holds what is loaded on this instance and does not run: what was
// prepared for a worker that is coming here, and what its last run has left.
type shelf struct {
	unload func(id string, u Unit)

	mu    sync.Mutex
	units map[string]shelved // by worker
}

// shelved is a unit, and what it was loaded from.
type shelved struct {
	unit   Unit
	src    fsm.Source
	loaded uint64 // the attempt that found the source good; of no interest on the shelf
}

// take returns the unit of the worker if it was loaded from that source.
func (s *shelf) take(id string, src *fsm.Source) (Unit, bool) {
	s.mu.Lock()
	x, there := s.units[id]
	delete(s.units, id)
	s.mu.Unlock()
	if there && x.src != *src {
		s.unload(id, x.unit)
		there = false
	}
	return x.unit, there
}

// put keeps a unit until somebody takes it, or drops it.
func (s *shelf) put(id string, src *fsm.Source, u Unit) {
	s.mu.Lock()
	former, there := s.units[id]
	if s.units == nil {
		s.units = make(map[string]shelved)
	}
	s.units[id] = shelved{unit: u, src: *src}
	s.mu.Unlock()
	if there {
		s.unload(id, former.unit)
	}
}

// has tells whether there is a unit of that source.
func (s *shelf) has(id string, src *fsm.Source) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, there := s.units[id]
	return there && x.src == *src
}

func (s *shelf) drop(id string) {
	s.mu.Lock()
	x, there := s.units[id]
	delete(s.units, id)
	s.mu.Unlock()
	if there {
		s.unload(id, x.unit)
	}
}

func (s *shelf) clear() {
	s.mu.Lock()
	all := s.units
	s.units = nil
	s.mu.Unlock()
	for id, x := range all {
		s.unload(id, x.unit)
	}
}
