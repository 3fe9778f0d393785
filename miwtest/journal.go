package miwtest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// journal is what a failed test shows: what happened, and what was wrong.
type journal struct {
	mu       sync.Mutex
	lines    []string
	found    []Violation
	expected []Kind
}

// maxLines bounds the lines that are kept: the newest are.
const maxLines = 2000

func (j *journal) note(at time.Duration, text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.lines) == 2*maxLines {
		j.lines = slices.Delete(j.lines, 0, maxLines)
	}
	j.lines = append(j.lines, fmt.Sprintf("%11.3fs  %s", at.Seconds(), text))
}

// add keeps v and tells whether it was expected.
func (j *journal) add(v Violation) (expected bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.found = append(j.found, v)
	return slices.Contains(j.expected, v.Kind)
}

func (j *journal) expect(kinds []Kind) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.expected = append(j.expected, kinds...)
}

func (j *journal) expects(k Kind) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Contains(j.expected, k)
}

// unseen returns the kinds that were expected and not found.
func (j *journal) unseen() (kinds []Kind) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, k := range j.expected {
		if !slices.ContainsFunc(j.found, func(v Violation) bool { return v.Kind == k }) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

func (j *journal) violations() []Violation {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.found)
}

func (j *journal) text() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines[max(0, len(j.lines)-maxLines):], "\n")
}
