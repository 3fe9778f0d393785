package api

import (
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
)

const (
	defaultLimit = 1000
	maxLimit     = 10000 // more is cut to this; next says where to go on
)

func parseQuery(raw string) (url.Values, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, invalid("the query can't be read: %v", err)
	}
	for name, vs := range values {
		for _, v := range vs {
			if !utf8.ValidString(v) {
				return nil, invalid("parameter %q is not valid UTF-8", name)
			}
		}
	}
	return values, nil
}

func (c *call) duration(name string) (time.Duration, error) {
	s, given := c.query[name]
	if !given {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, invalid("%s is %q: it must be a duration such as 5s", name, s)
	}
	return d, nil
}

func (c *call) uint(name string) (uint64, error) {
	s, given := c.query[name]
	if !given {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, invalid("%s is %q: it must be a whole number", name, s)
	}
	return n, nil
}

// limit is how many entries a list may have.
func (c *call) limit() (int, error) {
	if c.query["limit"] == "" {
		if _, given := c.query["limit"]; !given {
			return defaultLimit, nil
		}
	}
	n, err := c.uint("limit")
	if err != nil || n == 0 {
		return 0, invalid("limit is %q: it must be a whole number from 1", c.query["limit"])
	}
	return int(min(n, maxLimit)), nil
}

// read is the copy of the state that ?consistency= asks for, and its age if
// that is known.
func (c *call) read() (*fsm.View, *Duration, error) {
	level, err := parseConsistency(c.query["consistency"])
	if err != nil {
		return nil, nil, err
	}
	view, fresh, err := c.node.Read(c.ctx, level)
	if err != nil || fresh.Age < 0 {
		return view, nil, err
	}
	age := Duration(fresh.Age.Round(time.Microsecond))
	return view, &age, nil
}

func parseConsistency(s string) (node.Consistency, error) {
	switch bound, bounded := strings.CutPrefix(s, "bounded:"); {
	case s == "" || s == "local":
		return node.Local, nil
	case s == "linearizable":
		return node.Linearizable, nil
	case bounded:
		if d, err := time.ParseDuration(bound); err == nil && d > 0 {
			return node.Bounded(d), nil
		}
	}
	return node.Local, invalid("consistency is %q: it must be local, bounded:200ms (or another duration) or linearizable", s)
}

// position is a place in the order of the log, as it travels: REVISION.POSITION.
func parsePosition(s string) (revision uint64, position uint32, ok bool) {
	rev, pos, dotted := strings.Cut(s, ".")
	revision, err := strconv.ParseUint(rev, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	if dotted {
		p, err := strconv.ParseUint(pos, 10, 32)
		if err != nil {
			return 0, 0, false
		}
		position = uint32(p)
	}
	return revision, position, true
}

func formatPosition(revision uint64, position uint32) string {
	return strconv.FormatUint(revision, 10) + "." + strconv.FormatUint(uint64(position), 10)
}
