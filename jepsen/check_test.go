package jepsen_test

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

const s = time.Second

func acq(stream int, who string, call, ret time.Duration, got uint64) jepsen.Op {
	return jepsen.Op{Stream: stream, Kind: jepsen.KindAcquire, Key: "k", Who: who, Call: call, Return: ret, Outcome: jepsen.OK, Got: got}
}

func held(stream int, who string, call, ret time.Duration, by uint64) jepsen.Op {
	return jepsen.Op{Stream: stream, Kind: jepsen.KindAcquire, Key: "k", Who: who, Call: call, Return: ret, Outcome: jepsen.Refused, Code: "lease_held", Got: by}
}

func lost(o jepsen.Op) jepsen.Op {
	o.Outcome, o.Return, o.Got = jepsen.Uncertain, jepsen.Never, 0
	return o
}

func rel(stream int, who string, call, ret time.Duration, token uint64) jepsen.Op {
	return jepsen.Op{Stream: stream, Kind: jepsen.KindRelease, Key: "k", Who: who, Call: call, Return: ret, Outcome: jepsen.OK, Token: token}
}

func stale(o jepsen.Op) jepsen.Op {
	o.Outcome, o.Code = jepsen.Refused, "stale_token"
	return o
}

func read(stream int, call, ret time.Duration, got uint64) jepsen.Op {
	return jepsen.Op{Stream: stream, Kind: jepsen.KindRead, Key: "k", Call: call, Return: ret, Outcome: jepsen.OK, Got: got}
}

func run(proc string, token uint64, start, stop time.Duration) jepsen.Run {
	return jepsen.Run{Proc: proc, Key: "k", Token: token, Start: start, Stop: stop, End: "returned"}
}

func event(reader string, rev uint64, typ string, token uint64, at time.Duration) jepsen.Event {
	e := jepsen.Event{Revision: rev, Type: typ, Key: "k", Token: token, Reader: reader, At: at}
	if typ == "lease.ended" {
		e.Reason = "released"
	}
	return e
}

func meta(length time.Duration) jepsen.Meta {
	return jepsen.Meta{Nodes: []string{"n1", "n2", "n3"}, Length: length, Bounds: jepsen.Bounds{TTL: 4 * s, Election: 2 * s, Slack: s, Wanted: []string{"k"}}}
}

