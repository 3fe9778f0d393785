package wasmrt

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/sys"

	"github.com/miwnode/miwnode/coord/worker"
)

// unit is a worker loaded in this process.
type unit struct {
	runtime *Runtime
	module  *module
}

var _ worker.Unit = (*unit)(nil)

// Unload implements worker.Unit.
func (u *unit) Unload() error { return u.runtime.drop(u.module) }

// Run implements worker.Unit.
func (u *unit) Run(ctx context.Context, run worker.Run) error {
	stdout, stderr := worker.NewOutput(run.Log, "stdout"), worker.NewOutput(run.Log, "stderr")
	defer stdout.Close()
	defer stderr.Close()
	s := stop{drain: run.Draining(), ended: ctx.Done()}
	cfg := wazero.NewModuleConfig().WithName("").WithStartFunctions().
		WithArgs(append([]string{run.Name}, run.Args...)...).
		WithStdin(stdin{s}).WithStdout(stdout).WithStderr(stderr).
		WithSysWalltime().WithSysNanotime().WithNanosleep(s.sleep).WithOsyield(runtime.Gosched).
		WithRandSource(rand.Reader)
	env := environment(run)
	for _, key := range slices.Sorted(maps.Keys(env)) {
		cfg = cfg.WithEnv(key, env[key])
	}
	mem := &memory{limit: uint64(u.runtime.cfg.MemoryLimit)}
	err := u.execute(experimental.WithMemoryAllocator(context.WithValue(ctx, runKey{}, s), mem), cfg)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return u.outcome(run.Log, err, mem)
}

// environment is what a module finds in its environment.
func environment(run worker.Run) map[string]string {
	env := maps.Clone(run.Env)
	if env == nil {
		env = make(map[string]string)
	}
	env["MIW_WORKER_ID"], env["MIW_KEY"], env["MIW_TOKEN"] = run.WorkerID, run.Key, fmt.Sprint(run.Token)
	if delete(env, "MIW_CONFIG"); len(run.Config) > 0 {
		env["MIW_CONFIG"] = string(run.Config)
	}
	return env
}

// execute makes an instance of the module and runs it to its end.
func (u *unit) execute(ctx context.Context, cfg wazero.ModuleConfig) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	instance, err := u.runtime.engine.InstantiateModule(ctx, u.module.compiled, cfg)
	if err != nil {
		return err
	}
	defer instance.Close(context.WithoutCancel(ctx))
	_, err = instance.ExportedFunction(startName).Call(ctx)
	return err
}

// outcome is what a run returns that ended by itself, so.
func (u *unit) outcome(log *slog.Logger, err error, mem *memory) error {
	if err == nil {
		return nil
	}
	fault := worker.Errorf(worker.TypeTrapped, "the module trapped: %s", firstLine(err))
	exit, exited := errors.AsType[*sys.ExitError](err)
	switch {
	case exited && exit.ExitCode() == 0:
		return nil
	case exited:
		fault = worker.Errorf(worker.TypeExited, "the module exited with code %d", int32(exit.ExitCode()))
	default:
		log.Warn("module trapped", slog.String("trace", err.Error()))
	}
	if mem.refused {
		return worker.Errorf(worker.TypeMemoryLimit, "the module wanted more than the %d KiB of memory that it may have; then: %w", u.runtime.cfg.MemoryLimit>>10, fault)
	}
	return fault
}
