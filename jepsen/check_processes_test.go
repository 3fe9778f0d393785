package jepsen_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

// on is a run of k on a node.
func on(node string, token uint64, start, stop time.Duration) jepsen.Run {
	return jepsen.Run{Proc: node + "/1", Node: node, Key: "k", Token: token, Start: start, Stop: stop, End: "killed"}
}

// passed are the events of a key that passed from token 1 to token 2.
func passed(reason string, at time.Duration) []jepsen.Event {
	return []jepsen.Event{
		{Revision: 1, Type: "lease.granted", Key: "k", Token: 1, Reader: "n1"},
		{Revision: 7, Type: "lease.ended", Key: "k", Token: 1, Reason: reason, Reader: "n1", At: at},
		{Revision: 8, Type: "lease.granted", Key: "k", Token: 2, Reader: "n1", At: at},
	}
}

// passedTwice are those of a key that went from token 1 to 2, whose holder ran
// nothing and gave it back, and so to 3.
func passedTwice(reason string, at, again time.Duration) []jepsen.Event {
	return []jepsen.Event{
		{Revision: 1, Type: "lease.granted", Key: "k", Token: 1, Reader: "n1"},
		{Revision: 7, Type: "lease.ended", Key: "k", Token: 1, Reason: reason, Reader: "n1", At: at},
		{Revision: 8, Type: "lease.granted", Key: "k", Token: 2, Reader: "n1", At: at},
		{Revision: 10, Type: "lease.ended", Key: "k", Token: 2, Reason: "released", Reader: "n1", At: again},
		{Revision: 11, Type: "lease.granted", Key: "k", Token: 3, Reader: "n1", At: again},
	}
}

// kept is a key that an operator keeps from everybody.
func kept(key string, from, to time.Duration) jepsen.Window {
	return jepsen.Window{Fault: "pause-workload", Keys: []string{key}, From: from, To: to}
}

func hit(fault string, from, to time.Duration, nodes ...string) jepsen.Window {
	return jepsen.Window{Fault: fault, Nodes: nodes, From: from, To: to, Text: fault}
}

// leads is a change of leader that came before the new grant of passed.
func leads(at time.Duration) jepsen.Event {
	return jepsen.Event{Revision: 6, Type: "leader.changed", Node: "n2", Reader: "n1", At: at}
}

