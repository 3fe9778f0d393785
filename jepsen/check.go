package jepsen

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// Names of the checks. A planted bug is demanded by one of these.
const (
	CheckHistory  = "history"             // the recording itself makes sense
	CheckRegister = "lease-register"      // every key is a linearizable lease register
	CheckOverlap  = "run-overlap"         // two runs of one key never overlap
	CheckTokens   = "token-order"         // tokens only grow
	CheckAcks     = "acknowledged-writes" // what was acknowledged is there
	CheckTakeOver = "take-over"           // a wanted key runs again within the widest bound
	CheckBounds   = "take-over-bounds"    // and within that of its kind, where one fault is to blame
	CheckHandOver = "hand-over"           // a key that is moved runs again a commit after the old run's stop
	CheckPlan     = "group-plan"          // nothing is given to who takes nothing; loads are even at rest
	CheckHash     = "state-hash"          // equal revision, equal state
	CheckEvents   = "event-stream"        // no hole, no difference between readers
	CheckRecords  = "exactly-once"        // executions of jobs are counted once
	CheckDisk     = "disk-trouble"        // a node whose disk refuses a write says so and stops serving

	CheckCatalogRecord = "catalog-record" // every worker is a linearizable record with an etag
	CheckCatalogEvents = "catalog-events" // one event for each transition, all on the paths of the state machine
	CheckLostStart     = "lost-start"     // an acknowledged start runs, or the worker says why not
	CheckLoadedSource  = "loaded-source"  // what was loaded is the source of the record, by an attempt that counts

	CheckExits    = "exits"         // no process ends by itself
	CheckRecovery = "recovery"      // every node is ready again once all is healed
	CheckLeave    = "bounded-leave" // a node that is told to leave is gone in time
	CheckLeaks    = "leaks"         // nothing is left behind
)

const (
	eventGranted = "lease.granted"
	eventEnded   = "lease.ended"
)

// Bounds are the settings that the take-over bounds are made of.
type Bounds struct {
	TTL      time.Duration `json:"ttl"`
	Election time.Duration `json:"election"` // longest until a leader serves, once a majority can talk
	Slack    time.Duration `json:"slack"`    // commits, clock rates, and what the tier's own machinery costs
	// Wanted are the keys that every node's runners want for as long as it is up.
	Wanted []string `json:"wanted,omitempty"`
	// Sound are the sources of workers that load and run for as long as they are
	// to, whatever is done to the cluster.
	Sound []string `json:"sound,omitempty"`
}

// takeOver is the longest a wanted key may be without a run once a majority of
// the nodes is undisturbed: election, TTL and a commit.
func (b Bounds) takeOver() time.Duration { return b.Election + b.TTL + b.Slack }

// Verdict is the outcome of one check.
type Verdict struct {
	Check   string   `json:"check"`
	OK      bool     `json:"ok"`
	Checked int      `json:"checked"` // how many things it looked at
	Faults  []string `json:"faults,omitempty"`
}

// Outcome is "held", "broken", or "unseen" where there was nothing to look at,
// which shows nothing.
func (v Verdict) Outcome() string {
	switch {
	case !v.OK:
		return "broken"
	case v.Checked == 0:
		return "unseen"
	}
	return "held"
}

func verdict(check string, checked int, faults []string) Verdict {
	const most = 20
	if n := len(faults); n > most {
		faults = append(faults[:most:most], fmt.Sprintf("… and %d more", n-most))
	}
	return Verdict{Check: check, OK: len(faults) == 0, Checked: checked, Faults: faults}
}

// Check judges a history.
func Check(h *History) []Verdict {
	return []Verdict{
		checkHistory(h), checkRegister(h), checkOverlap(h), checkTokens(h), checkAcks(h),
		checkTakeOver(h), checkBounds(h), checkHandOver(h), checkPlan(h), checkRecords(h), checkDiskTrouble(h), checkHash(h), checkEvents(h),
		checkCatalogRecord(h), checkCatalogEvents(h), checkLostStart(h), checkLoadedSource(h),
	}
}

