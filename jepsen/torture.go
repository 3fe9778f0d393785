package jepsen

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Torture torments a cluster of real processes and judges what was seen.
type Torture struct {
	Binary string   // miwnode
	Worker []string // command of the workers, to which Worker's arguments are added
	Report string   // folder
	Nodes  int
	Length time.Duration // of the torment
	TTL    time.Duration // of the nodes' sessions; the other timings follow from it
	Seed   int64
	// Plagues are what the cluster suffers; those that it can't here are left out.
	Plagues []Plague
	// Network is one of the names of networks, or "" for the best that there is.
	Network string
	// Setup names versions and the command line; the rest is filled in.
	Setup Setup

	mu       sync.Mutex
	stage    string    // guarded by mu
	r        *Recorder // guarded by mu; nil before the nodes start
	began    time.Duration
	leader   string
	outcries []string // guarded by mu; violations that were seen at once
	notices  []string // guarded by mu
}

// Names of networks.
const (
	NetworkNamespaces = "namespaces"
	NetworkLoopback   = "loopback"
)

// timing makes a take-over visible in seconds: short of what users have, in the
// same proportions.
func (t *Torture) timing() Settings {
	return Settings{
		TTL: t.TTL, Renew: t.TTL / 8, Margin: max(t.TTL/10, 100*time.Millisecond), StopBudget: t.TTL / 8,
		DrainTimeout: 5 * time.Second, KillTimeout: time.Second, RaftTimeout: 300 * time.Millisecond,
	}
}

// Keys of the workers: singletons, workloads of the group "g", and those that
// programs with sessions of their own fight for.
var (
	tortureSingletons = []string{"solo1", "solo2", "solo3"}
	tortureGroup      = []string{"a", "b", "c", "d", "e"}
	tortureRaw        = []string{"raw1", "raw2"}
	tortureJobs       = []string{"job1", "job2"}
	// How long workers take to stop; one must always be killed.
	tortureStops = map[string]string{"solo2": "300ms", "solo3": "deaf", "g/b": "20ms", "g/c": "400ms"}
)

const tortureExec = "exec1"

// Run torments, judges and leaves the report. When ctx ends it stops early and
// judges what it has; when hurry ends it kills what is left, judges nothing and
// waits for nobody. Whatever happens, nothing of it stays on the machine but the
// report; what runs left that were killed themselves is removed.
func (t *Torture) Run(ctx, hurry context.Context) (rep *Report, err error) {
	dir, release, err := newFolder()
	if err != nil {
		return nil, fmt.Errorf("torture: %w", err)
	}
	c := &chamber{t: t, dir: dir}
	defer func() {
		if cerr := c.close(); cerr != nil {
			err = errors.Join(err, cerr)
		}
		release()
	}()
	swept := sweep(filepath.Dir(dir))
	t.notice(swept)
	if err := c.open(); err != nil {
		return nil, fmt.Errorf("torture: %w", err)
	}
	t.notice(swept)
	judged := make(chan *Report, 1)
	failed := make(chan error, 1)
	go func() {
		if err := c.start(ctx); err != nil {
			failed <- err
			return
		}
		judged <- t.play(ctx, c)
	}()
	select {
	case rep = <-judged:
	case err := <-failed:
		if ctx.Err() != nil { // nothing has failed, it was not waited for
			return nil, context.Cause(ctx)
		}
		return nil, errors.Join(err, c.keepLogs())
	case <-hurry.Done(): // what it does finds no cluster any more
		return nil, context.Cause(hurry)
	}
	if err := rep.Write(t.Report); err != nil {
		return nil, err
	}
	if err := c.keepLogs(); err != nil {
		return rep, err
	}
	if !rep.OK() {
		return rep, c.keepFolders()
	}
	return rep, nil
}

// play torments a cluster that has started, ends it and judges.
func (t *Torture) play(ctx context.Context, c *chamber) *Report {
	steps := c.torment(ctx)
	c.settle(ctx)
	c.stopAll()
	t.say("judging")
	h := c.r.Finish()
	return &Report{History: h, Schedule: steps, Verdicts: CheckProcesses(h), Replay: Replay(h.Meta)}
}

// Replay is the command line that repeats a run, with a report of its own.
func Replay(m Meta) string {
	if m.Setup == nil {
		return ""
	}
	var words []string
	seeded := false
	for i := 0; i < len(m.Setup.Command); i++ {
		switch w := m.Setup.Command[i]; {
		case w == "--report":
			i++
			continue
		case strings.HasPrefix(w, "--report="):
			continue
		case w == "--seed" || strings.HasPrefix(w, "--seed="):
			seeded = true
		}
		words = append(words, m.Setup.Command[i])
	}
	if !seeded {
		words = append(words, "--seed", fmt.Sprint(m.Seed))
	}
	for i, w := range words {
		if strings.ContainsAny(w, " '\"$\\") || w == "" {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// Progress is how far a run is.
type Progress struct {
	Stage           string
	Elapsed, Length time.Duration // of the torment
	Ops, Uncertain  int
	Grants, Runs    int
	Leader          string
	Faults          []Window // so far
	Violations      []string // that were seen at once; the judge may find more
	Notices         []string // what is not as it could be
}

// Progress tells how far the run is.
func (t *Torture) Progress() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := Progress{Stage: t.stage, Length: t.Length, Leader: t.leader, Violations: t.outcries, Notices: t.notices}
	if t.r == nil {
		return p
	}
	if t.began > 0 {
		p.Elapsed = min(t.r.Now()-t.began, t.Length)
	}
	t.r.progress(&p)
	return p
}

func (t *Torture) notice(notices []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notices = append(t.notices, notices...)
}

func (t *Torture) say(stage string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stage = stage
}

// progress fills in what is recorded.
func (r *Recorder) progress(p *Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.Ops, p.Runs, p.Faults = len(r.h.Ops), len(r.h.Runs), slices.Clone(r.h.Windows)
	p.Uncertain, p.Grants = r.uncertain, r.grants
}

// runsSoFar are the runs that have ended.
func (r *Recorder) runsSoFar() []Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.h.Runs)
}
