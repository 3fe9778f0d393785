package wasmrt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/miwnode/miwnode/coord/worker"
)

const (
	startName  = "_start"
	memoryName = "memory"
	pageSize   = 64 << 10

	// compilers is how many goroutines compile one module. With more than one the compiler looks at its context.
	compilers = 2
	// compilations is how many modules are compiled at once: each may take twenty times its size of memory.
	compilations = 2
	// maxIdle is how much code is kept compiled that no worker has at present, in bytes of modules: what one node found good is
	// often run there next.
	maxIdle = 16 << 20
)

// How code begins: of a module, of a component, of a command.
const (
	magic     = "\x00asm"
	core      = magic + "\x01\x00\x00\x00"
	component = magic + "\x0d\x00\x01\x00"
)

// module is some code that was compiled, for all workers that have it.
type module struct {
	digest string
	size   int64
	users  int // guarded by Runtime.mu

	turn     chan struct{}         // one slot, held by whoever compiles it
	compiled wazero.CompiledModule // of whoever has the turn; nil until it is compiled
}

// take has the code compiled, unless it is.
func (r *Runtime) take(ctx context.Context, code worker.Code) (*module, error) {
	r.mu.Lock()
	m := r.modules[code.SHA256()]
	if m == nil {
		m = &module{digest: code.SHA256(), size: code.Size(), turn: make(chan struct{}, 1)}
		r.modules[m.digest] = m
	}
	if m.users++; m.users == 1 {
		r.idle = slices.DeleteFunc(r.idle, func(other *module) bool { return other == m })
	}
	r.mu.Unlock()
	if err := r.compile(ctx, m, code); err != nil {
		return nil, errors.Join(err, r.drop(m))
	}
	return m, nil
}

// drop is the end of one use of a module.
func (r *Runtime) drop(m *module) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.users--; m.users > 0 {
		return nil
	}
	if m.compiled == nil {
		delete(r.modules, m.digest)
		return nil
	}
	r.idle = append(r.idle, m)
	return r.evict()
}

// evict frees modules that nobody uses, the longest unused first, until the rest is small enough. r.mu is held.
func (r *Runtime) evict() (err error) {
	kept := int64(0)
	for _, m := range r.idle {
		kept += m.size
	}
	for ; kept > maxIdle; r.idle = r.idle[1:] {
		m := r.idle[0]
		kept -= m.size
		delete(r.modules, m.digest)
		err = errors.Join(err, m.compiled.Close(context.Background()))
	}
	return err
}

func (r *Runtime) compile(ctx context.Context, m *module, code worker.Code) error {
	for _, turn := range []chan struct{}{m.turn, r.turns} {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if m.compiled != nil {
			return nil
		}
	}
	if code.Size() > r.cfg.MaxModule {
		return worker.Errorf(worker.TypeTooLarge, "the module has %d bytes, at most %d are allowed", code.Size(), r.cfg.MaxModule)
	}
	f, err := code.Open()
	if err != nil {
		return err
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return worker.Errorf(worker.TypeLoadFailed, "read the module: %w", err)
	}
	if err := beginning(b); err != nil {
		return err
	}
	has, err := shapeOf(b)
	most := uint64(r.cfg.MemoryLimit) / entrySize
	switch {
	case err != nil:
		return worker.Errorf(worker.TypeInvalidModule, "the module is faulty: %w", err)
	case has.entries() > most:
		return worker.Errorf(worker.TypeMemoryLimit, "the module begins with tables of %d KiB, at most %d are allowed", has.entries()*entrySize>>10, r.cfg.MemoryLimit>>10)
	}
	compiled, err := r.engine.CompileModule(experimental.WithCompilationWorkers(ctx, compilers), has.bounded(b, most))
	switch {
	case ctx.Err() != nil:
		if err == nil {
			_ = compiled.Close(ctx)
		}
		return context.Cause(ctx)
	case err != nil:
		return worker.Errorf(worker.TypeInvalidModule, "the module is faulty: %s", firstLine(err))
	}
	if err := r.fits(compiled); err != nil {
		return errors.Join(err, compiled.Close(ctx))
	}
	m.compiled = compiled
	return nil
}

// beginning says what code is that is no module.
func beginning(b []byte) error {
	switch head := string(b[:min(len(b), len(core))]); {
	case head == core:
		return nil
	case head == component:
		return worker.Errorf(worker.TypeInvalidModule, "the code is a WebAssembly component, and a core module is wanted: build it for wasm32-wasip1")
	case strings.HasPrefix(head, magic):
		return worker.Errorf(worker.TypeInvalidModule, "the module has an unknown version (%x), or is cut short", strings.TrimPrefix(head, magic))
	case strings.HasPrefix(head, "#!"), strings.HasPrefix(head, "\x7fELF"):
		return worker.Errorf(worker.TypeInvalidModule, "the code is no WebAssembly module but a command: its runtime is exec")
	case bytes.HasPrefix(bytes.TrimSpace(b), []byte("(module")):
		return worker.Errorf(worker.TypeInvalidModule, "the code is a module as text: convert it first (wat2wasm)")
	}
	return worker.Errorf(worker.TypeInvalidModule, "the code is no WebAssembly module")
}

// fits looks whether a module can be run here.
func (r *Runtime) fits(m wazero.CompiledModule) error {
	start := m.ExportedFunctions()[startName]
	memory := m.ExportedMemories()[memoryName]
	switch {
	case start == nil:
		return worker.Errorf(worker.TypeInvalidModule, "the module exports no %s: build it as a command, not as a library", startName)
	case len(start.ParamTypes())+len(start.ResultTypes()) > 0:
		return worker.Errorf(worker.TypeInvalidModule, "the module's %s takes or returns something", startName)
	case memory == nil:
		return worker.Errorf(worker.TypeInvalidModule, "the module exports no %s", memoryName)
	case len(m.ImportedMemories()) > 0:
		return worker.Errorf(worker.TypeInvalidModule, "the module imports its memory instead of having one")
	case int64(memory.Min())*pageSize > r.cfg.MemoryLimit:
		return worker.Errorf(worker.TypeMemoryLimit, "the module begins with %d KiB of memory, at most %d are allowed", int64(memory.Min())*pageSize>>10, r.cfg.MemoryLimit>>10)
	}
	for _, f := range m.ImportedFunctions() {
		from, name, _ := f.Import()
		if err := r.imported(from, name, f); err != nil {
			return err
		}
	}
	return nil
}

// imported looks whether what a module imports is there.
func (r *Runtime) imported(from, name string, f api.FunctionDefinition) error {
	var there api.FunctionDefinition
	if host := r.engine.Module(from); host != nil {
		there = host.ExportedFunctionDefinitions()[name]
	}
	if there == nil {
		return worker.Errorf(worker.TypeInvalidModule, "the module imports %s.%s, which there is not; it may import what WASI preview 1 has (%s), and %s.%s and %s.%s",
			from, name, wasi_snapshot_preview1.ModuleName, hostName, drainingName, hostName, waitName)
	}
	if !slices.Equal(f.ParamTypes(), there.ParamTypes()) || !slices.Equal(f.ResultTypes(), there.ResultTypes()) {
		return worker.Errorf(worker.TypeInvalidModule, "the module imports %s.%s as %s, and it is %s", from, name, signature(f), signature(there))
	}
	return nil
}

func signature(f api.FunctionDefinition) string {
	list := func(types []api.ValueType) string {
		var names []string
		for _, t := range types {
			names = append(names, api.ValueTypeName(t))
		}
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("(%s) → (%s)", list(f.ParamTypes()), list(f.ResultTypes()))
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
