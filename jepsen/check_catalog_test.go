package jepsen_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

// wk is the worker of the histories below.
const wk = "workers/x"

// told is what events of one revision tell of the worker: their types, who asked
// for it and the state after it, "!" for one that is to start.
func told(rev uint64, at time.Duration, types, by, state string) (all []jepsen.Event) {
	state, starts := strings.CutSuffix(state, "!")
	for i, what := range strings.Fields(types) {
		all = append(all, jepsen.Event{
			Revision: rev, Position: uint32(i + 1), Type: "worker." + what, Key: wk, By: by, Reader: "n1", At: at,
			Worker: &jepsen.WorkerSeen{Name: "w", State: state, StartRequested: starts},
		})
	}
	return all
}

// asked is a call on the worker that was answered with an etag.
func asked(by string, kind jepsen.Kind, call, ret time.Duration, etag uint64) jepsen.Op {
	return jepsen.Op{Stream: 1, Kind: kind, Key: wk, By: by, Call: call, Return: ret, Outcome: jepsen.OK, Got: etag, Worker: &jepsen.WorkerSeen{Source: "good"}}
}

func refused(by string, kind jepsen.Kind, call, ret time.Duration, demands uint64, code string) jepsen.Op {
	o := asked(by, kind, call, ret, 0)
	o.Token, o.Outcome, o.Code = demands, jepsen.Refused, code
	return o
}

// unanswered is one whose outcome nobody knows.
func unanswered(by string, kind jepsen.Kind, call time.Duration) jepsen.Op {
	o := asked(by, kind, call, jepsen.Never, 0)
	o.Stream, o.Outcome, o.Code = 2, jepsen.Uncertain, "uncertain"
	return o
}

// shown is how a read showed it; who is "rest" at rest.
func shown(who string, at time.Duration, etag uint64, state string) jepsen.Op {
	state, starts := strings.CutSuffix(state, "!")
	o := asked("", jepsen.KindShow, at, at+s/10, etag)
	o.Stream, o.Who, o.Worker = 3, who, &jepsen.WorkerSeen{Source: "good", State: state, StartRequested: starts}
	return o
}

// failing is a show whose worker has a source that is not sound, and an error.
func failing(o jepsen.Op, source, err string) jepsen.Op {
	return with(o, func(w *jepsen.WorkerSeen) { w.Source, w.Error = source, err })
}

func with(o jepsen.Op, change func(*jepsen.WorkerSeen)) jepsen.Op {
	w := *o.Worker
	change(&w)
	o.Worker = &w
	return o
}

func demands(o jepsen.Op, etag uint64) jepsen.Op { o.Token = etag; return o }

func tagged(o jepsen.Op, tags string) jepsen.Op {
	return with(o, func(w *jepsen.WorkerSeen) { w.Tags = tags })
}

func from(o jepsen.Op, source string) jepsen.Op {
	return with(o, func(w *jepsen.WorkerSeen) { w.Source = source })
}

// load is one of the worker's code that ended, ok or not.
func load(source string, from, until time.Duration, ok bool) jepsen.Loading {
	return jepsen.Loading{Proc: "n1/1", Key: wk, Source: source, Start: from, Stop: until, OK: ok}
}

func workerRun(from, until time.Duration) jepsen.Run {
	return jepsen.Run{Proc: "n1/1", Node: "n1", Key: wk, Token: 9, Start: from, Stop: until, End: "open"}
}

// the life that most of the histories below begin with: created, loaded by an
// attempt that counts, and started while it was loading.
var (
	creates   = asked("c.1", jepsen.KindCreate, 0, s, 1)
	starts    = asked("c.2", jepsen.KindStart, 2*s, 3*s, 3)
	created   = told(1, s, "created", "c.1", "loading")
	requested = told(2, 3*s, "start_requested", "c.2", "loading!")
	goes      = told(3, 4*s, "loaded started", "", "running")
	running   = slices.Concat(created, requested, goes)
	atRest9   = shown("rest", 9*s, 4, "running")
)