// Each history is judged by hand: which checks must fail, and no other may.
var histories = []struct {
	name string
	h    jepsen.History
	bad  []string
}{
	{name: "empty"},
	{name: "acquire, refuse, release, acquire", h: jepsen.History{Ops: []jepsen.Op{
		acq(1, "a", 1*s, 2*s, 10), held(2, "b", 3*s, 4*s, 10), read(2, 5*s, 6*s, 10), rel(1, "a", 7*s, 8*s, 10), acq(2, "b", 9*s, 10*s, 11),
	}}},
	{name: "concurrent release and acquire", h: jepsen.History{Ops: []jepsen.Op{
		acq(1, "a", 1*s, 2*s, 10), rel(1, "a", 3*s, 9*s, 10), acq(2, "b", 4*s, 5*s, 11), read(3, 6*s, 7*s, 11),
	}}},
	{name: "granted twice", h: jepsen.History{Ops: []jepsen.Op{
		acq(1, "a", 1*s, 2*s, 10), acq(2, "b", 3*s, 4*s, 11),
	}}, bad: []string{jepsen.CheckRegister}},
	{name: "granted twice, but the first had expired unseen by its client", h: jepsen.History{
		Ops:    []jepsen.Op{acq(1, "a", 1*s, 2*s, 10), acq(2, "b", 9*s, 10*s, 11)},
		Events: []jepsen.Event{event("n1", 5, "lease.granted", 10, 2*s), {Revision: 7, Type: "lease.ended", Key: "k", Token: 10, Reason: "expired", Reader: "n1", At: 9 * s}, event("n1", 8, "lease.granted", 11, 10*s)},
	}},
	{name: "expired, and released later all the same", h: jepsen.History{
		Ops:    []jepsen.Op{acq(1, "a", 1*s, 2*s, 10), rel(1, "a", 20*s, 21*s, 10)},
		Events: []jepsen.Event{event("n1", 5, "lease.granted", 10, 2*s), {Revision: 7, Type: "lease.ended", Key: "k", Token: 10, Reason: "expired", Reader: "n1", At: 9 * s}},
	}, bad: []string{jepsen.CheckAcks}},
	{name: "smaller token", h: jepsen.History{Ops: []jepsen.Op{
		acq(1, "a", 1*s, 2*s, 10), rel(1, "a", 3*s, 4*s, 10), acq(2, "b", 5*s, 6*s, 9),
	}}, bad: []string{jepsen.CheckRegister}},
	{name: "stale read", h: jepsen.History{Ops: []jepsen.Op{
		acq(1, "a", 1*s, 2*s, 10), rel(1, "a", 3*s, 4*s, 10), read(2, 5*s, 6*s, 10),
	}}, bad: []string{jepsen.CheckRegister}},
	{name: "read of a free key that is held", h: jepsen.History{Ops: []jepsen.Op{
		acq(1, "a", 1*s, 2*s, 10), read(2, 5*s, 6*s, 0),
	}}, bad: []string{jepsen.CheckRegister}},
	{name: "lost answer: granted after all", h: jepsen.History{Ops: []jepsen.Op{
		lost(acq(1, "a", 1*s, 0, 0)), held(2, "b", 3*s, 4*s, 0), read(3, 5*s, 6*s, 12), acq(4, "a", 7*s, 8*s, 12), rel(4, "a", 9*s, 10*s, 12), acq(2, "b", 11*s, 12*s, 13),
	}}},
	{name: "lost answer: never granted", h: jepsen.History{Ops: []jepsen.Op{
		lost(acq(1, "a", 1*s, 0, 0)), read(3, 3*s, 4*s, 0), acq(2, "b", 5*s, 6*s, 12),
	}}},
	{name: "lost answer does not excuse two grants", h: jepsen.History{Ops: []jepsen.Op{
		lost(acq(1, "a", 1*s, 0, 0)), read(3, 3*s, 4*s, 12), acq(2, "b", 5*s, 6*s, 13),
	}}, bad: []string{jepsen.CheckRegister}},
	{name: "lost release, applied late", h: jepsen.History{Ops: []jepsen.Op{
		acq(1, "a", 1*s, 2*s, 10), lost(rel(1, "a", 3*s, 0, 10)), read(3, 4*s, 5*s, 10), acq(2, "b", 6*s, 7*s, 11), stale(rel(4, "a", 8*s, 9*s, 10)),
	}}},
	{name: "late repeat of a release frees the next grant", h: jepsen.History{
		Ops: []jepsen.Op{
			acq(1, "a", 1*s, 2*s, 10), rel(1, "a", 3*s, 4*s, 10), acq(2, "b", 5*s, 6*s, 11), rel(1, "a", 7*s, 8*s, 10), acq(3, "c", 9*s, 10*s, 12),
		},
		Runs: []jepsen.Run{run("b", 11, 6*s, 12*s), run("c", 12, 10*s, 11*s)},
	}, bad: []string{jepsen.CheckRegister, jepsen.CheckOverlap}},
	{name: "refused as not applied, and applied", h: jepsen.History{Ops: []jepsen.Op{
		{Stream: 1, Kind: jepsen.KindAcquire, Key: "k", Who: "a", Call: 1 * s, Return: 2 * s, Outcome: jepsen.Failed, Code: "closing"},
		held(2, "b", 3*s, 4*s, 12), acq(1, "a", 5*s, 6*s, 12),
	}}, bad: []string{jepsen.CheckRegister}},
	{name: "a stream that does two things at once", h: jepsen.History{Ops: []jepsen.Op{
		read(1, 1*s, 5*s, 0), read(1, 2*s, 3*s, 0),
	}}, bad: []string{jepsen.CheckHistory}},
	{name: "runs one after the other", h: jepsen.History{Runs: []jepsen.Run{run("a", 10, 1*s, 5*s), run("b", 11, 5*s, 9*s)}}},
	{name: "runs of two owners overlap", h: jepsen.History{Runs: []jepsen.Run{run("a", 10, 1*s, 5*s), run("b", 11, 4*s, 9*s)}}, bad: []string{jepsen.CheckOverlap}},
	{name: "a long run overlaps the next but one", h: jepsen.History{Runs: []jepsen.Run{run("a", 10, 1*s, 9*s), run("b", 11, 2*s, 3*s), run("c", 12, 8*s, 9*s)}}, bad: []string{jepsen.CheckOverlap}},
	{name: "restarted under the same grant", h: jepsen.History{Runs: []jepsen.Run{run("a", 10, 1*s, 2*s), run("a", 10, 3*s, 4*s), run("b", 11, 5*s, 6*s)}}},
	{name: "same token in two processes", h: jepsen.History{Runs: []jepsen.Run{run("a", 10, 1*s, 2*s), run("b", 10, 3*s, 4*s)}}, bad: []string{jepsen.CheckTokens}},
	{name: "old token again", h: jepsen.History{Runs: []jepsen.Run{run("a", 10, 1*s, 2*s), run("b", 11, 3*s, 4*s), run("a", 10, 5*s, 6*s)}}, bad: []string{jepsen.CheckRegister, jepsen.CheckTokens}[1:]},
	{name: "acknowledged, and not in the log", h: jepsen.History{
		Ops:    []jepsen.Op{acq(1, "a", 1*s, 2*s, 10)},
		Events: []jepsen.Event{event("n1", 5, "lease.granted", 11, 9*s)},
	}, bad: []string{jepsen.CheckRegister, jepsen.CheckAcks}},
	{name: "ran without a grant", h: jepsen.History{
		Runs:   []jepsen.Run{run("a", 12, 12*s, 13*s)},
		Events: []jepsen.Event{event("n1", 5, "lease.granted", 11, 9*s), event("n1", 6, "lease.ended", 11, 10*s)},
	}, bad: []string{jepsen.CheckAcks}},
	{name: "ran without a grant that was read", h: jepsen.History{
		Meta:   jepsen.Meta{Read: 3 * s},
		Events: []jepsen.Event{event("n1", 5, "lease.granted", 10, s), event("n1", 6, "lease.ended", 10, 2*s)},
		Runs:   []jepsen.Run{run("a", 10, 1*s, 2*s), run("b", 11, 4*s, 5*s)},
	}},
	{name: "ran without a grant while grants were read", h: jepsen.History{
		Meta:   jepsen.Meta{Read: 5 * s},
		Events: []jepsen.Event{event("n1", 5, "lease.granted", 10, s), event("n1", 6, "lease.ended", 10, 2*s)},
		Runs:   []jepsen.Run{run("a", 10, 1*s, 2*s), run("b", 11, 4*s, 6*s)},
	}, bad: []string{jepsen.CheckAcks}},
	{name: "tokens fall in the log", h: jepsen.History{
		Events: []jepsen.Event{{Revision: 4, Type: "lease.granted", Key: "x", Token: 12, Reader: "n1", At: s}, {Revision: 5, Type: "lease.granted", Key: "y", Token: 11, Reader: "n1", At: 2 * s}},
	}, bad: []string{jepsen.CheckTokens}},
	{name: "one revision, two states", h: jepsen.History{Samples: []jepsen.Sample{{Node: "n1", Revision: 7, Hash: "aa"}, {Node: "n2", Revision: 8, Hash: "bb"}, {Node: "n2", Revision: 7, Hash: "cc"}}}, bad: []string{jepsen.CheckHash}},
	{name: "one revision, one state", h: jepsen.History{Samples: []jepsen.Sample{{Node: "n1", Revision: 7, Hash: "aa"}, {Node: "n2", Revision: 7, Hash: "aa"}}}},
	{name: "two readers agree", h: jepsen.History{Events: []jepsen.Event{event("n1", 5, "lease.granted", 10, s), event("n2", 5, "lease.granted", 10, 2*s), event("n1", 6, "lease.ended", 10, 3*s), event("n2", 6, "lease.ended", 10, 3*s)}}},
	{name: "a reader misses one", h: jepsen.History{Events: []jepsen.Event{
		event("n1", 5, "lease.granted", 10, s), event("n1", 6, "lease.ended", 10, 2*s), event("n1", 7, "lease.granted", 11, 3*s),
		event("n2", 5, "lease.granted", 10, s), event("n2", 7, "lease.granted", 11, 3*s),
	}}, bad: []string{jepsen.CheckEvents}},
	{name: "a reader misses one and is told", h: jepsen.History{Events: []jepsen.Event{
		event("n1", 5, "lease.granted", 10, s), event("n1", 6, "lease.ended", 10, 2*s), event("n1", 7, "lease.granted", 11, 3*s),
		event("n2", 5, "lease.granted", 10, s),
		{Revision: 7, Type: "lease.granted", Key: "k", Token: 11, Reader: "n2", At: 3 * s, Resync: true},
	}}},
	{name: "a reader gets one twice", h: jepsen.History{Events: []jepsen.Event{event("n1", 5, "lease.granted", 10, s), event("n1", 5, "lease.granted", 10, 2*s)}}, bad: []string{jepsen.CheckEvents}},
	{name: "readers differ", h: jepsen.History{Events: []jepsen.Event{event("n1", 5, "lease.granted", 10, s), event("n2", 5, "lease.granted", 11, 2*s)}}, bad: []string{jepsen.CheckEvents}},
	{name: "taken over in time", h: jepsen.History{Meta: meta(30 * s), Runs: []jepsen.Run{run("a", 10, 1*s, 8*s), run("b", 11, 14*s, 30*s)}}},
	{name: "taken over too late", h: jepsen.History{Meta: meta(30 * s), Runs: []jepsen.Run{run("a", 10, 1*s, 8*s), run("b", 11, 16*s, 30*s)}}, bad: []string{jepsen.CheckTakeOver}},
	{name: "never taken over", h: jepsen.History{Meta: meta(30 * s), Runs: []jepsen.Run{run("a", 10, 1*s, 8*s)}}, bad: []string{jepsen.CheckTakeOver}},
	{name: "late, but a majority was cut off", h: jepsen.History{
		Meta: meta(30 * s), Runs: []jepsen.Run{run("a", 10, 1*s, 8*s), run("b", 11, 16*s, 30*s)},
		Windows: []jepsen.Window{{Fault: "cut", Nodes: []string{"n1", "n2"}, From: 7 * s, To: 12 * s}},
	}},
	{name: "late, and only one node was hit, all the time", h: jepsen.History{
		Meta: meta(30 * s), Runs: []jepsen.Run{run("a", 10, 1*s, 8*s), run("b", 11, 20*s, 30*s)},
		Windows: []jepsen.Window{{Fault: "pause", Nodes: []string{"n1"}, From: 7 * s, To: 25 * s}},
	}, bad: []string{jepsen.CheckTakeOver}},
	{name: "late, but faults came and went", h: jepsen.History{
		Meta: meta(30 * s), Runs: []jepsen.Run{run("a", 10, 1*s, 8*s), run("b", 11, 20*s, 30*s)},
		Windows: []jepsen.Window{{Fault: "pause", Nodes: []string{"n1"}, From: 7 * s, To: 13 * s}, {Fault: "pause", Nodes: []string{"n2"}, From: 14 * s, To: 18 * s}},
	}},
}