// CheckProcesses judges a history of real processes: their conduct, too. What
// matters most comes first.
func CheckProcesses(h *History) []Verdict {
	first := []string{CheckTokens, CheckOverlap} // the last of them before all
	all := append(Check(h), checkExits(h), checkRecovery(h), checkLeaves(h), checkLeaks(h))
	slices.SortStableFunc(all, func(a, b Verdict) int {
		return cmp.Compare(slices.Index(first, b.Check), slices.Index(first, a.Check))
	})
	return all
}

// FailedChecks returns the names of the checks that failed.
func FailedChecks(vs []Verdict) []string {
	var names []string
	for _, v := range vs {
		if !v.OK {
			names = append(names, v.Check)
		}
	}
	return names
}

// checkHistory: calls of one stream follow one another, and runs have not
// ended before they began. Nothing else can be concluded from a bad recording.
func checkHistory(h *History) Verdict {
	var faults []string
	last := map[int]Op{}
	ops := slices.Clone(h.Ops)
	slices.SortStableFunc(ops, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	for _, o := range ops {
		if o.Return < o.Call {
			faults = append(faults, fmt.Sprintf("stream %d: %s %s returned at %v, called at %v", o.Stream, o.Kind, o.Key, o.Return, o.Call))
		}
		if p, ok := last[o.Stream]; ok && o.Call < p.Return {
			faults = append(faults, fmt.Sprintf("stream %d: %s called at %v while %s was under way until %v", o.Stream, o.Kind, o.Call, p.Kind, p.Return))
		}
		last[o.Stream] = o
	}
	for _, r := range h.Runs {
		if r.Stop < r.Start {
			faults = append(faults, fmt.Sprintf("run of %s in %s stopped at %v, started at %v", r.Key, r.Proc, r.Stop, r.Start))
		}
	}
	return verdict(CheckHistory, len(h.Ops)+len(h.Runs), faults)
}

// searchLimit bounds the search for one key's order. A search that is not done
// by then has decided nothing: that is a failure of the check.
const searchLimit = 30 * time.Second

func checkRegister(h *History) Verdict {
	var faults []string
	model, checked := registerModel(), 0
	for _, key := range h.keys() {
		steps := registerSteps(h, key)
		checked += len(steps)
		switch porcupine.CheckOperationsTimeout(model, steps, searchLimit) {
		case porcupine.Illegal:
			fault := fmt.Sprintf("%s: no order of its %d operations is legal", key, len(steps))
			if len(faults) == 0 { // which takes seconds; the first key is where to look
				fault += "; the shortest bad prefix ends with " + badPrefix(model, steps, leftOpen)
			}
			faults = append(faults, fault)
		case porcupine.Unknown:
			faults = append(faults, fmt.Sprintf("%s: undecided after %v (%d operations)", key, searchLimit, len(steps)))
		}
	}
	return verdict(CheckRegister, checked, faults)
}

// leftOpen is an operation without its return; not ok: it says nothing then.
func leftOpen(input any) (open any, ok bool) {
	s := input.(step)
	s.open = true
	return s, s.kind != KindRead && s.outcome != Refused
}

// badPrefix names the operation whose return makes the history illegal. What
// was under way at a cut is left open there, so a prefix of a legal history is
// legal and the search may halve.
func badPrefix(m porcupine.Model, ops []porcupine.Operation, leftOpen func(input any) (open any, ok bool)) string {
	ends := slices.Clone(ops)
	slices.SortStableFunc(ends, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	n := sort.Search(len(ends), func(n int) bool {
		cut := ends[n].Return
		var part []porcupine.Operation
		for _, o := range ops {
			if o.Return > cut {
				open, ok := leftOpen(o.Input)
				if !ok || o.Call > cut {
					continue
				}
				o.Input, o.Return = open, int64(Never)
			}
			part = append(part, o)
		}
		return porcupine.CheckOperationsTimeout(m, part, time.Second) == porcupine.Illegal
	})
	if n == len(ends) {
		return "(none found)"
	}
	return fmt.Sprintf("[%v, %v] %v", time.Duration(ends[n].Call), time.Duration(ends[n].Return), ends[n].Input)
}

func (h *History) keys() []string {
	keys := map[string]bool{}
	for i := range h.Ops {
		if k := h.Ops[i].Key; k != "" {
			keys[k] = true
		}
	}
	for i := range h.Runs {
		keys[h.Runs[i].Key] = true
	}
	return slices.Sorted(maps.Keys(keys))
}

func (h *History) runsOf(key string) []Run {
	var runs []Run
	for _, r := range h.Runs {
		if r.Key == key {
			runs = append(runs, r)
		}
	}
	slices.SortStableFunc(runs, func(a, b Run) int { return cmp.Compare(a.Start, b.Start) })
	return runs
}

// checkOverlap: the promise itself. At no instant two runs of one key.
func checkOverlap(h *History) Verdict {
	var faults []string
	for _, key := range h.keys() {
		runs := h.runsOf(key)
		for i := 1; i < len(runs); i++ {
			// Compare with the run that ends last among those before.
			latest := slices.MaxFunc(runs[:i], func(a, b Run) int { return cmp.Compare(a.Stop, b.Stop) })
			if runs[i].Start < latest.Stop {
				faults = append(faults, fmt.Sprintf("%s: token %d in %s started at %v, token %d in %s ran until %v (%s): %v of two owners",
					key, runs[i].Token, runs[i].Proc, runs[i].Start, latest.Token, latest.Proc, latest.Stop, latest.End, min(latest.Stop, runs[i].Stop)-runs[i].Start))
			}
		}
	}
	return verdict(CheckOverlap, len(h.Runs), faults)
}

// checkTokens: each start has a larger token than every earlier start of its
// key, except a restart under the same grant; grants of all keys grow in the
// order of the log.
func checkTokens(h *History) Verdict {
	var faults []string
	for _, key := range h.keys() {
		var last Run
		for i, r := range h.runsOf(key) {
			if i > 0 && r.Token <= last.Token && !(r.Token == last.Token && r.Proc == last.Proc) {
				faults = append(faults, fmt.Sprintf("%s: token %d started in %s at %v after token %d in %s at %v", key, r.Token, r.Proc, r.Start, last.Token, last.Proc, last.Start))
			}
			if r.Token >= last.Token {
				last = r
			}
		}
	}
	grants := 0
	var last Event
	for _, e := range h.log() {
		if e.Type != eventGranted {
			continue
		}
		grants++
		if e.Token <= last.Token {
			faults = append(faults, fmt.Sprintf("%s: token %d granted at revision %d after token %d of %s at %d", e.Key, e.Token, e.Revision, last.Token, last.Key, last.Revision))
		}
		last = e
	}
	return verdict(CheckTokens, len(h.Runs)+grants, faults)
}

// log is the event stream as all readers together saw it, one event of each
// number (checkEvents says whether they agree).
func (h *History) log() []Event {
	events := slices.Clone(h.Events)
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Or(a.before(&b), cmp.Compare(a.At, b.At)) })
	return slices.CompactFunc(events, func(a, b Event) bool { return a.before(&b) == 0 })
}

