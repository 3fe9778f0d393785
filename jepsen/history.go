package jepsen

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// Never is the return time of an operation whose outcome is unknown, and the
// stop time of a run that had not ended when the recording did.
const Never = time.Duration(math.MaxInt64)

// Kind is what a client asked for.
type Kind string

const (
	KindAcquire Kind = "acquire" // Got: the token
	KindRelease Kind = "release" // Token: of the grant to end
	KindRead    Kind = "read"    // Got: token of the grant that holds the key, 0 = free; linearizable
	KindOpen    Kind = "open"    // a session; Who names it
	KindClose   Kind = "close"   // a session
	KindRecord  Kind = "record"  // of a job's execution; Got: the new total. Repeated until it was answered
	KindRepeat  Kind = "repeat"  // of a record that was answered; Token: its total, Got: that of the repeat
	KindTotal   Kind = "total"   // Got: a job's total; linearizable
)

// Outcome is how an operation ended.
type Outcome string

const (
	OK        Outcome = "ok"
	Refused   Outcome = "refused"   // by the state: Code says why
	Failed    Outcome = "failed"    // surely not applied; says nothing about the state
	Uncertain Outcome = "uncertain" // may have been applied, or be applied later
)

// Op is one operation of one client.
type Op struct {
	Stream  int           `json:"stream"`
	Node    string        `json:"node,omitempty"` // it went in through
	Kind    Kind          `json:"kind"`
	Key     string        `json:"key,omitempty"`
	Who     string        `json:"who,omitempty"`   // asks: one holder of one session
	Token   uint64        `json:"token,omitempty"` // asked about
	Call    time.Duration `json:"call"`
	Return  time.Duration `json:"return"`
	Outcome Outcome       `json:"outcome"`
	Got     uint64        `json:"got,omitempty"` // token answered; of a refused acquire: the holder's, if told
	Code    string        `json:"code,omitempty"`
	// By names the call to the cluster, which names it in the events that follow.
	By     string      `json:"by,omitempty"`
	Worker *WorkerSeen `json:"worker,omitempty"` // of a call of the worker catalog
}

// Run is one execution of work under a grant.
type Run struct {
	Proc  string        `json:"proc"` // process (or boot of a node) that ran it
	Node  string        `json:"node,omitempty"`
	Key   string        `json:"key"`
	Token uint64        `json:"token"`
	Start time.Duration `json:"start"`
	// Stop is when the work returned, or the last instant at which it is known
	// to have been able to act (its process was alive).
	Stop time.Duration `json:"stop"`
	// End says what ended it: returned, crash, exit, open.
	End string `json:"end"`
	// Own marks a run of a client with a session of its own, not of a node.
	Own bool `json:"own,omitempty"`
}

// Event is one event of the replicated stream as a reader on a node got it.
type Event struct {
	Revision uint64        `json:"revision"`
	Position uint32        `json:"position"`
	Type     string        `json:"type"`
	Key      string        `json:"key,omitempty"`
	Token    uint64        `json:"token,omitempty"`
	Reason   string        `json:"reason,omitempty"`
	Instance string        `json:"instance,omitempty"`
	Node     string        `json:"node,omitempty"` // that it is about
	By       string        `json:"by,omitempty"`   // asked for
	Worker   *WorkerSeen   `json:"worker,omitempty"`
	Reader   string        `json:"reader"`
	At       time.Duration `json:"at"` // observed
	// Resync marks that the reader was told that it missed events before this.
	Resync bool `json:"resync,omitempty"`
}

func (e *Event) before(o *Event) int {
	return cmp.Or(cmp.Compare(e.Revision, o.Revision), cmp.Compare(e.Position, o.Position))
}

// Sample is the state of one node's copy.
type Sample struct {
	Node     string        `json:"node"`
	At       time.Duration `json:"at"`
	Revision uint64        `json:"revision"`
	Hash     string        `json:"hash"`
}

