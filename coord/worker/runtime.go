package worker

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"

	"github.com/miwnode/miwnode/coord"
)

// Runtime runs the workers of one kind. It must be safe for concurrent use, and
// its faults must stay those of one worker.
type Runtime interface {
	// Name is the kind: the Runtime of a Spec. "func", "exec" and "wasm" are
	// those of this project.
	Name() string
	// Provides is what an instance with this runtime can run, as it tells the
	// cluster: the name alone, or name:source for each source of a kind whose
	// code is part of the program. It must not change while a Catalog runs.
	Provides() []string
	// Check refuses what can be seen to be wrong before anything is loaded. It
	// asks nobody and returns at once.
	Check(Spec) error
	// Load gets ready what the worker needs to run on this instance, and begins
	// nothing. It is called to find out whether the code is good, and again on
	// each instance that is to run it. It should return soon after ctx ends; an
	// *Error in what it returns says what is wrong, and whether trying again is
	// of use.
	Load(ctx context.Context, p Program) (Unit, error)
}

// Program is what a Runtime loads: a worker with one of its sources.
type Program struct {
	WorkerID string
	Name     string // as people are shown it
	Source   string // a path, an https URL, sha256:…, or the name of a function
	Code     Code   // nil where the code is part of the program: runtime "func"
	Args     []string
	Env      map[string]string
	Config   json.RawMessage // nil for none
	Log      *slog.Logger    // says of which worker it tells; never nil
}

// Code is code that was fetched and verified. It stays as it is for as long as
// anything may use it.
type Code interface {
	SHA256() string // lower-case hex
	Size() int64    // in bytes
	// Path is a file of this machine with exactly these bytes. It must not be
	// changed, and may be neither executable nor writable.
	Path() string
	Open() (io.ReadCloser, error)
}

// Artifacts gets hold of code. It must be safe for concurrent use.
type Artifacts interface {
	// Fetch returns the code of a source, from this node or from wherever it
	// is to be had. Where sha256 is not empty, the code has that digest:
	// ErrDigestMismatch else. It should return soon after ctx ends.
	Fetch(ctx context.Context, source, sha256 string) (Code, error)
}

// Unit is a worker loaded on this instance.
type Unit interface {
	// Run runs the worker once. It is called for one run at a time. It must
	// return soon after ctx ends, when nothing of the run goes on any more; nil
	// says that the worker has done what it had to. What it returns once it was
	// asked to finish or to stop counts for nothing.
	Run(ctx context.Context, run Run) error
	// Unload frees what Load has got ready. It is called once, and not while a
	// run is under way.
	Unload() error
}

// Run is one run of a worker.
type Run struct {
	WorkerID string
	Name     string
	Key      string // of the lease that it runs under: workers/<worker ID>
	Token    uint64 // of that grant, the same for all runs under it
	Number   int    // of the run under that grant, from 1
	Args     []string
	Env      map[string]string
	Config   json.RawMessage
	Log      *slog.Logger // says of which worker it tells; never nil
	// Lease is the grant, for Valid, Confirm and coord.Record. It is nil where
	// a test has none.
	Lease *coord.Lease
	// Drain is what Draining returns.
	Drain <-chan struct{}
}

// Draining is closed when the run should finish what it has begun: the worker
// is stopped, reloaded or moved. The context ends only when the drain timeout
// has passed.
func (r Run) Draining() <-chan struct{} { return r.Drain }
