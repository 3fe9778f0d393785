//go:build linux

package execrt_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/coord/worker/execrt"
	"github.com/miwnode/miwnode/coord/worker/runtimetest"
	"github.com/miwnode/miwnode/guard"
)

func newRuntime(t *testing.T, edit ...func(*execrt.Config)) *execrt.Runtime {
	t.Helper()
	g, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	cfg := execrt.Config{
		Spawner: g, Dir: filepath.Join(t.TempDir(), "run"), Addr: "/tmp/miw.sock",
		StopBudget: 200 * time.Millisecond, KillTimeout: 300 * time.Millisecond,
	}
	for _, e := range edit {
		e(&cfg)
	}
	r, err := execrt.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { empty(t, cfg.Dir) })
	return r
}

// empty fails the test if something is left in the runtime's folder.
func empty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left in the folder: %v, error %v", left, err)
	}
}

func behave(t *testing.T, does string) worker.Program {
	t.Helper()
	return worker.Program{Source: "behave.sh", Code: runtimetest.CodeFile(t, "testdata/behave.sh"), Args: []string{does}}
}

// TestRuntime: what every runtime must do.
func TestRuntime(t *testing.T) {
	text := func(content string) func(*testing.T) worker.Program {
		return func(t *testing.T) worker.Program {
			return worker.Program{Source: "x", Code: runtimetest.Code(t, []byte(content))}
		}
	}
	runtimetest.Run(t, runtimetest.Kit{
		Runtime:  func(t *testing.T) worker.Runtime { return newRuntime(t) },
		Program:  func(t *testing.T, b runtimetest.Behaviour) worker.Program { return behave(t, string(b)) },
		FailType: worker.TypeExited,
		Refused: map[string]runtimetest.Refusal{
			"Empty":         {Program: text(""), Type: worker.TypeNotExecutable, Says: "empty file"},
			"Text":          {Program: text("echo hello\n"), Type: worker.TypeNotExecutable, Says: "a script begins with #!"},
			"NoInterpreter": {Program: text("#!\necho hello\n"), Type: worker.TypeNotExecutable, Says: "names no interpreter"},
			"NotThere":      {Program: text("#!/no/such/shell -e\n"), Type: worker.TypeNotExecutable, Says: `interpreter "/no/such/shell" is not on this node`},
			"Folder":        {Program: text("#! /tmp\n"), Type: worker.TypeNotExecutable, Says: `interpreter "/tmp" is no program`},
			"NotExecutable": {Program: text("#!/etc/passwd\n"), Type: worker.TypeNotExecutable, Says: "is no program"},
			"DOS":           {Program: text("#!/bin/sh\r\necho hello\r\n"), Type: worker.TypeNotExecutable, Says: "ends with CR LF"},
			"Wasm":          {Program: text("\x00asm\x01\x00\x00\x00"), Type: worker.TypeNotExecutable, Says: "its runtime is wasm"},
			"CutShort":      {Program: text("\x7fELF\x02\x01\x01"), Type: worker.TypeNotExecutable, Says: "damaged or cut short"},
			"OtherMachine":  {Program: otherMachine, Type: worker.TypeNotExecutable, Says: "another kind of machine"},
			"Gone": {
				Program: func(t *testing.T) worker.Program {
					return worker.Program{Source: "x", Code: broken{runtimetest.Code(t, []byte("x"))}}
				},
				Type: worker.TypeSourceNotFound, Says: "damaged",
			},
		},
	})
}

