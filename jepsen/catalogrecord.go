package jepsen

import (
	"cmp"
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"
)

// The record of a worker, one register for each. What its events tell is the
// order of its changes: a call that was carried out is the change that names it,
// and what nobody asked for, ends of loads and of runs, may happen at any time
// before it was seen. The etag counts all changes, those without an event, too:
// new tags, and the beginning of an attempt to load, which nobody sees.

// record is what is known of a worker at one moment.
type record struct {
	n      int    // changes so far
	extra  uint64 // and those without an event, as far as an etag has told
	loose  bool   // there may have been more of them since
	tags   string
	source string // the last that was asked for
}

// exactly is the record if its etag is that one.
func (r record) exactly(etag uint64) (record, bool) {
	if etag < uint64(r.n) {
		return r, false
	}
	extra := etag - uint64(r.n)
	ok := extra == r.extra || r.loose && extra > r.extra
	r.extra, r.loose = extra, false
	return r, ok
}

// may is false if the etag can't be that one.
func (r record) may(etag uint64) bool {
	_, ok := r.exactly(etag)
	return ok
}

// catalogCall is one call on a record. kind kindOver is no call: at the end
// everything that was seen has happened.
type catalogCall struct {
	Op
	cut bool // before its return, so it may not have happened
}

const kindOver Kind = "over"

func (c catalogCall) String() string {
	s := fmt.Sprintf("%s %s", c.By, c.Kind)
	if c.Token != 0 {
		s += fmt.Sprintf(" if etag %d", c.Token)
	}
	s += fmt.Sprintf(": %s %s", c.Outcome, c.Code)
	if c.Got != 0 {
		s += fmt.Sprintf(" etag %d", c.Got)
	}
	if c.Worker != nil {
		s += fmt.Sprintf(" %+v", *c.Worker)
	}
	return s
}

// came are the records that r may have become by itself when something is
// called: what was seen before that has happened.
func (l *life) came(r record, called time.Duration) (all []record) {
	must := 0
	for i := range l.changes {
		if l.changes[i].seen < called {
			must = i + 1
		}
	}
	for {
		if r.n > 0 && l.changes[r.n-1].after.State == stateLoading {
			r.loose = true // an attempt may have begun
		}
		if r.n >= must {
			all = append(all, r)
		}
		if r.n == len(l.changes) || !l.changes[r.n].byItself() {
			return all
		}
		r.n++
	}
}

// byItself tells whether nobody need have asked for the change.
func (c *change) byItself() bool {
	switch c.events[0] {
	case workerLoaded, workerNotLoaded, workerStopped, workerFailed:
		return c.by == ""
	}
	return false
}

// next returns every record that can follow; none: c can't happen now.
func (l *life) next(r record, c catalogCall) (all []record) {
	if c.cut {
		c.cut = false
		return append(l.next(r, c), r)
	}
	change, told := l.asked[c.By]
	if c.Outcome == Uncertain && !told {
		all = append(all, r) // it was not carried out, or changed nothing
		if c.Kind != KindTag {
			return all
		}
	}
	for _, r := range l.came(r, c.Call) {
		if c.Kind == kindOver {
			if r.n == len(l.changes) {
				all = append(all, r)
			}
			continue
		}
		if c.Kind == KindCreate {
			if r.n == 0 && told && change == 0 && c.Outcome != Refused {
				r.n, r.tags, r.source = 1, c.Worker.Tags, c.Worker.Source
				all = append(all, l.answered(r, c)...)
			}
			continue
		}
		there := r.n > 0 && !l.changes[r.n-1].gone()
		switch {
		case c.Outcome == Refused:
			if l.refuses(r, c, there) {
				all = append(all, r)
			}
		case !there:
		case c.Token != 0 && !r.may(c.Token):
		default:
			if c.Token != 0 {
				r, _ = r.exactly(c.Token)
			}
			if c.Kind == KindShow {
				all = append(all, l.shows(r, c)...)
				continue
			}
			if told && change != r.n {
				continue // it is another change's turn
			}
			if r, ok := l.carriedOut(r, c, told); ok {
				all = append(all, l.answered(r, c)...)
			}
		}
	}
	return all
}

// refuses tells whether the call is refused with its code.
func (l *life) refuses(r record, c catalogCall, there bool) bool {
	switch c.Code {
	case "not_found":
		return !there
	case "etag_mismatch":
		// One etag is not excluded as long as others are possible.
		return there && (r.loose || !r.may(c.Token))
	case "wrong_state":
		if !there || c.Token != 0 && !r.may(c.Token) {
			return false
		}
		state := l.changes[r.n-1].after.State
		return c.Kind == KindStart && state == stateLoadFailed || c.Kind == KindReload && state == stateLoading
	}
	return true // says nothing about the record
}