var catalogHistories = []struct {
	name string
	h    jepsen.History
	bad  []string
}{
	{name: "started while it loads", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, shown("c", 5*s, 4, "running"), atRest9}, Events: running, Runs: []jepsen.Run{workerRun(5*s, 10*s)},
	}},
	{name: "the request is lost when the load ends", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, shown("rest", 9*s, 4, "stopped")}, Events: slices.Concat(created, requested, told(3, 4*s, "loaded", "", "stopped")),
	}, bad: []string{jepsen.CheckCatalogEvents, jepsen.CheckLostStart}},
	{name: "the start is answered and nowhere", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, shown("rest", 9*s, 4, "stopped")}, Events: slices.Concat(created, told(3, 4*s, "loaded", "", "stopped")),
	}, bad: []string{jepsen.CheckCatalogRecord, jepsen.CheckLostStart}},
	{name: "it is to run, and nothing runs", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, atRest9}, Events: running, Runs: []jepsen.Run{workerRun(5*s, 6*s)},
	}, bad: []string{jepsen.CheckLostStart}},
	{name: "it is gone", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, refused("", jepsen.KindShow, 6*s, 7*s, 0, "not_found")}, Events: running,
	}, bad: []string{jepsen.CheckCatalogRecord}},
	{name: "stopped afterwards", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, asked("c.3", jepsen.KindStop, 5*s, 6*s, 5), shown("rest", 9*s, 5, "stopped")},
		Events: slices.Concat(running, told(4, 6*s, "stopped", "c.3", "stopped")),
	}},
	{name: "stopped before", h: jepsen.History{
		Ops: []jepsen.Op{
			creates, asked("c.0", jepsen.KindStop, s, s+s/2, 1), starts, shown("rest", 9*s, 4, "stopped"),
		}, Events: slices.Concat(created, requested, told(3, 4*s, "loaded", "", "stopped")),
	}, bad: []string{jepsen.CheckCatalogEvents, jepsen.CheckLostStart}},
	{name: "an unanswered stop that was carried out", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, unanswered("c.3", jepsen.KindStop, 5*s), shown("rest", 9*s, 5, "stopped")},
		Events: slices.Concat(running, told(4, 8*s, "stopped", "c.3", "stopped")),
	}},
	{name: "an unanswered stop that was not", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, unanswered("c.3", jepsen.KindStop, 5*s), atRest9}, Events: running, Runs: []jepsen.Run{workerRun(5*s, 10*s)},
	}},
	{name: "stopped by an event that a call carried out before it was made", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, unanswered("c.3", jepsen.KindStop, 8*s)},
		Events: slices.Concat(running, told(4, 6*s, "stopped", "c.3", "stopped")),
	}, bad: []string{jepsen.CheckCatalogRecord}},
	{name: "its load fails for good", h: jepsen.History{
		Ops:    []jepsen.Op{from(creates, "bad"), starts, failing(shown("rest", 9*s, 4, "load_failed!"), "bad", "invalid_module")},
		Events: slices.Concat(created, requested, told(3, 4*s, "load_failed", "", "load_failed!")),
	}},
	{name: "its load fails, and nobody says why", h: jepsen.History{
		Ops:    []jepsen.Op{from(creates, "bad"), starts, failing(shown("rest", 9*s, 4, "load_failed!"), "bad", "")},
		Events: slices.Concat(created, requested, told(3, 4*s, "load_failed", "", "load_failed!")),
	}, bad: []string{jepsen.CheckLostStart}},
	{name: "what is sound does not load", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, failing(shown("rest", 9*s, 4, "load_failed!"), "good", "load_failed")},
		Events: slices.Concat(created, requested, told(3, 4*s, "load_failed", "", "load_failed!")),
	}, bad: []string{jepsen.CheckLostStart}},
	{name: "its run ends by itself", h: jepsen.History{
		Ops:    []jepsen.Op{from(creates, "done"), starts, failing(shown("rest", 9*s, 5, "stopped"), "done", "")},
		Events: slices.Concat(running, told(4, 6*s, "stopped", "", "stopped")),
	}},
	{name: "its run ended by itself, before it was reloaded with what is sound", h: jepsen.History{
		Ops: []jepsen.Op{from(creates, "done"), starts, asked("c.3", jepsen.KindReload, 6*s, 7*s, 6), shown("rest", 9*s, 7, "stopped")},
		Events: slices.Concat(running, told(4, 5*s, "stopped", "", "stopped"), told(5, 7*s, "reloading", "c.3", "loading"),
			told(6, 8*s, "loaded", "", "stopped")),
	}},
	{name: "two calls in one entry of the log", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, asked("c.3", jepsen.KindStop, 5*s, 6*s, 5), func() jepsen.Op {
			o := asked("c.4", jepsen.KindStart, 5*s, 6*s, 6)
			o.Stream = 2
			return o
		}(), shown("rest", 9*s, 6, "running")},
		Events: slices.Concat(running, told(4, 6*s, "stopped", "c.3", "stopped"), func() []jepsen.Event {
			e := told(4, 6*s, "started", "c.4", "running")
			e[0].Position = 2
			return e
		}()),
		Runs: []jepsen.Run{workerRun(8*s, 10*s)},
	}},
	{name: "still loading at rest", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, shown("rest", 9*s, 4, "loading!")}, Events: slices.Concat(created, requested),
	}, bad: []string{jepsen.CheckLostStart}},

	{name: "an event is missing", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts}, Events: slices.Concat(created, requested, told(4, 6*s, "stopped", "c.3", "stopped")),
	}, bad: []string{jepsen.CheckCatalogRecord, jepsen.CheckCatalogEvents}},
	{name: "an event comes twice", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts}, Events: slices.Concat(running, told(4, 6*s, "started", "", "running")),
	}, bad: []string{jepsen.CheckCatalogRecord, jepsen.CheckCatalogEvents}},
	{name: "one call changes it twice", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, asked("c.3", jepsen.KindReload, 5*s, 6*s, 5)},
		Events: slices.Concat(running, told(4, 6*s, "reloading", "c.3", "loading"), told(5, 6*s, "loaded", "", "running"),
			told(6, 6*s, "reloading", "c.3", "loading")),
	}, bad: []string{jepsen.CheckCatalogRecord, jepsen.CheckCatalogEvents}},
	{name: "a load ends without a start that was asked for", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts}, Events: slices.Concat(created, requested, told(3, 4*s, "loaded", "", "running")),
	}, bad: []string{jepsen.CheckCatalogEvents}},
	{name: "a reload that is answered has no event", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, asked("c.3", jepsen.KindReload, 5*s, 6*s, 5)}, Events: running,
	}, bad: []string{jepsen.CheckCatalogRecord, jepsen.CheckCatalogEvents}},
	{name: "what was refused has an event", h: jepsen.History{
		Ops: []jepsen.Op{creates, refused("c.2", jepsen.KindStart, 2*s, 3*s, 1, "etag_mismatch")}, Events: running,
	}, bad: []string{jepsen.CheckCatalogRecord, jepsen.CheckCatalogEvents}},
	{name: "an event after the last", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, asked("c.3", jepsen.KindDelete, 5*s, 6*s, 0)},
		Events: slices.Concat(running, told(4, 6*s, "deleted", "c.3", "running"), told(5, 7*s, "loaded", "", "running")),
	}, bad: []string{jepsen.CheckCatalogEvents}},
	{name: "a running worker goes on while it is reloaded, and if that fails", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, from(asked("c.3", jepsen.KindReload, 5*s, 6*s, 5), "bad")},
		Events: slices.Concat(running, told(4, 6*s, "reloading", "c.3", "loading"), told(5, 7*s, "load_failed", "", "running")),
	}},
	{name: "a stopped one does not", h: jepsen.History{
		Ops:    []jepsen.Op{creates, asked("c.3", jepsen.KindReload, 5*s, 6*s, 4)},
		Events: slices.Concat(created, told(3, 4*s, "loaded", "", "stopped"), told(4, 6*s, "reloading", "c.3", "loading"), told(5, 7*s, "load_failed", "", "running")),
	}, bad: []string{jepsen.CheckCatalogEvents}},
	{name: "created twice under one key", h: jepsen.History{
		Ops: []jepsen.Op{creates}, Events: slices.Concat(created, []jepsen.Event{{
			Revision: 2, Position: 1, Type: "worker.created", Key: "workers/y", By: "c.1", Reader: "n1", At: s, Worker: &jepsen.WorkerSeen{Name: "w", State: "loading"},
		}}),
	}, bad: []string{jepsen.CheckCatalogRecord, jepsen.CheckCatalogEvents}},

	{name: "under the etag that it has", h: jepsen.History{
		Ops: []jepsen.Op{creates, demands(asked("c.2", jepsen.KindStart, 2*s, 3*s, 3), 2), shown("c", 5*s, 4, "running")}, Events: running,
	}},
	{name: "under an etag that it has no more", h: jepsen.History{
		Ops: []jepsen.Op{creates, tagged(asked("c.9", jepsen.KindTag, s, 2*s, 2), "a=b"), demands(asked("c.2", jepsen.KindStart, 2*s, 3*s, 3), 1)}, Events: running,
	}, bad: []string{jepsen.CheckCatalogRecord}},
	{name: "refused under an etag that it has", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, shown("c", 5*s, 4, "running"), refused("c.3", jepsen.KindStop, 6*s, 7*s, 4, "etag_mismatch")},
		Events: running,
	}, bad: []string{jepsen.CheckCatalogRecord}},
	{name: "refused under another", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, shown("c", 5*s, 4, "running"), refused("c.3", jepsen.KindStop, 6*s, 7*s, 3, "etag_mismatch")},
		Events: running,
	}},
	{name: "an etag that goes back", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, shown("c", 5*s, 6, "running"), shown("c", 6*s, 5, "running")}, Events: running,
	}, bad: []string{jepsen.CheckCatalogRecord}},
	{name: "tags are there", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, tagged(asked("c.9", jepsen.KindTag, 5*s, 6*s, 5), "a=b"), tagged(shown("c", 6*s, 5, "running"), "a=b")},
		Events: running,
	}},
	{name: "tags are lost", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, tagged(asked("c.9", jepsen.KindTag, 5*s, 6*s, 5), "a=b"), shown("c", 6*s, 5, "running")}, Events: running,
	}, bad: []string{jepsen.CheckCatalogRecord}},
	{name: "unanswered tags are there, or not", h: jepsen.History{
		Ops: []jepsen.Op{
			creates, starts, tagged(unanswered("c.9", jepsen.KindTag, 5*s), "a=b"),
			shown("c", 6*s, 4, "running"), tagged(shown("c", 7*s, 5, "running"), "a=b"),
		}, Events: running,
	}},
	{name: "a read shows what is over", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, shown("c", 5*s, 3, "loading!")}, Events: running,
	}, bad: []string{jepsen.CheckCatalogRecord}},
	{name: "a read shows the source of before", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, from(asked("c.3", jepsen.KindReload, 5*s, 6*s, 5), "slow"), shown("c", 7*s, 6, "running")},
		Events: slices.Concat(running, told(4, 6*s, "reloading", "c.3", "loading"), told(5, 6*s+s/2, "loaded", "", "running")),
	}, bad: []string{jepsen.CheckCatalogRecord}},
	{name: "a stop that nobody asked for", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts}, Events: slices.Concat(running, told(4, 6*s, "stopped", "c.7", "stopped")),
	}, bad: []string{jepsen.CheckCatalogRecord}},
	{name: "refused though its load has not failed", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts, refused("c.3", jepsen.KindStart, 5*s, 6*s, 0, "wrong_state")}, Events: running,
	}, bad: []string{jepsen.CheckCatalogRecord}},
	{name: "it was loaded", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts}, Events: running, Loads: []jepsen.Loading{load("good", s, 3*s, true)},
	}},
	{name: "it was loaded by the second who tried", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts}, Events: running, Loads: []jepsen.Loading{load("good", s, jepsen.Never, false), load("good", 2*s, 3*s, true)},
	}},
	{name: "it is said to be loaded before it is", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts}, Events: running, Loads: []jepsen.Loading{load("good", s, 5*s, true)},
	}, bad: []string{jepsen.CheckLoadedSource}},
	{name: "it is said to be loaded, and its loads have failed", h: jepsen.History{
		Ops: []jepsen.Op{creates, starts}, Events: running, Loads: []jepsen.Loading{load("good", s, 3*s, false)},
	}, bad: []string{jepsen.CheckLoadedSource}},
	{name: "it is reloaded, and the outcome of before counts", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, from(asked("c.3", jepsen.KindReload, 5*s, 6*s, 5), "slow")},
		Events: slices.Concat(running, told(4, 6*s, "reloading", "c.3", "loading"), told(5, 7*s, "loaded", "", "running")),
		Loads:  []jepsen.Loading{load("good", s, 3*s, true), load("good", 2*s, 6*s+s/2, true), load("slow", 6*s, 9*s, true)},
	}, bad: []string{jepsen.CheckLoadedSource}},
	{name: "the same source is reloaded, and the outcome of before counts", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, from(asked("c.3", jepsen.KindReload, 5*s, 6*s, 5), "")},
		Events: slices.Concat(running, told(4, 6*s, "reloading", "c.3", "loading"), told(5, 7*s, "loaded", "", "running")),
		Loads:  []jepsen.Loading{load("good", s, 3*s, true), load("good", 2*s, 6*s+s/2, true)},
	}, bad: []string{jepsen.CheckLoadedSource}},
	{name: "it is reloaded, and loaded again", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, from(asked("c.3", jepsen.KindReload, 5*s, 6*s, 5), "slow")},
		Events: slices.Concat(running, told(4, 6*s, "reloading", "c.3", "loading"), told(5, 7*s, "loaded", "", "running")),
		Loads:  []jepsen.Loading{load("good", s, 3*s, true), load("slow", 6*s, 7*s, true)},
	}},
	{name: "its load is given up while it hangs", h: jepsen.History{
		Ops:    []jepsen.Op{from(creates, "hung"), starts},
		Events: slices.Concat(created, requested, told(3, 4*s, "load_failed", "", "load_failed!")),
		Loads:  []jepsen.Loading{load("hung", s, jepsen.Never, false)},
	}},
	{name: "the failure of before counts", h: jepsen.History{
		Ops:    []jepsen.Op{creates, starts, from(asked("c.3", jepsen.KindReload, 5*s, 6*s, 5), "slow")},
		Events: slices.Concat(running, told(4, 6*s, "reloading", "c.3", "loading"), told(5, 7*s, "load_failed", "", "running")),
		Loads:  []jepsen.Loading{load("good", s, 2*s, false), load("good", 2*s, 3*s, true), load("slow", 6*s, 8*s, true)},
	}, bad: []string{jepsen.CheckLoadedSource}},
	{name: "an unanswered creation", h: jepsen.History{
		Ops: []jepsen.Op{func() jepsen.Op {
			o := unanswered("c.1", jepsen.KindCreate, 0)
			o.Key, o.Worker.Name = "", "w"
			return o
		}(), starts}, Events: running,
	}},
}

// TestCheck_Catalog ensures that the checks of workers find what they are there
// for, and nothing else.
func TestCheck_Catalog(t *testing.T) {
	for _, tc := range catalogHistories {
		t.Run(tc.name, func(t *testing.T) {
			tc.h.Meta = meta(10 * s)
			tc.h.Meta.Bounds.Wanted, tc.h.Meta.Bounds.Sound = nil, []string{"good"}
			var bad []string
			for _, v := range jepsen.Check(&tc.h) {
				switch v.Check {
				case jepsen.CheckCatalogRecord, jepsen.CheckCatalogEvents, jepsen.CheckLostStart, jepsen.CheckLoadedSource:
					if !v.OK {
						bad = append(bad, v.Check)
						t.Logf("%s: %q", v.Check, v.Faults)
					}
				}
			}
			if !slices.Equal(bad, tc.bad) {
				t.Errorf("failed checks: got %v, want %v", bad, tc.bad)
			}
		})
	}
}
