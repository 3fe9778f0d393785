package node

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// raftLogger turns hclog into slog. Raft speaks of its ordinary life at info
// and warn; only its errors are worth a line of ours at more than debug.
type raftLogger struct {
	log  *slog.Logger
	rare *rarely // keeps what raft repeats at every try to one line in a while
	name string
	args []any
}

var _ hclog.Logger = (*raftLogger)(nil)

func newRaftLogger(l *slog.Logger) hclog.Logger {
	return &raftLogger{log: l.With("part", "raft"), rare: newRarely(raftSayInterval)}
}

// raftSayInterval is how often raft's complaint about one peer is written.
const raftSayInterval = time.Minute

func (l *raftLogger) level(level hclog.Level) slog.Level {
	if level >= hclog.Error {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// Log implements hclog.Logger.
func (l *raftLogger) Log(level hclog.Level, msg string, args ...any) {
	to := l.level(level)
	if msg == "failed to accept connection" {
		to = slog.LevelDebug // at each stop: the transport under raft is closed first
	}
	if msg == "failed to decode incoming command" && strings.Contains(fmt.Sprint(args...), net.ErrClosed.Error()) {
		to = slog.LevelDebug // so are its connections
	}
	if !l.log.Enabled(context.Background(), to) {
		return
	}
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			args[i] = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
	}
	if to > slog.LevelDebug {
		ok, skipped := l.rare.count(msg + aboutPeer(args))
		if !ok {
			return
		}
		if skipped > 0 {
			args = append(args, "repeated", skipped)
		}
	}
	l.log.Log(context.Background(), to, msg, args...)
}

// aboutPeer is the peer that raft's line is about, "" for none.
func aboutPeer(args []any) string {
	for i := 0; i+1 < len(args); i += 2 {
		switch args[i] {
		case "peer", "target", "id":
			return fmt.Sprintf(" %v", args[i+1])
		}
	}
	return ""
}

func (l *raftLogger) Trace(string, ...any)          {}
func (l *raftLogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *raftLogger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *raftLogger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *raftLogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }
func (l *raftLogger) IsTrace() bool                 { return false }
func (l *raftLogger) IsDebug() bool                 { return l.log.Enabled(context.Background(), slog.LevelDebug) }
func (l *raftLogger) IsInfo() bool                  { return l.IsDebug() }
func (l *raftLogger) IsWarn() bool                  { return l.IsDebug() }
func (l *raftLogger) IsError() bool                 { return l.log.Enabled(context.Background(), slog.LevelWarn) }
func (l *raftLogger) ImpliedArgs() []any            { return l.args }
func (l *raftLogger) Name() string                  { return l.name }
func (l *raftLogger) SetLevel(hclog.Level)          {}
func (l *raftLogger) GetLevel() hclog.Level         { return hclog.Debug }
func (l *raftLogger) Named(name string) hclog.Logger {
	return l.ResetNamed(strings.Trim(l.name+"."+name, "."))
}

func (l *raftLogger) With(args ...any) hclog.Logger {
	return &raftLogger{log: l.log.With(args...), rare: l.rare, name: l.name, args: append(append([]any(nil), l.args...), args...)}
}

func (l *raftLogger) ResetNamed(name string) hclog.Logger {
	return &raftLogger{log: l.log, rare: l.rare, name: name, args: l.args}
}

func (l *raftLogger) StandardLogger(o *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(l.StandardWriter(o), "", 0)
}

func (l *raftLogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer {
	return &lineWriter{emit: func(line string) { l.Log(hclog.Debug, line) }}
}

// gossipSayInterval is how often memberlist's complaint of one kind is written:
// anybody who reaches the port can make it complain of each packet.
const gossipSayInterval = time.Minute

// newGossipLogger turns memberlist's *log.Logger into slog: its own levels stand
// in brackets; what it calls an error is a hint here, since gossip decides nothing.
func newGossipLogger(l *slog.Logger) *log.Logger {
	l = l.With("part", "gossip")
	rare := newRarely(gossipSayInterval)
	return log.New(&lineWriter{emit: func(line string) {
		complaint := strings.HasPrefix(line, "[ERR]")
		if i := strings.Index(line, "memberlist: "); i >= 0 {
			line = line[i+len("memberlist: "):]
		}
		if !complaint {
			l.Debug(line)
			return
		}
		ok, skipped := rare.count(complaintKind(line))
		switch {
		case !ok:
		case skipped > 0:
			l.Info(line, "repeated", skipped)
		default:
			l.Info(line)
		}
	}}, "", 0)
}

// complaintKind is what the complaint has in common with others of its kind. One
// about what came from outside says where from and quotes it, and a stranger
// can make up both.
func complaintKind(line string) string {
	kind, _, outside := strings.Cut(line, " from=")
	if !outside {
		return line
	}
	if i := strings.IndexAny(kind, `"0123456789`); i >= 0 {
		kind = kind[:i]
	}
	return kind
}

type lineWriter struct{ emit func(string) }

func (w *lineWriter) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		w.emit(strings.TrimRight(string(line), "\n"))
	}
	return len(b), nil
}

// rarely lets one line per key through in a while: for faults that repeat
// themselves at every retry.
type rarely struct {
	every time.Duration

	mu      sync.Mutex
	last    map[string]time.Time
	skipped map[string]int
}

func newRarely(every time.Duration) *rarely {
	return &rarely{every: every, last: make(map[string]time.Time), skipped: make(map[string]int)}
}

// ok tells whether key may be said now.
func (r *rarely) ok(key string) bool {
	ok, _ := r.count(key)
	return ok
}

// count is ok that also tells how often it has said no since it last said yes.
func (r *rarely) count(key string) (ok bool, skipped int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if at, said := r.last[key]; said && now.Sub(at) < r.every {
		r.skipped[key]++
		return false, 0
	}
	if len(r.last) > 1000 {
		clear(r.last)
		clear(r.skipped)
	}
	skipped = r.skipped[key]
	delete(r.skipped, key)
	r.last[key] = now
	return true, skipped
}
