package worker

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// maxLine is where a line of output is cut in the log.
const maxLine = 16 << 10

// Output logs what is written to it line by line: each a record whose message
// is the line, with the name of the stream. It is for runtimes whose workers
// write to a stdout.
type Output struct {
	log *slog.Logger

	mu   sync.Mutex
	rest []byte // guarded by mu: of a line that has not ended
	cut  bool   // guarded by mu: the beginning of that line is logged already
}

// NewOutput returns an Output whose stream ("stdout") is in each record.
func NewOutput(log *slog.Logger, stream string) *Output {
	return &Output{log: log.With(slog.String("stream", stream))}
}

// Write implements io.Writer. It never fails.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(b)
	for len(b) > 0 {
		part := b[:min(len(b), maxLine-len(o.rest))]
		if end := bytes.IndexByte(part, '\n'); end >= 0 {
			part = part[:end+1]
		}
		b = b[len(part):]
		o.rest = append(o.rest, part...)
		if end := part[len(part)-1] == '\n'; end || len(o.rest) == maxLine {
			o.flush(end)
		}
	}
	return n, nil
}

// Close logs the last line, if it has not ended. It never fails.
func (o *Output) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.rest) > 0 {
		o.flush(true)
	}
	return nil
}

func (o *Output) flush(end bool) {
	if line := strings.TrimRight(string(o.rest), "\r\n"); line != "" || !o.cut {
		o.log.Info(strings.ToValidUTF8(line, "\uFFFD"))
	}
	o.rest, o.cut = o.rest[:0], !end
}
