package fsm

import "strings"

// maxJSONDepth bounds how deep arrays and objects are nested.
const maxJSONDepth = 1_000

// validJSON reports whether data, which is valid UTF-8, is one JSON value
// (RFC 8259). It is our own, so that no other release of the standard library
// ever takes an entry of the log for something else.
func validJSON(data []byte) bool {
	s := jsonScanner{text: string(data)}
	return s.value(0) && s.rest() == ""
}

type jsonScanner struct {
	text string
	i    int
}

// rest skips white space and returns what is left.
func (s *jsonScanner) rest() string {
	for s.i < len(s.text) && strings.IndexByte(" \t\r\n", s.text[s.i]) >= 0 {
		s.i++
	}
	return s.text[s.i:]
}

// take skips white space and then c, if it is there.
func (s *jsonScanner) take(c byte) bool {
	if rest := s.rest(); rest == "" || rest[0] != c {
		return false
	}
	s.i++
	return true
}

func (s *jsonScanner) value(depth int) bool {
	rest := s.rest()
	if rest == "" || depth > maxJSONDepth {
		return false
	}
	switch rest[0] {
	case '{':
		s.i++
		return s.list('}', func() bool { return s.rest() != "" && s.string() && s.take(':') && s.value(depth+1) })
	case '[':
		s.i++
		return s.list(']', func() bool { return s.value(depth + 1) })
	case '"':
		return s.string()
	}
	for _, word := range []string{"true", "false", "null"} {
		if strings.HasPrefix(rest, word) {
			s.i += len(word)
			return true
		}
	}
	return s.number()
}

// list reads items with commas between up to the closing character.
func (s *jsonScanner) list(closing byte, item func() bool) bool {
	if s.take(closing) {
		return true
	}
	for item() {
		if s.take(closing) {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
	return false
}

func (s *jsonScanner) string() bool {
	if s.text[s.i] != '"' {
		return false
	}
	for s.i++; s.i < len(s.text); s.i++ {
		switch c := s.text[s.i]; {
		case c == '"':
			s.i++
			return true
		case c < ' ':
			return false
		case c == '\\':
			if !s.escape() {
				return false
			}
		}
	}
	return false
}

// escape reads what follows a backslash, up to its last character.
func (s *jsonScanner) escape() bool {
	s.i++
	if s.i == len(s.text) {
		return false
	}
	if s.text[s.i] != 'u' {
		return strings.IndexByte(`"\/bfnrt`, s.text[s.i]) >= 0
	}
	if len(s.text) < s.i+5 || strings.Trim(s.text[s.i+1:s.i+5], "0123456789abcdefABCDEF") != "" {
		return false
	}
	s.i += 4
	return true
}

func (s *jsonScanner) number() bool {
	s.skip("-", 1)
	if s.skip("0", 1) == 0 && s.digits() == 0 {
		return false
	}
	if s.skip(".", 1) == 1 && s.digits() == 0 {
		return false
	}
	if s.skip("eE", 1) == 1 {
		s.skip("+-", 1)
		return s.digits() > 0
	}
	return true
}

func (s *jsonScanner) digits() int { return s.skip("0123456789", len(s.text)) }

// skip skips up to most characters of a set and returns how many.
func (s *jsonScanner) skip(set string, most int) (n int) {
	for ; n < most && s.i < len(s.text) && strings.IndexByte(set, s.text[s.i]) >= 0; n++ {
		s.i++
	}
	return n
}
