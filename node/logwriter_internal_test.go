package node

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

func TestMayQueue(t *testing.T) {
	server := func(id string, s raft.ServerSuffrage) raft.Server {
		return raft.Server{ID: raft.ServerID(id), Suffrage: s}
	}
	alone := []raft.Server{server("a", raft.Voter)}
	learner := []raft.Server{server("a", raft.Voter), server("b", raft.Nonvoter)}
	two := []raft.Server{server("a", raft.Voter), server("b", raft.Voter)}
	entry, config := []*raft.Log{{Type: raft.LogCommand}}, []*raft.Log{{Type: raft.LogCommand}, {Type: raft.LogConfiguration}}
	for name, c := range map[string]struct {
		state   raft.RaftState
		servers []raft.Server
		logs    []*raft.Log
		want    bool
	}{
		"a leader of two":                {raft.Leader, two, entry, true},
		"a follower has promised":        {raft.Follower, two, entry, false},
		"a candidate":                    {raft.Candidate, two, entry, false},
		"alone, it commits by itself":    {raft.Leader, alone, entry, false},
		"a learner commits nothing":      {raft.Leader, learner, entry, false},
		"a configuration counts at once": {raft.Leader, two, config, false},
	} {
		if got := mayQueue(c.state, c.servers, c.logs); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestLogWriter(t *testing.T) {
	entries := func(from, to uint64) (logs []*raft.Log) {
		for i := from; i <= to; i++ {
			logs = append(logs, &raft.Log{Index: i})
		}
		return logs
	}
	type writer struct {
		*logWriter
		allow chan error
		wrote []int // entries of each write
	}
	start := func() *writer {
		w := &writer{logWriter: &logWriter{}, allow: make(chan error)}
		w.write = func(logs []*raft.Log) error {
			err := <-w.allow
			w.wrote = append(w.wrote, len(logs))
			return err
		}
		return w
	}
	run := func(name string, f func(t *testing.T, w *writer)) {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { f(t, start()) }) })
	}
	queue := func(t *testing.T, w *writer, from, to uint64) {
		t.Helper()
		if ok, err := w.enqueue(entries(from, to)); !ok || err != nil {
			t.Fatalf("not queued: %v", err)
		}
	}
	waits := func(w *writer, index uint64) chan error {
		done := make(chan error, 1)
		go func() { done <- w.durable(index, nil) }()
		synctest.Wait()
		return done
	}

	run("an acknowledgement waits for what it covers and no more", func(t *testing.T, w *writer) {
		queue(t, w, 5, 6)
		synctest.Wait() // the first write is under way
		queue(t, w, 7, 7)
		queue(t, w, 8, 8)
		four, six, eight := waits(w, 4), waits(w, 6), waits(w, 8)
		if len(four) != 1 || len(six) != 0 || len(eight) != 0 {
			t.Errorf("before any write: %d %d %d are let through", len(four), len(six), len(eight))
		}
		w.allow <- nil
		synctest.Wait()
		if len(six) != 1 || len(eight) != 0 {
			t.Errorf("after the first write: %d %d are let through", len(six), len(eight))
		}
		w.allow <- nil
		if err := <-eight; err != nil {
			t.Error(err)
		}
		if len(w.wrote) != 2 || w.wrote[1] != 2 {
			t.Errorf("writes of %v entries, want what had gathered in one: [2 2]", w.wrote)
		}
	})
	run("what is queued can be read", func(t *testing.T, w *writer) {
		queue(t, w, 5, 6)
		if l, ok := w.get(6); !ok || l.Index != 6 {
			t.Errorf("entry 6: %v %v", l, ok)
		}
		if _, ok := w.get(7); ok {
			t.Error("entry 7 is there")
		}
		w.allow <- nil
		synctest.Wait()
		if _, ok := w.get(6); ok {
			t.Error("entry 6 is still queued")
		}
	})
	run("a write that fails fails all that waits, for good", func(t *testing.T, w *writer) {
		broken := errors.New("input/output error")
		queue(t, w, 1, 1)
		one := waits(w, 1)
		w.allow <- broken
		if err := <-one; !errors.Is(err, broken) {
			t.Errorf("durable: %v", err)
		}
		if _, err := w.enqueue(entries(2, 2)); !errors.Is(err, broken) {
			t.Errorf("enqueue: %v", err)
		}
	})
	run("a stop ends the wait", func(t *testing.T, w *writer) {
		queue(t, w, 1, 1)
		stopped := make(chan struct{})
		close(stopped)
		if err := w.durable(1, stopped); !errors.Is(err, raft.ErrTransportShutdown) {
			t.Errorf("durable: %v", err)
		}
		w.allow <- nil
	})
	run("closing drops what no write has begun", func(t *testing.T, w *writer) {
		queue(t, w, 1, 1)
		synctest.Wait()
		queue(t, w, 2, 2)
		closed := make(chan struct{})
		go func() { w.close(); close(closed) }()
		synctest.Wait()
		w.allow <- nil
		<-closed
		if err := w.durable(2, nil); !errors.Is(err, errLogClosed) {
			t.Errorf("durable: %v", err)
		}
		if len(w.wrote) != 1 {
			t.Errorf("writes of %v entries, want [1]", w.wrote)
		}
	})
	run("a full queue takes no more", func(t *testing.T, w *writer) {
		queue(t, w, 1, maxQueuedLogs)
		if ok, err := w.enqueue(entries(maxQueuedLogs+1, maxQueuedLogs+1)); ok || err != nil {
			t.Errorf("queued: %v, %v", ok, err)
		}
		w.allow <- nil
	})
}
