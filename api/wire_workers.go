package api

import (
	"encoding/json"
	"time"
)

// CreateWorkerRequest is the body of POST /v1/workers.
type CreateWorkerRequest struct {
	Name    string `json:"name"`
	Runtime string `json:"runtime"`
	// Source is a path on the node that is asked, an https URL, sha256:… of an
	// artifact, or, for func, the name of a function.
	Source string `json:"source"`
	// SHA256 is the digest that the code must have, in hex. A URL needs it.
	SHA256 string            `json:"sha256,omitempty"`
	Args   []string          `json:"args,omitempty"`
	Env    map[string]string `json:"env,omitempty"`
	Config json.RawMessage   `json:"config,omitempty"` // any JSON
	Tags   map[string]string `json:"tags,omitempty"`
	// Restart is on_failure unless said, always, or never.
	Restart string `json:"restart,omitempty"`
	Start   bool   `json:"start,omitempty"`
	By      string `json:"by,omitempty"`
}

// ReloadWorkerRequest is the body of POST /v1/workers/{id}/reload. Without a
// source it loads the same again.
type ReloadWorkerRequest struct {
	Source string `json:"source,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	By     string `json:"by,omitempty"`
}

// WorkerRequest is the body of start, stop and DELETE; it may be missing.
type WorkerRequest struct {
	By string `json:"by,omitempty"`
}

// WorkerTagsRequest is the body of PUT /v1/workers/{id}/tags: all tags, in place
// of those that there are.
type WorkerTagsRequest struct {
	Tags map[string]string `json:"tags"`
	By   string            `json:"by,omitempty"`
}

// WorkerChanged answers a change of a worker: its state, and the etag of the
// record as the change left it.
type WorkerChanged struct {
	Revision       uint64 `json:"revision"`
	WorkerID       string `json:"worker_id"`
	State          string `json:"state"`
	StartRequested bool   `json:"start_requested"`
	Etag           uint64 `json:"etag"`
	// Lacks, of a worker that was created, is as in Worker.
	Lacks string `json:"lacks,omitempty"`
}

// Workers answers GET /v1/workers, in the order of IDs.
type Workers struct {
	Revision uint64    `json:"revision"`
	Age      *Duration `json:"age,omitempty"`
	Workers  []Worker  `json:"workers"`
	Next     string    `json:"next,omitempty"`
}

// Worker answers GET /v1/workers/{id}, where it has a revision.
type Worker struct {
	Revision uint64    `json:"revision,omitempty"`
	Age      *Duration `json:"age,omitempty"`
	WorkerID string    `json:"worker_id"`
	Name     string    `json:"name"`
	Runtime  string    `json:"runtime"`
	// Source is what is loaded, or is to be if nothing was yet.
	Source string `json:"source"`
	SHA256 string `json:"sha256,omitempty"`
	Size   int64  `json:"size,omitempty"` // in bytes
	// Next is what a reload brings, or what could not be loaded.
	Next  *WorkerSource `json:"next,omitempty"`
	State string        `json:"state"`
	// StartRequested says that it starts once it is loaded.
	StartRequested bool `json:"start_requested"`
	// KeepsRunning says that it goes on with its source while next is loaded.
	KeepsRunning bool         `json:"keeps_running,omitempty"`
	Error        *WorkerError `json:"error,omitempty"`
	// Failing says that its runs fail while it is to run.
	Failing *WorkerFailing `json:"failing,omitempty"`
	// Lacks says why no node can load or run it though one should: nobody has
	// its runtime, or who has it takes no work.
	Lacks    string `json:"lacks,omitempty"`
	Attempts int    `json:"attempts"` // tries of the last load
	// InstanceID, NodeID and Token are of the lease under which it runs.
	InstanceID string            `json:"instance_id,omitempty"`
	NodeID     string            `json:"node_id,omitempty"`
	Token      uint64            `json:"token,omitempty"`
	Restart    string            `json:"restart"`
	Args       []string          `json:"args,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	Config     json.RawMessage   `json:"config,omitempty"`
	Tags       map[string]string `json:"tags"`
	CreatedAt  time.Time         `json:"created_at"`
	ChangedAt  time.Time         `json:"changed_at"`
	Etag       uint64            `json:"etag"`
	History    []WorkerSource    `json:"history"` // all its sources, the oldest first
}

// WorkerSource is where code of a worker comes from, and who asked for it.
type WorkerSource struct {
	Source string    `json:"source"`
	SHA256 string    `json:"sha256,omitempty"`
	Size   int64     `json:"size,omitempty"`
	By     string    `json:"by,omitempty"`
	At     time.Time `json:"at"`
}

// WorkerError says why the last load or run of a worker failed. Types are stable
// words, such as source_not_found or exited.
type WorkerError struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// WorkerFailing says that runs of a worker have failed, one after the other, or
// that who was to run it could not load it.
type WorkerFailing struct {
	Count  int         `json:"count"` // in a row
	Error  WorkerError `json:"error"` // of the last one
	NodeID string      `json:"node_id,omitempty"`
	At     time.Time   `json:"at"`
	// NextTry is when it is run again; nil: when an instance is found for it.
	NextTry *time.Time `json:"next_try,omitempty"`
}

// Artifact answers PUT /v1/artifacts. Its source is sha256: and the digest.
type Artifact struct {
	Revision uint64 `json:"revision"`
	SHA256   string `json:"sha256"`
	Size     int64  `json:"size"`
}
