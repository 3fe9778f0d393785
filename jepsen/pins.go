package jepsen

import (
	"fmt"

	"github.com/miwnode/miwnode/fsm"
)

const (
	eventTransferring = "lease.transferring"
	eventPreparing    = "workload.preparing"
	eventKept         = "workload.kept"
	eventPinned       = "workload.pinned"
	eventUnpinned     = "workload.unpinned"
	eventLeft         = "instance.left"
	eventGroup        = "group.updated"
)

// pins follows, in the order of the log, what is pinned to whom. A planner takes
// nothing away from the instance that it is pinned to, unless that was under way
// when it was pinned: a plan that does was made before, and is not to be applied.
type pins struct {
	to map[string]string // workload's key → instance
	// leaving are the grants that somebody else was named for.
	leaving map[string]uint64
	checked int
}

func newPins() *pins { return &pins{to: map[string]string{}, leaving: map[string]uint64{}} }

// step is one event; it returns what is wrong with it, "" if nothing is.
// fit tells whether the instance takes work.
func (p *pins) step(e *Event, fit func(instance string) bool) (fault string) {
	switch e.Type {
	case eventPinned:
		p.to[e.Key] = e.Instance
	case eventUnpinned:
		delete(p.to, e.Key)
	case eventLeft, eventGroup:
		// An instance that is gone, or declares something else, may run none of it.
		for key, to := range p.to {
			if to == e.Instance {
				delete(p.to, key)
			}
		}
	case eventKept, eventEnded:
		delete(p.leaving, e.Key)
	case eventTransferring, eventPreparing:
		before := p.leaving[e.Key] == e.Token
		p.leaving[e.Key] = e.Token
		if to := p.to[e.Key]; to == "" || to != e.Instance || before || e.By != fsm.ByPlanner || !fit(to) {
			break
		}
		p.checked++
		fault = fmt.Sprintf("%s: at revision %d a plan takes token %d from %s, which it is pinned to", e.Key, e.Revision, e.Token, e.Instance)
	}
	return fault
}