// Window is one fault from its injection to its healing.
type Window struct {
	Fault string        `json:"fault"`
	Nodes []string      `json:"nodes"`          // hit
	Keys  []string      `json:"keys,omitempty"` // that nobody is to run while it lasts
	From  time.Duration `json:"from"`
	To    time.Duration `json:"to"`
	Text  string        `json:"text,omitempty"`
}

// Rest is a group as one node's copy showed it at a moment when nothing had been
// done to the cluster for so long that nothing may be under way any more.
type Rest struct {
	Node     string        `json:"node"`
	At       time.Duration `json:"at"`
	Revision uint64        `json:"revision"`
	Group    string        `json:"group"`
	Assigner string        `json:"assigner"`
	// Wanted counts the workloads that the group wants, Nobody names those among
	// them that nobody has.
	Wanted int      `json:"wanted"`
	Nobody []string `json:"nobody,omitempty"`
	Shares []Share  `json:"shares"` // of the members
}

// Share is what one instance has of a group.
type Share struct {
	Instance string `json:"instance"`
	Has      int    `json:"has"` // workloads
	Draining bool   `json:"draining,omitempty"`
	Cordoned bool   `json:"cordoned,omitempty"`
}

// Note is one line of the timeline.
type Note struct {
	At   time.Duration `json:"at"`
	Node string        `json:"node,omitempty"`
	Text string        `json:"text"`
}

// History is everything that was observed. Times count from its beginning on
// the observer's monotonic clock.
type History struct {
	Meta    Meta
	Ops     []Op
	Runs    []Run
	Loads   []Loading // of the worker catalog; in a simulation only
	Events  []Event
	Samples []Sample
	Rests   []Rest
	Windows []Window
	Notes   []Note

	Troubles []Trouble // of the simulation only

	// Of real processes only.
	Gauges []Gauge
	Exits  []Exit
	Leaves []Leave
	Found  []Finding
}

// Meta says what was run.
type Meta struct {
	Tier   string        `json:"tier"`
	Name   string        `json:"name"`
	Seed   int64         `json:"seed"`
	Nodes  []string      `json:"nodes"`
	Bounds Bounds        `json:"bounds"`
	Length time.Duration `json:"length"`
	Defect string        `json:"defect,omitempty"` // planted, by name
	Setup  *Setup        `json:"setup,omitempty"`  // of real processes
	// Read is until when the log was read to its end; 0 = until the end. What was
	// granted afterwards, while the nodes ended, nobody wrote down.
	Read time.Duration `json:"read,omitempty"`
}

// unread tells whether the run began when nobody read the log any more.
func (h *History) unread(r *Run) bool { return h.Meta.Read > 0 && r.Start > h.Meta.Read }

// line is one line of the file format: exactly one field beside Type is set.
type line struct {
	Type   string   `json:"type"`
	Meta   *Meta    `json:"meta,omitempty"`
	Op     *Op      `json:"op,omitempty"`
	Run    *Run     `json:"run,omitempty"`
	Load   *Loading `json:"load,omitempty"`
	Event  *Event   `json:"event,omitempty"`
	Sample *Sample  `json:"sample,omitempty"`
	Rest   *Rest    `json:"rest,omitempty"`
	Window *Window  `json:"window,omitempty"`
	Note   *Note    `json:"note,omitempty"`
	Gauge  *Gauge   `json:"gauge,omitempty"`
	Exit   *Exit    `json:"exit,omitempty"`
	Leave  *Leave   `json:"leave,omitempty"`

	Finding *Finding `json:"finding,omitempty"`
	Trouble *Trouble `json:"trouble,omitempty"`
}