// checkAcks: every acknowledged grant and release is in the log exactly once,
// and nothing ran without a grant.
func checkAcks(h *History) Verdict {
	if len(h.Events) == 0 {
		return verdict(CheckAcks, 0, nil) // a history without readers, by hand
	}
	var faults []string
	type grant struct {
		key   string
		token uint64
	}
	granted, ended, checked := map[grant]int{}, map[grant][]string{}, 0
	for _, e := range h.log() {
		g := grant{e.Key, e.Token}
		switch e.Type {
		case eventGranted:
			granted[g]++
		case eventEnded:
			ended[g] = append(ended[g], e.Reason)
		}
	}
	for g, n := range granted {
		if n > 1 {
			faults = append(faults, fmt.Sprintf("%s: token %d granted %d times", g.key, g.token, n))
		}
	}
	for g, reasons := range ended {
		if len(reasons) > 1 {
			faults = append(faults, fmt.Sprintf("%s: token %d ended %d times: %v", g.key, g.token, len(reasons), reasons))
		}
	}
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Outcome != OK {
			continue
		}
		switch o.Kind {
		case KindAcquire:
			checked++
			if granted[grant{o.Key, o.Got}] == 0 {
				faults = append(faults, fmt.Sprintf("%s: token %d was answered to %s at %v and is not in the log", o.Key, o.Got, o.Who, o.Return))
			}
		case KindRelease:
			checked++
			if r := ended[grant{o.Key, o.Token}]; !slices.ContainsFunc(r, byHolder) {
				faults = append(faults, fmt.Sprintf("%s: release of token %d was answered to %s at %v; the log says %v", o.Key, o.Token, o.Who, o.Return, r))
			}
		}
	}
	for i := range h.Runs {
		r := &h.Runs[i]
		if h.unread(r) {
			continue
		}
		checked++
		if granted[grant{r.Key, r.Token}] == 0 {
			faults = append(faults, fmt.Sprintf("%s: ran in %s under token %d, which was never granted", r.Key, r.Proc, r.Token))
		}
	}
	slices.Sort(faults)
	return verdict(CheckAcks, checked, faults)
}