// carriedOut is the record after a call; told: it was a change that events tell of.
func (l *life) carriedOut(r record, c catalogCall, told bool) (record, bool) {
	now := l.changes[r.n-1].after
	if told {
		what := l.changes[r.n].what()
		r.n++
		switch c.Kind {
		case KindStart:
			return r, what == workerRequested || what == workerStarted
		case KindStop:
			return r, what == workerWithdrawn || what == workerStopped || what == workerWithdrawn+"+"+workerStopped
		case KindReload:
			r.source = cmp.Or(c.Worker.Source, r.source)
			return r, what == workerReloading
		case KindDelete:
			return r, what == workerDeleted
		}
		return r, false
	}
	switch c.Kind {
	case KindStart:
		return r, now.State == stateRunning || now.State == stateLoading && now.StartRequested
	case KindStop:
		return r, !now.StartRequested && !now.KeepsRunning && now.State != stateRunning
	case KindTag:
		if r.tags != c.Worker.Tags {
			r.tags = c.Worker.Tags
			r.extra++
		}
		return r, true
	}
	return r, false // it always changes something
}

// answered is the record if it has the etag that the call was answered with.
func (l *life) answered(r record, c catalogCall) []record {
	if c.Outcome != OK || c.Kind == KindDelete {
		return []record{r}
	}
	if r, ok := r.exactly(c.Got); ok {
		return []record{r}
	}
	return nil
}

// shows is the record if it is as it was shown.
func (l *life) shows(r record, c catalogCall) []record {
	now, w := l.changes[r.n-1].after, c.Worker
	if now.State != w.State || now.StartRequested != w.StartRequested || now.KeepsRunning != w.KeepsRunning || r.tags != w.Tags || r.source != w.Source {
		return nil
	}
	return l.answered(r, c)
}

// model is the record for porcupine.
func (l *life) model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{record{}} },
		Step: func(state, input, _ any) (all []any) {
			for _, r := range l.next(state.(record), input.(catalogCall)) {
				all = append(all, r)
			}
			return all
		},
		DescribeOperation: func(input, _ any) string { return input.(catalogCall).String() },
	}
	return m.ToModel()
}

// operations are the calls of the worker, and the end.
func (l *life) operations(length time.Duration) []porcupine.Operation {
	var ops []porcupine.Operation
	ids := map[int]int{}
	add := func(stream int, c catalogCall) {
		id, ok := ids[stream]
		if !ok {
			id = len(ids)
			ids[stream] = id
		}
		ops = append(ops, porcupine.Operation{ClientId: id, Input: c, Call: int64(c.Call), Return: int64(c.Return)})
	}
	for _, o := range l.calls {
		if o.Outcome == Failed || o.Outcome == Uncertain && o.Kind == KindShow {
			continue
		}
		if i, told := l.asked[o.By]; told {
			o.Return = min(o.Return, max(o.Call, l.changes[i].seen)) // it had happened by then
		}
		add(o.Stream, catalogCall{Op: o})
	}
	for _, c := range l.changes {
		length = max(length, c.seen+1)
	}
	add(-1, catalogCall{Op: Op{Kind: kindOver, By: "the end", Call: length, Return: length}})
	return ops
}

// checkCatalogRecord: every worker is one linearizable record, etags and calls
// without an answer included.
func checkCatalogRecord(h *History) Verdict {
	var faults []string
	checked := 0
	for _, l := range h.catalog() {
		if len(l.changes) == 0 {
			continue // its creation was not answered; or nobody watched
		}
		ops, model := l.operations(h.Meta.Length), l.model()
		checked += len(ops) - 1
		switch porcupine.CheckOperationsTimeout(model, ops, searchLimit) {
		case porcupine.Illegal:
			faults = append(faults, fmt.Sprintf("%s: no order of its %d calls and %d changes is legal; the shortest bad prefix ends with %s", l.key, len(ops)-1, len(l.changes), badPrefix(model, ops, leftOpenCall)))
		case porcupine.Unknown:
			faults = append(faults, fmt.Sprintf("%s: undecided after %v (%d calls)", l.key, searchLimit, len(ops)-1))
		}
	}
	return verdict(CheckCatalogRecord, checked, faults)
}

// leftOpenCall is leftOpen for a call.
func leftOpenCall(input any) (open any, ok bool) {
	c := input.(catalogCall)
	c.cut = true
	return c, c.Kind != KindShow && c.Outcome != Refused
}
