//go:build linux

package guard

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// protocolVersion is checked at the start, although both ends are always the same binary.
const protocolVersion = 1

const (
	frameHeader = 4 // length of what follows, big endian
	maxFrame    = 16 << 20
)

// message is one frame in either direction: exactly one field is set.
type message struct {
	// To the guard.
	Init   *initMessage   `json:"init,omitempty"`
	Spawn  *spawnMessage  `json:"spawn,omitempty"`
	Signal *signalMessage `json:"signal,omitempty"`
	Stop   *stopMessage   `json:"stop,omitempty"`
	Feed   *feedMessage   `json:"feed,omitempty"`
	Leave  *struct{}      `json:"leave,omitempty"`

	// To the node.
	Ready   *readyMessage   `json:"ready,omitempty"`
	Failed  *failedMessage  `json:"failed,omitempty"`
	Started *startedMessage `json:"started,omitempty"`
	Refused *refusedMessage `json:"refused,omitempty"`
	Ended   *endedMessage   `json:"ended,omitempty"`
	Fed     *fedMessage     `json:"fed,omitempty"`
	Note    *noteMessage    `json:"note,omitempty"`
}

type initMessage struct {
	Version    int           `json:"version"`
	Dir        string        `json:"dir,omitempty"`
	Mark       string        `json:"mark,omitempty"` // where there is no folder that has one
	Owner      int           `json:"owner"`
	OwnerStart uint64        `json:"owner_start"`
	StopBudget time.Duration `json:"stop_budget"`
	Notes      noteStyle     `json:"notes"`
}

// spawnMessage comes with the descriptors of those of stdin, stdout and stderr that are set, in this order.
type spawnMessage struct {
	Run    uint64        `json:"run"`
	Argv   []string      `json:"argv"`
	Env    []string      `json:"env"`
	Dir    string        `json:"dir"`
	Stdio  [3]bool       `json:"stdio"`
	Key    string        `json:"key,omitempty"`
	Token  uint64        `json:"token,omitempty"`
	Budget time.Duration `json:"budget"`
}

// files is the number of descriptors that travel with the message.
func (m message) files() (n int) {
	if m.Spawn != nil {
		for _, set := range m.Spawn.Stdio {
			if set {
				n++
			}
		}
	}
	return n
}

type signalMessage struct {
	Run    uint64 `json:"run"`
	Signal int    `json:"signal"`
}

type stopMessage struct {
	Run    uint64        `json:"run"`
	Budget time.Duration `json:"budget"` // 0 kills at once
}

type feedMessage struct {
	Seq     uint64        `json:"seq"`
	At      time.Duration `json:"at"` // when it was made
	StopAt  time.Duration `json:"stop_at"`
	KillAt  time.Duration `json:"kill_at"`
	Session *Session      `json:"session,omitempty"`
}

type readyMessage struct {
	Mark string `json:"mark"`
}

type failedMessage struct {
	Reason string `json:"reason"`
	InUse  bool   `json:"in_use,omitempty"`
}

type startedMessage struct {
	Run   uint64 `json:"run"`
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
	SID   int    `json:"sid"`
}

// Why a spawn was refused.
const (
	refusedCommand = "command" // with a shell's code
	refusedNotFed  = "not_fed"
	refusedRecord  = "record"
	refusedSystem  = "system"
)

type refusedMessage struct {
	Run    uint64 `json:"run"`
	Why    string `json:"why"`
	Code   int    `json:"code,omitempty"`
	Reason string `json:"reason"`
}

type endedMessage struct {
	Run    uint64 `json:"run"`
	Status Status `json:"status"`
}

type fedMessage struct {
	Seq uint64 `json:"seq"`
}

type noteMessage struct {
	At    time.Time  `json:"at"` // by the guard's own clock: the node may read it much later
	Level slog.Level `json:"level"`
	Text  string     `json:"text"`
	Attrs []string   `json:"attrs,omitempty"` // key, value, key, value
}

// noteStyle is how a guard writes what it says when nobody is left to hand it to.
type noteStyle struct {
	Level slog.Level `json:"level"` // the least that is written
	JSON  bool       `json:"json,omitempty"`
}

// noLevel is above all levels.
const noLevel slog.Level = 1 << 10

// styleOf finds out what a logger lets through, and how it writes.
func styleOf(l *slog.Logger) noteStyle {
	if l == nil {
		return noteStyle{Level: slog.LevelWarn}
	}
	s := noteStyle{Level: noLevel}
	for _, level := range []slog.Level{slog.LevelError, slog.LevelWarn, slog.LevelInfo, slog.LevelDebug} {
		if l.Enabled(context.Background(), level) {
			s.Level = level
		}
	}
	_, s.JSON = l.Handler().(*slog.JSONHandler)
	return s
}

// logger returns a logger of that style.
func (s noteStyle) logger(w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: s.Level}
	if s.JSON {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

var errFrame = errors.New("malformed frame")

// appendFrame encodes a message with its length.
func appendFrame(b []byte, m message) ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return b, err
	}
	if len(body) > maxFrame {
		return b, fmt.Errorf("message of %d bytes: at most %d", len(body), maxFrame)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...), nil
}

// cutFrame takes the first whole message off b. ok is false while more bytes are needed.
func cutFrame(b []byte) (m message, rest []byte, ok bool, err error) {
	if len(b) < frameHeader {
		return m, b, false, nil
	}
	n := int(binary.BigEndian.Uint32(b))
	if n > maxFrame {
		return m, b, false, fmt.Errorf("%w: of %d bytes", errFrame, n)
	}
	if len(b) < frameHeader+n {
		return m, b, false, nil
	}
	if err := json.Unmarshal(b[frameHeader:frameHeader+n], &m); err != nil {
		return m, b, false, fmt.Errorf("%w: %w", errFrame, err)
	}
	return m, b[frameHeader+n:], true, nil
}