// WriteJSONL writes the history, one JSON object per line, the meta data first.
func (h *History) WriteJSONL(w io.Writer) error {
	out := bufio.NewWriter(w)
	enc := json.NewEncoder(out)
	lines := []line{{Type: "meta", Meta: &h.Meta}}
	for i := range h.Ops {
		lines = append(lines, line{Type: "op", Op: &h.Ops[i]})
	}
	for i := range h.Runs {
		lines = append(lines, line{Type: "run", Run: &h.Runs[i]})
	}
	for i := range h.Loads {
		lines = append(lines, line{Type: "load", Load: &h.Loads[i]})
	}
	for i := range h.Events {
		lines = append(lines, line{Type: "event", Event: &h.Events[i]})
	}
	for i := range h.Samples {
		lines = append(lines, line{Type: "sample", Sample: &h.Samples[i]})
	}
	for i := range h.Rests {
		lines = append(lines, line{Type: "rest", Rest: &h.Rests[i]})
	}
	for i := range h.Windows {
		lines = append(lines, line{Type: "window", Window: &h.Windows[i]})
	}
	for i := range h.Notes {
		lines = append(lines, line{Type: "note", Note: &h.Notes[i]})
	}
	for i := range h.Gauges {
		lines = append(lines, line{Type: "gauge", Gauge: &h.Gauges[i]})
	}
	for i := range h.Exits {
		lines = append(lines, line{Type: "exit", Exit: &h.Exits[i]})
	}
	for i := range h.Leaves {
		lines = append(lines, line{Type: "leave", Leave: &h.Leaves[i]})
	}
	for i := range h.Found {
		lines = append(lines, line{Type: "finding", Finding: &h.Found[i]})
	}
	for i := range h.Troubles {
		lines = append(lines, line{Type: "trouble", Trouble: &h.Troubles[i]})
	}
	for i := range lines {
		if err := enc.Encode(&lines[i]); err != nil {
			return fmt.Errorf("write history: %w", err)
		}
	}
	return out.Flush()
}

// ReadJSONL reads what WriteJSONL wrote.
func ReadJSONL(r io.Reader) (*History, error) {
	h := &History{}
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	for n := 1; ; n++ {
		var l line
		if err := dec.Decode(&l); err == io.EOF {
			return h, nil
		} else if err != nil {
			return nil, fmt.Errorf("read history: line %d: %w", n, err)
		}
		switch {
		case l.Meta != nil:
			h.Meta = *l.Meta
		case l.Op != nil:
			h.Ops = append(h.Ops, *l.Op)
		case l.Run != nil:
			h.Runs = append(h.Runs, *l.Run)
		case l.Load != nil:
			h.Loads = append(h.Loads, *l.Load)
		case l.Event != nil:
			h.Events = append(h.Events, *l.Event)
		case l.Sample != nil:
			h.Samples = append(h.Samples, *l.Sample)
		case l.Rest != nil:
			h.Rests = append(h.Rests, *l.Rest)
		case l.Window != nil:
			h.Windows = append(h.Windows, *l.Window)
		case l.Note != nil:
			h.Notes = append(h.Notes, *l.Note)
		case l.Gauge != nil:
			h.Gauges = append(h.Gauges, *l.Gauge)
		case l.Exit != nil:
			h.Exits = append(h.Exits, *l.Exit)
		case l.Leave != nil:
			h.Leaves = append(h.Leaves, *l.Leave)
		case l.Trouble != nil:
			h.Troubles = append(h.Troubles, *l.Trouble)
		case l.Finding != nil:
			h.Found = append(h.Found, *l.Finding)
		default:
			return nil, fmt.Errorf("read history: line %d: unknown type %q", n, l.Type)
		}
	}
}

// sortByTime puts everything in the order in which it was observed.
func (h *History) sortByTime() {
	slices.SortStableFunc(h.Ops, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	slices.SortStableFunc(h.Runs, func(a, b Run) int { return cmp.Compare(a.Start, b.Start) })
	slices.SortStableFunc(h.Windows, func(a, b Window) int { return cmp.Compare(a.From, b.From) })
	slices.SortStableFunc(h.Notes, func(a, b Note) int { return cmp.Compare(a.At, b.At) })
}
