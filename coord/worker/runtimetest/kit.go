package runtimetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/miwnode/miwnode/coord/worker"
)

// Behaviour is what a worker does.
type Behaviour string

// The behaviours.
const (
	// Print: it writes "hello" and "bye", a line each, the last one without a line feed where that can be, and is done.
	Print Behaviour = "print"
	// Tell: it writes what it was given and is done: "arg ARG" for each argument behind the first, "greeting $GREETING",
	// "config CONFIG", "key KEY", "token TOKEN".
	Tell Behaviour = "tell"
	// Fail: it writes "failing" and fails.
	Fail Behaviour = "fail"
	// Finish: it writes "ready"; once it is asked to finish it writes "finishing" and is done.
	Finish Behaviour = "finish"
	// Stay: it writes "ready" and goes on, whatever it is asked, until it is ended.
	Stay Behaviour = "stay"
)

// Kit is what the suite must know of a runtime.
type Kit struct {
	// Runtime makes one, and frees it when the test ends.
	Runtime func(t *testing.T) worker.Runtime
	// Program is a worker that behaves so: its source, its code, and an argument, which may say how. The suite sets the rest.
	Program func(t *testing.T, b Behaviour) worker.Program
	// FailType is the type of the error of a worker that fails.
	FailType string
	// Refused are programs that Load must refuse, by name.
	Refused map[string]Refusal
}

// Refusal is a program that can't be loaded.
type Refusal struct {
	Program func(t *testing.T) worker.Program
	Type    string // of the error
	Says    string // what its message has in it
}

// Code is code with these bytes, in a file that nobody can run.
func Code(t *testing.T, content []byte) worker.Code {
	t.Helper()
	path := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(path, content, 0o400); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return &code{hex.EncodeToString(sum[:]), path, content}
}

// CodeFile is code with the bytes of a file.
func CodeFile(t *testing.T, path string) worker.Code {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return Code(t, b)
}

type code struct {
	sha256, path string
	content      []byte
}

func (c *code) SHA256() string { return c.sha256 }
func (c *code) Size() int64    { return int64(len(c.content)) }
func (c *code) Path() string   { return c.path }

func (c *code) Open() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(c.content)), nil }
