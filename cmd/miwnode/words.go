package main

import (
	"fmt"
	"strings"
)

// splitWords splits a command line as a POSIX shell would: blanks separate,
// quotes and backslashes keep together. Nothing is expanded or redirected: an
// operator of the shell outside quotes is refused, since whoever writes one
// means a shell.
func splitWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	begun := false
	end := func() {
		if begun {
			words = append(words, word.String())
			word.Reset()
			begun = false
		}
	}
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch c {
		case ' ', '\t', '\n', '\r':
			end()
			continue
		case '|', '&', ';', '<', '>', '(', ')', '`':
			return nil, fmt.Errorf("%q has %q outside quotes: no shell reads it; quote it, or write sh -c '…'", line, string(c))
		}
		begun = true
		switch c {
		case '\\':
			if i++; i == len(line) {
				return nil, fmt.Errorf("%q ends with a backslash", line)
			}
			if line[i] != '\n' {
				word.WriteByte(line[i])
			}
		case '\'':
			n := strings.IndexByte(line[i+1:], '\'')
			if n < 0 {
				return nil, fmt.Errorf("%q has a ' that does not close", line)
			}
			word.WriteString(line[i+1 : i+1+n])
			i += n + 1
		case '"':
			n, text := doubleQuoted(line[i+1:])
			if n < 0 {
				return nil, fmt.Errorf("%q has a \" that does not close", line)
			}
			word.WriteString(text)
			i += n + 1
		default:
			word.WriteByte(c)
		}
	}
	end()
	return words, nil
}

// doubleQuoted reads up to the closing quote and returns where that is, -1 if
// there is none. A backslash quotes only what is special within double quotes.
func doubleQuoted(s string) (n int, text string) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return i, b.String()
		case s[i] == '\\' && i+1 < len(s) && strings.IndexByte("$`\"\\\n", s[i+1]) >= 0:
			if i++; s[i] != '\n' {
				b.WriteByte(s[i])
			}
		default:
			b.WriteByte(s[i])
		}
	}
	return -1, ""
}
