package jepsen

import (
	"fmt"
	"sync"
	"time"
)

// Recorder collects a history. Its clock is the one common observer.
type Recorder struct {
	base time.Time

	mu     sync.Mutex
	h      History             // guarded by mu
	stream int                 // guarded by mu; last stream ID given
	open   map[*RunHandle]bool // guarded by mu; runs that have not stopped
	dead   map[string]bool     // guarded by mu; processes that can't act any more
	paused map[string]bool     // guarded by mu; processes that can't act at present
	closed bool                // guarded by mu

	uncertain int   // guarded by mu; operations without an outcome
	grants    int   // guarded by mu; seen by any reader
	newest    Event // guarded by mu; that any reader has seen
}

// NewRecorder returns a recorder whose time starts now.
func NewRecorder(meta Meta) *Recorder {
	return &Recorder{base: time.Now(), h: History{Meta: meta}, open: map[*RunHandle]bool{}, dead: map[string]bool{}, paused: map[string]bool{}}
}

// Now is the observer's time.
func (r *Recorder) Now() time.Duration { return time.Since(r.base) }

// Stream is a sequence of operations that never overlap. After an operation of
// unknown outcome it goes on under a new ID, because that operation has no end.
type Stream struct {
	r   *Recorder
	id  int
	who string
}

// Stream returns a new stream; who names the holder that asks.
func (r *Recorder) Stream(who string) *Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream++
	return &Stream{r: r, id: r.stream, who: who}
}

// Pending is an operation that has been called.
type Pending struct {
	s  *Stream
	op Op
}

// Call notes that op is about to be sent.
func (s *Stream) Call(op Op) *Pending {
	op.Stream, op.Call = s.id, s.r.Now()
	if op.Who == "" {
		op.Who = s.who
	}
	return &Pending{s: s, op: op}
}

func (p *Pending) end(o Outcome, got uint64, code string) {
	r := p.s.r
	p.op.Return, p.op.Outcome, p.op.Got, p.op.Code = r.Now(), o, got, code
	if o == Uncertain {
		p.op.Return = Never
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if o == Uncertain {
		r.stream++
		p.s.id = r.stream
		if p.op.Kind == KindRead {
			return // a read without an answer says nothing
		}
		r.uncertain++
	}
	if o == Failed && p.op.Kind == KindRead {
		return
	}
	if !r.closed {
		r.h.Ops = append(r.h.Ops, p.op)
	}
}

// OK ends the operation as done; got is the token answered.
func (p *Pending) OK(got uint64) { p.end(OK, got, "") }

// Refused ends it as refused by the state; got is the holder's token if told.
func (p *Pending) Refused(code string, got uint64) { p.end(Refused, got, code) }

// Failed ends it as surely not applied. Failed reads leave no trace.
func (p *Pending) Failed(code string) { p.end(Failed, 0, code) }

// Uncertain leaves it open for ever.
func (p *Pending) Uncertain(code string) { p.end(Uncertain, 0, code) }

// RunHandle is a run that has started.
type RunHandle struct {
	r     *Recorder
	run   Run
	valid func() bool
	// away: its process is paused, so it can't act and no run is counted.
	away bool
}

// Start notes that work begins in a process. Nil if that process is known to be
// dead: in a simulation its goroutines live on as ghosts that count for nothing.
// valid tells whether the work's lease is still good; it is asked when a paused
// process goes on, as the work itself must. Nil: always.
func (r *Recorder) Start(run Run, valid func() bool) *RunHandle {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead[run.Proc] || r.closed {
		return nil
	}
	run.Start, run.Stop, run.End = r.Now(), Never, "open"
	h := &RunHandle{r: r, run: run, valid: valid, away: r.paused[run.Proc]}
	r.open[h] = true
	return h
}

// Stop notes that the work has returned. Only the first call counts.
func (h *RunHandle) Stop() {
	if h == nil {
		return
	}
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if h.r.open[h] {
		h.r.close(h, "returned")
		delete(h.r.open, h)
	}
}

// close ends the interval that is counted at present; r.mu is held.
func (r *Recorder) close(h *RunHandle, end string) {
	if h.away {
		return
	}
	run := h.run
	run.Stop, run.End = r.Now(), end
	r.h.Runs = append(r.h.Runs, run)
}

// Pause notes that proc stands still: nothing of it acts until Resume.
func (r *Recorder) Pause(proc string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused[proc] = true
	for h := range r.open {
		if h.run.Proc == proc && !h.away {
			r.close(h, "paused")
			h.away = true
		}
	}
}

// Resume notes that proc goes on. Work whose lease is no longer valid by then
// doesn't: whoever goes by the lease finds out before it acts.
func (r *Recorder) Resume(proc string) {
	r.mu.Lock()
	var away []*RunHandle
	delete(r.paused, proc)
	for h := range r.open {
		if h.run.Proc == proc && h.away {
			away = append(away, h)
		}
	}
	r.mu.Unlock()
	for _, h := range away {
		valid := h.valid == nil || h.valid() // may ask the node: not under mu
		r.mu.Lock()
		switch {
		case !r.open[h]:
		case valid:
			h.away, h.run.Start = false, r.Now()
		default:
			delete(r.open, h)
		}
		r.mu.Unlock()
	}
}

// Kill notes that proc is dead from this instant: its runs have ended, and
// nothing it says later counts.
func (r *Recorder) Kill(proc, end string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead[proc] = true
	for h := range r.open {
		if h.run.Proc == proc {
			r.close(h, end)
			delete(r.open, h)
		}
	}
}

// Dead tells whether proc was killed.
func (r *Recorder) Dead(proc string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dead[proc]
}

// AddRun notes a run whose times were taken elsewhere on the observer's clock.
func (r *Recorder) AddRun(run Run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Runs = append(r.h.Runs, run)
}

// Event notes an event that a reader was given.
func (r *Recorder) Event(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		e.At = r.Now()
		r.h.Events = append(r.h.Events, e)
		if r.newest.before(&e) < 0 {
			r.newest = e
			if e.Type == eventGranted {
				r.grants++
			}
		}
	}
}

