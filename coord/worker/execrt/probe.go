package execrt

import (
	"bytes"
	"debug/elf"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/miwnode/miwnode/coord/worker"
)

// maxFirstLine is how much of a script the kernel reads.
const maxFirstLine = 256

// machines are the kinds of programs that a machine of a GOARCH runs. One that is not listed is left to the kernel.
var machines = map[string][]elf.Machine{
	"amd64": {elf.EM_X86_64, elf.EM_386},
	"arm64": {elf.EM_AARCH64, elf.EM_ARM},
}

// runnable says why this machine can't run a file, as far as can be told without doing it.
func runnable(f *os.File) error {
	head := make([]byte, maxFirstLine)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return worker.Errorf(worker.TypeLoadFailed, "read the command: %w", err)
	}
	head = head[:n]
	switch {
	case n == 0:
		return worker.Errorf(worker.TypeNotExecutable, "the command is an empty file")
	case bytes.HasPrefix(head, []byte("#!")):
		return script(head[2:])
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		return program(f)
	case bytes.HasPrefix(head, []byte("\x00asm")):
		return worker.Errorf(worker.TypeNotExecutable, "the command is a WebAssembly module; its runtime is wasm")
	}
	return worker.Errorf(worker.TypeNotExecutable, "the command is neither a program of this system (ELF) nor a script; a script begins with #! and the path of its interpreter")
}

// script looks for the interpreter; line is what follows the #!.
func script(line []byte) error {
	line, _, _ = bytes.Cut(line, []byte("\n"))
	name, _, _ := strings.Cut(strings.TrimLeft(string(line), " \t"), " ")
	name, _, _ = strings.Cut(name, "\t")
	switch bare, isDOS := strings.CutSuffix(name, "\r"); {
	case isDOS:
		return worker.Errorf(worker.TypeNotExecutable, "the script's first line ends with CR LF, so that its interpreter would be %q instead of %q", name, bare)
	case name == "":
		return worker.Errorf(worker.TypeNotExecutable, "the script names no interpreter after #!")
	}
	return needs("interpreter", name)
}

// program looks whether an ELF file is one for this machine.
func program(f *os.File) error {
	e, err := elf.NewFile(f)
	if err != nil {
		return worker.Errorf(worker.TypeNotExecutable, "the program is damaged or cut short: %w", err)
	}
	if known := machines[runtime.GOARCH]; known != nil && !slices.Contains(known, e.Machine) {
		return worker.Errorf(worker.TypeNotExecutable, "the program is for another kind of machine (%v) than this one (%s)", e.Machine, runtime.GOARCH)
	}
	if e.Type != elf.ET_EXEC && e.Type != elf.ET_DYN {
		return worker.Errorf(worker.TypeNotExecutable, "the file is no program (%v)", e.Type)
	}
	for _, p := range e.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz > maxFirstLine {
			continue
		}
		name := make([]byte, p.Filesz)
		if _, err := p.ReadAt(name, 0); err != nil {
			return worker.Errorf(worker.TypeNotExecutable, "the program is damaged or cut short: %w", err)
		}
		return needs("loader", strings.TrimRight(string(name), "\x00"))
	}
	return nil
}

// needs looks for a file that the kernel will need.
func needs(what, path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return worker.Errorf(worker.TypeNotExecutable, "the command's %s %q is not on this node: %w", what, path, err)
	}
	if !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return worker.Errorf(worker.TypeNotExecutable, "the command's %s %q is no program", what, path)
	}
	return nil
}
