package fsm

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// AllTopic is woken by every entry that changed something.
const AllTopic = "*"

const (
	leasePrefix    = "lease/"
	queuePrefix    = "queue/"
	grantPrefix    = "grant/"
	sessionPrefix  = "session/"
	instancePrefix = "instance/"
	groupPrefix    = "group/"
	jobPrefix      = "job/"
	workerPrefix   = "worker/"
)

// GroupsTopic is woken when any group changes.
const GroupsTopic = "groups"

// GroupTopic is woken when the group's inputs are raised, when it was planned,
// and when a workload of it fails, is moved or becomes free.
func GroupTopic(name string) string { return groupPrefix + name }

// WorkersTopic is woken when the record of any worker changes.
const WorkersTopic = "workers"

// WorkerTopic is woken when the record of the worker changes or goes.
func WorkerTopic(id string) string { return workerPrefix + id }

// JobTopic is woken when an execution of the job is recorded.
func JobTopic(key string) string { return jobPrefix + key }

// LeaseTopic is woken by every event of the lease of key.
func LeaseTopic(key string) string { return leasePrefix + key }

// QueueTopic is woken when the queue of key changes.
func QueueTopic(key string) string { return queuePrefix + key }

// GrantTopic is woken by the events of the lease of key that concern (session,
// holder) as its holder: who waits watches this, and not LeaseTopic, so that a
// grant wakes only the one that got it.
func GrantTopic(key, sessionID, holder string) string {
	return grantPrefix + sessionID + "\x00" + holder + "\x00" + key
}

// SessionTopic is woken when the session opens or ends, and when a lease of it changes.
func SessionTopic(id string) string { return sessionPrefix + id }

// InstanceTopic is woken when the instance joins, leaves or is marked.
func InstanceTopic(id string) string { return instancePrefix + id }

type topicKind uint8

const (
	topicNone topicKind = iota
	topicAll
	topicLease
	topicQueue
	topicGrant
	topicSession
	topicInstance
	topicGroups
	topicGroup
	topicJob
	topicWorkers
	topicWorker
)

// topic is what a topic string says, made without allocation.
type topic struct {
	kind                  topicKind
	name, session, holder string
}

func parseTopic(s string) topic {
	if s == AllTopic {
		return topic{kind: topicAll}
	}
	if s == GroupsTopic {
		return topic{kind: topicGroups}
	}
	if s == WorkersTopic {
		return topic{kind: topicWorkers}
	}
	kind, name, _ := strings.Cut(s, "/")
	switch kind + "/" {
	case leasePrefix:
		return topic{kind: topicLease, name: name}
	case queuePrefix:
		return topic{kind: topicQueue, name: name}
	case grantPrefix:
		session, rest, _ := strings.Cut(name, "\x00")
		holder, key, _ := strings.Cut(rest, "\x00")
		return topic{kind: topicGrant, name: key, session: session, holder: holder}
	case sessionPrefix:
		return topic{kind: topicSession, name: name}
	case instancePrefix:
		return topic{kind: topicInstance, name: name}
	case groupPrefix:
		return topic{kind: topicGroup, name: name}
	case jobPrefix:
		return topic{kind: topicJob, name: name}
	case workerPrefix:
		return topic{kind: topicWorker, name: name}
	}
	return topic{}
}

func (s *State) touch(t topic) { s.touched = append(s.touched, t) }

// watchers wakes by topic. It costs one atomic load while nobody watches.
type watchers struct {
	count atomic.Int64
	mu    sync.Mutex
	by    map[topic]map[chan struct{}]struct{} // guarded by mu
}

func (w *watchers) watch(topics []string) (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[topic]map[chan struct{}]struct{}{}
	}
	for _, name := range topics {
		t := parseTopic(name)
		if w.by[t] == nil {
			w.by[t] = map[chan struct{}]struct{}{}
		}
		w.by[t][ch] = struct{}{}
	}
	w.count.Add(1)
	return ch, sync.OnceFunc(func() { w.unwatch(ch, topics) })
}

func (w *watchers) unwatch(ch chan struct{}, topics []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count.Add(-1)
	for _, name := range topics {
		t := parseTopic(name)
		delete(w.by[t], ch)
		if len(w.by[t]) == 0 {
			delete(w.by, t)
		}
	}
}

// wake is called after the View that shows the change is published: who began to
// watch too late to be counted here reads that View.
func (w *watchers) wake(touched []topic, changed bool) {
	if w.count.Load() == 0 || len(touched) == 0 && !changed {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ring(topic{kind: topicAll})
	for _, t := range touched {
		w.ring(t)
	}
}

func (w *watchers) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for t := range w.by {
		w.ring(t)
	}
}

func (w *watchers) ring(t topic) {
	for ch := range w.by[t] {
		select {
		case ch <- struct{}{}:
		default: // it has a wake-up that it has not taken yet
		}
	}
}

// waits holds those who wait for a revision.
type waits struct {
	count atomic.Int64
	mu    sync.Mutex
	by    []*revisionWait // by revision, guarded by mu
}

type revisionWait struct {
	revision uint64
	done     chan struct{}
	n        int // who waits
}

func (w *waits) find(revision uint64) (int, bool) {
	return slices.BinarySearchFunc(w.by, revision, func(r *revisionWait, revision uint64) int {
		switch {
		case r.revision < revision:
			return -1
		case r.revision > revision:
			return 1
		}
		return 0
	})
}

// wait blocks until reached says so, having been called once with the caller
// counted, or done is closed.
func (w *waits) wait(ctx context.Context, revision uint64, reached func() bool, halted <-chan struct{}) error {
	w.count.Add(1)
	defer w.count.Add(-1)
	w.mu.Lock()
	i, ok := w.find(revision)
	if !ok {
		w.by = slices.Insert(w.by, i, &revisionWait{revision: revision, done: make(chan struct{})})
	}
	r := w.by[i]
	r.n++
	w.mu.Unlock()
	defer w.leave(r)
	if reached() {
		return nil
	}
	select {
	case <-r.done:
		return nil
	case <-halted:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *waits) leave(r *revisionWait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.n--; r.n > 0 {
		return
	}
	if i, ok := w.find(r.revision); ok && w.by[i] == r {
		w.by = slices.Delete(w.by, i, i+1)
	}
}

// reach wakes who waits for revision or an earlier one.
func (w *waits) reach(revision uint64) {
	if w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for n < len(w.by) && w.by[n].revision <= revision {
		close(w.by[n].done)
		n++
	}
	w.by = slices.Delete(w.by, 0, n)
}
