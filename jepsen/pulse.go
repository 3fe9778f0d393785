package jepsen

import (
	"context"
	"time"
)

// FaultStall is a machine that did not run this process for a while: nobody may
// be blamed for what was late meanwhile.
const FaultStall = "machine-stall"

const (
	pulseEvery = 20 * time.Millisecond
	pulseLate  = 300 * time.Millisecond
)

// Pulse notes when the machine stood still, until ctx ends.
func (r *Recorder) Pulse(ctx context.Context, nodes []string) {
	tick := time.NewTicker(pulseEvery)
	defer tick.Stop()
	for last := r.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := r.Now()
		if now-last > pulseLate {
			r.AddWindow(Window{Fault: FaultStall, Nodes: nodes, From: last, To: now, Text: "the machine stood still for " + (now - last).Round(time.Millisecond).String()})
		}
		last = now
	}
}

// AddWindow notes a fault that is over.
func (r *Recorder) AddWindow(w Window) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.h.Windows = append(r.h.Windows, w)
	}
}
