package jepsen

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Loading is one time that a runtime was asked for the code of a worker.
type Loading struct {
	Proc   string        `json:"proc"` // process (or boot of a node) that loaded it
	Key    string        `json:"key"`
	Source string        `json:"source"`
	Start  time.Duration `json:"start"`
	Stop   time.Duration `json:"stop"` // Never: it had not ended when the recording did
	OK     bool          `json:"ok"`   // it had the code in the end
}

// Load notes that a load begins; the returned function notes how it ended. That
// of a process that is dead by then counts for nothing.
func (r *Recorder) Load(l Loading) (over func(ok bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead[l.Proc] || r.closed {
		return func(bool) {}
	}
	i := len(r.h.Loads)
	l.Start, l.Stop = r.Now(), Never
	r.h.Loads = append(r.h.Loads, l)
	return func(ok bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.dead[l.Proc] && !r.closed {
			r.h.Loads[i].Stop, r.h.Loads[i].OK = r.Now(), ok
		}
	}
}

// missing is the error of a worker that no instance can load.
const missing = "runtime_missing"

// checkLoadedSource: what a record says that was loaded, or failed to, is the
// source that was asked for last, tried since: how an earlier attempt ended never
// counts.
func checkLoadedSource(h *History) Verdict {
	if len(h.Loads) == 0 {
		return verdict(CheckLoadedSource, 0, nil) // of commands, or a history by hand
	}
	loads := map[string][]Loading{}
	for _, l := range h.Loads {
		loads[l.Key] = append(loads[l.Key], l)
	}
	var faults []string
	checked := 0
	for _, l := range h.catalog() {
		var ask *Op // the last that asked for a load; nil: nobody knows
		source := ""
		for i := range l.changes {
			c := &l.changes[i]
			switch c.events[0] {
			case workerCreated, workerReloading:
				if ask = l.call(c.by); ask == nil {
					source = ""
					continue
				}
				source = cmp.Or(ask.Worker.Source, source)
			case workerLoaded, workerNotLoaded:
				ok := c.events[0] == workerLoaded
				if ask == nil || source == "" || !ok && c.after.Error == missing {
					continue
				}
				checked++
				if !slices.ContainsFunc(loads[l.key], func(x Loading) bool { return x.tells(source, ok, ask.Call, c.seen) }) {
					faults = append(faults, fmt.Sprintf("%s: revision %d, %s: its source is %s since the %s of %s at %v, and no load of that has ended so by %v",
						l.key, c.revision, c.what(), source, ask.Kind, ask.By, ask.Call, c.seen))
				}
			}
		}
	}
	return verdict(CheckLoadedSource, checked, faults)
}

// tells whether a load is one of that source, made in that time, with that end. One
// that hangs is given up before it ends.
func (x *Loading) tells(source string, ok bool, from, until time.Duration) bool {
	return x.Source == source && x.OK == ok && x.Start >= from && (x.Stop <= until || !ok && x.Start <= until)
}

// call is the call of that name, nil if there is none.
func (l *life) call(by string) *Op {
	i := slices.IndexFunc(l.calls, func(o Op) bool { return by != "" && o.By == by })
	if i < 0 {
		return nil
	}
	return &l.calls[i]
}
