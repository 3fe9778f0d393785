package jepsen

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// Kinds of call of the worker catalog. Their Key is that of the worker's lease,
// Token the etag that the caller demands (0: any), Got the etag of the answer,
// and Worker what was asked for or, of a show, what was answered.
const (
	KindCreate Kind = "create"
	KindStart  Kind = "start"
	KindStop   Kind = "stop"
	KindReload Kind = "reload"
	KindTag    Kind = "tag"
	KindDelete Kind = "delete"
	KindShow   Kind = "show" // linearizable
)

// atRest is who shows every worker when all is healed and nothing may be under
// way any more.
const atRest = "rest"

// WorkerSeen is a worker as a call names it, or as an answer or an event shows it.
type WorkerSeen struct {
	Name           string `json:"name,omitempty"`
	Source         string `json:"source,omitempty"` // the last that was asked for
	State          string `json:"state,omitempty"`
	StartRequested bool   `json:"start_requested,omitempty"`
	KeepsRunning   bool   `json:"keeps_running,omitempty"`
	Tags           string `json:"tags,omitempty"`  // k=v, sorted
	Error          string `json:"error,omitempty"` // its type
}

// States of a worker.
var (
	stateLoading    = fsm.WorkerLoading.String()
	stateStopped    = fsm.WorkerStopped.String()
	stateRunning    = fsm.WorkerRunning.String()
	stateLoadFailed = fsm.WorkerLoadFailed.String()
	stateFailed     = fsm.WorkerFailed.String()
)

// Events of a worker, without "worker.".
const (
	workerCreated   = "created"
	workerRequested = "start_requested"
	workerWithdrawn = "start_withdrawn"
	workerLoaded    = "loaded"
	workerNotLoaded = "load_failed"
	workerStarted   = "started"
	workerStopped   = "stopped"
	workerReloading = "reloading"
	workerFailed    = "failed"
	workerDeleted   = "deleted"
)

// change is one change of a worker's record that events tell of, one or two.
type change struct {
	revision uint64
	events   []string
	by       string        // who asked for it; "" = nobody: a load or a run ended
	seen     time.Duration // first
	after    WorkerSeen
}

func (c *change) what() string { return strings.Join(c.events, "+") }

func (c *change) gone() bool { return c.events[0] == workerDeleted }

// life is all that was seen of one worker.
type life struct {
	key     string
	changes []change
	calls   []Op
	asked   map[string]int // the change that a call asked for, by By
	faults  []string       // changes that no worker goes through
	count   int            // events
}

// catalog sorts what was seen of workers by their keys.
func (h *History) catalog() []*life {
	lives := map[string]*life{}
	of := func(key string) *life {
		if lives[key] == nil {
			lives[key] = &life{key: key, asked: map[string]int{}}
		}
		return lives[key]
	}
	names := map[string]string{} // of those that were created, to their keys
	seen := h.firstSeen()
	for _, e := range h.log() {
		what, isWorker := strings.CutPrefix(e.Type, "worker.")
		if !isWorker || e.Worker == nil {
			continue
		}
		l := of(e.Key)
		l.count++
		if what == workerCreated {
			names[e.Worker.Name] = e.Key
		}
		l.add(&e, what, seen[[2]uint64{e.Revision, uint64(e.Position)}])
	}
	for i := range h.Ops {
		o := h.Ops[i]
		if !o.ofCatalog() {
			continue
		}
		if o.Kind == KindCreate && o.Key == "" {
			o.Key = names[o.Worker.Name]
		}
		if o.Key != "" {
			l := of(o.Key)
			l.calls = append(l.calls, o)
		}
	}
	all := slices.Collect(maps.Values(lives))
	slices.SortFunc(all, func(a, b *life) int { return cmp.Compare(a.key, b.key) })
	for _, l := range all {
		l.walk()
	}
	return all
}

// firstSeen is when any reader first saw each event, by revision and position.
func (h *History) firstSeen() map[[2]uint64]time.Duration {
	seen := map[[2]uint64]time.Duration{}
	for i := range h.Events {
		e := &h.Events[i]
		at := [2]uint64{e.Revision, uint64(e.Position)}
		if old, ok := seen[at]; !ok || e.At < old {
			seen[at] = e.At
		}
	}
	return seen
}

func (o *Op) ofCatalog() bool {
	switch o.Kind {
	case KindCreate, KindStart, KindStop, KindReload, KindTag, KindDelete, KindShow:
		return true
	}
	return false
}

// add adds an event, in the order of the log.
func (l *life) add(e *Event, what string, seen time.Duration) {
	if n := len(l.changes); n > 0 && l.changes[n-1].goesOn(e, what) {
		c := &l.changes[n-1]
		c.events, c.after, c.seen = append(c.events, what), *e.Worker, min(c.seen, seen)
		return
	}
	l.changes = append(l.changes, change{revision: e.Revision, events: []string{what}, by: e.By, seen: seen, after: *e.Worker})
}

// goesOn tells whether an event is of the same change. One entry of the log, and so one
// revision, may have several commands.
func (c *change) goesOn(e *Event, what string) bool {
	if c.revision != e.Revision || c.by != e.By || len(c.events) > 1 {
		return false
	}
	return c.events[0] == workerWithdrawn && what == workerStopped && c.by != "" ||
		c.events[0] == workerLoaded && what == workerStarted && c.by == ""
}

