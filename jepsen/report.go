package jepsen

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Report is the evidence of one run.
type Report struct {
	History  *History
	Schedule []Step
	Verdicts []Verdict
	// Replay is the command that runs it again.
	Replay string
}

// OK tells whether every check passed.
func (r *Report) OK() bool { return len(FailedChecks(r.Verdicts)) == 0 }

// reportFile is report.json.
type reportFile struct {
	Meta     Meta      `json:"meta"`
	OK       bool      `json:"ok"`
	Replay   string    `json:"replay,omitempty"`
	Verdicts []Verdict `json:"verdicts"`
	Schedule []Step    `json:"schedule"`
	Counts   Counts    `json:"counts"`
}

// Counts say how much a history holds, so that an empty success is seen as such.
type Counts struct {
	Ops       int `json:"ops"`
	Uncertain int `json:"uncertain"`
	Runs      int `json:"runs"`
	Grants    int `json:"grants"`
	Events    int `json:"events"`
	Faults    int `json:"faults"`
	Samples   int `json:"samples"`
	Moves     int `json:"moves"` // of workloads of groups
	Rests     int `json:"rests"`
}

// Count counts what h holds.
func Count(h *History) Counts {
	c := Counts{Ops: len(h.Ops), Runs: len(h.Runs), Events: len(h.Events), Samples: len(h.Samples), Rests: len(h.Rests)}
	for i := range h.Ops {
		if h.Ops[i].Outcome == Uncertain {
			c.Uncertain++
		}
	}
	for i := range h.Windows {
		if !h.Windows[i].frames() {
			c.Faults++
		}
	}
	for _, e := range h.log() {
		switch e.Type {
		case eventGranted:
			c.Grants++
		case eventMoved:
			c.Moves++
		}
	}
	return c
}

// Files of a report's folder.
const (
	historyFile  = "history.jsonl"
	judgedFile   = "report.json"
	pageFile     = "report.html"
	timelineFile = "report.txt"
)

// Write leaves report.html, report.txt, report.json and history.jsonl in dir.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := writeFile(dir, historyFile, r.History.WriteJSONL); err != nil {
		return err
	}
	return r.writeJudgement(dir)
}

// writeJudgement writes everything but the history.
func (r *Report) writeJudgement(dir string) error {
	if err := writeFile(dir, judgedFile, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(reportFile{Meta: r.History.Meta, OK: r.OK(), Replay: r.Replay, Verdicts: r.Verdicts, Schedule: r.Schedule, Counts: Count(r.History)})
	}); err != nil {
		return err
	}
	if err := writeFile(dir, timelineFile, r.text); err != nil {
		return err
	}
	return writeFile(dir, pageFile, r.WriteHTML)
}

func writeFile(dir, name string, fill func(io.Writer) error) error {
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := fill(f); err != nil {
		f.Close()
		return fmt.Errorf("write report: %s: %w", name, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write report: %s: %w", name, err)
	}
	return nil
}

// Recheck judges the history in a report's folder again and rewrites the rest of
// the report.
func Recheck(dir string) (*Report, error) {
	f, err := os.Open(filepath.Join(dir, historyFile))
	if err != nil {
		return nil, fmt.Errorf("no report in %s: %w", dir, err)
	}
	defer f.Close()
	h, err := ReadJSONL(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	var was reportFile // for the schedule, which is no part of the history
	if raw, err := os.ReadFile(filepath.Join(dir, judgedFile)); err == nil {
		if err := json.Unmarshal(raw, &was); err != nil {
			return nil, fmt.Errorf("%s in %s: %w", judgedFile, dir, err)
		}
	}
	r := &Report{History: h, Schedule: was.Schedule, Replay: was.Replay, Verdicts: Check(h)}
	if h.Meta.Setup != nil {
		r.Verdicts = CheckProcesses(h)
	}
	return r, r.writeJudgement(dir)
}

// Summary is one line.
func (r *Report) Summary() string {
	m, c := r.History.Meta, Count(r.History)
	what := "all promises held"
	if !r.OK() {
		what = "FAILED: " + strings.Join(FailedChecks(r.Verdicts), ", ")
	}
	return fmt.Sprintf("%s seed %d: %s; %v, %d faults, %d operations (%d uncertain), %d grants, %d runs, %d events", m.Tier, m.Seed, what,
		m.Length.Round(time.Second), c.Faults, c.Ops, c.Uncertain, c.Grants, c.Runs, c.Events)
}

// Faults lists what the failed checks found, each with the name of its check.
func (r *Report) Faults() []string {
	var all []string
	for _, v := range r.Verdicts {
		for _, f := range v.Faults {
			all = append(all, v.Check+": "+f)
		}
	}
	return all
}

func (r *Report) text(w io.Writer) error {
	h := r.History
	fmt.Fprintf(w, "%s\n\n", r.Summary())
	fmt.Fprintf(w, "Run       %s (%s), nodes %s, TTL %v\n", h.Meta.Name, h.Meta.Tier, strings.Join(h.Meta.Nodes, " "), h.Meta.Bounds.TTL)
	if h.Meta.Defect != "" {
		fmt.Fprintf(w, "Planted   %s\n", h.Meta.Defect)
	}
	if r.Replay != "" {
		fmt.Fprintf(w, "Replay    %s\n", r.Replay)
	}
	fmt.Fprint(w, "\nVerdicts\n")
	for _, v := range r.Verdicts {
		state := v.Outcome()
		if !v.OK {
			state = "FAILED"
		}
		fmt.Fprintf(w, "  %-20s %-7s looked at %d\n", v.Check, state, v.Checked)
		for _, f := range v.Faults {
			fmt.Fprintf(w, "      %s\n", f)
		}
	}
	fmt.Fprint(w, "\nTimeline (observer's seconds; own = a client with its own session)\n")
	for _, l := range r.timeline() {
		fmt.Fprintf(w, "  %9.3f  %s\n", l.at.Seconds(), l.text)
	}
	return nil
}

type timed struct {
	at   time.Duration
	text string
}

// timeline is faults, notes, and runs of the wanted keys and of any key that a
// failed check names, in order of time.
func (r *Report) timeline() []timed {
	h := r.History
	var all []timed
	add := func(at time.Duration, format string, args ...any) {
		all = append(all, timed{at, fmt.Sprintf(format, args...)})
	}
	for _, w := range h.Windows {
		add(w.From, "fault  %s {", w.Text)
		if w.To != Never {
			add(w.To, "fault  } %s %s", w.Fault, strings.Join(w.Nodes, " "))
		}
	}
	for _, n := range h.Notes {
		add(n.At, "note   %s %s", n.Node, n.Text)
	}
	for _, run := range h.Runs {
		own := ""
		if run.Own {
			own = " own"
		}
		add(run.Start, "start  %s token %d in %s%s", run.Key, run.Token, run.Proc, own)
		add(run.Stop, "stop   %s token %d in %s%s (%s)", run.Key, run.Token, run.Proc, own, run.End)
	}
	for _, e := range h.log() {
		add(e.At, "event  %d.%d %s %s token %d %s %s (seen by %s)", e.Revision, e.Position, e.Type, e.Key, e.Token, e.Reason, e.Instance, e.Reader)
	}
	slices.SortStableFunc(all, func(a, b timed) int { return int(min(max(a.at-b.at, -1), 1)) })
	return all
}
