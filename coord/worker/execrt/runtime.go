package execrt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/guard"
)

// Spawner runs commands under a guard. *node.Node does, with the guard of the node.
type Spawner interface {
	Spawn(context.Context, guard.Spec) (*guard.Process, error)
}

// Config says how commands are run.
type Config struct {
	// Spawner runs them.
	Spawner Spawner
	// Dir is a folder of the Runtime's own, made (0700) if missing. What is in it is removed. It must be on a file system that
	// allows programs to be run.
	Dir string
	// Addr is what commands find in MIW_ADDR. Empty: they find none.
	Addr string
	// Env is the environment that all commands have beside their own, as KEY=VALUE. Nil takes BaseEnv. The rest of this process's
	// environment is not handed on: there may be secrets in it.
	Env []string
	// StopBudget is the time between TERM and KILL where the lease is lost. Zero is the guard's.
	StopBudget time.Duration
	// KillTimeout is that time where the lease is still held. Zero is the guard's.
	KillTimeout time.Duration

	_ struct{}
}

// baseEnv are the variables that BaseEnv hands on.
var baseEnv = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
}

// BaseEnv is what this process's environment has of what most commands need: where programs, home and temporary files are, who it runs as,
// language, time zone, certificates.
func BaseEnv() []string {
	env := []string{} // not nil, which would be everything
	for _, key := range baseEnv {
		if v, set := os.LookupEnv(key); set {
			env = append(env, key+"="+v)
		}
	}
	return env
}

// Runtime is the runtime "exec".
type Runtime struct {
	cfg Config

	mu     sync.Mutex
	images map[string]*image // guarded by mu: by digest
}

var _ worker.Runtime = (*Runtime)(nil)

// New returns the runtime, with its folder empty.
func New(cfg Config) (*Runtime, error) {
	if cfg.Spawner == nil {
		return nil, errors.New("runtime exec: Spawner is nil: it takes a node")
	}
	if cfg.Dir == "" {
		return nil, errors.New("runtime exec: Dir is empty: name a folder for programs")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("runtime exec: %w", err)
	}
	cfg.Dir = dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("runtime exec: %w", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("runtime exec: %w", err)
	}
	for _, e := range left {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return nil, fmt.Errorf("runtime exec: %w", err)
		}
	}
	if cfg.Env == nil {
		cfg.Env = BaseEnv()
	}
	return &Runtime{cfg: cfg, images: map[string]*image{}}, nil
}

// Name implements worker.Runtime.
func (r *Runtime) Name() string { return worker.RuntimeExec }

// Provides implements worker.Runtime.
func (r *Runtime) Provides() []string { return []string{worker.RuntimeExec} }

// Check implements worker.Runtime. Whatever the state takes as arguments and variables a process can have.
func (r *Runtime) Check(worker.Spec) error { return nil }

// Load implements worker.Runtime.
func (r *Runtime) Load(ctx context.Context, p worker.Program) (worker.Unit, error) {
	img, err := r.take(ctx, p.Code)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(r.cfg.Dir, "work-*")
	if err != nil {
		return nil, errors.Join(worker.Errorf(worker.TypeLoadFailed, "make the worker's folder: %w", err), r.drop(img))
	}
	return &unit{runtime: r, image: img, dir: dir}, nil
}

// env is the environment of a run.
func (r *Runtime) env(run worker.Run) []string {
	vars := make(map[string]string)
	for _, v := range r.cfg.Env {
		key, value, _ := strings.Cut(v, "=")
		vars[key] = value
	}
	for key, value := range run.Env {
		vars[key] = value
	}
	vars["MIW_WORKER_ID"], vars["MIW_KEY"], vars["MIW_TOKEN"] = run.WorkerID, run.Key, fmt.Sprint(run.Token)
	for key, value := range map[string]string{"MIW_CONFIG": string(run.Config), "MIW_ADDR": r.cfg.Addr} {
		delete(vars, key)
		if value != "" {
			vars[key] = value
		}
	}
	env := make([]string, 0, len(vars))
	for key, value := range vars {
		env = append(env, key+"="+value)
	}
	slices.Sort(env)
	return env
}
