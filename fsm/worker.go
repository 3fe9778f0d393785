package fsm

import (
	"iter"
	"slices"

	"github.com/tidwall/btree"
)

// WorkersGroup is the group that runs the workers. It is the state's own: what
// it wants follows from the records of the workers.
const WorkersGroup = "workers"

// workersVersion is the state version from which on the name is reserved.
const workersVersion = 3

// Restart policies of a worker.
const (
	RestartOnFailure = "on_failure" // the default
	RestartAlways    = "always"
	RestartNever     = "never"
)

// RuntimeFunc is the runtime of which an instance provides not all, but
// functions by their names.
const RuntimeFunc = "func"

// WorkerState is the state of a worker; numbers are those of fsmpb.WorkerState.
type WorkerState uint8

// States of a worker.
const (
	WorkerLoading    WorkerState = 1
	WorkerStopped    WorkerState = 2
	WorkerRunning    WorkerState = 3 // it is to run; its lease says whether it does
	WorkerLoadFailed WorkerState = 4
	WorkerFailed     WorkerState = 5 // its run failed and is not tried again
)

var workerStates = [...]string{"unknown", "loading", "stopped", "running", "load_failed", "failed"}

// String returns the name that the HTTP contract uses.
func (s WorkerState) String() string {
	if int(s) < len(workerStates) {
		return workerStates[s]
	}
	return workerStates[0]
}

// Source says where the code of a worker comes from. It never changes.
type Source struct {
	Text   string // path, https URL, sha256:…, name of a function
	SHA256 string // in hex; "" = of a function, or not known yet
	Size   int64  // in bytes; 0 = of a function, or not known yet
	By     string
	At     int64 // stamp, Unix nanoseconds
}

// WorkerError says what failed. It never changes.
type WorkerError struct {
	Type    string // a stable word
	Message string
}

// Worker is the record of a worker. One that a View hands out never changes.
type Worker struct {
	ID      string
	Name    string  // shown, need not be unique
	Runtime string  // func, exec, wasm
	Current *Source // loaded; nil = never
	// Next is being loaded, or its load failed; nil = neither.
	Next    *Source
	History []Source // oldest first, the last MaxSources

	Args    []string
	Env     []Label // sorted by key
	Config  []byte  // JSON; nil = none
	Tags    []Label // sorted by key
	Restart string  // RestartOnFailure, RestartAlways, RestartNever

	State          WorkerState
	StartRequested bool         // it starts once it is loaded; of loading and load_failed
	KeepsRunning   bool         // it runs Current while Next is loaded
	Error          *WorkerError // of the last load or run, if it failed
	Attempt        uint64       // to load: raised by create, reload and each new driver
	DriverToken    uint64       // of who drives this attempt; 0 = nobody yet
	Loaded         uint64       // the attempt by which Current was loaded; 0 = none
	StartedAfter   uint64       // newest token when it was last started: who runs it now has a greater one
	Tries          uint32       // of the last load whose outcome is known

	Etag      uint64 // counts the changes of the record, from 1
	CreatedAt int64  // stamp, Unix nanoseconds
	ChangedAt int64  // stamp
	Revision  uint64 // of the last change
}

// WorkerKey is the key of the lease under which a worker runs.
func WorkerKey(id string) string { return WorkloadKey(WorkersGroup, id) }

// LoadKey is the key of the lease whose holder loads a worker.
func LoadKey(id string) string { return "miw/worker/" + id + "/load" }

// Wanted reports whether the worker is to run, with Current.
func (w *Worker) Wanted() bool { return w.State == WorkerRunning || w.KeepsRunning }

// Needs says what an instance must provide to load or run a source of the
// worker: its runtime, and of functions the one (func:<name>).
func (w *Worker) Needs(src *Source) string {
	if w.Runtime == RuntimeFunc {
		return RuntimeFunc + ":" + src.Text
	}
	return w.Runtime
}

// spec is the worker as a workload of its group.
func (w *Worker) spec() *Spec {
	return &Spec{Key: w.ID, DisplayName: w.Name, Weight: 1, Labels: w.Tags, needs: w.Needs(w.Current)}
}

// again is the source that a reload without one loads.
func (w *Worker) again() Source {
	if w.Next != nil {
		return *w.Next
	}
	return *w.Current
}

// size is about what the record takes in memory and in a snapshot.
func (w *Worker) size() int {
	if w == nil {
		return 0
	}
	n := len(w.ID) + len(w.Name) + len(w.Config) + 256
	for _, a := range w.Args {
		n += len(a)
	}
	for _, l := range slices.Concat(w.Env, w.Tags) {
		n += len(l.Key) + len(l.Value)
	}
	for i := range w.History {
		n += len(w.History[i].Text) + len(w.History[i].By) + 64
	}
	return n
}

// workerTables is the tables of workers.
type workerTables struct {
	workers     btree.Map[string, *Worker]
	loading     btree.Map[string, *Worker] // those that are loading
	workerBytes int                        // of all records
}

// copyFor gives v its own copy; what is empty needs none.
func (t *workerTables) copyFor(v *workerTables) {
	if t.workers.Len() > 0 {
		v.workers = *t.workers.IsoCopy()
	}
	if t.loading.Len() > 0 {
		v.loading = *t.loading.IsoCopy()
	}
}

// Worker returns the worker of that ID.
func (v *View) Worker(id string) (*Worker, bool) { return v.workers.Get(id) }

// WorkerCount returns how many workers there are.
func (v *View) WorkerCount() int { return v.workers.Len() }

// Workers yields the workers after the ID after, in the order of their IDs.
func (v *View) Workers(after string) iter.Seq[*Worker] {
	return func(yield func(*Worker) bool) {
		v.workers.Ascend(after, func(id string, w *Worker) bool {
			return id == after && after != "" || yield(w)
		})
	}
}

// LoadingWorkers yields the workers that are loading, in the order of their IDs.
func (v *View) LoadingWorkers() iter.Seq[*Worker] {
	return func(yield func(*Worker) bool) {
		v.loading.Scan(func(_ string, w *Worker) bool { return yield(w) })
	}
}
