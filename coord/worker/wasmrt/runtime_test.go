package wasmrt_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/coord/worker/runtimetest"
	"github.com/miwnode/miwnode/coord/worker/wasmrt"
)

func newRuntime(t *testing.T, cfg wasmrt.Config) *wasmrt.Runtime {
	t.Helper()
	r, err := wasmrt.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func behave(t *testing.T, does string) worker.Program {
	t.Helper()
	return worker.Program{Source: "behave.wasm", Code: runtimetest.CodeFile(t, "testdata/behave.wasm"), Args: []string{does}}
}

// Parts of modules that the tests make by hand.
const (
	header = "\x00asm\x01\x00\x00\x00"
	// type 0: () → (), type 1: (i64) → ()
	types     = "\x01\x08\x02\x60\x00\x00\x60\x01\x7e\x00"
	function  = "\x03\x02\x01\x00"     // one, of type 0
	functionL = "\x03\x02\x01\x01"     // one, of type 1
	onePage   = "\x05\x03\x01\x00\x01" // a memory of one page
	exports   = "\x07\x13\x02\x06memory\x02\x00\x06_start\x00\x00"
	body      = "\x0a\x04\x01\x02\x00\x0b"                     // one, which does nothing
	loop      = "\x0a\x09\x01\x07\x00\x03\x40\x0c\x00\x0b\x0b" // one, which never ends
)

// hand is a program of a module made by hand.
func hand(sections ...string) func(*testing.T) worker.Program {
	return text(header + strings.Join(sections, ""))
}

func text(content string) func(*testing.T) worker.Program {
	return func(t *testing.T) worker.Program {
		return worker.Program{Source: "x.wasm", Code: runtimetest.Code(t, []byte(content))}
	}
}

// TestRuntime: what every runtime must do.
func TestRuntime(t *testing.T) {
	whole, err := os.ReadFile("testdata/behave.wasm")
	if err != nil {
		t.Fatal(err)
	}
	refused := func(p func(*testing.T) worker.Program, says string) runtimetest.Refusal {
		return runtimetest.Refusal{Program: p, Type: worker.TypeInvalidModule, Says: says}
	}
	runtimetest.Run(t, runtimetest.Kit{
		Runtime: func(t *testing.T) worker.Runtime {
			return newRuntime(t, wasmrt.Config{MemoryLimit: 16 << 20, MaxModule: 1 << 20})
		},
		Program:  func(t *testing.T, b runtimetest.Behaviour) worker.Program { return behave(t, string(b)) },
		FailType: worker.TypeExited,
		Refused: map[string]runtimetest.Refusal{
			"Empty":        refused(text(""), "no WebAssembly module"),
			"Text":         refused(text("hello, world"), "no WebAssembly module"),
			"AsText":       refused(text("\n(module (memory 1))"), "wat2wasm"),
			"Script":       refused(text("#!/bin/sh\n"), "its runtime is exec"),
			"Program":      refused(text("\x7fELF\x02\x01\x01"), "its runtime is exec"),
			"Component":    refused(text("\x00asm\x0d\x00\x01\x00"), "core module is wanted"),
			"Version":      refused(text("\x00asm\x02\x00\x00\x00"), "unknown version (02000000)"),
			"CutShort":     refused(text(string(whole[:len(whole)/2])), "faulty"),
			"Rubbish":      refused(text(header+"rubbish"), "faulty"),
			"Nothing":      refused(hand(), "exports no _start"),
			"NoStart":      refused(hand(types, function, onePage, "\x07\x0a\x01\x06memory\x02\x00", body), "exports no _start"),
			"NoMemory":     refused(hand(types, function, "\x07\x0a\x01\x06_start\x00\x00", body), "exports no memory"),
			"StartTakes":   refused(hand(types, functionL, onePage, exports, body), "takes or returns something"),
			"Import":       refused(hand(types, "\x02\x0b\x01\x03env\x03foo\x00\x00", onePage, exports), "imports env.foo"),
			"ImportWASI":   refused(hand(types, "\x02\x1e\x01\x16wasi_snapshot_preview1\x03foo\x00\x00", onePage, exports), "imports wasi_snapshot_preview1.foo"),
			"ImportAs":     refused(hand(types, "\x02\x10\x01\x07miwnode\x04wait\x00\x01", function, onePage, strings.Replace(exports, "_start\x00\x00", "_start\x00\x01", 1), body), "imports miwnode.wait as (i64) → (), and it is (i32) → (i32)"),
			"ImportMemory": refused(hand(types, "\x02\x0f\x01\x03env\x06memory\x02\x00\x01", function, exports, body), "imports its memory"),
			// The engine alone would make room for all of them, and end the process.
			"Locals":  refused(hand(types, function, onePage, exports, "\x0a\x0a\x01\x08\x01\xff\xff\xff\xff\x0f\x7f\x0b"), "function of 4294967295 locals"),
			"Imports": refused(hand("\x02\x05\xff\xff\xff\xff\x0f"), "4294967295 imports in 0 bytes"),
			"TablesAtOnce": {
				Program: hand(types, function, "\x04\x0b\x02\x70\x00\xc0\x84\x3d\x70\x00\xd8\xb8\x44", onePage, exports, body), Type: worker.TypeMemoryLimit, Says: "begins with tables of 16573 KiB, at most 16384",
			},
			"TooLarge": {
				Program: text(header + strings.Repeat("\x00", 1<<20)), Type: worker.TypeTooLarge, Says: "at most 1048576",
			},
			"MemoryAtOnce": {
				Program: hand(types, function, "\x05\x04\x01\x00\x81\x02", exports, body), Type: worker.TypeMemoryLimit, Says: "begins with 16448 KiB of memory, at most 16384",
			},
		},
	})
}

// bench runs one worker.
type bench struct {
	t      *testing.T
	log    *runtimetest.Log
	drain  chan struct{}
	cancel context.CancelCauseFunc
	done   chan error
}

func start(t *testing.T, r *wasmrt.Runtime, p worker.Program) *bench {
	t.Helper()
	b := &bench{t: t, log: runtimetest.NewLog(t), drain: make(chan struct{}), done: make(chan error, 1)}
	unit, err := r.Load(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unit.Unload(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithCancelCause(context.Background())
	b.cancel = cancel
	go func() {
		b.done <- unit.Run(ctx, worker.Run{
			WorkerID: "w1", Name: "it", Key: "workers/w1", Token: 7, Number: 1, Args: p.Args, Log: b.log.Logger("it"), Drain: b.drain,
		})
	}()
	return b
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

var errEnough = errors.New("enough")

// TestRun_Ended: the context ends whatever a module does, and Run returns why.
func TestRun_Ended(t *testing.T) {
	r := newRuntime(t, wasmrt.Config{})
	for _, does := range []string{"stay", "call", "sleep", "wait", "stdin", "finish"} {
		t.Run(does, func(t *testing.T) {
			b := start(t, r, behave(t, does))
			b.log.Await("it", "ready")
			b.cancel(errEnough)
			if err := b.ended(); err != errEnough {
				t.Errorf("error %v, want the cause", err)
			}
		})
	}
}

// TestRun_WorldStops: a module that never returns does not keep the collector, and with it the whole process, from going on.
func TestRun_WorldStops(t *testing.T) {
	r := newRuntime(t, wasmrt.Config{})
	for _, p := range []worker.Program{behave(t, "stay"), hand(types, function, onePage, exports, loop)(t)} {
		b := start(t, r, p)
		if p.Args != nil {
			b.log.Await("it", "ready")
		}
		collected := make(chan struct{})
		go func() {
			defer close(collected)
			for range 10 {
				runtime.GC()
			}
		}()
		select {
		case <-collected:
		case <-time.After(runtimetest.Patience):
			t.Error("the collector waits for the module")
		}
		b.cancel(errEnough)
		if err := b.ended(); err != errEnough {
			t.Errorf("error %v, want the cause", err)
		}
	}
}

// TestRun_EndedInStart: a module can run before its _start does, which ends likewise.
func TestRun_EndedInStart(t *testing.T) {
	p := hand(types, function, onePage, exports, "\x08\x01\x00", loop)(t)
	b := start(t, newRuntime(t, wasmrt.Config{}), p)
	b.cancel(errEnough)
	if err := b.ended(); err != errEnough {
		t.Errorf("error %v, want the cause", err)
	}
}

// TestRun_Asked: each of the ways to learn that it should finish.
func TestRun_Asked(t *testing.T) {
	r := newRuntime(t, wasmrt.Config{})
	for _, does := range []string{"finish", "wait", "stdin"} {
		t.Run(does, func(t *testing.T) {
			b := start(t, r, behave(t, does))
			b.log.Await("it", "ready")
			close(b.drain)
			if err := b.ended(); err != nil {
				t.Error(err)
			}
			if got := b.log.Stream("it", "stdout"); !slices.Equal(got, []string{"ready", "finishing"}) {
				t.Errorf("it has written %q", got)
			}
		})
	}
}

// TestRun_Outcome: how a module ends is told from its error.
func TestRun_Outcome(t *testing.T) {
	r := newRuntime(t, wasmrt.Config{MemoryLimit: 16 << 20})
	for _, c := range []struct{ does, want, says string }{
		{"zero", "", ""},
		{"nap", "", ""},
		{"careful", "", ""},
		{"fail", worker.TypeExited, "the module exited with code 3"},
		{"minus", worker.TypeExited, "the module exited with code -1"},
		{"trap", worker.TypeTrapped, "the module trapped: wasm error: unreachable"},
		{"deep", worker.TypeTrapped, "the module trapped: stack overflow"},
		{"grow", worker.TypeMemoryLimit, "wanted more than the 16384 KiB of memory that it may have; then: the module trapped"},
		{"full", worker.TypeMemoryLimit, "wanted more than the 16384 KiB of memory that it may have; then: the module exited with code 8"},
	} {
		t.Run(c.does, func(t *testing.T) {
			err := start(t, r, behave(t, c.does)).ended()
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if e, ok := errors.AsType[*worker.Error](err); !ok || e.Type != c.want || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one of type %s that says %q", err, c.want, c.says)
			}
		})
	}
}

// TestRun_GlobalImported: what Load can't see fails the run, not the process.
func TestRun_GlobalImported(t *testing.T) {
	p := hand(types, "\x02\x0a\x01\x03env\x01g\x03\x7f\x00", function, onePage, exports, body)(t)
	err := start(t, newRuntime(t, wasmrt.Config{}), p).ended()
	if err == nil || !strings.Contains(err.Error(), "env") {
		t.Errorf("error %v", err)
	}
}

// TestRun_Alone: runs at once share nothing, and the trap of one is none of the others'.
func TestRun_Alone(t *testing.T) {
	r := newRuntime(t, wasmrt.Config{MemoryLimit: 4 << 20})
	stays := start(t, r, behave(t, "finish"))
	stays.log.Await("it", "ready")
	var wg sync.WaitGroup
	for _, does := range []string{"grow", "trap", "deep", "fail", "print"} {
		for range 4 {
			b := start(t, r, behave(t, does))
			wg.Go(func() {
				defer b.cancel(nil)
				if err := <-b.done; (err == nil) != (does == "print") {
					t.Errorf("%s: error %v", does, err)
				}
			})
		}
	}
	wg.Wait()
	close(stays.drain)
	if err := stays.ended(); err != nil {
		t.Error(err)
	}
}

// counted is code that counts how often it is read.
type counted struct {
	worker.Code
	reads *int
}

func (c counted) Open() (io.ReadCloser, error) {
	*c.reads++
	return c.Code.Open()
}

// TestLoad_Idle: what nobody uses any more stays compiled for a while, as far as there is room.
func TestLoad_Idle(t *testing.T) {
	r := newRuntime(t, wasmrt.Config{})
	padded := func(with byte) (p worker.Program, reads *int) {
		// A section of its own kind: 9 MiB and a name of one byte.
		const size = "\x82\x80\xc0\x04"
		p = hand(types, function, onePage, exports, body, "\x00"+size+"\x01x", strings.Repeat(string(with), 9<<20))(t)
		reads = new(int)
		p.Code = counted{p.Code, reads}
		return p, reads
	}
	use := func(p worker.Program) {
		t.Helper()
		unit, err := r.Load(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		log := runtimetest.NewLog(t)
		if err := unit.Run(t.Context(), worker.Run{Name: "it", Log: log.Logger("it"), Drain: make(chan struct{})}); err != nil {
			t.Error(err)
		}
		if err := unit.Unload(); err != nil {
			t.Error(err)
		}
	}
	a, readsA := padded('a')
	b, readsB := padded('b')
	for _, c := range []struct {
		use          worker.Program
		wantA, wantB int
	}{{a, 1, 0}, {a, 1, 0}, {a, 1, 0}, {b, 1, 1}, {b, 1, 1}, {a, 2, 1}, {a, 2, 1}, {b, 2, 2}} {
		use(c.use)
		if *readsA != c.wantA || *readsB != c.wantB {
			t.Fatalf("read %d and %d times, want %d and %d", *readsA, *readsB, c.wantA, c.wantB)
		}
	}
}

// TestNew: faults of the configuration are told.
func TestNew(t *testing.T) {
	for _, cfg := range []wasmrt.Config{{MemoryLimit: -1}, {MemoryLimit: 1<<32 + 1}, {MaxModule: -1}} {
		if _, err := wasmrt.New(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

// TestBehave: the binary is what its source makes, where the compiler is the one it was made with.
func TestBehave(t *testing.T) {
	rebuilt(t, "testdata/behave.c", "testdata/behave.wasm")
}

// TestExample does the same for the example.
func TestExample(t *testing.T) {
	const dir = "../../../examples/worker"
	rebuilt(t, filepath.Join(dir, "ticker.c"), filepath.Join(dir, "ticker.wasm"))
	p := worker.Program{Source: "ticker.wasm", Code: runtimetest.CodeFile(t, filepath.Join(dir, "ticker.wasm"))}
	if size := p.Code.Size(); size > 50<<10 {
		t.Errorf("the example has %d bytes", size)
	}
	b := start(t, newRuntime(t, wasmrt.Config{}), p)
	b.log.Await("it", "tick 1")
	close(b.drain)
	if err := b.ended(); err != nil {
		t.Error(err)
	}
	got := b.log.Stream("it", "stdout")
	if len(got) < 3 || got[0] != "it began under token 7" || got[len(got)-1] != "it is done" {
		t.Errorf("it has written %q", got)
	}
}

func rebuilt(t *testing.T, source, binary string) {
	t.Helper()
	version, err := exec.Command("clang", "--version").Output()
	if err != nil || !bytes.Contains(version, []byte("clang version 14.0.6")) {
		t.Skip("no clang 14.0.6")
	}
	made := filepath.Join(t.TempDir(), "made.wasm")
	if out, err := exec.Command("clang", "--target=wasm32-wasi", "-Os", "-s", "-o", made, source).CombinedOutput(); err != nil {
		t.Skipf("clang does not compile for wasm32-wasi: %s", out)
	}
	got, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(made)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes, and %s makes %d others", binary, len(got), source, len(want))
	}
}