// byHolder tells whether a grant ended by its holder's word: it may have been
// asked to hand it over or to stop before.
func byHolder(reason string) bool {
	return reason == "released" || reason == "moved" || reason == "revoked"
}

// checkHash: copies at one revision are equal.
func checkHash(h *History) Verdict {
	var faults []string
	first := map[uint64]Sample{}
	compared := 0
	for _, s := range h.Samples {
		f, ok := first[s.Revision]
		if !ok {
			first[s.Revision] = s
			continue
		}
		compared++
		if s.Hash != f.Hash {
			faults = append(faults, fmt.Sprintf("revision %d: %s has %s, %s has %s", s.Revision, f.Node, f.Hash, s.Node, s.Hash))
		}
	}
	return verdict(CheckHash, compared, faults)
}

// checkEvents: readers agree on every event, get them in order, and miss none
// between two that they got unless they were told so.
func checkEvents(h *History) Verdict {
	var faults []string
	log := h.log()
	type number struct {
		revision uint64
		position uint32
	}
	at := map[number]int{}
	for i, e := range log {
		at[number{e.Revision, e.Position}] = i
		if i > 0 && e.Revision == log[i-1].Revision && e.Position != log[i-1].Position+1 {
			faults = append(faults, fmt.Sprintf("revision %d: position %d follows %d", e.Revision, e.Position, log[i-1].Position))
		}
	}
	last := map[string]Event{}
	for _, e := range h.Events {
		i := at[number{e.Revision, e.Position}]
		if w := log[i]; w.Type != e.Type || w.Key != e.Key || w.Token != e.Token || w.Reason != e.Reason || w.Instance != e.Instance {
			faults = append(faults, fmt.Sprintf("event %d.%d: %s saw %s of %s %d, %s saw %s of %s %d", e.Revision, e.Position, w.Reader, w.Type, w.Key, w.Token, e.Reader, e.Type, e.Key, e.Token))
		}
		p, ok := last[e.Reader]
		last[e.Reader] = e
		if !ok || e.Resync {
			continue
		}
		switch j := at[number{p.Revision, p.Position}]; {
		case i <= j:
			faults = append(faults, fmt.Sprintf("%s got event %d.%d after %d.%d", e.Reader, e.Revision, e.Position, p.Revision, p.Position))
		case i > j+1:
			faults = append(faults, fmt.Sprintf("%s got event %d.%d right after %d.%d and missed %d, first %d.%d %s", e.Reader, e.Revision, e.Position, p.Revision, p.Position, i-j-1, log[j+1].Revision, log[j+1].Position, log[j+1].Type))
		}
	}
	return verdict(CheckEvents, len(h.Events), faults)
}