// TestCheck ensures that the judge passes what is right and fails what is wrong, under its name.
func TestCheck(t *testing.T) {
	for _, tc := range histories {
		t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) {
			vs := jepsen.Check(&tc.h)
			got := jepsen.FailedChecks(vs)
			if !slices.Equal(got, tc.bad) {
				t.Errorf("failed checks: got %v, want %v", got, tc.bad)
				for _, v := range vs {
					for _, f := range v.Faults {
						t.Logf("%s: %s", v.Check, f)
					}
				}
			}
		})
	}
}

// TestHistory_JSONL ensures that a history survives being written and read.
func TestHistory_JSONL(t *testing.T) {
	want := jepsen.History{
		Meta:    meta(30 * s),
		Ops:     []jepsen.Op{acq(1, "a", 1*s, 2*s, 10), lost(rel(1, "a", 3*s, 0, 10))},
		Runs:    []jepsen.Run{run("a", 10, 1*s, 5*s)},
		Events:  []jepsen.Event{event("n1", 5, "lease.granted", 10, s)},
		Samples: []jepsen.Sample{{Node: "n1", At: s, Revision: 7, Hash: "aa"}},
		Rests:   []jepsen.Rest{{Node: "n1", At: s, Revision: 7, Group: "g", Assigner: "sticky", Wanted: 2, Nobody: []string{"w1"}, Shares: []jepsen.Share{{Instance: "a", Has: 1}}}},
		Windows: []jepsen.Window{{Fault: "cut", Nodes: []string{"n1"}, From: s, To: 2 * s}},
		Notes:   []jepsen.Note{{At: s, Node: "n1", Text: "leads"}},
	}
	var buf bytes.Buffer
	if err := want.WriteJSONL(&buf); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(buf.String(), "\n"); n != 9 {
		t.Errorf("lines: got %d, want 9", n)
	}
	got, err := jepsen.ReadJSONL(&buf)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

// TestRecorder_Streams ensures that an uncertain call stays open, its client
// goes on as a new stream, and reads without an answer leave no trace.
func TestRecorder_Streams(t *testing.T) {
	r := jepsen.NewRecorder(jepsen.Meta{})
	st := r.Stream("a")
	st.Call(jepsen.Op{Kind: jepsen.KindAcquire, Key: "k"}).OK(7)
	st.Call(jepsen.Op{Kind: jepsen.KindRelease, Key: "k", Token: 7}).Uncertain("uncertain")
	st.Call(jepsen.Op{Kind: jepsen.KindRead, Key: "k"}).Failed("no_quorum")
	st.Call(jepsen.Op{Kind: jepsen.KindRead, Key: "k"}).OK(7)
	h := r.Finish()
	if len(h.Ops) != 3 {
		t.Fatalf("operations: got %d, want 3: %+v", len(h.Ops), h.Ops)
	}
	if h.Ops[0].Stream != 1 || h.Ops[1].Stream != 1 || h.Ops[2].Stream != 2 {
		t.Errorf("streams: got %d %d %d, want 1 1 2", h.Ops[0].Stream, h.Ops[1].Stream, h.Ops[2].Stream)
	}
	if h.Ops[1].Return != jepsen.Never {
		t.Errorf("return of the uncertain release: got %v, want never", h.Ops[1].Return)
	}
}

// TestRecorder_Kill ensures that the runs of a dead process end with it and
// that its ghosts say nothing more.
func TestRecorder_Kill(t *testing.T) {
	r := jepsen.NewRecorder(jepsen.Meta{})
	a := r.Start(jepsen.Run{Proc: "n1/1", Key: "k", Token: 7}, nil)
	r.Kill("n1/1", "crash")
	a.Stop()
	if ghost := r.Start(jepsen.Run{Proc: "n1/1", Key: "k", Token: 7}, nil); ghost != nil {
		t.Error("a dead process started a run")
	}
	h := r.Finish()
	if len(h.Runs) != 1 || h.Runs[0].End != "crash" {
		t.Errorf("runs: got %+v, want one that ended by crash", h.Runs)
	}
}

// TestRecorder_Pause ensures that a paused process owns nothing while it
// stands still, and goes on only with work whose lease is still valid.
func TestRecorder_Pause(t *testing.T) {
	r := jepsen.NewRecorder(jepsen.Meta{})
	kept := r.Start(jepsen.Run{Proc: "n1/1", Key: "a", Token: 7}, func() bool { return true })
	gone := r.Start(jepsen.Run{Proc: "n1/1", Key: "b", Token: 8}, func() bool { return false })
	r.Pause("n1/1")
	late := r.Start(jepsen.Run{Proc: "n1/1", Key: "c", Token: 9}, func() bool { return false })
	r.Resume("n1/1")
	kept.Stop()
	gone.Stop()
	late.Stop()
	var got []string
	for _, run := range r.Finish().Runs {
		got = append(got, run.Key+" "+run.End)
	}
	slices.Sort(got)
	if want := []string{"a paused", "a returned", "b paused"}; !slices.Equal(got, want) {
		t.Errorf("runs: got %v, want %v", got, want)
	}
}
