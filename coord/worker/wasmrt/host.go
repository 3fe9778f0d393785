package wasmrt

import (
	"context"
	"io"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental/sys"
)

// What modules may import beside WASI.
const (
	hostName     = "miwnode"
	drainingName = "draining"
	waitName     = "wait"
)

// instantiateHost gives modules the functions of this project.
func instantiateHost(ctx context.Context, engine wazero.Runtime) error {
	_, err := engine.NewHostModuleBuilder(hostName).
		NewFunctionBuilder().WithFunc(draining).Export(drainingName).
		NewFunctionBuilder().WithFunc(wait).Export(waitName).
		Instantiate(ctx)
	return err
}

// runKey is the key of a run's stop in the context of its functions.
type runKey struct{}

// stop is how a run is told to end.
type stop struct {
	drain <-chan struct{}
	ended <-chan struct{} // of the run's context
}

// draining is miwnode.draining.
func draining(ctx context.Context) uint32 { return wait(ctx, 0) }

// wait is miwnode.wait.
func wait(ctx context.Context, ms int32) uint32 {
	s, _ := ctx.Value(runKey{}).(stop)
	if s.told() {
		return 1
	}
	if ms != 0 && s.await(time.Duration(ms)*time.Millisecond) {
		return 1
	}
	return 0
}

// told tells whether the run should finish.
func (s stop) told() bool {
	select {
	case <-s.drain:
		return true
	case <-s.ended:
		return true
	default:
		return false
	}
}

// await waits until the run should finish, at most that long; a negative time is for ever. It tells whether the run should.
func (s stop) await(d time.Duration) bool {
	var over <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-s.drain:
		return true
	case <-s.ended:
		return true
	case <-over:
		return false
	}
}

// sleep is what WASI's clocks wait with: only the end of the run cuts it short.
func (s stop) sleep(ns int64) { (stop{ended: s.ended}).await(time.Duration(max(ns, 0))) }

// stdin is an input that ends when the run should finish, and has nothing in it until then.
type stdin struct{ stop }

var (
	_ io.Reader    = stdin{}
	_ sys.Pollable = stdin{}
)

// Read implements io.Reader.
func (s stdin) Read([]byte) (int, error) {
	s.await(-1)
	return 0, io.EOF
}

// Poll implements sys.Pollable.
func (s stdin) Poll(flag sys.Pflag, timeoutMillis int32) (bool, sys.Errno) {
	if flag != sys.POLLIN {
		return false, sys.ENOTSUP
	}
	return s.told() || timeoutMillis != 0 && s.await(time.Duration(timeoutMillis)*time.Millisecond), 0
}
