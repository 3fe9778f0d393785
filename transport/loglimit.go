package transport

import (
	"sync"
	"time"
)

const (
	lineInterval = time.Minute // between two log lines about the same thing
	maxLines     = 1024
)

// lineLimiter keeps a stranger from filling the log.
type lineLimiter struct {
	mu    sync.Mutex
	lines map[string]*limitedLine
}

type limitedLine struct {
	last       time.Time
	suppressed int
}

// allow tells whether a line about key may be written now, and how many were left out since the last.
func (l *lineLimiter) allow(key string) (suppressed int, ok bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.lines[key]
	if line != nil && now.Sub(line.last) < lineInterval {
		line.suppressed++
		return 0, false
	}
	if line == nil {
		if l.lines == nil || len(l.lines) >= maxLines {
			l.lines = map[string]*limitedLine{}
		}
		line = &limitedLine{}
		l.lines[key] = line
	}
	suppressed = line.suppressed
	*line = limitedLine{last: now}
	return suppressed, true
}