// Bounds of meta: TTL 4 s, election 2 s, slack 1 s.
var gaps = []struct {
	name    string
	runs    []jepsen.Run
	events  []jepsen.Event
	windows []jepsen.Window
	checked int
	bad     bool
}{
	{
		"hand-over within a commit",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 10900*time.Millisecond, 20*s)},
		passed("released", 10*s), nil, 1, false,
	},
	{
		"hand-over that took too long",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 11100*time.Millisecond, 20*s)},
		passed("released", 10*s), nil, 1, true,
	},
	{
		"hand-over at a restart of the holder",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 12*s, 20*s)},
		passed("released", 10*s),
		[]jepsen.Window{hit("restart", 9*s, 11*s, "n1")},
		1, true,
	},
	{
		"hand-over of a node that was cut off: nothing is promised",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 12*s, 20*s)},
		passed("released", 10*s),
		[]jepsen.Window{hit("cut", 9*s, 11*s, "n1")},
		0, false,
	},
	{
		"hand-over while the leader changed",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 12*s, 20*s)},
		append(passed("released", 10*s), leads(11*s)), nil, 1, false,
	},
	{
		"a leader that changed before is no excuse",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 12*s, 20*s)},
		append(passed("released", 10*s), leads(9*s)), nil, 1, true,
	},
	{
		"crash proved at once",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 10900*time.Millisecond, 20*s)},
		passed("crashed", 10*s),
		[]jepsen.Window{hit("crash", 10*s, 12*s, "n1")},
		1, false,
	},
	{
		"crash that cost a TTL",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 14*s, 20*s)},
		passed("crashed", 10*s),
		[]jepsen.Window{hit("crash", 10*s, 12*s, "n1")},
		1, true,
	},
	{
		"crash under a second fault: nothing is promised but the widest bound",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 14*s, 20*s)},
		passed("crashed", 10*s),
		[]jepsen.Window{hit("crash", 10*s, 12*s, "n1"), hit("pause", 9*s, 13*s, "n3")},
		0, false,
	},
	{
		"lost while its disk was slow: counts from when it was well again",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 16900*time.Millisecond, 20*s)},
		passed("expired", 14*s),
		[]jepsen.Window{hit(jepsen.DiskSlow, 6*s, 12*s, "n1")},
		1, false,
	},
	{
		"lost while its disk was slow, and long afterwards nobody had it",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 17100*time.Millisecond, 20*s)},
		passed("expired", 14*s),
		[]jepsen.Window{hit(jepsen.DiskSlow, 6*s, 12*s, "n1")},
		1, true,
	},
	{
		"restart counts from the start",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 12900*time.Millisecond, 20*s)},
		passed("restarted", 12*s),
		[]jepsen.Window{hit("crash-host", 10*s, 12*s, "n1")},
		1, false,
	},
	{
		"restart that waited for more",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 14*s, 20*s)},
		passed("restarted", 12*s),
		[]jepsen.Window{hit("crash-host", 10*s, 12*s, "n1")},
		1, true,
	},
	{
		"a TTL and a commit",
		[]jepsen.Run{on("n1", 1, s, 13*s), on("n2", 2, 14900*time.Millisecond, 20*s)},
		passed("expired", 14*s),
		[]jepsen.Window{hit("pause", 10*s, 18*s, "n1")},
		1, false,
	},
	{
		"more than a TTL and a commit",
		[]jepsen.Run{on("n1", 1, s, 13*s), on("n2", 2, 15100*time.Millisecond, 20*s)},
		passed("expired", 15*s),
		[]jepsen.Window{hit("pause", 10*s, 18*s, "n1")},
		1, true,
	},
	{
		"a new leader gives a full TTL",
		[]jepsen.Run{on("n1", 1, s, 13*s), on("n2", 2, 16*s, 20*s)},
		append(passed("expired", 16*s), leads(11*s)),
		[]jepsen.Window{hit("pause", 10*s, 18*s, "n1")},
		1, false,
	},
	{
		"a host died while one node took nothing and the other was away: nobody might take it",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 16*s, 20*s)},
		passed("expired", 14*s),
		[]jepsen.Window{hit("crash-host", 10*s, 18*s, "n1"), hit("cordon", 9*s, 15*s, "n3"), hit("left-group", 11*s, 15900*time.Millisecond, "n2")},
		0, false,
	},
	{
		"when one was away, the other was there",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 16*s, 20*s)},
		passed("expired", 14*s),
		[]jepsen.Window{hit("crash-host", 10*s, 18*s, "n1"), hit("cordon", 9*s, 11*s, "n3"), hit("left-group", 11*s, 15900*time.Millisecond, "n2")},
		1, true,
	},
	{
		"one in between ran nothing: the bound holds for when it was granted the key",
		[]jepsen.Run{on("n1", 1, s, 11*s), on("n3", 3, 15500*time.Millisecond, 20*s)},
		passedTwice("expired", 14*s, 15400*time.Millisecond),
		[]jepsen.Window{hit("crash-host", 10*s, 18*s, "n1")},
		1, false,
	},
	{
		"and that was too late",
		[]jepsen.Run{on("n1", 1, s, 11*s), on("n3", 3, 15500*time.Millisecond, 20*s)},
		passedTwice("expired", 15100*time.Millisecond, 15400*time.Millisecond),
		[]jepsen.Window{hit("crash-host", 10*s, 18*s, "n1")},
		1, true,
	},
	{
		"hand-over by way of one that ran nothing",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n3", 3, 13*s, 20*s)},
		passedTwice("released", 10900*time.Millisecond, 12900*time.Millisecond), nil, 1, false,
	},
	{
		"hand-over to one that ran nothing, which took too long",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n3", 3, 13*s, 20*s)},
		passedTwice("released", 11100*time.Millisecond, 12900*time.Millisecond), nil, 1, true,
	},
	{
		"a leader that changed after the key was passed on is no excuse",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n3", 3, 13*s, 20*s)},
		append(passedTwice("released", 11100*time.Millisecond, 12900*time.Millisecond), jepsen.Event{Revision: 9, Type: "leader.changed", Node: "n2", Reader: "n1", At: 12 * s}), nil, 1, true,
	},
	{
		"hand-over of a key that an operator kept from everybody",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 13*s, 20*s)},
		passed("released", 12500*time.Millisecond),
		[]jepsen.Window{kept("k", 9*s, 12*s)},
		0, false,
	},
	{
		"that another key is kept is no excuse",
		[]jepsen.Run{on("n1", 1, s, 10*s), on("n2", 2, 13*s, 20*s)},
		passed("released", 12500*time.Millisecond),
		[]jepsen.Window{kept("other", 9*s, 12*s)},
		1, true,
	},
	{
		"a fault that hits two nodes: the widest bound alone",
		[]jepsen.Run{on("n1", 1, s, 13*s), on("n2", 2, 18*s, 20*s)},
		passed("expired", 18*s),
		[]jepsen.Window{hit("cut-link", 10*s, 18*s, "n1", "n2")},
		0, false,
	},
}