// Sample notes the state of a node's copy.
func (r *Recorder) Sample(node string, revision uint64, hash string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.h.Samples = append(r.h.Samples, Sample{Node: node, At: r.Now(), Revision: revision, Hash: hash})
	}
}

// Rest notes a group at rest.
func (r *Recorder) Rest(s Rest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		s.At = r.Now()
		r.h.Rests = append(r.h.Rests, s)
	}
}

// Trouble notes that a process was refused a write; the returned function changes
// what is known of it.
func (r *Recorder) Trouble(t Trouble) (change func(func(t *Trouble))) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.h.Troubles)
	t.At, t.Said, t.Ended = r.Now(), Never, Never
	r.h.Troubles = append(r.h.Troubles, t)
	return func(f func(t *Trouble)) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.closed {
			f(&r.h.Troubles[i])
		}
	}
}

// Fault notes a fault that begins; the returned function notes its end.
func (r *Recorder) Fault(name string, nodes []string, text string) (healed func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.window(Window{Fault: name, Nodes: nodes, Text: text})
}

// Kept notes that a key is kept from everybody; the returned function notes that
// it no longer is.
func (r *Recorder) Kept(name, key, text string) (over func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.window(Window{Fault: name, Keys: []string{key}, Text: text})
}

// window begins a window; r.mu is held.
func (r *Recorder) window(w Window) (over func()) {
	i := len(r.h.Windows)
	w.From, w.To = r.Now(), Never
	r.h.Windows = append(r.h.Windows, w)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.closed {
			r.h.Windows[i].To = r.Now()
		}
	}
}

// Notef adds a line to the timeline.
func (r *Recorder) Notef(node, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.h.Notes = append(r.h.Notes, Note{At: r.Now(), Node: node, Text: fmt.Sprintf(format, args...)})
	}
}

// ReadUntil notes that the log is being read to its end for the last time, and so
// that nothing is known of what is granted from now on.
func (r *Recorder) ReadUntil() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Meta.Read = r.Now()
}

// Finish closes the recording and returns what was seen. Runs that are still
// open end now, as "open".
func (r *Recorder) Finish() *History {
	r.mu.Lock()
	defer r.mu.Unlock()
	for h := range r.open {
		r.close(h, "open")
	}
	clear(r.open)
	r.closed = true
	r.h.Meta.Length = r.Now()
	r.h.sortByTime()
	h := r.h
	return &h
}
