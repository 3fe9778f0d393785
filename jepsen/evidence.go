package jepsen

import (
	"fmt"
	"time"
)

// What is observed of processes beside what they do for their clients.

// Gauge is what a node's process had of the machine.
type Gauge struct {
	Node string        `json:"node"`
	Boot int           `json:"boot"` // how often it had been started
	At   time.Duration `json:"at"`
	// When is before, during or after the torment; before and after it is at rest.
	When       GaugeTime `json:"when"`
	Goroutines int       `json:"goroutines"` // -1: not told
	Handles    int       `json:"handles"`    // open files and sockets
	Threads    int       `json:"threads"`
	Memory     int64     `json:"memory"` // resident bytes
}

// GaugeTime is when a Gauge was read.
type GaugeTime string

const (
	Before GaugeTime = "before"
	During GaugeTime = "during"
	After  GaugeTime = "after"
)

// Exit is the end of a node's process that nobody asked for.
type Exit struct {
	Node string        `json:"node"`
	At   time.Duration `json:"at"`
	Code int           `json:"code"`           // -1: by a signal
	Last string        `json:"last,omitempty"` // line of its log
}

// Leave is a graceful end that was asked for.
type Leave struct {
	Node  string        `json:"node"`
	From  time.Duration `json:"from"`
	Took  time.Duration `json:"took"`
	Bound time.Duration `json:"bound"`
	Done  bool          `json:"done"` // else it was killed after Took
}

// Finding is something that whoever torments saw to be wrong, under the name of
// the check that it fails.
type Finding struct {
	Check string        `json:"check"`
	At    time.Duration `json:"at"`
	What  string        `json:"what"`
}

// Setup is what a run in the process tier was made of: what it takes to run it again.
type Setup struct {
	Command []string  `json:"command"`
	Began   time.Time `json:"began"`
	// Versions of the program that tormented and of the one that was tormented.
	Version string `json:"version"`
	Binary  string `json:"binary"`
	Tested  string `json:"tested"`
	Machine string `json:"machine"`
	Network string `json:"network"`
	// Loopback says why there are no namespaces.
	Loopback string   `json:"loopback,omitempty"`
	Nemesis  []string `json:"nemesis"`
	// Missing says what could not be done here and why.
	Missing []string `json:"missing,omitempty"`
	// Stopped says that it was ended before its time.
	Stopped bool              `json:"stopped,omitempty"`
	Timing  map[string]string `json:"timing"` // flags of the nodes
}

// notices are what is not as it could be, in sentences.
func (s *Setup) notices() (all []string) {
	if s.Loopback != "" {
		all = append(all, "no network namespaces, so all is on loopback, through a proxy of ours: "+s.Loopback)
	}
	for _, m := range s.Missing {
		all = append(all, "left out: "+m)
	}
	return all
}

// Gauge notes what a process has of the machine.
func (r *Recorder) Gauge(g Gauge) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		g.At = r.Now()
		r.h.Gauges = append(r.h.Gauges, g)
	}
}

// Exit notes that a node's process ended by itself.
func (r *Recorder) Exit(e Exit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		e.At = r.Now()
		r.h.Exits = append(r.h.Exits, e)
	}
}

// Leave notes a graceful end.
func (r *Recorder) Leave(l Leave) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.h.Leaves = append(r.h.Leaves, l)
	}
}

// Found notes something that is wrong.
func (r *Recorder) Found(check, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.h.Found = append(r.h.Found, Finding{Check: check, At: r.Now(), What: fmt.Sprintf(format, args...)})
	}
}

// SetUp notes what the run is made of.
func (r *Recorder) SetUp(s Setup) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Meta.Setup = &s
}
