package node

import (
	"errors"
	"sync"

	"github.com/hashicorp/raft"
)

// logWriter writes a leader's entries while they go out to its followers, so
// that the two take their time side by side. Raft counts the leader's own copy
// as soon as StoreLogs returns. What keeps that true is the gate: a follower's
// acknowledgement reaches raft only once all that it covers is durable here,
// and with two voters or more nothing is committed without one. (Ongaro,
// Consensus, 10.2.1: a leader may write in parallel.)
//
// Nothing else sees the difference: every other use of the log and of term and
// vote first waits until what is queued is written. So an answer that a former
// leader gives to a new one, which has it save a new term, is true as well.
type logWriter struct {
	write func([]*raft.Log) error // appends to the log; its fault is final

	mu      sync.Mutex
	queue   []*raft.Log // in order, without a gap; from the oldest that is not durable
	running bool        // the goroutine that writes the queue
	closed  bool
	err     error
	changes broadcast // after each write, and when closed
}

// maxQueuedLogs bounds what a leader may hand out before its own disk has it.
// Its batcher keeps far fewer under way.
const maxQueuedLogs = 256

var errLogClosed = errors.New("the log is closed")

// mayQueue says whether entries of a server in that state, under its latest
// configuration, may go out before they are durable here: some other voter must
// be needed to commit them.
func mayQueue(state raft.RaftState, servers []raft.Server, logs []*raft.Log) bool {
	for _, l := range logs {
		if l.Type == raft.LogConfiguration { // counts from when it is appended
			return false
		}
	}
	voters := 0
	for _, s := range servers {
		if s.Suffrage == raft.Voter {
			voters++
		}
	}
	return state == raft.Leader && voters > 1
}

// enqueue hands entries over to be written. It reports false when the queue is full.
func (w *logWriter) enqueue(logs []*raft.Log) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
		return false, w.err
	case w.closed:
		return false, errLogClosed
	case len(w.queue)+len(logs) > maxQueuedLogs:
		return false, nil
	}
	w.queue = append(w.queue, logs...)
	if !w.running {
		w.running = true
		go w.run()
	}
	return true, nil
}

// run writes until there is nothing left, everything that has gathered at once.
func (w *logWriter) run() {
	for {
		w.mu.Lock()
		batch := w.queue
		if len(batch) == 0 || w.closed || w.err != nil {
			w.running = false
			w.mu.Unlock()
			w.changes.send()
			return
		}
		w.mu.Unlock()
		err := w.write(batch)
		w.mu.Lock()
		if err != nil {
			w.err = err
		} else if w.queue = w.queue[len(batch):]; len(w.queue) == 0 {
			w.queue = nil
		}
		w.mu.Unlock()
		w.changes.send()
	}
}

// get finds an entry that is queued.
func (w *logWriter) get(index uint64) (*raft.Log, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 || index < w.queue[0].Index || index > w.queue[len(w.queue)-1].Index {
		return nil, false
	}
	return w.queue[index-w.queue[0].Index], true
}

// durable returns nil once every entry up to index that was handed over is
// written, an error if it never will be or stopped closes first.
func (w *logWriter) durable(index uint64, stopped <-chan struct{}) error {
	var changed <-chan struct{}
	for {
		w.mu.Lock()
		queued := len(w.queue) > 0 && w.queue[0].Index <= index
		err := w.err
		if err == nil && w.closed {
			err = errLogClosed
		}
		w.mu.Unlock()
		switch {
		case !queued:
			return nil
		case err != nil:
			return err
		case changed == nil: // look again once a change can't be missed
			changed = w.changes.wait()
			continue
		}
		select {
		case <-changed:
			changed = nil
		case <-stopped:
			return raft.ErrTransportShutdown
		}
	}
}

// drain waits until nothing is queued.
func (w *logWriter) drain() error { return w.durable(^uint64(0), nil) }

// close drops what is queued, as a crash would: raft has heard of no
// acknowledgement that covers it. It waits for the write that is under way.
func (w *logWriter) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.changes.send()
	for {
		changed := w.changes.wait()
		w.mu.Lock()
		running := w.running
		w.mu.Unlock()
		if !running {
			return
		}
		<-changed
	}
}