// TestCheck_Bounds ensures that each kind of gap is held to the bound of its kind,
// and only where one fault at most is to blame.
func TestCheck_Bounds(t *testing.T) {
	for _, g := range gaps {
		t.Run(g.name, func(t *testing.T) {
			h := &jepsen.History{Meta: meta(20 * s), Runs: g.runs, Events: g.events, Windows: g.windows}
			v := verdictOf(t, jepsen.Check(h), jepsen.CheckBounds)
			if v.OK == g.bad || v.Checked != g.checked {
				t.Errorf("ok %v, looked at %d, want %v and %d: %v", v.OK, v.Checked, !g.bad, g.checked, v.Faults)
			}
		})
	}
}

// TestCheck_TakeOver_Passed ensures that a start that got lost is found though
// somebody was granted the key in time.
func TestCheck_TakeOver_Passed(t *testing.T) {
	for _, c := range []struct {
		name string
		runs []jepsen.Run
		ok   bool
	}{
		{"in the end another ran it", []jepsen.Run{on("n1", 1, s, 11*s), on("n3", 3, 17*s, 30*s)}, true},
		{"too late", []jepsen.Run{on("n1", 1, s, 11*s), on("n3", 3, 18100*time.Millisecond, 30*s)}, false},
		{"nobody ever did", []jepsen.Run{on("n1", 1, s, 11*s)}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &jepsen.History{Meta: meta(30 * s), Runs: c.runs, Events: passedTwice("expired", 14*s, 16900*time.Millisecond)}
			if v := verdictOf(t, jepsen.Check(h), jepsen.CheckTakeOver); v.OK != c.ok {
				t.Errorf("take-over ok: got %v, want %v: %v", v.OK, c.ok, v.Faults)
			}
		})
	}
}

func verdictOf(t *testing.T, all []jepsen.Verdict, check string) jepsen.Verdict {
	t.Helper()
	for _, v := range all {
		if v.Check == check {
			return v
		}
	}
	t.Fatalf("no verdict %s", check)
	return jepsen.Verdict{}
}

func record(stream int, call, ret time.Duration, total uint64) jepsen.Op {
	return jepsen.Op{Stream: stream, Kind: jepsen.KindRecord, Key: "j", Call: call, Return: ret, Outcome: jepsen.OK, Got: total}
}

func total(stream int, call, ret time.Duration, n uint64) jepsen.Op {
	return jepsen.Op{Stream: stream, Kind: jepsen.KindTotal, Key: "j", Call: call, Return: ret, Outcome: jepsen.OK, Got: n}
}

func repeat(stream int, call, ret time.Duration, first, again uint64) jepsen.Op {
	return jepsen.Op{Stream: stream, Kind: jepsen.KindRepeat, Key: "j", Call: call, Return: ret, Outcome: jepsen.OK, Token: first, Got: again}
}

func gauge(node string, boot int, when jepsen.GaugeTime, goroutines, handles int) jepsen.Gauge {
	return jepsen.Gauge{Node: node, Boot: boot, When: when, Goroutines: goroutines, Handles: handles}
}

