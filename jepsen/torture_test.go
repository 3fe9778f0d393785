package jepsen_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

// tortures runs the command as a user does, with a folder for temporary files of
// its own that must be empty afterwards.
type tortures struct {
	t   *testing.T
	bin string
	tmp string
}

func newTortures(t *testing.T) *tortures {
	t.Helper()
	processTier(t)
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp("", "miwq-") // short: sockets lie in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	return &tortures{t: t, bin: bin, tmp: tmp}
}

func (x *tortures) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, x.bin, append([]string{"torture"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+x.tmp)
	return cmd
}

// run runs it to its end.
func (x *tortures) run(args ...string) (code int, stdout, stderr string) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), 3*time.Minute)
	defer cancel()
	cmd := x.command(ctx, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil && !isExit(err) {
		x.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errOut.String()
}

func isExit(err error) bool {
	_, ok := errors.AsType[*exec.ExitError](err)
	return ok
}

// leavesNothing looks for folders, processes and namespaces of runs.
func (x *tortures) leavesNothing() {
	x.t.Helper()
	entries, err := os.ReadDir(x.tmp)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, e := range entries {
		x.t.Errorf("%s is left", filepath.Join(x.tmp, e.Name()))
	}
	for _, pid := range processesOf(x.tmp) {
		x.t.Errorf("process %d is left", pid)
	}
	mounts, _ := os.ReadFile("/proc/mounts")
	if strings.Contains(string(mounts), x.tmp) {
		x.t.Error("a mount is left")
	}
}

// TestProcessTorture runs a short torture on loopback as a user does: exit code,
// report, nothing left on the machine; and a violation that is planted in what was
// recorded is found when it is judged again.
func TestProcessTorture(t *testing.T) {
	x := newTortures(t)
	dir := filepath.Join(t.TempDir(), "report")
	code, out, errOut := x.run("--nodes", "3", "--for", "15s", "--network", "loopback", "--seed", "11", "--report", dir)
	if code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", code, out, errOut)
	}
	x.leavesNothing()
	for _, want := range []string{"all promises held", "held    P1 one owner", "report.html", "--seed 11"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for _, name := range []string{"report.html", "report.txt", "report.json", "history.jsonl", "logs/n1.log", "logs/n2.log", "logs/n3.log"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v, want a file with something in it", name, err)
		}
	}
	f, err := os.Open(filepath.Join(dir, "history.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, err := jepsen.ReadJSONL(f)
	if err != nil {
		t.Fatal(err)
	}
	// A promise that was never tried has not been kept.
	if c := jepsen.Count(h); c.Grants < 15 || c.Runs < 15 || c.Faults < 2 || c.Samples < 5 || c.Ops < 50 {
		t.Errorf("too little happened to judge by: %+v", c)
	}

	// Of a run that lasted, its middle once more, elsewhere.
	twin := h.Runs[0]
	for _, r := range h.Runs {
		if r.Node != "" && r.Stop-r.Start > twin.Stop-twin.Start {
			twin = r
		}
	}
	twin.Proc, twin.Node, twin.Start = "n9/1", "n9", (twin.Start+twin.Stop)/2
	plant(t, filepath.Join(dir, "history.jsonl"), twin)
	code, out, errOut = x.run("--check", dir)
	if code != 1 || !strings.Contains(errOut, "P1 one owner (run-overlap)") || !strings.Contains(out, twin.Key) {
		t.Errorf("a planted overlap: exit code %d, want 1 and the promise by name\n%s\n%s", code, out, errOut)
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil || !strings.Contains(string(page), "Not held: ") {
		t.Errorf("the page was not rewritten: %v", err)
	}
}

// TestProcessTorture_Interrupted ensures that ^C ends it with a report, and a second
// one at once and without, and that neither leaves anything behind.
func TestProcessTorture_Interrupted(t *testing.T) {
	for _, c := range []struct {
		name   string
		signal int // how often
		awaits []string
		report bool
	}{
		{"once", 1, []string{"tormenting", " + "}, true}, // " + " is a fault
		{"twice", 2, []string{"tormenting", " + "}, false},
		{"while it starts", 1, []string{" nodes, 10m0s"}, false}, // its first line
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newTortures(t)
			dir := filepath.Join(t.TempDir(), "report")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := x.command(ctx, "--for", "10m", "--network", "loopback", "--report", dir)
			var errOut bytes.Buffer
			cmd.Stderr = &errOut
			lines := started(t, cmd)
			for _, text := range c.awaits {
				await(t, lines, text)
			}
			var last time.Time
			for i := range c.signal {
				last = time.Now()
				if err := cmd.Process.Signal(os.Interrupt); err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					await(t, lines, "Stopping early")
				}
			}
			rest, _ := io.ReadAll(lines)
			_ = cmd.Wait() // the code says it
			// Usually it takes less than half a second.
			if took := time.Since(last); !c.report && took > 5*time.Second {
				t.Errorf("the last ^C ended it after %v", took)
			}
			if code, want := cmd.ProcessState.ExitCode(), 128+int(syscall.SIGINT); code != want {
				t.Errorf("exit code %d, want %d\n%s\n%s", code, want, rest, errOut.String())
			}
			if _, err := os.Stat(filepath.Join(dir, "report.html")); (err == nil) != c.report {
				t.Errorf("report: %v, want one: %v", err, c.report)
			}
			x.leavesNothing()
		})
	}
}

// started starts cmd and returns what it writes.
func started(t *testing.T, cmd *exec.Cmd) *bufio.Reader {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(out)
}

// TestProcessTorture_Killed ensures that what a killed one left is removed by the
// next, at once, and that it says so.
func TestProcessTorture_Killed(t *testing.T) {
	x := newTortures(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args := []string{"--for", "10m", "--report", filepath.Join(t.TempDir(), "report")}
	first := x.command(ctx, args...)
	await(t, started(t, first), "tormenting")
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait() // it was killed
	folders, err := filepath.Glob(filepath.Join(x.tmp, "*"))
	if err != nil || len(folders) != 1 || len(processesOf(folders[0])) == 0 {
		t.Fatalf("%v is left (%v): want one folder, and processes of it", folders, err)
	}
	second := x.command(ctx, args...)
	lines := started(t, second)
	await(t, lines, "note: removed what was left of a torture that was killed: "+folders[0]+" with ")
	if left := processesOf(folders[0]); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	if _, err := os.Lstat(folders[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", folders[0], err)
	}
	await(t, lines, "tormenting")
	for _, until := range []string{"Stopping early", ""} {
		if err := second.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if until != "" {
			await(t, lines, until)
		}
	}
	_, _ = io.ReadAll(lines)
	_ = second.Wait() // it was interrupted
	x.leavesNothing()
	for _, pid := range []int{first.Process.Pid, second.Process.Pid} {
		if spaces, _ := filepath.Glob(fmt.Sprintf("/run/netns/miw%d-*", pid)); len(spaces) > 0 {
			t.Errorf("%v are left", spaces)
		}
	}
}

func await(t *testing.T, lines *bufio.Reader, want string) {
	t.Helper()
	var seen strings.Builder
	for {
		line, err := lines.ReadString('\n')
		seen.WriteString(line)
		if err != nil {
			t.Fatalf("%v before a line with %q:\n%s", err, want, seen.String())
		}
		if strings.Contains(line, want) {
			return
		}
	}
}
