package worker

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
)

// maxDrives is how many loads an instance drives at a time, most of which wait
// for the cluster to take what they propose; Config.MaxLoads bounds the rest.
const maxDrives = 64

// redriveAfter is how long an instance waits that could not drive a load.
var redriveAfter = coord.Backoff{Initial: 250 * time.Millisecond, Max: 10 * time.Second}

// foreman looks after the workers that are loading, for one Run of a Catalog.
// The goroutine of run owns it; the others send it what happened, as a func.
type foreman struct {
	*Catalog
	ctx  context.Context
	told chan func()
	done chan struct{}  // closed when nobody listens any more
	work sync.WaitGroup // drives

	since   fsm.EventID      // up to there the events are dealt with
	inputs  uint64           // of the group, as of members
	members []candidate      // in the order in which they joined
	files   map[string]*file // of workers that are loading
	waiting []string         // workers to drive, once there is room
	driving int
}

// file is what the foreman keeps of a worker that is loading.
type file struct {
	sighting
	worker   *fsm.Worker
	end      context.CancelFunc // of the drive under way here, nil for none
	queued   bool               // in waiting
	failures int                // of drives, in a row
	timer    *time.Timer
}

func newForeman(c *Catalog) *foreman {
	return &foreman{Catalog: c, told: make(chan func()), done: make(chan struct{}), files: make(map[string]*file)}
}

// tell has f run by the owner.
func (f *foreman) tell(what func()) {
	select {
	case f.told <- what:
	case <-f.done:
	}
}

// run drives loads until ctx ends or the node closes.
func (f *foreman) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer f.work.Wait()
	defer close(f.done)
	defer cancel()
	f.ctx = ctx
	wake, unwatch := f.c.Watch(fsm.WorkersTopic, fsm.GroupTopic(fsm.WorkersGroup))
	defer unwatch()
	defer func() {
		for id := range f.files {
			f.drop(id)
		}
	}()
	var all <-chan struct{} // woken by leases, too, while anything is loading
	stopAll := func() {}
	defer func() { stopAll() }()
	f.survey()
	for {
		switch busy := len(f.files) > 0; {
		case busy && all == nil:
			all, stopAll = f.c.Watch(fsm.AllTopic)
			f.follow() // what happened before that
		case !busy && all != nil:
			stopAll()
			all, stopAll = nil, func() {}
		}
		select {
		case <-ctx.Done():
			return
		case <-f.c.Closing():
			return
		case <-wake:
			f.follow()
		case <-all:
			f.follow()
		case id := <-f.asked:
			f.consider(f.c.View(), id, ofOurs)
		case what := <-f.told:
			what()
		}
	}
}

// survey looks at everything: at the beginning, and when the events are too far
// behind, or the copy came as a whole.
func (f *foreman) survey() {
	v := f.c.View()
	f.since = fsm.AfterRevision(v.Revision())
	f.readMembers(v)
	for id := range f.files {
		f.consider(v, id, ofChange)
	}
	for w := range v.LoadingWorkers() {
		if f.files[w.ID] == nil {
			f.consider(v, w.ID, ofChange)
		}
	}
}

// follow looks at what the events since the last time concern.
func (f *foreman) follow() {
	v := f.c.View()
	events, whole := v.Events(f.since)
	if !whole {
		f.survey()
		return
	}
	f.since = fsm.AfterRevision(v.Revision())
	for e := range events {
		switch e.Type {
		case fsm.EventWorkerCreated, fsm.EventWorkerReloading:
			f.consider(v, idOf(e.Key), ofRequest)
		case fsm.EventWorkerLoaded, fsm.EventWorkerLoadFailed, fsm.EventWorkerDeleted:
			f.consider(v, idOf(e.Key), ofChange)
		case fsm.EventLeaseGranted, fsm.EventLeaseEnded:
			id, ok := loadOf(e.Key)
			if x := f.files[id]; ok && x != nil && x.end != nil && e.Type == fsm.EventLeaseEnded && e.Who.InstanceID == f.c.InstanceID() {
				x.end() // it was taken away
			}
			if ok {
				f.consider(v, id, ofChange)
			}
		}
	}
	f.readMembers(v)
}

func idOf(key string) string { return strings.TrimPrefix(key, fsm.WorkersGroup+"/") }

