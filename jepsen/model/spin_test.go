package model_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// drops are the rules that the model can do without, and the promise that is
// broken then.
var drops = []struct {
	macro, rule, broken string
}{
	{"NO_ROUND", "2", p1},
	{"OLD_ANSWERS", "2", p1},
	{"NO_BARRIER", "3", p1},
	{"OLD_DEADLINES", "3", p1},
	{"FROM_RECEIPT", "4", p1},
	{"GRANT_TRUSTS", "4", p1},
	{"NO_COVER", "5", p1},
	{"NO_TERM", "6", p1},
	{"RENEWS_DECIDED", "6", p1},
	{"RELEASE_BY_KEY", "7", p1},
	{"REVOKE_AT_ONCE", "9", p1},
	{"NO_PROOF", "10", p1},
	{"TOKEN_OF_KEY", "P2", p2},
}

// The assertions of the model, as pan prints them.
const (
	p1 = "assertion violated  !(bworks)"
	p2 = "assertion violated (tok>most)"
)

// Ensures that the whole protocol keeps P1 and P2 in every state within the
// bounds, and that no line of the model is idle.
func TestLease_AllRules(t *testing.T) {
	out := check(t, "-O2")
	if !strings.Contains(out, "errors: 0") || strings.Contains(out, "not completed") || strings.Contains(out, "max search depth too small") {
		keepTrail(t)
		t.Fatalf("the model breaks a promise or was not searched to its end:\n%s", out)
	}
	for _, line := range regexp.MustCompile(`(?m)^\s.*, state \d+, .*$`).FindAllString(out, -1) {
		if !strings.Contains(line, `"-end-"`) {
			t.Errorf("no run of the model gets here: %s", strings.TrimSpace(line))
		}
	}
	t.Log(regexp.MustCompile(`\d+ states, stored`).FindString(out))
}

// Ensures that each rule is needed: without it the same model breaks the
// promise that the rule is there for.
func TestLease_RuleDropped(t *testing.T) {
	for _, d := range drops {
		t.Run("rule "+d.rule+" "+d.macro, func(t *testing.T) {
			if out := check(t, "-O0", "-D"+d.macro); !strings.Contains(out, d.broken) {
				t.Errorf("without rule %s the model should print %q:\n%s", d.rule, d.broken, out)
			}
		})
	}
}

// check runs spin on the model with the macros and returns what the search printed.
func check(t *testing.T, optimize string, macros ...string) string {
	t.Helper()
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the model is not checked: it needs the program %s (Debian package %s)", tool, tool)
		}
	}
	model, err := os.ReadFile("lease.pml") // read here, so that a cached result ends with a change of it
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("lease.pml", model, 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "spin", append(append([]string{"-a"}, macros...), "lease.pml")...)
	// Only assertions: the end of time is a deadlock that means nothing.
	run(t, "gcc", optimize, "-w", "-DSAFETY", "-DMEMLIM=2048", "-o", "pan", "pan.c")
	return run(t, "./pan", "-E", "-m5000")
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// keepTrail keeps the way to the violation: README.md tells how to read it.
func keepTrail(t *testing.T) {
	if trail, err := os.ReadFile("lease.pml.trail"); err == nil {
		path := filepath.Join(t.ArtifactDir(), "lease.pml.trail")
		if err := os.WriteFile(path, trail, 0o644); err == nil {
			t.Logf("trail in %s (kept with -artifacts)", path)
		}
	}
}
