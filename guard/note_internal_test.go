//go:build linux

package guard

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

// What the guard says is logged as of when it said so: a node that was stopped
// reads it when it goes on, and the line would tell of two owners.
func TestGuard_NotesHaveTheirTime(t *testing.T) {
	var out strings.Builder
	g := &Guard{cfg: Config{Logger: slog.New(slog.NewTextHandler(&out, nil)).With("node", "n1")}}
	frame, err := appendFrame(nil, message{Note: &noteMessage{
		At: time.Date(2026, 11, 30, 9, 8, 7, 0, time.UTC), Level: slog.LevelWarn, Text: "told to stop", Attrs: []string{"key", "k"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	m, _, _, err := cutFrame(frame)
	if err != nil {
		t.Fatal(err)
	}
	g.tell(m.Note, 7)
	g.tell(&noteMessage{Level: slog.LevelDebug, Text: "too little"}, 7)
	const want = `time=2026-11-30T09:08:07.000Z level=WARN msg="guard: told to stop" node=n1 guard_pid=7 key=k` + "\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
