package jepsen_test

import (
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

const refusal = "no space left on device"

// writeRefused is a write that n1's disk refused at 10 s.
func writeRefused(said, ended time.Duration, saying string) jepsen.Trouble {
	return jepsen.Trouble{Node: "n1", Proc: "n1/1", What: refusal, At: 10 * s, Said: said, Saying: saying, Ended: ended}
}

func killed(t jepsen.Trouble) jepsen.Trouble {
	t.Killed = true
	return t
}

// acquired is what was answered through a node.
func acquired(node string, call, ret time.Duration) jepsen.Op {
	return jepsen.Op{Stream: 1, Node: node, Kind: jepsen.KindAcquire, Key: "k", Who: "c", Token: 0, Call: call, Return: ret, Outcome: jepsen.OK, Got: 1}
}

// early is a grant of k that was seen before the write was refused, late one after that.
var early, late = granted(1, 9*s), granted(1, 11*s)

func granted(token uint64, at time.Duration) []jepsen.Event {
	return []jepsen.Event{{Revision: 1, Type: "lease.granted", Key: "k", Token: token, Reader: "n1", At: at}}
}

// Bounds of meta: TTL 4 s; the recording ends after a minute.
var troubles = []struct {
	name    string
	trouble jepsen.Trouble
	ops     []jepsen.Op
	runs    []jepsen.Run
	events  []jepsen.Event
	bad     string // part of what is found, "" for nothing
}{
	{
		"said at once, stopped in time", writeRefused(10100*time.Millisecond, 15*s, "storage failed: append to the log: "+refusal),
		[]jepsen.Op{acquired("n1", 9*s, 9500*time.Millisecond), acquired("n1", 9900*time.Millisecond, 10200*time.Millisecond), acquired("n2", 12*s, 13*s), acquired("n1", 20*s, 21*s)},
		[]jepsen.Run{on("n1", 1, 5*s, 13*s), on("n2", 2, 15*s, 20*s)},
		nil, "",
	},
	{"never said", writeRefused(jepsen.Never, jepsen.Never, ""), nil, nil, nil, "never said so"},
	{"never said, though it ended in the end", writeRefused(jepsen.Never, 12*s, ""), nil, nil, nil, "never said so"},
	{"said too late", writeRefused(11100*time.Millisecond, 15*s, refusal), nil, nil, nil, "only at 11.1s"},
	{"said something else", writeRefused(10100*time.Millisecond, 15*s, "no leader"), nil, nil, nil, `it said "no leader"`},
	{"went on for too long", writeRefused(10100*time.Millisecond, 25*s, refusal), nil, nil, nil, "had not stopped 14s later"},
	{"went on for ever", writeRefused(10100*time.Millisecond, jepsen.Never, refusal), nil, nil, nil, "had not stopped 14s later"},
	{"answered after that", writeRefused(10100*time.Millisecond, 15*s, refusal), []jepsen.Op{acquired("n1", 11*s, 12*s)}, nil, nil, "acquire of k that was sent to it at 11s was answered at 12s"},
	{"began work after that", writeRefused(10100*time.Millisecond, 15*s, refusal), nil, []jepsen.Run{on("n1", 1, 11*s, 12*s)}, nil, "k began to run in it at 11s"},
	{"began what it was granted before", writeRefused(10100*time.Millisecond, 15*s, refusal), nil, []jepsen.Run{on("n1", 1, 11*s, 12*s)}, early, ""},
	{"began what it was granted after that", writeRefused(10100*time.Millisecond, 15*s, refusal), nil, []jepsen.Run{on("n1", 1, 11*s, 12*s)}, late, "k began to run in it at 11s"},
	{"killed before it could say so", killed(writeRefused(jepsen.Never, 10500*time.Millisecond, "")), nil, nil, nil, ""},
	{"killed when it should long have said so", killed(writeRefused(jepsen.Never, 12*s, "")), nil, nil, nil, "never said so"},
	{"killed while it stopped", killed(writeRefused(10*s, 30*s, refusal)), nil, nil, nil, ""},
}

// TestCheck_DiskTrouble judges what processes made of a write that was refused.
func TestCheck_DiskTrouble(t *testing.T) {
	for _, c := range troubles {
		t.Run(c.name, func(t *testing.T) {
			h := &jepsen.History{Meta: meta(time.Minute), Ops: c.ops, Runs: c.runs, Events: c.events, Troubles: []jepsen.Trouble{c.trouble}}
			v := verdictOf(t, jepsen.Check(h), jepsen.CheckDisk)
			if v.OK != (c.bad == "") || v.Checked != 1 || !strings.Contains(strings.Join(v.Faults, "\n"), c.bad) {
				t.Errorf("ok %t, checked %d: %q; want %q", v.OK, v.Checked, v.Faults, c.bad)
			}
		})
	}
}
