package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/coord/worker/runtimetest"
)

// TestFuncs_Runtime: functions do what every runtime must.
func TestFuncs_Runtime(t *testing.T) {
	funcs := map[string]func(context.Context, worker.Run) error{
		string(runtimetest.Print): func(_ context.Context, run worker.Run) error {
			run.Log.Info("hello")
			run.Log.Info("bye")
			return nil
		},
		string(runtimetest.Tell): func(_ context.Context, run worker.Run) error {
			for _, arg := range run.Args[1:] {
				run.Log.Info("arg " + arg)
			}
			run.Log.Info("greeting " + run.Env["GREETING"])
			run.Log.Info("config " + string(run.Config))
			run.Log.Info("key " + run.Key)
			run.Log.Info(fmt.Sprintf("token %d", run.Token))
			return nil
		},
		string(runtimetest.Fail): func(_ context.Context, run worker.Run) error {
			run.Log.Info("failing")
			return worker.Errorf(worker.TypeRunFailed, "failed: %w", errors.ErrUnsupported)
		},
		string(runtimetest.Finish): func(ctx context.Context, run worker.Run) error {
			run.Log.Info("ready")
			select {
			case <-run.Draining():
				run.Log.Info("finishing")
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
		string(runtimetest.Stay): func(ctx context.Context, run worker.Run) error {
			run.Log.Info("ready")
			<-ctx.Done()
			return context.Cause(ctx)
		},
	}
	runtimetest.Run(t, runtimetest.Kit{
		Runtime: func(*testing.T) worker.Runtime { return worker.Funcs(funcs) },
		Program: func(_ *testing.T, b runtimetest.Behaviour) worker.Program {
			return worker.Program{Source: string(b), Args: []string{string(b)}}
		},
		FailType: worker.TypeRunFailed,
		Refused: map[string]runtimetest.Refusal{
			"Unknown": {
				Program: func(*testing.T) worker.Program { return worker.Program{Source: "other"} },
				Type:    worker.TypeSourceNotFound, Says: `no function "other"`,
			},
		},
	})
}