// Each is judged by hand: which check must fail, "" for none.
var conduct = []struct {
	name string
	h    jepsen.History
	bad  string
}{
	{"records counted once", jepsen.History{Ops: []jepsen.Op{record(1, 1*s, 2*s, 1), record(2, 1*s, 3*s, 2), total(1, 4*s, 5*s, 2)}}, ""},
	{"a record without an answer may count", jepsen.History{Ops: []jepsen.Op{lost(record(1, 1*s, 2*s, 0)), record(2, 3*s, 4*s, 2), total(2, 5*s, 6*s, 2)}}, ""},
	{"or may not", jepsen.History{Ops: []jepsen.Op{lost(record(1, 1*s, 2*s, 0)), record(2, 3*s, 4*s, 1), total(2, 5*s, 6*s, 1)}}, ""},
	{"a record that counts twice", jepsen.History{Ops: []jepsen.Op{record(1, 1*s, 2*s, 1), record(1, 3*s, 4*s, 3)}}, jepsen.CheckRecords},
	{"one total for two records", jepsen.History{Ops: []jepsen.Op{record(1, 1*s, 2*s, 1), record(2, 1*s, 2*s, 1)}}, jepsen.CheckRecords},
	{"totals against the order of time", jepsen.History{Ops: []jepsen.Op{record(1, 1*s, 2*s, 2), record(2, 3*s, 4*s, 1)}}, jepsen.CheckRecords},
	{"a record that was lost", jepsen.History{Ops: []jepsen.Op{record(1, 1*s, 2*s, 1), record(1, 3*s, 4*s, 2), total(2, 5*s, 6*s, 1)}}, jepsen.CheckRecords},
	{"a total of more than was sent", jepsen.History{Ops: []jepsen.Op{record(1, 1*s, 2*s, 1), total(2, 5*s, 6*s, 2)}}, jepsen.CheckRecords},
	{"a read beside a record", jepsen.History{Ops: []jepsen.Op{record(1, 1*s, 4*s, 1), total(2, 2*s, 3*s, 1), total(2, 5*s, 6*s, 1)}}, ""},
	{"a repeat with the answer of the first", jepsen.History{Ops: []jepsen.Op{record(1, 1*s, 2*s, 1), repeat(1, 3*s, 4*s, 1, 1)}}, ""},
	{"a repeat that counted", jepsen.History{Ops: []jepsen.Op{record(1, 1*s, 2*s, 1), repeat(1, 3*s, 4*s, 1, 2)}}, jepsen.CheckRecords},

	{"a node that ended by itself", jepsen.History{Exits: []jepsen.Exit{{Node: "n1", At: 5 * s, Code: 2}}}, jepsen.CheckExits},
	{"with a full disk it may", jepsen.History{Exits: []jepsen.Exit{{Node: "n1", At: 5 * s, Code: 1}}, Windows: []jepsen.Window{hit("full-disk", 4*s, 6*s, "n1")}}, ""},
	{"another's full disk is no excuse", jepsen.History{Exits: []jepsen.Exit{{Node: "n1", At: 5 * s, Code: 1}}, Windows: []jepsen.Window{hit("full-disk", 4*s, 6*s, "n2")}}, jepsen.CheckExits},
	{"nor one that is long over", jepsen.History{Exits: []jepsen.Exit{{Node: "n1", At: 22 * s, Code: 1}}, Windows: []jepsen.Window{hit("full-disk", 4*s, 6*s, "n1")}}, jepsen.CheckExits},

	{"a leave in time", jepsen.History{Leaves: []jepsen.Leave{{Node: "n1", Took: 9 * s, Bound: 10 * s, Done: true}}}, ""},
	{"a leave out of time", jepsen.History{Leaves: []jepsen.Leave{{Node: "n1", Took: 11 * s, Bound: 10 * s, Done: true}}}, jepsen.CheckLeave},
	{"a leave that never came", jepsen.History{Leaves: []jepsen.Leave{{Node: "n1", Took: 9 * s, Bound: 10 * s}}}, jepsen.CheckLeave},

	{"a process that is left", jepsen.History{Found: []jepsen.Finding{{Check: jepsen.CheckLeaks, What: "process 7"}}}, jepsen.CheckLeaks},
	{"a node that is not ready again", jepsen.History{Found: []jepsen.Finding{{Check: jepsen.CheckRecovery, What: "n3 is not ready"}}}, jepsen.CheckRecovery},
	{"as many goroutines and handles as before", jepsen.History{Gauges: []jepsen.Gauge{
		gauge("n1", 1, jepsen.Before, 120, 50), gauge("n2", 1, jepsen.Before, 80, 30), gauge("n2", 1, jepsen.During, 900, 900), gauge("n2", 1, jepsen.After, 125, 52),
	}}, ""},
	{"goroutines that leak", jepsen.History{Gauges: []jepsen.Gauge{gauge("n1", 1, jepsen.Before, 120, 50), gauge("n2", 1, jepsen.After, 161, 50)}}, jepsen.CheckLeaks},
	{"handles that leak", jepsen.History{Gauges: []jepsen.Gauge{gauge("n1", 1, jepsen.Before, 120, 50), gauge("n2", 2, jepsen.After, 120, 75)}}, jepsen.CheckLeaks},
	{"goroutines that an older binary does not tell", jepsen.History{Gauges: []jepsen.Gauge{gauge("n1", 1, jepsen.Before, -1, 50), gauge("n1", 1, jepsen.After, -1, 50)}}, ""},
}

// TestCheck_Processes ensures that the conduct of processes is judged.
func TestCheck_Processes(t *testing.T) {
	for _, c := range conduct {
		t.Run(c.name, func(t *testing.T) {
			h := c.h
			h.Meta = jepsen.Meta{Nodes: []string{"n1", "n2", "n3"}, Length: 20 * s}
			failed := jepsen.FailedChecks(jepsen.CheckProcesses(&h))
			want := "[" + c.bad + "]"
			if got := fmt.Sprint(failed); got != want {
				t.Errorf("failed %v, want %v", got, want)
			}
		})
	}
}
