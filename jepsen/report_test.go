package jepsen_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

// reported is a history of processes with something of everything.
func reported() *jepsen.History {
	m := meta(20 * s)
	m.Tier, m.Name, m.Seed = "processes", "torture", 7
	m.Setup = &jepsen.Setup{
		Command: []string{"./miwnode", "torture", "--report", "out", "--for", "20s"}, Version: "v1", Tested: "v1", Network: "loopback",
		Nemesis: []string{"kill"}, Missing: []string{"lossy: <no netem>"}, Timing: map[string]string{"session-ttl": "4s"},
	}
	return &jepsen.History{
		Meta: m,
		Ops:  []jepsen.Op{acq(1, "a", 1*s, 2*s, 1), rel(1, "a", 9*s, 10*s, 1), lost(record(2, 3*s, 4*s, 0))},
		Runs: []jepsen.Run{on("n1", 1, 2*s, 9*s), on("n2", 2, 9900*time.Millisecond, 20*s)},
		Events: append([]jepsen.Event{{Revision: 1, Position: 0, Type: "leader.changed", Node: "n1", Reader: "n1", At: s}},
			jepsen.Event{Revision: 2, Type: "lease.granted", Key: "k", Token: 1, Reader: "n1", At: 2 * s},
			jepsen.Event{Revision: 3, Type: "lease.ended", Key: "k", Token: 1, Reason: "released", Reader: "n1", At: 10 * s},
			jepsen.Event{Revision: 4, Type: "lease.granted", Key: "k", Token: 2, Reader: "n1", At: 10 * s}),
		Windows: []jepsen.Window{hit("crash", 12*s, 13*s, "n3"), hit("end", 19*s, jepsen.Never, "n1", "n2", "n3")},
		Gauges:  []jepsen.Gauge{gauge("n1", 1, jepsen.Before, 100, 30), gauge("n1", 1, jepsen.After, 101, 31)},
		Leaves:  []jepsen.Leave{{Node: "n1", From: 19 * s, Took: s, Bound: 10 * s, Done: true}},
		Notes:   []jepsen.Note{{At: 5 * s, Node: "n1", Text: "</script><script>alert(1)</script>"}},
	}
}

// TestHistory_Processes ensures that what real processes add survives the file.
func TestHistory_Processes(t *testing.T) {
	h := reported()
	h.Exits = []jepsen.Exit{{Node: "n1", At: s, Code: 2, Last: "why"}}
	h.Found = []jepsen.Finding{{Check: jepsen.CheckLeaks, At: s, What: "process 7"}}
	var b bytes.Buffer
	if err := h.WriteJSONL(&b); err != nil {
		t.Fatal(err)
	}
	got, err := jepsen.ReadJSONL(&b)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, h) {
		t.Errorf("read\n%+v\nwrote\n%+v", got, h)
	}
}

// TestReplay ensures that a run can be repeated as it was, with another report.
func TestReplay(t *testing.T) {
	m := reported().Meta
	if got, want := jepsen.Replay(m), "./miwnode torture --for 20s --seed 7"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	m.Setup.Command = []string{"/a b/miwnode", "torture", "--seed=7", "--report=x"}
	if got, want := jepsen.Replay(m), "'/a b/miwnode' torture --seed=7"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestRecheck ensures that a report is judged anew from its history: a violation
// that is planted there is found, told, and shown on the page.
func TestRecheck(t *testing.T) {
	dir := t.TempDir()
	h := reported()
	rep := &jepsen.Report{History: h, Schedule: []jepsen.Step{{At: 12 * s, For: s, Fault: "crash", Node: "n3"}}, Verdicts: jepsen.CheckProcesses(h), Replay: jepsen.Replay(h.Meta)}
	if !rep.OK() {
		t.Fatalf("the history is bad as it is: %v", rep.Faults())
	}
	if err := rep.Write(dir); err != nil {
		t.Fatal(err)
	}
	again, err := jepsen.Recheck(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(again, rep) {
		t.Errorf("judged %+v, was %+v", again, rep)
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "All promises held") {
		t.Error("the page does not say that all promises held")
	}
	for _, want := range []string{`<td class="state">held</td><th scope="row">P1 one owner</th>`, `<td class="state">unseen</td><th scope="row">no start is lost</th>`} {
		if !strings.Contains(string(page), want) {
			t.Errorf("no %s on the page: a history without workers shows nothing of them", want)
		}
	}

	plant(t, filepath.Join(dir, "history.jsonl"), jepsen.Run{Proc: "n3/1", Node: "n3", Key: "k", Token: 3, Start: 15 * s, Stop: 16 * s, End: "killed"})
	broken, err := jepsen.Recheck(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{jepsen.CheckOverlap, jepsen.CheckRegister, jepsen.CheckAcks}; !slices.Equal(jepsen.FailedChecks(broken.Verdicts), want) {
		t.Errorf("failed %v, want %v", jepsen.FailedChecks(broken.Verdicts), want)
	}
	if page, err = os.ReadFile(filepath.Join(dir, "report.html")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Not held: P1 one owner, P1, P4 linearizable leases, P3 durability", `data-at="15000">15s</a>`, "1s of two owners"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("no %q on the page", want)
		}
	}
}

// plant adds a run to a recorded history.
func plant(t *testing.T, path string, r jepsen.Run) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := json.NewEncoder(f).Encode(map[string]any{"type": "run", "run": r}); err != nil {
		t.Fatal(err)
	}
}

var elsewhere = regexp.MustCompile(`(?i)(src|href)\s*=\s*"?(https?:)?//|@import|url\(|fetch\(|XMLHttpRequest`)

// TestReport_Page ensures that the page needs nothing from elsewhere, and that
// nothing of a history can break out of it.
func TestReport_Page(t *testing.T) {
	h := reported()
	h.Runs[0].Proc = "</script><script>alert(1)</script>"
	var b bytes.Buffer
	if err := (&jepsen.Report{History: h, Verdicts: jepsen.CheckProcesses(h)}).WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	if got := elsewhere.FindString(b.String()); got != "" {
		t.Errorf("the page asks for something from elsewhere: %q", got)
	}
	if strings.Contains(b.String(), "<script>alert(1)") {
		t.Error("a name from the history became a script")
	}
	if !strings.Contains(b.String(), "&lt;no netem&gt;") {
		t.Error("the page does not say what is missing")
	}
}

// TestMeasures ensures that gaps and calls are measured by their kind.
func TestMeasures(t *testing.T) {
	h := reported()
	gaps := h.Gaps()
	if len(gaps) != 1 || gaps[0].Name != "hand-over" || !slices.Equal(gaps[0].Took, []time.Duration{900 * time.Millisecond}) {
		t.Errorf("gaps %+v", gaps)
	}
	calls := h.Calls()
	if len(calls) != 2 || calls[0].Name != "acquire" || calls[0].Quantile(0.99) != s || calls[1].Name != "release" {
		t.Errorf("calls %+v", calls)
	}
	m := jepsen.Measure{Took: []time.Duration{1, 2, 3, 4}}
	if m.Quantile(0.5) != 3 || m.Quantile(1) != 4 || (&jepsen.Measure{}).Quantile(0.5) != 0 {
		t.Errorf("quantiles %v, %v", m.Quantile(0.5), m.Quantile(1))
	}
}