// otherMachine is a program of this machine that says it is for a SPARC.
func otherMachine(t *testing.T) worker.Program {
	path, err := exec.LookPath("true")
	if err != nil {
		t.Skip(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const machine = 18 // offset in the header
	b[machine], b[machine+1] = 2, 0
	return worker.Program{Source: "x", Code: runtimetest.Code(t, b)}
}

// bench runs one worker.
type bench struct {
	t      *testing.T
	log    *runtimetest.Log
	unit   worker.Unit
	args   []string
	drain  chan struct{}
	cancel context.CancelCauseFunc
	done   chan error
}

func start(t *testing.T, r *execrt.Runtime, does string) *bench {
	t.Helper()
	b := &bench{t: t, log: runtimetest.NewLog(t), args: []string{does}, drain: make(chan struct{}), done: make(chan error, 1)}
	p := behave(t, does)
	p.WorkerID, p.Name, p.Log = "w1", "it", b.log.Logger("it")
	unit, err := r.Load(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unit.Unload(); err != nil {
			t.Error(err)
		}
	})
	b.unit = unit
	b.run()
	return b
}

func (b *bench) run() {
	ctx, cancel := context.WithCancelCause(context.Background())
	b.cancel = cancel
	go func() {
		b.done <- b.unit.Run(ctx, worker.Run{
			WorkerID: "w1", Name: "it", Key: "workers/w1", Token: 7, Number: 1, Args: b.args, Log: b.log.Logger("it"), Drain: b.drain,
		})
	}()
}

func (b *bench) ended() error {
	b.t.Helper()
	defer b.cancel(nil)
	select {
	case err := <-b.done:
		return err
	case <-time.After(runtimetest.Patience):
		b.t.Fatalf("the run does not return; it has written %q", b.log.Lines("it"))
		return nil
	}
}

// gone fails the test if a process still runs.
func gone(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(n, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is still there (%v)", n, err)
	}
}

// TestRun_Family: when Run has returned all that a worker has started is gone, whether it was stopped or its lease lost.
func TestRun_Family(t *testing.T) {
	for name, cause := range map[string]error{"stopped": coord.ErrDrained, "lost": coord.ErrLost} {
		t.Run(name, func(t *testing.T) {
			dir := ""
			b := start(t, newRuntime(t, func(c *execrt.Config) { dir = c.Dir }), "family")
			b.log.Await("it", "ready")
			files, err := filepath.Glob(filepath.Join(dir, "work-*", "child"))
			if err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			child, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			b.cancel(cause)
			err = b.ended()
			if !errors.Is(err, &worker.Error{Type: worker.TypeExited}) || !strings.Contains(err.Error(), "signal 9") {
				t.Errorf("error %v, want the signal that ended it", err)
			}
			gone(t, string(child))
		})
	}
}

// TestRun_Orphan: a worker that is done takes along what it has left behind.
func TestRun_Orphan(t *testing.T) {
	b := start(t, newRuntime(t), "orphan")
	if err := b.ended(); err != nil {
		t.Error(err)
	}
	for _, line := range b.log.Stream("it", "stdout") {
		if pid, ok := strings.CutPrefix(line, "left "); ok {
			gone(t, pid)
			return
		}
	}
	t.Errorf("it has written %q", b.log.Lines("it"))
}

// TestRun_Place: a worker has a folder of its own, which stays from run to run, and an environment without the node's secrets.
func TestRun_Place(t *testing.T) {
	t.Setenv("MIW_TEST_SECRET", "hidden")
	dir := ""
	b := start(t, newRuntime(t, func(c *execrt.Config) { dir = c.Dir }), "here")
	if err := b.ended(); err != nil {
		t.Fatal(err)
	}
	b.run()
	if err := b.ended(); err != nil {
		t.Fatal(err)
	}
	got := b.log.Stream("it", "stdout")
	const about = "id w1 addr /tmp/miw.sock secret none"
	if len(got) != 5 || !strings.HasPrefix(got[0], "in "+dir+"/work-") || got[2] != got[0] || got[1] != about || got[3] != about || got[4] != "has mine" {
		t.Errorf("it has written %q", got)
	}
}

// TestRun_Signal: a worker that is killed says by what.
func TestRun_Signal(t *testing.T) {
	err := start(t, newRuntime(t), "signal").ended()
	if !errors.Is(err, &worker.Error{Type: worker.TypeExited}) || !strings.Contains(err.Error(), "ended by signal 9 (killed)") {
		t.Errorf("error %v", err)
	}
}

// TestRun_Code: the exit code is in the error, and stderr has a stream of its own.
func TestRun_Code(t *testing.T) {
	b := start(t, newRuntime(t), "fail")
	if err := b.ended(); err == nil || err.Error() != "the command exited with code 3" {
		t.Errorf("error %v", err)
	}
	if got := b.log.Stream("it", "stderr"); !slices.Equal(got, []string{"failing"}) {
		t.Errorf("stderr has %q", got)
	}
}

// TestRun_NotFed: where no lease allows a command to run none does.
func TestRun_NotFed(t *testing.T) {
	g, err := guard.Start(guard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close(context.Background())
	err = start(t, newRuntime(t, func(c *execrt.Config) { c.Spawner = g }), "print").ended()
	if !errors.Is(err, guard.ErrNotFed) || !errors.Is(err, &worker.Error{Type: worker.TypeRunFailed}) {
		t.Errorf("error %v, want ErrNotFed", err)
	}
}

// TestRun_Deadline: when nobody confirms the lease any more the guard ends the worker, and Run returns.
func TestRun_Deadline(t *testing.T) {
	g, err := guard.Start(guard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close(context.Background())
	if err := feed(g, time.Hour); err != nil {
		t.Fatal(err)
	}
	b := start(t, newRuntime(t, func(c *execrt.Config) { c.Spawner = g }), "stay")
	b.log.Await("it", "ready")
	if err := feed(g, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := b.ended(); err == nil || !strings.Contains(err.Error(), "signal 9") {
		t.Errorf("error %v", err)
	}
}

// TestRun_Vanished: a command that is not there any more, or whose interpreter went after it was loaded, fails the run with its type.
func TestRun_Vanished(t *testing.T) {
	interpreter := filepath.Join(t.TempDir(), "sh")
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(interpreter, sh, 0o700); err != nil {
		t.Fatal(err)
	}
	r := newRuntime(t)
	unit, err := r.Load(t.Context(), worker.Program{Source: "x", Code: runtimetest.Code(t, []byte("#!"+interpreter+"\n"))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unit.Unload() }()
	if err := os.Remove(interpreter); err != nil {
		t.Fatal(err)
	}
	log := runtimetest.NewLog(t)
	err = unit.Run(t.Context(), worker.Run{WorkerID: "w1", Key: "workers/w1", Log: log.Logger("it"), Drain: make(chan struct{})})
	if !errors.Is(err, &worker.Error{Type: worker.TypeNotExecutable}) {
		t.Errorf("error %v, want one of type not_executable", err)
	}
}

// TestLoad_Shared: workers of one code share one copy, which nobody can change, and which goes with the last of them.
func TestLoad_Shared(t *testing.T) {
	dir := ""
	r := newRuntime(t, func(c *execrt.Config) { dir = c.Dir })
	units := make([]worker.Unit, 20)
	var wg sync.WaitGroup
	for i := range units {
		wg.Go(func() {
			u, err := r.Load(context.Background(), behave(t, "print"))
			if err != nil {
				t.Error(err)
			}
			units[i] = u
		})
	}
	wg.Wait()
	copies, err := filepath.Glob(filepath.Join(dir, strings.Repeat("[0-9a-f]", 64)))
	if err != nil || len(copies) != 1 {
		t.Fatalf("copies %v, error %v", copies, err)
	}
	if st, err := os.Stat(copies[0]); err != nil || st.Mode() != 0o500 {
		t.Errorf("mode %v, error %v", st.Mode(), err)
	}
	for i, u := range units {
		if _, err := os.Stat(copies[0]); err != nil {
			t.Fatalf("after %d of 20: %v", i, err)
		}
		if err := u.Unload(); err != nil {
			t.Error(err)
		}
	}
	empty(t, dir)
}

// broken is code that can't be read.
type broken struct{ worker.Code }

func (broken) Open() (io.ReadCloser, error) {
	return nil, worker.Errorf(worker.TypeSourceNotFound, "it was damaged on disk")
}

// TestNew: what an earlier start has left goes, and faults of the configuration are told.
func TestNew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := os.MkdirAll(filepath.Join(dir, "work-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "work-1", "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := execrt.New(execrt.Config{Spawner: nobody{}, Dir: dir}); err != nil {
		t.Fatal(err)
	}
	empty(t, dir)
	for _, cfg := range []execrt.Config{{Dir: dir}, {Spawner: nobody{}}, {Spawner: nobody{}, Dir: "/proc/none"}} {
		if _, err := execrt.New(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

type nobody struct{}

func (nobody) Spawn(context.Context, guard.Spec) (*guard.Process, error) { return nil, guard.ErrClosed }

// TestRun_Busy: a program that seems to be written to is tried again.
func TestRun_Busy(t *testing.T) {
	g, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	s := &busy{Guard: g, times: 3}
	b := start(t, newRuntime(t, func(c *execrt.Config) { c.Spawner = s }), "print")
	if err := b.ended(); err != nil || s.times != 0 {
		t.Errorf("error %v, %d left", err, s.times)
	}
	s.times = 1000
	b.run()
	if err := b.ended(); !errors.Is(err, &worker.Error{Type: worker.TypeNotExecutable}) || s.times != 990 {
		t.Errorf("error %v, %d left", err, s.times)
	}
}

// busy refuses some times as the kernel does with a program that is being written.
type busy struct {
	*guard.Guard
	times int
}

func (b *busy) Spawn(ctx context.Context, s guard.Spec) (*guard.Process, error) {
	if b.times > 0 {
		b.times--
		return nil, &guard.StartError{Command: s.Argv[0], Code: guard.CodeNotExecutable, Reason: syscall.ETXTBSY.Error()}
	}
	return b.Guard.Spawn(ctx, s)
}

// TestExample: the shell worker of the examples finishes when it is asked to.
func TestExample(t *testing.T) {
	r := newRuntime(t)
	log := runtimetest.NewLog(t)
	unit, err := r.Load(t.Context(), worker.Program{Source: "ticker.sh", Code: runtimetest.CodeFile(t, "../../../examples/worker/ticker.sh")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unit.Unload() }()
	drain, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- unit.Run(context.Background(), worker.Run{WorkerID: "w1", Name: "it", Key: "workers/w1", Token: 7, Log: log.Logger("it"), Drain: drain})
	}()
	log.Await("it", "tick 1")
	close(drain)
	if err := <-done; err != nil {
		t.Error(err)
	}
	got := log.Stream("it", "stdout")
	if len(got) < 3 || got[0] != "began under token 7" || got[len(got)-1] != "finishing" {
		t.Errorf("it has written %q", got)
	}
}