// loadOf is the worker whose load the lease of key is for.
func loadOf(key string) (id string, ok bool) {
	id, ok = strings.CutPrefix(key, "miw/worker/")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(id, "/load")
}

// readMembers reads who is in the group, and looks again at what nobody drives
// if that has changed.
func (f *foreman) readMembers(v *fsm.View) {
	g, known := v.Group(fsm.WorkersGroup)
	if !known || g.Inputs == f.inputs {
		return
	}
	f.inputs = g.Inputs
	var members []candidate
	for m, s := range g.Members() {
		members = append(members, candidate{member: m, instance: s.InstanceID, takes: !s.Draining() && !s.Cordoned()})
	}
	if slices.Equal(members, f.members) {
		return
	}
	f.members = members
	for id, x := range f.files {
		if !x.driven && x.end == nil {
			f.act(id, x)
		}
	}
}

// news is why a worker that is loading is looked at.
type news uint8

const (
	ofChange  news = iota // something about it has changed
	ofRequest             // somebody was asked to load it just now
	ofOurs                // this instance was
)

// consider compares what is kept of a worker with the copy, and does what
// follows.
func (f *foreman) consider(v *fsm.View, id string, why news) {
	w, known := v.Worker(id)
	if !known || w.State != fsm.WorkerLoading {
		f.drop(id)
		return
	}
	x := f.files[id]
	if x == nil {
		x = &file{sighting: sighting{fresh: why != ofChange, free: time.Now()}}
		f.files[id] = x
	}
	x.ours = x.ours || why == ofOurs
	was := x.driven
	x.worker = w
	_, x.driven = v.Lease(fsm.LoadKey(id))
	if was && !x.driven {
		x.free, x.fresh, x.ours = time.Now(), false, false
	}
	f.act(id, x)
}

// act does what is to be done about a worker now, and comes back when there is
// something to be done later.
func (f *foreman) act(id string, x *file) {
	if x.end != nil || x.queued {
		return
	}
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
	members, bare := able(f.members, x.worker.Needs(x.worker.Next))
	switch {
	case !bare:
		x.bare = time.Time{}
	case x.bare.IsZero():
		x.bare = time.Now()
	}
	switch next, at := decide(id, f.c.InstanceID(), members, x.sighting, time.Now()); next {
	case toDrive:
		if f.driving == maxDrives {
			x.queued = true
			f.waiting = append(f.waiting, id)
			return
		}
		f.begin(id, x, f.drive)
	case toGiveUp:
		f.begin(id, x, f.giveUp)
	case toWait:
		if !at.IsZero() {
			f.later(id, x, time.Until(at))
		}
	}
}

// later acts once more after a while.
func (f *foreman) later(id string, x *file, after time.Duration) {
	x.timer = time.AfterFunc(after, func() {
		f.tell(func() {
			if f.files[id] == x {
				f.act(id, x)
			}
		})
	})
}

// begin has what is done about a worker done in the background.
func (f *foreman) begin(id string, x *file, do func(context.Context, *fsm.Worker) error) {
	ctx, cancel := context.WithCancel(f.ctx)
	x.end = cancel
	f.driving++
	w := x.worker
	f.work.Go(func() {
		defer cancel()
		err := do(ctx, w)
		f.tell(func() { f.ended(id, x, err) })
	})
}

// ended is called when that is over: with an error, when it is to be tried again.
func (f *foreman) ended(id string, x *file, err error) {
	f.driving--
	x.end, x.ours = nil, false
	if f.files[id] == x {
		v := f.c.View()
		if err == nil {
			x.failures = 0
			f.consider(v, id, ofChange)
		} else {
			x.failures++
			x.free = time.Now()
			f.log.Warn("could not see to the load of a worker; trying again", slog.String("worker_id", id), slog.Any("error", err))
			f.later(id, x, redriveAfter.Delay(x.failures, 0))
		}
	}
	for len(f.waiting) > 0 && f.driving < maxDrives {
		next := f.waiting[0]
		f.waiting = f.waiting[1:]
		if x := f.files[next]; x != nil && x.queued {
			x.queued = false
			f.act(next, x)
		}
	}
}

// drop forgets a worker that is not loading any more.
func (f *foreman) drop(id string) {
	x := f.files[id]
	if x == nil {
		return
	}
	delete(f.files, id)
	if x.timer != nil {
		x.timer.Stop()
	}
	if x.end != nil {
		x.end()
	}
}
