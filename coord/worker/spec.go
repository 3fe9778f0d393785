package worker

import (
	"encoding/json"

	"github.com/miwnode/miwnode/fsm"
)

// Names of the runtimes of this project.
const (
	RuntimeFunc = fsm.RuntimeFunc // a function of the program, by its name
	RuntimeExec = "exec"          // a command, as a process of its own
	RuntimeWasm = "wasm"          // a WASI module
)

// When a worker whose run has ended is run again.
const (
	RestartOnFailure = fsm.RestartOnFailure // the default: when it failed
	RestartAlways    = fsm.RestartAlways
	RestartNever     = fsm.RestartNever
)

// reservedEnv begins the names of variables that only the node sets.
const reservedEnv = "MIW_"

// Spec says what a worker is. Only its name, its runtime and its source are
// needed. None of it is changed later but the source, by a reload, and the tags.
type Spec struct {
	// Name is what people are shown: 1 to 256 bytes. Several workers may have
	// the same.
	Name string
	// Runtime is the kind of the worker: RuntimeFunc, RuntimeExec, RuntimeWasm.
	Runtime string
	// Source is the code: a path, an https URL, sha256:… of an artifact, or,
	// for RuntimeFunc, the name of a function.
	Source string
	// SHA256 is the digest of the code in hex. Empty: any code will do.
	SHA256 string
	// Args and Env are handed to each run. Names that begin with MIW_ are
	// reserved.
	Args []string
	Env  map[string]string
	// Config is any JSON of up to 64 KiB, handed to each run.
	Config json.RawMessage
	// Tags are for people and for List: at most 50, with keys of up to 128 and
	// values of up to 1024 bytes. The worker does not see them.
	Tags map[string]string
	// Restart says when it is run again. Defaults to RestartOnFailure.
	Restart string
	// Start asks that it runs as soon as it is loaded.
	Start bool
}

// Source is new code for a worker.
type Source struct {
	// Text is as Spec.Source. Empty: the same as before, loaded anew.
	Text string
	// SHA256 is as Spec.SHA256.
	SHA256 string
}
