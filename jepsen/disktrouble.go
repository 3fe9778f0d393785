package jepsen

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Ailments of a disk.
const (
	DiskSlow    = "disk-slow"    // each write takes a while
	DiskFailing = "disk-failing" // no write is taken
	DiskFull    = "disk-full"    // none that needs more room
)

// Trouble is one process that was refused a write by its disk.
type Trouble struct {
	Node string `json:"node"`
	Proc string `json:"proc"`
	What string `json:"what"` // the disk's error
	// At is when it was first refused one without which it can't go on.
	At time.Duration `json:"at"`
	// Said is when the process said that it can't go on, Saying why. Never: it did not.
	Said   time.Duration `json:"said"`
	Saying string        `json:"saying,omitempty"`
	// Ended is when its node had stopped.
	Ended time.Duration `json:"ended"`
	// Killed: it was killed before.
	Killed bool `json:"killed,omitempty"`
}

const (
	// sayLimit is how long a node may take to say that its disk fails.
	sayLimit = time.Second
	// stopLimit is how long beyond a TTL it may take to stop: runs are given up first.
	stopLimit = 10 * time.Second
)

// checkDiskTrouble: a node whose disk refuses a write says so at once, takes no
// calls after that, begins nothing but what it was granted before, and stops. That nothing is lost of what was
// acknowledged is for the other checks to find.
func checkDiskTrouble(h *History) Verdict {
	var faults []string
	for _, t := range h.Troubles {
		told := fmt.Sprintf("%s: a write was refused at %v (%s)", t.Proc, t.At, t.What)
		switch {
		case t.Killed && t.Ended-t.At <= sayLimit:
			continue // it had no time to say anything
		case t.Said == Never:
			faults = append(faults, told+" and it never said so")
			continue
		case t.Said-t.At > sayLimit:
			faults = append(faults, fmt.Sprintf("%s and it said so only at %v", told, t.Said))
		case !strings.Contains(t.Saying, t.What):
			faults = append(faults, fmt.Sprintf("%s and it said %q", told, t.Saying))
		}
		if limit := h.Meta.Bounds.TTL + stopLimit; !t.Killed && (t.Ended == Never && h.Meta.Length-t.At > limit || t.Ended != Never && t.Ended-t.At > limit) {
			faults = append(faults, fmt.Sprintf("%s and it had not stopped %v later", told, limit))
		}
		for i := range h.Ops {
			if o := &h.Ops[i]; o.Node == t.Node && o.Outcome == OK && o.Call > t.Said && o.Return <= t.Ended {
				faults = append(faults, fmt.Sprintf("%s, and %s of %s that was sent to it at %v was answered at %v", told, o.Kind, o.Key, o.Call, o.Return))
			}
		}
		for _, r := range h.Runs {
			if r.Proc == t.Proc && r.Start > t.Said && !h.granted(r.Key, r.Token, t.Said) {
				faults = append(faults, fmt.Sprintf("%s, and %s began to run in it at %v", told, r.Key, r.Start))
			}
		}
	}
	slices.Sort(faults)
	return verdict(CheckDisk, len(h.Troubles), faults)
}

// granted tells whether a grant had been seen by then.
func (h *History) granted(key string, token uint64, by time.Duration) bool {
	return slices.ContainsFunc(h.Events, func(e Event) bool { return e.Type == eventGranted && e.Key == key && e.Token == token && e.At <= by })
}