// walk follows the worker through its changes, fills in what events don't tell
// of the record, and notes what no worker goes through.
func (l *life) walk() {
	var at *WorkerSeen // nil: there is none
	gone := false
	for i := range l.changes {
		c := &l.changes[i]
		if j, twice := l.asked[c.by]; twice && c.by != "" {
			l.faultf(c, "%s asked for it, and for %s at revision %d: one call, two changes", c.by, l.changes[j].what(), l.changes[j].revision)
		}
		l.asked[c.by] = i
		next, legal := follows(at, c)
		switch {
		case gone:
			l.faultf(c, "after it was deleted")
		case !legal && at == nil:
			l.faultf(c, "its first event")
		case !legal:
			l.faultf(c, "leads from %s to %s", at.brief(), c.after.brief())
		}
		gone = c.gone()
		c.after.KeepsRunning = next.KeepsRunning
		at = &c.after
	}
	delete(l.asked, "")
}

func (l *life) faultf(c *change, format string, args ...any) {
	l.faults = append(l.faults, fmt.Sprintf("%s: revision %d, %s: ", l.key, c.revision, c.what())+fmt.Sprintf(format, args...))
}

// brief is the state in a word or two.
func (w *WorkerSeen) brief() string {
	s := w.State
	if w.StartRequested {
		s += ", to start"
	}
	if w.KeepsRunning {
		s += ", still running"
	}
	return s
}

// follows is the state machine of a worker: what the record is after the events
// of one change, and whether they can follow what was before, nil for nothing.
func follows(was *WorkerSeen, c *change) (next WorkerSeen, legal bool) {
	what := c.what()
	if was == nil {
		next = WorkerSeen{State: stateLoading, StartRequested: c.after.StartRequested}
		return next, what == workerCreated && c.after.State == stateLoading
	}
	next = WorkerSeen{State: was.State, StartRequested: was.StartRequested, KeepsRunning: was.KeepsRunning}
	loading := was.State == stateLoading
	wanted := was.State == stateRunning || was.KeepsRunning
	// stop is the end of what ran, by a stop or by itself.
	stop := func(state string) {
		next.KeepsRunning = false
		if !loading {
			next.State = state
		}
	}
	switch what {
	case workerRequested:
		legal = loading && !was.StartRequested
		next.StartRequested = true
	case workerWithdrawn:
		legal = was.StartRequested && !wanted
		next.StartRequested = false
	case workerWithdrawn + "+" + workerStopped:
		legal = was.StartRequested && wanted
		next.StartRequested = false
		stop(stateStopped)
	case workerLoaded: // and it starts only if it is not to, or has run all the time
		legal = loading && (!was.StartRequested || was.KeepsRunning)
		next = WorkerSeen{State: stateStopped}
		if was.KeepsRunning {
			next.State = stateRunning
		}
	case workerLoaded + "+" + workerStarted:
		legal = loading && was.StartRequested && !was.KeepsRunning
		next = WorkerSeen{State: stateRunning}
	case workerNotLoaded:
		legal = loading
		next.State = stateLoadFailed
		if was.KeepsRunning {
			next = WorkerSeen{State: stateRunning}
		}
	case workerStarted:
		legal = was.State == stateStopped || was.State == stateFailed
		next.State = stateRunning
	case workerStopped:
		legal = wanted && (!was.StartRequested || c.by == "")
		stop(stateStopped)
	case workerFailed:
		legal = wanted && c.by == ""
		stop(stateFailed)
	case workerReloading:
		legal = !loading
		next.State, next.KeepsRunning = stateLoading, was.State == stateRunning
	case workerDeleted:
		legal = true
		next = *was
	default:
		return next, false
	}
	// A deleted one's event shows it as it was.
	return next, legal && c.after.State == next.State && c.after.StartRequested == next.StartRequested
}

// checkCatalogEvents: each transition of a worker has exactly one event, the
// transitions are a path of its state machine, and whatever was answered as done
// that must have changed it has its event.
func checkCatalogEvents(h *History) Verdict {
	if len(h.Events) == 0 {
		return verdict(CheckCatalogEvents, 0, nil) // a history without readers, by hand
	}
	var faults []string
	checked := 0
	created := map[string]string{} // by the call that asked for it
	for _, l := range h.catalog() {
		checked += l.count
		faults = append(faults, l.faults...)
		if len(l.changes) > 0 && l.changes[0].by != "" {
			if other, twice := created[l.changes[0].by]; twice {
				faults = append(faults, fmt.Sprintf("%s and %s were both created by %s", other, l.key, l.changes[0].by))
			}
			created[l.changes[0].by] = l.key
		}
		for i := range l.calls {
			o := &l.calls[i]
			_, told := l.asked[o.By]
			must := o.Kind == KindCreate || o.Kind == KindReload || o.Kind == KindDelete
			switch {
			case o.Outcome == OK && must && !told:
				faults = append(faults, fmt.Sprintf("%s: the %s of %s was answered at %v and has no event", l.key, o.Kind, o.By, o.Return))
			case (o.Outcome == Refused || o.Outcome == Failed) && told:
				faults = append(faults, fmt.Sprintf("%s: the %s of %s was answered %s at %v and has an event at revision %d", l.key, o.Kind, o.By, o.Code, o.Return, l.changes[l.asked[o.By]].revision))
			}
		}
	}
	return verdict(CheckCatalogEvents, checked, faults)
}
