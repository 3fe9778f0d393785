package runtimetest

import (
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"time"
)

// Patience is how long a test waits for what must happen. It is long, since machines under test are busy.
const Patience = 60 * time.Second

// Log is a log that a test reads.
type Log struct {
	t *testing.T

	mu      sync.Mutex
	records []record
	changed chan struct{} // closed at the next record
}

type record struct {
	Msg    string `json:"msg"`
	Worker string `json:"worker"`
	Stream string `json:"stream"`
}

// NewLog returns an empty one.
func NewLog(t *testing.T) *Log { return &Log{t: t, changed: make(chan struct{})} }

// Logger returns the logger of a worker of that name.
func (l *Log) Logger(name string) *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, nil)).With(slog.String("worker", name))
}

// Write implements io.Writer: it takes one record of a JSON handler.
func (l *Log) Write(b []byte) (int, error) {
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, r)
	close(l.changed)
	l.changed = make(chan struct{})
	return len(b), nil
}

// Lines are the messages so far that a worker of that name has written, or that say what it did.
func (l *Log) Lines(name string) (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.records {
		if r.Worker == name {
			lines = append(lines, r.Msg)
		}
	}
	return lines
}

// Stream are the lines so far that a worker of that name has written to a stream.
func (l *Log) Stream(name, stream string) (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.records {
		if r.Worker == name && r.Stream == stream {
			lines = append(lines, r.Msg)
		}
	}
	return lines
}

// Await waits until a worker of that name has written a line.
func (l *Log) Await(name, line string) {
	l.t.Helper()
	l.AwaitCount(name, line, 1)
}

// AwaitCount waits until a worker of that name has written a line n times.
func (l *Log) AwaitCount(name, line string, n int) {
	l.t.Helper()
	limit := time.After(Patience)
	for {
		l.mu.Lock()
		changed := l.changed
		l.mu.Unlock()
		got := 0
		for _, written := range l.Lines(name) {
			if written == line {
				got++
			}
		}
		if got >= n {
			return
		}
		select {
		case <-changed:
		case <-limit:
			l.t.Fatalf("%s has written %q %d times, want %d: %q", name, line, got, n, l.Lines(name))
		}
	}
}
