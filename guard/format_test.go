//go:build linux

package guard_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"log/slog"
	"os/exec"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/guard"
)

// Ensure a guard that was stopped acts on the newest feed, not on a deadline that was moved meanwhile.
func TestWarden_ReadsBeforeItActs(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "stand-in", "child")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := watch(t, cmd.Process.Pid)
	defer cmd.Wait()
	defer p.kill(t, syscall.SIGKILL)
	told, err := guard.OverdueThenFed(cmd.Process.Pid)
	if err != nil || told {
		t.Errorf("told to stop: %v, %v; want not", told, err)
	}
}

// Ensure the error of a guard that does not answer says what that means and what to do.
func TestGreet_Silent(t *testing.T) {
	const want = "it did not answer within 1ms, so nothing was run: this machine has too much to do or no memory left; relieve it and try again"
	if err := guard.GreetSilent(time.Millisecond); err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestParseStat(t *testing.T) {
	const tail = " S 10 11 12 34816 11 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3"
	for line, want := range map[string]guard.Stat{
		"9 (sh)" + tail:                  {PID: 9, PPID: 10, PGID: 11, SID: 12, Start: 98765, State: 'S'},
		"9 (a) Z 1 (b)" + tail:           {PID: 9, PPID: 10, PGID: 11, SID: 12, Start: 98765, State: 'S'},
		"9 ()" + tail:                    {PID: 9, PPID: 10, PGID: 11, SID: 12, Start: 98765, State: 'S'},
		"9 (new\nline )" + tail + "\n":   {PID: 9, PPID: 10, PGID: 11, SID: 12, Start: 98765, State: 'S'},
		"4194304 (x)" + tail + " 1 2 3 ": {PID: 4194304, PPID: 10, PGID: 11, SID: 12, Start: 98765, State: 'S'},
	} {
		if got, err := guard.ParseStat([]byte(line)); err != nil || got != want {
			t.Errorf("%q: got %+v, %v; want %+v", line, got, err, want)
		}
	}
	for _, line := range []string{"", "9", "9 (sh", "9 sh) S", "x (sh)" + tail, "9 (sh) S 1 2", "9 (sh) S x 11 12 34816 11 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1"} {
		if _, err := guard.ParseStat([]byte(line)); err == nil {
			t.Errorf("%q was taken", line)
		}
	}
}

func TestParseRuns(t *testing.T) {
	const head = `{"version":1,"mark":"m","kernel_boot":"b"}` + "\n"
	const one, two = `{"run":1,"namespace":4,"pgid":7,"start":9}` + "\n", `{"run":2,"namespace":4,"pgid":8,"start":9}` + "\n"
	for content, want := range map[string]int{
		"":                                    0,
		head:                                  0,
		head + one + two:                      2,
		head + one + two + `{"end":1}` + "\n": 1,
		head + one + two[:20]:                 1,
		head[:10]:                             0,
		`{"version":1,"mark":"other","kernel_boot":"b"}` + "\n" + one: 0,
		`{"version":1,"mark":"m","kernel_boot":"other"}` + "\n" + one: 0,
	} {
		if got, err := guard.ParseRuns([]byte(content), "m", "b"); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", content, got, err, want)
		}
	}
	for _, content := range []string{"\n", "x\n" + one, head + "x\n" + one, `{"version":2,"mark":"m","kernel_boot":"b"}` + "\n"} {
		if _, err := guard.ParseRuns([]byte(content), "m", "b"); err == nil {
			t.Errorf("%q was taken", content)
		}
	}
}

func TestRunVariable(t *testing.T) {
	for _, test := range []struct{ env, want []string }{
		{nil, []string{"MIW_RUN=m.3"}},
		{[]string{"A=b", "MIW_GUARD_ROLE=shim", "MIW_RUN=o.1"}, []string{"A=b", "MIW_RUN=o.1,m.3"}},
		{[]string{"MIW_RUN="}, []string{"MIW_RUN=m.3"}},
	} {
		if got := guard.WithRun(test.env, "m", 3); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%v: got %v, want %v", test.env, got, test.want)
		}
	}
	for _, test := range []struct {
		value string
		run   uint64
		want  bool
	}{
		{"m.3", 3, true},
		{"m.3", 0, true},
		{"o.1,m.3", 3, true},
		{"m.3,o.1", 3, true},
		{"m.30", 3, false},
		{"m", 0, false},
		{"", 0, false},
		{"xm.3", 3, false},
		{"o.3", 3, false},
	} {
		if got := guard.Carries(test.value, "m", test.run); got != test.want {
			t.Errorf("%q carries m.%d: %v, want %v", test.value, test.run, got, test.want)
		}
	}
}

func FuzzCutFrame(f *testing.F) {
	f.Add(append(binary.BigEndian.AppendUint32(nil, 2), "{}x"...))
	f.Add([]byte{0, 0, 0})
	f.Add([]byte{255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if left, err := guard.CutFrame(b); err == nil && left > len(b)-4 {
			t.Errorf("%d bytes are left of %d", left, len(b))
		}
	})
}

func FuzzParseRuns(f *testing.F) {
	f.Add([]byte("{\"version\":1,\"mark\":\"m\",\"kernel_boot\":\"b\"}\n{\"run\":1}\n{\"end\":1}\n"))
	f.Fuzz(func(t *testing.T, b []byte) { guard.ParseRuns(b, "m", "b") })
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("9 (sh) S 10 11 12 34816 11 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3"))
	f.Fuzz(func(t *testing.T, b []byte) { guard.ParseStat(b) })
}

// Ensure that a guard whose owner is gone writes what the owner's logger would let through, as that would.
func TestNoteStyle(t *testing.T) {
	level := func(l slog.Level) *slog.HandlerOptions { return &slog.HandlerOptions{Level: l} }
	for _, test := range []struct {
		name   string
		logger *slog.Logger
		info   bool
		warn   bool
		json   bool
	}{
		{"none", nil, false, true, false},
		{"discarded", slog.New(slog.DiscardHandler), false, false, false},
		{"text", slog.New(slog.NewTextHandler(io.Discard, nil)).With("node", "n1"), true, true, false},
		{"json from warnings up", slog.New(slog.NewJSONHandler(io.Discard, level(slog.LevelWarn))), false, true, true},
		{"errors", slog.New(slog.NewTextHandler(io.Discard, level(slog.LevelError))), false, false, false},
		{"everything", slog.New(slog.NewJSONHandler(io.Discard, level(slog.LevelDebug))), true, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var info, warn bytes.Buffer
			guard.NoteLogger(test.logger, &info).Info("x")
			guard.NoteLogger(test.logger, &warn).Warn("x")
			if got := info.Len() > 0; got != test.info {
				t.Errorf("info written: %v, want %v", got, test.info)
			}
			if got := warn.Len() > 0; got != test.warn {
				t.Errorf("warning written: %v, want %v", got, test.warn)
			}
			if got := strings.HasPrefix(warn.String(), "{"); got != test.json {
				t.Errorf("JSON: %v, want %v", got, test.json)
			}
		})
	}
}
