package wasmrt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/miwnode/miwnode/coord/worker"
)

// Defaults of Config.
const (
	DefaultMemoryLimit = 64 << 20
	DefaultMaxModule   = 32 << 20
)

// maxMemory is all that a module can address.
const maxMemory = 1 << 32

// Config says what modules may use. Zero fields mean their defaults.
type Config struct {
	// MemoryLimit bounds the memory of each run, in bytes, and as much again for
	// the tables of its module. Defaults to 64 MiB.
	MemoryLimit int64
	// MaxModule bounds the code of a worker, in bytes. Defaults to 32 MiB.
	MaxModule int64

	_ struct{}
}

// Runtime is the runtime "wasm". Close frees it.
type Runtime struct {
	cfg    Config
	engine wazero.Runtime
	turns  chan struct{} // a slot per compilation

	mu      sync.Mutex
	modules map[string]*module // guarded by mu: by digest
	idle    []*module          // guarded by mu: those that nobody uses, the longest unused first
}

var _ worker.Runtime = (*Runtime)(nil)

// New returns the runtime.
func New(cfg Config) (*Runtime, error) {
	if cfg.MemoryLimit < 0 || cfg.MemoryLimit > maxMemory || cfg.MaxModule < 0 {
		return nil, fmt.Errorf("runtime wasm: MemoryLimit is %d and MaxModule %d: they must be positive, the former at most %d", cfg.MemoryLimit, cfg.MaxModule, int64(maxMemory))
	}
	cfg.MemoryLimit, cfg.MaxModule = cmp.Or(cfg.MemoryLimit, DefaultMemoryLimit), cmp.Or(cfg.MaxModule, DefaultMaxModule)
	ctx := context.Background()
	// The memory's limit is kept by memory, which sees what was refused.
	engine := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().WithCloseOnContextDone(true))
	_, err := wasi_snapshot_preview1.Instantiate(ctx, engine)
	if err == nil {
		err = instantiateHost(ctx, engine)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("runtime wasm: %w", err), engine.Close(ctx))
	}
	return &Runtime{cfg: cfg, engine: engine, turns: make(chan struct{}, compilations), modules: map[string]*module{}}, nil
}

// Close frees the runtime. Nothing of it may run any more.
func (r *Runtime) Close() error { return r.engine.Close(context.Background()) }

// Name implements worker.Runtime.
func (r *Runtime) Name() string { return worker.RuntimeWasm }

// Provides implements worker.Runtime.
func (r *Runtime) Provides() []string { return []string{worker.RuntimeWasm} }

// Check implements worker.Runtime. Only the code can be wrong.
func (r *Runtime) Check(worker.Spec) error { return nil }

// Load implements worker.Runtime.
func (r *Runtime) Load(ctx context.Context, p worker.Program) (worker.Unit, error) {
	m, err := r.take(ctx, p.Code)
	if err != nil {
		return nil, err
	}
	return &unit{r, m}, nil
}
